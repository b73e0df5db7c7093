"""Rebalancing, budgets, profiles, computed cadences and following the planner: each rule, its place and its advice."""

import msgspec
import pytest
from lang_documents import BUDGET, CADENCE, CHECKPOINT, FOLLOW, PROFILE, REASSIGN, REBALANCE, swap
from shunter.lang.cel import check
from shunter.lang.diagnostics import CODES, nearest
from shunter.lang.load import check_text
from shunter.model.canon import encode
from shunter.model.policy import DisruptionBudget, FleetProfile, Policy
from shunter.model.snapshot import NoticeKind
from shunter.model.units import Bandwidth, Duration, Rate, Share


def wrong(data: bytes):
    policies, problems = check_text("p.yaml", data)
    assert bool(policies) != bool(problems)
    assert all(problem.code in CODES for problem in problems)
    return [(p.code, p.place.line, p.place.column, f"{p.what}. {p.remedy}") for p in problems]


def the_policy(document: str | bytes) -> Policy:
    (policy,), problems = check_text("p.yaml", document if isinstance(document, bytes) else document.encode())
    assert problems == ()
    return policy


ZONE, FROM, TO = "zone: Europe/Berlin", 'from: "22:00"', 'to: "06:00"'
WORKERS = '{role: decode, where: \'worker.labels["tier"] == "gold"\'}'
CASES = [
    # quantities and amounts
    ("true as an amount", BUDGET, "maxConcurrent: 10%", "maxConcurrent: true", "SH114", 8, 18, ["a whole number or a share such as 10%"]),
    ("a part as an amount", BUDGET, "maxConcurrent: 10%", "maxConcurrent: 0.1", "SH114", 8, 18, ["a whole number or a share such as 10%"]),
    ("a word as an amount", BUDGET, "max: 3,", "max: three,", "SH114", 9, 23, ["three", "a whole number or a share such as 10%"]),
    ("a list as an amount", BUDGET, "max: 3,", "max: [3],", "SH114", 9, 23, ["a whole number or a share"]),
    ("a number in quotes as an amount", BUDGET, "max: 3,", "max: '3',", "SH114", 9, 23, ["a whole number or a share"]),
    ("a negative amount", BUDGET, "maxConcurrent: 10%", "maxConcurrent: -1", "SH115", 8, 18, ["at least 0"]),
    ("a negative share", BUDGET, "maxConcurrent: 10%", "maxConcurrent: -10%", "SH114", 8, 18, ["a whole number or a share"]),
    ("more than the whole", BUDGET, "maxConcurrent: 10%", "maxConcurrent: 110%", "SH116", 8, 18, ["0% to 100%"]),
    ("memory for a bandwidth", PROFILE, "40GB/s", "256m", "SH116", 6, 9, ["not a bandwidth", "40GB/s or 500MiB/s"]),
    ("bits for a bandwidth", PROFILE, "40GB/s", "40Gbit/s", "SH116", 6, 9, ["a size per second"]),
    ("bare number for a bandwidth", PROFILE, "40GB/s", "40", "SH116", 6, 9, ["40GB/s"]),
    ("size for a bandwidth", PROFILE, "40GB/s", "40GB", "SH116", 6, 9, ["a size per second"]),
    ("no bandwidth at all", PROFILE, "40GB/s", "0GB/s", "SH116", 6, 9, ["a size per second"]),
    ("per the wrong time", PROFILE, "40GB/s", "40GB/m", "SH116", 6, 9, ["a size per second"]),
    ("bare number for a rate", CADENCE, "1/1000h", "0.001", "SH116", 6, 31, ["1/1000h"]),
    ("no time in a rate", CADENCE, "1/1000h", "1/1000", "SH116", 6, 31, ["how many in which time"]),
    ("never as a rate", CADENCE, "1/1000h", "0/1h", "SH116", 6, 31, ["how many in which time"]),
    ("a number for a share", CADENCE, "1.5%", "0.015", "SH116", 8, 22, ["a share", "10%"]),
    # windows
    ("unquoted time", BUDGET, FROM, "from: 22:00", "SH107", 11, 35, ["base 60", 'Put it in quotes if it is text: "22:00"']),
    ("no such time", BUDGET, FROM, 'from: "25:00"', "SH115", 11, 35, ['no time of day: "25:00"', '"22:00"']),
    ("a window beginning at the day's end", BUDGET, FROM, 'from: "24:00"', "SH115", 11, 35, ["no time of day"]),
    ("a time with seconds", BUDGET, TO, 'to: "06:00:00"', "SH115", 11, 48, ["no time of day"]),
    ("an hour alone", BUDGET, TO, "to: 6", "SH113", 11, 48, ["must be text"]),
    ("a day or nothing", BUDGET, TO, 'to: "22:00"', "SH122", 11, 48, ["a day or nothing", '"24:00"']),
    ("a day twice", BUDGET, "[mon, tue]", "[mon, mon]", "SH123", 11, 69, ["mon"]),
    ("no day", BUDGET, "[mon, tue]", "[]", "SH115", 11, 63, ["empty"]),
    ("a day spelt out", BUDGET, "[mon, tue]", "[monday]", "SH114", 11, 64, ["mon"]),
    ("a day by its number", BUDGET, "[mon, tue]", "[1]", "SH114", 11, 64, ["mon"]),
    ("no zone", BUDGET, f"{ZONE}, ", "", "SH112", 11, 7, ['"zone"']),
    ("an empty zone", BUDGET, ZONE, 'zone: ""', "SH127", 11, 14, ["IANA"]),
    ("a city", BUDGET, ZONE, "zone: Berlin", "SH127", 11, 14, ['"Europe/Berlin"']),
    ("a city of two words", BUDGET, ZONE, "zone: new york", "SH127", 11, 14, ['"America/New_York"']),
    ("small letters", BUDGET, ZONE, "zone: europe/berlin", "SH127", 11, 14, ['"Europe/Berlin"']),
    ("misspelt", BUDGET, ZONE, "zone: Europe/Berln", "SH127", 11, 14, ['"Europe/Berlin"']),
    ("nowhere", BUDGET, ZONE, "zone: Mars/Olympus", "SH127", 11, 14, ["Europe/Berlin, or UTC"]),
    ("whatever the machine has", BUDGET, ZONE, "zone: localtime", "SH127", 11, 14, ["IANA"]),
    ("a path", BUDGET, ZONE, "zone: ../../etc/passwd", "SH127", 11, 14, ["not a time zone"]),
    ("abbreviation of IANA's once", BUDGET, ZONE, "zone: CET", "SH127", 11, 14, ["summer time", "Europe/Berlin or Europe/Paris"]),
    ("two zones in one", BUDGET, ZONE, "zone: EST5EDT", "SH127", 11, 14, ["America/New_York"]),
    ("abbreviation of three zones", BUDGET, ZONE, "zone: IST", "SH127", 11, 14, ["Asia/Kolkata, Asia/Jerusalem or Europe/Dublin"]),
    ("an offset", BUDGET, ZONE, "zone: UTC+2", "SH127", 11, 14, ["summer time", "Europe/Athens", "Etc/GMT-2", "other way round"]),
    ("an offset to the west", BUDGET, ZONE, "zone: GMT-5", "SH127", 11, 14, ["America/New_York", "Etc/GMT+5"]),
    ("an offset that is none", BUDGET, ZONE, "zone: UTC+0", "SH127", 11, 14, ["or UTC for"]),
    ("an offset of ISO's", BUDGET, ZONE, 'zone: "+05:30"', "SH127", 11, 14, ["Asia/Kolkata"]),
    # budgets
    ("an operation that isn't a disruption", BUDGET, "[move, drain]", "[move, restore]", "SH114", 6, 22, ["move"]),
    ("an operation twice", BUDGET, "[move, drain]", "[move, move]", "SH123", 6, 22, ["move"]),
    ("a stretch longer than what is known", BUDGET, "window: 10m", "window: 61m", "SH115", 9, 34, ["last hour", "1h"]),
    ("a stretch of no time", BUDGET, "window: 10m", "window: 0s", "SH115", 9, 34, ["more than 0"]),
    ("live values in a budget", BUDGET, 'worker.labels["tier"] == "gold"', "pool.workers > 2", "SH132", 5, 35, ["pool.workers"]),
    ("a priority", BUDGET, "per: zone", "priority: 7", "SH111", 7, 3, ['"priority"']),
    ("metrics", BUDGET, "per: zone", "metrics: {}", "SH111", 7, 3, ['"metrics"']),
    ("an empty selector", BUDGET, WORKERS, "{}", "SH120", 5, 3, ["all: true"]),
    # moves
    ("gain in nothing", REBALANCE, ", prefer: 'node.gpuModel == \"B200\" ? 2.0 : 1.0'", "", "SH112", 9, 9, ["to.prefer"]),
    ("no gain", REBALANCE, "atLeast: 0.5", "atLeast: 0", "SH115", 9, 19, ["more than 0"]),
    ("a gain with a unit", REBALANCE, "atLeast: 0.5", "atLeast: 50%", "SH113", 9, 19, ["a number"]),
    ("a longer memory than there is", REBALANCE, "cooldown: 30m", "cooldown: 2h", "SH115", 10, 13, ["last hour", "1h or less"]),
    ("no step", REBALANCE, "step: 2", "step: 0", "SH115", 11, 9, ["at least 1"]),
    ("a condition that is a number", REBALANCE, "worker.kvUsage > 0.9 && node.freeSlots == 0", "worker.kvUsage", "SH134", 6, 9, []),
    ("a preference that is a condition", REBALANCE, "? 2.0 : 1.0", "", "SH134", 8, 41, ["1.0"]),
    ("a notice where there is none", REBALANCE, "!node.noticed", "notice.lead > 1.0", "SH132", 8, 16, ["node or worker"]),
    ("pools of the candidate", REBALANCE, "!node.noticed", "pool.waiting > 1.0", "SH132", 8, 16, ["node or worker"]),
    # cadences
    ("two intervals", CADENCE, "  prefer: idle", "  every: 5m", "SH122", 6, 12, ["beside every"]),
    ("no interval", CHECKPOINT, "  every: 5m\n", "", "SH112", 5, 3, ["every", "cadence"]),
    ("the wrong way round", CADENCE, "min: 2m", "min: 31m", "SH122", 6, 45, ["31m", "30m"]),
    ("no interval at all", CADENCE, "min: 2m", "min: 0s", "SH115", 6, 45, ["more than 0"]),
    ("no hazard", CADENCE, "hazard: 1/1000h, ", "", "SH112", 6, 13, ["hazard"]),
    ("no pause", CADENCE, "atMost: 20s", "atMost: 0s", "SH115", 7, 19, ["more than 0"]),
    ("no overhead", CADENCE, "atMost: 1.5%", "atMost: 0%", "SH115", 8, 22, ["more than 0"]),
    ("kept for no time", CADENCE, "within: 1h", "within: 0s", "SH115", 10, 27, ["more than 0"]),
    ("another preference", CADENCE, "prefer: idle", "prefer: idel", "SH114", 9, 11, ['"idle"']),
    # the planner
    ("own thresholds too", FOLLOW, "  for: 30s", "  for: 30s\n  when: pools.prefill.waiting > 3", "SH122", 10, 9, ["follow: planner"]),
    ("own way back", FOLLOW, "  for: 30s", "  for: 30s\n  revert: {when: now > 3}", "SH122", 10, 11, ["revert"]),
    ("one pool alone", FOLLOW, "{graph: tiny}", "{graph: tiny, role: decode}", "SH122", 5, 32, ["no prefill worker can be picked"]),
    ("nothing to follow", FOLLOW, "  follow: planner\n", "", "SH112", 5, 3, ['"when"', "follow: planner"]),
    ("another planner", FOLLOW, "follow: planner", "follow: planer", "SH114", 8, 11, ['"planner"']),
    ("a cooldown that is forgotten", REASSIGN, "cooldown: 60s", "cooldown: 61m", "SH115", 14, 13, ["last hour"]),
    # profiles
    ("no GPU model", PROFILE, "NVIDIA B200", '""', "SH115", 5, 13, ["empty"]),
    ("no rate", PROFILE, "prefillRate: 20000", "prefillRate: 0", "SH115", 12, 16, ["more than 0"]),
    ("no doubling", PROFILE, "prefillDoubling: 65536", "prefillDoubling: 0", "SH115", 13, 20, ["more than 0"]),
    ("a misspelt notice", PROFILE, "{preemption: 30s", "{preemtion: 30s", "SH111", 14, 10, ['"preemption"']),
    ("a notice that gives no time", PROFILE, "{preemption: 30s", "{preemption: 0s", "SH115", 14, 22, ["more than 0"]),
    ("a notice's lead without a unit", PROFILE, "{preemption: 30s", "{preemption: 30", "SH116", 14, 22, ["30s"]),
    ("workers of a profile", PROFILE, "  gpuModel", "  workers: {all: true}\n  gpuModel", "SH111", 5, 3, ['"workers"']),
]


