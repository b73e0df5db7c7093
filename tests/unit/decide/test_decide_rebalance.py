import msgspec
import pytest
from decide_world import (
    NOW,
    begun,
    budget,
    decide,
    ended,
    ex,
    figures,
    finding,
    kinds,
    node,
    notice,
    operation,
    ops,
    policy_set,
    preemption,
    rebalancing,
    snap,
    worker,
)
from shunter.decide.hold import horizon
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState, Status
from shunter.model.plan import OperationKind
from shunter.model.policy import Destination, Gain, WorkerSelector
from shunter.model.sample import Known, Missing, Stale
from shunter.model.snapshot import WorkerState
from shunter.model.units import Duration

D0 = worker("decode-0", "a/0")
EMPTY = ex('v("node.labels").get("state") == "empty-me"')
"""The node is to be emptied."""


def emptied(*others, **more):
    return snap([node("a", ("decode-0",), labels={"state": "empty-me"}), *others], [D0], **more)


def test_a_worker_leaves_a_node_that_is_to_be_emptied():
    result = decide([rebalancing(when=EMPTY)], emptied(node("b")))
    assert kinds(result) == [("move", "decode-0")]
    move = ops(result)["decode-0"]
    assert (move.from_slot, move.to_slot, move.lane) == ("a/0", "b/0", "voluntary")
    assert (move.expect.at, move.expect.free) == ("a/0", "b/0")
    assert move.deadline is not None, "it can't stand half-way for ever"
    found = finding(result, "decode-0")
    assert (found.verdict, found.gate) == (Verdict.ACT, "when")
    assert {"when", "for", "budget.default", "cost"} <= {e.gate for e in found.evidence}


def test_it_does_not_go_where_it_would_be_moved_again():
    result = decide([rebalancing(when=EMPTY)], emptied(node("b", labels={"state": "empty-me"})))
    assert kinds(result) == []
    assert (finding(result, "decode-0").gate, finding(result, "decode-0").reason) == ("after", "once on b, it would be moved again")
    other = decide([rebalancing(when=EMPTY)], emptied(node("b", labels={"state": "empty-me"}), node("c")))
    assert ops(other)["decode-0"].to_slot == "c/0"
    always = decide([rebalancing(when=ex('v("worker.sessions") > 1'))], emptied(node("b"), samples={"decode-0": {"sessions": 3}}))
    assert kinds(always) == [], "a condition that goes along with the worker would never be satisfied"


def test_it_does_not_go_where_it_can_t_be_said_whether_it_would_stay():
    crowded = rebalancing(when=ex('v("worker.sessions") / v("node.freeSlots") > 1'))
    here = node("a", ("decode-0", None))
    samples = {"decode-0": {"sessions": 3}}
    full = decide([crowded], snap([here, node("b")], [D0], samples=samples))
    assert (kinds(full), finding(full, "decode-0").gate) == ([], "after"), "with the worker there, b has no free slot to divide by"
    assert finding(full, "decode-0").reason.startswith("once on b, it can't be said whether it would be moved again: ")
    room = decide([crowded], snap([here, node("b", (None,) * 5)], [D0], samples=samples))
    assert kinds(room) == [("move", "decode-0")]


FREE = ex('v("node.freeSlots")')


@pytest.mark.parametrize(("at_least", "slots", "moves"), [(2, 2, True), (3, 2, False), (1, 1, False), (1, 2, True)])
def test_gain_is_what_the_place_is_worth_over_its_own(at_least, slots, moves):
    # once it has moved, the old node has one free slot more and the new one less: with 1 free slot against 0 it would be moved back
    policy = rebalancing(when=ex("True"), to=Destination(prefer=FREE), gain=Gain(at_least=at_least))
    result = decide([policy], snap([node("a", ("decode-0",)), node("b", (None,) * slots)], [D0]))
    assert bool(kinds(result)) is moves
    if not moves:
        assert finding(result, "decode-0").gate == ("after" if slots == 1 else "gain")


