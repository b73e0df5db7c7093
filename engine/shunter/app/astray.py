"""Whether an operation would bring something to where a notice says that it won't last. Pure."""

from collections.abc import Sequence

from shunter.model.ids import SlotId, node_of
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.snapshot import Notice


def astray(planned: PlannedOperation, notices: Sequence[Notice], at: float) -> str:
    """Which notice that is open `at` (seconds since the epoch) concerns its destination, or a node that is to hold a copy, in words; empty
    when none does.

    No plan is made so; what was planned before the notice came mustn't be begun after it. A hint keeps nobody from taking an image where
    the worker is: it is what images are taken more often for.
    """
    for slot in (planned.to_slot, planned.expect.free):
        found = next((n for n in notices if slot is not None and concerns(n, slot)), None)
        if found is not None:
            return f"{slot}, where it would go, has an open notice ({found.kind.value} of {found.node})"
    if planned.kind is OperationKind.DISCARD:
        return ""
    here = planned.expect.at or planned.from_slot
    for node in planned.copies:
        own = here is not None and node == node_of(here)
        found = next((n for n in notices if n.slot is None and n.node == node and not (own and n.hint(at))), None)
        if found is not None:
            return f"{node}, which is to hold a copy, has an open notice ({found.kind.value})"
    return ""


def concerns(notice: Notice, slot: SlotId) -> bool:
    """The notice is about the slot, or its whole node."""
    return notice.slot == slot or (notice.slot is None and notice.node == node_of(slot))
