"""Copies of an image on other nodes."""

from shunter.act.run import Run, problem
from shunter.model.errors import Problem, Rejected, Retry, ShunterError, Stalled, Unknown
from shunter.model.ids import NodeId


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


async def holder_of(run: Run, prefer: NodeId) -> NodeId:
    """A node that has the operation's image now, `prefer` first. Raises Rejected SH512 when none that answers has it."""
    known = [node for image in run.parts.fleet().images if image.id == run.image for node in image.nodes]
    for node in sorted({prefer, *known}, key=lambda n: (n != prefer, n)):
        if await has_image(run, node):
            return node
    raise Rejected(problem("SH512", f"no node that answers has image {run.image}", "Bring one of its holders back, or use another image"))
