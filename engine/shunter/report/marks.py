"""What must be said of a line so that nobody takes it for more than it is: `preview` is never carried out, `pretend` moves nothing."""

from shunter.model.plan import PlannedOperation
from shunter.model.pretending import Pretending
from shunter.model.snapshot import Fleet


class Marks:
    """Of a fleet, some nodes of which may only pretend."""

    def __init__(self, fleet: Fleet) -> None:
        self._pretending = Pretending(fleet)
        self.nodes = self._pretending.nodes

    def pretends(self, operation: PlannedOperation) -> bool:
        """It involves a node that only pretends."""
        return self._pretending.operation(operation)

    def of_operation(self, operation: PlannedOperation) -> str:
        """`[preview] [pretend] `, as far as they apply, or nothing."""
        return mark(preview=operation.preview, pretend=self.pretends(operation))

    def of_subject(self, subject: str) -> str:
        """`[pretend] ` for a worker or graph on nodes that only pretend."""
        return mark(pretend=subject in self._pretending.subjects)


def mark(*, preview: bool = False, pretend: bool = False) -> str:
    """The marks with a blank after each."""
    return f"{'[preview] ' if preview else ''}{'[pretend] ' if pretend else ''}"
