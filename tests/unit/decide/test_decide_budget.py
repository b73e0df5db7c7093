import datetime

import msgspec
import pytest
from decide_world import (
    FAST,
    NOW,
    PyRules,
    begun,
    budget,
    checkpoints,
    decide,
    ended,
    ex,
    finding,
    image,
    kinds,
    node,
    notice,
    operation,
    policy_set,
    preemption,
    reassignment,
    rebalancing,
    snap,
    worker,
)
from shunter.decide.budget import effective
from shunter.decide.evaluate import evaluate
from shunter.decide.explain import explain
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState, Status
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import Limits, PerWindow, Trigger, Window, WorkerSelector
from shunter.model.sample import Missing
from shunter.model.snapshot import ZONE_LABEL, WorkerState
from shunter.model.units import Duration, Share

LEAVE = ex('("%s" % v("node.id"))[0] == "a"')
"""Workers of the nodes a0, a1, ... ought to be elsewhere; at the nodes b0, b1, ... they may stay."""


def busy(count, *, zone=None):
    """`count` decode workers, each on a node of its own, and as many free nodes."""
    workers = [worker(f"decode-{i}", f"a{i}/0") for i in range(count)]
    labels = [{ZONE_LABEL: zone(i)} if zone and zone(i) else {} for i in range(count)]
    taken = [node(f"a{i}", (f"decode-{i}",), labels=labels[i]) for i in range(count)]
    return snap([*taken, *(node(f"b{i}") for i in range(count))], workers)


def tidy(**more):
    return rebalancing(when=LEAVE, step=100, **more)


def moved(result):
    return [o.worker for o in result.plan.operations if not o.preview]


def active(of, kind=OperationKind.MOVE, lane="involuntary", **more):
    return begun(operation(kind, of, lane=lane, **more))


def test_no_budget_means_one_at_a_time_in_each_pool_and_says_so():
    prefill = worker("prefill-0", "a9/0")
    world = busy(3)
    both = snap([*world.fleet.nodes, node("a9", ("prefill-0",)), node("b9")], [*world.fleet.workers, prefill])
    result = decide([tidy()], both)
    assert moved(result) == ["decode-0", "prefill-0"]
    held = finding(result, "decode-1")
    assert (held.verdict, held.gate) == (Verdict.HOLD, "budget")
    assert held.reason == "no budget covers it, so one at a time: 1 of 1 at once in pool:tiny/decode"


@pytest.mark.parametrize(
    ("limit", "size", "allowed", "told"),
    [
        (Share(0.03), 20, 0, " (3% of 20 rounded down: 0)"),
        (Share(0.03), 40, 1, " (3% of 40 rounded down: 1)"),
        (Share(0.29), 100, 29, " (29% of 100: 29)"),
        (Share(1.0), 7, 7, " (100% of 7: 7)"),
        (Share(0.5), 0, 0, " (50% of 0: 0)"),
        (3, 2, 3, ""),
    ],
)
def test_shares_round_down_and_the_effective_number_is_said(limit, size, allowed, told):
    assert effective(limit, size) == (allowed, told)


def test_at_once_counts_what_is_under_way_in_either_lane_and_what_is_planned():
    few = budget(max_concurrent=2)
    assert moved(decide([few, tidy()], busy(4))) == ["decode-0", "decode-1"]
    other = budget(max_concurrent=2, workers=WorkerSelector(graph="other"))
    assert len(moved(decide([other, tidy()], busy(4)))) == 1, "a budget that doesn't cover a worker is no leave for it"
    # an involuntary move holds the graph's voluntary work anyway; a checkpoint in either lane isn't a disruption by default
    result = decide([few, tidy()], busy(4), EngineState(active=(active("decode-3", lane="voluntary", pool="tiny/decode"),)))
    assert moved(result) == ["decode-0"]
    assert finding(result, "pool:tiny/decode").reason.startswith("2 of 2 at once; it holds move of decode-1 by tidy")
    resting = EngineState(active=(active("decode-3", OperationKind.CHECKPOINT, lane="voluntary"),))
    assert len(moved(decide([few, tidy()], busy(4), resting))) == 2


