"""What is planned isn't begun where a notice has come meanwhile; an image of a worker on a node with a hint is."""

import msgspec
import pytest
from shunter.app.astray import astray
from shunter.model.ids import Incarnation, NodeId, NoticeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.snapshot import FAR_S, Notice, NoticeKind

NOW = 1000.0
IMAGE = PlannedOperation(
    id=OperationId("c"),
    kind=OperationKind.CHECKPOINT,
    worker=WorkerId("w"),
    lane="voluntary",
    policy=PolicyName("images"),
    reason="",
    expect=Preconditions(incarnation=Incarnation(0), at=SlotId("a/0")),
    copies=(NodeId("a"), NodeId("b")),
)


def notice(node: str, kind: NoticeKind = NoticeKind.REBALANCE, lead: float | None = None) -> Notice:
    deadline = None if lead is None else NOW + lead
    return Notice(id=NoticeId("n"), kind=kind, node=NodeId(node), seen_at=NOW - 1, deadline=deadline)


@pytest.mark.parametrize(
    ("given", "against"),
    [
        (notice("a"), False),
        (notice("a", NoticeKind.MAINTENANCE, FAR_S + 1), False),
        (notice("a", NoticeKind.MAINTENANCE, FAR_S - 1), True),
        (notice("a", NoticeKind.PREEMPTION, 120), True),
        (notice("b"), True),
        (notice("c", NoticeKind.GONE), False),
    ],
)
def test_a_hint_is_no_reason_against_an_image_where_the_worker_is(given: Notice, against: bool) -> None:
    assert bool(astray(IMAGE, [given], NOW)) is against


def test_nothing_goes_to_where_a_hint_is_open() -> None:
    move = msgspec.structs.replace(IMAGE, kind=OperationKind.MOVE, copies=(), from_slot=SlotId("a/0"), to_slot=SlotId("b/0"))
    assert astray(move, [notice("a")], NOW) == ""
    assert "b/0, where it would go" in astray(move, [notice("b")], NOW)
