"""Budgets, profiles, followers, rebalancing and previews that go wrong together, or in a fleet."""

import pytest
from lang_documents import BUDGET, CADENCE, CHECKPOINT, FOLLOW, PREEMPT, PROFILE, REASSIGN, REBALANCE, swap
from shunter.cli.validate import check
from shunter.model.errors import Severity
from shunter.model.ids import Incarnation, NodeId, SlotId, WorkerId
from shunter.model.snapshot import Fleet, Node, Slot, Snapshot, Worker, WorkerState

ZONE = "topology.kubernetes.io/zone"
ALL_DAYS = "[mon, tue, wed, thu, fri, sat, sun]"


def problems(*documents: str, snapshot: Snapshot | None = None):
    report = check([(f"{chr(97 + n)}.yaml", d.encode()) for n, d in enumerate(documents)], snapshot=snapshot)
    assert all(p.severity is Severity.WARNING for p in report.problems), report.problems
    return report.problems


def found(*documents: str, snapshot: Snapshot | None = None):
    return [(p.code, p.what) for p in problems(*documents, snapshot=snapshot)]


def codes(*documents: str, snapshot: Snapshot | None = None):
    return [p.code for p in problems(*documents, snapshot=snapshot)]


def budget(name: str = "b", workers: str = "{role: decode}", limits: str = "maxConcurrent: 1", **keys: str) -> str:
    more = "".join(f"  {key}: {value}\n" for key, value in keys.items())
    head = f"apiVersion: shunter.dev/v1alpha1\nkind: DisruptionBudget\nmetadata: {{name: {name}}}\n"
    return f"{head}spec:\n  workers: {workers}\n  {limits}\n{more}"


def window(zone: str, begins: str, ends: str, days: str = ALL_DAYS) -> str:
    return f'windows: [{{zone: {zone}, from: "{begins}", to: "{ends}", days: {days}}}]'


def another(document: str, name: str = "another") -> str:
    old = document.split("name: ")[1].split("}")[0].split(",")[0]
    return document.replace(f"name: {old}", f"name: {name}", 1)


def mode(document: str, given: str) -> str:
    return document.replace("spec:\n", f"spec:\n  mode: {given}\n")


def test_kinds_that_go_together():
    assert found(REBALANCE, BUDGET, PROFILE, FOLLOW, CADENCE) == []


# -- budgets


@pytest.mark.parametrize(
    ("limits", "place"), [("maxConcurrent: 0", 18), ("maxConcurrent: 0%", 18), ("maxPerWindow: {max: 0, window: 1h}", 23)]
)
def test_a_budget_of_nothing(limits, place):
    (problem,) = problems(budget(limits=limits))
    assert (problem.code, problem.place.line, problem.place.column) == ("SH146", 6, place)
    assert "nothing voluntary ever begins" in problem.what
    assert codes(budget(limits=limits, mode="preview")) == []


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (("UTC", "01:00", "02:00"), ("UTC", "02:00", "03:00"), True),
        (("UTC", "01:00", "02:00"), ("UTC", "01:59", "03:00"), False),
        (("UTC", "22:00", "06:00", "[mon]"), ("UTC", "05:00", "07:00", "[tue]"), False),  # it ends on the next day
        (("UTC", "22:00", "06:00", "[mon]"), ("UTC", "05:00", "07:00", "[mon]"), True),
        (("UTC", "22:00", "06:00", "[sun]"), ("UTC", "05:00", "07:00", "[mon]"), False),  # and on the next week
        (("UTC", "00:00", "24:00", "[sun]"), ("UTC", "00:00", "24:00", "[mon]"), True),
        (("UTC", "10:00", "11:00"), ("Europe/Berlin", "10:00", "11:00"), True),
        (("UTC", "10:00", "11:00"), ("Europe/Berlin", "12:00", "12:30"), False),  # in summer
        (("UTC", "10:00", "11:00"), ("Europe/Berlin", "11:00", "11:30"), False),  # in winter
        (("Europe/Berlin", "10:00", "11:00"), ("Europe/Paris", "11:00", "12:00"), True),
        (("America/New_York", "00:00", "01:00"), ("Europe/London", "04:00", "04:30"), False),  # between their clock changes alone
        (("Asia/Kolkata", "00:00", "00:30", "[mon]"), ("UTC", "18:30", "18:45", "[sun]"), False),
        (("Asia/Kolkata", "00:00", "00:30", "[mon]"), ("UTC", "19:00", "19:15", "[sun]"), True),
    ],
)
def test_windows_of_two_budgets_that_are_never_open_together(one, other, apart):
    first, second = budget("one", limits=window(*one)), budget("other", limits=window(*other))
    expected = ["SH146"] if apart else []
    assert codes(first, second) == expected
    assert codes(another(second, "a"), another(first, "z")) == expected  # whichever is asked first
    assert codes(first, second.replace("role: decode", "role: prefill")) == []
    assert codes(first, second + "  operations: [checkpoint]\n") == []


