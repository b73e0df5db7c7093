from typing import Any

import pytest
from shunter.audit.decisions import Tracker, shape
from shunter.model.canon import encode
from shunter.model.finding import Evidence, Finding, Input, Verdict
from shunter.model.ids import Commit, Digest, Epoch, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.plan import Evaluation, OperationKind, Plan, PlannedOperation, Preconditions
from shunter.model.record import RecordKind
from shunter.model.sample import Missing
from shunter.model.snapshot import Fleet, Node, Slot, Worker, WorkerState


def finding(subject: str = "decode-0", verdict: Verdict = Verdict.HOLD, reason: str = "cooldown: 90 s left", **more: Any) -> Finding:
    fields: dict[str, Any] = {"policy": PolicyName("relieve"), "lane": "voluntary", "gate": "cooldown", **more}
    return Finding(subject=subject, verdict=verdict, reason=reason, **fields)


def operation(worker: str = "decode-0", to: str = "node-b/0", **more: Any) -> PlannedOperation:
    fields: dict[str, Any] = {"reason": "node-a is preempted in 118 s", "to_slot": SlotId(to), "from_slot": SlotId("node-a/0"), **more}
    return PlannedOperation(
        id=OperationId(f"move-{worker}"),
        kind=OperationKind.MOVE,
        worker=WorkerId(worker),
        lane="involuntary",
        policy=PolicyName("save"),
        expect=Preconditions(incarnation=0),
        **fields,
    )


def evaluation(*findings: Finding, operations: tuple[PlannedOperation, ...] = (), at: float = 1.0) -> Evaluation:
    plan = Plan(at=at, commit=Commit("c" * 40), policy_set=Digest("sha256:p"), snapshot=Digest(f"sha256:{at}"), operations=operations)
    return Evaluation(findings=findings, plan=plan)


def follow(*ticks: Evaluation, fleet: Fleet | None = None):
    """The records of each tick, a second apart from 1."""
    tracker, out = Tracker(), []
    for number, tick in enumerate(ticks, 1):
        tracker, records = tracker.observe(tick, float(number), Epoch(3), fleet)
        out.append(records)
    return out


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("node-a is preempted in 120 s", "node-a is preempted in 7 s"),
        ("decode-0 holds 3 sessions (5,120 tokens)", "decode-0 holds 1 session (96 tokens)"),
        ("it held for 1h30m of 2h", "it held for 45s of 2h"),
        ("again at 12:00:01 UTC", "again at 23:59:59 UTC"),
        ("kvUsage 93% is above 0.5", "kvUsage 1.25e-05 is above 12"),
        ("the image has 10GB", "the image has 1.5MiB"),
        ("it is at -3.5", "it is at 4"),
        ("left: 12.", "left: 3."),
    ],
)
def test_only_figures_differ(one: str, other: str):
    assert shape(one) == shape(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("others go to node-a/0", "others go to node-a/1"),
        ("decode-0 comes first", "decode-1 comes first"),
        ("llama-70b is full", "llama-8b is full"),
        ("10.0.0.11 is away", "10.0.0.12 is away"),
        ("it waits for move-3fa9", "it waits for move-17bc"),
        ("a7 is away", "a8 is away"),
        ("`when` is false", "`when` is undecided"),
    ],
)
def test_names_that_hold_digits_differ(one: str, other: str):
    assert shape(one) != shape(other)


def test_a_decision_is_recorded_once_while_only_its_figures_move():
    records = follow(*(evaluation(finding(reason=f"cooldown: {90 - n} s left"), at=float(n)) for n in range(5)))
    assert [len(r) for r in records] == [1, 0, 0, 0, 0]
    (first,) = records[0]
    assert (first.kind, first.subject, first.at, first.epoch, first.commit) == (RecordKind.FINDING, "decode-0", 1.0, 3, "c" * 40)
    assert (first.body["verdict"], first.body["gate"], first.body["previous"]) == ("hold", "cooldown", None)
    assert first.snapshot == "sha256:0.0"
    assert first.plan is not None


@pytest.mark.parametrize("change", [{"verdict": Verdict.ACT}, {"gate": "limits.from.min"}, {"reason": "the pool is at its least"}])
def test_a_change_says_what_was_before_since_when_and_how_often(change: dict[str, Any]):
    same = [evaluation(finding(reason=f"cooldown: {n} s left")) for n in (3, 2, 1)]
    *_, (record,) = follow(*same, evaluation(finding(**change)))
    assert record.at == 4.0
    assert record.body["previous"] == {"verdict": "hold", "gate": "cooldown", "reason": "cooldown: 1 s left", "since": 1.0, "ticks": 3}


