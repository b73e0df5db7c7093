"""A notice about one GPU: it condemns the worker on it, not the node; and nothing is dumped through a GPU that is gone."""

from decide_world import checkpoints, decide, ex, finding, image, kinds, node, notice, ops, preemption, rebalancing, snap, worker
from shunter.model.finding import Verdict
from shunter.model.ids import SlotId
from shunter.model.plan import OperationKind
from shunter.model.snapshot import NoticeKind, WorkerState

D0, D1 = worker("decode-0", "a/0"), worker("decode-1", "a/1")
A, B = node("a", ("decode-0", "decode-1", None)), node("b", (None,))
FAILING = preemption("gpus", notices=(NoticeKind.GPU_FAILING,))


def bad(slot: str, *, dumpable: bool = True):
    return notice(slot.partition("/")[0], None, NoticeKind.GPU_FAILING, slot=SlotId(slot), dumpable=dumpable)


def test_only_the_worker_on_the_failing_gpu_moves():
    result = decide([FAILING], snap([A, B], [D0, D1], notices=[bad("a/0")]))
    assert kinds(result) == [("move", "decode-0")]
    assert ops(result)["decode-0"].to_slot == "b/0"
    assert finding(result, "decode-1").verdict is Verdict.PASS


def test_nobody_is_brought_to_a_slot_with_a_failing_gpu():
    going = preemption("all", notices=(NoticeKind.PREEMPTION,))
    fleet = [node("a", ("decode-0",)), node("b", (None, None))]
    result = decide([going], snap(fleet, [D0], notices=[notice("a"), bad("b/0")]))
    assert ops(result, OperationKind.MOVE)["decode-0"].to_slot == "b/1"
    result = decide([going], snap([node("a", ("decode-0",)), node("b", (None,))], [D0], notices=[notice("a"), bad("b/0")]))
    assert not ops(result, OperationKind.MOVE)


def test_nothing_is_dumped_through_a_gpu_that_is_gone_whatever_else_is_going():
    everything = preemption("all", notices=(NoticeKind.GPU_FAILING, NoticeKind.PREEMPTION))
    for notices in ([bad("a/0", dumpable=False)], [bad("a/0", dumpable=False), notice("a")]):
        result = decide([everything, checkpoints()], snap([A, B], [D0, D1], notices=notices))
        assert "decode-0" not in ops(result)
        held = finding(result, "decode-0", "all")
        assert (held.verdict, held.gate) == (Verdict.HOLD, "gpu")
        assert finding(result, "decode-0", "images").verdict is Verdict.HOLD


def test_once_its_process_has_ended_it_comes_back_from_its_last_image_elsewhere():
    gone = preemption("gpus", notices=(NoticeKind.GPU_FAILING, NoticeKind.GONE))
    lost = worker("decode-0", state=WorkerState.LOST)
    kept = image("i", lost, "b")
    fleet = [node("a", (None, "decode-1")), node("b", (None,))]
    result = decide([gone], snap(fleet, [lost, D1], images=[kept], notices=[bad("a/0", dumpable=False)]))
    (restore,) = result.plan.operations
    assert (restore.kind, restore.worker, restore.to_slot) == (OperationKind.RESTORE, "decode-0", "b/0")


def test_nothing_voluntary_is_done_with_the_worker_on_it():
    tidy = rebalancing("tidy", when=ex('v("node.id") == "a"'))
    fleet = [node("a", ("decode-0",)), node("b", (None,))]
    quiet = decide([tidy], snap(fleet, [D0]))
    assert kinds(quiet) == [("move", "decode-0")], "without the notice it moves"
    result = decide([tidy], snap(fleet, [D0], notices=[bad("a/0")]))
    assert not result.plan.operations
    assert finding(result, "decode-0").gate == "node.noticed"


def test_the_driver_of_a_node_is_no_matter_to_a_worker_without_gpus():
    going = preemption("all", notices=(NoticeKind.PREEMPTION,))
    for gpus, moves in ((0, True), (8, False)):
        fleet = [node("a", ("decode-0",), gpus=gpus, facts={"driver": "580.1"}), node("b", (None,), gpus=gpus, facts={"driver": "590.1"})]
        result = decide([going], snap(fleet, [D0], notices=[notice("a")]))
        assert bool(ops(result, OperationKind.MOVE)) is moves, f"{gpus} GPUs"
