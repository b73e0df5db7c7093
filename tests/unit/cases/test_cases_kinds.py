"""Tests of budgets, windows, rebalancing, profiles and of following the planner."""

import pytest
from case_files import LEAVE, differences, ran, told
from shunter.cases.coverage import coverage
from shunter.cases.moment import NoMoment, moment
from shunter.lang.load import check_text
from shunter.model.finding import Verdict

BUDGET = b"""
apiVersion: shunter.dev/v1alpha1
kind: DisruptionBudget
metadata: {name: gently}
spec:
  workers: {role: decode}
  maxConcurrent: 50%
  windows: [{zone: Europe/Berlin, from: "22:00", to: "06:00", days: [sat]}]
"""
SPREAD = b"""
apiVersion: shunter.dev/v1alpha1
kind: RebalancePolicy
metadata: {name: spread}
spec:
  workers: {role: decode}
  when: node.labels["tier"] == "old"
  for: 10s
  to: {where: 'node.labels["tier"] == "new"'}
  step: 2
"""
PROFILE = b"""
apiVersion: shunter.dev/v1alpha1
kind: FleetProfile
metadata: {name: slow}
spec: {dump: 1GB/s, restore: 1GB/s, network: 1GB/s}
"""
FOLLOW = b"""
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: follow}
spec: {workers: {graph: demo}, from: decode, to: prefill, follow: planner, for: 10s, sessions: drain}
"""
FILES = {"budget.yaml": BUDGET, "spread.yaml": SPREAD, "profile.yaml": PROFILE, "follow.yaml": FOLLOW, "leave.yaml": LEAVE}
MOVING = """
policies: [spread.yaml, budget.yaml]
fleet:
  nodes:
    a: {slots: 3, labels: {tier: old}}
    b: {slots: 3, labels: {tier: new}}
  workers:
    decode-0: {node: a}
    decode-1: {node: a}
    decode-2: {node: a}
tests:
  - name: x
    start: START
    carryOut: true
    expect:
"""
OPEN, SHUT = "2026-03-28 23:00 Europe/Berlin", "2026-03-28 12:00 Europe/Berlin"


def moving(expected: str, start: str = OPEN) -> str:
    return MOVING.replace("START", start) + f"      - {expected}\n"


# -- budgets and windows


def test_a_budget_lets_through_what_it_allows_and_holds_the_rest():
    expected = """{at: 10s, operations: [{kind: move, worker: decode-0, to: b}], findings: [
          {policy: spread, subject: decode-1, verdict: hold, gate: budget, reason: "1 of 1 at once in pool:demo/decode"},
          {policy: gently, subject: "pool:demo/decode", verdict: hold, gate: maxConcurrent, reason: "50% of 3 rounded down"}]}"""
    assert differences(moving(expected), FILES) == []
    alone = moving(expected).replace("budget.yaml", "leave.yaml")
    assert [line.partition(". ")[0] for line in told(alone, FILES)] == [
        '18:37 SH162 there is no worker or graph "pool:demo/decode"',
        '18:20 SH162 there is no policy "gently"',
    ]


def test_what_is_carried_out_counts_and_then_makes_room():
    later = moving("{at: 40s, operations: [{kind: move, worker: decode-1}], workers: {decode-0: {node: b}, decode-1: {node: a}}}")
    assert differences(later, FILES) == []
    meanwhile = moving("{at: 20s, operations: [], findings: [{policy: gently, subject: 'pool:demo/decode', verdict: hold}]}")
    assert differences(meanwhile, FILES) == []


def test_a_window_is_shut_until_it_opens_on_the_clocks_of_its_zone():
    expected = """{at: 10s, operations: [], findings: [
          {policy: gently, subject: "pool:demo/decode", verdict: hold, gate: windows, reason: "opens at sat 2026-03-28 22:00"},
          {policy: spread, subject: decode-0, verdict: hold, gate: budget}]}"""
    assert differences(moving(expected, SHUT), FILES) == []
    last_moment = moving("{at: 10s, operations: []}", "2026-03-28 21:59:45 Europe/Berlin")
    assert differences(last_moment, FILES) == []
    opened = moving("{at: 15s, operations: [{kind: move, worker: decode-0}]}", "2026-03-28 21:59:45 Europe/Berlin")
    assert differences(opened, FILES) == []
    same_in_utc = moving("{at: 15s, operations: [{kind: move, worker: decode-0}]}", '"2026-03-28T20:59:45Z"')
    assert differences(same_in_utc, FILES) == []
    assert differences(same_in_utc.replace("2026-03-28T20", "2026-06-27T19"), FILES) == []  # in summer it is an hour earlier there


def test_a_budget_for_zones_and_nodes_names_its_groups():
    zoned = {**FILES, "budget.yaml": BUDGET.replace(b"  maxConcurrent: 50%", b"  maxConcurrent: 1\n  per: zone")}
    text = moving('{at: 10s, findings: [{policy: gently, subject: "zone:z1", verdict: hold, gate: maxConcurrent}]}')
    text = text.replace("tier: old", "tier: old, topology.kubernetes.io/zone: z1")
    assert differences(text, zoned) == []
    assert "no worker, graph or group of a budget" in told(text.replace("zone:z1", "zone:z2"), zoned)[0]
    by_node = {**FILES, "budget.yaml": BUDGET.replace(b"  maxConcurrent: 50%", b"  maxConcurrent: 1\n  per: node")}
    assert differences(text.replace("zone:z1", "node:a"), by_node) == []


# -- figures


