import pytest
from decide_world import (
    NOW,
    begun,
    budget,
    decide,
    ended,
    ex,
    finding,
    image,
    kinds,
    node,
    notice,
    operation,
    ops,
    preemption,
    reassignment,
    snap,
    worker,
)
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState, Status
from shunter.model.plan import OperationKind
from shunter.model.policy import Ceiling, Floor, Limits, MetricInput, Pick, Trigger
from shunter.model.sample import Known, Missing
from shunter.model.snapshot import NoticeKind, WorkerState
from shunter.model.units import Duration

D = [worker(f"decode-{i}", f"{n}/0") for i, n in enumerate("abc")]
P0, P1 = worker("prefill-0", "d/0"), worker("prefill-1")
IMAGE = image("i-p1", P1, "d")
NODES = [*(node(n, (w.id,)) for n, w in zip("abc", D, strict=True)), node("d", ("prefill-0",))]
SPARE = node("e", roles=("decode",))
QUEUE = {"prefill-0": {"waiting": 40}, "decode-0": {"sessions": 5}, "decode-1": {"sessions": 1}, "decode-2": {"sessions": 2}}


def world(nodes=(*NODES, SPARE), workers=(*D, P0, P1), images=(IMAGE,), samples=QUEUE, at=NOW, **more):
    return snap(nodes, workers, images, samples=samples, at=at, **more)


def test_a_decode_worker_moves_and_the_parked_prefill_worker_takes_its_slot():
    policy = reassignment(pick=Pick(where=ex('v("worker.sessions") < 4'), prefer=ex('-v("worker.sessions")')))
    result = decide([policy], world())
    assert kinds(result) == [("move", "decode-1"), ("restore", "prefill-1")]
    move, restore = result.plan.operations
    assert (move.from_slot, move.to_slot) == ("b/0", "e/0")
    assert (restore.to_slot, restore.after, restore.image) == ("b/0", (move.id,), "i-p1")
    assert (restore.expect.absent, restore.expect.free, restore.expect.image) == (True, "b/0", "i-p1")
    assert restore.policy == move.policy == "relieve"
    assert "pools.prefill.waiting = 40" in move.reason
    assert finding(result, "tiny").verdict is Verdict.ACT
    assert finding(result, "decode-1").verdict is Verdict.ACT
    assert finding(result, "decode-0").gate == "pick.where"


@pytest.mark.parametrize(("sessions", "kind"), [("park", "park"), ("drain", "drain")])
def test_sessions_can_be_parked_or_drained_within_the_limit(sessions, kind):
    result = decide([reassignment(sessions=sessions)], world(NODES))
    assert kinds(result) == [(kind, "decode-0"), ("restore", "prefill-1")]
    assert ops(result)["prefill-1"].to_slot == "a/0"
    limited = decide([reassignment(sessions=sessions, limits=Limits(from_=Floor(min=3)))], world(NODES))
    assert (kinds(limited), finding(limited, "tiny").gate) == ([], "limits.from.min")


def test_a_free_slot_that_takes_prefill_is_used_and_nobody_moves():
    result = decide([reassignment()], world((*NODES, node("e"))))
    assert kinds(result) == [("restore", "prefill-1")]
    assert result.plan.operations[0].to_slot == "e/0"
    assert "no decode worker has to make way" in result.plan.operations[0].reason


def test_without_a_slot_to_move_to_or_an_image_it_holds():
    full = decide([reassignment()], world(NODES))
    assert (kinds(full), finding(full, "tiny").verdict) == ([], Verdict.HOLD)
    assert "no slot on another node to move a decode worker to" in finding(full, "tiny").reason
    none = decide([reassignment()], world(images=()))
    assert "no parked prefill worker" in finding(none, "tiny").reason
    unreachable = decide([reassignment()], world((*NODES[:3], node("d", ("prefill-0",), reachable=False), SPARE)))
    assert kinds(unreachable) == []


