"""Copies of an image on other nodes, and in the archive."""

import asyncio
from typing import Final

import msgspec

from shunter.act.archives import ARCHIVE
from shunter.act.run import Run, problem, spec_of
from shunter.model.errors import Problem, Rejected, Retry, ShunterError, Stalled, Unknown
from shunter.model.ids import NodeId, SlotId, node_of
from shunter.wire import agent_pb2 as pb

LOOK_S: Final = 0.5
"""Seconds between looks whether an image's worker is needed for something else."""


async def send_copies(run: Run, holder: NodeId, to: tuple[NodeId, ...]) -> Problem | None:
    """Send the operation's image from `holder` to each node of `to`. What couldn't be made (SH518), or None."""
    missing: list[str] = []
    for node in to:
        try:
            await send(run, holder, node)
        except Stalled:
            raise
        except ShunterError as error:
            missing.append(f"{node} ({error.problem.code} {error.problem.what})")
    if not missing:
        return None
    return problem(
        "SH518", f"no copy could be made on {', '.join(missing)}", "Look at the nodes; the next checkpoint tries again", run.image
    )


async def send(run: Run, holder: NodeId, to: NodeId) -> None:
    """One copy. What counts is whether it is there in the end. Where that may change, it is asked for once more."""
    peer = await run.peer(to)
    for last in (False, True):
        try:
            await run.ask(run.agent(holder).send(run.order, run.image, peer, run.bulk))
        except (Rejected, Retry, Unknown) as no:
            if await has_image(run, to):
                return
            if last or isinstance(no, Rejected):
                raise
        else:
            return


async def has_image(run: Run, node: NodeId) -> bool | None:
    """Whether a node has the operation's image, whole; None when it doesn't answer."""
    try:
        report = await run.agent(node).report(run.times.quick)
    except ShunterError:
        return None
    return any(image.id == run.image for image in report.images)


class Found(msgspec.Struct, frozen=True):
    """An image that is to be restored: which node has it (None: the archive alone), what it is like, and its worker."""

    holder: NodeId | None
    info: pb.ImageInfo
    spec: pb.WorkerSpec


async def find(run: Run, to: NodeId) -> Found:
    """The operation's image, for a restore on the node `to`: there, on another node, or else in the archive, as `to` can fetch it.

    Raises Rejected SH512 when none that answers has it, and what the agent says of the archive (SH822, say).
    """
    known = [node for image in run.parts.fleet().images if image.id == run.image for node in image.nodes]
    for node in sorted({to, *known}, key=lambda n: (n != to, n)):
        try:
            report = await run.agent(node).report(run.times.quick)
        except ShunterError:
            continue
        info = next((i for i in report.images if i.id == run.image), None)
        if info is not None:
            return Found(node, info, spec_of(report, run))
    kept = await _in_archive(run, to) if _archived(run) else None
    if kept is not None:
        return Found(None, kept, kept.spec)
    what = f"no node that answers has image {run.image}{', nor has the archive' if _archived(run) else ''}"
    raise Rejected(problem("SH512", what, "Bring one of its holders back, or use another image"))


def _archived(run: Run) -> bool:
    return any(image.id == run.image and image.archived for image in run.parts.fleet().images)


async def _in_archive(run: Run, node: NodeId) -> pb.ImageInfo | None:
    """What the archive has of the operation's image now, by a node. Raises as `Agent.report` does."""
    report = await run.agent(node).report(run.times.quick, run.image)
    return next((i for i in report.archived if i.id == run.image), None)


