"""A move: both copies stand still before the source's is ended, and the destination's runs only after that is confirmed."""

import asyncio

import msgspec

from shunter.act.arrive import commit, destination_of, done, once_more, restore, resume, unfence
from shunter.act.back import image_back, must_view, thaw_back
from shunter.act.counting import unseen
from shunter.act.drive import Machine
from shunter.act.housing import gone_soon, home_of, room, shown_soon, withdrawn
from shunter.act.run import Run, problem, row_of
from shunter.act.together import all_of
from shunter.model.errors import Problem, Rejected
from shunter.model.ids import NodeId, SlotId, node_of
from shunter.model.operation import Step
from shunter.wire import agent_pb2 as pb


def source_of(run: Run) -> SlotId:
    """The slot that the worker leaves. Raises Rejected SH510 for an operation that names none."""
    slot = run.planned.from_slot or run.planned.expect.at
    if slot is None:
        raise Rejected(problem("SH510", "it doesn't say which slot the worker is in", "Plan again", run.record.id))
    return slot


async def leaving(run: Run, source: SlotId) -> pb.PreflightReply:
    """The preflight of the node that the worker leaves, and with it what the worker is. Raises Rejected: SH512, and the first refusal."""
    checked = await run.preflight(source, destination=False, facts={}, size=0)
    if not checked.HasField("worker"):  # an older agent says that in its report alone
        report = await run.at(source).report(run.times.quick)
        row = row_of(report, run)
        if row is None:
            raise Rejected(problem("SH512", f"{report.node} doesn't have the worker", "Plan again", run.planned.worker))
        checked.worker.CopyFrom(row)
        checked.facts.update(report.facts if not checked.facts else {})
    return checked


async def _prepare(run: Run) -> None:
    """INTENDED to PREPARED; of what can't wait, to FENCED at once.

    Nothing is touched before both sides have passed their preflight. A worker in a pod isn't fenced before its new pod is durable.
    """
    source, destination = source_of(run), destination_of(run)
    run.untouched = True
    here = await leaving(run, source)
    spec, left = here.worker.spec, home_of(run, here.worker)
    uses = here.uses if here.HasField("uses") else None
    there = await run.preflight(
        destination,
        destination=True,
        facts=dict(here.facts),
        size=here.bytes,
        spec=spec,
        uses=uses,
        privileges=here.privileges if here.HasField("privileges") else None,
    )
    if there.image_address:
        run.place = pb.Peer(node=node_of(destination), address=there.image_address)
    pod = await room(run, destination, left, spec) if left is not None else None
    if left is not None or run.planned.lane == "voluntary":
        container = uses.container if uses is not None and uses.HasField("container") else None
        await run.ask(run.at(destination).prepare(run.order, destination, spec, run.times.quick, pod, container))
        run.step(Step.PREPARED, pod=pod, left=left)
        return
    run.may_go_on()
    order = run.order
    run.untouched = False
    reserving = run.ask(run.at(destination).prepare(order, destination, spec, run.times.quick))
    fencing = run.ask(run.at(source).fence(order, run.times.quick))
    await all_of(asyncio.create_task(reserving), asyncio.create_task(fencing))
    run.step(Step.FENCED, by=Step.PREPARED)


async def fence(run: Run) -> None:
    """PREPARED to FENCED, at the source."""
    await shown_soon(run, shown=False)
    await run.ask(run.at(source_of(run)).fence(run.order, run.times.quick))
    await unseen(run)
    run.step(Step.FENCED)


async def freeze(run: Run, to: NodeId | None) -> None:
    """FENCED to FROZEN: the image is whole on node `to` (None: where the worker is)."""
    peer: pb.Peer | None = await run.peer(to) if to else None
    ahead = run.ahead if peer is not None else None
    reply = await run.ask(run.at(source_of(run)).freeze(run.order, run.image, peer, run.times.hold, run.bulk, ahead))
    known = run.measure(dump=reply.dump_s, bytes=reply.image.bytes)
    if to:
        known = msgspec.structs.replace(
            known,
            send=reply.send_s,
            sent=reply.sent_bytes if reply.HasField("sent_bytes") else None,
            copy=reply.copy_s or None,
            copied=reply.copied_bytes or None,
        )
    run.step(Step.FROZEN, frozen_at=reply.frozen_at or None, measured=known)


async def _freeze(run: Run) -> None:
    await freeze(run, node_of(destination_of(run)))


async def release(run: Run) -> None:
    """COMMITTING to RELEASED: the source's copy is dead."""
    await run.ask(run.at(source_of(run)).release(run.order, run.times.quick))
    run.step(Step.RELEASED)


async def _resume(run: Run) -> None:
    """Beside it the pod that is left goes, before what was killed in it is started again."""
    going = asyncio.ensure_future(gone_soon(run))
    try:
        await resume(run)
    finally:
        await going


async def _roll_back(run: Run) -> None:
    if run.had(Step.RELEASED):
        await image_back(run, source_of(run))
    else:
        await thaw_back(run, source_of(run), destination_of(run))
    if run.record.outcome is not None:  # else it turned out to have arrived
        await withdrawn(run)


async def release_refused(run: Run, why: Problem) -> None:
    """Nothing was ended by the refused order. Back, unless the worker died meanwhile: then its image is the worker."""
    view = await must_view(run, source_of(run))
    run.step(Step.RELEASED if view.copy == "none" else Step.ROLLING_BACK, why)


async def _refused(run: Run, why: Problem) -> None:
    if run.record.step is Step.COMMITTING:
        await release_refused(run, why)
    elif run.record.step is Step.RELEASED:
        still = await once_more(run, why)
        if still is not None:
            run.step(Step.ROLLING_BACK, still)
    else:
        raise ValueError(f"nothing is refused after {run.record.step.value}")


MOVE = Machine(
    {
        Step.INTENDED: _prepare,
        Step.PREPARED: fence,
        Step.FENCED: _freeze,
        Step.FROZEN: restore,
        Step.HELD: commit,
        Step.COMMITTING: release,
        Step.RELEASED: _resume,
        Step.RESUMED: unfence,
        Step.UNFENCED: done,
        Step.ROLLING_BACK: _roll_back,
    },
    committed=frozenset({Step.COMMITTING, Step.RELEASED, Step.RESUMED, Step.UNFENCED}),
    refused=_refused,
    source=source_of,
    destination=destination_of,
)
