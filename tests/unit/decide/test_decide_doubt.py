"""Workers and images that aren't to be trusted: whatever else is decided, nobody comes back from one."""

import pytest
from decide_world import (
    NOW,
    checkpoints,
    decide,
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
from shunter.act.copies import _outdated
from shunter.decide.world import Images, World
from shunter.model.finding import Verdict
from shunter.model.plan import OperationKind
from shunter.model.policy import Keep
from shunter.model.snapshot import NoticeKind, WorkerState

WHY = "XID 31 on 0000:4f:00: what the process on it computed is not to be trusted (MMU Fault)"
NODES = [node("a", ("decode-0",)), node("b"), node("c")]
D0 = worker("decode-0", "a/0")


@pytest.mark.parametrize("state", [WorkerState.LOST, WorkerState.PARKED])
def test_a_worker_comes_back_from_the_last_image_before_and_it_is_said_why(state):
    away = worker("decode-0", state=state)
    images = [image("i-good", away, "b", at=NOW - 90), image("i-bad", away, "b", at=NOW - 20, doubt=WHY)]
    world = World(snap([node("b")], [away], images))
    found = world.restorable(away.id)
    assert found is not None
    assert found.id == "i-good"
    if state is WorkerState.LOST:
        result = decide([preemption()], world.snapshot)
        (restore,) = result.plan.operations
        assert (restore.kind, restore.image) == (OperationKind.RESTORE, "i-good")
        assert f"i-bad is passed over: {WHY}" in restore.reason
        assert [e.detail for e in finding(result, "decode-0").evidence if e.gate == "image.doubt"] == [f"i-bad is passed over: {WHY}"]


def test_a_worker_with_no_other_image_isnt_brought_back_and_it_is_said_why():
    lost = worker("decode-0", state=WorkerState.LOST)
    result = decide([preemption()], snap([node("b")], [lost], [image("i-bad", lost, "b", doubt=WHY)]))
    assert kinds(result) == []
    found = finding(result, "decode-0")
    assert (found.verdict, found.gate) == (Verdict.HOLD, "image")
    assert found.reason.endswith(f"no node that answers has an image of it that is to be trusted: i-bad was taken after this: {WHY}")


def test_no_image_is_taken_of_a_worker_whose_images_would_be_good_for_nothing():
    suspect = worker("decode-0", "a/0", doubt=WHY)
    result = decide([checkpoints()], snap(NODES, [suspect]))
    assert kinds(result) == []
    assert (finding(result, "decode-0").verdict, finding(result, "decode-0").gate) == (Verdict.HOLD, "worker.doubt")
    assert WHY in finding(result, "decode-0").reason


def test_one_that_was_started_anew_is_due_whatever_images_there_are_of_before():
    recent = [image("i-bad", D0, "b", at=NOW - 1, doubt=WHY), image("i-old", D0, "b", at=NOW - 3600)]
    assert kinds(decide([checkpoints()], snap(NODES, [D0], recent))) == [("checkpoint", "decode-0")]
    assert kinds(decide([checkpoints()], snap(NODES, [D0], [image("i", D0, "b", at=NOW - 1)]))) == []


def test_an_image_that_isnt_to_be_trusted_keeps_none_from_being_kept_and_goes_first():
    bad, good = image("i-bad", D0, "b", at=NOW - 1, doubt=WHY), image("i-good", D0, "b", at=NOW - 9)
    (gone,) = decide([checkpoints(keep=Keep(last=1))], snap(NODES, [D0], [bad, good])).plan.operations
    assert (gone.kind, gone.image) == (OperationKind.DISCARD, "i-bad")
    assert WHY in gone.reason
    assert ops(decide([checkpoints(keep=Keep(last=2))], snap(NODES, [D0], [bad, good])), OperationKind.DISCARD) == {}
    alone = [bad, image("i-worse", D0, "b", at=NOW - 9, doubt=WHY)]
    assert ops(decide([checkpoints(keep=Keep(last=1))], snap(NODES, [D0], alone)), OperationKind.DISCARD) == {}, "a person may want them"


def test_no_slot_is_made_by_parking_one_that_couldnt_come_back():
    waits = worker("prefill-1")
    others = [worker(f"decode-{n}", f"{at}/0") for n, at in enumerate("ab")]
    suspect = worker("decode-0", "a/0", doubt=WHY)
    nodes = [node("a", ("decode-0",)), node("b", ("decode-1",)), node("c", ("prefill-0",))]
    crowd = [*others, worker("prefill-0", "c/0"), waits]
    found = [
        decide(
            [reassignment(sessions="park")],
            snap(nodes, workers, [image("i", waits, "c")], samples={"prefill-0": {"waiting": 40}}),
        )
        for workers in (crowd, [suspect, *crowd[1:]])
    ]
    assert [list(ops(result, OperationKind.PARK)) for result in found] == [["decode-0"], ["decode-1"]]


def test_a_preempted_one_is_moved_as_it_is():
    """It runs on with what it has: an image from before would be no less doubtful to whoever talks to it now, and older."""
    suspect = worker("decode-0", "a/0", doubt=WHY)
    result = decide([preemption()], snap(NODES, [suspect], (), [notice("a", kind=NoticeKind.PREEMPTION)]))
    assert kinds(result) == [("move", "decode-0")]


def test_one_that_cant_be_moved_is_drained_and_not_parked():
    """Its streams end by themselves, and later it comes back from an image of before."""
    full = [node("a", ("decode-0",)), node("b", ("decode-1",))]
    for doubt, kind in (("", "park"), (WHY, "drain")):
        crowd = [worker("decode-0", "a/0", doubt=doubt), worker("decode-1", "b/0")]
        result = decide([preemption()], snap(full, crowd, (), [notice("a", kind=NoticeKind.PREEMPTION)]))
        assert kinds(result) == [(kind, "decode-0")]
    assert WHY in finding(result, "decode-0").reason


@pytest.mark.parametrize("text", ['v("worker.images") < 2', 'v("worker.imageAge") > 50'])
def test_conditions_count_the_images_that_it_could_come_back_from(text):
    images = [image("i-bad", D0, "b", at=NOW - 40, doubt=WHY), image("i-good", D0, "b", at=NOW - 90)]
    assert kinds(decide([checkpoints(when=ex(text))], snap(NODES, [D0], images))) == [("checkpoint", "decode-0")]


def test_indexes_that_follow_are_those_that_are_made_anew():
    bad, good = image("i-bad", D0, "b", at=NOW - 1, doubt=WHY), image("i-good", D0, "b", at=NOW - 9)
    rest = [image(f"i{n}", worker(f"decode-{n}"), "b") for n in range(1, 9)]
    for before, after in (
        ([good, *rest], [good, bad, *rest]),
        ([bad, good, *rest], [bad, *rest]),
        ([bad, *rest], rest),
        (rest, [bad, *rest]),
    ):
        known = Images(before)
        assert known.taken or known.by_worker
        assert known.by_worker
        followed, anew = known.then(after), Images(after)
        assert (followed.taken, followed.by_worker, followed.several) == (anew.taken, anew.by_worker, anew.several)


def test_in_the_archive_one_that_isnt_to_be_trusted_may_go_when_any_that_is_stays():
    class Parts:
        def __init__(self, *images):
            self.images = images

        def fleet(self):
            return snap([node("b")], [D0], self.images).fleet

        def gone(self, _node):
            return False

    class Run:
        image, planned = "i-bad", operation(OperationKind.DISCARD, "decode-0")

        def __init__(self, *images):
            self.parts = Parts(*images)

    bad = image("i-bad", D0, at=NOW - 1, doubt=WHY, archived=True)
    assert _outdated(Run(bad, image("i-good", D0, "b", at=NOW - 9)))
    assert not _outdated(Run(bad, image("i-worse", D0, "b", at=NOW, doubt=WHY)))
