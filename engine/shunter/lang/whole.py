"""What policies that are sound each by itself get wrong together, or for the fleet that they are meant for. All warnings.

These checks are for whoever writes policies (`shunter validate`). Loading a set doesn't need them: the engine copes with all of it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from shunter.lang import ranges
from shunter.lang.bind import Path
from shunter.lang.diagnostics import SourceText, nearest
from shunter.lang.yaml import Mapping as YamlMapping
from shunter.lang.yaml import Node as YamlNode
from shunter.lang.yaml import Scalar as YamlScalar
from shunter.lang.yaml import look_up, parse
from shunter.model.errors import Place, Problem, Severity
from shunter.model.expression import Scalar
from shunter.model.policy import (
    CheckpointPolicy,
    CheckpointSpec,
    Policy,
    PreemptionPolicy,
    ReassignmentPolicy,
    ReassignmentSpec,
    WorkerSelector,
)
from shunter.model.snapshot import Fleet, Node, NoticeKind, Snapshot, Worker
from shunter.model.units import Duration

Covers: TypeAlias = Callable[[Policy, Worker], bool | None]
"""Whether a policy's selector covers a worker as it is in the snapshot; None when that can't be said."""

LEADS: Final = {"AWS": 120.0, "GCP": 30.0, "Azure": 10.0}
"""Seconds between a preemption notice and the end, as short as they usually are."""
_LABELS: Final = {
    "eks.amazonaws.com/": "AWS",
    "karpenter.k8s.aws/": "AWS",
    "cloud.google.com/": "GCP",
    "kubernetes.azure.com/": "Azure",
}
"""Beginnings of node labels that clouds set themselves."""


class Texts:
    """The files that the policies stand in, for places and source lines. A file that isn't there costs only those."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._parsed: dict[str, tuple[SourceText, list[YamlNode]]] = {}

    def warning(self, policy: Policy, path: Path, code: str, what: str, remedy: str) -> Problem:
        """A warning at `path` of the policy's document, or at its name when the path isn't there."""
        found = self._document(policy.place)
        if found is None:
            return Problem(code=code, what=what, remedy=remedy, place=policy.place, severity=Severity.WARNING)
        source, document = found
        node = look_up(document, path)
        place = node.opening(source.text) if isinstance(node, YamlScalar) else node.start
        if node is document or not path:
            place = look_up(document, ("metadata", "name")).start
        return source.problem(code, place, what, remedy, severity=Severity.WARNING)

    def _document(self, place: Place) -> tuple[SourceText, YamlMapping] | None:
        if place.file not in self._texts:
            return None
        if place.file not in self._parsed:
            source = SourceText(place.file, self._texts[place.file])
            self._parsed[place.file] = source, parse(source)[0]
        source, documents = self._parsed[place.file]
        named = (d for d in documents if isinstance(d, YamlMapping) and source.place(look_up(d, ("metadata", "name")).start) == place)
        return next(((source, d) for d in named), None)


def check_set(policies: Sequence[Policy], texts: Texts) -> tuple[Problem, ...]:
    """Policies that contradict each other or themselves: SH140 equal rank, SH141 `revert`, SH142 opposites."""
    ordered = sorted(policies, key=lambda p: p.name)
    in_force = [p for p in ordered if p.mode == "enforce" and p.acts]
    found = [*_rivals(in_force, texts), *_opposites(in_force, texts)]
    for policy in ordered:
        found += _undone(policy, texts)
    return tuple(found)


def check_fleet(policies: Sequence[Policy], texts: Texts, snapshot: Snapshot, covers: Covers) -> tuple[Problem, ...]:
    """What can't work in a fleet: SH143 a selector that matches nothing, SH144 more copies than nodes, SH145 a reserve that is too long."""
    found: list[Problem] = []
    for policy in sorted(policies, key=lambda p: p.name):
        if policy.mode == "off":
            continue
        found += _matches_nothing(policy, texts, snapshot.fleet, covers)
        found += _copies(policy, texts, snapshot.fleet)
        found += _reserve(policy, texts, snapshot)
    return tuple(found)


