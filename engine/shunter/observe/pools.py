"""What a pool itself has a figure for: how many workers the Dynamo planner wants in it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from shunter.model.ids import PoolId, pool_id
from shunter.model.sample import Known, Missing, Sample
from shunter.model.snapshot import Fleet, Role
from shunter.observe.catalog import Catalog, PoolField, PoolGauge
from shunter.observe.prometheus import Answer, Series
from shunter.observe.resolve import Ask, Empty, one, partial

_ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")


def of_pools(answer: Answer | Missing, field: PoolField, ask: Ask, fleet: Fleet, catalog: Catalog) -> Iterator[tuple[PoolId, Sample]]:
    """The field's sample for both pools of each graph that has a worker, whatever its state."""
    if not isinstance(answer, Missing):
        answer = partial(answer, ask.query) or answer
    names = _names(fleet)
    for graph in sorted(names):
        for role in _ROLES:
            own = answer if isinstance(answer, Missing) else _of_pool(answer.series, field, ask, (graph, *names[graph]), role, catalog)
            yield pool_id(graph, role), own


def _names(fleet: Fleet) -> dict[str, list[str]]:
    """What graphs are called in series besides: Dynamo's operator names a graph's own namespace after that of its pods and the graph. A
    name that is another graph's own is that one's.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for graph, namespace in {(w.graph, w.pod.namespace if w.pod is not None else None) for w in fleet.workers}:
        found[graph] |= {f"{namespace}-{graph}"} if namespace is not None else set()
    return {graph: sorted(own - found.keys()) for graph, own in found.items()}


def _of_pool(series: Sequence[Series], field: PoolField, ask: Ask, names: Sequence[str], role: Role, catalog: Catalog) -> Sample:
    """`names` are the graph's, the one that we call it by first."""
    nameless = False
    for gauge in field.gauges:
        named = [s for s in series if s.labels.get("__name__") == gauge.name and gauge.role in (None, role)]
        label = gauge.graph or catalog.graph
        own = [s for s in named if s.labels.get(label) in names and (gauge.role or s.labels.get("role")) == role]
        if own:
            return _number(one(_decided(own) if gauge.unset_at_zero else own, ask), gauge)
        nameless = nameless or any(label not in s.labels for s in named)
    reason = f"query returned 0 series for {role} in {names[0]}; expected 1"
    if nameless:
        reason += f" (some have no label {catalog.graph}, so whose they are can't be told)"
    return Missing(reason=reason, query=ask.query)


def _decided(series: list[Series]) -> list[Series]:
    """Without those of planners for the other role alone, which show 0 for this one for ever; all where all are 0."""
    return [s for s in series if s.points[-1][1] != 0] or series


def _number(value: Sample | Empty, gauge: PoolGauge) -> Sample:
    """A whole number of workers. A planner's gauge is 0 until it has decided for the first time, and then never: a planner keeps one."""
    if isinstance(value, Empty):
        return value.missing
    if not isinstance(value, Known):
        return value
    if value.value == 0 and gauge.unset_at_zero:
        return Missing(reason=f"{gauge.name} is 0: the planner hasn't decided yet", query=value.query)
    if value.value < 0 or not value.value.is_integer():
        return Missing(reason=f"{value.value:g} is not a number of workers", query=value.query)
    return value
