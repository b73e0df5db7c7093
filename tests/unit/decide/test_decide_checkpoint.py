import pytest
from decide_world import NOW, begun, checkpoints, decide, ended, ex, finding, image, kinds, node, notice, operation, ops, snap, worker
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState, Status
from shunter.model.plan import OperationKind
from shunter.model.policy import Keep, WorkerSelector
from shunter.model.sample import Missing
from shunter.model.snapshot import WorkerState
from shunter.model.units import Duration

D0 = worker("decode-0", "a/0")
A, B, C = node("a", ("decode-0",)), node("b"), node("c")


def test_due_without_an_image_and_when_the_newest_is_old():
    first = decide([checkpoints()], snap([A, B], [D0]))
    assert kinds(first) == [("checkpoint", "decode-0")]
    (taken,) = first.plan.operations
    assert (taken.lane, taken.copies, taken.expect.at, taken.to_slot) == ("voluntary", ("a",), "a/0", None)
    assert taken.deadline is not None, "it can't stand half-way for ever"
    for age, due in ((29, False), (31, True)):
        result = decide([checkpoints()], snap([A, B], [D0], [image("i", D0, "a", at=NOW - age)]))
        assert bool(result.plan.operations) is due
    young = decide([checkpoints()], snap([A, B], [D0], [image("i", D0, "a", at=NOW - 12)]))
    found = finding(young, "decode-0")
    assert (found.verdict, found.gate) == (Verdict.PASS, "every")
    assert "12" not in found.reason, "a reason that changes with every tick would fill the audit"
    assert "12 s old" in found.evidence[-1].detail


def test_ids_hold_within_a_period_and_change_with_it():
    base = 30 * 40_000.0
    a, b, c = (decide([checkpoints()], snap([A], [D0], at=base + s), now=base + s).plan.operations[0].id for s in (1, 20, 31))
    assert a == b != c


def test_copies_go_to_nodes_that_stay_the_emptiest_first():
    other = worker("decode-9", "b/0")
    held = [image("x", other, "b")]
    result = decide(
        [checkpoints(copies=2, workers=WorkerSelector(graph="tiny", where=ex('v("worker.id") == "decode-0"')))],
        snap([A, B, C], [D0, other], held),
    )
    assert result.plan.operations[0].copies == ("a", "c")
    going = decide([checkpoints(copies=3)], snap([A, B, C], [D0], notices=[notice("b")]))
    assert going.plan.operations[0].copies == ("a", "c")
    assert "2 of 3 copies" in going.plan.operations[0].reason


def test_turns_one_a_node_and_a_fifth_of_the_pool():
    workers = [worker(f"decode-{i}", f"n{i // 2}/{i % 2}") for i in range(10)]
    nodes = [node(f"n{i}", (f"decode-{2 * i}", f"decode-{2 * i + 1}")) for i in range(5)]
    old = [image(f"i{i}", w, f"n{i // 2}", at=NOW - 100 - i) for i, w in enumerate(workers)]
    result = decide([checkpoints()], snap(nodes, workers, old))
    assert kinds(result) == [("checkpoint", "decode-9"), ("checkpoint", "decode-7")], "oldest first, two of ten, on two nodes"
    assert "one checkpoint at a time on n4" in finding(result, "decode-8").reason
    assert "2 at a time" in finding(result, "decode-0").reason
    active = begun(operation(OperationKind.CHECKPOINT, "decode-0", policy="images"))
    more = decide([checkpoints()], snap(nodes, workers, old), EngineState(active=(active,)))
    assert kinds(more) == [("checkpoint", "decode-9")]


def test_an_unknown_condition_is_inconclusive_and_says_what_is_missing():
    policy = checkpoints(when=ex('v("worker.running") < 2'))
    for sample in (Missing(reason="NaN"), None):
        result = decide([policy], snap([A], [D0], samples={"decode-0": {"running": sample}} if sample else {}))
        assert kinds(result) == []
        found = finding(result, "decode-0")
        assert (found.verdict, found.gate, found.reason) == (Verdict.INCONCLUSIVE, "when", "no value for worker.running")
        assert found.evidence[-1].inputs[0].name == "worker.running"
    assert kinds(decide([policy], snap([A], [D0], samples={"decode-0": {"running": 1}}))) == [("checkpoint", "decode-0")]
    busy = decide([policy], snap([A], [D0], samples={"decode-0": {"running": 2}}))
    assert (finding(busy, "decode-0").verdict, kinds(busy)) == (Verdict.PASS, [])
    select = checkpoints(workers=WorkerSelector(where=ex('v("worker.running") < 2')))
    assert finding(decide([select], snap([A], [D0])), "decode-0").verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("nodes", "workers", "notices", "gate"),
    [
        ([A], [D0], [notice("a")], "node.noticed"),
        ([node("a", ("decode-0",), reachable=False)], [D0], [], "node.noticed"),
        ([A], [worker("decode-0", "a/0", state=WorkerState.FENCED)], [], "worker.state"),
    ],
)
def test_nothing_voluntary_where_something_is_going_on(nodes, workers, notices, gate):
    result = decide([checkpoints()], snap(nodes, workers, notices=notices))
    assert kinds(result) == []
    assert finding(result, "decode-0").gate == gate


def test_it_is_not_doubled_while_or_just_after_it_is_taken():
    (taken,) = decide([checkpoints()], snap([A], [D0])).plan.operations
    assert kinds(decide([checkpoints()], snap([A], [D0]), EngineState(active=(begun(taken),)))) == []
    done = EngineState(recent=(ended(taken, Status.SUCCEEDED),))
    assert kinds(decide([checkpoints()], snap([A], [D0]), done)) == []


