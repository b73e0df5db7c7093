"""What the engine did and is doing, indexed for deciding: attempts, failures, beginnings."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from heapq import merge
from operator import attrgetter, is_

from shunter.model.ids import NodeId, OperationId, PolicyName, WorkerId, node_of
from shunter.model.operation import EngineState, OperationRecord, Status
from shunter.model.plan import OperationKind

HOUR = 3600.0
"""How far back `EngineState.recent` reaches, in seconds.

No policy can ask for more: a longer `cooldown` or `maxPerWindow.window` is refused when it is read, and all that is counted here (moves of
a worker, changes of a graph, moves that would be taken back, failures in a row) is counted within it. It is an hour because the records go
into each decision, each preview and each record of a decision, and because of how many there are: 10,000 workers with an image every five
minutes end 120,000 operations in an hour. What must wait for longer is a matter of a `for`, which reads metrics and can be as long as they
are kept, or of a person.
"""
FAILURES = (Status.ROLLED_BACK, Status.FAILED)
_FORGOTTEN = 1000
"""So many of the oldest records are looked through for where the known ones begin."""
_order = attrgetter("created_at", "planned.id")


class Ended:
    """What ended within the hour, in the order in which it was made, by worker. It doesn't change: `then` makes what follows it."""

    def __init__(self, recent: tuple[OperationRecord, ...]) -> None:
        self.recent = recent
        known = [r for r in recent if r.status is not Status.UNKNOWN]
        self.records: list[OperationRecord] = sorted(known, key=_order)
        self.unknown: tuple[OperationRecord, ...] = tuple(r for r in recent if r.status is Status.UNKNOWN)
        self.of_worker: dict[WorkerId, tuple[OperationRecord, ...]] = {}
        for worker, records in _by_worker(self.records).items():
            self.of_worker[worker] = tuple(records)
        self.dumped: dict[tuple[WorkerId, int], float] = {}
        """When the last checkpoint of a worker at an incarnation that succeeded was begun."""
        for worker, own in self.of_worker.items():
            self.dumped |= _dumped(worker, own)
        self.measured: tuple[OperationRecord, ...] = tuple(filter(_measured, self.records))
        """What succeeded, with what was measured of it."""

    def then(self, recent: tuple[OperationRecord, ...]) -> "Ended":
        """The same as `Ended(recent)`, in less time where the oldest of them were forgotten, and newer ones came after them."""
        if recent is self.recent:
            return self
        first = next((n for n, record in enumerate(self.recent[:_FORGOTTEN]) if record is recent[0]), None) if recent else None
        kept = len(self.recent) - (first or 0)
        if first is None or kept > len(recent) or not all(map(is_, recent[:kept], self.recent[first:])):
            return Ended(recent)
        return self._changed(recent, self.recent[:first], recent[kept:])

    def _changed(self, recent: tuple[OperationRecord, ...], gone: Sequence[OperationRecord], new: Sequence[OperationRecord]) -> "Ended":
        other = object.__new__(Ended)
        other.recent, other.records = recent, self.records.copy()
        for record in gone:
            if record.status is not Status.UNKNOWN:
                place = bisect_left(other.records, _order(record), key=_order)
                del other.records[next(n for n in range(place, len(other.records)) if other.records[n] is record)]
        for record in new:
            if record.status is not Status.UNKNOWN:
                insort(other.records, record, key=_order)
        other.unknown = tuple(r for r in recent if r.status is Status.UNKNOWN) if _any_unknown((*gone, *new)) else self.unknown
        other.of_worker, other.dumped = self.of_worker.copy(), self.dumped.copy()
        away, left, fresh = set(map(id, gone)), _by_worker(gone), _by_worker([r for r in new if r.status is not Status.UNKNOWN])
        for worker in {r.planned.worker for r in (*gone, *new)}:
            own = [r for r in self.of_worker.get(worker, ()) if id(r) not in away]
            other._enter(worker, tuple(sorted([*own, *fresh.get(worker, ())], key=_order)))
            other._date(worker, left.get(worker, ()), fresh.get(worker, ()))
        measured = any(map(_measured, (*gone, *new)))
        other.measured = tuple(filter(_measured, other.records)) if measured else self.measured
        return other

    def _enter(self, worker: WorkerId, own: tuple[OperationRecord, ...]) -> None:
        if own:
            self.of_worker[worker] = own
        else:
            self.of_worker.pop(worker, None)

    def _date(self, worker: WorkerId, gone: Sequence[OperationRecord], new: Sequence[OperationRecord]) -> None:
        """Let `dumped` follow. Only where the last one is gone, all that the worker has are looked at."""
        if any(self.dumped.get(key) == begun for key, begun in _dumped(worker, gone).items()):
            for record in gone:
                self.dumped.pop((worker, record.planned.expect.incarnation), None)
            self.dumped |= _dumped(worker, self.of_worker.get(worker, ()))
            return
        for key, begun in _dumped(worker, new).items():
            self.dumped[key] = max(begun, self.dumped.get(key, begun))


