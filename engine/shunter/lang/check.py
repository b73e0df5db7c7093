"""What a well-formed policy can still get wrong: its expressions, and fields that contradict each other."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

from shunter.lang import cel
from shunter.lang.bind import Found, Path
from shunter.lang.diagnostics import SourceText
from shunter.lang.locate import in_file
from shunter.lang.specs import Report, known, misuses
from shunter.lang.yaml import Mapping, Scalar, look_up
from shunter.model.errors import Problem, Severity
from shunter.model.policy import BudgetSpec, FleetProfileSpec, MetricInput

_FLEET: Final = frozenset({"worker", "node", "pool", "pools", "metrics", "now"})
_POOLS: Final = frozenset({"pools", "metrics", "now"})
_DESTINATION: Final = frozenset({"worker", "node", "notice"})
_PLACE: Final = frozenset({"worker", "node"})
_ACTING: Final = ("PreemptionPolicy", "ReassignmentPolicy", "CheckpointPolicy", "RebalancePolicy")

FIELDS: Final[dict[tuple[str, str], tuple[cel.Result, frozenset[str]]]] = {
    **{(kind, "workers.where"): ("bool", _FLEET) for kind in _ACTING},
    ("PreemptionPolicy", "move.to.where"): ("bool", _DESTINATION),
    ("PreemptionPolicy", "move.to.prefer"): ("number", _DESTINATION),
    ("PreemptionPolicy", "move.order"): ("number", _DESTINATION),
    ("ReassignmentPolicy", "when"): ("bool", _POOLS),
    ("ReassignmentPolicy", "revert.when"): ("bool", _POOLS),
    ("ReassignmentPolicy", "pick.where"): ("bool", _FLEET),
    ("ReassignmentPolicy", "pick.prefer"): ("number", _FLEET),
    ("CheckpointPolicy", "when"): ("bool", _FLEET),
    ("RebalancePolicy", "when"): ("bool", _FLEET),
    ("RebalancePolicy", "to.where"): ("bool", _PLACE),
    ("RebalancePolicy", "to.prefer"): ("number", _PLACE),
    ("DisruptionBudget", "workers.where"): ("bool", _PLACE),
}
"""For each expression of each kind (its path below `spec`): what it must give, and the variables that it sees by their first name."""


def declared_metrics(node: Mapping) -> frozenset[str]:
    """Names under `spec.metrics`, whether or not the rest of the document is in order."""
    metrics = look_up(node, ("spec", "metrics"))
    spec = node.get("spec")
    return frozenset(metrics.entries) if isinstance(metrics, Mapping) and metrics is not spec and metrics is not node else frozenset()


def expressions(source: SourceText, kind: str, node: Mapping, found: Iterable[Found]) -> Iterator[Problem]:
    """Everything wrong with a document's expressions, and a warning for each declared metric that none of them reads."""
    metrics = declared_metrics(node)
    read: set[str] = set()
    sound = True
    for expression in found:
        result, roots = _field(kind, expression.path)
        faults = cel.check(expression.node.text, result, roots, metrics)
        sound = sound and not faults
        if metrics:
            read.update(cel.named(expression.node.text))
        for fault in faults:
            offset = in_file(source.text, expression.node, fault.offset)
            yield source.problem(fault.code, offset, fault.what, fault.remedy)
    if sound:
        yield from _unread(source, node, sorted(metrics - {name.removeprefix("metrics.") for name in read}))


@cache
def _field(kind: str, path: Path) -> tuple[cel.Result, frozenset[str]]:
    """What FIELDS says of the expression at a path of a document."""
    return FIELDS[kind, ".".join(str(step) for step in path[1:])]


def _unread(source: SourceText, node: Mapping, names: list[str]) -> Iterator[Problem]:
    for name in names:
        table = look_up(node, ("spec", "metrics"))
        assert isinstance(table, Mapping)
        what = f"nothing reads metrics.{name}"
        yield source.problem(
            "SH125", table.entries[name][0].start, what, "Use it in an expression, or remove it", severity=Severity.WARNING
        )


def document(source: SourceText, node: Mapping, policy: object) -> Iterator[Problem]:
    """Everything wrong with a document, bound as far as that went, that isn't an expression's fault."""

    def problem(code: str, path: Path, what: str, remedy: str) -> Problem:
        return source.problem(code, look_up(node, path).start, what, remedy)

    return known(_spec(source, node, problem, policy))


def _spec(source: SourceText, node: Mapping, problem: Report, policy: Any) -> Iterator[Problem]:  # noqa: ANN401  (any kind of document)
    spec = policy.spec
    if not isinstance(spec, FleetProfileSpec):
        yield from known(_selector(source, node, spec))
    yield from misuses(problem, spec)
    if not isinstance(spec, BudgetSpec | FleetProfileSpec):
        yield from known(_metrics(problem, spec))


def _metrics(problem: Report, spec: Any) -> Iterator[Problem]:  # noqa: ANN401  (any kind's with metrics)
    for name, metric in spec.metrics.items():
        yield from known(_max_age(problem, name, metric))


def _max_age(problem: Report, name: str, metric: MetricInput) -> Iterator[Problem]:
    if metric.max_age <= 0:
        what = f"spec.metrics.{name}.maxAge must be more than 0: no sample is that fresh"
        yield problem("SH115", ("spec", "metrics", name, "maxAge"), what, "Write how old a sample may be, such as 30s")


def _selector(source: SourceText, node: Mapping, spec: Any) -> Iterator[Problem]:  # noqa: ANN401  (any kind's that selects workers)
    path, workers = ("spec", "workers"), spec.workers
    conditions = [name for name in ("role", "graph", "where") if getattr(workers, name) is not None]
    if workers.all and conditions:
        what = f"all: true stands beside {' and '.join(conditions)}"
        yield source.problem("SH121", look_up(node, (*path, "all")).start, what, "Keep the conditions, or all: true, not both")
    elif not workers.all and not conditions:
        what = "spec.workers selects by nothing"
        yield source.problem("SH120", look_up(node, path).start, what, "Name a role, a graph or a condition, or say all: true")
    if workers.graph is not None and not workers.graph.strip():
        graph = look_up(node, (*path, "graph"))
        assert isinstance(graph, Scalar)
        yield source.problem("SH115", graph.start, "spec.workers.graph is empty", "Name a graph, or remove the key")