def test_involuntary_work_counts_but_never_asks():
    world = snap(busy(4).fleet.nodes, busy(4).fleet.workers, notices=[notice("a0"), notice("a1")])
    none = budget(max_concurrent=0)
    result = decide([none, preemption()], world)
    assert moved(result) == ["decode-0", "decode-1"]
    assert finding(result, "pool:tiny/decode").reason == "2 of 0 at once"


def test_the_most_restrictive_budget_wins():
    policies = [budget("aa", max_concurrent=3), budget("bb", max_concurrent=1, per="all"), budget("cc", max_concurrent=2), tidy()]
    result = decide(policies, busy(4))
    assert moved(result) == ["decode-0"]
    assert finding(result, "decode-1").reason == "budget bb: 1 of 1 at once in all"
    assert [e.result for e in finding(result, "decode-1").evidence if e.gate == "budget"] == [True, False, True]


def test_of_several_that_refuse_the_one_that_leaves_least_says_why():
    """Three move already: of a budget of two one more than may be, of one of three none is left, and a shut one has nothing at all."""
    going = EngineState(active=tuple(active(f"decode-{n}", lane="voluntary") for n in (3, 4, 5)))
    loose, tight = budget("aa", max_concurrent=3), budget("bb", max_concurrent=2)
    both = decide([loose, tight, tidy()], busy(6), going)
    assert finding(both, "decode-0").reason == "budget bb: 3 of 2 at once in pool:tiny/decode"
    shut = budget("cc", max_concurrent=9, windows=(Window(days=("mon",), from_="00:00", to="00:01", zone="UTC"),))
    assert finding(decide([loose, tight, shut, tidy()], busy(6), going), "decode-0").reason.startswith("budget cc: its windows are closed")
    assert finding(decide([loose, budget("bb", max_concurrent=3), tidy()], busy(6), going), "decode-0").reason.startswith("budget aa")


def test_of_a_budgets_limits_the_one_that_leaves_least_says_why():
    going = EngineState(active=tuple(active(f"decode-{n}", lane="voluntary") for n in (3, 4, 5)))
    one = budget(max_concurrent=3, max_per_window=PerWindow(max=1, window=Duration(600)))
    assert finding(decide([one, tidy()], busy(6), going), "decode-0").reason == "budget calm: 3 of 1 begun within 10m in pool:tiny/decode"
    other = budget(max_concurrent=1, max_per_window=PerWindow(max=3, window=Duration(600)))
    assert finding(decide([other, tidy()], busy(6), going), "decode-0").reason == "budget calm: 3 of 1 at once in pool:tiny/decode"


def test_within_a_stretch_of_time_what_began_in_it_counts_however_it_ended():
    def before(seconds, of="decode-9", status=Status.SUCCEEDED, **more):
        one = operation(OperationKind.MOVE, of, id=f"m-{of}-{seconds}", pool="tiny/decode", **more)
        return ended(one, status, at=NOW - seconds + 1, began=NOW - seconds)

    few = budget(max_per_window=PerWindow(max=3, window=Duration(600)))
    for recent, allowed in (
        ((), 3),
        ((before(599), before(600)), 2),
        ((before(10, status=Status.ROLLED_BACK), before(20, status=Status.FAILED)), 1),
        ((before(10, status=Status.SUPERSEDED),), 3),
        ((before(10, policy="x", lane="involuntary"),), 2),
    ):
        assert len(moved(decide([few, tidy()], busy(6), EngineState(recent=recent)))) == allowed
    told = finding(decide([few, tidy()], busy(6), EngineState(recent=(before(5),))), "pool:tiny/decode").reason
    assert told.startswith("3 of 3 begun within 10m; it holds")


def test_an_operation_whose_worker_is_gone_counts_where_it_was_and_if_that_is_unknown_everywhere():
    few = budget(max_per_window=PerWindow(max=1, window=Duration(600)))
    for pool, allowed in (("tiny/decode", 0), ("tiny/prefill", 1), (None, 0)):
        gone = ended(operation(OperationKind.DRAIN, "gone-0", pool=pool), Status.SUCCEEDED, at=NOW - 30)
        assert len(moved(decide([few, tidy()], busy(3), EngineState(recent=(gone,))))) == allowed, pool