class History:
    """Records in the order in which they were made, whatever order the state lists them in."""

    def __init__(self, state: EngineState, before: Ended | None = None) -> None:
        """`before` is what had ended at an earlier look; it spares work, and changes nothing."""
        self.past = Ended(state.recent) if before is None else before.then(state.recent)
        self.active = sorted((*state.active, *self.past.unknown), key=_order)
        """Under way, or with an outcome that isn't known: their workers and slots are left alone."""
        self.ended: Sequence[OperationRecord] = self.past.records

    @cached_property
    def _of_policy(self) -> dict[PolicyName, list[OperationRecord]]:
        found: dict[PolicyName, list[OperationRecord]] = defaultdict(list)
        for record in merge(self.active, self.ended, key=_order):
            found[record.planned.policy].append(record)
        return found

    @cached_property
    def _under_way(self) -> frozenset[OperationId]:
        return frozenset([r.id for r in self.active])

    def under_way(self, record: OperationRecord) -> bool:
        """The record is one of `active`."""
        return record.id in self._under_way

    def of_worker(self, worker: WorkerId) -> Sequence[OperationRecord]:
        """Ended operations on the worker, oldest first."""
        return self.past.of_worker.get(worker, ())

    def of_policy(self, policy: PolicyName) -> list[OperationRecord]:
        """Operations of the policy that began, ended or not, oldest first."""
        return [r for r in self._of_policy.get(policy, []) if r.status is not Status.SUPERSEDED]

    def attempt(self, kind: OperationKind, worker: WorkerId, cause: str) -> int:
        """How often this was ended before, in whatever way: 0 for the first attempt."""
        return sum(r.planned.kind is kind and r.planned.cause == cause for r in self.of_worker(worker))

    def failures(self, kind: OperationKind, worker: WorkerId, cause: str) -> list[OperationRecord]:
        """Failed attempts at this very thing, oldest first."""
        return [r for r in self.of_worker(worker) if r.planned.kind is kind and r.planned.cause == cause and r.status in FAILURES]

    def failed_in_a_row(self, kind: OperationKind, worker: WorkerId) -> list[OperationRecord]:
        """The failures of this kind since the last success of it, for whatever cause; oldest first."""
        row: list[OperationRecord] = []
        for record in self.of_worker(worker):
            if record.planned.kind is kind:
                row = [*row, record] if record.status in FAILURES else [] if record.status is Status.SUCCEEDED else row
        return row

    def lane_busy(self, node: NodeId, now: float) -> float:
        """Seconds until the dumps under way on the node are expected to be over. What is voluntary and waits comes after what asks this."""
        ahead = (r for r in self.active if not r.promised)
        return sum(_left(r, now) for r in ahead if r.planned.from_slot and node_of(r.planned.from_slot) == node)


def _by_worker(records: Iterable[OperationRecord]) -> dict[WorkerId, list[OperationRecord]]:
    found: dict[WorkerId, list[OperationRecord]] = defaultdict(list)
    for record in records:
        found[record.planned.worker].append(record)
    return found


def _any_unknown(records: Iterable[OperationRecord]) -> bool:
    return any(r.status is Status.UNKNOWN for r in records)


def _measured(record: OperationRecord) -> bool:
    return record.outcome is not None and record.outcome.status is Status.SUCCEEDED and bool(record.outcome.measured.bytes)


def _dumped(worker: WorkerId, records: Iterable[OperationRecord]) -> dict[tuple[WorkerId, int], float]:
    found: dict[tuple[WorkerId, int], float] = {}
    for record in records:
        planned = record.planned
        if planned.kind is OperationKind.CHECKPOINT and record.status is Status.SUCCEEDED:
            key = worker, planned.expect.incarnation
            found[key] = max(record.created_at, found.get(key, record.created_at))
    return found


def failed_nodes(records: Iterable[OperationRecord]) -> frozenset[NodeId]:
    """Destinations at which earlier attempts failed."""
    return frozenset(node_of(r.planned.to_slot) for r in records if r.planned.to_slot)


def said(record: OperationRecord) -> str:
    """How an operation ended, in a few words."""
    outcome = record.outcome
    if outcome is None:
        return f"{record.planned.kind.value} is under way"
    told = f": {outcome.code} {outcome.reason}".rstrip() if outcome.code or outcome.reason else ""
    return f"{record.planned.kind.value} {outcome.status.value}{told}"


def _left(record: OperationRecord, now: float) -> float:
    total = record.planned.estimate.total
    return max(0.0, record.created_at + total - now) if total is not None else 0.0
