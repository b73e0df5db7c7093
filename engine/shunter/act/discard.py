"""A discard: an image is deleted on every node that holds it, or on those that answer: an order that is heard late does no harm. Then it is
deleted in the archive: there last, and only once a newer one is on a node.
"""

from shunter.act.back import joined
from shunter.act.copies import discard_archived, has_image, still_archived
from shunter.act.drive import Machine
from shunter.act.run import Run, Unresolved, problem
from shunter.model.errors import Problem, Rejected
from shunter.model.ids import NodeId
from shunter.model.operation import Status, Step


def _holders(run: Run) -> list[NodeId]:
    known = {node for image in run.parts.fleet().images if image.id == run.image for node in image.nodes}
    return sorted(node for node in known if not run.parts.gone(node))


async def _discard(run: Run) -> None:
    kept: list[str] = []
    for node in _holders(run):
        refused = await _delete(run, node)
        if refused is not None:
            kept.append(f"{node} ({refused.code} {refused.what})")
    if not kept and (refused := await discard_archived(run)) is not None:
        kept.append(f"the archive ({refused.code} {refused.what})")
    if kept:
        raise Rejected(_kept(run, kept))
    run.finish(Status.SUCCEEDED, image=run.image)


def _kept(run: Run, nodes: list[str]) -> Problem:
    return problem("SH521", f"it is or may be kept on {', '.join(nodes)}", "It is tried again later", run.image)


async def _delete(run: Run, node: NodeId) -> Problem | None:
    """Why the image is on the node still, or may be; None when it isn't. What could be urgent for the worker waits for no silent node."""
    agent = run.agent(node)
    try:
        refused = await run.insist(lambda: agent.discard(run.order, run.image, run.times.quick))
    except Unresolved as silent:
        refused = silent.problem
    return None if refused is None or await has_image(run, node) is False else refused


async def _roll_back(run: Run) -> None:
    """Nothing is to be taken back: what is deleted was to be deleted, and the worker has no part in it. But what is left is told."""
    left: list[str] = [node for node in _holders(run) if await has_image(run, node) is not False]
    if await still_archived(run):
        left.append("the archive")
    why = run.record.problem
    if not left:
        run.finish(Status.SUCCEEDED, image=run.image)
        return
    run.finish(Status.ROLLED_BACK, why if why and why.code == "SH521" else joined(why, _kept(run, left)), run.image)


async def _refused(run: Run, why: Problem) -> None:
    run.finish(Status.ROLLED_BACK, why, run.image)


DISCARD = Machine(
    {Step.INTENDED: _discard, Step.ROLLING_BACK: _roll_back},
    committed=frozenset(),
    refused=_refused,
    source=lambda _run: None,
    destination=lambda _run: None,
)
