import msgspec
import pytest
from decide_world import (
    FAST,
    GB,
    NOW,
    begun,
    checkpoints,
    decide,
    ended,
    ex,
    finding,
    image,
    kinds,
    moving,
    node,
    notice,
    operation,
    ops,
    preemption,
    reassignment,
    rebalancing,
    snap,
    worker,
)
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState, Status
from shunter.model.plan import Estimate, OperationKind
from shunter.model.policy import WorkerSelector
from shunter.model.sample import Missing
from shunter.model.snapshot import NoticeKind, WorkerState
from shunter.model.units import Duration

D0, D1 = worker("decode-0", "a/0"), worker("decode-1", "a/1")
HELD = {"decode-0": {"sessions": 3, "kvTokens": 5120}, "decode-1": {"sessions": 1, "kvTokens": 100}}
A, B = node("a", ("decode-0", "decode-1")), node("b", (None, None))


def test_decode_workers_move_to_free_slots_before_the_deadline():
    result = decide([preemption()], snap([A, B], [D0, D1], notices=[notice("a")], samples=HELD))
    assert kinds(result) == [("move", "decode-0"), ("move", "decode-1")]
    move = ops(result)["decode-0"]
    assert move.lane == "involuntary"
    assert move.reason == "a is preempted in 120 s; decode-0 holds 3 sessions (5,120 tokens)"
    assert (move.expect.at, move.expect.free, move.expect.incarnation) == ("a/0", move.to_slot, 0)
    assert (move.notice, move.cause, move.deadline) == ("n-a", "notice:n-a", NOW + 120)
    assert {o.to_slot for o in result.plan.operations} == {"b/0", "b/1"}
    assert finding(result, "decode-0").verdict is Verdict.ACT


def test_dumps_of_one_node_queue_so_that_the_second_may_be_too_late():
    # 10 s of dump each, one after the other, then 10 s of restore: the second ends after 30 s.
    fleet = [node("a", ("decode-0", "decode-1")), node("b", (None, None))]
    for lead, moved in ((41, 2), (39, 1), (29, 0)):
        result = decide([preemption()], snap(fleet, [D0, D1], notices=[notice("a", lead)], samples=HELD))
        assert len(ops(result, OperationKind.MOVE)) == moved, lead
    only = decide([preemption()], snap(fleet, [D0, D1], notices=[notice("a", 39)], samples=HELD))
    assert kinds(only)[0] == ("move", "decode-0"), "the one with more context is saved first"
    assert ops(only)["decode-1"].kind is OperationKind.PARK, "its dump still ends in time"
    assert ops(only)["decode-1"].copies == ("b",)
    assert "no time" in finding(only, "decode-1").reason


def test_estimates_name_their_basis_and_the_wait_in_the_queue():
    result = decide([preemption()], snap([A, B], [D0, D1], notices=[notice("a")], samples=HELD))
    first, second = ops(result)["decode-0"].estimate, ops(result)["decode-1"].estimate
    assert (first.stopped, first.total, first.bytes, first.basis) == (20, 20, 10 * GB, "planning profile")
    assert (second.stopped, second.total) == (20, 30)


@pytest.mark.parametrize("sample", [None, Missing(reason="Prometheus is away")])
def test_no_metric_is_needed_to_move(sample):
    fields = {"move": moving(order=ex('v("worker.kvTokens")'), where=ex('v("worker.sessions") > 0'), prefer=ex('v("worker.kvUsage")'))}
    samples = {"decode-0": {"kvTokens": sample, "sessions": sample}} if sample else {}
    select = WorkerSelector(where=ex('v("worker.sessions") > 0'))
    result = decide([preemption(workers=select, **fields)], snap([A, B], [D0, D1], notices=[notice("a")], samples=samples))
    assert kinds(result) == [("move", "decode-0"), ("move", "decode-1")]
    assert "isn't known" in ops(result)["decode-0"].reason


def test_a_known_false_selector_or_destination_is_respected():
    select = WorkerSelector(where=ex('v("worker.sessions") > 2'))
    result = decide([preemption(workers=select)], snap([A, B], [D0, D1], notices=[notice("a")], samples=HELD))
    assert kinds(result) == [("move", "decode-0")]
    assert finding(result, "decode-1").gate == "workers.where"
    barred = preemption(move=moving(where=ex('v("node.id") != "b"')), otherwise=())
    result = decide([barred], snap([A, B], [D0], notices=[notice("a")], samples=HELD))
    assert kinds(result) == []
    assert "needs a person" in finding(result, "decode-0").reason
    assert "`move.to.where` is false there" in finding(result, "decode-0").reason


