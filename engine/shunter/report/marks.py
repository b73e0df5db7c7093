"""What must be said of a line so that nobody takes it for more than it is: `preview` is never carried out, `pretend` moves nothing."""

from collections.abc import Iterable

from shunter.model.ids import NodeId, SlotId, node_of
from shunter.model.plan import PlannedOperation
from shunter.model.snapshot import Fleet


class Marks:
    """Which nodes of a fleet only pretend, and with them which workers, graphs and operations."""

    def __init__(self, fleet: Fleet) -> None:
        self.nodes = frozenset(n.id for n in fleet.nodes if n.runtime == "pretend")
        on = [w for w in fleet.workers if w.node in self.nodes]
        self._subjects = frozenset({str(w.id) for w in on} | {w.graph for w in on})

    def pretends(self, operation: PlannedOperation) -> bool:
        """It involves a node that only pretends."""
        slots: Iterable[SlotId | None] = (operation.from_slot, operation.to_slot, operation.expect.at)
        nodes: set[NodeId] = {*operation.copies, *(node_of(s) for s in slots if s is not None)}
        return not self.nodes.isdisjoint(nodes) or operation.worker in self._subjects

    def of_operation(self, operation: PlannedOperation) -> str:
        """`[preview] [pretend] `, as far as they apply, or nothing."""
        return mark(preview=operation.preview, pretend=self.pretends(operation))

    def of_subject(self, subject: str) -> str:
        """`[pretend] ` for a worker or graph on nodes that only pretend."""
        return mark(pretend=subject in self._subjects)


def mark(*, preview: bool = False, pretend: bool = False) -> str:
    """The marks with a blank after each."""
    return f"{'[preview] ' if preview else ''}{'[pretend] ' if pretend else ''}"
