"""What only pretends is told so: by the nodes that it is about, or by where its worker is."""

import pytest
from shunter.model.ids import ImageId, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.pretending import Pretending
from shunter.model.snapshot import Fleet, Node, Worker, WorkerState


def fleet(runtime: str) -> Fleet:
    worker = Worker(
        id=WorkerId("w"), role="decode", graph="g", engine="e", state=WorkerState.RUNNING, node=NodeId("a"), slot=SlotId("a/0"),
        incarnation=Incarnation(0),
    )  # fmt: skip
    return Fleet(nodes=(Node(id=NodeId("a"), slots=(), runtime=runtime), Node(id=NodeId("b"), slots=())), workers=(worker,))


def operation(kind: OperationKind, worker: str, **more: object) -> PlannedOperation:
    expect = Preconditions(incarnation=Incarnation(0), image=ImageId("i"))
    return PlannedOperation(
        id=OperationId("o"), kind=kind, worker=WorkerId(worker), lane="voluntary", policy=PolicyName("p"), reason="", expect=expect, **more
    )  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize(
    ("planned", "pretends"),
    [
        (operation(OperationKind.MOVE, "v", from_slot=SlotId("b/0"), to_slot=SlotId("a/1")), True),
        (operation(OperationKind.MOVE, "v", from_slot=SlotId("b/0"), to_slot=SlotId("b/1")), False),
        (operation(OperationKind.PARK, "v", from_slot=SlotId("b/0"), copies=(NodeId("a"),)), True),
        (operation(OperationKind.DISCARD, "w"), True),
        (operation(OperationKind.DISCARD, "v"), False),
    ],
)
def test_an_operation_pretends_where_any_part_of_it_does(planned: PlannedOperation, pretends: bool) -> None:
    assert Pretending(fleet("pretend")).operation(planned) is pretends
    assert not Pretending(fleet("criu")).operation(planned)
    assert not Pretending(None).operation(planned)


def test_a_graph_pretends_with_any_of_its_workers() -> None:
    assert Pretending(fleet("pretend")).subjects == {"w", "g"}
    assert Pretending(fleet("criu")).subjects == frozenset()