def test_limits_and_steps():
    full = decide([reassignment(limits=Limits(to=Ceiling(max=1)))], world())
    assert (kinds(full), finding(full, "tiny").gate) == ([], "limits.to.max")
    p2 = worker("prefill-2")
    free = budget(max_concurrent=9)
    two = decide(
        [free, reassignment(sessions="park", limits=Limits(step=2))], world(NODES, (*D, P0, P1, p2), (IMAGE, image("i-p2", p2, "d")))
    )
    assert [k for k, _ in kinds(two)] == ["park", "restore", "park", "restore"]
    assert len({o.to_slot for o in two.plan.operations if o.to_slot}) == 2
    capped = decide(
        [free, reassignment(sessions="park", limits=Limits(step=2, to=Ceiling(max=2)))],
        world(NODES, (*D, P0, P1, p2), (IMAGE, image("i-p2", p2, "d"))),
    )
    assert len(kinds(capped)) == 2
    floor = decide(
        [free, reassignment(sessions="park", limits=Limits(step=2, from_=Floor(min=2)))],
        world(NODES, (*D, P0, P1, p2), (IMAGE, image("i-p2", p2, "d"))),
    )
    assert len(kinds(floor)) == 2, "the second would leave one decode worker"


@pytest.mark.parametrize("lacking", [{}, {"prefill-0": {"waiting": Missing(reason="Prometheus is away")}}])
def test_an_unknown_input_is_inconclusive(lacking):
    result = decide([reassignment()], world(samples=lacking))
    found = finding(result, "tiny")
    assert (kinds(result), found.verdict, found.gate) == ([], Verdict.INCONCLUSIVE, "when")
    assert found.reason == "no value for pools.prefill.waiting"


def test_one_unknown_worker_makes_its_pool_unknown():
    p2 = worker("prefill-2", "e/0")
    result = decide([reassignment()], world((*NODES, node("e", ("prefill-2",))), (*D, P0, P1, p2)))
    assert finding(result, "tiny").verdict is Verdict.INCONCLUSIVE
    assert "prefill-2: not collected" in finding(result, "tiny").evidence[0].inputs[0].sample.reason


def test_workers_whose_pick_is_unknown_are_not_taken():
    samples = {**QUEUE, "decode-1": {}, "decode-2": {}}
    policy = reassignment(pick=Pick(where=ex('v("worker.sessions") < 9')))
    assert kinds(decide([policy], world(samples=samples)))[0] == ("move", "decode-0")
    none = decide([policy], world(samples={"prefill-0": {"waiting": 40}}))
    assert (kinds(none), finding(none, "tiny").verdict) == ([], Verdict.INCONCLUSIVE)
    assert finding(none, "decode-1").verdict is Verdict.INCONCLUSIVE


def series(*waiting, step=2.0):
    start = NOW - step * (len(waiting) - 1)
    return [
        world(samples={**QUEUE, "prefill-0": {"waiting": w}} if w is not None else {}, at=start + i * step) for i, w in enumerate(waiting)
    ]


@pytest.mark.parametrize(
    ("waiting", "acts", "why"),
    [
        ((0, 40, 40, 40), True, ""),
        ((40, 40, 0, 40), False, "it didn't hold before"),
        ((40, 40, None, 40), False, "it was undecided before"),
        ((40, 40), False, "the history reaches no further back"),
        ((40, 40, 40, 40, 40), True, ""),
    ],
)
def test_for_needs_every_snapshot_of_its_time(waiting, acts, why):
    result = decide([reassignment(for_=Duration(4))], series(*waiting))
    assert bool(kinds(result)) is acts
    if not acts:
        found = finding(result, "tiny")
        assert (found.verdict, found.gate) == (Verdict.HOLD, "for")
        assert why in found.evidence[-1].detail


def test_ids_are_stable_while_the_snapshots_roll_on():
    first = decide([reassignment(for_=Duration(4))], series(0, 40, 40, 40))
    longer = series(0, 40, 40, 40)
    later = [*longer, world(at=NOW + 2)]
    second = decide([reassignment(for_=Duration(4))], later, now=NOW + 2)
    assert kinds(first) == kinds(second)
    assert [o.id for o in first.plan.operations] == [o.id for o in second.plan.operations]
    assert finding(first, "tiny").since == NOW - 4