def test_the_highest_preference_wins_and_what_is_unknown_is_no_reason_to_go():
    rank = ex('v("node.labels")["rank"] * 1.0')
    nodes = [node("a", ("decode-0",), labels={"rank": 1}), *(node(n, labels={"rank": r}) for n, r in (("b", 2), ("c", 9), ("d", 5)))]
    policy = rebalancing(when=ex("True"), to=Destination(prefer=rank), gain=Gain(at_least=2))
    result = decide([policy], snap(nodes, [D0]))
    assert ops(result)["decode-0"].to_slot == "c/0"
    assert finding(result, "decode-0").reason == "it moves to c/0, better by 8"
    for missing in ('v("metrics.rank")', 'v("worker.kvUsage")'):
        blind = rebalancing(when=ex("True"), to=Destination(prefer=ex(missing)), gain=Gain(at_least=2))
        unknown = decide([blind], snap(nodes, [D0]))
        assert (kinds(unknown), finding(unknown, "decode-0").verdict) == ([], Verdict.INCONCLUSIVE)
    where = rebalancing(when=EMPTY, to=Destination(where=ex('v("worker.kvUsage") > 0')))
    doubtful = decide([where], emptied(node("b")))
    assert (kinds(doubtful), finding(doubtful, "decode-0").gate) == ([], "to")


def test_when_must_hold_without_a_break():
    def series(*values):
        start = NOW - 2 * (len(values) - 1)
        return [
            snap(
                [node("a", ("decode-0",)), node("b")],
                [D0],
                samples={"decode-0": {"sessions": v}} if v is not None else {},
                at=start + 2 * i,
            )
            for i, v in enumerate(values)
        ]

    policy = rebalancing(when=ex('v("worker.sessions") > 1 and v("node.id") == "a"'), for_=Duration(4))
    assert horizon(policy_set(policy)) == 4
    assert kinds(decide([policy], series(0, 3, 3, 3))) == [("move", "decode-0")]
    for values, why in (
        ((3, 0, 3, 3), "it didn't hold before"),
        ((3, None, 3, 3), "it was undecided before"),
        ((3, 3), "reaches no further"),
    ):
        held = finding(decide([policy], series(*values)), "decode-0")
        assert (held.verdict, held.gate) == (Verdict.HOLD, "for")
        assert why in next(e for e in held.evidence if e.gate == "for").detail
    away = series(3, 3, 3, 3)
    away[1] = snap([node("a"), node("b")], [], at=away[1].at)
    assert kinds(decide([policy], away)) == [], "it wasn't there"


def test_unknown_conditions_are_inconclusive():
    policy = rebalancing(when=ex('v("worker.sessions") > 1'))
    for samples in ({}, {"decode-0": {"sessions": Missing(reason="NaN")}}):
        result = decide([policy], emptied(node("b"), samples=samples))
        found = finding(result, "decode-0")
        assert (kinds(result), found.verdict, found.reason) == ([], Verdict.INCONCLUSIVE, "no value for worker.sessions")
    select = rebalancing(when=EMPTY, workers=WorkerSelector(where=ex('v("worker.sessions") > 1')))
    assert finding(decide([select], emptied(node("b"))), "decode-0").verdict is Verdict.INCONCLUSIVE


def moved(seconds, *, policy="tidy", status=Status.SUCCEEDED, lane="voluntary", name="m", **more):
    one = operation(OperationKind.MOVE, "decode-0", policy=policy, lane=lane, id=f"{name}-{seconds}", **more)
    return ended(one, status, code="" if status is Status.SUCCEEDED else "SH711", at=NOW - seconds + 1, began=NOW - seconds)


@pytest.mark.parametrize(("policy", "lane"), [("tidy", "voluntary"), ("other", "voluntary"), ("save", "involuntary")])
def test_a_worker_that_was_moved_by_whomever_rests(policy, lane):
    rests = rebalancing(when=EMPTY, cooldown=Duration(300))
    for seconds, moves in ((299, False), (301, True)):
        state = EngineState(recent=(moved(seconds, policy=policy, lane=lane),))
        result = decide([rests], emptied(node("b")), state)
        assert bool(kinds(result)) is moves
    held = finding(decide([rests], emptied(node("b")), EngineState(recent=(moved(10, policy=policy, lane=lane),))), "decode-0")
    assert (held.verdict, held.gate) == (Verdict.HOLD, "cooldown")


def test_failures_wait_twice_as_long_each_and_then_ask_a_person():
    rests = rebalancing(when=EMPTY, cooldown=Duration(100))
    failed = [moved(s, status=Status.ROLLED_BACK, to_slot="b/0") for s in (900, 199)]
    held = finding(decide([rests], emptied(node("b"), node("c")), EngineState(recent=tuple(failed))), "decode-0")
    assert held.gate == "cooldown"
    assert "2 moves of it failed in a row (move rolled-back: SH711 it broke)" in held.reason
    failed[1] = moved(201, status=Status.ROLLED_BACK, to_slot="b/0")
    after = decide([rests], emptied(node("b"), node("c")), EngineState(recent=tuple(failed)))
    assert ops(after)["decode-0"].to_slot == "c/0", "not where it failed"
    third = [*failed, moved(150, status=Status.SUCCEEDED)]
    asked = finding(decide([rests], emptied(node("b"), node("c")), EngineState(recent=tuple(third))), "decode-0")
    assert (asked.gate, asked.reason) == ("repeats", "3 moves of it within the hour, 2 of them in vain: it needs a person")


