"""What ended operations say of the fleet, before the agents say it themselves. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import inf

import msgspec

from shunter.model.ids import Incarnation, node_of
from shunter.model.operation import EngineState, OperationRecord, Status
from shunter.model.plan import OperationKind
from shunter.model.snapshot import Fleet, WorkerState

_ARRIVED = (OperationKind.MOVE, OperationKind.RESTORE)
_LEFT = (OperationKind.PARK, OperationKind.DRAIN)


def settled(fleet: Fleet, records: Iterable[OperationRecord]) -> Fleet:
    """The fleet with each worker where its newest succeeded move or restore has brought it; `records` oldest first.

    Without it, a worker whose new node falls silent before the next look would be where it isn't any more: taken for lost, and restored a
    second time while it serves.
    """
    arrived = [r for r in records if r.status is Status.SUCCEEDED and r.planned.kind in _ARRIVED and r.planned.to_slot is not None]
    if not arrived:
        return fleet
    workers = {worker.id: worker for worker in fleet.workers}
    for record in arrived:
        planned, slot = record.planned, record.planned.to_slot
        worker = workers.get(planned.worker)
        if worker is not None and slot is not None:
            workers[worker.id] = msgspec.structs.replace(
                worker,
                state=WorkerState.RUNNING,
                node=node_of(slot),
                slot=slot,
                incarnation=Incarnation(planned.expect.incarnation + 1),
                pod=record.pod,
            )
    return msgspec.structs.replace(fleet, workers=tuple(workers[name] for name in sorted(workers)))


def unseen(state: EngineState, ended: Sequence[OperationRecord]) -> EngineState:
    """The state for a decision on a fleet that was looked at before these operations ended. Workers that were parked or drained, of which
    `settled` can't show where they are now, count as under way until the next look.

    Otherwise a worker that was just parked would be seen where it was, with nothing under way, and be parked once more. What leaves the
    worker where it is (a checkpoint, a discard) hides nothing: a notice for its node is answered at once.
    """
    hidden = {r.id: msgspec.structs.replace(r, outcome=None) for r in ended if r.status is Status.SUCCEEDED and r.planned.kind in _LEFT}
    if not hidden:
        return state
    under_way = (*(r for r in state.active if r.id not in hidden), *hidden.values())
    first = bisect_left(state.recent, min(_at(r) for r in ended if r.id in hidden), key=_at)  # all that ended before stay
    shown = tuple(r for r in state.recent[first:] if r.id not in hidden)
    return EngineState(active=under_way, recent=(*state.recent[:first], *shown))


def _at(record: OperationRecord) -> float:
    return record.outcome.at if record.outcome is not None else inf
