"""For how long what leaves a node may be copied to where it goes while it still runs: out of the time that is left over.

Copied ahead, a worker stands still for a fraction of the time. But in the worst case all of its memory changes meanwhile and is sent again,
and whoever leaves the node after it waits for as long. So nothing is copied but in time that nobody on the node needs.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from shunter.model.ids import NodeId, OperationId, node_of
from shunter.model.plan import OperationKind, PlannedOperation

PART: Final = 0.5
"""Of the time that is left over: what is copied for one node may be in the way of what others send through the same links."""


class Leave(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How an operation of what can't wait uses the time: not before `begins`, `occupy` seconds of its node's dumps, then `tail` seconds
    elsewhere, all over by `limit`. Times in seconds since the epoch; `limit` None: whenever. `sized`: they are of a size that is known.
    """

    occupy: float
    tail: float
    limit: float | None
    sized: bool
    begins: float = 0.0


def with_ahead(
    operations: Sequence[PlannedOperation], leaves: Mapping[OperationId, Leave], busy: Mapping[NodeId, float], now: float
) -> tuple[PlannedOperation, ...]:
    """The operations, in the order in which they are carried out, each move with the time for which it may be copied ahead.

    `busy` are the seconds for which a node still dumps what is under way. Nothing is said of a move from a node that nobody has to leave by
    some time.
    """
    lanes: defaultdict[tuple[NodeId, bool], list[PlannedOperation]] = defaultdict(list)
    for operation in operations:
        if operation.id in leaves and operation.from_slot:
            lanes[node_of(operation.from_slot), operation.preview].append(operation)
    times: dict[OperationId, float] = {}
    for (node, _preview), own in lanes.items():
        share = _share([(leaves[o.id], _copied(o)) for o in own], busy.get(node, 0.0), now)
        if share is not None:
            times |= {o.id: round(PART * share, 3) for o in own if _copied(o)}
    return tuple(msgspec.structs.replace(o, ahead=times[o.id]) if o.id in times else o for o in operations)


def _copied(operation: PlannedOperation) -> bool:
    return operation.kind is OperationKind.MOVE


def _share(lane: Sequence[tuple[Leave, bool]], busy: float, now: float) -> float | None:
    """Seconds for each that is copied, such that all end in time, one after the other; None: there is no time by which any has to."""
    at, copied, shares = now + busy, 0, list[float]()
    limits = False
    for leave, is_copied in lane:
        at = max(at, leave.begins) + leave.occupy
        copied += is_copied
        if leave.limit is None:
            continue
        limits = True
        if copied:
            shares.append(max(0.0, leave.limit - at - leave.tail) / copied)
    if not limits:
        return None
    return min(shares, default=0.0) if all(leave.sized for leave, _ in lane) else 0.0