def test_prefer_decides_between_nodes_and_undecided_ones_come_last():
    fleet = [node("a", ("decode-0",)), node("b"), node("c"), node("d")]
    prefer = ex('1.0 if v("node.id") == "c" else 0.0')
    result = decide([preemption(move=moving(prefer=prefer))], snap(fleet, [D0], notices=[notice("a")]))
    assert ops(result)["decode-0"].to_slot == "c/0"
    where = ex('v("worker.sessions") > 0 if v("node.id") == "b" else True')
    result = decide([preemption(move=moving(where=where))], snap(fleet, [D0], notices=[notice("a")]))
    assert ops(result)["decode-0"].to_slot == "c/0", "b has no answer"


def test_workers_spread_over_nodes():
    fleet = [node("a", ("decode-0", "decode-1")), node("b", (None, None)), node("c", (None, None))]
    result = decide([preemption()], snap(fleet, [D0, D1], notices=[notice("a")]))
    assert sorted(str(o.to_slot) for o in result.plan.operations) == ["b/0", "c/0"]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (node("b", reachable=False), "doesn't answer"),
        (node("b", roles=("prefill",)), "takes no decode"),
        (node("b", facts={"kernel": "6.8"}), "its kernel is 6.8, not 6.1"),
        (node("b", gpu_model="H200"), "its GPUs are H200"),
        (node("b", ("decode-9",)), "no free slot"),
        (node("b", reserved_by="move-x"), "no free slot"),
        (node("b", runtime="pretend"), "its runtime is pretend, not criu"),
    ],
)
def test_hard_limits(other, why):
    home = node("a", ("decode-0",), facts={"kernel": "6.1"}, gpu_model="B200")
    other = other if other.slots[0].gpu_model else node_with(other, "B200")
    result = decide([preemption(otherwise=())], snap([home, other], [D0], notices=[notice("a")]))
    assert kinds(result) == []
    assert why in finding(result, "decode-0").reason


@pytest.mark.parametrize(("there", "why"), [(4, None), (8, "it has 8 GPUs, not 4"), (0, "it has 0 GPUs, not 4")])
def test_as_many_gpus_as_it_has_no_fewer_and_no_more(there, why):
    result = decide(
        [preemption(otherwise=())],
        snap([node("a", ("decode-0",), gpu_model="B200", gpus=4), node("b", gpu_model="B200", gpus=there)], [D0], notices=[notice("a")]),
    )
    assert bool(kinds(result)) is (why is None)
    assert why is None or why in finding(result, "decode-0").reason


@pytest.mark.parametrize("fact", ["arch", "cpu", "criu", "cuda", "driver", "kernel"])
def test_facts_must_be_equal_where_both_sides_tell_them(fact):
    home = node("a", ("decode-0",), facts={fact: "1"}, gpu_model="B200", gpus=1)
    for there, fits in (({fact: "2"}, False), ({fact: "1"}, True), ({}, True), ({"engine": "2"}, True)):
        result = decide(
            [preemption(otherwise=())], snap([home, node("b", facts=there, gpu_model="B200", gpus=1)], [D0], notices=[notice("a")])
        )
        assert bool(kinds(result)) is fits, there
        assert fits or f"its {fact} is 2, not 1" in finding(result, "decode-0").reason


def node_with(one, model):
    return msgspec.structs.replace(one, slots=tuple(msgspec.structs.replace(s, gpu_model=model) for s in one.slots))


def test_a_node_with_a_notice_is_no_destination():
    result = decide([preemption(otherwise=())], snap([A, B], [D0], notices=[notice("a"), notice("b", 500, NoticeKind.DRAIN)]))
    assert kinds(result) == []
    assert "b: a notice is open for it" in finding(result, "decode-0").reason


