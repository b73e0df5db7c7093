"""The variables that expressions can use: one table, read by the checker, by the evaluator's scopes and by the reference in the docs."""

import enum
from typing import Final

import msgspec


class Kind(enum.StrEnum):
    """Types of variables in the policy language."""

    STRING = "string"
    INT = "int"
    DOUBLE = "double"
    BOOL = "bool"
    LABELS = "labels"
    """A map of strings to strings: `has(x.key)` and `x["key"]` work on it, and only on it."""


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """One name in the policy language. `metric` is True when its value comes from Prometheus and so can be missing or stale."""

    name: str
    kind: Kind
    unit: str
    doc: str
    metric: bool = False


WORKER_METRICS: Final = (
    Variable(name="running", kind=Kind.DOUBLE, unit="requests", doc="requests or streams being served", metric=True),
    Variable(name="waiting", kind=Kind.DOUBLE, unit="requests", doc="requests queued at the worker", metric=True),
    Variable(name="kvUsage", kind=Kind.DOUBLE, unit="1", doc="share of the KV cache in use, 0 to 1", metric=True),
    Variable(name="sessions", kind=Kind.DOUBLE, unit="sessions", doc="conversations whose KV cache the worker holds", metric=True),
    Variable(name="kvTokens", kind=Kind.DOUBLE, unit="tokens", doc="tokens of context in the worker's KV cache", metric=True),
)
"""Catalog fields: each is `worker.<name>`, and its pool's figure is `pool.<name>` and `pools.<role>.<name>`."""

POOL_METRICS: Final = (
    Variable(
        name="desired",
        kind=Kind.DOUBLE,
        unit="workers",
        doc="workers that the Dynamo planner, or whoever scales its graph, wants; unknown where nobody does",
        metric=True,
    ),
)
"""Catalog fields of a pool itself: each is `pool.<name>` and `pools.<role>.<name>`."""

_WORKER: Final = (
    Variable(name="worker.id", kind=Kind.STRING, unit="", doc="stable id of the worker"),
    Variable(name="worker.role", kind=Kind.STRING, unit="", doc='"prefill" or "decode"'),
    Variable(name="worker.graph", kind=Kind.STRING, unit="", doc="the Dynamo graph (or local fleet) that it serves in"),
    Variable(name="worker.engine", kind=Kind.STRING, unit="", doc='"vllm", "sglang", "trtllm" or another engine\'s name'),
    Variable(name="worker.node", kind=Kind.STRING, unit="", doc="node that it runs on; empty while parked or lost"),
    Variable(name="worker.slot", kind=Kind.STRING, unit="", doc="slot that it occupies; empty while parked or lost"),
    Variable(name="worker.state", kind=Kind.STRING, unit="", doc='"running", "fenced", "frozen", "parked" or "lost"'),
    Variable(name="worker.incarnation", kind=Kind.INT, unit="", doc="number of restores since its native start"),
    Variable(name="worker.labels", kind=Kind.LABELS, unit="", doc="its labels"),
    Variable(
        name="worker.imageAge",
        kind=Kind.DOUBLE,
        unit="seconds",
        doc="age of its newest image that is to be trusted; unknown when it has none",
    ),
    Variable(
        name="worker.images", kind=Kind.INT, unit="images", doc="number of its whole images that are to be trusted, all nodes together"
    ),
)
_NODE: Final = (
    Variable(name="node.id", kind=Kind.STRING, unit="", doc="id of the node: of the worker's, or of the candidate destination"),
    Variable(name="node.labels", kind=Kind.LABELS, unit="", doc="its labels"),
    Variable(name="node.gpuModel", kind=Kind.STRING, unit="", doc="GPU model of its slots; empty without GPUs"),
    Variable(name="node.freeSlots", kind=Kind.INT, unit="slots", doc="its slots that no worker occupies or is on its way to"),
    Variable(name="node.noticed", kind=Kind.BOOL, unit="", doc="a notice is open for it"),
)
_NOTICE: Final = (
    Variable(name="notice.kind", kind=Kind.STRING, unit="", doc="kind of the notice at hand"),
    Variable(name="notice.lead", kind=Kind.DOUBLE, unit="seconds", doc="time left until its deadline; unknown without one"),
)


def _pool(prefix: str) -> tuple[Variable, ...]:
    mean = {"kvUsage"}
    figures = tuple(
        Variable(
            name=f"{prefix}.{v.name}",
            kind=v.kind,
            unit=v.unit,
            doc=f"{'mean' if v.name in mean else 'sum'} over its running workers of: {v.doc}; unknown if it is for any of them",
            metric=True,
        )
        for v in WORKER_METRICS
    )
    return (
        Variable(name=f"{prefix}.workers", kind=Kind.INT, unit="workers", doc="its workers that are running or fenced"),
        Variable(name=f"{prefix}.parked", kind=Kind.INT, unit="workers", doc="its workers that are parked or lost and have an image"),
        *figures,
        *(Variable(name=f"{prefix}.{v.name}", kind=v.kind, unit=v.unit, doc=v.doc, metric=True) for v in POOL_METRICS),
    )


VARIABLES: Final[dict[str, Variable]] = {
    v.name: v
    for v in (
        *_WORKER,
        *(Variable(name=f"worker.{v.name}", kind=v.kind, unit=v.unit, doc=v.doc, metric=True) for v in WORKER_METRICS),
        *_NODE,
        *_pool("pool"),
        *_pool("pools.prefill"),
        *_pool("pools.decode"),
        *_NOTICE,
        Variable(name="now", kind=Kind.DOUBLE, unit="seconds", doc="the time of the snapshot, seconds since the epoch, UTC"),
    )
}
"""All variables but `metrics.<name>`, which a policy declares itself (always DOUBLE)."""

CHANGED_BY_A_MOVE: Final = ("node.", "worker.node", "worker.slot", "worker.incarnation")
"""How the names of what is different of a worker after a move begin."""
