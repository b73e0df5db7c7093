"""How often images are taken, and how long a worker may stand still for one."""

import math

import msgspec
import pytest
from decide_world import GB, NOW, begun, checkpoints, decide, ended, figures, finding, image, kinds, node, operation, snap, worker
from shunter.decide.cadence import daly
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState, Status
from shunter.model.plan import OperationKind
from shunter.model.policy import Cadence, Keep, Optimal, Overhead, Pause
from shunter.model.sample import Known, Missing, Stale
from shunter.model.units import Bandwidth, Duration, Rate, Share

D0 = worker("decode-0", "a/0")
A, B = node("a", ("decode-0",)), node("b")
HOUR = 3600.0


@pytest.mark.parametrize(
    ("mean", "pause", "interval"),
    [
        (1011 * HOUR, 0.5, 1907), (1011 * HOUR, 5, 6030), (1011 * HOUR, 60, 20859), (1011 * HOUR, 300, 46531),
        (24 * HOUR, 0.5, 294), (24 * HOUR, 5, 926), (24 * HOUR, 60, 3180), (24 * HOUR, 300, 7001),
        (4 * HOUR, 60, 1275), (HOUR, 5, 186), (HOUR, 60, 618), (HOUR, 300, 1276),
    ],
)  # fmt: skip
def test_dalys_interval_is_that_of_published_tables(mean, pause, interval):
    assert daly(pause, 1 / mean) == pytest.approx(interval, abs=0.6)


@pytest.mark.parametrize(("mean", "pause"), [(HOUR, 5.0), (24 * HOUR, 60.0), (4 * HOUR, 300.0), (HOUR, 300.0)])
def test_no_other_interval_costs_less_by_the_exact_model(mean, pause):
    """Daly's own cost of a run with exponential losses: (e^((t+C)/M) - 1) / t, up to constants; searched by brute force."""

    def cost(t):
        return math.expm1((t + pause) / mean) / t

    best = min((t / 10 for t in range(1, 10 * 20_000)), key=cost)
    assert daly(pause, 1 / mean) == pytest.approx(best, rel=0.005)


def test_beyond_its_range_the_interval_is_the_mean_time_between_losses():
    assert daly(200.0, 1 / 100.0) == 100.0
    assert daly(0.0, 1 / HOUR) == 0.0


def optimal(hazard="1/24h", least=1.0, most=10 * HOUR, **more):
    return checkpoints(
        every=None, cadence=Cadence(optimal=Optimal(hazard=Rate.parse(hazard), min=Duration(least), max=Duration(most))), **more
    )


def aged(age, pause=None, **more):
    return snap([A, B], [D0], [image("i", D0, "a", at=NOW - age, pause=pause)], **more)


def test_the_interval_follows_the_measured_pause():
    assert kinds(decide([optimal()], aged(925, pause=5.0))) == []
    due = decide([optimal()], aged(927, pause=5.0))
    assert kinds(due) == [("checkpoint", "decode-0")]
    told = next(e for e in finding(due, "decode-0").evidence if e.gate == "cadence.optimal").detail
    assert "a pause of 5s (measured in 1 of its own images)" in told
    assert "one loss in 1d" in told
    assert "at least 1s, at most 10h" in told


def test_without_a_measurement_the_planned_pause_counts_and_a_profiles_figures_make_it():
    # 10 GB at 1 GB/s: 10 s; at 10 GB/s for the dump, the network still takes 10 s
    for rates, interval in (
        ({}, 1307),
        ({"dump": Bandwidth(10 * GB)}, 1307),
        ({"dump": Bandwidth(10 * GB), "network": Bandwidth(10 * GB)}, 415),
    ):
        policies = [optimal(), figures(**rates)]
        assert kinds(decide(policies, aged(interval - 3))) == []
        assert kinds(decide(policies, aged(interval + 3))) != []


def test_a_pause_that_is_not_known_takes_the_longest_interval():
    blind = worker("decode-0", "a/0", memory=None)
    old = [image("i", worker("decode-9"), "a")]
    for age, due in ((HOUR - 1, False), (HOUR + 1, True)):
        record = ended(operation(OperationKind.CHECKPOINT, "decode-0"), Status.SUCCEEDED, began=NOW - age, at=NOW - age + 1)
        result = decide([optimal(most=HOUR)], snap([A, B], [blind], old), EngineState(recent=(record,)))
        assert bool(kinds(result)) is due
    assert "a pause that isn't known, so the longest interval: 1h" in finding(result, "decode-0").evidence[0].detail


def test_it_is_kept_within_its_bounds():
    assert kinds(decide([optimal(least=2000)], aged(1999, pause=5.0))) == []
    assert kinds(decide([optimal(least=2000)], aged(2001, pause=5.0))) != []
    assert kinds(decide([optimal(most=100)], aged(101, pause=5.0))) != []


def test_the_pause_is_the_median_of_what_is_known_and_an_image_counts_once():
    def took(seconds, name):
        return ended(operation(OperationKind.CHECKPOINT, "decode-0", id=name), Status.SUCCEEDED, at=NOW - 3000, stopped=seconds)

    state = EngineState(recent=(took(1.0, "c1"), took(9.0, "c2")))
    result = decide([optimal()], aged(5000, pause=5.0), state)
    told = next(e for e in finding(result, "decode-0").evidence if e.gate == "cadence.optimal").detail
    assert "a pause of 5s (measured in 3 of its own images)" in told
    same = ended(operation(OperationKind.CHECKPOINT, "decode-0"), Status.SUCCEEDED, at=NOW - 3000, stopped=99.0)
    assert same.outcome is not None
    same = msgspec.structs.replace(same, outcome=msgspec.structs.replace(same.outcome, image="i"))
    once = decide([optimal()], aged(5000, pause=5.0), EngineState(recent=(same,)))
    told = next(e for e in finding(once, "decode-0").evidence if e.gate == "cadence.optimal").detail
    assert "a pause of 5s (measured in 1 of its own images)" in told


