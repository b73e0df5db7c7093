"""What is only hinted at makes images more frequent, holds nothing up, and moves nothing unless a policy answers to it."""

import pytest
from decide_world import NOW, checkpoints, decide, finding, image, kinds, node, notice, preemption, snap, worker
from shunter.model.finding import Verdict
from shunter.model.policy import Cadence, Optimal
from shunter.model.snapshot import FAR_S, Notice, NoticeKind
from shunter.model.units import Duration, Rate

D0 = worker("decode-0", "a/0")
A, B = node("a", ("decode-0",)), node("b")
HOUR = 3600.0
OPTIMAL = checkpoints(
    every=None,
    cadence=Cadence(optimal=Optimal(hazard=Rate.parse("1/24h"), min=Duration(1), max=Duration(36_000), hinted=Rate.parse("1/1h"))),
)
"""For a pause of 5 s: 926 s at a loss a day, 186 s at one an hour."""
CORDON = notice("a", None, NoticeKind.REBALANCE, source="kubernetes")
GPU = notice("a", None, NoticeKind.REBALANCE, slot="a/0", source="gpu")
FAR = notice("a", FAR_S + 60, NoticeKind.MAINTENANCE)


def aged(seconds: float, *notices: Notice):
    return snap([A, B], [D0], [image("i", D0, "b", at=NOW - seconds, pause=5.0)], notices)


@pytest.mark.parametrize("hint", [CORDON, GPU, FAR])
def test_a_hint_raises_the_hazard_that_images_are_taken_by(hint):
    assert kinds(decide([OPTIMAL], aged(200))) == []
    due = decide([OPTIMAL], aged(200, hint))
    assert kinds(due) == [("checkpoint", "decode-0")]
    told = next(e for e in finding(due, "decode-0").evidence if e.gate == "cadence.optimal").detail
    assert "one loss in 1h that no notice announces, likelier since a hint is open" in told
    assert kinds(decide([OPTIMAL], aged(180, hint))) == []


def test_a_hint_about_another_gpu_or_node_is_none_about_this_worker():
    for other in (notice("b", None, NoticeKind.REBALANCE), notice("a", None, NoticeKind.REBALANCE, slot="a/1")):
        assert kinds(decide([OPTIMAL], aged(200, other))) == []


def test_it_lowers_no_hazard_and_changes_no_fixed_interval():
    low = checkpoints(
        every=None,
        cadence=Cadence(optimal=Optimal(hazard=Rate.parse("1/1h"), min=Duration(1), max=Duration(36_000), hinted=Rate.parse("1/24h"))),
    )
    assert kinds(decide([low], aged(200, CORDON))) != []
    assert kinds(decide([checkpoints(every=Duration(300))], aged(200, CORDON))) == []


@pytest.mark.parametrize("hint", [CORDON, GPU, FAR])
def test_a_hint_holds_no_image_up_and_a_decision_does(hint):
    every = checkpoints(every=Duration(300))
    assert kinds(decide([every], aged(301, hint))) == [("checkpoint", "decode-0")]
    sure = notice("a", FAR_S - 60, NoticeKind.MAINTENANCE, id="sure")
    for notices in ((sure,), (hint, sure)):
        held = decide([every], aged(301, *notices))
        assert kinds(held) == []
        assert (finding(held, "decode-0").verdict, finding(held, "decode-0").gate) == (Verdict.HOLD, "node.noticed")


def test_a_hint_moves_nothing_unless_a_policy_answers_to_it():
    sure = [NoticeKind.PREEMPTION, NoticeKind.DRAIN, NoticeKind.GPU_FAILING, NoticeKind.GONE]
    assert kinds(decide([preemption(notices=tuple(sure))], aged(10, CORDON))) == []
    assert kinds(decide([preemption(notices=(NoticeKind.REBALANCE,))], aged(10, CORDON))) == [("move", "decode-0")]


def test_nothing_goes_to_where_a_hint_is_open():
    away = snap([A, B], [D0], notices=(notice("a"), notice("b", None, NoticeKind.REBALANCE)))
    assert ("move", "decode-0") not in kinds(decide([preemption()], away))
