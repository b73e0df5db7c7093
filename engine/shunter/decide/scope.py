"""Scopes: the variables of `model.vocabulary`, bound to what a snapshot says."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from operator import attrgetter, itemgetter
from typing import Any, Final

from shunter.decide.world import AWAY, STANDING, World, in_order
from shunter.model.expression import Rules, Scope, Undecided, Value
from shunter.model.ids import WorkerId, pool_id
from shunter.model.policy import MetricInput, Policy
from shunter.model.sample import Known, Missing, Sample, Stale, say
from shunter.model.snapshot import Node, Notice, Worker
from shunter.model.table import SampleColumn, SampleMap, SampleTable
from shunter.model.vocabulary import POOL_METRICS, WORKER_METRICS

_MEANS: Final = frozenset({"kvUsage"})
"""Shares can't be added up; everything else can."""
_UNITS: Final = {v.name: v.unit for v in WORKER_METRICS}
_OWN_OF_POOLS: Final = frozenset(v.name for v in POOL_METRICS)
_OF_POOLS: Final = ("workers", "parked", *_UNITS, *(v.name for v in POOL_METRICS))
_NO_METRICS: Final[dict[str, Value]] = {}
_NOTHING: Final[dict[str, Sample]] = {}
_ID: Final[Callable[[Worker], WorkerId]] = attrgetter("id")
_VALUE: Final[Callable[[Any], float]] = attrgetter("value")
_AT: Final[Callable[[Any], float]] = attrgetter("at")
_NAMED = 3
"""At most so many members are named in a pool's reason for having no value."""


