"""What a plan's operations have to do with each other: which come after which, and which share a node's one dump at a time. Pure.

A chain is all operations that `after` links, directly or over others. It is one decision: its intents become durable together, when the
first of it begins, and what is still to come waits in the store for its turn.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from shunter.act.run import problem
from shunter.model.errors import Problem
from shunter.model.ids import NodeId, OperationId, SlotId, WorkerId, node_of
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation

Find = Callable[[OperationId], OperationRecord | None]
"""The record of an operation, None if it was never begun."""

_LEAVING: Final = frozenset({OperationKind.MOVE, OperationKind.PARK, OperationKind.DRAIN})
_DUMPING: Final = frozenset({OperationKind.MOVE, OperationKind.PARK, OperationKind.CHECKPOINT})
WHOLE: Final = frozenset({Step.FROZEN, Step.DUMPED, Step.RELEASED})
"""From these steps on the image is whole; a source that died before the commit gets to RELEASED without the others."""


def linked(operations: Iterable[PlannedOperation]) -> list[frozenset[OperationId]]:
    """The chains among them, one that is linked to nothing being a chain of its own. Names in `after` count as linked too."""
    chains: dict[int, set[OperationId]] = {}
    of: dict[OperationId, int] = {}
    for number, planned in enumerate(operations):
        own = {planned.id, *planned.after}
        for other in sorted({of[name] for name in own if name in of}):
            own |= chains.pop(other)
        chains[number] = own
        of.update(dict.fromkeys(own, number))
    return [frozenset(chain) for chain in chains.values()]


def ancestry(planned: PlannedOperation, find: Find) -> dict[OperationId, PlannedOperation]:
    """The operation, and all that had to come before it as far as they are known, however long ago they ended."""
    found = {planned.id: planned}
    open_ = [planned]
    while open_:
        for before in open_.pop().after:
            record = find(before)
            if record is not None and before not in found:
                found[before] = record.planned
                open_.append(record.planned)
    return found


def ready(planned: PlannedOperation, find: Find) -> bool:
    """All that had to come first have succeeded."""
    return all((record := find(before)) is not None and record.status is Status.SUCCEEDED for before in planned.after)


def fallen(planned: PlannedOperation, find: Find) -> Problem | None:
    """Why its turn will never come (SH526): one that had to come first ended otherwise, or was never begun. None while it may."""
    for before in planned.after:
        record = find(before)
        if record is None:
            return out_of_turn(planned, f"{before}, which had to come first, was never begun")
        if record.outcome is not None and record.status is not Status.SUCCEEDED:
            return out_of_turn(planned, f"{before}, which had to come first, ended as {record.status.value}")
    return None


def under_way(records: Iterable[OperationRecord], find: Find) -> list[frozenset[OperationId]]:
    """The voluntary chains among the active operations of which something was begun: one of an accepted plan is stored before that."""
    records = tuple(records)
    active = [record.planned for record in records if record.planned.lane == "voluntary"]
    known = {o.id: o for one in active for o in ancestry(one, find).values()}
    ids, untouched = {one.id for one in active}, {record.id for record in records if record.waits}
    return [chain for chain in linked(known.values()) if chain & ids and not chain <= untouched]


def out_of_turn(planned: PlannedOperation, what: str) -> Problem:
    """SH526: it isn't begun because of another operation of its chain."""
    return problem("SH526", what, "Nothing to do: it is planned again if there is still a need", planned.id)


def freed(planned: PlannedOperation, find: Find) -> Mapping[SlotId, WorkerId]:
    """Slots that what came before it has freed, and of whom. The fleet as it was last seen may show those workers there still."""
    slots: dict[SlotId, WorkerId] = {}
    for before in planned.after:
        record = find(before)
        if record is None or record.status is not Status.SUCCEEDED or record.planned.kind not in _LEAVING:
            continue
        slot = record.planned.from_slot or record.planned.expect.at
        if slot is not None:
            slots[slot] = record.planned.worker
    return slots


def dumps_on(planned: PlannedOperation) -> NodeId | None:
    """The node that dumps the worker's memory for it; None for kinds that dump nothing."""
    slot = planned.from_slot or planned.expect.at
    return node_of(slot) if slot is not None and planned.kind in _DUMPING else None


def dumped(record: OperationRecord) -> bool:
    """Its dump is over, so that its node can take the next one."""
    return any(step in WHOLE for step, _ in record.history)