def test_moves_because_nodes_were_going_are_nobody_s_fault():
    rests = rebalancing(when=EMPTY, cooldown=Duration(100))
    state = EngineState(recent=tuple(moved(s, lane="involuntary", policy="save") for s in (900, 600, 300)))
    assert kinds(decide([rests], emptied(node("b")), state)) == [("move", "decode-0")]


def test_steps_go_to_those_who_have_waited_longest():
    workers = [worker(f"decode-{i}", f"a{i}/0") for i in range(3)]
    old = [node(f"a{i}", (f"decode-{i}",)) for i in range(3)]

    def at(when, *waits):
        nodes = [node(n.id, (n.slots[0].worker,), labels={"state": "empty-me"} if n.id in waits else {}) for n in old]
        return snap([*nodes, node("b0"), node("b1"), node("b2")], workers, at=when)

    series = [at(NOW - 4), at(NOW - 2, "a2"), at(NOW, "a0", "a1", "a2")]
    free = budget(max_concurrent=9)
    one = decide([free, rebalancing(when=EMPTY)], series)
    assert kinds(one) == [("move", "decode-2")]
    assert finding(one, "decode-0").gate == "step"
    two = decide([free, rebalancing(when=EMPTY, step=2)], series)
    assert kinds(two) == [("move", "decode-2"), ("move", "decode-0")]
    assert len({o.to_slot for o in two.plan.operations}) == 2
    held = decide([rebalancing(when=EMPTY, step=2)], series)
    assert [finding(held, f"decode-{i}").gate for i in (0, 1)] == ["budget", "budget"]


def test_ids_stay_while_the_snapshots_roll_on():
    series = [snap([node("a", ("decode-0",)), node("b")], [D0], at=NOW - 4), emptied(node("b"), at=NOW - 2), emptied(node("b"))]
    first = decide([rebalancing(when=EMPTY)], series).plan.operations
    later = decide([rebalancing(when=EMPTY)], [*series, emptied(node("b"), at=NOW + 2)], now=NOW + 2).plan.operations
    assert [o.id for o in first] == [o.id for o in later] != []


@pytest.mark.parametrize(
    ("world", "gate"),
    [
        (emptied(node("b"), notices=[notice("a")]), "node.noticed"),
        (emptied(node("b", reachable=False)), "to"),
        (emptied(node("b", roles=("prefill",))), "to"),
        (emptied(node("b"), notices=[notice("b")]), "to"),
        (emptied(), "to"),
    ],
)
def test_what_keeps_it_where_it_is(world, gate):
    result = decide([rebalancing(when=EMPTY)], world)
    assert (kinds(result), finding(result, "decode-0").gate) == ([], gate)


def test_other_work_goes_first():
    busy = EngineState(active=(begun(operation(OperationKind.CHECKPOINT, "decode-0")),))
    assert finding(decide([rebalancing(when=EMPTY)], emptied(node("b")), busy), "decode-0").gate == "worker"
    other = worker("decode-1", "c/0")
    world = snap([*emptied(node("b")).fleet.nodes, node("c", ("decode-1",)), node("d")], [D0, other], notices=[notice("c")])
    result = decide([preemption(), rebalancing(when=EMPTY)], world)
    assert kinds(result) == [("move", "decode-1")]
    assert finding(result, "decode-0", "tidy").gate == "lane"
    assert finding(decide([rebalancing(when=EMPTY)], emptied(node("b")), now=NOW + 31), "decode-0").gate == "snapshot"
    fenced = snap(emptied(node("b")).fleet.nodes, [worker("decode-0", "a/0", state=WorkerState.FENCED)])
    assert finding(decide([rebalancing(when=EMPTY)], fenced), "decode-0").gate == "worker.state"


def full(tokens=None, sessions=2.0):
    given = {"sessions": sessions} | ({"kvTokens": tokens} if tokens is not None else {})
    return emptied(node("b"), samples={"decode-0": given})