def test_two_windows_of_one_budget_need_not_meet():
    both = window("UTC", "01:00", "02:00")[:-1] + ', {zone: UTC, from: "05:00", to: "06:00"}]'
    assert codes(budget(limits=both)) == []
    assert codes(budget("a", limits=both), budget("b", limits=window("UTC", "05:30", "05:40"))) == []
    ((code, what),) = found(budget("a", limits=both), budget("b", limits=window("UTC", "03:00", "05:00")))
    assert (code, what) == ("SH146", 'no window is open while one of "a" at a.yaml:3:18 is, and both cover decode workers')


# -- against a fleet


def fleet(decode: int, nodes: int = 2, zones: tuple[str | None, ...] = ("a", "b")) -> Snapshot:
    names = [NodeId(f"node-{n}") for n in range(nodes)]
    workers = tuple(
        Worker(
            id=WorkerId(f"decode-{n}"), role="decode", graph="tiny", engine="vllm", state=WorkerState.RUNNING, node=names[n % nodes],
            slot=SlotId(f"node-{n % nodes}/{n // nodes}"), incarnation=Incarnation(0),
        )
        for n in range(decode)
    )  # fmt: skip
    machines = tuple(
        Node(
            id=name,
            labels={ZONE: zone} if (zone := zones[n % len(zones)]) else {},
            slots=tuple(Slot(id=w.slot, worker=w.id) for w in workers if w.node == name and w.slot),
        )
        for n, name in enumerate(names)
    )
    return Snapshot(at=1_800_000_000.0, fleet=Fleet(nodes=machines, workers=workers))


@pytest.mark.parametrize(("per", "few"), [("pool", "pool:tiny/decode"), ("all", "all")])
def test_a_share_that_rounds_down_to_none(per, few):
    three = budget(limits="maxConcurrent: 3%", per=per)
    (problem,) = problems(three, snapshot=fleet(20))
    assert problem.code == "SH146"
    assert problem.what == f"3% of 20 workers ({few}) rounds down to none: nothing voluntary ever begins"
    assert problem.remedy == "Write 5% or more, or a number"
    assert codes(three.replace("3%", "5%"), snapshot=fleet(20)) == []
    assert codes(three, snapshot=fleet(34)) == []


def test_a_share_counts_in_each_group_and_for_either_limit():
    per_node = budget(limits="maxPerWindow: {max: 10%, window: 1h}", per="node")
    ((code, what),) = found(per_node, snapshot=fleet(15))  # 8 and 7
    assert (code, what) == ("SH146", "10% of 8 workers (node:node-0) rounds down to none: nothing voluntary ever begins in 2 of 2 groups")
    assert "in 1 of 2 groups" in found(per_node, snapshot=fleet(19))[0][1]  # 10 and 9
    assert found(per_node, snapshot=fleet(20)) == []


def test_a_budget_for_zones_where_a_node_has_none():
    zoned = budget(limits="maxConcurrent: 1", per="zone")
    assert found(zoned, snapshot=fleet(4)) == []
    ((code, what),) = found(zoned, snapshot=fleet(4, zones=("a", None)))
    assert code == "SH147"
    assert what == f"per is zone, and node-1 of 2 nodes with covered workers has no label {ZONE}"
    assert "node-0, node-1, node-2 and 2 more of 5" in found(zoned, snapshot=fleet(5, nodes=5, zones=(None,)))[0][1]
    assert found(zoned.replace("zone", "node"), snapshot=fleet(4, zones=("a", None))) == []
    assert found(zoned.replace("role: decode", "where: 'node.id == \"node-0\"'"), snapshot=fleet(4, zones=("a", None))) == []


# -- figures, and who decides


def test_two_profiles_that_give_one_figure():
    other = (
        another(PROFILE)
        .replace("network", "dump_")
        .replace("  dump: 40GB/s\n", "")
        .replace("dump_", "dump")
        .replace("maintenance", "drain")
    )
    (problem,) = problems(PROFILE, other)
    assert problem.code == "SH148"
    common = "dump, fixedDump, fixedRestore, lead.preemption, nativeStart, prefillDoubling, prefillRate, restore"
    assert problem.what == f'"b200" and "another" at b.yaml:3:18 both give {common} for NVIDIA B200'
    assert (problem.place.line, problem.remedy[:34]) == (6, 'By its name alone "another" counts')
    assert codes(PROFILE, swap(another(PROFILE), "B200", "H200").decode()) == []
    assert codes(PROFILE, mode(another(PROFILE), "off")) == []
    general = swap(PROFILE, "  gpuModel: NVIDIA B200\n", "").decode()
    assert codes(PROFILE, another(general)) == []
    assert "workers of any GPU model" in found(general, another(general))[0][1]
    head = PROFILE[: PROFILE.index("  dump")]
    assert codes(head + "  dump: 1GB/s\n  lead: {drain: 5s}\n", another(head) + "  network: 1GB/s\n  lead: {gone: 5s}\n") == []


