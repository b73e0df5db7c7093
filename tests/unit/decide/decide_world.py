"""Small fleets, policies and rules to decide on. The rules are Python functions, so that no test depends on the policy language."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from shunter.decide.evaluate import evaluate
from shunter.decide.profile import Profile
from shunter.model.errors import Place
from shunter.model.expression import Expression, Scope, Undecided
from shunter.model.finding import Finding
from shunter.model.ids import Commit, Digest, Epoch, ImageId, NodeId, NoticeId, OperationId, SlotId, WorkerId, slot_id
from shunter.model.operation import EngineState, Measured, OperationRecord, Outcome, Status
from shunter.model.plan import Evaluation, OperationKind, PlannedOperation, Preconditions
from shunter.model.policy import (
    BudgetSpec,
    CheckpointPolicy,
    CheckpointSpec,
    Destination,
    DisruptionBudget,
    Document,
    FleetProfile,
    FleetProfileSpec,
    Metadata,
    Move,
    Policy,
    PolicySet,
    PreemptionPolicy,
    PreemptionSpec,
    ReassignmentPolicy,
    ReassignmentSpec,
    RebalancePolicy,
    RebalanceSpec,
    WorkerSelector,
)
from shunter.model.sample import Known, Missing, Sample, Stale
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.model.units import Duration

NOW = 1_000_000.0
GB = 10**9
FAST = Profile(
    fixed_dump_s=0, fixed_restore_s=0, gpu_restore_floor_s=0, dump_bytes_per_s=1e9, restore_bytes_per_s=1e9, network_bytes_per_s=1e9
)
"""1 GB a second everywhere and nothing else, so that seconds can be read off the sizes."""


class PyRules:
    """Python expressions over the scope: `v("worker.sessions") < 4`. Reading what has no value makes the answer Undecided."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def _run(self, expression: Expression, scope: Scope) -> Any:
        lacking: list[tuple[str, str]] = []

        def value(name: str) -> Any:
            found = scope.get(name)
            if isinstance(found, Known):
                return found.value
            if found is None or isinstance(found, Missing | Stale):
                lacking.append((name, "no value"))
                return 0.0
            return found

        self.asked.append(expression.text)
        try:
            result = eval(expression.text, {"__builtins__": {}}, {"v": value})
        except ZeroDivisionError as error:
            return Undecided(error=str(error))
        return Undecided(inputs=tuple(lacking)) if lacking else result

    def test(self, expression: Expression, scope: Scope) -> bool | Undecided:
        return self._run(expression, scope)

    def measure(self, expression: Expression, scope: Scope) -> float | Undecided:
        result = self._run(expression, scope)
        return result if isinstance(result, Undecided) else float(result)

    def inputs(self, expression: Expression) -> tuple[str, ...]:
        return tuple(sorted({part.split('"')[1] for part in expression.text.split("v(")[1:]}))


def ex(text: str) -> Expression:
    return Expression(text=text)


def node(name: str, slots: Sequence[str | None] = (None,), **more: Any) -> Node:
    """A node whose slots hold the named workers."""
    fields = {k: more.pop(k) for k in ("roles", "gpu_model", "gpus", "reserved_by", "gpu_memory", "domains") if k in more}
    made = tuple(Slot(id=slot_id(NodeId(name), i), worker=WorkerId(w) if w else None, **fields) for i, w in enumerate(slots))
    return Node(id=NodeId(name), slots=made, **more)


def worker(name: str, at: str | None = None, role: str | None = None, **more: Any) -> Worker:
    """A worker at `node/0`; its role is the first part of its name."""
    defaults: dict[str, Any] = {
        "graph": "tiny",
        "engine": "vllm",
        "state": WorkerState.RUNNING if at else WorkerState.PARKED,
        "incarnation": 0,
        "memory": 10 * GB,
    }
    where = NodeId(at.split("/")[0]) if at else None
    return Worker(id=WorkerId(name), role=role or name.split("-")[0], node=where, slot=SlotId(at) if at else None, **{**defaults, **more})


def image(name: str, of: Worker, *nodes: str, at: float = NOW - 60, **more: Any) -> Image:
    fields: dict[str, Any] = {"incarnation": of.incarnation, "bytes": 10 * GB, **more}
    return Image(
        id=ImageId(name), worker=of.id, taken_at=at, nodes=tuple(NodeId(n) for n in nodes), role=of.role, graph=of.graph, engine=of.engine,
        **fields,
    )  # fmt: skip


def notice(on: str, lead: float | None = 120.0, kind: NoticeKind = NoticeKind.PREEMPTION, **more: Any) -> Notice:
    return Notice(
        id=NoticeId(more.pop("id", f"n-{on}")), kind=kind, node=NodeId(on), seen_at=NOW - 2, deadline=None if lead is None else NOW + lead,
        **more,
    )  # fmt: skip


def known(value: float, at: float = NOW) -> Known:
    return Known(value=value, unit="1", at=at, query="q")


