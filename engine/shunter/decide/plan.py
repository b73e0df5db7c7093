"""Making planned operations: ids that stay the same while the decision does, and the order of a plan."""

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from shunter.decide.history import HOUR
from shunter.model.ids import Incarnation, OperationId, WorkerId
from shunter.model.plan import OperationKind, PlannedOperation

_WRITE: Final = msgspec.json.Encoder()
"""There are no keys to sort in what it writes, and no doubles: canonical bytes."""
_PATIENCE = 600.0
"""Seconds that a voluntary operation is given at least; then it must have been rolled back rather than be stuck half-way."""
_SLACK = 4.0
"""It is given so many times its estimate, if that is more."""


def operation_id(kind: OperationKind, worker: WorkerId, incarnation: Incarnation, cause: str, attempt: int) -> OperationId:
    """`move-1f0c2d3e4a5b6978`: from what is decided, not from when."""
    parts = _WRITE.encode((kind, worker, incarnation, cause, attempt))
    return OperationId(f"{kind}-{hashlib.sha256(parts).hexdigest()[:16]}")


def round_of(cause: str, since: float, now: float) -> str:
    """The cause, with the number of whole hours since it arose once there are any.

    Attempts are known for an hour. What is still to be done after that is begun anew, under ids that were never used.
    """
    hours = max(0, int((now - since) // HOUR))
    return f"{cause}+{hours}h" if hours else cause


def patience(now: float, total: float | None) -> float:
    """When a voluntary operation that is expected to take `total` seconds must have ended."""
    return now + max(_PATIENCE, _SLACK * (total or 0.0))


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """An operation with its place in the order: `value` is what an involuntary one saves, `priority` the policy's."""

    operation: PlannedOperation
    value: float
    priority: int


def ordered(ranked: Iterable[Ranked]) -> tuple[PlannedOperation, ...]:
    """What is carried out before what is only shown; involuntary by deadline and value, then voluntary by priority.

    Stable, so that operations made as a chain with the same rank stay in its order.
    """

    def key(one: Ranked) -> tuple[bool, bool, float, float, str]:
        o = one.operation
        if o.lane == "involuntary":
            return o.preview, False, o.deadline if o.deadline is not None else float("inf"), -one.value, ""
        return o.preview, True, -one.priority, 0.0, o.policy

    return tuple(one.operation for one in sorted(ranked, key=key))
