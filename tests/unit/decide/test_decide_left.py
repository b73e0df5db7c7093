"""Images of workers that have gone with their pods, as a rollout or a smaller pool has it: nobody comes back from them."""

import msgspec
import pytest
from decide_world import NOW, begun, checkpoints, decide, ex, finding, image, node, notice, operation, ops, preemption, snap, worker
from shunter.decide.retention import LEFT_S
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState
from shunter.model.plan import OperationKind
from shunter.model.policy import Keep, WorkerSelector
from shunter.model.snapshot import WorkerState

WHY = "its pod was deleted"
LIVES = worker("decode-1", "b/0")
NODES = (node("a"), node("b", ("decode-1",)))


def gone(since: int | None = int(NOW - LEFT_S), pinned: str = WHY):
    return msgspec.structs.replace(worker("decode-0", None), state=WorkerState.LOST, node=None, pinned=pinned, left_at=since)


def discards(evaluation):
    return list(ops(evaluation, OperationKind.DISCARD).values())


def world(one, *images, nodes=NODES, **more):
    return snap(list(nodes), [one, LIVES], list(images), **more)


def test_all_of_them_go_one_after_the_other_also_the_last():
    one = gone()
    both = (image("i2", one, "a", at=NOW - 9000), image("i1", one, "a", "b", at=NOW - 8000))
    result = decide([checkpoints(keep=Keep(last=3))], world(one, *both))
    (discard,) = discards(result)
    assert (discard.kind, discard.image, discard.lane, discard.expect.absent) == (OperationKind.DISCARD, "i2", "voluntary", True)
    assert WHY in discard.reason
    found = finding(result, "decode-0")
    assert (found.verdict, found.gate) == (Verdict.ACT, "worker.left")
    (last,) = discards(decide([checkpoints(keep=Keep(last=3))], world(one, both[1])))
    assert last.image == "i1"


def test_the_reason_is_the_same_in_each_tick():
    one = gone()
    images = (image("i1", one, "a", at=NOW - 8000),)
    (first,), (later,) = (discards(decide([checkpoints()], world(one, *images), now=NOW + s)) for s in (0, 7))
    assert (first.id, first.reason) == (later.id, later.reason)


@pytest.mark.parametrize("since", [None, int(NOW - LEFT_S) + 1])
def test_nothing_goes_before_its_time_or_of_one_that_may_come_back(since):
    one = gone(since)
    assert not discards(decide([checkpoints()], world(one, image("i1", one, "a", at=NOW - 90000))))


def test_other_workers_keep_theirs():
    one = gone()
    images = (image("i1", one, "a"), image("j1", LIVES, "a", at=NOW - 1))
    assert [o.image for o in discards(decide([checkpoints()], world(one, *images)))] == ["i1"]


def test_it_waits_for_nodes_that_dont_answer_for_operations_and_for_what_is_urgent():
    one = gone()
    images = (image("i1", one, "a"),)
    away = (node("a", reachable=False), NODES[1])
    assert not discards(decide([checkpoints()], world(one, *images, nodes=away)))
    busy = begun(operation(OperationKind.DISCARD, "decode-0", image="i1"))
    assert not discards(decide([checkpoints()], world(one, *images), EngineState(active=(busy,))))
    assert not discards(decide([preemption(), checkpoints()], world(one, *images, notices=[notice("b")])))


def test_only_a_policy_that_covers_it_has_them_go():
    one = gone()
    seen = world(one, image("i1", one, "a"))
    assert not discards(decide([checkpoints(mode="off")], seen))
    assert not discards(decide([checkpoints(workers=WorkerSelector(graph="another"))], seen))
    assert not discards(decide([checkpoints(workers=WorkerSelector(all=True, where=ex('v("worker.id") == "decode-1"')))], seen))
    (shown,) = discards(decide([checkpoints(mode="preview")], seen))
    assert shown.preview
