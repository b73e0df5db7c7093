"""What must still be true when an operation starts, checked against the fleet as it is now. Pure."""

from collections.abc import Mapping

from shunter.model.ids import SlotId, WorkerId, node_of
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.snapshot import Fleet, Worker, WorkerState

_ALIVE = (WorkerState.RUNNING, WorkerState.FENCED, WorkerState.FROZEN)

_FROM = (OperationKind.MOVE, OperationKind.PARK, OperationKind.CHECKPOINT, OperationKind.DRAIN)


_NONE: Mapping[SlotId, WorkerId] = {}


def unmet(planned: PlannedOperation, fleet: Fleet, freed: Mapping[SlotId, WorkerId] = _NONE) -> str:
    """The first precondition that doesn't hold, in words; empty when all do.

    `freed` are slots that are known to be left, and by whom: the fleet may have been seen before that. If it wasn't, and somebody is there
    again, the agent refuses to prepare the slot.
    """
    worker = next((w for w in fleet.workers if w.id == planned.worker), None)
    for said in (_whole(planned), _worker(planned, worker), _slot(planned, fleet, freed), _image(planned, fleet)):
        if said:
            return said
    return ""


def _whole(planned: PlannedOperation) -> str:
    kind = planned.kind
    if kind in _FROM and planned.from_slot is None and planned.expect.at is None:
        return "it doesn't say which slot the worker is in"
    if kind in (OperationKind.MOVE, OperationKind.RESTORE) and planned.to_slot is None:
        return "it doesn't say which slot the worker is to come to"
    if kind in (OperationKind.RESTORE, OperationKind.DISCARD) and planned.image is None:
        return "it names no image"
    return ""


def _worker(planned: PlannedOperation, worker: Worker | None) -> str:
    expect = planned.expect
    if worker is None:
        # An image outlives its worker: of a discard only the image matters, and a restore may be of one that nobody remembers.
        return "" if expect.at is None else f"{planned.worker} isn't in the fleet any more"
    if worker.incarnation != expect.incarnation and planned.kind is not OperationKind.DISCARD:
        return f"{worker.id} is incarnation {worker.incarnation} now, not {expect.incarnation}"
    if expect.at is not None and worker.slot != expect.at:
        return f"{worker.id} is in {worker.slot or 'no slot'} now, not in {expect.at}"
    if expect.at is not None and worker.state not in _ALIVE:
        return f"{worker.id} is {worker.state.value} now"
    if expect.absent and worker.state in _ALIVE:
        return f"{worker.id} is alive on {worker.node or 'some node'}"
    return ""


def _slot(planned: PlannedOperation, fleet: Fleet, freed: Mapping[SlotId, WorkerId]) -> str:
    wanted = planned.expect.free
    if wanted is None:
        return ""
    node = next((n for n in fleet.nodes if n.id == node_of(wanted)), None)
    slot = next((s for s in node.slots if s.id == wanted), None) if node else None
    if node is None or slot is None:
        return f"there is no slot {wanted} any more"
    if not node.reachable:
        return f"{node.id} doesn't answer"
    if slot.worker not in (None, planned.worker, freed.get(wanted)):
        return f"{wanted} is occupied by {slot.worker}"
    if slot.reserved_by not in (None, planned.id):
        return f"{wanted} is reserved by {slot.reserved_by}"
    return ""


def _image(planned: PlannedOperation, fleet: Fleet) -> str:
    wanted = planned.expect.image
    found = next((i for i in fleet.images if i.id == wanted and (i.nodes or i.archived)), None)
    if found is not None and found.doubt and planned.kind is OperationKind.RESTORE:
        return f"image {wanted} isn't to be trusted: {found.doubt}"
    if wanted is None or found is not None:
        return ""
    return f"image {wanted} isn't held by any node any more, nor by the archive"
