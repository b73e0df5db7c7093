"""The world of a backtest: a fleet in which what was decided has happened, though history knows nothing of it.

Operations succeed and take the time that was estimated. An engine's own queue, agents, networks and requests aren't there.
"""

from collections.abc import Iterable, Iterator

import msgspec

from shunter.model.ids import Epoch, ImageId, Incarnation, NodeId, OperationId, SlotId, WorkerId, node_of
from shunter.model.operation import EngineState, Measured, OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, Plan, PlannedOperation
from shunter.model.snapshot import Fleet, Image, Node, Slot, Worker, WorkerState

_HOUR = 3600.0


class Simulated:
    """Nodes, workers and images by id, and the engine's memory of what it did. Deterministic."""

    def __init__(self, fleet: Fleet, state: EngineState) -> None:
        self._nodes = {n.id: n for n in fleet.nodes}
        self._workers = {w.id: w for w in fleet.workers}
        self._images = {i.id: i for i in fleet.images}
        self._active: dict[OperationId, tuple[OperationRecord, float | None]] = {}
        self._ended: dict[OperationId, OperationRecord] = {r.id: r for r in state.recent}
        self._fleet: Fleet | None = fleet

    @property
    def fleet(self) -> Fleet:
        """As it is; the same object until something changes."""
        if self._fleet is None:
            self._fleet = Fleet(
                nodes=tuple(self._nodes[n] for n in sorted(self._nodes)),
                workers=tuple(self._workers[w] for w in sorted(self._workers)),
                images=tuple(self._images[i] for i in sorted(self._images)),
            )
        return self._fleet

    def state(self, now: float) -> EngineState:
        """What an engine would know of its own doing; what ended more than an hour ago is forgotten."""
        for old in [r.id for r in self._ended.values() if r.outcome is not None and now - r.outcome.at > _HOUR]:
            del self._ended[old]
        return EngineState(active=tuple(r for r, _ in self._active.values()), recent=tuple(self._ended.values()))

    def slot(self, slot: SlotId | None) -> Slot | None:
        """None for a slot that isn't there."""
        node = self._nodes.get(node_of(slot)) if slot else None
        return next((s for s in node.slots if s.id == slot), None) if node else None

    def advance(self, now: float) -> None:
        """Let end what has ended by now, in the order of the times."""
        while (due := self._due(now)) is not None:
            record, at = due
            del self._active[record.id]
            self._carry_out(record.planned, at)
            outcome = Outcome(status=Status.SUCCEEDED, at=at, measured=Measured(stopped=record.planned.estimate.stopped))
            self._ended[record.id] = msgspec.structs.replace(record, outcome=outcome)
            for other, ends in list(self._active.values()):
                if ends is None:
                    self._active[other.id] = self._timed(other, at)

    def begin(self, plan: Plan, now: float) -> Iterator[PlannedOperation]:
        """Begin what is planned but for what is only shown; gives what is new."""
        for operation in plan.operations:
            if operation.preview or operation.id in self._active or operation.id in self._ended:
                continue
            record = OperationRecord(planned=operation, plan=plan.digest, epoch=Epoch(1), created_at=now)
            self._active[operation.id] = self._timed(record, now)
            yield operation

    def take_away(self, node: NodeId, now: float) -> list[Worker]:
        """The node is gone, with its images; the workers that were still on it are lost, and returned. What was under way on them fails."""
        lost = [w for w in self._workers.values() if w.node == node]
        for worker in lost:
            self._workers[worker.id] = msgspec.structs.replace(worker, state=WorkerState.LOST, node=None, slot=None)
            for record, _ in [r for r in self._active.values() if r[0].planned.worker == worker.id]:
                self._fail(record, now)
        if node in self._nodes:
            self._nodes[node] = msgspec.structs.replace(self._nodes[node], reachable=False, slots=())
        for image in list(self._images.values()):
            if node in image.nodes:
                left = tuple(n for n in image.nodes if n != node)
                del self._images[image.id]
                if left:
                    self._images[image.id] = msgspec.structs.replace(image, nodes=left)
        self._fleet = None
        return lost

    def _fail(self, record: OperationRecord, now: float) -> None:
        outcome = Outcome(status=Status.FAILED, at=now, reason="its node was taken away")
        self._ended[record.id] = msgspec.structs.replace(record, outcome=outcome)
        self._active.pop(record.id, None)
        for other in [r for r, _ in self._active.values() if record.id in r.planned.after]:
            self._fail(other, now)

    def _due(self, now: float) -> tuple[OperationRecord, float] | None:
        over = [(ends, r.id, r) for r, ends in self._active.values() if ends is not None and ends <= now]
        if not over:
            return None
        ends, _, record = min(over, key=lambda o: o[:2])
        return record, ends

    def _timed(self, record: OperationRecord, now: float) -> tuple[OperationRecord, float | None]:
        planned = record.planned
        waits = any(one in self._active for one in planned.after)
        # the total of one in a chain is from the plan on, with what comes before it; its own work is what it stands still for
        work = planned.estimate.stopped if planned.after else None
        ends = None if waits else now + (planned.estimate.total or 0.0 if work is None else work)
        return msgspec.structs.replace(record, waits=waits), ends

    def _carry_out(self, operation: PlannedOperation, at: float) -> None:
        self._fleet = None
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


def _with(slots: Iterable[Slot], slot: SlotId, worker: WorkerId | None) -> tuple[Slot, ...]:
    return tuple(msgspec.structs.replace(s, worker=worker) if s.id == slot else s for s in slots)


def answers(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes as if all of them answered: what is silent now needn't have been so then."""
    return tuple(msgspec.structs.replace(n, reachable=True) for n in nodes)
