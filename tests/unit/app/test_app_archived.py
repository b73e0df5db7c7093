"""An image that the archive alone has, wherever the engine asks who has one."""

import msgspec
import pytest
from shunter.act.expect import unmet
from shunter.app.exact import ExactPlan
from shunter.app.housed import _without
from shunter.app.recheck import Now, moved
from shunter.app.recording import Recording
from shunter.backtest.world import carried_out
from shunter.model.ids import Commit, Digest, ImageId, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.plan import OperationKind, Plan, PlannedOperation, Preconditions
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Fleet, Image, Node, Slot, Worker, WorkerState
from shunter.report.plan import headline

NOW = 1_800_000_000.0
A, C = NodeId("a"), NodeId("c")
LOST = Worker(
    id=WorkerId("w"),
    role="decode",
    graph="g",
    engine="e",
    state=WorkerState.LOST,
    node=None,
    slot=None,
    incarnation=Incarnation(1),
)
RESTORE = PlannedOperation(
    id=OperationId("restore-w"),
    kind=OperationKind.RESTORE,
    worker=WorkerId("w"),
    lane="involuntary",
    policy=PolicyName("p"),
    reason="r",
    expect=Preconditions(incarnation=Incarnation(1), absent=True, free=SlotId("c/0"), image=ImageId("i")),
    to_slot=SlotId("c/0"),
    image=ImageId("i"),
)
CHECKPOINT = msgspec.structs.replace(
    RESTORE, id=OperationId("checkpoint-w"), kind=OperationKind.CHECKPOINT, image=None, to_slot=None, copies=(A,), archive=True
)


def image(*nodes: NodeId, archived: bool = True) -> Image:
    return Image(
        id=ImageId("i"),
        worker=WorkerId("w"),
        incarnation=Incarnation(1),
        taken_at=NOW - 60,
        bytes=1,
        nodes=nodes,
        role="decode",
        graph="g",
        engine="e",
        archived=archived,
    )


def fleet(kept: Image, *, knows: bool = True) -> Fleet:
    nodes = (Node(id=A, slots=(), reachable=False), Node(id=C, slots=(Slot(id=SlotId("c/0")),), archive=knows))
    return Fleet(nodes=nodes, workers=(LOST,), images=(kept,))


def test_a_restore_begins_with_an_image_that_the_archive_alone_has() -> None:
    assert unmet(RESTORE, fleet(image())) == ""
    assert "nor by the archive" in unmet(RESTORE, fleet(image(archived=False)))


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (fleet(image()), ""),
        (fleet(image(A)), ""),
        (fleet(image(C), knows=False), ""),
        (fleet(image(), knows=False), "i is held by the archive alone, which can't be reached"),
        (fleet(image(A), knows=False), "i is held by a, the archive alone, which can't be reached"),
        (fleet(image(A, archived=False)), "i is held by a alone, which can't be reached"),
    ],
)
def test_an_exact_plan_holds_while_its_image_can_be_had_where_it_goes(seen: Fleet, said: str) -> None:
    plan = Plan(at=NOW, commit=Commit("c"), policy_set=Digest("sha256:p"), snapshot=Digest("sha256:s"), operations=(RESTORE,))
    now = Now(at=NOW + 1, policies=PolicySet(commit=Commit("c"), digest=Digest("sha256:p")), fleet=seen)
    problems = moved(ExactPlan.of(plan, Recording(at=NOW, fleet=seen), now=NOW), now, lambda _operation: False)
    assert [p.code for p in problems] == (["SH957"] if said else [])
    assert said in "".join(p.what for p in problems)


def test_an_image_outlives_the_nodes_that_the_cluster_has_no_more() -> None:
    assert [(i.id, i.nodes) for i in _without(fleet(image(A)), frozenset({A})).images] == [("i", ())]
    assert _without(fleet(image(A, archived=False)), frozenset({A})).images == ()


def test_a_simulated_checkpoint_goes_there_and_outlives_its_node() -> None:
    there = msgspec.structs.replace(LOST, state=WorkerState.RUNNING, node=C, slot=SlotId("c/0"))
    seen = msgspec.structs.replace(fleet(image()), workers=(there,), images=())
    after = carried_out(seen, msgspec.structs.replace(CHECKPOINT, copies=(C,)), NOW)
    assert [(i.nodes, i.archived) for i in after.images] == [((C,), True)]


def test_people_are_told_that_it_goes_there() -> None:
    assert "image to a, the archive" in headline(CHECKPOINT)
    assert image(A).holders == "a, the archive"