def test_one_decision_has_one_name_however_the_interval_drifts():
    first = decide([optimal()], aged(2000, pause=5.0)).plan.operations[0]
    drifted = decide([optimal()], aged(2000, pause=9.0)).plan.operations[0]
    assert first.id == drifted.id
    later = decide([optimal()], aged(2000, pause=5.0, at=NOW), now=NOW + 25).plan.operations[0]
    assert first.id == later.id
    next_one = decide([optimal()], snap([A, B], [D0], [image("i", D0, "a", at=NOW - 1999, pause=5.0)])).plan.operations[0]
    assert first.id != next_one.id, "it follows another image"
    assert kinds(decide([optimal()], aged(2000, pause=5.0), EngineState(active=(begun(first),)))) == []
    done = EngineState(recent=(ended(first, Status.SUCCEEDED),))
    assert kinds(decide([optimal()], aged(2000, pause=5.0), done)) == []
    failed = EngineState(recent=(ended(first, Status.ROLLED_BACK, at=NOW - 1000),))
    again = decide([optimal()], aged(2000, pause=5.0), failed).plan.operations[0]
    assert (again.attempt, again.id == first.id) == (1, False)


def test_a_pause_that_is_too_long_holds_with_both_numbers():
    strict = checkpoints(pause=Pause(at_most=Duration(4)))
    held = finding(decide([strict], aged(60, pause=5.0)), "decode-0")
    assert (held.verdict, held.gate) == (Verdict.HOLD, "pause.atMost")
    assert held.reason == "it would stand still for 5s, and may for 4s at most"
    assert kinds(decide([checkpoints(pause=Pause(at_most=Duration(5)))], aged(60, pause=5.0))) != []
    unknown = decide([strict], snap([A, B], [worker("decode-0", "a/0", memory=None)]))
    assert (kinds(unknown), finding(unknown, "decode-0").verdict) == ([], Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(("share", "number"), [(0.05, 1), (0.2, 2), (0.29, 2), (0.5, 5)])
def test_a_share_of_the_pool_stands_still_at_once(share, number):
    workers = [worker(f"decode-{i}", f"n{i}/0") for i in range(10)]
    nodes = [node(f"n{i}", (f"decode-{i}",)) for i in range(10)]
    result = decide([checkpoints(pause=Pause(share=Share(share)))], snap(nodes, workers))
    assert len(kinds(result)) == number


def test_overhead_lengthens_the_interval():
    frugal = checkpoints(every=Duration(30), overhead=Overhead(at_most=Share(0.01)))
    assert kinds(decide([frugal], aged(499, pause=5.0))) == []
    assert kinds(decide([frugal], aged(501, pause=5.0))) != []
    enough = checkpoints(every=Duration(30), overhead=Overhead(at_most=Share(0.5)))
    assert kinds(decide([enough], aged(31, pause=5.0))) != []
    assert kinds(decide([checkpoints(overhead=Overhead(at_most=Share(0)))], aged(10**6, pause=5.0))) == [], "never"


def load(running, waiting=0.0):
    given = {"running": running, "waiting": waiting}
    return {"samples": {"decode-0": {k: v for k, v in given.items() if v is not None}}}


@pytest.mark.parametrize(
    ("samples", "idle"),
    [
        (load(0), True),
        (load(1), False),
        (load(0, 1), False),
        (load(None), False),
        (load(Missing(reason="away")), False),
        (load(Stale(value=0, age=99, max_age=30, query="q")), False),
        (load(Known(value=0, unit="1", at=NOW, query="q")), True),
    ],
)
def test_prefer_idle_waits_for_a_gap_for_one_more_interval(samples, idle):
    quiet = checkpoints(prefer="idle")
    result = decide([quiet], aged(31, **samples))
    assert bool(kinds(result)) is idle
    if not idle:
        held = finding(result, "decode-0")
        assert (held.verdict, held.gate) == (Verdict.HOLD, "prefer")
        assert [i.name for i in held.evidence[-1].inputs] == ["worker.running", "worker.waiting"]
    assert kinds(decide([quiet], aged(60, **samples))) != [], "then it is taken anyway"
    assert kinds(decide([quiet], aged(29, **samples))) == [], "not before it is due"


def test_a_worker_without_any_image_does_not_wait_for_a_gap():
    assert kinds(decide([checkpoints(prefer="idle")], snap([A, B], [D0], **load(9)))) != []


def test_images_younger_than_within_are_kept_too():
    images = [image(f"i{n}", D0, "a", at=NOW - n) for n in (1, 50, 90)]
    world = snap([A, B], [D0], images)

    def discarded(**keep):
        return [o.image for o in decide([checkpoints(every=Duration(HOUR), keep=Keep(**keep))], world).plan.operations]

    assert discarded(last=1, within=Duration(60)) == ["i90"]
    assert discarded(last=1, within=Duration(90)) == []
    assert discarded(last=1) == ["i90"]
    assert discarded(last=3, within=Duration(1)) == [], "both are kept"
    most = [checkpoints("aa", every=Duration(HOUR)), checkpoints("bb", every=Duration(HOUR), keep=Keep(within=Duration(100)))]
    assert kinds(decide(most, world)) == [], "the policy that keeps the most decides"