def test_prefill_moves_only_into_what_decode_leaves():
    fleet = [node("a", ("decode-0", "prefill-0")), node("b")]
    result = decide([preemption()], snap(fleet, [D0, worker("prefill-0", "a/1")], notices=[notice("a")]))
    assert kinds(result) == [("move", "decode-0"), ("park", "prefill-0")]
    fleet = [node("a", ("decode-0", "prefill-0")), node("b", (None, None))]
    result = decide([preemption()], snap(fleet, [D0, worker("prefill-0", "a/1")], notices=[notice("a")]))
    assert kinds(result) == [("move", "decode-0"), ("move", "prefill-0")]


def test_make_room_parks_a_prefill_worker_first_and_keeps_the_last():
    fleet = [node("a", ("decode-0",)), node("b", ("prefill-0",)), node("c", ("prefill-1",))]
    workers = [D0, worker("prefill-0", "b/0"), worker("prefill-1", "c/0")]
    samples = {"prefill-0": {"running": 9, "waiting": 1}, "prefill-1": {"running": 0, "waiting": 0}}
    result = decide([preemption(move=moving(make_room="prefill"))], snap(fleet, workers, notices=[notice("a")], samples=samples))
    assert kinds(result) == [("park", "prefill-1"), ("move", "decode-0")]
    park, move = result.plan.operations
    assert (move.to_slot, move.after, park.from_slot, park.copies) == ("c/0", (park.id,), "c/0", ("c",))
    assert move.estimate.total == 30, "the park comes first"
    alone = decide([preemption(move=moving(make_room="prefill"))], snap(fleet[:2], workers[:2], notices=[notice("a")]))
    assert kinds(alone) == [("park", "decode-0")]


def test_fallbacks_in_order_then_a_person():
    fleet = [node("a", ("decode-0",)), node("b", ("decode-9",))]
    both = decide([preemption()], snap(fleet, [D0], notices=[notice("a")]))
    assert kinds(both) == [("park", "decode-0")]
    drain = decide([preemption()], snap(fleet[:1], [D0], notices=[notice("a")]))
    assert kinds(drain) == [("drain", "decode-0")]
    assert ops(drain)["decode-0"].deadline == NOW + 120
    nothing = decide([preemption(otherwise=("checkpoint",))], snap(fleet[:1], [D0], notices=[notice("a")]))
    assert kinds(nothing) == []
    reason = finding(nothing, "decode-0").reason
    assert "needs a person" in reason
    assert "checkpoint: no other node stays" in reason


def test_failed_moves_are_tried_again_elsewhere_and_a_refused_dump_is_not():
    fleet = [node("a", ("decode-0",)), node("b"), node("c")]
    world = snap(fleet, [D0], notices=[notice("a")])
    first = ops(decide([preemption()], world))["decode-0"]
    assert first.to_slot == "b/0"
    failed = ended(first, Status.ROLLED_BACK, code="SH512")
    second = ops(decide([preemption()], world, EngineState(recent=(failed,))))["decode-0"]
    assert (second.kind, second.attempt, second.to_slot) == (OperationKind.MOVE, 1, "c/0")
    assert second.id != first.id
    twice = (failed, ended(second, Status.ROLLED_BACK, code="SH512"))
    third = ops(decide([preemption()], world, EngineState(recent=twice)))["decode-0"]
    assert (third.kind, third.attempt) == (OperationKind.MOVE, 2)
    over = decide([preemption()], world, EngineState(recent=(*twice, ended(third, Status.ROLLED_BACK))))
    assert kinds(over) == [("park", "decode-0")]
    refused = decide([preemption()], world, EngineState(recent=(ended(first, Status.ROLLED_BACK, code="SH721"),)))
    assert kinds(refused) == [("park", "decode-0")]
    park = refused.plan.operations[0]
    state = EngineState(recent=(ended(first, Status.ROLLED_BACK, code="SH721"), ended(park, Status.ROLLED_BACK, code="SH721")))
    drained = decide([preemption()], world, state)
    assert kinds(drained) == [("drain", "decode-0")]
    state = EngineState(recent=(*state.recent, ended(drained.plan.operations[0], Status.ROLLED_BACK, code="SH620")))
    person = decide([preemption()], world, state)
    assert kinds(person) == []
    reason = finding(person, "decode-0").reason
    assert reason.count("SH721") == 2
    assert "SH620" in reason