def snap(
    nodes: Sequence[Node],
    workers: Sequence[Worker] = (),
    images: Sequence[Image] = (),
    notices: Sequence[Notice] = (),
    samples: Mapping[str, Mapping[str, float | Sample]] | None = None,
    policies: dict[str, dict[str, dict[str, Sample]]] | None = None,
    at: float = NOW,
    pools: dict[str, dict[str, Sample]] | None = None,
) -> Snapshot:
    given = {w: {f: known(s, at) if isinstance(s, int | float) else s for f, s in fields.items()} for w, fields in (samples or {}).items()}
    fleet = Fleet(nodes=tuple(nodes), workers=tuple(workers), images=tuple(images))
    return Snapshot(at=at, fleet=fleet, samples=Samples(workers=given, policies=policies or {}, pools=pools or {}), notices=tuple(notices))


def policy(document: Document) -> Policy:
    return Policy(document=document, place=Place(file="p.yaml", line=1, column=1), blob="b", commit=Commit("c"))


def preemption(name: str = "save", **more: Any) -> Policy:
    fields: dict[str, Any] = {
        "workers": WorkerSelector(all=True),
        "notices": (NoticeKind.PREEMPTION, NoticeKind.MAINTENANCE, NoticeKind.GONE),
        **more,
    }
    return policy(PreemptionPolicy(metadata=Metadata(name=name), spec=PreemptionSpec(**fields)))


def moving(**more: Any) -> Move:
    to = Destination(where=more.pop("where", None), prefer=more.pop("prefer", None))
    return Move(to=to, **more)


def reassignment(name: str = "relieve", **more: Any) -> Policy:
    fields: dict[str, Any] = {
        "workers": WorkerSelector(all=True),
        "from_": "decode",
        "to": "prefill",
        "when": ex('v("pools.prefill.waiting") > 30'),
        "for_": Duration(0),
        **more,
    }
    return policy(ReassignmentPolicy(metadata=Metadata(name=name), spec=ReassignmentSpec(**fields)))


def checkpoints(name: str = "images", **more: Any) -> Policy:
    fields: dict[str, Any] = {"workers": WorkerSelector(all=True), "every": Duration(30), **more}
    return policy(CheckpointPolicy(metadata=Metadata(name=name), spec=CheckpointSpec(**fields)))


def rebalancing(name: str = "tidy", **more: Any) -> Policy:
    fields: dict[str, Any] = {"workers": WorkerSelector(all=True), "for_": Duration(0), **more}
    return policy(RebalancePolicy(metadata=Metadata(name=name), spec=RebalanceSpec(**fields)))


def budget(name: str = "calm", **more: Any) -> Policy:
    fields: dict[str, Any] = {"workers": WorkerSelector(all=True), **more}
    return policy(DisruptionBudget(metadata=Metadata(name=name), spec=BudgetSpec(**fields)))


def figures(name: str = "site", **more: Any) -> Policy:
    return policy(FleetProfile(metadata=Metadata(name=name), spec=FleetProfileSpec(**more)))


def policy_set(*policies: Policy) -> PolicySet:
    return PolicySet(commit=Commit("c" * 40), digest=Digest("sha256:p"), policies=tuple(sorted(policies, key=lambda p: p.name)))


def decide(
    policies: Sequence[Policy],
    snapshots: Snapshot | Sequence[Snapshot],
    state: EngineState | None = None,
    now: float = NOW,
    profile: Profile = FAST,
) -> Evaluation:
    series = [snapshots] if isinstance(snapshots, Snapshot) else snapshots
    return evaluate(policy_set(*policies), series, state or EngineState(), now, PyRules(), profile)


def ops(evaluation: Evaluation, kind: OperationKind | None = None) -> dict[str, PlannedOperation]:
    """Operations by worker, of one kind or all."""
    return {o.worker: o for o in evaluation.plan.operations if kind is None or o.kind is kind}


def kinds(evaluation: Evaluation) -> list[tuple[str, str]]:
    return [(o.kind.value, o.worker) for o in evaluation.plan.operations]


def finding(evaluation: Evaluation, subject: str, of: str | None = None) -> Finding:
    (found,) = [f for f in evaluation.findings if f.subject == subject and of in (None, f.policy)]
    return found


def ended(
    operation: PlannedOperation, status: Status, *, code: str = "", at: float = NOW - 1, began: float | None = None, **more: Any
) -> OperationRecord:
    return OperationRecord(
        planned=operation,
        plan=Digest("sha256:x"),
        epoch=Epoch(1),
        created_at=at - 1 if began is None else began,
        outcome=Outcome(status=status, at=at, code=code, reason="it broke" if code else "", measured=Measured(**more)),
    )


def begun(operation: PlannedOperation, at: float = NOW - 1) -> OperationRecord:
    return OperationRecord(planned=operation, plan=Digest("sha256:x"), epoch=Epoch(1), created_at=at)


def operation(kind: OperationKind, of: str, **more: Any) -> PlannedOperation:
    fields: dict[str, Any] = {
        "lane": "voluntary",
        "policy": "other",
        "reason": "r",
        "expect": Preconditions(incarnation=0),
        "id": OperationId(f"{kind.value}-{of}"),
        **more,
    }
    return PlannedOperation(kind=kind, worker=WorkerId(of), **fields)


def again(snapshot: Snapshot, **changes: Any) -> Snapshot:
    return msgspec.structs.replace(snapshot, **changes)
