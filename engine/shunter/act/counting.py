"""Counting along: what an operation has to see to beside the agents' orders where others keep pools and routes. See `act.replicas` and
`act.router`.
"""

import asyncio
from typing import Final

from shunter.act.run import Run, Unresolved, problem
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import PoolId
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.pod import Pod

_CAUSES: Final = ("shift:", "revert:")
_KINDS: Final = (OperationKind.PARK, OperationKind.DRAIN, OperationKind.RESTORE)
_BEGINS, _ENDS = 0.5, 0.75
"""Of a hold: until when numbers are written while a copy stands still, and until when it is waited for that to end. What is left is for the
order that ends the hold: a worker that ran on by itself, in a pod that goes, would lose what it has done since its image was taken.
"""


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
    """At the commit, while a copy stands still. Raises as `Replicas.change` does, and Retry SH529 when that takes too much of its hold."""
    replicas = run.parts.replicas
    if replicas is None or not reassigns(run.planned):
        return
    hold, clock = run.times.hold, run.parts.clock
    since = next((at for step, at in reversed(run.record.history) if step is run.record.step), clock())

    def may() -> None:
        run.parts.still_leads()
        if clock() - since > _BEGINS * hold:
            raise Retry(_slow(run, hold))

    may()
    try:
        async with asyncio.timeout(max(0.0, since + _ENDS * hold - clock())):
            await replicas.change(run.record, may)
    except TimeoutError:
        raise Retry(_slow(run, hold)) from None


async def changed(run: Run) -> Problem | None:
    """The same for a worker that has left already: why it wasn't taken, None when it was."""
    replicas = run.parts.replicas
    if replicas is None or not reassigns(run.planned):
        return None
    run.parts.still_leads()
    try:
        await replicas.change(run.record, run.parts.still_leads)
    except (Rejected, Retry) as refused:
        return refused.problem
    return None


def _slow(run: Run, hold: float) -> Problem:
    what = f"how many workers its pool is kept at couldn't be changed early enough in the {hold:g} s for which the worker stands still"
    remedy = "Look at the API server and at Dynamo's operator; it is planned again, and a longer `hold` gives them more time"
    return problem("SH529", what, remedy, run.planned.worker)


async def taken_back(run: Run) -> None:
    """On the way back. Raises Unresolved while it can't be done."""
    replicas = run.parts.replicas
    if replicas is None or not reassigns(run.planned):
        return
    run.parts.still_leads()
    refused = await run.insist(lambda: replicas.take_back(run.record, run.parts.still_leads))
    if refused is not None:
        raise Unresolved(refused)