@pytest.mark.parametrize("code", ["SH605", "SH702", "SH704", "SH706", "SH741", "SH747", "SH757", "SH764", "SH767", "SH768", "SH804"])
def test_what_one_destination_refuses_another_may_take(code):
    world = snap([node("a", ("decode-0",)), node("b"), node("c")], [D0], notices=[notice("a")])
    first = ops(decide([preemption()], world))["decode-0"]
    refused = EngineState(recent=(ended(first, Status.ROLLED_BACK, code=code),))
    again = ops(decide([preemption()], world, refused))["decode-0"]
    assert (again.kind, first.to_slot, again.to_slot) == (OperationKind.MOVE, "b/0", "c/0")


@pytest.mark.parametrize("code", ["SH701", "SH740"])
def test_a_dump_that_failed_is_tried_again_for_the_same_place(code):
    world = snap([node("a", ("decode-0",)), node("b")], [D0], notices=[notice("a")])
    state, moves = EngineState(), []
    for _ in range(3):
        moves.append(ops(decide([preemption()], world, state))["decode-0"])
        state = EngineState(recent=(*state.recent, ended(moves[-1], Status.ROLLED_BACK, code=code)))
    assert {(move.kind, move.to_slot) for move in moves} == {(OperationKind.MOVE, "b/0")}
    assert kinds(decide([preemption()], world, state)) == [("park", "decode-0")]


@pytest.mark.parametrize("code", ["SH720", "SH728", "SH735", "SH737", "SH744", "SH745", "SH752", "SH756", "SH762"])
def test_what_a_worker_is_refused_for_everywhere_is_not_tried_elsewhere(code):
    world = snap([node("a", ("decode-0",)), node("b"), node("c")], [D0], notices=[notice("a")])
    first = ops(decide([preemption()], world))["decode-0"]
    refused = EngineState(recent=(ended(first, Status.ROLLED_BACK, code=code),))
    assert kinds(decide([preemption()], world, refused)) == [("park", "decode-0")]


def test_busy_workers_and_slots_are_left_alone():
    active = begun(operation(OperationKind.MOVE, "decode-0", from_slot="a/0", to_slot="b/0"))
    result = decide([preemption()], snap([A, B], [D0, D1], notices=[notice("a")]), EngineState(active=(active,)))
    assert finding(result, "decode-0").reason == "busy with move move-decode-0"
    assert ops(result)["decode-1"].to_slot == "b/1"
    unknown = ended(operation(OperationKind.CHECKPOINT, "decode-0"), Status.UNKNOWN)
    result = decide([preemption()], snap([A, B], [D0], notices=[notice("a")]), EngineState(recent=(unknown,)))
    assert kinds(result) == []


def test_an_active_dump_occupies_its_node():
    active = begun(operation(OperationKind.MOVE, "decode-0", from_slot="a/0", to_slot="b/0", estimate=Estimate(total=21.0)), NOW - 1)
    world = snap([A, B], [D0, D1], notices=[notice("a", 49)])
    late = decide([preemption()], world, EngineState(active=(active,)))
    assert ops(late)["decode-1"].kind is OperationKind.PARK
    done = msgspec.structs.replace(active, created_at=NOW - 20)
    assert ops(decide([preemption()], world, EngineState(active=(done,))))["decode-1"].kind is OperationKind.MOVE


def test_an_unreachable_node_can_be_ordered_nothing():
    fleet = [node("a", ("decode-0",), reachable=False), B]
    result = decide([preemption()], snap(fleet, [D0], notices=[notice("a", kind=NoticeKind.GONE)]))
    assert kinds(result) == []
    assert "isn't known to be dead" in finding(result, "decode-0").reason


def test_lost_workers_come_back_from_their_newest_image_elsewhere():
    lost = worker("decode-0", state=WorkerState.LOST, incarnation=2)
    images = [image("i-old", lost, "b", at=NOW - 90), image("i-new", lost, "b", at=NOW - 20), image("i-gone", lost, "a", at=NOW - 5)]
    fleet = [node("a", reachable=False), node("b")]
    result = decide([preemption()], snap(fleet, [lost], images, [notice("a", kind=NoticeKind.GONE)]))
    (restore,) = result.plan.operations
    assert (restore.kind, restore.to_slot, restore.image) == (OperationKind.RESTORE, "b/0", "i-new")
    assert (restore.expect.absent, restore.expect.free, restore.expect.image, restore.expect.incarnation) == (True, "b/0", "i-new", 2)
    assert "20 s old" in restore.reason
    other = decide([preemption(notices=(NoticeKind.PREEMPTION,))], snap(fleet, [lost], images))
    assert kinds(other) == []
    none = decide([preemption()], snap(fleet, [lost], images[2:]))
    assert "no node that answers has an image" in finding(none, "decode-0").reason