@pytest.mark.parametrize(
    ("native", "rate", "tokens", "moves", "said"),
    [
        (481, 1000.0, 50_000, True, "against a native start 481 s, 531 s with 50,000 tokens computed again at 1000 a second"),
        (5, 1000.0, 1_000, False, "starting it anew elsewhere is quicker: the move stops it for 20 s; a native start 5 s, 6 s with 1,000"),
        (5, 1000.0, 20_000, True, "against a native start 5 s, 25 s with 20,000 tokens"),
        (5, None, 1_000, False, "20 s; a native start 5 s, and no profile says what computing the context again takes"),
        (5, None, None, False, "20 s; a native start 5 s, and no profile says what computing the context again takes"),
        (20, None, None, True, "against a native start 20 s"),
        (481, 1000.0, None, True, "a native start 481 s, and how much context is to be computed again isn't known"),
        (None, 1000.0, 1_000, True, "planning profile"),
    ],
)
def test_a_move_that_is_slower_than_a_native_start_is_not_made(native, rate, tokens, moves, said):
    site = figures(native_start=None if native is None else Duration(native), prefill_rate=rate)
    result = decide([site, rebalancing(when=EMPTY)], full(tokens))
    assert bool(kinds(result)) is moves
    found = finding(result, "decode-0")
    told = result.plan.operations[0].estimate.basis if moves else found.reason
    assert said in told
    weighed = next(e for e in found.evidence if e.gate == "cost")
    assert ("worker.kvTokens" in [i.name for i in weighed.inputs]) is (tokens is not None)
    if not moves:
        assert (found.verdict, found.gate) == (Verdict.HOLD, "cost")


def test_long_contexts_make_starting_anew_dearer():
    """20 s of standing still against 5 s and 10,000 tokens at 1,000 a second: that is 15 s, but 20.3 s where late tokens cost more."""
    for doubling, moves in ((None, False), (9_500.0, True)):
        site = figures(native_start=Duration(5), prefill_rate=1000.0, prefill_doubling=doubling)
        world = emptied(node("b"), samples={"decode-0": {"sessions": 1.0, "kvTokens": 10_000.0}})
        result = decide([site, rebalancing(when=EMPTY)], world)
        assert bool(kinds(result)) is moves
    assert "10,000 tokens, which take as long as 15,263 at the beginning of contexts, computed" in result.plan.operations[0].estimate.basis


LOST = Missing(reason="the scrape failed")


@pytest.mark.parametrize("lost", [{}, {"kvTokens": LOST}, {"kvTokens": Stale(value=1, age=99, max_age=30, query="q")}])
def test_tokens_that_get_lost_make_no_move_happen_that_was_held(lost):
    site = figures(native_start=Duration(5), prefill_rate=1000.0)
    known = decide([site, rebalancing(when=EMPTY)], full(1_000))
    result = decide([site, rebalancing(when=EMPTY)], emptied(node("b"), samples={"decode-0": {"sessions": 2.0, **lost}}))
    assert (kinds(known), kinds(result)) == ([], [])
    found = finding(result, "decode-0")
    assert (found.verdict, found.gate) == (Verdict.INCONCLUSIVE, "cost")
    assert "no value for worker.kvTokens; the move stops it for 20 s; a native start 5 s" in found.reason


@pytest.mark.parametrize(("native", "moves"), [(1, False), (600, False), (None, True)])
def test_a_size_that_is_not_known_is_no_reason_to_move(native, moves):
    world = emptied(node("b"))
    world = snap(world.fleet.nodes, [msgspec.structs.replace(w, memory=None) for w in world.fleet.workers])
    site = figures(native_start=None if native is None else Duration(native), prefill_rate=1000.0)
    result = decide([site, rebalancing(when=EMPTY)], world)
    assert bool(kinds(result)) is moves
    if not moves:
        assert (finding(result, "decode-0").verdict, finding(result, "decode-0").gate) == (Verdict.INCONCLUSIVE, "cost")


def test_samples_are_evidence():
    world = emptied(node("b"), samples={"decode-0": {"sessions": Known(value=3, unit="1", at=NOW, query="q")}})
    found = finding(decide([rebalancing(when=ex('v("worker.sessions") > 5'))], world), "decode-0")
    assert (found.verdict, found.evidence[0].inputs[0].sample.value) == (Verdict.PASS, 3)


def crowd(at="a", incarnation=0):
    """Eight workers on one of two nodes of eight slots."""
    names = tuple(f"decode-{i}" for i in range(8))
    nodes = [node(n, names if n == at else (None,) * 8) for n in ("a", "c")]
    return snap(nodes, [worker(name, f"{at}/{i}", incarnation=incarnation) for i, name in enumerate(names)])


EVEN = rebalancing(when=ex("True"), to=Destination(prefer=FREE), gain=Gain(at_least=2), step=8)
LOOSE = budget(max_concurrent=8)