def test_failures_back_off_up_to_ten_periods():
    def failing(times, since):
        records = [
            ended(
                operation(OperationKind.CHECKPOINT, "decode-0", cause=f"every:{i}"),
                Status.ROLLED_BACK,
                code="SH701",
                at=NOW - since - times + i,
            )
            for i in range(1, times + 1)
        ]
        return decide([checkpoints()], snap([A], [D0]), EngineState(recent=tuple(records)))

    assert [bool(kinds(failing(1, s))) for s in (29, 31)] == [False, True]
    assert [bool(kinds(failing(2, s))) for s in (59, 61)] == [False, True]
    assert [bool(kinds(failing(9, s))) for s in (299, 301)] == [False, True]
    assert "SH701" in finding(failing(2, 10), "decode-0").reason


def test_retention_discards_the_oldest_image_that_is_not_kept():
    images = [image(f"i{n}", D0, "a", at=NOW - n) for n in (1, 5, 9)]
    result = decide([checkpoints(keep=Keep(last=1))], snap([A, B], [D0], images))
    assert [(o.kind.value, o.image, o.lane) for o in result.plan.operations] == [("discard", "i9", "voluntary")]
    assert finding(result, "decode-0").gate == "keep.last"
    assert kinds(decide([checkpoints(keep=Keep(last=3))], snap([A, B], [D0], images))) == []
    most = decide([checkpoints(keep=Keep(last=1)), checkpoints("other", keep=Keep(last=3))], snap([A, B], [D0], images))
    assert kinds(most) == [], "the policy that keeps the most decides"


@pytest.mark.parametrize("state", [WorkerState.PARKED, WorkerState.LOST])
def test_retention_never_takes_what_a_worker_could_still_need(state):
    away = worker("decode-0", state=state)
    fleet = [node("a"), node("b", reachable=False), node("c")]
    only = [image("i9", away, "a", at=NOW - 9), image("i1", away, "b", at=NOW - 1)]
    assert kinds(decide([checkpoints()], snap(fleet, [away], only))) == [], "the newer one can't be reached"
    going = [image("i9", away, "a", at=NOW - 9), image("i1", away, "c", at=NOW - 1)]
    assert kinds(decide([checkpoints()], snap(fleet, [away], going, [notice("c")]))) == [], "the newer one is about to go"
    assert ops(decide([checkpoints()], snap(fleet, [away], going)))["decode-0"].image == "i9"
    used = begun(operation(OperationKind.RESTORE, "decode-5", image="i9"))
    assert kinds(decide([checkpoints()], snap(fleet, [away], going), EngineState(active=(used,)))) == []


def test_the_every_of_a_policy_is_respected_over_incarnations():
    restored = worker("decode-0", "a/0", incarnation=1)
    old = image("i", D0, "b", at=NOW - 100)
    assert kinds(decide([checkpoints(every=Duration(60))], snap([A, B], [restored], [old]))) == [("checkpoint", "decode-0")]


def test_a_worker_in_another_operation_is_not_checkpointed():
    moving = begun(operation(OperationKind.DRAIN, "decode-0"))
    result = decide([checkpoints()], snap([A], [D0]), EngineState(active=(moving,)))
    assert (kinds(result), finding(result, "decode-0").reason) == ([], "busy with drain drain-decode-0")
    planned = decide([checkpoints("aaa"), checkpoints("zzz")], snap([A], [D0]))
    assert [o.policy for o in planned.plan.operations] == ["aaa"]
    assert finding(planned, "decode-0", "zzz").reason == "outranked by aaa"


def test_nothing_is_discarded_while_a_node_of_the_graph_is_going():
    images = [image(f"i{n}", D0, "a", at=NOW - n) for n in (1, 9)]
    active = begun(operation(OperationKind.MOVE, "decode-1", lane="involuntary"))
    other = worker("decode-1", "b/0")
    world = snap([A, node("b", ("decode-1",))], [D0, other], [*images, image("j", other, "b", at=NOW)])
    assert kinds(decide([checkpoints()], world, EngineState(active=(active,)))) == []
    assert kinds(decide([checkpoints()], world)) == [("discard", "decode-0")]


def test_an_image_of_an_earlier_life_counts_as_older():
    restored = worker("decode-0", "a/0", incarnation=1)
    earlier = image("i-a", restored, "a", at=NOW - 2, incarnation=0)
    later = image("i-b", restored, "a", at=NOW - 3, incarnation=1)
    (discard,) = decide([checkpoints()], snap([A], [restored], [later, earlier])).plan.operations
    assert discard.image == "i-a"


def test_nothing_voluntary_is_done_on_an_old_snapshot():
    spare = [image(f"i{n}", D0, "a", at=NOW - n) for n in (100, 200)]
    for late, expected in ((29, [("checkpoint", "decode-0")]), (31, [])):
        assert kinds(decide([checkpoints()], snap([A], [D0], spare), now=NOW + late)) == expected
    old = decide([checkpoints()], snap([A], [D0]), now=NOW + 31)
    assert finding(old, "decode-0").reason == "the newest snapshot is more than 30 s old"
    away = worker("decode-0")
    assert kinds(decide([checkpoints()], snap([A], [away], spare), now=NOW + 31)) == []
    assert kinds(decide([checkpoints()], snap([A], [away], spare), now=NOW + 29)) == [("discard", "decode-0")]
