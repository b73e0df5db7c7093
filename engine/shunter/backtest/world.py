"""A simulated world: a fleet in which what was decided has happened. Backtests and tests of policies both play in it.

Operations succeed, take the time that was estimated, and leave the worker where it was until they are over; they fail only with their
worker. An engine's own queue, agents, networks and requests aren't there.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import takewhile
from operator import itemgetter
from typing import Protocol, TypeVar

import msgspec

from shunter.model.ids import Epoch, ImageId, Incarnation, NodeId, OperationId, SlotId, WorkerId, node_of
from shunter.model.operation import EngineState, Measured, OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, Plan, PlannedOperation
from shunter.model.snapshot import Fleet, Image, Slot, Worker, WorkerState

_HOUR = 3600.0
_AWAY = (WorkerState.PARKED, WorkerState.LOST)


class _Named(Protocol):
    """What has an id."""

    @property
    def id(self) -> str:
        """Its id."""
        ...


P = TypeVar("P", bound=_Named)


class _Parts(MutableMapping[str, P]):
    """Parts of a fleet by id."""

    def __init__(self, parts: tuple[P, ...]) -> None:
        self._by_id = {p.id: p for p in parts}
        self._order = sorted(self._by_id)
        self._all: tuple[P, ...] | None = parts

    def all(self) -> tuple[P, ...]:
        """In the order of ids; the same object until something changes. The very parts that were given, until then."""
        if self._all is None:
            self._all = tuple([self._by_id[name] for name in self._order])
        return self._all

    def __getitem__(self, name: str) -> P:
        return self._by_id[name]

    def __setitem__(self, name: str, part: P) -> None:
        if name not in self._by_id:
            insort(self._order, name)
        self._by_id[name], self._all = part, None

    def __delitem__(self, name: str) -> None:
        del self._by_id[name]
        del self._order[bisect_left(self._order, name)]
        self._all = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)


class Simulated:
    """Nodes, workers and images by id, and the engine's memory of what it did. Deterministic."""

    def __init__(self, fleet: Fleet, state: EngineState) -> None:
        self._nodes = _Parts(fleet.nodes)
        self._workers = _Parts(fleet.workers)
        self._images = _Parts(fleet.images)
        self._active: dict[OperationId, tuple[OperationRecord, float | None]] = {}
        self._ended: dict[OperationId, OperationRecord] = {r.id: r for r in sorted(state.recent, key=_ended_at)}
        self._begun = set(self._ended)
        self._fleet = fleet

    @property
    def fleet(self) -> Fleet:
        """As it is; the same object until something changes, and then with the very same parts but for those that have."""
        known = self._fleet
        parts = (self._nodes.all(), self._workers.all(), self._images.all())
        if parts[0] is not known.nodes or parts[1] is not known.workers or parts[2] is not known.images:
            self._fleet = Fleet(nodes=parts[0], workers=parts[1], images=parts[2])
        return self._fleet

    @property
    def workers(self) -> Mapping[str, Worker]:
        """By id."""
        return self._workers

    def state(self, now: float) -> EngineState:
        """What an engine would know of its own doing; what ended more than an hour ago is forgotten."""
        # they ended in this order
        old = takewhile(lambda r: r.outcome is not None and now - r.outcome.at > _HOUR, self._ended.values())
        for record in list(old):
            del self._ended[record.id]
        return EngineState(active=tuple(r for r, _ in self._active.values()), recent=tuple(self._ended.values()))

    def slot(self, slot: SlotId | None) -> Slot | None:
        """None for a slot that isn't there."""
        node = self._nodes.get(node_of(slot)) if slot else None
        return next((s for s in node.slots if s.id == slot), None) if node else None

    def advance(self, now: float) -> None:
        """Let end what has ended by now, in the order of the times."""
        while due := self._due(now):
            for at, _, record in due:
                del self._active[record.id]
                self.carry_out(record.planned, at)
                outcome = Outcome(status=Status.SUCCEEDED, at=at, measured=Measured(stopped=record.planned.estimate.stopped))
                self._ended[record.id] = msgspec.structs.replace(record, outcome=outcome)
                if self._go_on(at):
                    break  # what has begun may end before the others

    def _go_on(self, at: float) -> bool:
        """Let begin what waited for what has just ended. Whether there was any."""
        waiting = [other for other, ends in self._active.values() if ends is None]
        for other in waiting:
            self._active[other.id] = self._timed(other, at)
        return bool(waiting)

    def begin(self, plan: Plan, now: float) -> list[PlannedOperation]:
        """Begin what is planned but for what is only shown, each operation once for all times. Returns what is new."""
        new = [o for o in plan.operations if not o.preview and o.id not in self._begun]
        for operation in new:
            self._begun.add(operation.id)
            record = OperationRecord(planned=operation, plan=plan.digest, epoch=Epoch(1), created_at=now)
            self._active[operation.id] = self._timed(record, now)
        return new

    def take_away(self, node: NodeId, now: float) -> list[Worker]:
        """The node is gone, with its images; the workers that were still on it are lost, and returned. What was under way on them fails."""
        lost = [w for w in self._workers.values() if w.node == node]
        for worker in lost:
            self.set_state(worker.id, WorkerState.LOST, now)
        if node in self._nodes:
            self._nodes[node] = msgspec.structs.replace(self._nodes[node], reachable=False, slots=())
        for image in list(self._images.values()):
            if node in image.nodes:
                left = tuple(n for n in image.nodes if n != node)
                del self._images[image.id]
                if left or image.archived:
                    self._images[image.id] = msgspec.structs.replace(image, nodes=left)
        return lost

    def set_state(self, worker: WorkerId, state: WorkerState, now: float) -> None:
        """The worker is in this state by itself; one without a process has no node either, and its slot is free. What is under way on one
        that is lost fails, and what waits for that is never begun. Nothing for a worker that there isn't.
        """
        known = self._workers.get(worker)
        if known is None:
            return
        if state in _AWAY:
            self._leave(known)
            known = msgspec.structs.replace(known, node=None, slot=None)
        self._workers[worker] = msgspec.structs.replace(known, state=state)
        if state is WorkerState.LOST:
            for record, _ in [r for r in self._active.values() if r[0].planned.worker == worker]:
                self._end(record, Outcome(status=Status.FAILED, at=now, reason="its worker was lost"))

    def set_reachable(self, node: NodeId, answers: bool) -> None:
        """The node's agent answers, or doesn't."""
        if node in self._nodes:
            self._nodes[node] = msgspec.structs.replace(self._nodes[node], reachable=answers)

    def _end(self, record: OperationRecord, outcome: Outcome) -> None:
        """It didn't succeed: what waits for it is never begun."""
        self._active.pop(record.id, None)
        self._ended[record.id] = msgspec.structs.replace(record, outcome=outcome)
        never = Outcome(status=Status.SUPERSEDED, at=outcome.at, reason=f"{record.id}, which had to come first, ended otherwise")
        for other in [r for r, _ in self._active.values() if record.id in r.planned.after]:
            self._end(other, never)

    def _due(self, now: float) -> list[tuple[float, OperationId, OperationRecord]]:
        """What ends by now, in the order of the times."""
        return sorted(((ends, r.id, r) for r, ends in self._active.values() if ends is not None and ends <= now), key=itemgetter(0, 1))

    def _timed(self, record: OperationRecord, now: float) -> tuple[OperationRecord, float | None]:
        planned = record.planned
        waits = any(one in self._active for one in planned.after)
        # the total of one in a chain is from the plan on, with what comes before it; its own work is what it stands still for
        work = planned.estimate.stopped if planned.after else None
        ends = None if waits else now + (planned.estimate.total or 0.0 if work is None else work)
        return msgspec.structs.replace(record, waits=waits), ends

    def carry_out(self, operation: PlannedOperation, at: float) -> None:
        """Let an operation have succeeded at `at`."""
        worker = self._workers.get(operation.worker)
        if operation.kind is OperationKind.DISCARD:
            if operation.image is not None:
                self._images.pop(operation.image, None)
        elif worker is None:
            return
        elif operation.kind in (OperationKind.MOVE, OperationKind.RESTORE):
            self._arrive(worker, operation)
        elif operation.kind is OperationKind.DRAIN:
            self._leave(worker)
            del self._workers[worker.id]
        elif operation.kind in (OperationKind.CHECKPOINT, OperationKind.PARK):
            self._dump(worker, operation, at)
            if operation.kind is OperationKind.PARK:
                self._leave(worker)
                self._workers[worker.id] = msgspec.structs.replace(worker, state=WorkerState.PARKED, node=None, slot=None)

    def _arrive(self, worker: Worker, operation: PlannedOperation) -> None:
        slot = operation.to_slot
        assert slot is not None, "a move and a restore have a destination"
        self._leave(worker)
        self._occupy(slot, worker.id)
        incarnation = Incarnation(operation.expect.incarnation + 1)
        self._workers[worker.id] = msgspec.structs.replace(
            worker, state=WorkerState.RUNNING, node=node_of(slot), slot=slot, incarnation=incarnation
        )

    def _dump(self, worker: Worker, operation: PlannedOperation, at: float) -> None:
        source = self._nodes.get(worker.node) if worker.node else None
        image = Image(
            id=ImageId(operation.id),
            worker=worker.id,
            incarnation=worker.incarnation,
            taken_at=at,
            bytes=worker.memory or operation.estimate.bytes or 0,
            nodes=tuple(sorted(operation.copies)),
            role=worker.role,
            graph=worker.graph,
            engine=worker.engine,
            facts=source.facts if source else {},
            pause=operation.estimate.stopped,
            archived=operation.archive,
        )
        self._images[image.id] = image

    def _leave(self, worker: Worker) -> None:
        if worker.slot is not None:
            self._occupy(worker.slot, None)

    def _occupy(self, slot: SlotId, worker: WorkerId | None) -> None:
        node = self._nodes.get(node_of(slot))
        if node is not None:
            slots = _with(node.slots, slot, worker)
            self._nodes[node.id] = msgspec.structs.replace(node, slots=slots)


def _ended_at(record: OperationRecord) -> float:
    return record.outcome.at if record.outcome else 0.0


def _with(slots: Iterable[Slot], slot: SlotId, worker: WorkerId | None) -> tuple[Slot, ...]:
    return tuple(msgspec.structs.replace(s, worker=worker) if s.id == slot else s for s in slots)


def carried_out(fleet: Fleet, operation: PlannedOperation, at: float) -> Fleet:
    """The fleet after an operation that succeeded at `at` (seconds since the epoch).

    A move and a restore make a new incarnation; a park and a checkpoint leave an image on `copies`; a drain ends the worker for good.
    An operation on a worker that is no longer in the fleet changes nothing.
    """
    world = Simulated(fleet, EngineState())
    world.carry_out(operation, at)
    return world.fleet