async def archive(run: Run, home: SlotId) -> Problem | None:
    """Send the operation's image from the node of `home`, its worker's slot, to the archive. Why it isn't there, or isn't yet (SH567);
    None: it is.

    It may take long, and the worker must be free for what is urgent: once a notice is open for where it is, or the operation is given up,
    nobody waits for it any more. The agent goes on, and its reports tell when it is there. Raises Stalled.
    """
    holder = node_of(home)
    if (why := _needed(run, home)) is not None:
        return _not_archived(run, f"{why}, so it wasn't sent")
    order = asyncio.ensure_future(_send_there(run, holder))
    try:
        while not order.done():
            pause = asyncio.ensure_future(run.parts.sleep(LOOK_S))
            await asyncio.wait((order, pause), return_when=asyncio.FIRST_COMPLETED)
            pause.cancel()
            if not order.done() and (why := _needed(run, home)) is not None:
                return _not_archived(run, f"{why}, and nobody waited until it was there; {holder} goes on sending it")
        order.result()
    except Stalled:
        raise
    except ShunterError as error:
        return None if await _is_archived(run, holder) else _not_archived(run, f"{error.problem.code} {error.problem.what}")
    finally:
        order.cancel()
        await asyncio.gather(order, return_exceptions=True)
    return None


async def _send_there(run: Run, holder: NodeId) -> None:
    await run.ask(run.agent(holder).send(run.order, run.image, pb.Peer(node=ARCHIVE, address=ARCHIVE), run.bulk))


def _needed(run: Run, home: SlotId) -> str | None:
    """Why the worker must be free now, in words; None: it needn't be."""
    if run.parts.astray(msgspec.structs.replace(run.planned, to_slot=home)):
        return f"a notice is open for {home}, or for a node with a copy"
    return given_up.what if (given_up := run.given_up) is not None else None


async def _is_archived(run: Run, node: NodeId) -> bool:
    """The answer to the order was lost, or is wrong."""
    try:
        return await _in_archive(run, node) is not None
    except ShunterError:
        return False


def _not_archived(run: Run, why: str) -> Problem:
    remedy = "It is on its nodes. Look at the agents' `[archive]`; the next checkpoint tries again with its own image"
    return problem("SH567", f"the image isn't known to be in the archive: {why}", remedy, run.image)


async def discard_archived(run: Run) -> Problem | None:
    """Delete the operation's image in the archive, if it is there, through any node that has to do with it. Why it is there still, or may
    be: SH565 nobody can be asked, SH566 the worker could come back from no newer one, or what an agent says; None: it isn't.
    """
    if not _archived(run):
        return None
    if not _outdated(run):
        return problem("SH566", "no node that answers has a newer image of the worker", "It is kept until one has", run.image)
    why = problem("SH565", "no node that answers knows of the archive", "Bring one back", run.image)
    for node in _knowing(run):
        try:
            await run.ask(run.agent(node).discard(run.order, run.image, run.times.quick, archived=True))
        except Stalled:
            raise
        except ShunterError as error:
            why = error.problem
        else:
            return None
    return why


async def still_archived(run: Run) -> bool:
    """Whether the archive has the operation's image, or may have."""
    if not _archived(run):
        return False
    for node in _knowing(run):
        try:
            return await _in_archive(run, node) is not None
        except ShunterError:
            continue
    return True


def _knowing(run: Run) -> list[NodeId]:
    return [n.id for n in run.parts.fleet().nodes if n.archive and n.reachable and not run.parts.gone(n.id)]


def _outdated(run: Run) -> bool:
    """A newer image of the same worker is on a node that answers, or nobody comes back from any. Where this one isn't to be trusted, any
    that is will do.
    """
    if run.planned.expect.absent:
        return True
    fleet = run.parts.fleet()
    answering = {n.id for n in fleet.nodes if n.reachable and not run.parts.gone(n.id)}
    own = [i for i in fleet.images if i.worker == run.planned.worker]
    this = max(((i.incarnation, i.taken_at) for i in own if i.id == run.image), default=(-1, 0.0))
    if any(i.doubt for i in own if i.id == run.image):
        this = (-1, 0.0)
    return any((i.incarnation, i.taken_at) > this and answering.intersection(i.nodes) and not i.doubt for i in own)
