"""Following the planner: what it wants of both pools, carried out as far as the hardware goes."""

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
    known,
    node,
    notice,
    operation,
    ops,
    reassignment,
    snap,
    worker,
)
from shunter.decide.hold import horizon
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState, Status
from shunter.model.plan import OperationKind
from shunter.model.policy import Ceiling, Floor, Limits, PolicySet
from shunter.model.sample import Known, Missing, Stale
from shunter.model.snapshot import WorkerState
from shunter.model.units import Duration

D = [worker(f"decode-{i}", f"{n}/0") for i, n in enumerate("abc")]
P0, P1, P2 = worker("prefill-0", "d/0"), worker("prefill-1"), worker("prefill-2")
D9 = worker("decode-9")
NODES = [*(node(n, (w.id,)) for n, w in zip("abc", D, strict=True)), node("d", ("prefill-0",))]
IMAGES = [image("i-p1", P1, "d", at=NOW - 5), image("i-p2", P2, "d", at=NOW - 9), image("i-d9", D9, "d", at=NOW - 9)]
FREE = budget(max_concurrent=9)


def want(prefill, decode):
    def one(value):
        return {"desired": known(value) if isinstance(value, int | float) else value} if value is not None else {}

    return {"tiny/prefill": one(prefill), "tiny/decode": one(decode)}


def world(prefill, decode, *, nodes=NODES, workers=(*D, P0, P1, P2, D9), images=IMAGES, at=NOW, **more):
    return snap(nodes, workers, images, at=at, pools=want(prefill, decode), **more)


def follower(**more):
    fields = {"when": None, "follow": "planner", "sessions": "park", "cooldown": Duration(0), "limits": Limits(step=9), **more}
    return reassignment("follow", **fields)


def test_hardware_goes_to_the_pool_that_the_planner_wants_larger():
    result = decide([follower()], world(2, 2))
    assert kinds(result) == [("park", "decode-0"), ("restore", "prefill-1")]
    assert ops(result)["prefill-1"].to_slot == "a/0"
    assert "the planner wants 2 prefill and 2 decode workers, and there are 1 and 3" in result.plan.operations[0].reason
    found = finding(result, "tiny")
    assert (found.verdict, [i.name for i in found.evidence[0].inputs]) == (
        Verdict.ACT,
        ["pools.prefill.desired", "pools.decode.desired"],
    )


def test_it_goes_the_other_way_as_well_whatever_the_policy_names():
    prefills = [worker(f"prefill-{i}", f"{n}/0") for i, n in enumerate("abc")]
    nodes = [*(node(n, (w.id,)) for n, w in zip("abc", prefills, strict=True)), node("d")]
    both = snap([*nodes[:3], node("d", ("decode-0",))], [*prefills, worker("decode-0", "d/0"), D9], IMAGES[2:], pools=want(2, 2))
    result = decide([follower()], both)
    assert kinds(result) == [("park", "prefill-0"), ("restore", "decode-9")]


@pytest.mark.parametrize(("prefill", "decode", "step", "shifts"), [(3, 1, 9, 2), (3, 1, 1, 1), (3, 2, 9, 1), (2, 1, 9, 1), (4, 0, 9, 2)])
def test_it_shifts_what_both_can_do_with_within_step_and_floor(prefill, decode, step, shifts):
    result = decide([FREE, follower(limits=Limits(step=step))], world(prefill, decode))
    assert [k for k, _ in kinds(result)] == ["park", "restore"] * shifts


def test_floors_and_ceilings_hold():
    floor = decide([FREE, follower(limits=Limits(from_=Floor(min=3)))], world(2, 2))
    assert (kinds(floor), finding(floor, "tiny").gate) == ([], "limits.from.min")
    ceiling = decide([FREE, follower(limits=Limits(to=Ceiling(max=1)))], world(2, 2))
    assert (kinds(ceiling), finding(ceiling, "tiny").gate) == ([], "limits.to.max")


@pytest.mark.parametrize(
    ("prefill", "decode", "lacking"),
    [
        (None, 2, "pools.prefill.desired"),
        (2, None, "pools.decode.desired"),
        (Missing(reason="Prometheus is away"), 2, "pools.prefill.desired"),
        (2, Stale(value=2, age=99, max_age=30, query="q"), "pools.decode.desired"),
        (2.5, 2, "pools.prefill.desired"),
        (2, -1, "pools.decode.desired"),
    ],
)
def test_what_is_not_known_to_be_wanted_is_not_done(prefill, decode, lacking):
    result = decide([follower()], world(prefill, decode))
    found = finding(result, "tiny")
    assert (kinds(result), found.verdict, found.gate) == ([], Verdict.INCONCLUSIVE, "follow")
    assert found.reason == f"no value for {lacking}"


