"""Expectations that make sense: of workers, nodes and policies that there are, and such that they can fail."""

from shunter.cases.document import Expectation, WantedOperation, WantedWorker
from shunter.cases.marks import Marks, Path
from shunter.model.policy import DisruptionBudget, PolicySet
from shunter.model.snapshot import ZONE_LABEL, Fleet


class Wanted:
    """What one test may expect."""

    def __init__(self, marks: Marks, policies: PolicySet, fleet: Fleet) -> None:
        self._marks = marks
        self._refused = bool(policies.problems)
        self._policies = [str(p.name) for p in policies.policies]
        self._workers = [str(w.id) for w in fleet.workers]
        groups = _groups(policies, fleet)
        self._subjects = [*self._workers, *{w.graph for w in fleet.workers}, *groups]
        self._noun = "worker, graph or group of a budget" if groups else "worker or graph"
        self._nodes = [str(n.id) for n in fleet.nodes]
        self._places = [*self._nodes, *(str(s.id) for n in fleet.nodes for s in n.slots)]

    def check(self, path: Path, wanted: Expectation) -> None:
        """Enter what is wrong with the expectation at `path`."""
        if not wanted.findings and wanted.operations is None and not wanted.workers:
            self._marks.add("SH166", path, "nothing is expected here", "Name findings, operations ([] for none) or workers")
        if wanted.operations == () and not wanted.exactly:
            self._marks.add("SH166", path, "with exactly: false, operations: [] can't fail", "Remove exactly, or name an operation")
        for i, finding in enumerate(wanted.findings):
            own = (*path, "findings", i)
            self._marks.known((*own, "subject"), finding.subject, self._subjects, self._noun)
            self._policy(own, finding.policy)
            if finding.policy is None and len(self._policies) != 1 and not self._refused:
                remedy = f"Add policy: {' or '.join(self._policies)}"
                self._marks.add("SH167", own, f"it isn't said of which policy: there are {len(self._policies)}", remedy)
        for i, operation in enumerate(wanted.operations or ()):
            self._operation((*path, "operations", i), operation)
        for name, place in wanted.workers.items():
            self._worker((*path, "workers", name), name, place)

    def _policy(self, path: Path, name: str | None) -> None:
        if name is not None and not self._refused:
            self._marks.known((*path, "policy"), name, self._policies, "policy")

    def _operation(self, path: Path, wanted: WantedOperation) -> None:
        self._policy(path, wanted.policy)
        self._marks.known((*path, "worker"), wanted.worker, self._workers, "worker")
        for i, name in enumerate(wanted.after or ()):
            self._marks.known((*path, "after", i), name, self._workers, "worker")
        for i, name in enumerate(wanted.copies or ()):
            self._marks.known((*path, "copies", i), name, self._nodes, "node")
        for key, where in (("from", wanted.from_), ("to", wanted.to)):
            if where is not None:
                self._marks.known((*path, key), where, self._places, "node or slot")

    def _worker(self, path: Path, name: str, wanted: WantedWorker) -> None:
        self._marks.known(path, name, self._workers, "worker", key=True)
        if wanted.node is not None:
            self._marks.known((*path, "node"), wanted.node, self._places, "node or slot")
        elif wanted.state is None:
            self._marks.add("SH166", path, "nothing is expected of this worker", "Name its node, its state, or both")


def _groups(policies: PolicySet, fleet: Fleet) -> set[str]:
    """The groups that budgets in force speak of, as the engine names them."""
    of: dict[str, set[str]] = {
        "all": {"all"},
        "pool": {f"pool:{w.pool}" for w in fleet.workers},
        "node": {f"node:{n.id}" for n in fleet.nodes},
        "zone": {f"zone:{zone}" for n in fleet.nodes if (zone := n.labels.get(ZONE_LABEL))},
    }
    budgets = (p.document.spec for p in policies.policies if isinstance(p.document, DisruptionBudget))
    return {group for spec in budgets for group in of[spec.per]}
