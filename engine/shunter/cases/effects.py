"""What operations that succeed, and other changes, do to a fleet."""

from collections.abc import Iterable
from typing import Final

import msgspec

from shunter.model.ids import ImageId, Incarnation, NodeId, SlotId, WorkerId, node_of
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.snapshot import Fleet, Image, Node, Slot, Worker, WorkerState

_AWAY: Final = (WorkerState.PARKED, WorkerState.LOST)


def carried_out(fleet: Fleet, operation: PlannedOperation, at: float) -> Fleet:
    """The fleet after an operation that succeeded at `at` (seconds since the epoch).

    A move and a restore make a new incarnation; a park and a checkpoint leave an image on `copies`; a drain ends the worker for good.
    An operation on a worker that is no longer in the fleet changes nothing.
    """
    worker = next((w for w in fleet.workers if w.id == operation.worker), None)
    if operation.kind is OperationKind.DISCARD:
        return msgspec.structs.replace(fleet, images=tuple(i for i in fleet.images if i.id != operation.image))
    if worker is None:
        return fleet
    match operation.kind:
        case OperationKind.MOVE | OperationKind.RESTORE:
            return _placed(fleet, worker, operation)
        case OperationKind.PARK:
            imaged = _with_image(fleet, worker, operation, at)
            return away(imaged, worker.id, WorkerState.PARKED)
        case OperationKind.CHECKPOINT:
            return _with_image(fleet, worker, operation, at)
        case OperationKind.DRAIN:
            return _without(fleet, worker)
    return fleet


def away(fleet: Fleet, worker: WorkerId, state: WorkerState) -> Fleet:
    """The fleet with the worker in a state; one without a process has no node either, and its slot is free."""
    gone = state in _AWAY
    workers = tuple(
        (msgspec.structs.replace(w, state=state, node=None, slot=None) if gone else msgspec.structs.replace(w, state=state))
        if w.id == worker
        else w
        for w in fleet.workers
    )
    nodes = _occupied(fleet.nodes, worker, None) if gone else fleet.nodes
    return msgspec.structs.replace(fleet, workers=workers, nodes=nodes)


def reachable(fleet: Fleet, node: NodeId, answers: bool) -> Fleet:
    """The fleet with a node whose agent answers, or doesn't."""
    nodes = tuple(msgspec.structs.replace(n, reachable=answers) if n.id == node else n for n in fleet.nodes)
    return msgspec.structs.replace(fleet, nodes=nodes)


def _occupied(nodes: Iterable[Node], worker: WorkerId, slot: SlotId | None) -> tuple[Node, ...]:
    """The nodes with the worker in `slot` alone, or in none."""

    def holder(one: Slot) -> WorkerId | None:
        if one.id == slot:
            return worker
        return None if one.worker == worker else one.worker

    return tuple(
        msgspec.structs.replace(node, slots=tuple(msgspec.structs.replace(one, worker=holder(one)) for one in node.slots)) for node in nodes
    )


def _placed(fleet: Fleet, worker: Worker, operation: PlannedOperation) -> Fleet:
    slot = operation.to_slot
    assert slot is not None, "a move and a restore have a destination"
    after = msgspec.structs.replace(
        worker, state=WorkerState.RUNNING, node=node_of(slot), slot=slot, incarnation=Incarnation(operation.expect.incarnation + 1)
    )
    workers = tuple(after if w.id == worker.id else w for w in fleet.workers)
    return msgspec.structs.replace(fleet, workers=workers, nodes=_occupied(fleet.nodes, worker.id, slot))


def _without(fleet: Fleet, worker: Worker) -> Fleet:
    workers = tuple(w for w in fleet.workers if w.id != worker.id)
    return msgspec.structs.replace(fleet, workers=workers, nodes=_occupied(fleet.nodes, worker.id, None))


def _with_image(fleet: Fleet, worker: Worker, operation: PlannedOperation, at: float) -> Fleet:
    source = next((n for n in fleet.nodes if n.id == worker.node), None)
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
    )
    return msgspec.structs.replace(fleet, images=tuple(sorted((*fleet.images, image), key=lambda i: i.id)))