def test_a_profile_among_the_policies_is_planned_with():
    quick = moving("{at: 1m, workers: {decode-0: {node: b}}}")
    assert differences(quick, FILES) == []
    slow = quick.replace("budget.yaml", "profile.yaml")
    assert differences(slow, FILES) == [("worker  decode-0: on b", "worker  decode-0: running, on a/0")]
    assert differences(slow.replace("at: 1m", "at: 4m"), FILES) == []


# -- the planner

PLANNED = """
policies: [follow.yaml]
fleet:
  nodes: {a: {slots: 3}}
  workers:
    decode-0: {node: a}
    decode-1: {node: a}
    prefill-0: {node: a}
    prefill-1: {images: [{nodes: [a]}]}
tests:
  - name: x
    pools: POOLS
    expect:
"""


def planned(pools: str, expected: str) -> str:
    return PLANNED.replace("POOLS", pools) + f"      - {expected}\n"


@pytest.mark.parametrize("prefill", ["prefill", "demo/prefill"])
def test_what_the_planner_wants_is_carried_out_once_it_has_wanted_it_for_long_enough(prefill: str):
    pools = f"{{{prefill}: {{desired: 1 2}}, decode: {{desired: 2 1}}}}"
    assert differences(planned(pools, "{at: 0s, operations: [], findings: [{subject: demo, verdict: pass, gate: follow}]}"), FILES) == []
    assert differences(planned(pools, "{at: 10s, operations: [], findings: [{subject: demo, verdict: hold, gate: for}]}"), FILES) == []
    acts = "{at: 15s, findings: [{subject: demo, verdict: act}], exactly: false, operations: [{kind: drain, worker: decode-0}]}"
    assert differences(planned(pools, acts), FILES) == []


@pytest.mark.parametrize("pools", ["{}", "{prefill: {desired: 2}}", "{prefill: {desired: 2}, decode: {desired: failed}}"])
def test_without_the_planners_word_nothing_is_decided(pools: str):
    expected = "{at: 30s, operations: [], findings: [{subject: demo, verdict: inconclusive, gate: follow}]}"
    assert differences(planned(pools, expected), FILES) == []


@pytest.mark.parametrize(
    ("pools", "problem"),
    [
        ("{prefil: {desired: 2}}", '12:13 SH162 there is no pool "prefil". Did you mean "prefill"?'),
        ("{other/prefill: {desired: 2}}", '12:13 SH162 there is no pool "other/prefill". Did you mean "demo/prefill"?'),
        ("{prefill: {wanted: 2}}", '12:23 SH162 there is no pool metric "wanted". Write desired'),
        ("{prefill: {desired: two}}", "12:32 SH163 these values can't be read"),
    ],
)
def test_pools_that_are_not_there(pools: str, problem: str):
    (said,) = told(planned(pools, "{operations: []}"), FILES)
    assert said.startswith(problem)


# -- moments


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-01-01T00:00:00Z", 1_767_225_600),
        ("2026-01-01T01:00+01:00", 1_767_225_600),
        ("2026-01-01 00:00Z", 1_767_225_600),
        ("2026-01-01 01:00 Europe/Berlin", 1_767_225_600),
        ("2026-01-01T05:30 Asia/Kolkata", 1_767_225_600),
        ("2026-01-01 00:00 UTC", 1_767_225_600),
        ("2026-07-01 02:00 Europe/Berlin", 1_782_864_000),
        ("2026-03-29 01:59:59 Europe/Berlin", 1_774_745_999),
        ("2026-03-29 03:00 Europe/Berlin", 1_774_746_000),
    ],
)
def test_moments(text: str, utc: float):
    assert moment(text) == utc


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tomorrow", "is no moment"),
        ("2026-13-01T00:00Z", "is no moment"),
        ("2026-01-01T00:00", "has no time zone"),
        ("2026-01-01 00:00", "has no time zone"),
        ("2026-01-01T00:00Z Europe/Berlin", "two time zones"),
        ("2026-01-01 00:00 Berlin", 'Did you mean "Europe/Berlin"?'),
        ("2026-01-01 00:00 CET", "Europe/Berlin or Europe/Paris"),
        ("2026-03-29 02:30 Europe/Berlin", "never show 02:30"),
        ("2026-10-25 02:30 Europe/Berlin", "Write 2026-10-25T02:30+02:00 or 2026-10-25T02:30+01:00"),
    ],
)
def test_what_is_no_moment_says_what_to_write(text: str, words: str):
    with pytest.raises(NoMoment) as caught:
        moment(text)
    assert words in ". ".join(caught.value.said)


# -- coverage


def shown(text: str):
    policies = [p for name, data in FILES.items() for p in check_text(f"repo/{name}", data)[0]]
    return {c.policy: c for c in coverage([ran(text, FILES)], policies)}


def test_coverage_has_a_budgets_limits_and_no_profile():
    covered = shown(moving("{at: 10s, operations: []}", SHUT))
    assert "slow" not in covered
    assert (covered["gently"].tests, covered["gently"].unshown) == (0, ("maxConcurrent", "windows"))
    named = shown(moving("{at: 10s, findings: [{policy: gently, subject: 'pool:demo/decode', verdict: hold, gate: windows}]}", SHUT))
    assert (named["gently"].tests, named["gently"].verdicts[Verdict.HOLD]) == (1, 1)
    assert (named["gently"].gates, named["gently"].unshown) == (("windows",), ("maxConcurrent",))
    assert {"for", "cooldown"} <= set(named["spread"].unshown)
    assert "gain" not in named["spread"].unshown