def test_cooldown_and_a_change_under_way():
    (move, restore) = decide([reassignment()], world()).plan.operations
    cooling = EngineState(recent=(ended(move, Status.SUCCEEDED, began=NOW - 100), ended(restore, Status.SUCCEEDED, began=NOW - 99)))
    held = decide([reassignment(cooldown=Duration(300))], world(), cooling)
    assert (kinds(held), finding(held, "tiny").gate) == ([], "cooldown")
    assert kinds(decide([reassignment(cooldown=Duration(90))], world(), cooling)) != []
    under_way = decide([reassignment(cooldown=Duration(0))], world(), EngineState(active=(begun(move, NOW - 4000),)))
    assert (kinds(under_way), finding(under_way, "tiny").gate) == ([], "active")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([("prefill", "shift")] * 3, "3 changes within the hour, as many as are made: the next may begin at "),
        (
            [("prefill", "shift"), ("decode", "revert"), ("prefill", "shift")],
            "3 changes within the hour, back and forth: it needs a person",
        ),
        ([("prefill", "shift"), ("decode", "shift"), ("prefill", "shift")], "3 changes within the hour, back and forth: it needs a person"),
        (
            [("prefill", "shift"), ("prefill", "shift"), ("prefill", "failed")],
            "3 changes within the hour, 1 of them in vain: it needs a person",
        ),
    ],
)
def test_there_are_three_changes_within_the_hour_and_why_is_told_as_it_is(changes, told):
    def change(n, role, how):
        cause = f"{'revert' if how == 'revert' else 'shift'}:relieve:{n}"
        one = operation(OperationKind.RESTORE, f"{role}-0", policy="relieve", cause=cause, pool=f"tiny/{role}")
        return ended(one, Status.FAILED if how == "failed" else Status.SUCCEEDED, at=NOW - 1000 + n)

    recent = tuple(change(n, *one) for n, one in enumerate(changes))
    assert kinds(decide([reassignment(cooldown=Duration(1))], world(), EngineState(recent=recent[:2]))) != []
    three = decide([reassignment(cooldown=Duration(1))], world(), EngineState(recent=recent))
    assert (kinds(three), finding(three, "tiny").gate) == ([], "repeats")
    assert finding(three, "tiny").reason.startswith(told)
    assert ("needs a person" in finding(three, "tiny").reason) is ("needs a person" in told)


def test_it_does_not_act_where_the_opposite_is_wanted():
    both = reassignment(revert=Trigger(when=ex('v("pools.decode.sessions") > 5')))
    result = decide([both], world())
    assert (kinds(result), finding(result, "tiny").gate) == ([], "revert.when")
    unknown = decide([reassignment(revert=Trigger(when=ex('v("pools.decode.kvUsage") > 0.5')))], world())
    assert (kinds(unknown), finding(unknown, "tiny").verdict) == ([], Verdict.INCONCLUSIVE)
    other = reassignment("relieve-decode", from_="prefill", to="decode", when=ex('v("pools.decode.sessions") > 5'))
    result = decide([reassignment(), other], world())
    assert finding(result, "tiny", "relieve").gate == "opposite"
    assert kinds(result) == []


REVERT = reassignment(sessions="park", cooldown=Duration(1), revert=Trigger(when=ex('v("pools.prefill.waiting") < 5'), for_=Duration(0)))


def reverted_state():
    park, restore = decide([REVERT], world(NODES)).plan.operations
    state = EngineState(recent=(ended(park, Status.SUCCEEDED, at=NOW - 50), ended(restore, Status.SUCCEEDED, at=NOW - 40)))
    back = worker("prefill-1", "a/0", incarnation=1)
    parked = worker("decode-0")
    nodes = [node("a", ("prefill-1",)), *NODES[1:]]
    samples = {"prefill-0": {"waiting": 0}, "prefill-1": {"waiting": 0}}
    return state, snap(nodes, [parked, *D[1:], P0, back], [image("i-d0", parked, "a")], samples=samples)


def test_revert_parks_what_came_and_brings_back_what_was_parked():
    state, after = reverted_state()
    result = decide([REVERT], after, state)
    assert kinds(result) == [("park", "prefill-1"), ("restore", "decode-0")]
    park, restore = result.plan.operations
    assert (restore.to_slot, restore.after, restore.image) == ("a/0", (park.id,), "i-d0")
    assert finding(result, "tiny").gate == "revert.when"
    forgotten = decide([REVERT], after)
    assert kinds(forgotten) == [("park", "prefill-1"), ("restore", "decode-0")], "the facts alone say what was shifted"


def test_revert_does_nothing_twice_and_nothing_without_a_shift():
    state, after = reverted_state()
    park, restore = decide([REVERT], after, state).plan.operations
    done = EngineState(recent=(*state.recent, ended(park, Status.SUCCEEDED, at=NOW - 20), ended(restore, Status.SUCCEEDED, at=NOW - 10)))
    quiet = {"prefill-0": {"waiting": 0}}
    result = decide([REVERT], world(samples=quiet), done)
    assert (kinds(result), finding(result, "tiny").verdict) == ([], Verdict.PASS)
    never = decide([REVERT], world(samples=quiet))
    assert (kinds(never), finding(never, "tiny").reason) == ([], "there is no shift to undo")


