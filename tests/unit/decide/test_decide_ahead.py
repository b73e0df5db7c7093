"""For how long what leaves a node is copied while it runs: by a plan as a whole."""

from decide_world import GB, NOW, begun, decide, ended, ex, moving, node, notice, operation, ops, preemption, snap, worker
from msgspec.structs import replace
from shunter.model.operation import EngineState, Status, Step
from shunter.model.plan import Estimate, OperationKind
from shunter.model.policy import WorkerSelector
from shunter.model.units import Duration

D0, D1 = worker("decode-0", "a/0"), worker("decode-1", "a/1")
A, B = node("a", ("decode-0", "decode-1")), node("b", (None, None))


def aheads(lead: float | None = 120.0, state: EngineState | None = None, **more: object) -> dict[str, float | None]:
    result = decide([preemption(**more)], snap([A, B], [D0, D1], notices=[notice("a", lead)]), state)
    return {name: o.ahead for name, o in ops(result).items()}


def test_a_node_that_is_going_leaves_half_of_the_time_to_spare_for_copying() -> None:
    # 10 s of dump each, one after the other, then 10 s of restore: of 120 s, 90 are left over, 45 for each, of which half may be used.
    assert aheads(reserve=Duration(0)) == {"decode-0": 22.5, "decode-1": 22.5}
    assert aheads(reserve=Duration(50)) == {"decode-0": 10.0, "decode-1": 10.0}


def test_where_there_is_no_time_to_spare_nothing_is_copied() -> None:
    assert aheads(30.0, reserve=Duration(0)) == {"decode-0": 0.0, "decode-1": 0.0}


def test_where_nobody_knows_until_when_the_agent_decides() -> None:
    assert aheads(None) == {"decode-0": None, "decode-1": None}


def test_what_is_parked_after_them_counts_too() -> None:
    one_slot = snap([A, node("b")], [D0, D1], notices=[notice("a", 100)])
    planned = ops(decide([preemption(reserve=Duration(0), otherwise=("checkpoint",))], one_slot))
    (moved,) = [o for o in planned.values() if o.kind is OperationKind.MOVE]
    (parked,) = [o for o in planned.values() if o.kind is OperationKind.PARK]
    assert (moved.ahead, parked.ahead) == (40.0, None), "the move could end at 100 - 20, and the park at 100 - 20"


def test_what_is_under_way_on_the_node_takes_its_time_with_what_it_may_be_copied_for() -> None:
    moved = replace(operation(OperationKind.MOVE, "decode-9", from_slot="a/2", to_slot="c/0"), estimate=Estimate(total=20.0), ahead=10.0)
    record = begun(moved, at=NOW)
    assert aheads(state=EngineState(active=(record,)), reserve=Duration(0)) == {"decode-0": 15.0, "decode-1": 15.0}, (
        "(90 - 20 - 10) / 2 / 2"
    )
    frozen = replace(record, step=Step.FROZEN)
    assert aheads(state=EngineState(active=(frozen,)), reserve=Duration(0)) == {"decode-0": 17.5, "decode-1": 17.5}, "it is copied no more"


def test_what_is_only_shown_takes_no_time_of_what_is_done() -> None:
    both = WorkerSelector(role="decode", where=ex('v("worker.id") == "decode-1"'))
    real = preemption(workers=WorkerSelector(role="decode", where=ex('v("worker.id") == "decode-0"')), reserve=Duration(0))
    shown = preemption("shown", mode="preview", workers=both, reserve=Duration(0))
    world = snap([A, B], [D0, D1], notices=[notice("a")])
    assert ops(decide([real], world))["decode-0"].ahead == 50.0
    planned = ops(decide([real, shown], world))
    assert planned["decode-1"].preview
    assert planned["decode-0"].ahead == 50.0


def test_a_move_waits_for_the_room_that_is_made_for_it() -> None:
    """It can't be copied before there is somebody to copy it to."""
    prefills = [worker(f"prefill-{n}", f"b/{n}", "prefill", memory=40 * GB) for n in range(2)]
    full = node("b", ("prefill-0", "prefill-1"))
    world = snap([node("a", ("decode-0",)), full], [D0, *prefills], notices=[notice("a")])
    planned = ops(decide([preemption(move=moving(make_room="prefill"), reserve=Duration(0))], world))
    assert planned["decode-0"].ahead == 30.0, "half of 120 s without 40 of the park, 10 of the dump and 10 of the restore"


def test_a_copy_that_went_ahead_says_how_fast_the_link_is_and_the_rest_does_not() -> None:
    """One GB of 20 was left for when it stood still: that took no time, and says nothing of whoever can't be copied before."""
    measured = {"bytes": 20 * GB, "dump": 2.0, "restore": 2.0, "send": 2.1}
    world = snap([A, B], [D0], notices=[notice("a")])

    def stopped(**more: object) -> float | None:
        done = ended(operation(OperationKind.MOVE, "x"), Status.SUCCEEDED, **measured, **more)
        return ops(decide([preemption()], world, EngineState(recent=(done,))))["decode-0"].estimate.stopped

    assert stopped() == 2.05, "an older agent's word"
    assert stopped(sent=20 * GB) == 2.05
    assert stopped(sent=GB, copied=19 * GB, copy=38.0) == 21.0, "0.5 GB a second, and 1 s of restore"
    assert stopped(sent=GB) == 11.0, "most of it was there: the profile's 1 GB a second"
    assert stopped(sent=15 * GB, copied=GB, copy=0.001) == 2.4, "what went ahead was too little to tell"
