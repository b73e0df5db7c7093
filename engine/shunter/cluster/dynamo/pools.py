"""What Dynamo's resources say of pools, as samples that decisions are made on, and what people are to be told. Pure.

`settled` is 1 where its graph is as its operator wants it, and missing, with the reason, where it isn't: nothing voluntary is begun there.
`replicas` of a pool is how many its resources of record ask for; missing, with the reason, where that isn't changed by us: nobody changes
sides there. A pool that Dynamo has no resource of has no such samples. `golden` of a prefill pool names the golden image that its new
workers can start from; missing, with the reason, where there are some and none can.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, get_args

from shunter.cluster.dynamo.drift import by_git, differences, immutable, unsettled
from shunter.cluster.dynamo.following import View
from shunter.cluster.dynamo.golden import Choice, choose
from shunter.cluster.dynamo.values import Adapter, Component, Graph
from shunter.model.errors import Problem
from shunter.model.ids import PoolId, pool_id
from shunter.model.sample import Known, Missing, Sample, say
from shunter.model.snapshot import Role

SETTLED: Final = "settled"
REPLICAS: Final = "replicas"
DESIRED: Final = "desired"
GOLDEN: Final = "golden"
_ROLES: Final[tuple[Role, ...]] = get_args(Role)


def samples(view: View, at: float) -> dict[PoolId, dict[str, Sample]]:
    """`replicas` of each pool that Dynamo has, and `desired` of those that something scales: its planner, or whoever uses its adapter."""
    found: dict[PoolId, dict[str, Sample]] = {}
    for graph in view.graphs:
        adapters = [one for one in view.adapters if one.graph == graph.name]
        for role in _ROLES:
            if own := graph.having(role):
                found[pool_id(graph.name, role)] = _pool(view, graph, own, adapters, at)
    for broken in view.broken:
        if broken.graph:
            why = Missing(reason=f"{broken.problem.subject}: {broken.problem.what}")
            found.update({pool_id(broken.graph, role): {SETTLED: why, REPLICAS: why, DESIRED: why} for role in _ROLES})
    return found


def _pool(view: View, graph: Graph, own: tuple[Component, ...], adapters: list[Adapter], at: float) -> dict[str, Sample]:
    query = f"DynamoGraphDeployment {graph.namespace}/{graph.name}: {', '.join(one.name for one in own)}"
    counts = [_of_record(one, adapters) for one in own]
    number = sum(count for count in counts if count is not None)
    doubt = view.doubt.what if view.doubt is not None else ""
    lacking = "a component has a scaling adapter that isn't there" if None in counts else ""
    known = Known(value=float(number), unit="workers", at=at, query=query)
    found: dict[str, Sample] = {
        SETTLED: _unless(doubt or unsettled(graph), Known(value=1.0, unit="1", at=at, query=query)),
        REPLICAS: _unless(doubt or lacking or _kept(graph, own, adapters), known),
    }
    if graph.plans or any(one.adapter for one in own):
        found[DESIRED] = _unless(doubt or lacking, known)
    choice = _choice(view, graph, own)
    if choice is not None:
        one = f"PodSnapshot {graph.namespace}/{choice.name}".rstrip("/")
        found[GOLDEN] = _unless(doubt or choice.why, Known(value=1.0, unit="1", at=at, query=one, labels={"name": choice.name}))
    return found


def _choice(view: View, graph: Graph, own: tuple[Component, ...]) -> Choice | None:
    """Of prefill workers alone: those of the other role are in no golden image with their sessions."""
    if len(own) != 1 or own[0].role != "prefill":
        return None
    return choose(view.golden, view.pods.get((graph.name, own[0].name), ()), graph, own[0].name)


def _unless(why: str, known: Known) -> Sample:
    return Missing(reason=why, query=known.query) if why else known


def _of_record(component: Component, adapters: Iterable[Adapter]) -> int | None:
    if not component.adapter:
        return component.replicas
    return next((one.replicas for one in adapters if one.component == component.name), None)


def _kept(graph: Graph, own: tuple[Component, ...], adapters: list[Adapter]) -> str:
    """Why a pool's replicas are never changed by us; empty: they may be."""
    if len(own) > 1:
        return f"{graph.name} has several components of one role ({', '.join(one.name for one in own)}), and which is meant can't be said"
    for one in own:
        if why := immutable(one, graph):
            return why
        owners = next((a.managers for a in adapters if a.component == one.name), ()) if one.adapter else one.managers
        if git := by_git(owners):
            return f"the replicas of {one.name} are set by Git ({git} has written them), which would put them back"
    return ""