def test_a_plan_of_several_moves_stops_where_the_next_would_be_no_gain():
    result = decide([EVEN, LOOSE], crowd())
    moved = ops(result)
    assert sorted(o.to_slot for o in moved.values()) == [f"c/{i}" for i in range(4)], "four here and four there"
    reasons = [finding(result, name).reason for name in moved]
    assert reasons[0] == "it moves to c/0, better by 8"
    assert reasons[3].endswith("better by 2")
    held = finding(result, "decode-7")
    assert (held.verdict, held.gate) == (Verdict.HOLD, "gain")


def test_a_node_that_is_full_gives_up_no_more_than_it_takes():
    full = rebalancing(when=ex('v("node.freeSlots") < 2'), step=8)
    result = decide([full, LOOSE], crowd())
    assert len(ops(result)) == 2
    held = finding(result, "decode-7")
    assert (held.verdict, held.gate) == (Verdict.HOLD, "when")
    assert "`when` isn't true for it any more" in held.reason


def test_what_was_moved_by_choice_does_not_go_back_within_the_hour():
    away = rebalancing(when=ex('v("node.id") == "c"'))
    state = EngineState(recent=(moved_by("other", "decode-0", "a/0", "c/0", began=NOW - 3000),))
    back = decide([away], crowd("c", incarnation=1), state)
    assert finding(back, "decode-0").gate == "undo"
    assert "other moved it away from a at " in finding(back, "decode-0").reason
    assert kinds(back) == [("move", "decode-1")]
    for spared in (
        moved_by("other", "decode-0", "a/0", "c/0", began=NOW - 3000, lane="involuntary"),
        moved_by("other", "decode-0", "a/0", "c/0", began=NOW - 3601),
        moved_by("other", "decode-0", "b/0", "c/0", began=NOW - 3000),
    ):
        assert kinds(decide([away], crowd("c", incarnation=1), EngineState(recent=(spared,)))) == [("move", "decode-0")]


def moved_by(policy, of, source, target, *, began, lane="voluntary"):
    return ended(
        operation(OperationKind.MOVE, of, policy=policy, from_slot=source, to_slot=target, lane=lane), Status.SUCCEEDED, began=began
    )


RANKED = Destination(prefer=ex('{"spot": 1.0, "reserved": 2.0}[v("node.labels")["t"]]'))
ON_SPOT, RESERVED = ex('v("node.labels")["t"] == "spot"'), ex('v("node.labels")["t"] == "reserved"')
TWO = [node("a", ("decode-0",), labels={"t": "spot"}), node("b", labels={"t": "reserved"})]


def test_it_does_not_go_where_another_policy_would_move_it_again():
    leave, back = rebalancing("leave", when=ON_SPOT), rebalancing("back", when=RESERVED)
    assert kinds(decide([leave], snap(TWO, [D0]))) == [("move", "decode-0")]
    result = decide([leave, back], snap(TWO, [D0]))
    assert kinds(result) == []
    held = finding(result, "decode-0", "leave")
    assert (held.verdict, held.gate, held.reason) == (Verdict.HOLD, "after", "once on b, back would move it again")
    third = decide([leave, back], snap([*TWO, node("c", labels={"t": "other"})], [D0]))
    assert ops(third)["decode-0"].to_slot == "c/0"


@pytest.mark.parametrize(
    "other",
    [
        rebalancing("back", when=RESERVED, mode="preview"),
        rebalancing("back", when=RESERVED, workers=WorkerSelector(role="prefill")),
        rebalancing("back", when=RESERVED, workers=WorkerSelector(where=ex('v("node.id") != "b"'))),
        rebalancing("back", when=ex('v("worker.kvUsage") > 0')),
        rebalancing("back", when=ex('v("worker.sessions") > 0')),
        rebalancing("back", when=ex('v("node.labels")["t"] in ("spot", "reserved")')),
        rebalancing("back", when=ex("True"), to=RANKED, gain=Gain(at_least=1)),
    ],
)  # fmt: skip
def test_policies_that_would_not_undo_it_keep_no_worker_from_moving(other):
    result = decide([rebalancing("leave", when=ON_SPOT), other], snap(TWO, [D0], samples={"decode-0": {"sessions": 1}}))
    assert ops(result)["decode-0"].to_slot == "b/0"


def test_another_policys_gain_is_what_going_back_would_bring():
    prefer = ex('{"spot": 2.0, "reserved": 1.0}[v("node.labels")["t"]]')
    for at_least, moves in ((1, False), (1.5, True)):
        other = rebalancing("back", when=ex("True"), to=Destination(prefer=prefer), gain=Gain(at_least=at_least))
        result = decide([rebalancing("leave", when=ON_SPOT), other], snap(TWO, [D0]))
        assert bool(kinds(result)) is moves