class Bound(Mapping[str, Value]):
    """A scope put together from parts, by the first word of a name: making one copies nothing."""

    __slots__ = ("_parts",)

    def __init__(self, parts: dict[str, Mapping[str, Value]]) -> None:
        self._parts = parts

    def __getitem__(self, name: str) -> Value:
        return self._parts[name.partition(".")[0]][name]

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  (Mapping's own signature)
        """The variable's value, or the default."""
        part = self._parts.get(name.partition(".")[0])
        return default if part is None else part.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return (name for part in self._parts.values() for name in part)

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def having(self, root: str, part: Mapping[str, Value]) -> "Bound":
        """The same scope with other variables below `root`."""
        return Bound({**self._parts, root: part})


class Pool(Mapping[str, Value]):
    """The figures of a pool by their fields, each worked out when it is first read: few are."""

    __slots__ = ("_known", "_members", "_own", "_running", "_world")

    def __init__(self, world: World, graph: str, role: str) -> None:
        pool = pool_id(graph, role)
        self._world, self._members, self._running = world, world.pools.get(pool, ()), world.running(pool)
        self._own = world.snapshot.samples.pools.get(pool, _NOTHING)
        self._known: dict[str, Value] = {}

    def __getitem__(self, field: str) -> Value:
        found = self._known.get(field)
        if found is None:
            found = self._known[field] = self._work_out(field)
        return found

    def _work_out(self, field: str) -> Value:
        match field:
            case "workers":
                return sum(w.state in STANDING for w in self._members)
            case "parked":
                return sum(w.state in AWAY and bool(self._world.trusted(w.id)) for w in self._members)
        if field in _OWN_OF_POOLS:
            return _or_missing(self._own, field)
        return _figure(self._world, self._running, field, _UNITS[field])

    def __iter__(self) -> Iterator[str]:
        return iter(_OF_POOLS)

    def __len__(self) -> int:
        return len(_OF_POOLS)


class Pools(Mapping[str, Value]):
    """Figures of pools by whole names, `pool.waiting` or `pools.decode.waiting`."""

    __slots__ = ("_pools",)

    def __init__(self, pools: dict[str, Pool]) -> None:
        """`pools` are by what their names begin with, without the last dot."""
        self._pools = pools

    def __getitem__(self, name: str) -> Value:
        prefix, _, field = name.rpartition(".")
        return self._pools[prefix][field]

    def __iter__(self) -> Iterator[str]:
        return (f"{prefix}.{field}" for prefix in self._pools for field in _OF_POOLS)

    def __len__(self) -> int:
        return len(self._pools) * len(_OF_POOLS)


class _Own(Mapping[str, Value]):
    """The variables of one worker, each looked up when it is read: few are."""

    __slots__ = ("_samples", "_worker", "_world")

    def __init__(self, world: World, worker: Worker, samples: Mapping[str, Sample]) -> None:
        self._world, self._worker, self._samples = world, worker, samples

    def __getitem__(self, name: str) -> Value:
        read = _WORKER.get(name)
        return read(self._world, self._worker) if read is not None else self._samples[name.removeprefix("worker.")]

    def __iter__(self) -> Iterator[str]:
        yield from _WORKER
        yield from (name for field in self._samples if (name := f"worker.{field}") not in _WORKER)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Scopes:
    """Scopes over one world. Parts that many expressions share are made once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._figures: dict[tuple[str, str], Pool] = {}
        self._own: dict[tuple[str, str], Pools] = {}
        self._pools: dict[str, Pools] = {}
        self._nodes: dict[str, dict[str, Value]] = {}
        self.now: Final = world.at
        self.answers: dict[tuple[int, str, str], tuple[Policy, Rules, bool | Undecided]] = {}
        """What conditions on graphs came out as, by the policy's identity, the condition and the graph: to be looked up and added to."""
        self._now: dict[str, Value] = {"now": world.at}

    def graph(self, policy: Policy, graph: str) -> Bound:
        """`pools`, `metrics` and `now`: what a condition on a graph reads."""
        return Bound({"pools": self.of_graph(graph), "metrics": self.metrics(policy, None), "now": self._now})

    def worker(self, policy: Policy, worker: Worker, *, notice: Notice | None = None, now: float | None = None) -> Bound:
        """Everything about a worker: itself, the node it is on, its pool, its graph's pools, the policy's metrics, the notice at hand."""
        parts: dict[str, Mapping[str, Value]] = {
            "worker": self.of_worker(worker),
            "pool": self.of_pool(worker),
            "pools": self.of_graph(worker.graph),
            "metrics": self.metrics(policy, worker),
            "now": self._now,
        }
        if (node := self.node_of(worker)) is not None:
            parts["node"] = self.of_node(node)
        if notice is not None:
            parts["notice"] = _notice(notice, self._world.at if now is None else now)
        return Bound(parts)

    def at(self, scope: Scope, node: Node) -> Bound:
        """The same scope with `node` bound to a candidate destination."""
        return (scope if isinstance(scope, Bound) else _parted(scope)).having("node", self.of_node(node))

    def node_of(self, worker: Worker) -> Node | None:
        """The node that the worker is on, if it is known."""
        return self._world.nodes.get(worker.node) if worker.node else None

    def of_worker(self, worker: Worker) -> Mapping[str, Value]:
        """`worker`, its metrics included."""
        return _Own(self._world, worker, self._world.snapshot.samples.workers.get(worker.id, _NOTHING))

    def of_workers(self, workers: Sequence[Worker], name: str) -> Sequence[Value | None]:
        """One variable of `worker` for many, as `of_worker` has it."""
        if (attribute := _AS_IT_IS.get(name)) is not None:
            return list(map(attribute, workers))
        if (read := _WORKER.get(name)) is not None:
            return [read(self._world, w) for w in workers]
        taken, field = self._world.snapshot.samples.workers, name.removeprefix("worker.")
        if isinstance(taken, SampleTable):
            return taken.column(field, [w.id for w in workers])
        return _fields(taken, workers, field)

    def of_node(self, node: Node) -> dict[str, Value]:
        """`node`."""
        found = self._nodes.get(node.id)
        if found is None:
            found = self._nodes[node.id] = {name: read(self._world, node) for name, read in _NODE.items()}
        return found

    def of_nodes(self, nodes: Sequence[Node], name: str) -> Sequence[Value | None]:
        """One variable of `node` for many, as `of_node` has it."""
        read = _NODE.get(name)
        return [read(self._world, n) for n in nodes] if read is not None else [None]

    def of_pool(self, worker: Worker) -> Pools:
        """`pool`: the worker's own."""
        key = (worker.graph, worker.role)
        found = self._own.get(key)
        if found is None:
            found = self._own[key] = Pools({"pool": self._pool(*key)})
        return found

    def of_graph(self, graph: str) -> Pools:
        """`pools`."""
        found = self._pools.get(graph)
        if found is None:
            found = self._pools[graph] = Pools({f"pools.{role}": self._pool(graph, role) for role in ("prefill", "decode")})
        return found

    def _pool(self, graph: str, role: str) -> Pool:
        found = self._figures.get((graph, role))
        if found is None:
            found = self._figures[graph, role] = Pool(self._world, graph, role)
        return found

    def metrics(self, policy: Policy, worker: Worker | None) -> dict[str, Value]:
        """`metrics`: the worker's own values, or, without a worker, those that are one for all."""
        declared = policy.metrics
        if not declared:
            return _NO_METRICS
        given = self._world.snapshot.samples.policies.get(policy.name, {})
        return {f"metrics.{name}": self._metric(d, given.get(name, {}), worker) for name, d in declared.items()}

    def metrics_of(self, policy: Policy, workers: Sequence[Worker], name: str) -> Sequence[Value | None]:
        """One variable of `metrics` for many workers, as `metrics` has it."""
        own = name.removeprefix("metrics.")
        given = self._world.snapshot.samples.policies.get(policy.name, {}).get(own)
        if own not in policy.metrics or not isinstance(given, SampleMap):
            return [self.metrics(policy, w).get(name) for w in workers]
        declared, held = policy.metrics[own], given.column([w.id for w in workers])
        known = held.known & (self._world.at - held.times <= float(declared.max_age))
        return SampleColumn(held.values, held.times, known, lambda row: self._metric(declared, given, workers[row]))

    def _metric(self, declared: MetricInput, given: Mapping[str, Sample], worker: Worker | None) -> Sample:
        sample = given.get(worker.id) if worker else None
        if sample is None:
            sample = given.get("")
        if sample is None:
            sample = Missing(reason="a series per worker, and none for all" if given else "not collected", query=declared.query)
        if isinstance(sample, Known) and self._world.at - sample.at > declared.max_age:
            sample = Stale(value=sample.value, age=self._world.at - sample.at, max_age=declared.max_age, query=sample.query)
        # `onMissing` was applied where the sample was taken, to an empty answer only: a failed query or an old value is never a number
        return sample


def _notice(notice: Notice, now: float) -> dict[str, Value]:
    lead: Value = notice.deadline - now if notice.deadline is not None else Missing(reason="the notice has no deadline")
    return {"notice.kind": notice.kind.value, "notice.lead": lead}


_AS_IT_IS: Final[dict[str, Callable[[Worker], Value]]] = {
    f"worker.{name}": attrgetter(name) for name in ("id", "role", "graph", "engine", "labels")
}


UNCHANGING: Final = frozenset(_AS_IT_IS)
"""Variables that depend on the worker as the fleet has it, and on nothing else."""
UNCHANGING_OF_NODES: Final = frozenset({"node.id", "node.labels", "node.gpuModel"})
"""The same of the node."""


def _attribute(read: Callable[[Worker], Value]) -> Callable[[World, Worker], Value]:
    return lambda _, worker: read(worker)


_WORKER: Final[dict[str, Callable[[World, Worker], Value]]] = {
    **{name: _attribute(read) for name, read in _AS_IT_IS.items()},
    "worker.node": lambda _, w: (w.node or "") if w.slot else "",
    "worker.slot": lambda _, w: w.slot or "",
    "worker.state": lambda _, w: w.state.value,
    "worker.incarnation": lambda _, w: int(w.incarnation),
    "worker.imageAge": lambda world, w: _image_age(world, w),
    "worker.images": lambda world, w: len(world.trusted(w.id)),
}


_NODE: Final[dict[str, Callable[[World, Node], Value]]] = {
    "node.id": lambda _, n: n.id,
    "node.labels": lambda _, n: n.labels,
    "node.gpuModel": lambda _, n: _model(n),
    "node.freeSlots": lambda world, n: len(world.vacant.get(n.id, ())),
    "node.noticed": lambda world, n: n.id in world.going,
}


def _or_missing(given: Mapping[str, Sample], field: str) -> Value:
    sample = given.get(field)
    return Missing(reason="not collected") if sample is None else sample


def _image_age(world: World, worker: Worker) -> Value:
    images = world.trusted(worker.id)
    return world.at - max(i.taken_at for i in images) if images else Missing(reason="it has no image")


def _model(node: Node) -> str:
    """The GPU model of its first slot that has any."""
    models = {s.gpu_model for s in node.slots}
    return models.pop() if len(models) == 1 else next((s.gpu_model for s in in_order(node.slots) if s.gpu_model), "")


def _parted(scope: Scope) -> Bound:
    parts: dict[str, dict[str, Value]] = {}
    for name, value in scope.items():
        parts.setdefault(name.partition(".")[0], {})[name] = value
    return Bound(dict(parts))


def _fields(taken: Mapping[str, Mapping[str, Sample]], workers: Sequence[Worker], field: str) -> list[Sample | None]:
    """Each worker's sample; None: not collected. Nearly always all are there, and then they needn't be asked whether they are."""
    try:
        return list(map(itemgetter(field), map(taken.__getitem__, map(_ID, workers))))
    except KeyError:
        return [taken.get(w.id, _NOTHING).get(field) for w in workers]


def _figure(world: World, running: Sequence[Worker], field: str, unit: str) -> Sample:
    taken = world.snapshot.samples.workers
    if not running and field in _MEANS:
        return Missing(reason="no worker of the pool is running")
    if isinstance(taken, SampleTable):
        held = taken.column(field, [w.id for w in running])
        if held.known.all():
            return _summed(held.values.tolist(), field, unit, at=float(held.times.min()) if running else world.at)
    samples = _fields(taken, running, field)
    if not {Known}.issuperset(map(type, samples)):
        both = zip(running, samples, strict=True)
        unknown = [f"{w.id}: {say(s) if s else 'not collected'}" for w, s in both if not isinstance(s, Known)]
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        return Missing(reason=f"{', '.join(unknown[:_NAMED])}{more}")
    values, times = list(map(_VALUE, samples)), list(map(_AT, samples))
    return _summed(values, field, unit, at=min(times, default=world.at))


def _summed(values: Sequence[float], field: str, unit: str, *, at: float) -> Sample:
    """The figure of a pool of whose running workers all values are known."""
    mean, total = field in _MEANS, sum(values)
    if not isfinite(total):
        return Missing(reason=f"the sum of {field} over {len(values)} running workers is not a finite number")
    return Known(
        value=total / len(values) if mean else total,
        unit=unit,
        at=at,
        query=f"{'mean' if mean else 'sum'} of {field} over {len(values)} running worker{'' if len(values) == 1 else 's'}",
    )
