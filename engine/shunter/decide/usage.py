"""How many disruptions a budget's groups have: how large each group is, what goes on in it, and what began in it of late."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from shunter.decide.history import History
from shunter.decide.world import STANDING, World
from shunter.model.expression import Undecided
from shunter.model.ids import NodeId, PoolId, node_of
from shunter.model.operation import Status
from shunter.model.plan import PlannedOperation
from shunter.model.policy import BudgetSpec, WorkerSelector
from shunter.model.snapshot import ZONE_LABEL, Node, Worker, WorkerState

Covers = Callable[[Worker], bool | Undecided]


class Usage:
    """The groups of one budget, by subject (`pool:<graph>/<role>`, `node:<id>`, `zone:<name>`, `all`), and what is counted in each.

    An operation of which it isn't known where it belongs (its worker and its node are gone) counts in every group: too few are done then
    rather than too many.
    """

    def __init__(self, spec: BudgetSpec, covers: Covers, worlds: Sequence[World], history: History, now: float) -> None:
        self._spec, self._covers, self._worlds = spec, covers, worlds
        self.size: Counter[str] = Counter(group for w in self._standing() if (group := self.group(w)) is not None)
        """Workers that run or are fenced and are surely covered."""
        self._going: Counter[str | None] = Counter()
        self._begun: Counter[str | None] = Counter()
        self._shown: Counter[str | None] = Counter()
        window = spec.max_per_window.window if spec.max_per_window else 0.0
        for record in history.active:
            self._count(self._going, record.planned)
        for record in (*history.active, *history.ended):
            if record.created_at > now - window and record.status is not Status.SUPERSEDED:
                self._count(self._begun, record.planned)

    def plan(self, operation: PlannedOperation) -> None:
        """Count an operation of the plan that is being made."""
        for counts in (self._shown,) if operation.preview else (self._going, self._begun):
            self._count(counts, operation)

    def going(self, group: str, *, shown: bool = False) -> int:
        """Under way or planned in the group; with `shown` also what is only shown."""
        return self._of(self._going, group) + (self._of(self._shown, group) if shown else 0)

    def begun(self, group: str, *, shown: bool = False) -> int:
        """Begun in the group within the budget's stretch of time, or planned; with `shown` also what is only shown."""
        return self._of(self._begun, group) + (self._of(self._shown, group) if shown else 0)

    def groups(self) -> list[str]:
        """Every group that has workers or operations, sorted."""
        return sorted({*self.size, *(g for g in (*self._going, *self._begun) if g is not None)})

    def group(self, worker: Worker) -> str | None:
        """The group that the worker belongs to. None: its node has no zone."""
        return self._group(worker.pool, worker.node)

    def _group(self, pool: PoolId | None, node: NodeId | None) -> str | None:
        return subject(self._spec, pool, node, self._node(node) if self._spec.per == "zone" else None)

    def _node(self, node: NodeId | None) -> Node | None:
        return next((w.nodes[node] for w in reversed(self._worlds) if node in w.nodes), None) if node is not None else None

    def _standing(self) -> Iterator[Worker]:
        select = self._spec.workers
        for pool, members in self._worlds[-1].pools.items():
            if _takes(select, pool):
                yield from (w for w in members if w.state in STANDING and (select.where is None or self._covers(w) is True))

    def _count(self, counts: Counter[str | None], operation: PlannedOperation) -> None:
        if operation.kind.value not in self._spec.operations or not self._covered(operation):
            return
        worker = self._worker(operation)
        slot = operation.from_slot or operation.expect.at
        node = node_of(slot) if slot else worker.node if worker else None
        group = self._group(operation.pool or (worker.pool if worker else None), node)
        if group is not None or self._spec.per != "zone" or self._node(node) is None:  # a node without a zone is in no group
            counts[group] += 1

    def _covered(self, operation: PlannedOperation) -> bool:
        """Whether the operation counts: unless its worker surely wasn't covered where it began, or, if it is gone, its pool isn't."""
        worker = self._worker(operation)
        if worker is not None:
            return self._covers(_before(operation, worker)) is not False
        return operation.pool is None or _takes(self._spec.workers, operation.pool)

    def _worker(self, operation: PlannedOperation) -> Worker | None:
        return next((w.workers[operation.worker] for w in reversed(self._worlds) if operation.worker in w.workers), None)

    @staticmethod
    def _of(counts: Counter[str | None], group: str) -> int:
        return counts[group] + counts[None]


def _before(operation: PlannedOperation, worker: Worker) -> Worker:
    """The worker as it was when the operation began: a move takes it out of the budget that allowed it, where that is about nodes."""
    slot, incarnation = operation.from_slot or operation.expect.at, operation.expect.incarnation
    if slot is None or (worker.slot == slot and worker.incarnation == incarnation):
        return worker
    return msgspec.structs.replace(worker, node=node_of(slot), slot=slot, incarnation=incarnation, state=WorkerState.RUNNING)


def subject(spec: BudgetSpec, pool: PoolId | None, node: NodeId | None, known: Node | None) -> str | None:
    """The group to which whatever is in this pool and on this node belongs; None where that isn't known. `known` is the node itself."""
    if spec.per == "all":
        return "all"
    if spec.per == "pool":
        return None if pool is None else f"pool:{pool}"
    if spec.per == "node":
        return None if node is None else f"node:{node}"
    zone = known.labels.get(ZONE_LABEL) if known else None
    return f"zone:{zone}" if zone else None


def _takes(select: WorkerSelector, pool: PoolId) -> bool:
    """Whether the selector takes workers of the pool, by role and graph alone."""
    graph, _, role = pool.rpartition("/")
    return select.graph in (None, graph) and select.role in (None, role)