def test_it_must_have_been_wanted_for_some_time():
    policy = follower(for_=Duration(4))
    assert horizon(PolicySet(commit="c", digest="d", policies=(policy,))) == 4

    def series(*wanted):
        start = NOW - 2 * (len(wanted) - 1)
        return [world(p, d, at=start + 2 * i) for i, (p, d) in enumerate(wanted)]

    assert kinds(decide([policy], series((1, 3), (2, 2), (2, 2), (2, 2)))) != []
    for before in ((1, 3), (None, 2), (0, 4)):
        result = decide([policy], series((2, 2), before, (2, 2), (2, 2)))
        assert (kinds(result), finding(result, "tiny").gate) == ([], "for"), before
    same = decide([policy], series((1, 3), (2, 1), (3, 1), (2, 2)))
    assert kinds(same) != [], "how much may change, while the way is the same"


def test_more_than_the_hardware_holds_is_said_and_not_tried_for_ever():
    result = decide([FREE, follower()], world(4, 5))
    found = finding(result, "tiny")
    assert (kinds(result), found.verdict, found.gate) == ([], Verdict.HOLD, "desired")
    assert found.reason == "the planner wants 9 workers of tiny, and there are slots for 4"
    going = decide([FREE, follower()], world(1, 4, nodes=[*NODES, node("e")], notices=[notice("e")]))
    assert finding(going, "tiny").reason == "the planner wants 5 workers of tiny, and there are slots for 4"
    roles = [*NODES[:3], *(node(n, w, roles=("prefill",)) for n, w in (("d", ("prefill-0",)), ("e", (None,))))]
    only = decide([FREE, follower()], world(1, 4, nodes=roles))
    assert finding(only, "tiny").reason == "the planner wants 4 decode workers of tiny, and there are slots for 3"
    others = [*NODES, node("e", ("x-0",))]
    foreign = decide([FREE, follower()], world(1, 4, nodes=others, workers=(*D, P0, P1, P2, D9, worker("x-0", "e/0", "decode", graph="x"))))
    assert "slots for 4" in finding(foreign, "tiny").reason


def test_a_pool_that_lacks_workers_gets_free_slots_and_nobody_else_s():
    result = decide([follower()], world(1, 4, nodes=[*NODES, node("e")]))
    assert kinds(result) == [("restore", "decode-9")]
    assert ops(result)["decode-9"].to_slot == "e/0"
    two = decide([FREE, follower()], world(2, 4, nodes=[*NODES, node("e"), node("f")]))
    assert sorted(k for k, _ in kinds(two)) == ["restore"], "one way at a time"


def test_a_pool_for_which_nobody_waits_does_not_keep_the_other_from_free_slots():
    both = world(2, 4, nodes=[*NODES, node("e"), node("f")], workers=(*D, P0, D9), images=IMAGES[2:])
    assert kinds(decide([FREE, follower()], both)) == [("restore", "decode-9")]


def test_the_time_is_told_before_what_is_impossible():
    held = finding(decide([follower(for_=Duration(60))], world(4, 5)), "tiny")
    assert (held.gate, held.evidence[2].gate, held.evidence[2].result) == ("for", "desired", False)


def test_more_workers_than_wanted_stay_where_nobody_needs_their_slots():
    result = decide([follower()], world(1, 2))
    found = finding(result, "tiny")
    assert (kinds(result), found.verdict) == ([], Verdict.PASS)
    assert found.reason == "there are more decode workers than the planner wants, and nobody needs their slots: they stay"
    content = finding(decide([follower()], world(1, 3)), "tiny")
    assert (content.verdict, content.reason) == (Verdict.PASS, "the pools are as the planner wants them, or on the way to it")


def test_what_is_on_its_way_is_not_ordered_again():
    state = EngineState(active=(begun(operation(OperationKind.RESTORE, "prefill-1", policy="other")),))
    assert kinds(decide([FREE, follower()], world(2, 2), state)) == []
    parking = EngineState(active=(begun(operation(OperationKind.PARK, "decode-1", policy="other")),))
    assert kinds(decide([FREE, follower()], world(2, 2), parking)) == [], "one decode worker less already, as is wanted"
    frozen = [D[0], D[1], worker("decode-2", "c/0", state=WorkerState.FROZEN)]
    assert kinds(decide([FREE, follower()], world(1, 3, workers=(*frozen, P0, P1, P2, D9)))) == [], "it stands still, and isn't gone"