def test_restores_are_tried_three_times_then_need_a_person():
    lost = worker("decode-0", state=WorkerState.LOST)
    world = snap([B], [lost], [image("i", lost, "b")])
    state = EngineState()
    for attempt in range(3):
        (restore,) = decide([preemption()], world, state).plan.operations
        assert restore.attempt == attempt
        state = EngineState(recent=(*state.recent, ended(restore, Status.FAILED, code="SH731")))
    result = decide([preemption()], world, state)
    assert kinds(result) == []
    assert "needs a person" in finding(result, "decode-0").reason


def test_what_was_parked_for_want_of_a_slot_comes_back_when_there_is_one():
    full = snap([node("a", ("decode-0",)), node("b", ("decode-9",))], [D0], notices=[notice("a")])
    (park,) = decide([preemption()], full).plan.operations
    state = EngineState(recent=(ended(park, Status.SUCCEEDED),))
    parked = worker("decode-0")
    assert kinds(decide([preemption()], snap([node("b", ("decode-9",))], [parked], [image("i", parked, "b")]), state)) == []
    roomy = snap([node("b", ("decode-9",)), node("c")], [parked], [image("i", parked, "b")])
    assert kinds(decide([preemption()], roomy, state)) == [("restore", "decode-0")]
    assert kinds(decide([preemption()], roomy)) == [], "somebody else parked it"


def test_preview_is_marked_and_gives_way_to_what_is_enforced():
    shown = preemption("aaa", mode="preview", priority=999)
    result = decide([shown], snap([A, B], [D0], notices=[notice("a")]))
    assert [o.preview for o in result.plan.operations] == [True]
    both = decide([shown, preemption("zzz")], snap([A, B], [D0], notices=[notice("a")]))
    assert [(o.policy, o.preview) for o in both.plan.operations] == [("zzz", False)]
    assert finding(both, "decode-0", "aaa").reason == "outranked by zzz"
    assert kinds(decide([preemption(mode="off")], snap([A, B], [D0], notices=[notice("a")]))) == []


def test_priority_then_name_decides_between_policies():
    world = snap([A, B], [D0], notices=[notice("a")])
    high = decide([preemption("aaa"), preemption("zzz", priority=200)], world)
    assert [o.policy for o in high.plan.operations] == ["zzz"]
    tie = decide([preemption("aaa"), preemption("zzz")], world)
    assert [o.policy for o in tie.plan.operations] == ["aaa"]


def test_ids_are_the_same_while_the_cause_is():
    world = snap([A, B], [D0, D1], notices=[notice("a")])
    later = decide([preemption()], snap([A, B], [D0, D1], notices=[notice("a")], at=NOW + 20), now=NOW + 20)
    first = decide([preemption()], world)
    assert [o.id for o in later.plan.operations] == [o.id for o in first.plan.operations]
    other = decide([preemption()], snap([A, B], [D0, D1], notices=[notice("a", id="n-2")]))
    assert not {o.id for o in other.plan.operations} & {o.id for o in first.plan.operations}
    hours = decide([preemption()], snap([A, B], [D0, D1], notices=[notice("a", None)]), now=NOW + 3700)
    assert not {o.id for o in hours.plan.operations} & {o.id for o in first.plan.operations}, "attempts are forgotten after an hour"


def test_the_reserve_is_kept():
    world = snap([A, B], [D0], notices=[notice("a", 45)])
    assert kinds(decide([preemption(reserve=Duration(10))], world)) == [("move", "decode-0")]
    assert kinds(decide([preemption(reserve=Duration(30))], world)) == [("park", "decode-0")]


