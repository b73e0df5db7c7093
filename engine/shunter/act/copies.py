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
    """One copy. A send whose answer was lost is asked for once more: chunks that are there already aren't sent again."""
    peer = await run.peer(to)
    try:
        await run.ask(run.agent(holder).send(run.order, run.image, peer, run.bulk))
    except (Retry, Unknown):
        await run.ask(run.agent(holder).send(run.order, run.image, peer, run.bulk))


async def holder_of(run: Run, prefer: NodeId) -> NodeId:
    """A node that has the operation's image now, `prefer` first. Raises Rejected SH512 when none that answers has it."""
    known = [node for image in run.parts.fleet().images if image.id == run.image for node in image.nodes]
    for node in sorted({prefer, *known}, key=lambda n: (n != prefer, n)):
        try:
            report = await run.agent(node).report(run.times.quick)
        except ShunterError:
            continue
        if any(image.id == run.image for image in report.images):
            return node
    raise Rejected(problem("SH512", f"no node that answers has image {run.image}", "Bring one of its holders back, or use another image"))
