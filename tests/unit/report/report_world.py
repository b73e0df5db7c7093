"""One evaluation, fleet and set of records with something of everything that reports must show."""

from typing import Any

from shunter.model.errors import Problem
from shunter.model.finding import Evidence, Finding, Input, Verdict
from shunter.model.ids import Commit, Digest, Epoch, ImageId, NodeId, NoticeId, OperationId, PolicyName, SlotId, WorkerId, slot_id
from shunter.model.operation import Measured, OperationRecord, Outcome, Status, Step
from shunter.model.plan import Estimate, Evaluation, OperationKind, Plan, PlannedOperation, Preconditions
from shunter.model.sample import Known, Missing, Stale
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Slot, Snapshot, Worker, WorkerState

NOW = 1_800_000_000.0
GB = 10**9


def node(name: str, *workers: str | None, **more: Any) -> Node:
    slots = tuple(Slot(id=slot_id(NodeId(name), i), worker=WorkerId(w) if w else None) for i, w in enumerate(workers))
    return Node(id=NodeId(name), slots=slots, seen_at=NOW - 1, **more)


def worker(name: str, slot: str | None, **more: Any) -> Worker:
    fields: dict[str, Any] = {"state": WorkerState.RUNNING if slot else WorkerState.PARKED, "memory": 10 * GB if slot else None, **more}
    where = NodeId(slot.split("/")[0]) if slot else None
    at = SlotId(slot) if slot else None
    return Worker(id=WorkerId(name), role=name.split("-")[0], graph="tiny", engine="vllm", node=where, slot=at, incarnation=1, **fields)  # type: ignore[arg-type]


def operation(kind: OperationKind, of: str, **more: Any) -> PlannedOperation:
    fields: dict[str, Any] = {"lane": "voluntary", "reason": "it is time", "policy": PolicyName("images"), **more}
    return PlannedOperation(
        id=OperationId(f"{kind.value}-{of}"),
        kind=kind,
        worker=WorkerId(of),
        expect=Preconditions(incarnation=1, at=more.get("from_slot")),
        **fields,
    )


MOVE = operation(
    OperationKind.MOVE,
    "decode-0",
    lane="involuntary",
    policy=PolicyName("save"),
    reason="node-a is preempted in 120 s; decode-0 holds 3 sessions (5,120 tokens)",
    from_slot=SlotId("node-a/0"),
    to_slot=SlotId("node-b/1"),
    deadline=NOW + 120,
    attempt=1,
    estimate=Estimate(bytes=10 * GB, stopped=20.0, total=31.5, basis="planning profile; as the agent measured it"),
)
LATE = operation(
    OperationKind.PARK,
    "decode-1",
    lane="involuntary",
    policy=PolicyName("save"),
    reason="it can't be moved: no slot",
    from_slot=SlotId("node-a/1"),
    copies=(NodeId("node-c"),),
    deadline=NOW + 120,
    after=(MOVE.id,),
    estimate=Estimate(bytes=10 * GB, stopped=90.0, total=130.0),
)
CHECKPOINT = operation(OperationKind.CHECKPOINT, "decode-2", copies=(NodeId("node-b"), NodeId("node-c")))
SHOWN = operation(
    OperationKind.RESTORE, "prefill-0", image=ImageId("img-1"), to_slot=SlotId("node-c/0"), preview=True, policy=PolicyName("trial")
)

BLIND = Problem(
    code="SH645", what="aws is blind since 2027-01-15T07:59:00Z: the metadata service is away", remedy="Check it", subject="aws"
)
FLEET = Fleet(
    nodes=(
        node("node-a", "decode-0", "decode-1", sources=("aws",), problems=(BLIND,)),
        node("node-b", "decode-2", None, reachable=False),
        node("node-c", None, runtime="pretend"),
    ),
    workers=(
        worker("decode-0", "node-a/0"),
        worker("decode-1", "node-a/1"),
        worker("decode-2", "node-b/0"),
        worker("prefill-0", None),
        worker("prefill-1", None, state=WorkerState.LOST),
    ),
    images=(
        Image(
            id=ImageId("img-1"), worker=WorkerId("prefill-0"), incarnation=1, taken_at=NOW - 90, bytes=4 * GB, nodes=(NodeId("node-c"),),
            role="prefill", graph="tiny", engine="vllm",
        ),
    ),
)  # fmt: skip
NOTICES = (Notice(id=NoticeId("n1"), kind=NoticeKind.PREEMPTION, node=NodeId("node-a"), seen_at=NOW - 2, deadline=NOW + 120),)
SNAPSHOT = Snapshot(at=NOW, fleet=FLEET, notices=NOTICES)

KNOWN = Known(value=0.93, unit="1", at=NOW, query="q")
FINDINGS = (
    Finding(policy=PolicyName("save"), subject="decode-0", verdict=Verdict.ACT, lane="involuntary", reason="it moves to node-b/1"),
    Finding(
        policy=PolicyName("relieve"),
        subject="tiny",
        verdict=Verdict.HOLD,
        lane="voluntary",
        reason="prefill queues, but the last shift was 40 s ago: 260 s of the cooldown are left",
        gate="cooldown",
        since=NOW - 40,
    ),
    Finding(
        policy=PolicyName("images"),
        subject="decode-1",
        verdict=Verdict.INCONCLUSIVE,
        lane="voluntary",
        reason="worker.kvUsage: stale",
        gate="when",
        evidence=(
            Evidence(
                gate="when",
                result=None,
                expression="worker.kvUsage < 0.5 && worker.waiting == 0.0 && worker.sessions > 0",
                inputs=(
                    Input(name="worker.kvUsage", sample=Stale(value=0.9, age=45, max_age=30, query="q")),
                    Input(name="worker.sessions", sample=KNOWN),
                    Input(name="worker.waiting", sample=Missing(reason="NaN")),
                ),
            ),
        ),
    ),
    Finding(policy=PolicyName("images"), subject="decode-2", verdict=Verdict.PASS, lane="voluntary", reason="recent enough"),
)


def evaluation(*operations: PlannedOperation, findings: tuple[Finding, ...] = FINDINGS) -> Evaluation:
    plan = Plan(
        at=NOW, commit=Commit("3f2a9c1d4e5b" + "0" * 28), policy_set=Digest("sha256:p"), snapshot=Digest("sha256:s"), operations=operations
    )
    return Evaluation(findings=findings, plan=plan)


def record(planned: PlannedOperation, *steps: tuple[Step, float], outcome: Outcome | None = None) -> OperationRecord:
    return OperationRecord(
        planned=planned, plan=Digest("sha256:x"), epoch=Epoch(3), created_at=NOW, step=steps[-1][0] if steps else Step.INTENDED,
        history=tuple((s, NOW + t) for s, t in steps), outcome=outcome,
    )  # fmt: skip


DONE = record(
    MOVE,
    (Step.FROZEN, 1.0),
    (Step.UNFENCED, 3.25),
    outcome=Outcome(status=Status.SUCCEEDED, at=NOW + 3.25, measured=Measured(stopped=1.25, bytes=3 * GB)),
)
FAILED = record(
    LATE, (Step.FENCED, 0.5), outcome=Outcome(status=Status.ROLLED_BACK, at=NOW + 2, code="SH711", reason="the dump was refused")
)  # fmt: skip
EVERYTHING = evaluation(MOVE, LATE, CHECKPOINT, SHOWN)
