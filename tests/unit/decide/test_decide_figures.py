"""Fleet profiles: whose figures count, and for what."""

from statistics import median

import pytest
from decide_world import FAST, GB, NOW, decide, ended, figures, finding, kinds, node, notice, operation, ops, preemption, snap, worker
from hypothesis import given
from hypothesis import strategies as st
from shunter.decide import profile
from shunter.decide.figures import AllFigures
from shunter.decide.profile import Costs, Profile, _rate, sized
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState, Status
from shunter.model.plan import OperationKind
from shunter.model.snapshot import NoticeKind
from shunter.model.units import Bandwidth, Duration

D0 = worker("decode-0", "a/0")


def test_a_model_s_own_figures_come_before_those_for_all_and_names_break_ties():
    given = [
        figures("bb", dump=Bandwidth(2e9), network=Bandwidth(2e9)),
        figures("aa", dump=Bandwidth(1e9)),
        figures("zz", gpu_model="B200", dump=Bandwidth(3e9), fixed_restore=Duration(7), lead={NoticeKind.PREEMPTION: Duration(20)}),
        figures("cc", lead={NoticeKind.PREEMPTION: Duration(10), NoticeKind.REBALANCE: Duration(99)}),
        figures("off", mode="off", restore=Bandwidth(9e9)),
        figures("shown", mode="preview", restore=Bandwidth(9e9)),
    ]
    every = AllFigures(given, Profile())
    one, other = every.of("B200"), every.of("H200")
    assert (one.rates.dump_bytes_per_s, other.rates.dump_bytes_per_s) == (3e9, 1e9)
    assert (one.rates.network_bytes_per_s, other.rates.network_bytes_per_s) == (2e9, 2e9)
    assert one.rates.restore_bytes_per_s == Profile().restore_bytes_per_s, "what isn't given stays as it is built in"
    assert (one.rates.fixed_restore_s, other.rates.fixed_restore_s) == (7, Profile().fixed_restore_s)
    assert (one.lead, other.lead[NoticeKind.PREEMPTION]) == ({NoticeKind.PREEMPTION: 20, NoticeKind.REBALANCE: 99}, 10)
    assert (one.names, other.names) == (("zz", "aa", "bb", "cc"), ("aa", "bb", "cc"))


def test_the_floor_of_restores_with_gpus_falls_once_somebody_knows_the_rate():
    assert AllFigures([figures(dump=Bandwidth(1e9))], Profile()).of("").rates.gpu_restore_floor_s == Profile().gpu_restore_floor_s
    assert AllFigures([figures(restore=Bandwidth(1e9))], Profile()).of("").rates.gpu_restore_floor_s == 0


def gpus(model="B200"):
    return [node("a", ("decode-0",), gpu_model=model, gpus=8), node("b", gpu_model=model, gpus=8)]


def estimate(*policies, state=None, model="B200"):
    result = decide([preemption(), *policies], snap(gpus(model), [D0], notices=[notice("a")]), state)
    return ops(result)["decode-0"].estimate


def test_estimates_use_them_and_say_so():
    assert estimate().stopped == 20, "10 GB at 1 GB/s, twice"
    slow = figures("b200", gpu_model="B200", restore=Bandwidth(GB / 2))
    assert (estimate(slow).stopped, estimate(slow, model="H200").stopped) == (30, 20)
    assert estimate(slow).basis == "planning profile with b200"


def test_what_was_measured_wins():
    measured = {"dump": 1.0, "send": 1.0, "restore": 2.0, "bytes": 10 * GB}
    record = ended(operation(OperationKind.MOVE, "decode-7"), Status.SUCCEEDED, **measured)
    got = estimate(figures(dump=Bandwidth(GB / 9), restore=Bandwidth(GB / 9)), state=EngineState(recent=(record,)))
    assert (got.stopped, got.basis) == (3, "measured in 1 like operation")


SIZES = st.integers(1, 64)


@given(st.lists(st.tuples(SIZES, st.floats(0.5, 9), st.none() | st.floats(0.5, 9)), max_size=12), st.lists(SIZES, min_size=1, max_size=6))
def test_what_is_like_an_operation_is_told_by_its_size_alone(measured, sizes):
    records = [
        ended(operation(OperationKind.MOVE, f"decode-{n}"), Status.SUCCEEDED, bytes=size, dump=dump, restore=restore)
        for n, (size, dump, restore) in enumerate(measured)
    ]
    costs = Costs(Profile(), sorted(filter(None, map(sized, records))))
    for size in sizes:
        like = [(own / dump, own / restore if restore else None) for own, dump, restore in measured if size / 4 <= own <= size * 4]
        dumps, restores = [rate for rate, _ in like], [rate for _, rate in like if rate is not None]
        wanted = [(median(rates), len(rates)) if rates else (None, 0) for rates in (dumps, [], restores)]
        assert costs._like(size) == tuple(wanted)


def test_however_many_sizes_there_are_what_is_like_them_is_worked_out_once(monkeypatch):
    asked = []
    monkeypatch.setattr(profile, "_rate", lambda like, phase: asked.append(phase) or _rate(like, phase))
    records = [ended(operation(OperationKind.CHECKPOINT, f"decode-{n}"), Status.SUCCEEDED, bytes=100 * GB + n, dump=9.0) for n in range(50)]
    costs = Costs(Profile(), sorted(filter(None, map(sized, records))))
    found = {costs.phases(size * GB, gpu=False).basis for size in range(60, 180)}
    assert len(asked) == 3, "dump, send and restore"
    assert found == {"planning profile, in part measured in 50 like operations"}


@pytest.mark.parametrize(
    ("lead", "acts"),
    [
        (None, [("move", "decode-0")]),  # nobody knows: it is tried
        (60, [("move", "decode-0")]),
        (23, [("park", "decode-0")]),  # 20 s for the move, 10 s reserve, 2 s have passed: only the dump fits
        (15, [("drain", "decode-0")]),  # nothing fits
        (11, [("move", "decode-0")]),  # the time is over and the node lives: the figure was wrong
    ],
)
def test_leads_stand_in_for_deadlines_that_notices_do_not_give(lead, acts):
    given = [figures(lead={NoticeKind.MAINTENANCE: Duration(lead)})] if lead else []
    world = snap(gpus(), [D0], notices=[notice("a", lead=None, kind=NoticeKind.MAINTENANCE)])
    result = decide([preemption(), *given], world, profile=FAST)
    assert kinds(result) == acts
    assert result.plan.operations[0].deadline is None, "it is an expectation, for which nothing that was begun is given up"
    if lead:
        told = next(e for e in finding(result, "decode-0").evidence if e.gate == "lead")
        assert told.result is (lead != 11)
        assert f"maintenance leaves {lead if lead < 60 else '1m'}" in told.detail


def test_a_lead_is_no_substitute_for_a_deadline_that_was_given():
    given = figures(lead={NoticeKind.PREEMPTION: Duration(1)})
    result = decide([preemption(), given], snap(gpus(), [D0], notices=[notice("a")]))
    assert kinds(result) == [("move", "decode-0")]
    assert ops(result)["decode-0"].deadline == NOW + 120


def test_profiles_are_no_findings():
    result = decide([figures()], snap(gpus(), [D0]))
    assert result.findings == ()
    assert all(f.verdict is not Verdict.ACT for f in result.findings)