def test_it_takes_the_same_gates_as_thresholds_do():
    (park, restore) = decide([follower()], world(2, 2)).plan.operations
    cooling = EngineState(recent=(ended(park, Status.SUCCEEDED, began=NOW - 100), ended(restore, Status.SUCCEEDED, began=NOW - 99)))
    held = decide([follower(cooldown=Duration(300))], world(2, 2), cooling)
    assert (kinds(held), finding(held, "tiny").gate) == ([], "cooldown")
    assert finding(decide([follower()], world(2, 2), now=NOW + 31), "tiny").gate == "snapshot"
    spent = decide([budget(max_concurrent=0), follower()], world(2, 2))
    assert (kinds(spent), finding(spent, "tiny").gate) == ([], "budget")
    opposite = reassignment("zz", from_="prefill", to="decode", when=ex("True"))
    assert finding(decide([follower(), opposite], world(2, 2)), "tiny", "follow").gate == "opposite"


@pytest.mark.parametrize("policy", [follower(method="in-place"), reassignment("follow", when=ex("True"), method="in-place")])
def test_in_place_is_held_as_no_engine_is_known_to_do_it(policy):
    result = decide([policy], world(2, 2))
    found = finding(result, "tiny")
    assert (kinds(result), found.verdict, found.gate) == ([], Verdict.HOLD, "method")
    assert "no agent reports an engine that can change its role" in found.reason


def test_checkpoint_and_auto_are_the_same_today():
    assert kinds(decide([follower(method="checkpoint")], world(2, 2))) == kinds(decide([follower()], world(2, 2))) != []


def test_ids_stay_while_the_snapshots_roll_on():
    series = [world(1, 3, at=NOW - 4), world(2, 2, at=NOW - 2), world(2, 2)]
    first = decide([follower()], series).plan.operations
    second = decide([follower()], [*series, world(2, 2, at=NOW + 2)], now=NOW + 2).plan.operations
    assert [o.id for o in first] == [o.id for o in second] != []
    assert isinstance(want(1, 2)["tiny/prefill"]["desired"], Known)


@pytest.mark.parametrize("kind", [OperationKind.CHECKPOINT, OperationKind.MOVE])
def test_a_worker_that_stands_still_for_its_own_checkpoint_breaks_no_time(kind):
    frozen = (D[0], D[1], worker("decode-2", "c/0", state=WorkerState.FROZEN), P0, P1, P2, D9)
    series = [world(1, 3, at=NOW - 6), world(2, 2, at=NOW - 4), world(2, 2, workers=frozen, at=NOW - 2), world(2, 2)]
    taken = ended(operation(kind, "decode-2"), Status.SUCCEEDED, at=NOW - 1, began=NOW - 3)
    policy = follower(for_=Duration(4))
    assert kinds(decide([policy], series, EngineState(recent=(taken,)))) == [("park", "decode-0"), ("restore", "prefill-1")]
    for other in (ended(operation(kind, "decode-2"), Status.SUCCEEDED, at=NOW - 3, began=NOW - 5), None):
        held = decide([policy], series, EngineState(recent=(other,) if other else ()))
        assert (kinds(held), finding(held, "tiny").gate) == ([], "for"), "nothing is known of what it stands still for"
    now = EngineState(active=(begun(operation(kind, "decode-2"), at=NOW - 1),))
    still = [*series[:2], world(2, 2, at=NOW - 2), world(2, 2, workers=frozen)]
    assert kinds(decide([policy, FREE], still, now)) == [("park", "decode-0"), ("restore", "prefill-1")]


def test_the_ceiling_is_that_of_the_pool_that_the_policy_names():
    prefills = [worker(f"prefill-{i}", f"{n}/0") for i, n in enumerate("ab")]
    decodes = [worker(f"decode-{i}", f"{n}/0") for i, n in enumerate("cd")]
    nodes = [node(n, (w.id,)) for n, w in zip("abcd", (*prefills, *decodes), strict=True)]
    back = snap(nodes, [*prefills, *decodes, D9], IMAGES[2:], pools=want(1, 3))
    result = decide([follower(limits=Limits(to=Ceiling(max=2)))], back)
    assert kinds(result) == [("park", "prefill-0"), ("restore", "decode-9")]