def test_revert_keeps_the_last_prefill_worker():
    state, after = reverted_state()
    alone = snap(
        [after.fleet.nodes[0], *after.fleet.nodes[1:3], node("d")],
        [w for w in after.fleet.workers if w.id != "prefill-0"],
        after.fleet.images,
        samples={"prefill-1": {"waiting": 0}},
    )
    assert kinds(decide([REVERT], alone, state)) == []


def test_notices_hold_voluntary_work():
    gone = preemption(notices=(NoticeKind.PREEMPTION,))
    held = decide([gone, reassignment(priority=9999)], world(notices=[notice("a")]))
    assert all(o.lane == "involuntary" for o in held.plan.operations)
    assert finding(held, "tiny").gate == "lane"
    active = begun(operation(OperationKind.MOVE, "decode-2", lane="involuntary"))
    assert finding(decide([reassignment()], world(), EngineState(active=(active,))), "tiny").gate == "lane"
    pick = Pick(prefer=ex('-v("worker.sessions")'))
    other = decide([reassignment(pick=pick)], world(notices=[notice("b")]))
    assert kinds(other)[0] == ("move", "decode-2"), "decode-1 is on a node that is going"
    none = decide([reassignment()], world(notices=[notice("e")]))
    assert kinds(none) == [], "the only free slot is on a node that is going"


def test_unfit_slots_are_not_given():
    kernel = image("i-p1", P1, "d", facts={"kernel": "6.1"})
    nodes = [node("a", ("decode-0",), facts={"kernel": "6.8"}), node("b", ("decode-1",), roles=("decode",)), *NODES[2:], SPARE]
    result = decide([reassignment(pick=Pick(prefer=ex('-v("worker.sessions")')))], world(nodes, images=(kernel,)))
    assert kinds(result)[0] == ("move", "decode-2")


def test_declared_metrics_and_what_no_data_means():
    def policy(on_missing="inconclusive"):
        return reassignment(
            when=ex('v("metrics.wait") > 1'),
            metrics={"wait": MetricInput(query="q", unit="seconds", max_age=Duration(30), on_missing=on_missing)},
        )

    def at(sample):
        return world(policies={"relieve": {"wait": {"": sample}}})

    fresh = Known(value=2, unit="seconds", at=NOW - 10, query="q")
    assert kinds(decide([policy()], at(fresh))) != []
    old = decide([policy()], at(Known(value=2, unit="seconds", at=NOW - 31, query="q")))
    assert (kinds(old), finding(old, "tiny").verdict) == ([], Verdict.INCONCLUSIVE)
    away = decide([policy(0.0)], at(Missing(reason="Prometheus is away")))
    assert finding(away, "tiny").verdict is Verdict.INCONCLUSIVE, "`onMissing` is about empty answers alone"
    assert finding(decide([policy()], world()), "tiny").verdict is Verdict.INCONCLUSIVE


def test_frozen_and_fenced_workers_are_not_picked():
    odd = [worker("decode-0", "a/0", state=WorkerState.FENCED), *D[1:]]
    result = decide([reassignment()], world(workers=(*odd, P0, P1)))
    assert kinds(result)[0] == ("move", "decode-1")
    assert finding(result, "decode-0").reason == "it is fenced"


def test_a_new_stretch_is_a_new_cause():
    def cause(*waiting):
        return {o.cause for o in decide([reassignment()], series(*waiting)).plan.operations}

    assert cause(0, 40, 40) != cause(0, 0, 40)
    assert cause(0, 40, 40) == {f"shift:relieve:{NOW - 2:.3f}"}
    assert cause(40, 40, 40) == {f"shift:relieve:h{int(NOW // 3600)}"}, "the snapshots don't show when it began"


def test_a_worker_that_was_given_back_and_returned_by_other_means_stays():
    state, after = reverted_state()
    park, _ = decide([REVERT], after, state).plan.operations
    given_back = EngineState(recent=(*state.recent, ended(park, Status.SUCCEEDED, at=NOW - 20)))
    workers = [w for w in after.fleet.workers if w.id != "decode-0"]
    result = decide(
        [REVERT], snap(after.fleet.nodes, workers, samples={"prefill-0": {"waiting": 0}, "prefill-1": {"waiting": 0}}), given_back
    )
    assert (kinds(result), finding(result, "tiny").reason) == ([], "there is no shift to undo")


def test_an_old_snapshot_shifts_nothing():
    assert finding(decide([reassignment()], world(), now=NOW + 31), "tiny").gate == "snapshot"
    assert kinds(decide([reassignment()], world(), now=NOW + 29)) != []
