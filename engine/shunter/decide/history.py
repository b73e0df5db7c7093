"""What the engine did and is doing, indexed for deciding: attempts, failures, beginnings."""

from collections import defaultdict
from collections.abc import Iterable

from shunter.model.ids import NodeId, PolicyName, WorkerId, node_of
from shunter.model.operation import EngineState, OperationRecord, Status
from shunter.model.plan import OperationKind

HOUR = 3600.0
"""How far back `EngineState.recent` reaches."""
FAILURES = (Status.ROLLED_BACK, Status.FAILED)


class History:
    """Records in the order in which they were made, whatever order the state lists them in."""

    def __init__(self, state: EngineState) -> None:
        def order(record: OperationRecord) -> tuple[float, str]:
            return record.created_at, record.id

        unknown = [r for r in state.recent if r.status is Status.UNKNOWN]
        self.active = sorted((*state.active, *unknown), key=order)
        """Under way, or with an outcome that isn't known: their workers and slots are left alone."""
        self.ended = sorted((r for r in state.recent if r.status is not Status.UNKNOWN), key=order)
        self._of_worker: dict[WorkerId, list[OperationRecord]] = defaultdict(list)
        self._of_policy: dict[PolicyName, list[OperationRecord]] = defaultdict(list)
        for record in self.ended:
            self._of_worker[record.planned.worker].append(record)
        for record in sorted((*self.active, *self.ended), key=order):
            self._of_policy[record.planned.policy].append(record)

    def of_worker(self, worker: WorkerId) -> list[OperationRecord]:
        """Ended operations on the worker, oldest first."""
        return self._of_worker.get(worker, [])

    def of_policy(self, policy: PolicyName) -> list[OperationRecord]:
        """Operations of the policy that began, ended or not, oldest first."""
        return [r for r in self._of_policy.get(policy, []) if r.status is not Status.SUPERSEDED]

    def attempt(self, kind: OperationKind, worker: WorkerId, cause: str) -> int:
        """How often this was ended before, in whatever way: 0 for the first attempt."""
        return sum(r.planned.kind is kind and r.planned.cause == cause for r in self.of_worker(worker))

    def failures(self, kind: OperationKind, worker: WorkerId, cause: str) -> list[OperationRecord]:
        """Failed attempts at this very thing, oldest first."""
        return [r for r in self.of_worker(worker) if r.planned.kind is kind and r.planned.cause == cause and r.status in FAILURES]

    def failed_in_a_row(self, kind: OperationKind, worker: WorkerId) -> list[OperationRecord]:
        """The failures of this kind since the last success of it, for whatever cause; oldest first."""
        row: list[OperationRecord] = []
        for record in self.of_worker(worker):
            if record.planned.kind is kind:
                row = [*row, record] if record.status in FAILURES else [] if record.status is Status.SUCCEEDED else row
        return row

    def lane_busy(self, node: NodeId, now: float) -> float:
        """Seconds until the dumps under way on the node are expected to be over. What is voluntary and waits comes after what asks this."""
        ahead = (r for r in self.active if not (r.waits and r.planned.lane == "voluntary"))
        return sum(_left(r, now) for r in ahead if r.planned.from_slot and node_of(r.planned.from_slot) == node)


def failed_nodes(records: Iterable[OperationRecord]) -> frozenset[NodeId]:
    """Destinations at which earlier attempts failed."""
    return frozenset(node_of(r.planned.to_slot) for r in records if r.planned.to_slot)


def said(record: OperationRecord) -> str:
    """How an operation ended, in a few words."""
    outcome = record.outcome
    if outcome is None:
        return f"{record.planned.kind.value} is under way"
    told = f": {outcome.code} {outcome.reason}".rstrip() if outcome.code or outcome.reason else ""
    return f"{record.planned.kind.value} {outcome.status.value}{told}"


def _left(record: OperationRecord, now: float) -> float:
    total = record.planned.estimate.total
    return max(0.0, record.created_at + total - now) if total is not None else 0.0