def test_groups_by_node_zone_and_all():
    workers = [worker(f"decode-{i}", f"a{i // 2}/{i % 2}") for i in range(4)]
    nodes = [node(f"a{i}", (f"decode-{2 * i}", f"decode-{2 * i + 1}")) for i in range(2)]
    world = snap([*nodes, *(node(f"b{i}") for i in range(4))], workers)
    assert moved(decide([budget(max_concurrent=1, per="node"), tidy()], world)) == ["decode-0", "decode-2"]
    assert moved(decide([budget(max_concurrent=1, per="all"), tidy()], world)) == ["decode-0"]
    zones = busy(4, zone=lambda i: "x" if i < 2 else "y")
    result = decide([budget(max_concurrent=1, per="zone"), tidy()], zones)
    assert moved(result) == ["decode-0", "decode-2"]
    assert finding(result, "zone:x").verdict is Verdict.HOLD


def test_a_node_without_a_zone_counts_as_zero_for_its_own_workers_only():
    result = decide([budget(max_concurrent=9, per="zone"), tidy()], busy(3, zone=lambda i: None if i == 1 else "x"))
    assert moved(result) == ["decode-0", "decode-2"]
    assert f"a1 has no label {ZONE_LABEL}" in finding(result, "decode-1").reason


def test_what_goes_on_at_a_node_without_a_zone_is_in_no_zone():
    going = EngineState(active=(active("decode-1", lane="voluntary", from_slot="a1/0", pool="tiny/decode"),))
    result = decide([budget(max_concurrent=1, per="zone"), tidy()], busy(3, zone=lambda i: None if i == 1 else "x"), going)
    assert moved(result) == ["decode-0"]
    gone = EngineState(active=(active("decode-9", lane="voluntary", from_slot="elsewhere/0", pool="tiny/decode"),))
    assert moved(decide([budget(max_concurrent=1, per="zone"), tidy()], busy(3, zone=lambda i: "x"), gone)) == [], "it may have been in x"


def test_only_workers_that_run_or_are_fenced_make_up_a_group():
    running = busy(4)
    away = [worker(f"decode-{i}") for i in range(4, 9)]
    fenced = [msgspec.structs.replace(running.fleet.workers[0], state=WorkerState.FENCED), *running.fleet.workers[1:]]
    half = budget(max_concurrent=Share(0.5))
    result = decide([half, tidy()], snap(running.fleet.nodes, [*fenced, *away]))
    assert finding(result, "pool:tiny/decode").reason.startswith("2 of 2 at once (50% of 4: 2)")


def test_a_selector_without_an_answer_counts_as_zero_for_its_own_worker_only():
    world = snap(
        busy(3).fleet.nodes,
        busy(3).fleet.workers,
        samples={"decode-0": {"sessions": 1}, "decode-1": {"sessions": Missing(reason="x")}, "decode-2": {"sessions": 4}},
    )
    select = WorkerSelector(where=ex('v("worker.sessions") < 5'))
    result = decide([budget(max_concurrent=9, workers=select), tidy()], world)
    assert moved(result) == ["decode-0", "decode-2"]
    assert "no value for worker.sessions" in finding(result, "decode-1").reason
    assert finding(result, "decode-1").gate == "budget"


def at_hour(text):
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()


def test_windows_hold_until_they_open():
    nightly = budget(max_concurrent=9, windows=(Window(zone="Europe/Berlin", from_="22:00", to="06:00"),))
    noon, night = at_hour("2026-11-30T12:00"), at_hour("2026-11-30T21:00")
    for now, allowed in ((noon, 0), (night - 1, 0), (night, 2)):
        world = snap(busy(2).fleet.nodes, busy(2).fleet.workers, at=now)
        result = decide([nightly, tidy()], world, now=now)
        assert len(moved(result)) == allowed
        if not allowed:
            why = "its windows are closed; opens at mon 2026-11-30 22:00 Europe/Berlin"
            assert finding(result, "decode-0").reason == f"budget calm: {why}"
            assert why in finding(result, "pool:tiny/decode").reason


