"""What the engine did and is doing, indexed for deciding: attempts, failures, beginnings."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from heapq import merge
from itertools import compress, count, islice
from operator import attrgetter, is_not

from shunter.decide.profile import Sized, sized
from shunter.model.ids import NodeId, OperationId, PolicyName, WorkerId, node_of
from shunter.model.operation import EngineState, OperationRecord, Status, Step
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
_LOOKED_AT = 1000
"""So many of the oldest records are looked through for where the known ones begin, and of the newest for what else there is."""
_RUNS = (Step.INTENDED, Step.PREPARED, Step.FENCED)
"""Steps of a move after which its worker still runs, and may be copied ahead."""
_NOT_FILED = (Status.UNKNOWN, Status.SUPERSEDED)
_OF_THE_WORKER = frozenset(f"SH{n}" for n in (*range(720, 733), *range(734, 740), 744, 745, *range(752, 757), 762, 763))
"""What preflight says of a worker and that lasts: what it has open or maps, how it was started, what is in its programs. Not that somebody
traces it just now, nor what its node is short of or can't do: that is over soon, or is another one's, too, and is looked at each time."""
_DUMPING = frozenset({"SH701", "SH740"})
"""The dump itself failed: where it was to go had no part in it, and what it failed by may be over the next time (a connection that was just
being made, a GPU that was busy for too long)."""
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
        self.measured: list[Sized] = sorted(filter(None, map(sized, self.records)))
        """What was measured of what succeeded, by its size."""
        self.of_policy: dict[PolicyName, list[OperationRecord]] = _by_policy(self.records)
        """Without what was superseded."""

    def then(self, recent: tuple[OperationRecord, ...]) -> "Ended":
        """The same as `Ended(recent)`, in less time where the oldest of them were forgotten, and among the newest some came or went."""
        if recent is self.recent:
            return self
        first = next((n for n, record in enumerate(self.recent[:_LOOKED_AT]) if record is recent[0]), None) if recent else None
        if first is None:
            return Ended(recent)
        differ = map(is_not, recent, islice(self.recent, first, None))
        same = next(compress(count(), differ), min(len(recent), len(self.recent) - first))
        left, came = self.recent[first + same :], recent[same:]
        if max(len(left), len(came)) > _LOOKED_AT:
            return Ended(recent)
        there, here = set(map(id, left)), set(map(id, came))
        gone = [r for r in left if id(r) not in here]
        return self._changed(recent, (*self.recent[:first], *gone), [r for r in came if id(r) not in there])

    def _changed(self, recent: tuple[OperationRecord, ...], gone: Sequence[OperationRecord], new: Sequence[OperationRecord]) -> "Ended":
        other = object.__new__(Ended)
        other.recent, other.records = recent, self.records.copy()
        for record in gone:
            if record.status is not Status.UNKNOWN:
                _take_out(other.records, record)
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
        other.measured = self.measured.copy()
        for size in filter(None, map(sized, gone)):
            del other.measured[bisect_left(other.measured, size)]
        for size in filter(None, map(sized, new)):
            insort(other.measured, size)
        other._file(_by_policy(gone), _by_policy(new), self.of_policy)
        return other

    def _file(
        self,
        gone: Mapping[PolicyName, Sequence[OperationRecord]],
        new: Mapping[PolicyName, Sequence[OperationRecord]],
        before: Mapping[PolicyName, list[OperationRecord]],
    ) -> None:
        """Make `of_policy` of what it was before."""
        self.of_policy = {**before}
        for policy in {*gone, *new}:
            own = before.get(policy, []).copy()
            for record in gone.get(policy, ()):
                _take_out(own, record)
            for record in new.get(policy, ()):
                insort(own, record, key=_order)
            self.of_policy[policy] = own
            if not own:
                del self.of_policy[policy]

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
    def _begun(self) -> dict[PolicyName, list[OperationRecord]]:
        """What is `active`, by policy."""
        found: dict[PolicyName, list[OperationRecord]] = defaultdict(list)
        for record in self.active:
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

    def of_policy(self, policy: PolicyName) -> Sequence[OperationRecord]:
        """Operations of the policy that began, ended or not, oldest first."""
        ended, active = self.past.of_policy.get(policy, []), self._begun.get(policy)
        return list(merge(active, ended, key=_order)) if active else ended

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


def _by_policy(records: Iterable[OperationRecord]) -> dict[PolicyName, list[OperationRecord]]:
    """Those of them that began and have an end that is known."""
    found: dict[PolicyName, list[OperationRecord]] = {}
    for record in records:
        if record.status not in _NOT_FILED:
            found.setdefault(record.planned.policy, []).append(record)
    return found


def _take_out(records: list[OperationRecord], record: OperationRecord) -> None:
    """That very one, of what is in order."""
    place = bisect_left(records, _order(record), key=_order)
    del records[next(n for n in range(place, len(records)) if records[n] is record)]


def _any_unknown(records: Iterable[OperationRecord]) -> bool:
    return any(r.status is Status.UNKNOWN for r in records)


def _dumped(worker: WorkerId, records: Iterable[OperationRecord]) -> dict[tuple[WorkerId, int], float]:
    found: dict[tuple[WorkerId, int], float] = {}
    for record in records:
        planned = record.planned
        if planned.kind is OperationKind.CHECKPOINT and record.status is Status.SUCCEEDED:
            key = worker, planned.expect.incarnation
            found[key] = max(record.created_at, found.get(key, record.created_at))
    return found


def failed_nodes(records: Iterable[OperationRecord]) -> frozenset[NodeId]:
    """Destinations at which earlier attempts failed, but none for which it was only the dump that did."""
    return frozenset(node_of(r.planned.to_slot) for r in records if r.planned.to_slot and code_of(r) not in _DUMPING)


def stays(record: OperationRecord) -> bool:
    """It failed for what its worker is or has open, which is found wherever it is to go, and whenever that is tried."""
    return code_of(record) in _OF_THE_WORKER


def code_of(record: OperationRecord) -> str:
    """Of what an operation failed by; empty: it didn't."""
    return record.outcome.code if record.outcome is not None else ""


def said(record: OperationRecord) -> str:
    """How an operation ended, in a few words."""
    outcome = record.outcome
    if outcome is None:
        return f"{record.planned.kind.value} is under way"
    told = f": {outcome.code} {outcome.reason}".rstrip() if outcome.code or outcome.reason else ""
    return f"{record.planned.kind.value} {outcome.status.value}{told}"


def _left(record: OperationRecord, now: float) -> float:
    total = record.planned.estimate.total
    ahead = record.planned.ahead if record.step in _RUNS else None
    return max(0.0, record.created_at + (ahead or 0.0) + total - now) if total is not None else 0.0
