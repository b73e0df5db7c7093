"""What only pretends: nodes whose runtime moves nothing, and with them workers, graphs and operations. It must never look like more."""

from functools import cached_property

from shunter.model.ids import NodeId, node_of
from shunter.model.plan import PlannedOperation
from shunter.model.snapshot import Fleet

_last: "tuple[Fleet | None, Pretending] | None" = None


def pretending(fleet: Fleet | None) -> "Pretending":
    """Of this fleet; the same one as long as it is the same fleet, as each of many records asks anew."""
    global _last
    known = _last
    if known is None or known[0] is not fleet:
        _last = known = fleet, Pretending(fleet)
    return known[1]


class Pretending:
    """Of one fleet; None: of none."""

    def __init__(self, fleet: Fleet | None) -> None:
        self._fleet = fleet
        self.nodes: frozenset[NodeId] = frozenset(n.id for n in fleet.nodes if n.runtime == "pretend") if fleet else frozenset()

    @cached_property
    def subjects(self) -> frozenset[str]:
        """Workers on such nodes, and graphs of which any worker is."""
        on = [w for w in self._fleet.workers if w.node in self.nodes] if self._fleet and self.nodes else []
        return frozenset({str(w.id) for w in on} | {w.graph for w in on})

    def operation(self, operation: PlannedOperation) -> bool:
        """It involves such a node."""
        slots = (operation.from_slot, operation.to_slot, operation.expect.at)
        nodes = {*operation.copies, *(node_of(slot) for slot in slots if slot is not None)}
        return not self.nodes.isdisjoint(nodes) or operation.worker in self.subjects