def test_two_that_follow_the_planner_in_one_graph():
    ((code, what),) = found(FOLLOW, another(FOLLOW))
    assert (code, what) == ("SH149", '"planned" and "another" at b.yaml:3:18 both carry out what the planner wants of the graph tiny')
    turned = swap(another(FOLLOW), "  from: decode\n  to: prefill", "  from: prefill\n  to: decode").decode()
    assert codes(FOLLOW, turned) == ["SH149"]
    assert codes(FOLLOW, another(FOLLOW).replace("graph: tiny", "graph: large")) == []
    assert codes(FOLLOW, another(FOLLOW).replace("graph: tiny", "all: true")) == ["SH149"]
    assert codes(FOLLOW, mode(another(FOLLOW), "off")) == []


def test_the_planner_and_thresholds_of_ones_own_in_one_graph():
    ((code, what),) = found(FOLLOW, REASSIGN)
    assert code == "SH149"
    assert what.startswith('"relieve-prefill" shifts the graph tiny by thresholds of its own, and "planned" at a.yaml:3:18')
    assert codes(REASSIGN, FOLLOW.replace("tiny", "large")) == []


# -- moves that never come about


def moves(when: str, where: str = "", gain: str = "") -> str:
    """The rebalancing policy with another condition and destination."""
    to = f"  to: {{where: '{where}', prefer: '1.0'}}\n" if where else "  to: {prefer: '1.0'}\n"
    lines = [line for line in REBALANCE.splitlines(keepends=True) if line.strip().partition(":")[0] not in ("when", "to", "gain")]
    return "".join(lines) + f"  when: '{when}'\n{to}" + (f"  gain: {{atLeast: {gain}}}\n" if gain else "")


@pytest.mark.parametrize(
    ("when", "where", "said"),
    [
        ("worker.kvUsage > 0.9", "", "says nothing of where the worker is"),
        ("worker.kvUsage > 0.9 && pool.waiting > 3.0", "node.freeSlots > 1", "says nothing of where the worker is"),
        ("node.noticed", "node.noticed", "each place that to.where allows"),
        ("node.noticed", "!node.noticed", None),
        ("node.noticed", "", None),  # places at which it would be true are refused one by one
        ('worker.node == "node-a"', "", None),
        ("worker.incarnation == 0", "", None),  # once, and then never again
    ],
)
def test_a_policy_that_would_never_move_a_worker(when, where, said):
    assert codes(moves(when, where)) == ([] if said is None else ["SH152"])
    assert all(said in what and "no worker would ever be moved" in what for _, what in found(moves(when, where)))
    gainful = moves(when, where, gain="0.5").replace("prefer: '1.0'", "prefer: 'double(node.freeSlots)'")
    assert codes(gainful) == []


@pytest.mark.parametrize(
    ("prefer", "told"), [("1.0", True), ("-worker.kvTokens", True), ("worker.kvTokens * double(node.freeSlots)", False)]
)
def test_a_gain_in_what_is_the_same_everywhere(prefer, told):
    policy = moves("worker.kvUsage > 0.9", gain="0.5").replace("'1.0'", f"'{prefer}'")
    assert codes(policy) == (["SH152"] if told else [])


@pytest.mark.parametrize(("method", "told"), [("auto", False), ("checkpoint", False), ("in-place", True)])
def test_hardware_that_is_to_change_sides_in_a_way_that_no_engine_can(method, told):
    """As the engine holds such a policy, in as many words."""
    policy = REASSIGN.replace("  pick:", f"  method: {method}\n  pick:")
    assert codes(policy) == (["SH152"] if told else [])
    assert all("no agent reports an engine that can" in what for _, what in found(policy))


def test_rebalancing_policies_of_equal_rank_are_rivals():
    assert codes(REBALANCE, another(REBALANCE)) == ["SH140"]
    assert codes(REBALANCE, another(REBALANCE).replace("kvUsage > 0.9", "kvUsage < 0.1")) == []


# -- previews


def test_a_preview_that_another_policy_hides():
    ((code, what),) = found(CHECKPOINT, mode(another(CHECKPOINT), "preview"))
    assert code == "SH153"
    assert what == 'it is only shown, and "recent-images" at a.yaml:3:18 acts on all that it is about: it takes the workers first'
    assert codes(mode(CHECKPOINT, "preview"), another(CHECKPOINT)) == ["SH153"]
    assert codes(mode(CHECKPOINT, "preview"), mode(another(CHECKPOINT), "preview")) == []
    assert codes(mode(CHECKPOINT, "preview"), mode(another(CHECKPOINT), "off")) == []


