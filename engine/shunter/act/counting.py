"""Counting along: what an operation has to see to beside the agents' orders where others keep pools and routes. See `act.replicas` and
`act.router`.
"""

from typing import Final

from shunter.act.run import Run, Unresolved
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import PoolId
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.pod import Pod

_CAUSES: Final = ("shift:", "revert:")
_KINDS: Final = (OperationKind.PARK, OperationKind.DRAIN, OperationKind.RESTORE)


def reassigns(planned: PlannedOperation) -> bool:
    """The operation is a part of hardware's changing sides."""
    return planned.lane == "voluntary" and planned.kind in _KINDS and planned.cause.startswith(_CAUSES)


async def may_change(run: Run, left: Pod | None) -> None:
    """Before anything is done to the worker: raises Rejected or Retry, in the words of whoever refuses."""
    replicas = run.parts.replicas
    if replicas is None or not reassigns(run.planned):
        return
    run.parts.still_leads()
    await replicas.check(run.record, left, _next_pool(run))


def _next_pool(run: Run) -> PoolId | None:
    after = (r.planned for r in run.parts.store.active() if run.record.id in r.planned.after)
    return next((other.pool for other in after if other.kind is OperationKind.RESTORE and reassigns(other)), None)


async def unseen(run: Run) -> None:
    """What is frozen while routers find it breaks new requests. What is urgent doesn't wait for that to be seen.

    Raises Retry SH279, and as requests to the API server do.
    """
    left = run.record.left
    if run.parts.router is not None and left is not None and run.planned.lane == "voluntary":
        await run.parts.router.unseen(left)


async def change(run: Run) -> None:
    """At the commit. Raises as `Replicas.change` does."""
    replicas = run.parts.replicas
    if replicas is None or not reassigns(run.planned):
        return
    run.parts.still_leads()
    await replicas.change(run.record, run.parts.still_leads)


async def changed(run: Run) -> Problem | None:
    """The same for a worker that has left already: why it wasn't taken, None when it was."""
    try:
        await change(run)
    except (Rejected, Retry) as refused:
        return refused.problem
    return None


async def taken_back(run: Run) -> None:
    """On the way back. Raises Unresolved while it can't be done."""
    replicas = run.parts.replicas
    if replicas is None or not reassigns(run.planned):
        return
    run.parts.still_leads()
    refused = await run.insist(lambda: replicas.take_back(run.record, run.parts.still_leads))
    if refused is not None:
        raise Unresolved(refused)
