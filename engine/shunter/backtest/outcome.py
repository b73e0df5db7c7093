"""What became of acts once all of the time is known: how long their workers stood still, and what would have been instead. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Final

import msgspec

from shunter.model.backtest import Act, Instead
from shunter.model.ids import PolicyName, SlotId, WorkerId
from shunter.model.plan import OperationKind, PlannedOperation

UNDONE_S: Final = 3600.0
"""What is taken back within so many seconds is a flap."""
_BACK: Final = (OperationKind.RESTORE, OperationKind.MOVE)


def opposite(before: PlannedOperation, after: PlannedOperation) -> bool:
    """`after` takes back what `before` did: it brings a worker to the slot that it left, or changes its mind on whether it runs at all."""
    kinds = (before.kind, after.kind)
    if kinds in ((OperationKind.PARK, OperationKind.RESTORE), (OperationKind.RESTORE, OperationKind.PARK)):
        return before.lane == "voluntary"
    left: SlotId | None = before.from_slot
    return before.kind is OperationKind.MOVE and left is not None and after.to_slot == left


def settled(acts: Sequence[Act], end: float, shifts: Set[PolicyName]) -> tuple[Act, ...]:
    """The acts with `still`, `idle` and `instead`. `end` is that of the time looked at; `shifts` are the policies that change roles."""
    of_worker: defaultdict[WorkerId, list[Act]] = defaultdict(list)
    into: defaultdict[SlotId, list[Act]] = defaultdict(list)
    for act in acts:
        if not act.operation.preview:
            of_worker[act.operation.worker].append(act)
            if act.operation.to_slot is not None:
                into[act.operation.to_slot].append(act)
    return tuple(
        msgspec.structs.replace(
            act,
            still=_still(act, of_worker[act.operation.worker], end),
            idle=_idle(act, of_worker[act.operation.worker], into, end),
            instead=_instead(act, of_worker, shifts),
        )
        for act in acts
    )


def _still(act: Act, own: Sequence[Act], end: float) -> float | None:
    """A parked worker stands still until it has been brought back, or to the end; one that is brought back stood still before."""
    kind = act.operation.kind
    if kind is OperationKind.RESTORE:
        return 0.0
    if kind is not OperationKind.PARK:
        return act.operation.estimate.stopped
    back = next((a for a in own if a.at > act.at and a.operation.kind in _BACK), None)
    until = end if back is None else min(end, back.at + (back.operation.estimate.total or 0.0))
    return max(until - act.at, act.operation.estimate.stopped or 0.0)


def _idle(act: Act, own: Sequence[Act], into: Mapping[SlotId, Sequence[Act]], end: float) -> float | None:
    """A parked worker's GPUs do nothing until its slot serves another, or itself again, or to the end. Those of a node that was going are
    gone with it; then it is others that do nothing while the worker is brought back there.
    """
    operation = act.operation
    if operation.kind is not OperationKind.PARK or operation.from_slot is None:
        return 0.0 if operation.kind is OperationKind.RESTORE else operation.estimate.stopped
    stopped = operation.estimate.stopped or 0.0
    if operation.lane == "involuntary":
        back = next((a for a in own if a.at > act.at and a.operation.kind in _BACK), None)
        return stopped + (back.operation.estimate.total or 0.0 if back is not None else 0.0)
    serves = next((a for a in into.get(operation.from_slot, ()) if a.at >= act.at), None)
    if serves is None:
        return max(end - act.at, stopped)
    # one that had to wait for the park begins when that is over
    begins = serves.at + (stopped if operation.id in serves.operation.after else 0.0)
    return max(min(end, begins + (serves.operation.estimate.total or 0.0)) - act.at, stopped)


def _instead(act: Act, of_worker: dict[WorkerId, list[Act]], shifts: Set[PolicyName]) -> Instead:
    operation = act.operation
    if operation.lane == "involuntary":
        return "loss"
    if operation.policy not in shifts or act.undoes or _taken_back(act, of_worker[operation.worker]):
        return "nothing"
    return "teardown"


def _taken_back(act: Act, own: Sequence[Act]) -> bool:
    return any(a.undoes and 0 < a.at - act.at <= UNDONE_S and opposite(act.operation, a.operation) for a in own)
