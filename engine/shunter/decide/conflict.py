"""One operation for each worker and each slot: what is under way comes first, then what an earlier (higher) policy took."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from shunter.model.ids import ImageId, NodeId, PolicyName, SlotId, WorkerId, node_of
from shunter.model.operation import OperationRecord
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.snapshot import Slot

_EMPTYING: Final = frozenset({OperationKind.MOVE, OperationKind.PARK, OperationKind.DRAIN})


class Ledger:
    """Who has what, while a plan is being made. Policies come to it in the order of precedence, so that the first one wins."""

    def __init__(
        self,
        active: Sequence[OperationRecord],
        vacant: Mapping[NodeId, tuple[Slot, ...]] | None = None,
        failing: frozenset[SlotId] = frozenset(),
        pinned: Mapping[WorkerId, str] | None = None,
    ) -> None:
        """`active` is under way; `vacant` are each node's slots that are empty as far as the fleet is known, in order; into `failing` ones
        nobody is brought. `pinned` says why nothing can be done with some workers.

        What is voluntary and waits for its turn has stopped nobody yet: it keeps its worker and its slots from others only once
        `keep_promises` is called, so that what is involuntary, planned before that, comes before it.
        """
        self._failing = failing
        self._pinned = pinned or {}
        self._promises = [r for r in active if r.promised]
        under_way = [r for r in active if not r.promised]
        self._busy: dict[WorkerId, OperationRecord] = {r.planned.worker: r for r in under_way}
        self._busy_slots: set[SlotId] = {s for r in under_way for s in _slots(r)}
        self._workers: dict[WorkerId, PolicyName] = {}
        self._leaving: dict[SlotId, PlannedOperation] = {}
        self._arriving: dict[SlotId, PlannedOperation] = {}
        self.load: Counter[NodeId] = Counter()
        """Workers that this plan brings to each node."""
        self.promised: Final = frozenset(s for r in self._promises for s in _slots(r))
        """Slots of what waits: what is involuntary takes them last."""
        self._vacant, self._lent = dict(vacant or {}), False
        self.changes: list[NodeId] = []
        """Nodes of which a vacant slot was taken, or to which a worker is brought, in that order."""
        for slot in self._busy_slots:
            self._occupy(slot)
        self.begun: Final = frozenset(self.changes)
        """Nodes of which something under way has taken a vacant slot."""
        self.changes.clear()
        self.images: set[ImageId] = {i for r in active for i in (r.planned.image, r.planned.expect.image) if i}
        """Images that an operation, under way or planned, refers to."""

    def keep_promises(self) -> None:
        """From now on what waits for its turn counts as under way, but for what was taken from it."""
        for record in self._promises:
            self._busy.setdefault(record.planned.worker, record)
            for slot in _slots(record):
                self._busy_slots.add(slot)
                self._occupy(slot)
        self._promises = []

    def active(self, worker: WorkerId) -> OperationRecord | None:
        """The operation under way on the worker, or None."""
        return self._busy.get(worker)

    def blocked(self, worker: WorkerId) -> str | None:
        """Why nothing may be planned for the worker, in words, or None."""
        return self.engaged(worker) or self._pinned.get(worker)

    def engaged(self, worker: WorkerId) -> str | None:
        """The same, whether or not anything can be done with the worker itself: of its images."""
        if (record := self._busy.get(worker)) is not None:
            return f"busy with {record.planned.kind.value} {record.id}"
        if (policy := self._workers.get(worker)) is not None:
            return f"outranked by {policy}"
        return None

    def free(self, slot: Slot) -> bool:
        """The slot is empty and nobody is on the way to it, or from it, or planned to be."""
        taken = slot.id in self._busy_slots or slot.id in self._arriving or slot.id in self._leaving
        return slot.worker is None and slot.reserved_by is None and not taken and slot.id not in self._failing

    def vacant(self) -> Mapping[NodeId, tuple[Slot, ...]]:
        """The slots for which `free` is true now, by node, in order. Nodes without one aren't in it. It stays as it is, and is the same one
        as long as nothing was taken.
        """
        self._lent = True
        return self._vacant

    def vacancies(self, node: NodeId) -> int:
        """How many slots of the node are free now."""
        return len(self._vacant.get(node, ()))

    def vacancies_after(self, node: NodeId) -> int:
        """How many slots of the node will be free once what is planned so far is done."""
        leaving = (s for s, o in self._leaving.items() if node_of(s) == node and o.kind in _EMPTYING)
        return self.vacancies(node) + sum(s not in self._arriving and s not in self._failing for s in leaving)

    def claimed(self, slot: SlotId) -> str | None:
        """Why a slot that is occupied now can't be given to another worker in this plan, in words, or None."""
        if slot in self._busy_slots:
            return "an operation under way needs it"
        if (operation := self._arriving.get(slot)) is not None:
            return f"outranked by {operation.policy}"
        return None

    def take(self, operation: PlannedOperation) -> None:
        """Enter a planned operation. Raises ValueError if its worker or a slot is taken: a policy must ask before it plans."""
        asked = self.engaged if operation.kind is OperationKind.DISCARD else self.blocked
        if (why := asked(operation.worker)) is not None:
            raise ValueError(f"{operation.worker} can't be planned for: {why}")
        for slot in (operation.from_slot, operation.to_slot):
            if slot is not None and (slot in self._busy_slots or not self._may(slot, operation)):
                raise ValueError(f"{slot} is taken")
        if operation.to_slot is not None:
            self._arriving[operation.to_slot] = operation
            self.load[node_of(operation.to_slot)] += 1
            if not self._occupy(operation.to_slot):
                self.changes.append(node_of(operation.to_slot))
        if operation.from_slot is not None:
            self._leaving[operation.from_slot] = operation
            self._occupy(operation.from_slot)
        self._workers[operation.worker] = operation.policy
        self.images |= {i for i in (operation.image, operation.expect.image) if i}

    def _occupy(self, slot: SlotId) -> bool:
        """The slot is no longer vacant. False: it wasn't."""
        node = node_of(slot)
        before = self._vacant.get(node, ())
        left = tuple(s for s in before if s.id != slot)
        if len(left) == len(before):
            return False
        self.changes.append(node)
        if self._lent:
            self._vacant, self._lent = dict(self._vacant), False
        if left:
            self._vacant[node] = left
        else:
            del self._vacant[node]
        return True

    def _may(self, slot: SlotId, operation: PlannedOperation) -> bool:
        if slot == operation.to_slot:
            leaving = self._leaving.get(slot)
            return slot not in self._arriving and (leaving is None or leaving.id in operation.after)
        return slot not in self._leaving


def _slots(record: OperationRecord) -> list[SlotId]:
    planned = record.planned
    return [slot for slot in (planned.from_slot, planned.to_slot, planned.expect.free) if slot]