def test_a_window_that_cannot_be_read_never_opens():
    broken = budget(max_concurrent=9, windows=(Window(zone="Mars/Olympus", from_="00:00", to="24:00"),))
    result = decide([broken, tidy()], busy(1))
    assert moved(result) == []
    assert "the time zone 'Mars/Olympus' isn't known here" in finding(result, "decode-0").reason


def test_previewed_budgets_are_shown_and_hold_nothing_and_those_that_are_off_say_nothing():
    result = decide([budget("aa", max_concurrent=3), budget("trial", max_concurrent=1, mode="preview"), tidy()], busy(4))
    assert len(moved(result)) == 3
    shown = finding(result, "pool:tiny/decode", "trial")
    assert shown.verdict is Verdict.PASS
    assert "it would hold move of decode-1 by tidy, move of decode-2 by tidy, move of decode-3 by tidy" in shown.reason
    assert len(moved(decide([budget(max_concurrent=3, mode="preview"), tidy()], busy(4)))) == 1, "in force is still none"
    off = decide([budget(max_concurrent=3, mode="off"), tidy()], busy(4))
    assert (len(moved(off)), [f for f in off.findings if f.policy == "calm"]) == (1, [])


def test_what_is_only_shown_takes_nothing_from_what_is_done():
    shown = tidy(name="aaa", mode="preview", priority=999)
    result = decide([budget(max_concurrent=2), shown, rebalancing(when=LEAVE, step=1)], busy(4))
    assert moved(result) == ["decode-0"]
    assert [o.worker for o in result.plan.operations if o.preview] == ["decode-1"], "the shown one is held by what is done"
    assert "2 of 2" not in finding(result, "pool:tiny/decode").reason


def test_checkpoints_ask_only_where_a_budget_counts_them():
    world = busy(6)
    assert len(kinds(decide([budget(max_concurrent=0), checkpoints()], world))) == 1, "a fifth of six, rounded down"
    none = decide([budget(max_concurrent=0, operations=("checkpoint",)), checkpoints(), tidy()], world)
    assert kinds(none) == [("move", "decode-0")], "no budget counts moves: one at a time"
    assert finding(none, "decode-1", "images").gate == "budget"


def shifting():
    """Two decode workers that could be parked for two prefill workers that wait."""
    workers = [worker("decode-0", "a/0"), worker("decode-1", "b/0"), worker("prefill-0", "c/0"), worker("prefill-1"), worker("prefill-2")]
    nodes = [node(n, (w.id,)) for n, w in zip("abc", workers, strict=False)]
    images = [image(f"i-{w.id}", w, "c") for w in workers[3:]]
    policy = reassignment(when=ex("True"), sessions="park", limits=Limits(step=2), cooldown=Duration(0))
    return policy, snap(nodes, workers, images)


def test_a_chain_is_one_disruption_and_planned_whole_or_not_at_all():
    policy, world = shifting()
    one = decide([budget(max_concurrent=1), policy], world)
    assert [k for k, _ in kinds(one)] == ["park", "restore"]
    none = decide([budget(max_concurrent=0), policy], world)
    assert kinds(none) == []
    held = finding(none, "tiny")
    assert (held.verdict, held.gate) == (Verdict.HOLD, "budget")
    assert held.reason.endswith("budget calm: 0 of 0 at once in pool:tiny/decode")
    # the one that comes isn't disrupted: a budget on prefill alone doesn't matter, but for the default that is left for decode
    prefill = decide([budget(max_concurrent=0, workers=WorkerSelector(role="prefill")), policy], world)
    assert [k for k, _ in kinds(prefill)] == ["park", "restore"]


def test_giving_back_asks_as_well():
    _, world = shifting()
    after = snap(
        [node("a", ("prefill-1",)), *world.fleet.nodes[1:]],
        [worker("decode-0"), *world.fleet.workers[1:3], worker("prefill-1", "a/0", incarnation=1), world.fleet.workers[4]],
        [image("i-d0", worker("decode-0"), "b")],
    )
    policy = reassignment(when=ex("1 > 2"), sessions="park", cooldown=Duration(0), revert=Trigger(when=ex("True")))
    assert [k for k, _ in kinds(decide([budget(max_concurrent=1), policy], after))] == ["park", "restore"]
    none = decide([budget(max_concurrent=0), policy], after)
    assert (kinds(none), finding(none, "tiny").gate) == ([], "budget")


