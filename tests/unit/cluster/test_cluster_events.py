"""Events of operations: which there are, and on what."""

from typing import Any

import pytest
from shunter.cluster.events import events
from shunter.model.ids import Digest, Epoch, Incarnation, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions


def made(kind: OperationKind, **more: Any) -> list[tuple[str, str, str, str]]:
    planned = PlannedOperation(
        id=OperationId("x-1"), kind=kind, worker=WorkerId("w"), lane="voluntary", policy=PolicyName("p"), reason="because",
        expect=Preconditions(incarnation=Incarnation(0), at=SlotId("a/0")),
        from_slot=SlotId("a/0") if kind is OperationKind.MOVE else None, to_slot=SlotId("b/0") if kind is OperationKind.MOVE else None,
    )  # fmt: skip
    record = OperationRecord(planned=planned, plan=Digest("d"), epoch=Epoch(1), created_at=5.0, **more)
    found = list(events(record, "uid", "shunter"))
    assert len({one["metadata"]["name"] for one in found}) == len(found), "none overwrites another"
    assert {one["metadata"]["namespace"] for one in found if one["involvedObject"]["kind"] == "Node"} <= {"default"}
    return [(one["involvedObject"]["kind"], one["involvedObject"]["name"], one["reason"], one["type"]) for one in found]


def ended(status: Status) -> Outcome:
    return Outcome(status=status, at=9.0, reason="gone")


def test_a_move_is_told_of_where_it_leaves_and_where_it_comes() -> None:
    assert made(OperationKind.MOVE) == [
        ("WorkerOperation", "x-1", "MoveBegun", "Normal"),
        ("Node", "a", "MoveBegun", "Normal"),
        ("Node", "b", "MoveBegun", "Normal"),
    ]
    assert ("Node", "a", "MoveFailed", "Warning") in made(OperationKind.MOVE, outcome=ended(Status.FAILED))


def test_routine_is_told_of_on_nodes_only_when_it_goes_wrong() -> None:
    assert [about for about, *_ in made(OperationKind.CHECKPOINT)] == ["WorkerOperation"]
    assert [about for about, *_ in made(OperationKind.CHECKPOINT, outcome=ended(Status.SUCCEEDED))] == ["WorkerOperation"]
    assert made(OperationKind.CHECKPOINT, outcome=ended(Status.ROLLED_BACK))[1] == ("Node", "a", "CheckpointRolledBack", "Warning")


@pytest.mark.parametrize("more", [{"waits": True}, {"step": Step.FENCED}])
def test_steps_and_what_waits_are_no_news(more: dict[str, Any]) -> None:
    assert made(OperationKind.MOVE, **more) == []