def test_involuntary_goes_first_and_holds_voluntary_work_of_its_graph_only():
    there = worker("decode-7", "c/0")
    elsewhere = worker("decode-8", "d/0", graph="other")
    fleet = [A, B, node("c", ("decode-7",)), node("d", ("decode-8",))]
    result = decide([checkpoints(priority=999), preemption()], snap(fleet, [D0, D1, there, elsewhere], notices=[notice("a")]))
    assert kinds(result) == [("move", "decode-0"), ("move", "decode-1"), ("checkpoint", "decode-8")]
    held = finding(result, "decode-7", "images")
    assert (held.verdict, held.gate) == (Verdict.HOLD, "lane")
    assert "comes first, by save" in held.reason


def test_sizes_that_are_not_measured_are_taken_from_images_or_the_pool():
    blind = worker("decode-0", "a/0", memory=None)
    alone = decide([preemption()], snap([A, B], [blind], notices=[notice("a")]))
    assert (ops(alone)["decode-0"].estimate.total, ops(alone)["decode-0"].estimate.bytes) == (None, None)
    assert "not known" in ops(alone)["decode-0"].estimate.basis
    pool = decide([preemption()], snap([A, B], [blind, worker("decode-1", "a/1", memory=3 * GB)], notices=[notice("a")]))
    assert ops(pool)["decode-0"].estimate.bytes == 3 * GB
    own = decide([preemption()], snap([A, B], [blind], [image("i", blind, "b", bytes=7 * GB)], [notice("a")]))
    assert "newest image" in ops(own)["decode-0"].estimate.basis


def test_measured_rates_replace_the_profile_for_like_sizes():
    done = ended(operation(OperationKind.MOVE, "x"), Status.SUCCEEDED, bytes=20 * GB, dump=2.0, send=4.0, restore=2.0)
    world = snap([A, B], [D0], notices=[notice("a")])
    estimate = ops(decide([preemption()], world, EngineState(recent=(done,))))["decode-0"].estimate
    assert (estimate.stopped, estimate.basis) == (3.0, "measured in 1 like operation")
    tiny = ended(operation(OperationKind.MOVE, "x"), Status.SUCCEEDED, bytes=GB, dump=9.0, send=4.0, restore=2.0)
    assert ops(decide([preemption()], world, EngineState(recent=(tiny,))))["decode-0"].estimate.basis == "planning profile"
    assert FAST.dump_bytes_per_s == 1e9


def test_only_its_own_parked_workers_come_back_by_a_preemption_policy():
    parked = worker("decode-0")
    roomy = snap([node("b")], [parked], [image("i", parked, "b")])
    by_shift = ended(operation(OperationKind.PARK, "decode-0", policy="relieve"), Status.SUCCEEDED)
    assert kinds(decide([preemption()], roomy, EngineState(recent=(by_shift,)))) == []


def test_a_park_must_end_before_the_reserve_after_the_dumps_before_it():
    # One slot and 10 s a dump: the first moves, the second could be parked after it, at 20 s.
    fleet = [A, node("b")]
    for lead, kind in ((31, OperationKind.PARK), (29, OperationKind.DRAIN)):
        result = decide([preemption(otherwise=("checkpoint", "drain"))], snap(fleet, [D0, D1], notices=[notice("a", lead)], samples=HELD))
        first = ops(result)["decode-0"].kind
        assert (first, ops(result)["decode-1"].kind) == ((OperationKind.MOVE, kind) if lead > 30 else (OperationKind.PARK, kind)), lead


def test_room_is_not_made_on_a_node_that_is_going_too():
    fleet = [node("a", ("decode-0",)), node("b", ("prefill-0",)), node("c", ("prefill-1",))]
    workers = [D0, worker("prefill-0", "b/0"), worker("prefill-1", "c/0")]
    going = [notice("a"), notice("b", 900, NoticeKind.REBALANCE), notice("c", 900, NoticeKind.REBALANCE)]
    result = decide([preemption(move=moving(make_room="prefill"))], snap(fleet, workers, notices=going))
    assert kinds(result) == [("drain", "decode-0")]
    one = decide([preemption(move=moving(make_room="prefill"))], snap(fleet, workers, notices=going[:2]))
    assert "prefill-0" not in ops(one)


def test_what_is_only_shown_holds_up_nothing():
    there = worker("decode-7", "c/0")
    world = snap([A, B, node("c", ("decode-7",))], [D0, D1, there], notices=[notice("a")])
    result = decide([preemption(mode="preview"), checkpoints()], world)
    assert kinds(result)[0] == ("checkpoint", "decode-7")
    assert [o.preview for o in result.plan.operations] == [False, True, True]
    assert finding(decide([preemption(mode="preview"), checkpoints(mode="preview")], world), "decode-7", "images").gate == "lane"


