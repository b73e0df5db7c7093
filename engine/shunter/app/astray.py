"""Whether an operation would bring something to where a notice says that it won't last. Pure."""

from collections.abc import Sequence

from shunter.model.ids import SlotId, node_of
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.snapshot import Notice


def astray(planned: PlannedOperation, notices: Sequence[Notice]) -> str:
    """Which open notice concerns its destination, or a node that is to hold a copy, in words; empty when none does.

    No plan is made so; what was planned before the notice came mustn't be begun after it.
    """
    for slot in (planned.to_slot, planned.expect.free):
        found = next((n for n in notices if slot is not None and concerns(n, slot)), None)
        if found is not None:
            return f"{slot}, where it would go, has an open notice ({found.kind.value} of {found.node})"
    if planned.kind is OperationKind.DISCARD:
        return ""
    for node in planned.copies:
        found = next((n for n in notices if n.slot is None and n.node == node), None)
        if found is not None:
            return f"{node}, which is to hold a copy, has an open notice ({found.kind.value})"
    return ""


def concerns(notice: Notice, slot: SlotId) -> bool:
    """The notice is about the slot, or its whole node."""
    return notice.slot == slot or (notice.slot is None and notice.node == node_of(slot))
