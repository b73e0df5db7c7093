"""A notice gives up what would bring a worker to the wrong place or too late, as long as its worker runs; and nothing else."""

import msgspec
import pytest
from shunter.app.overtaken import overtaken
from shunter.model.errors import Problem
from shunter.model.ids import Digest, Epoch, Incarnation, NodeId, NoticeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord
from shunter.model.plan import Estimate, OperationKind, PlannedOperation, Preconditions
from shunter.model.snapshot import Notice, NoticeKind

NOW = 1000.0
MOVE = PlannedOperation(
    id=OperationId("move-w"),
    kind=OperationKind.MOVE,
    worker=WorkerId("w"),
    lane="voluntary",
    policy=PolicyName("tidy"),
    reason="",
    expect=Preconditions(incarnation=Incarnation(0), at=SlotId("a/0"), free=SlotId("b/0")),
    from_slot=SlotId("a/0"),
    to_slot=SlotId("b/0"),
    estimate=Estimate(bytes=1, stopped=30.0, total=40.0),
)


def record(**more: object) -> OperationRecord:
    return OperationRecord(planned=MOVE, plan=Digest("p"), epoch=Epoch(1), created_at=NOW - 5, **more)  # type: ignore[arg-type]


def notice(node: str, lead: float | None, slot: str | None = None) -> Notice:
    return Notice(
        id=NoticeId(f"n-{node}"),
        kind=NoticeKind.PREEMPTION,
        node=NodeId(node),
        seen_at=NOW - 1,
        deadline=None if lead is None else NOW + lead,
        slot=SlotId(slot) if slot else None,
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (notice("b", None), "a notice is open for where it would go (preemption of b)"),
        (notice("b", 600, slot="b/0"), "a notice is open for where it would go (preemption of b)"),
        (notice("a", 20), "it would end 10 s after the deadline of preemption of a"),
        (notice("a", 31), None),
        (notice("a", None), None),
        (notice("b", 600, slot="b/1"), None),
        (notice("c", 1), None),
    ],
)
def test_the_wrong_place_and_too_late(given: Notice, why: str | None) -> None:
    assert overtaken([record()], [given], NOW) == ([] if why is None else [("move-w", why)])


@pytest.mark.parametrize(
    "spared",
    [
        {"frozen_at": NOW - 1},
        {"waits": True},
        {"cancelled": Problem(code="SH528", what="it was given up", remedy="Nothing to do")},
    ],
)
def test_what_has_stopped_its_worker_or_waits_or_goes_back_is_let_alone(spared: dict[str, object]) -> None:
    assert overtaken([record(**spared)], [notice("a", 1), notice("b", 1)], NOW) == []


def test_what_answers_a_withdrawn_notice_is_given_up_as_long_as_it_waits() -> None:
    """A cancelled event starts no further work, and breaks off none."""
    answering = msgspec.structs.replace(MOVE, lane="involuntary", notice=NoticeId("n-a"))
    waits = msgspec.structs.replace(record(waits=True), planned=answering)
    assert overtaken([waits], [notice("a", 60)], NOW) == []
    assert overtaken([waits], [notice("b", None)], NOW) == [("move-w", "the notice that it answers was withdrawn")]
    assert overtaken([msgspec.structs.replace(waits, waits=False)], [], NOW) == []
    told = Problem(code="SH1", what="", remedy="")
    assert overtaken([msgspec.structs.replace(waits, cancelled=told)], [], NOW) == [], "once is enough"
    assert overtaken([record(waits=True)], [], NOW) == [], "it answers none"