def lines(view: View, at: float) -> tuple[str, ...]:
    """A line a pool, for people: its number, why that isn't changed, who is wanted, who is registered, and golden images."""
    return tuple(
        f"{pool}: {'; '.join((*_numbers(fields), *_registered(view, pool), *_golden(view, pool), *_unfit(fields)))}"
        for pool, fields in sorted(samples(view, at).items())
    )


def _numbers(fields: Mapping[str, Sample]) -> Iterator[str]:
    replicas, settled, desired = (fields.get(name) for name in (REPLICAS, SETTLED, DESIRED))
    if isinstance(replicas, Known):
        yield f"{replicas.value:g} of record"
    elif isinstance(replicas, Missing) and replicas != settled:
        yield f"not to be changed: {replicas.reason}"
    if isinstance(settled, Missing):
        yield f"nothing is begun: {settled.reason}"
    if desired is not None and desired != settled:
        yield f"wanted: {say(desired)}"


def _of_pool(view: View, pool: PoolId) -> tuple[str, frozenset[str]]:
    """The graph and the components of a pool."""
    name, _, role = pool.rpartition("/")
    return name, frozenset(one.name for graph in view.graphs if graph.name == name for one in graph.components if one.role == role)


def _registered(view: View, pool: PoolId) -> Iterator[str]:
    """Whom routers know, where workers register in the cluster at all."""
    name, components = _of_pool(view, pool)
    there = [pod for component in components for pod in view.pods.get((name, component), ()) if pod.ready and not pod.leaving]
    known = [view.registered.get(pod.uid) or view.registered.get(pod.name) for pod in there]
    if view.registered and there:
        number = sum(one is not None and bool(one.endpoints) for one in known)
        models = sorted({model for one in known if one is not None for model in one.models})
        yield f"{number} of {len(there)} ready pods registered" + (f" ({', '.join(models)})" if models else "")


def _golden(view: View, pool: PoolId) -> Iterator[str]:
    """PodSnapshots that new pods of the pool can be restored from. Whose they are their labels say, or the pod that they are of."""
    name, components = _of_pool(view, pool)
    pods = {pod.name for component in components for pod in view.pods.get((name, component), ())}
    own = sorted(one.name for one in view.golden if one.ready and ((one.graph == name and one.component in components) or one.pod in pods))
    if own:
        yield f"golden image {', '.join(own)}"


def _unfit(fields: Mapping[str, Sample]) -> Iterator[str]:
    found = fields.get(GOLDEN)
    if isinstance(found, Missing) and found != fields.get(SETTLED):
        yield f"no golden image to start from: {found.reason}"


def merged(taken: Mapping[str, Mapping[str, Sample]], view: View, at: float) -> dict[PoolId, dict[str, Sample]]:
    """Samples of pools with Dynamo's. What a planner publishes as a metric of its own counts before what stands in a resource. Where it
    isn't known yet which graphs there are, any of these pools may be one's.
    """
    both: dict[PoolId, dict[str, Sample]] = {PoolId(pool): dict(fields) for pool, fields in taken.items()}
    found = samples(view, at)
    if (unknown := _unlisted(view)) is not None:
        found = {pool: {SETTLED: unknown, REPLICAS: unknown, DESIRED: unknown} for pool in both}
    for pool, fields in found.items():
        own = both.setdefault(pool, {})
        published = own.get(DESIRED)
        own.update(fields)
        if published is not None and (isinstance(published, Known) or DESIRED not in fields):
            own[DESIRED] = published
    return both


def _unlisted(view: View) -> Missing | None:
    """Why it isn't known which graphs there are; None: it is, also where there are none for lack of Dynamo's kinds (SH252)."""
    if view.graphs or view.broken or view.doubt is None or view.doubt.code == "SH252":
        return None
    return Missing(reason=view.doubt.what, query=f"DynamoGraphDeployments of {view.namespace}")


def troubles(view: View) -> tuple[Problem, ...]:
    """What people are to know: what can't be read, and where somebody changed something below a graph."""
    found = [one.problem for one in view.broken]
    if view.doubt is not None:
        return (view.doubt, *found)
    for graph in view.graphs:
        roles = {one.name for one in graph.components if one.role is not None}
        found += differences(
            graph,
            [one for one in view.adapters if one.graph == graph.name],
            [one for one in view.deployed if one.graph == graph.name],
            {name: view.pods.get((graph.name, name), ()) for name in roles},
        )
    return tuple(found)