def test_findings_show_use_and_size_also_when_nothing_asks():
    result = decide([budget(max_concurrent=Share(0.5), max_per_window=PerWindow(max=2, window=Duration(3600)))], busy(5))
    found = finding(result, "pool:tiny/decode")
    assert found.verdict is Verdict.PASS
    assert found.reason == ("0 of 2 at once (50% of 5 rounded down: 2); 0 of 2 begun within 1h")
    assert [e.gate for e in found.evidence] == ["per", "maxConcurrent", "maxPerWindow"]


def test_explain_names_the_workers_group():
    policies = [budget("by-node", per="node", max_concurrent=1), budget("by-pool", max_concurrent=0), budget("by-zone", per="zone")]
    world = busy(2, zone=lambda i: "x" if i else None)
    told = {e.policy: (e.subject, e.verdict) for e in explain(decide(policies, world), policy_set(*policies), world, "decode-0")}
    assert told["by-node"] == ("node:a0", Verdict.PASS)
    assert told["by-pool"] == ("pool:tiny/decode", Verdict.PASS)
    assert told["by-zone"][0] == "decode-0", "its node is in no zone: there is no group to speak of"


@pytest.mark.parametrize("fields", [{"max_per_window": PerWindow(max=1, window=Duration(3600))}, {"max_concurrent": 1}])
def test_what_leaves_the_nodes_that_a_budget_is_about_counts_for_it_all_the_same(fields):
    spot = ex('v("node.labels")["t"] == "spot"')
    few = budget(workers=WorkerSelector(where=spot), **fields)
    there, away = {"t": "spot"}, {"t": "reserved"}
    world = snap(
        [node("a", (None, "decode-1"), labels=there), node("b", ("decode-0", None, None), labels=away)],
        [worker("decode-0", "b/0", incarnation=1), worker("decode-1", "a/1")],
    )
    first = operation(OperationKind.MOVE, "decode-0", from_slot="a/0", to_slot="b/0", pool="tiny/decode", cause="rebalance:x")
    over = "max_per_window" in fields
    done = EngineState(recent=(ended(first, Status.SUCCEEDED, at=NOW - 60, began=NOW - 100),))
    state = done if over else EngineState(active=(begun(first),))
    policies = [few, rebalancing(when=spot)]
    assert kinds(decide(policies, world, EngineState())) == [("move", "decode-1")]
    result = decide(policies, world, state)
    assert kinds(result) == []
    assert "1 of 1 " in finding(result, "decode-1").reason
    elsewhere = msgspec.structs.replace(first, from_slot="b/1", expect=Preconditions(incarnation=0, at="b/1"))
    state = msgspec.structs.replace(
        state,
        active=tuple(msgspec.structs.replace(r, planned=elsewhere) for r in state.active),
        recent=tuple(msgspec.structs.replace(r, planned=elsewhere) for r in state.recent),
    )
    assert kinds(decide(policies, world, state)) == [("move", "decode-1")], "one that was never on such a node doesn't count"


def test_a_budget_asks_its_condition_once_of_each_worker_however_much_was_done_to_them():
    rules, where = PyRules(), ex('v("worker.incarnation") < 5')
    calm = budget(workers=WorkerSelector(where=where), max_concurrent=3, max_per_window=PerWindow(max=9, window=Duration(600)))
    recent = tuple(ended(operation(OperationKind.MOVE, f"decode-{n % 6}", id=f"move-{n}"), Status.SUCCEEDED) for n in range(5))
    result = evaluate(policy_set(tidy(), calm), [busy(6)], EngineState(recent=recent), NOW, rules, FAST)
    assert len(moved(result)) == 1, "the cooldown holds the five that were moved"
    assert rules.asked.count(where.text) == 6