def _promised(*operations):
    return EngineState(active=tuple(msgspec.structs.replace(begun(o, at=NOW - 500), waits=True) for o in operations))


def test_voluntary_work_that_waits_keeps_nobody_from_being_saved():
    own = operation(OperationKind.MOVE, "decode-0", from_slot="a/0", to_slot="b/0", estimate=Estimate(total=600))
    other = operation(OperationKind.MOVE, "decode-7", from_slot="c/0", to_slot="b/1")
    fleet = [A, B, node("c", ("decode-7",))]
    workers = [D0, D1, worker("decode-7", "c/0")]
    result = decide([preemption()], snap(fleet, workers, notices=[notice("a", 60)], samples=HELD), _promised(own, other))
    assert ops(result, OperationKind.MOVE).keys() == {"decode-0", "decode-1"}
    assert {o.to_slot for o in result.plan.operations if o.lane == "involuntary"} == {"b/0", "b/1"}
    assert ops(result)["decode-0"].estimate.total == 20, "what waits on its node comes after it"
    calm = decide([checkpoints()], snap(fleet, workers), _promised(own, other))
    assert "busy with move" in finding(calm, "decode-7").reason, "for voluntary work it is busy"


def test_a_slot_that_voluntary_work_waits_for_is_taken_last():
    other = operation(OperationKind.MOVE, "decode-7", from_slot="d/0", to_slot="b/0")
    fleet = [node("a", ("decode-0",)), node("b"), node("c", ("decode-9", None)), node("d", ("decode-7",))]
    workers = [D0, worker("decode-9", "c/0"), worker("decode-7", "d/0")]
    result = decide([preemption()], snap(fleet, workers, notices=[notice("a")], samples=HELD), _promised(other))
    assert ops(result)["decode-0"].to_slot == "c/1"


def test_voluntary_work_that_has_begun_is_waited_for():
    own = operation(OperationKind.MOVE, "decode-0", from_slot="a/0", to_slot="b/0")
    result = decide([preemption()], snap([A, B], [D0, D1], notices=[notice("a")]), EngineState(active=(begun(own),)))
    assert "busy with move" in finding(result, "decode-0").reason
    assert ops(result)["decode-1"].to_slot == "b/1"


def test_lost_workers_that_are_pinned_stay_lost():
    lost = worker("decode-0", state=WorkerState.LOST, pinned="its pod was deleted")
    result = decide([preemption()], snap([A, B], [lost], [image("i", lost, "b")]))
    assert not ops(result)
    assert "its pod was deleted" in finding(result, "decode-0").reason


@pytest.mark.parametrize("on", ["a", "b"])
def test_nothing_is_done_with_a_name_that_two_workers_have(on):
    """By their nodes' reports it is one that stands still by nobody's order: no policy moves, parks, saves or makes room with it."""
    named = [worker("decode-0", "a/0", state=WorkerState.FROZEN), worker("prefill-0", "c/0", state=WorkerState.FROZEN)]
    others = [worker("decode-1", "d/0"), worker("prefill-1", "c/1")]
    fleet = [node("a", ("decode-0",)), node("b", ("decode-0",)), node("c", ("prefill-0", "prefill-1")), node("d", ("decode-1", None))]
    policies = [
        preemption(move=moving(make_room="prefill")),
        checkpoints(every=Duration(1)),
        reassignment(when=ex("True")),
        rebalancing(when=ex("True")),
    ]
    notices = [notice(on), notice("c"), notice(on, kind=NoticeKind.MAINTENANCE, id="m")]
    result = decide(policies, snap(fleet, [*named, *others], notices=notices, samples=HELD))
    assert not {"decode-0", "prefill-0"} & ops(result).keys()
    said = finding(result, "prefill-0", "save")
    assert (said.verdict, said.reason) == (Verdict.HOLD, "it is frozen, and no operation is known that did it")
    known = [msgspec.structs.replace(one, state=WorkerState.RUNNING) for one in named]
    assert {"decode-0", "prefill-0"} & ops(decide(policies, snap(fleet, [*known, *others], notices=notices, samples=HELD))).keys()