def test_evidence_goes_along_with_its_samples_tagged():
    lacking = Input(name="worker.kvUsage", sample=Missing(reason="NaN", query="q"))
    broken = Input(name="metrics.x", value=float("nan"))
    proof = Evidence(gate="when", result=None, expression="worker.kvUsage > 0.5", inputs=(lacking, broken))
    ((record,),) = follow(evaluation(finding(verdict=Verdict.INCONCLUSIVE, evidence=(proof,))))
    (gate,) = record.body["evidence"]
    assert gate["inputs"][0]["sample"] == {"is": "missing", "reason": "NaN", "query": "q"}
    assert gate["inputs"][1]["value"] == {"notFinite": "nan"}
    encode(record)


def test_nothing_to_do_is_not_recorded_until_it_ends_something():
    calm = evaluation(finding(verdict=Verdict.PASS, gate="when", reason="`when` is false"))
    busy = evaluation(finding(verdict=Verdict.ACT, gate="when", reason="`when` held for 30 s"))
    records = follow(calm, calm, busy, calm)
    assert [[r.body["verdict"] for r in tick] for tick in records] == [[], [], ["act"], ["pass"]]
    assert records[2][0].body["previous"]["ticks"] == 2


def test_a_decision_that_is_no_longer_made_is_recorded_once():
    records = follow(evaluation(finding()), evaluation(), evaluation())
    assert [len(r) for r in records] == [1, 1, 0]
    assert records[1][0].body["verdict"] == "none"
    assert records[1][0].body["previous"]["verdict"] == "hold"
    assert follow(evaluation(finding(verdict=Verdict.PASS)), evaluation()) == [(), ()]


def test_a_policy_and_its_subjects_are_told_apart():
    both = (finding("decode-0"), finding("decode-1"), finding("decode-0", policy=PolicyName("save")))
    records = follow(evaluation(*both), evaluation(both[0], finding("decode-1", gate="step"), both[2]))
    assert [len(r) for r in records] == [3, 1]
    assert records[1][0].subject == "decode-1"


def test_a_plan_is_recorded_when_its_operations_change():
    soon = operation(reason="node-a is preempted in 1 s", deadline=99.0)
    records = follow(
        evaluation(),
        evaluation(operations=(operation(),)),
        evaluation(operations=(soon,)),
        evaluation(operations=(operation(to="node-c/0"),)),
        evaluation(operations=(operation(to="node-c/0"), operation("decode-1"))),
        evaluation(),
        evaluation(),
    )
    assert [len(r) for r in records] == [0, 1, 0, 1, 1, 1, 0]
    first, moved, more, none = (r[0] for r in records if r)
    assert (first.kind, first.what, first.body["counts"], first.body["previous"]) == (RecordKind.PLAN, "1 move", {"move": 1}, None)
    assert first.body["operations"][0]["to_slot"] == "node-b/0"
    assert moved.body["previous"] == {"since": 2.0, "ticks": 2, "operations": ["move-decode-0"]}
    assert more.what == "2 move"
    assert (none.what, none.body["operations"]) == ("nothing is to be done", [])


def test_what_only_pretends_is_marked():
    def node(name: str, worker: str, runtime: str) -> Node:
        return Node(id=NodeId(name), slots=(Slot(id=SlotId(f"{name}/0"), worker=WorkerId(worker)),), runtime=runtime)

    def worker(name: str, at: str, graph: str) -> Worker:
        where: dict[str, Any] = {"node": NodeId(at), "slot": SlotId(f"{at}/0"), "state": WorkerState.RUNNING}
        return Worker(id=WorkerId(name), role="decode", graph=graph, engine="vllm", incarnation=0, **where)

    fleet = Fleet(
        nodes=(node("node-a", "decode-0", "pretend"), node("node-b", "decode-1", "criu")),
        workers=(worker("decode-0", "node-a", "tiny"), worker("decode-1", "node-b", "real")),
    )
    subjects = ("decode-0", "tiny", "decode-1", "real")
    (records,) = follow(evaluation(*(finding(s) for s in subjects), operations=(operation("decode-9", to="node-b/0"),)), fleet=fleet)
    assert {r.subject: r.pretend for r in records} == {"decode-0": True, "tiny": True, "decode-1": False, "real": False, "plan": True}


def test_observing_changes_nothing_that_was():
    start = Tracker()
    after, _ = start.observe(evaluation(finding(), operations=(operation(),)), 1.0, Epoch(1))
    assert start == Tracker()
    again, _ = after.observe(evaluation(finding(), operations=(operation(),)), 2.0, Epoch(1))
    assert after.seen["relieve"]["decode-0"].tick == again.seen["relieve"]["decode-0"].tick == 1
    assert (after.tick, again.tick) == (1, 2)
