"""Scopes: the variables of `model.vocabulary`, bound to what a snapshot says."""

from collections.abc import Mapping, Sequence
from typing import Final

from shunter.decide.world import AWAY, STANDING, World
from shunter.model.expression import Scope, Value
from shunter.model.ids import pool_id
from shunter.model.policy import MetricInput, Policy
from shunter.model.sample import Known, Missing, Sample, Stale, say
from shunter.model.snapshot import Node, Notice, Worker, WorkerState
from shunter.model.vocabulary import WORKER_METRICS

_MEANS: Final = frozenset({"kvUsage"})
"""Shares can't be added up; everything else can."""
_NAMED = 3
"""At most so many members are named in a pool's reason for having no value."""


class Scopes:
    """Scopes over one world. Parts that many expressions share are made once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pools: dict[tuple[str, str], dict[str, Value]] = {}
        self._workers: dict[str, dict[str, Value]] = {}
        self._nodes: dict[str, dict[str, Value]] = {}

    def graph(self, policy: Policy, graph: str) -> Scope:
        """`pools`, `metrics` and `now`: what a condition on a graph reads."""
        return {
            **self._figures(graph, "prefill", "pools.prefill"),
            **self._figures(graph, "decode", "pools.decode"),
            **self._metrics(policy, None),
            "now": self._world.at,
        }

    def worker(self, policy: Policy, worker: Worker, *, notice: Notice | None = None, now: float | None = None) -> Scope:
        """Everything about a worker: itself, the node it is on, its pool, its graph's pools, the policy's metrics, the notice at hand."""
        node = self._world.nodes.get(worker.node) if worker.node else None
        return {
            **self.graph(policy, worker.graph),
            **self._figures(worker.graph, worker.role, "pool"),
            **self._worker(worker),
            **(self._node(node) if node else {}),
            **self._metrics(policy, worker),
            **(_notice(notice, self._world.at if now is None else now) if notice else {}),
        }

    def at(self, scope: Scope, node: Node) -> Scope:
        """The same scope with `node` bound to a candidate destination."""
        return {**scope, **self._node(node)}

    def _worker(self, worker: Worker) -> dict[str, Value]:
        if worker.id not in self._workers:
            images = self._world.images.get(worker.id, ())
            age: Value = self._world.at - max(i.taken_at for i in images) if images else Missing(reason="it has no image")
            self._workers[worker.id] = {
                "worker.id": worker.id,
                "worker.role": worker.role,
                "worker.graph": worker.graph,
                "worker.engine": worker.engine,
                "worker.node": (worker.node or "") if worker.slot else "",
                "worker.slot": worker.slot or "",
                "worker.state": worker.state.value,
                "worker.incarnation": int(worker.incarnation),
                "worker.labels": worker.labels,
                "worker.imageAge": age,
                "worker.images": len(images),
                **{f"worker.{name}": s for name, s in self._world.snapshot.samples.workers.get(worker.id, {}).items()},
            }
        return self._workers[worker.id]

    def _node(self, node: Node) -> dict[str, Value]:
        if node.id not in self._nodes:
            self._nodes[node.id] = {
                "node.id": node.id,
                "node.labels": node.labels,
                "node.gpuModel": next((s.gpu_model for s in sorted(node.slots, key=lambda s: s.id) if s.gpu_model), ""),
                "node.freeSlots": sum(s.worker is None and s.reserved_by is None for s in node.slots),
                "node.noticed": bool(self._world.notices.get(node.id)),
            }
        return self._nodes[node.id]

    def _figures(self, graph: str, role: str, prefix: str) -> dict[str, Value]:
        if (graph, role) not in self._pools:
            self._pools[graph, role] = self._pool(graph, role)
        return {f"{prefix}.{name}": value for name, value in self._pools[graph, role].items()}

    def _pool(self, graph: str, role: str) -> dict[str, Value]:
        members = self._world.pools.get(pool_id(graph, role), ())
        running = [w for w in members if w.state is WorkerState.RUNNING]
        return {
            "workers": sum(w.state in STANDING for w in members),
            "parked": sum(w.state in AWAY and bool(self._world.images.get(w.id)) for w in members),
            **{v.name: self._figure(running, v.name, v.unit) for v in WORKER_METRICS},
        }

    def _figure(self, running: Sequence[Worker], field: str, unit: str) -> Sample:
        taken = self._world.snapshot.samples.workers
        word = "mean" if field in _MEANS else "sum"
        if not running and field in _MEANS:
            return Missing(reason="no worker of the pool is running")
        known: list[Known] = []
        unknown: list[str] = []
        for worker in running:
            sample = taken.get(worker.id, {}).get(field)
            if isinstance(sample, Known):
                known.append(sample)
            else:
                unknown.append(f"{worker.id}: {say(sample) if sample else 'not collected'}")
        if unknown:
            more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
            return Missing(reason=f"{', '.join(unknown[:_NAMED])}{more}")
        total = sum(s.value for s in known)
        return Known(
            value=total / len(known) if field in _MEANS else total,
            unit=unit,
            at=min((s.at for s in known), default=self._world.at),
            query=f"{word} of {field} over {len(known)} running worker{'' if len(known) == 1 else 's'}",
        )

    def _metrics(self, policy: Policy, worker: Worker | None) -> dict[str, Value]:
        declared = policy.metrics
        given = self._world.snapshot.samples.policies.get(policy.name, {})
        return {f"metrics.{name}": self._metric(d, given.get(name, {}), worker) for name, d in declared.items()}

    def _metric(self, declared: MetricInput, given: Mapping[str, Sample], worker: Worker | None) -> Value:
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