# -- equal rank


class _Shared(msgspec.Struct, frozen=True):
    """How two policies come to speak of one worker or graph: for certain, or in the case of `example`."""

    subjects: str
    example: Mapping[str, Scalar] | None = None

    def __str__(self) -> str:
        return self.subjects if self.example is None else f"{self.subjects}, for instance with {values(self.example)}"


def _rivals(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH140, once for each policy: at the one that loses, naming the first that it loses to."""
    told: set[str] = set()
    for first, second in _pairs(policies):
        if second.name in told or first.priority != second.priority or first.kind != second.kind:
            continue
        shared = _contested(first, second)
        if shared is None:
            continue
        told.add(second.name)
        sure = "both cover" if shared.example is None else "both can cover"
        what = f'"{second.name}" and "{first.name}" at {first.place} {sure} {shared}; both have priority {first.priority}'
        remedy = f'By its name alone "{first.name}" goes first: give the one that should a higher priority, or cover different workers'
        yield texts.warning(second, ("spec", "priority") if _states_priority(second) else (), "SH140", what, remedy)


def _pairs(policies: list[Policy]) -> Iterator[tuple[Policy, Policy]]:
    """Pairs that can be about one graph, each in the given order: few, where most policies name theirs."""
    of_graph: dict[str | None, list[int]] = defaultdict(list)
    for index, policy in enumerate(policies):
        graph = _workers(policy).graph
        earlier = range(index) if graph is None else sorted((*of_graph[graph], *of_graph[None]))
        yield from ((policies[before], policy) for before in earlier)
        of_graph[graph].append(index)


def _workers(policy: Policy) -> WorkerSelector:
    assert policy.selector is not None, "profiles contradict nobody"
    return policy.selector


def _states_priority(policy: Policy) -> bool:
    return policy.priority != 100


def _contested(first: Policy, second: Policy) -> _Shared | None:
    """What two policies of one kind would both act on at the same moment, or None when that isn't sure."""
    one, other = first.document, second.document
    if isinstance(one, ReassignmentPolicy) and isinstance(other, ReassignmentPolicy):
        if (one.spec.from_, one.spec.to) != (other.spec.from_, other.spec.to):
            return None
        return _same_graph(first, second)
    if isinstance(one, PreemptionPolicy) and isinstance(other, PreemptionPolicy) and set(one.spec.notices).isdisjoint(other.spec.notices):
        return None
    return _same_workers(first, second)


def _same_graph(first: Policy, second: Policy) -> _Shared | None:
    a, b = first.document.spec, second.document.spec
    assert isinstance(a, ReassignmentSpec)
    assert isinstance(b, ReassignmentSpec)
    if a.when is None or b.when is None:
        both = a.when is b.when  # two that follow the planner want the same
        return _Shared(f"{f'the graph {a.workers.graph or b.workers.graph}'} from {a.from_} to {a.to}") if both else None
    example = ranges.meeting(_named(first, a.when.text, second), _named(second, b.when.text, first))
    if example is None and (a.when.text, a.metrics) != (b.when.text, b.metrics):
        return None
    graph = a.workers.graph or b.workers.graph
    return _Shared(f"{f'the graph {graph}' if graph else 'every graph'} from {a.from_} to {a.to}", example)


def _same_workers(first: Policy, second: Policy) -> _Shared | None:
    a, b = _workers(first), _workers(second)
    if None not in (a.role, b.role) and a.role != b.role:
        return None
    role, graph = a.role or b.role, a.graph or b.graph
    subjects = f"{role + ' ' if role else ''}workers{f' of {graph}' if graph else ''}"
    one, other = _conditions(first), _conditions(second)
    if one == other and first.metrics == second.metrics:
        return _Shared(f"the same {subjects}" if one else subjects)
    example = ranges.meeting(_region(first, second), _region(second, first))
    if example is not None:
        return _Shared(subjects, example)
    return _nested(first, second, subjects) if not (one and other) else None


def _nested(first: Policy, second: Policy, subjects: str) -> _Shared | None:
    """One of the two has no condition: it covers whatever the other does, unless that is known to be nothing."""
    narrow, wide = (first, second) if _conditions(first) else (second, first)
    a, b = _workers(narrow), _workers(wide)
    inside = b.graph in (None, a.graph) and b.role in (None, a.role)
    understood = all(ranges.boxes(text) for text in _conditions(narrow))
    return _Shared(f'all {subjects} that "{narrow.name}" selects') if inside and not understood else None


def _conditions(policy: Policy) -> tuple[str, ...]:
    """What a worker must fulfil besides role and graph, as texts."""
    spec = policy.document.spec
    when = spec.when if isinstance(spec, CheckpointSpec) else None
    return tuple(e.text for e in (_workers(policy).where, when) if e is not None)


def _region(policy: Policy, other: Policy) -> tuple[ranges.Box, ...]:
    """Workers that the policy surely covers."""
    select = _workers(policy)
    given = {"worker.role": select.role, "worker.graph": select.graph}
    region: tuple[ranges.Box, ...] = ({name: ranges.Words(frozenset((value,))) for name, value in given.items() if value is not None},)
    for text in _conditions(policy):
        region = ranges.both(region, _named(policy, text, other))
    return region


def _named(policy: Policy, text: str, other: Policy) -> tuple[ranges.Box, ...]:
    """A condition's boxes; a declared metric is the same variable in both policies only if both declare the same query."""

    def name(variable: str) -> str:
        short = variable.removeprefix("metrics.")
        own, its = policy.metrics.get(short), other.metrics.get(short)
        same = own is not None and its is not None and own.query == its.query
        return variable if same or short == variable else f"{policy.name}'s {variable}"

    return ranges.renamed(ranges.boxes(text), name)


# -- back and forth


def _undone(policy: Policy, texts: Texts) -> Iterator[Problem]:
    """SH141: a shift that is to be given back while it is wanted."""
    spec = policy.document.spec
    if not isinstance(spec, ReassignmentSpec) or spec.revert is None or spec.when is None:
        return
    example = ranges.meeting(ranges.boxes(spec.when.text), ranges.boxes(spec.revert.when.text))
    if example is None and spec.when.text != spec.revert.when.text:
        return
    case = f", for instance with {values(example)}" if example else ""
    what = f"revert.when can be true while when is{case}: then hardware is neither given nor given back"
    remedy = "Keep a gap between the two conditions, so that never both are true"
    yield texts.warning(policy, ("spec", "revert", "when"), "SH141", what, remedy)


def _opposites(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH142, whatever the priorities: the engine lets neither shift while both want to."""
    for first, second in _pairs([p for p in policies if isinstance(p.document, ReassignmentPolicy)]):
        a, b = first.document.spec, second.document.spec
        assert isinstance(a, ReassignmentSpec)
        assert isinstance(b, ReassignmentSpec)
        if (a.from_, a.to) != (b.to, b.from_) or a.when is None or b.when is None:
            continue
        example = ranges.meeting(_named(first, a.when.text, second), _named(second, b.when.text, first))
        if example is None and (a.when.text, a.metrics) != (b.when.text, b.metrics):
            continue
        case = f", for instance with {values(example)}" if example else ""
        what = f'when can be true while that of "{first.name}" at {first.place} is, which shifts the other way{case}: then neither shifts'
        remedy = "Keep a gap between the two conditions, or make one policy of them with revert:"
        yield texts.warning(second, ("spec", "when"), "SH142", what, remedy)


def values(example: Mapping[str, Scalar]) -> str:
    """`pools.prefill.waiting = 31 and worker.role = "decode"`."""
    parts = [f"{name} = {_shown(value)}" for name, value in example.items()]
    return " and ".join(parts) or "any values"


def _shown(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:.12g}"


# -- against a fleet


def _matches_nothing(policy: Policy, texts: Texts, fleet: Fleet, covers: Covers) -> Iterator[Problem]:
    """SH143. A worker of which it can't be said whether it is covered counts as covered."""
    if policy.selector is None or not fleet.workers or any(covers(policy, worker) is not False for worker in fleet.workers):
        return
    select = _workers(policy)
    graphs = sorted({w.graph for w in fleet.workers})
    if select.graph is not None and select.graph not in graphs:
        near = nearest(select.graph, graphs)
        remedy = f'Did you mean "{near}"?' if near else f"Its graphs are {', '.join(graphs)}"
        yield texts.warning(policy, ("spec", "workers", "graph"), "SH143", f"the fleet has no graph {select.graph}", remedy)
        return
    roles = Counter(w.role for w in fleet.workers if select.graph in (None, w.graph))
    if select.role is not None and not roles[select.role]:
        where = f" in {select.graph}" if select.graph else ""
        remedy = f"It has {' and '.join(f'{n} {role}' for role, n in sorted(roles.items()))}; select those, or check the fleet"
        yield texts.warning(policy, ("spec", "workers", "role"), "SH143", f"the fleet has no {select.role} worker{where}", remedy)
        return
    what = f"none of the fleet's {_many(len(fleet.workers), 'worker')} fulfils the selector"
    yield texts.warning(
        policy, ("spec", "workers", "where"), "SH143", what, "Correct the condition, or ask `shunter why WORKER` for its values"
    )


def _copies(policy: Policy, texts: Texts, fleet: Fleet) -> Iterator[Problem]:
    """SH144."""
    spec = policy.document.spec
    if isinstance(policy.document, CheckpointPolicy) and isinstance(spec, CheckpointSpec) and spec.copies > len(fleet.nodes) > 0:
        what = f"copies is {spec.copies}, and the fleet has {_many(len(fleet.nodes), 'node')}: each copy needs a node of its own"
        yield texts.warning(policy, ("spec", "copies"), "SH144", what, f"Write {len(fleet.nodes)} or less, or add nodes")


def _reserve(policy: Policy, texts: Texts, snapshot: Snapshot) -> Iterator[Problem]:
    """SH145. Leads are those of the cloud that labels the nodes, and those of the notices in the snapshot."""
    if not isinstance(policy.document, PreemptionPolicy):
        return
    spec = policy.document.spec
    leads = _leads(spec.notices, snapshot)
    lead, whose = min(leads, default=(None, ""))
    if lead is not None and spec.reserve >= lead:
        what = f"reserve is {spec.reserve}, and {whose}: no move would ever be begun"
        yield texts.warning(
            policy, ("spec", "reserve"), "SH145", what, f"Write less than {Duration(lead)}, so that time is left for the move"
        )


def _leads(kinds: Iterable[NoticeKind], snapshot: Snapshot) -> list[tuple[float, str]]:
    wanted = frozenset(kinds)
    found = [
        (n.deadline - n.seen_at, f"the notice {n.id} in the snapshot came {Duration(max(0.0, n.deadline - n.seen_at))} ahead")
        for n in snapshot.notices
        if n.kind in wanted and n.deadline is not None
    ]
    if NoticeKind.PREEMPTION in wanted:
        clouds = sorted({c for node in snapshot.fleet.nodes if (c := _cloud(node)) is not None})
        found += [(LEADS[cloud], f"{cloud} often announces a preemption only {Duration(LEADS[cloud])} ahead") for cloud in clouds]
    return found


def _cloud(node: Node) -> str | None:
    """Whose machine it is, by labels that only that cloud sets; None when they don't say."""
    return next((cloud for key in sorted(node.labels) for start, cloud in _LABELS.items() if key.startswith(start)), None)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
