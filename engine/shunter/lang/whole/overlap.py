"""What two policies are surely both about: workers, or the pools of a graph."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from shunter.lang import ranges
from shunter.lang.whole.texts import values
from shunter.model.expression import Expression, Scalar
from shunter.model.policy import (
    CheckpointSpec,
    Policy,
    PreemptionPolicy,
    PreemptionSpec,
    ReassignmentPolicy,
    ReassignmentSpec,
    RebalanceSpec,
    WorkerSelector,
)


class Shared(msgspec.Struct, frozen=True):
    """How two policies come to speak of one worker or graph: for certain, or in the case of `example`."""

    subjects: str
    example: Mapping[str, Scalar] | None = None

    def __str__(self) -> str:
        return self.subjects if self.example is None else f"{self.subjects}, for instance with {values(self.example)}"


def pairs(policies: list[Policy]) -> Iterator[tuple[Policy, Policy]]:
    """Pairs that can be about one graph, each in the given order: few, where most policies name theirs. Each has a selector."""
    of_graph: dict[str | None, list[int]] = defaultdict(list)
    for index, policy in enumerate(policies):
        graph = selector(policy).graph
        earlier = range(index) if graph is None else sorted((*of_graph[graph], *of_graph[None]))
        yield from ((policies[before], policy) for before in earlier)
        of_graph[graph].append(index)


def selector(policy: Policy) -> WorkerSelector:
    """The workers that the policy covers. Not to be asked of a profile."""
    assert policy.selector is not None, "profiles contradict nobody"
    return policy.selector


def contested(first: Policy, second: Policy) -> Shared | None:
    """What two policies of one kind would both act on at the same moment, or None when that isn't sure."""
    one, other = first.document, second.document
    if isinstance(one, ReassignmentPolicy) and isinstance(other, ReassignmentPolicy):
        same_way = (one.spec.from_, one.spec.to) == (other.spec.from_, other.spec.to)
        return same_shift(first, second) if same_way else None
    if isinstance(one, PreemptionPolicy) and isinstance(other, PreemptionPolicy) and set(one.spec.notices).isdisjoint(other.spec.notices):
        return None
    return same_workers(first, second)


def same_shift(first: Policy, second: Policy) -> Shared | None:
    """The graph in which two policies both want to shift at once; None for those that follow the planner, and when it isn't sure."""
    a, b = first.document.spec, second.document.spec
    assert isinstance(a, ReassignmentSpec)
    assert isinstance(b, ReassignmentSpec)
    if a.when is None or b.when is None:
        return None
    example = ranges.meeting(_named(first, a.when.text, second), _named(second, b.when.text, first))
    if example is None and (a.when.text, a.metrics) != (b.when.text, b.metrics):
        return None
    return Shared(f"{same_graph(first, second)} from {a.from_} to {a.to}", example)


def same_graph(first: Policy, second: Policy) -> str:
    """The graph that two policies of a pair are about, in words."""
    graph = selector(first).graph or selector(second).graph
    return f"the graph {graph}" if graph else "every graph"


def same_workers(first: Policy, second: Policy) -> Shared | None:
    """The workers that both policies surely cover, or None."""
    a, b = selector(first), selector(second)
    if None not in (a.role, b.role) and a.role != b.role:
        return None
    role, graph = a.role or b.role, a.graph or b.graph
    subjects = f"{role + ' ' if role else ''}workers{f' of {graph}' if graph else ''}"
    one, other = _conditions(first), _conditions(second)
    if one == other and first.metrics == second.metrics:
        return Shared(f"the same {subjects}" if one else subjects)
    example = ranges.meeting(_region(first, second), _region(second, first))
    if example is not None:
        return Shared(subjects, example)
    return _nested(first, second, subjects) if not (one and other) else None


def within(inner: Policy, outer: Policy) -> bool:
    """Whether `outer`, of the same kind, surely acts on each worker or graph on which `inner` does, and whenever it does."""
    a, b = selector(inner), selector(outer)
    conditions = _conditions(outer)
    covered = b.graph in (None, a.graph) and b.role in (None, a.role)
    fulfilled = not conditions or (conditions == _conditions(inner) and inner.metrics == outer.metrics)
    return covered and fulfilled and _as_often(inner, outer)


def _as_often(inner: Policy, outer: Policy) -> bool:
    one, other = inner.document.spec, outer.document.spec
    if isinstance(one, PreemptionSpec) and isinstance(other, PreemptionSpec):
        return set(one.notices) <= set(other.notices)
    if isinstance(one, CheckpointSpec) and isinstance(other, CheckpointSpec):
        return one.every is not None and other.every is not None and one.every >= other.every
    if isinstance(one, RebalanceSpec) and isinstance(other, RebalanceSpec):
        return one.for_ >= other.for_ and other.gain in (None, one.gain)
    if isinstance(one, ReassignmentSpec) and isinstance(other, ReassignmentSpec):
        same_way = (one.from_, one.to, one.follow) == (other.from_, other.to, other.follow)
        same_when = one.when is not None and other.when is not None and one.when.text == other.when.text
        return same_way and same_when and one.for_ >= other.for_ and one.limits == other.limits
    return False


def _nested(first: Policy, second: Policy, subjects: str) -> Shared | None:
    """One of the two has no condition: it covers whatever the other does, unless that is known to be nothing."""
    narrow, wide = (first, second) if _conditions(first) else (second, first)
    a, b = selector(narrow), selector(wide)
    inside = b.graph in (None, a.graph) and b.role in (None, a.role)
    understood = all(ranges.boxes(text) for text in _conditions(narrow))
    return Shared(f'all {subjects} that "{narrow.name}" selects') if inside and not understood else None


def _conditions(policy: Policy) -> tuple[str, ...]:
    """What a worker must fulfil besides role and graph, as texts."""
    return tuple(e.text for e in (selector(policy).where, _when(policy)) if e is not None)


def _when(policy: Policy) -> Expression | None:
    """A condition on the worker itself, for the kinds that have one."""
    spec = policy.document.spec
    return spec.when if isinstance(spec, CheckpointSpec | RebalanceSpec) else None


def _region(policy: Policy, other: Policy) -> tuple[ranges.Box, ...]:
    """Workers that the policy surely covers."""
    select = selector(policy)
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