@pytest.mark.parametrize(
    ("preview", "other", "hidden"),
    [
        (CHECKPOINT, CHECKPOINT.replace("all: true", "role: decode"), False),
        (CHECKPOINT.replace("all: true", "role: decode"), CHECKPOINT, True),
        (CHECKPOINT.replace("kvUsage < 0.9", "kvUsage < 0.5"), CHECKPOINT, False),
        (CHECKPOINT, CHECKPOINT.replace("  when: worker.kvUsage < 0.9\n", ""), True),
        (CHECKPOINT.replace("5m", "4m"), CHECKPOINT, False),  # it shows images that the other doesn't take
        (CHECKPOINT.replace("5m", "6m"), CHECKPOINT, True),
        (CADENCE, CADENCE, False),  # two intervals that nobody knows yet
        (PREEMPT, PREEMPT, True),
        (PREEMPT, PREEMPT.replace("[preemption, gone]", "[preemption]"), False),
        (PREEMPT.replace("[preemption, gone]", "[gone]"), PREEMPT, True),
        (REASSIGN, REASSIGN, True),
        (REASSIGN, REASSIGN.replace("> 30", "> 20"), False),
        (REBALANCE, REBALANCE, True),
        (REBALANCE.replace("0.5", "0.2"), REBALANCE, False),
    ],
)
def test_a_preview_is_hidden_only_where_the_other_always_acts(preview, other, hidden):
    assert codes(mode(preview, "preview"), another(other)) == (["SH153"] if hidden else [])


def test_a_budget_that_is_only_shown_leaves_one_at_a_time():
    shown = budget(limits="maxConcurrent: 5", mode="preview")
    ((code, what),) = found(shown, REBALANCE)
    assert code == "SH153"
    assert 'what "spread" at b.yaml:3:18 does is limited to one worker of a pool at a time' in what
    assert codes(shown, REBALANCE, budget("c", limits="maxConcurrent: 2")) == []
    assert codes(shown, mode(REBALANCE, "preview")) == []
    assert codes(shown.replace("mode: preview", "mode: enforce"), REBALANCE) == []


def test_a_native_start_without_what_context_costs():
    half = swap(PROFILE, "  prefillRate: 20000\n", "").decode()
    (problem,) = problems(half)
    assert (problem.code, problem.excerpt) == ("SH154", "  nativeStart: 4m")
    assert "weighed against a native start of 4m alone" in problem.what
    general = swap(another(PROFILE), "  gpuModel: NVIDIA B200\n", "").decode().replace("  nativeStart: 4m\n", "")
    assert codes(half, general) == [], "the profile for all workers tells it"
    assert codes(half, swap(another(PROFILE), "NVIDIA B200", "H200").decode()) == ["SH154"], "another model's doesn't"
    assert codes(mode(half, "preview")) == []


def moving(name: str, when: str, where: str = "", workers: str = "{all: true}", more: str = "") -> str:
    head = f"apiVersion: shunter.dev/v1alpha1\nkind: RebalancePolicy\nmetadata: {{name: {name}}}\n"
    to = f"  to: {{where: '{where}'}}\n" if where else ""
    return f"{head}spec:\n  workers: {workers}\n  when: '{when}'\n{to}{more}"


SPOT, RESERVED = 'node.labels["t"] == "spot"', 'node.labels["t"] == "reserved"'


def test_two_that_move_workers_to_and_fro():
    (problem,) = problems(moving("back", RESERVED, SPOT), moving("leave", SPOT))
    assert (problem.code, problem.excerpt) == ("SH155", f"  when: '{SPOT}'")
    assert 'to where "back" at a.yaml:3:18 moves them away' in problem.what
    assert "to.where" in problem.remedy


@pytest.mark.parametrize(
    "other",
    [
        moving("back", RESERVED, 'node.labels["t"] == "other"'),
        moving("back", RESERVED, SPOT, more="  mode: preview\n"),
        moving("back", RESERVED, SPOT, workers="{role: prefill}"),
        moving("back", f"{RESERVED} && worker.kvUsage > 0.9", SPOT),
    ],
)
def test_two_that_may_leave_each_others_workers_alone(other):
    leave = moving("leave", SPOT, RESERVED, workers="{role: decode}")
    assert [c for c in codes(other, leave) if c == "SH155"] == []


def test_a_budget_that_counts_only_what_is_never_done():
    (problem,) = problems(budget(operations="[reassign]"))
    assert (problem.code, problem.excerpt) == ("SH156", "  operations: [reassign]")
    assert "moves, parks and drains" in problem.remedy
    assert codes(budget(operations="[reassign, move]")) == codes(budget()) == codes(budget(operations="[reassign]", mode="off")) == []