@pytest.mark.parametrize(("text", "old", "new", "code", "line", "column", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_one_fault_gives_one_problem_at_its_place(text, old, new, code, line, column, words):
    found = wrong(swap(text, old, new))
    assert [f[:3] for f in found] == [(code, line, column)], found
    for word in words:
        assert word in found[0][3]


def without(document: str, *keys: str) -> bytes:
    """The document without some of its spec's keys, and the lines below them."""
    lines, dropped = [], False
    for line in document.splitlines(keepends=True):
        if line[:2] == "  " and line[2] not in " -":
            dropped = line.strip().partition(":")[0] in keys
        if not dropped:
            lines.append(line)
    return "".join(lines).encode()


def test_a_budget_that_limits_nothing_and_a_profile_without_a_figure_say_so():
    (found,) = wrong(without(BUDGET, "maxConcurrent", "maxPerWindow", "windows"))
    assert (found[0], found[1:3]) == ("SH128", (5, 3))
    assert "maxConcurrent, maxPerWindow or windows" in found[3]
    figures = ("dump", "restore", "network", "fixedDump", "fixedRestore", "nativeStart", "prefillRate", "prefillDoubling", "lead")
    (found,) = wrong(without(PROFILE, *figures))
    assert found[:3] == ("SH128", 5, 3)
    for name in figures:
        assert the_policy(without(PROFILE, *(other for other in figures if other != name))).kind == "FleetProfile"
    for name in ("maxConcurrent", "maxPerWindow", "windows"):
        others = {"maxConcurrent", "maxPerWindow", "windows"} - {name}
        assert the_policy(without(BUDGET, *others)).kind == "DisruptionBudget"


@pytest.mark.parametrize("zone", ["UTC", "Etc/GMT-2", "America/Argentina/Ushuaia", "US/Pacific", "Asia/Calcutta", "Europe/Kyiv"])
def test_names_of_ianas_are_taken_old_ones_too(zone):
    document = the_policy(swap(BUDGET, "Europe/Berlin", zone)).document
    assert isinstance(document, DisruptionBudget)
    assert document.spec.windows[0].zone == zone


def test_budgets_arrive_in_the_structs():
    policy = the_policy(BUDGET)
    assert isinstance(policy.document, DisruptionBudget)
    spec = policy.document.spec
    assert (spec.operations, spec.per) == (("move", "drain"), "zone")
    assert (spec.max_concurrent, type(spec.max_concurrent)) == (0.1, Share)
    assert spec.max_per_window is not None
    assert (spec.max_per_window.max, type(spec.max_per_window.max)) == (3, int)
    assert spec.max_per_window.window == Duration(600)
    assert [(w.zone, w.from_, w.to, w.days) for w in spec.windows] == [
        ("Europe/Berlin", "22:00", "06:00", ("mon", "tue")),
        ("UTC", "00:00", "24:00", ("sun",)),
    ]
    assert (policy.acts, policy.priority, policy.metrics) == (False, 0, {})
    assert b'"maxConcurrent":0.1' in encode(policy)


@pytest.mark.parametrize(
    ("written", "value"), [("0", 0), ("1", 1), ("100%", Share(1.0)), ("'5%'", Share(0.05)), ("0%", Share(0.0)), ("0.5%", Share(0.005))]
)
def test_a_number_is_workers_and_a_percentage_a_share(written, value):
    document = the_policy(swap(BUDGET, "maxConcurrent: 10%", f"maxConcurrent: {written}")).document
    assert isinstance(document, DisruptionBudget)
    assert (document.spec.max_concurrent, type(document.spec.max_concurrent)) == (value, type(value))


def test_figures_arrive_in_the_structs():
    policy = the_policy(PROFILE)
    assert isinstance(policy.document, FleetProfile)
    spec = policy.document.spec
    assert (spec.dump, spec.restore, spec.network) == (40e9, 30e9, 12.5e9)
    assert isinstance(spec.dump, Bandwidth)
    assert (spec.fixed_dump, spec.fixed_restore, spec.native_start, spec.prefill_rate) == (0.8, 0.0, 240.0, 20_000.0)
    assert spec.lead == {NoticeKind.PREEMPTION: 30.0, NoticeKind.MAINTENANCE: 3600.0}
    assert (policy.selector, policy.acts) == (None, False)
    assert b'"dump":40000000000.0' in encode(policy)


def test_computed_cadences_arrive_in_the_structs():
    policy = the_policy(CADENCE)
    assert b'"hazard":' in encode(policy)
    spec = msgspec.to_builtins(policy.document.spec, enc_hook=float)
    assert spec["cadence"] == {"optimal": {"hazard": 1 / 3_600_000, "min": 120.0, "max": 1800.0, "hinted": 1 / 7200}}
    assert (spec["pause"], spec["overhead"]) == ({"atMost": 20.0, "share": 0.1}, {"atMost": 0.015})
    assert (spec["prefer"], spec["keep"]) == ("idle", {"last": 2, "within": 3600.0})
    assert Rate.parse("1/1000h") == 1 / 3_600_000


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("mdoe", ["mode", "move", "model"], "mode"),
        ("form", ["for", "from"], "from"),
        ("metric", ["metrics", "method"], "metrics"),
        ("MaxConcurrent", ["maxConcurrent", "maxPerWindow"], "maxConcurrent"),
        ("maxconcurent", ["maxConcurrent", "maxPerWindow"], "maxConcurrent"),
        ("zzz", ["mode", "move"], None),
        ("mode", [], None),
    ],
)
def test_the_nearest_word_has_the_fewest_slips(word, known, meant):
    assert nearest(word, known) == meant


@pytest.mark.parametrize(("text", "offset"), [("'x'.startWith('x')", 4), ("false && siz('x') > 1", 9), ("foo(1).bar(2) > siz(1)", 0)])
def test_an_unknown_function_is_placed_at_its_name_on_whatever_it_is_called(text, offset):
    first = check(text, "bool", frozenset({"worker"}), frozenset())[0]
    assert (first.code, first.offset) == ("SH137", offset)
