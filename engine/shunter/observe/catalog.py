"""Which series each catalog field (`worker.waiting`, `worker.kvUsage`, ...) is read from, by serving engine.

For each field, the first of these that has a series for the worker counts:

1. `shunter_worker_<field>`, by whoever knows better than the engine: a recording rule (say, a sum over data-parallel ranks) or an exporter.
2. The engine's own gauge.
3. Dynamo's own gauge, for what the engine doesn't tell.

No engine tells how many conversations it holds, so `sessions` is `shunter_worker_sessions` alone. SGLang tells its tokens of context; vLLM
and TensorRT-LLM tell the share of blocks in use but no count, so with them `kvTokens` is `shunter_worker_kv_tokens` alone.

Every series needs the label that names its worker (`worker` unless set otherwise): a target label, from service discovery or relabelling.

How many workers the Dynamo planner wants in a pool (`pools.<role>.desired`) is read from the first of these that has a series for it:

1. `shunter_pool_desired{graph, role}`, by a recording rule or an exporter of one's own.
2. The planner's `dynamo_planner_predicted_num_prefill_replicas` and `..._decode_replicas`, which it has with `PLANNER_PROMETHEUS_PORT` set.
   They have no labels, so the target needs one that names the graph: `dynamo_namespace` unless set otherwise.
"""

import math
import re
from collections.abc import Set
from typing import Final

import msgspec

from shunter.model.errors import Problem, Rejected
from shunter.model.snapshot import Role
from shunter.model.vocabulary import POOL_METRICS, WORKER_METRICS

ENGINES: Final = ("vllm", "sglang", "trtllm")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """One metric name. `engine` is the serving engine that exposes it, empty for any; a series counts only if it has all of `labels`."""

    name: str
    engine: str = ""
    labels: dict[str, str] = {}


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One catalog field: its unit, and where it is read, the preferred first."""

    name: str
    unit: str
    gauges: tuple[Gauge, ...]

    def gauges_for(self, engine: str) -> tuple[Gauge, ...]:
        """Where a worker of this engine has it. An engine that the catalog doesn't know may expose anybody's names."""
        return tuple(g for g in self.gauges if not g.engine or g.engine == engine or engine not in ENGINES)


class PoolGauge(msgspec.Struct, frozen=True, kw_only=True):
    """One metric name of pools. `role` is the role that it is about, None where the label `role` says it; `graph` is the label that names
    the graph, empty for the catalog's own. `unset_at_zero`: 0 means that there is no value yet.
    """

    name: str
    role: Role | None = None
    graph: str = ""
    unset_at_zero: bool = False


class PoolField(msgspec.Struct, frozen=True, kw_only=True):
    """One catalog field of pools: its unit, and where it is read, the preferred first."""

    name: str
    unit: str
    gauges: tuple[PoolGauge, ...]


def _own(name: str) -> Gauge:
    return Gauge(name=f"shunter_worker_{name}")


_FIELDS: Final[dict[str, tuple[Gauge, ...]]] = {
    "running": (
        _own("running"),
        Gauge(name="vllm:num_requests_running", engine="vllm"),
        Gauge(name="sglang:num_running_reqs", engine="sglang"),
        Gauge(name="trtllm_num_requests_running", engine="trtllm"),
        Gauge(name="trtllm:num_requests_running", engine="trtllm"),
        # Counts what waits at the worker too; better than nothing where the engine tells neither.
        Gauge(name="dynamo_component_inflight_requests", labels={"dynamo_endpoint": "generate"}),
    ),
    "waiting": (
        _own("waiting"),
        Gauge(name="vllm:num_requests_waiting", engine="vllm"),
        Gauge(name="sglang:num_queue_reqs", engine="sglang"),
        Gauge(name="trtllm_num_requests_waiting", engine="trtllm"),
        Gauge(name="trtllm:num_requests_waiting", engine="trtllm"),
    ),
    "kvUsage": (
        _own("kv_usage"),
        Gauge(name="vllm:kv_cache_usage_perc", engine="vllm"),
        Gauge(name="vllm:gpu_cache_usage_perc", engine="vllm"),  # its name before vLLM 0.10
        Gauge(name="sglang:token_usage", engine="sglang"),
        Gauge(name="trtllm_kv_cache_utilization", engine="trtllm"),
        Gauge(name="trtllm:kv_cache_usage_perc", engine="trtllm"),
        Gauge(name="dynamo_component_gpu_cache_usage_percent"),  # 0 to 1, in spite of its name
    ),
    "sessions": (_own("sessions"),),
    "kvTokens": (_own("kv_tokens"), Gauge(name="sglang:kv_used_tokens", engine="sglang")),
}
_POOL_FIELDS: Final[dict[str, tuple[PoolGauge, ...]]] = {
    "desired": (
        PoolGauge(name="shunter_pool_desired", graph="graph"),
        PoolGauge(name="dynamo_planner_predicted_num_prefill_replicas", role="prefill", unset_at_zero=True),
        PoolGauge(name="dynamo_planner_predicted_num_decode_replicas", role="decode", unset_at_zero=True),
    )
}


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """All fields. `label` names the worker on every series, `graph` the Dynamo graph on the planner's; `max_age` is how old a sample may
    be, in seconds.
    """

    fields: tuple[Field, ...] = tuple(Field(name=v.name, unit=v.unit, gauges=_FIELDS[v.name]) for v in WORKER_METRICS)
    pools: tuple[PoolField, ...] = tuple(PoolField(name=v.name, unit=v.unit, gauges=_POOL_FIELDS[v.name]) for v in POOL_METRICS)
    label: str = "worker"
    graph: str = "dynamo_namespace"
    max_age: float = 30.0

    def __post_init__(self) -> None:
        """Raises Rejected SH307 for names that PromQL can't hold: nothing of them is ever quoted into a query unchecked."""
        names = [*(g.name for f in self.fields for g in f.gauges), *(g.name for f in self.pools for g in f.gauges)]
        given = (("label", self.label, _LABEL), ("label", self.graph, _LABEL), *(("metric name", name, _NAME) for name in names))
        for what, name, rule in given:
            if not rule.fullmatch(name):
                raise Rejected(Problem(code="SH307", what=f"{name!r} can't be a {what}", remedy="Use letters, digits and underscores"))

    def query(self, field: Field, engines: Set[str]) -> str:
        """One range query for a field over all workers of these engines, far enough back to tell old from absent.

        A range selector brings each sample's own time; an instant query would only tell the time of evaluation.
        """
        names = {g.name for engine in engines for g in field.gauges_for(engine)}
        return f'{{__name__={_matcher(names)},{self.label}!=""}}[{window(self.max_age)}s]'

    def pool_query(self, field: PoolField) -> str:
        """The same for a field over all pools."""
        return f"{{__name__={_matcher({g.name for g in field.gauges})}}}[{window(self.max_age)}s]"


def _matcher(names: Set[str]) -> str:
    """Prometheus takes an alternation of plain names as a set of names, without matching a regular expression against all it has."""
    ordered = sorted(names)
    return f'"{ordered[0]}"' if len(ordered) == 1 else f'~"{"|".join(ordered)}"'


def window(max_age: float) -> int:
    """Seconds that a range selector reaches back to tell a stale sample from an absent one."""
    return max(1, math.ceil(max_age * 1.5))
