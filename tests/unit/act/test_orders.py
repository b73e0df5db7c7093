"""What every order says of its operation."""

from pathlib import Path
from typing import Any

import pytest
from shunter.act.run import Parts, Run
from shunter.act.store import Store
from shunter.model.ids import Digest, Epoch, Incarnation, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Step
from shunter.model.plan import Estimate, Lane, OperationKind, PlannedOperation, Preconditions
from shunter.model.record import Record
from shunter.model.snapshot import Fleet


async def _no_sleep(_seconds: float) -> None:
    raise AssertionError("nothing waits here")


def planned_move(**more: Any) -> PlannedOperation:
    given: dict[str, Any] = {
        "id": OperationId("o"), "kind": OperationKind.MOVE, "worker": WorkerId("w"), "lane": "involuntary", "policy": PolicyName("p"),
        "reason": "a test", "expect": Preconditions(incarnation=Incarnation(3), at=SlotId("n/0")),
    }  # fmt: skip
    return PlannedOperation(**(given | more))


@pytest.mark.parametrize(
    ("lane", "deadline", "said"), [("involuntary", 1200.0, 1200.0), ("involuntary", None, 0.0), ("voluntary", 1200.0, 0.0)]
)
def test_an_order_says_by_when_what_has_to_leave_must_be_gone(tmp_path: Path, lane: Lane, deadline: float | None, said: float) -> None:
    planned = planned_move(lane=lane, deadline=deadline)
    record = OperationRecord(planned=planned, plan=Digest("sha256:0"), epoch=Epoch(7), created_at=1000.0)
    store = Store(tmp_path / "engine.db")
    parts = Parts(store=store, agents={}, fleet=Fleet, audit=lambda _record: None, clock=lambda: 1000.0, sleep=_no_sleep)
    order = Run(parts, record).order
    store.close()
    assert (order.operation, order.epoch, order.worker, order.incarnation) == ("o", 7, "w", 3)
    assert order.deadline == said


@pytest.mark.parametrize(
    ("ahead", "deadline", "stopped", "allowed"),
    [
        (None, 1200.0, 20.0, None),
        (30.0, None, 20.0, 30.0),
        (30.0, 1200.0, None, 30.0),
        (30.0, 1200.0, 20.0, 30.0),
        (30.0, 1060.0, 20.0, 20.0),
        (30.0, 1019.0, 20.0, 0.0),
    ],
    ids=["not planned", "no deadline", "size not known", "in time", "late", "too late"],
)
def test_what_is_late_is_copied_ahead_for_half_of_what_is_left_at_most(
    tmp_path: Path, ahead: float | None, deadline: float | None, stopped: float | None, allowed: float | None
) -> None:
    planned = planned_move(deadline=deadline, estimate=Estimate(stopped=stopped), ahead=ahead)
    record = OperationRecord(planned=planned, plan=Digest("sha256:0"), epoch=Epoch(7), created_at=1000.0)
    store = Store(tmp_path / "engine.db")
    parts = Parts(store=store, agents={}, fleet=Fleet, audit=lambda _record: None, clock=lambda: 1000.0, sleep=_no_sleep)
    assert Run(parts, record).ahead == allowed
    store.close()


def test_two_steps_at_once_are_two_in_the_history_the_audit_and_for_people(tmp_path: Path) -> None:
    planned = planned_move()
    record = OperationRecord(
        planned=planned, plan=Digest("sha256:0"), epoch=Epoch(7), created_at=1000.0, history=((Step.INTENDED, 1000.0),)
    )
    store, audited, told = Store(tmp_path / "engine.db"), list[Record](), list[Step]()
    store.insert([record])
    parts = Parts(
        store=store,
        agents={},
        fleet=Fleet,
        audit=audited.append,
        clock=lambda: 1001.0,
        sleep=_no_sleep,
        progress=lambda one: told.append(one.step),
    )
    run = Run(parts, record)
    run.step(Step.FENCED, by=Step.PREPARED)
    stored = store.get(record.id)
    store.close()
    assert stored == run.record
    assert stored is not None
    assert [step for step, _ in stored.history] == [Step.INTENDED, Step.PREPARED, Step.FENCED]
    assert [one.body["step"] for one in audited] == ["prepared", "fenced"]
    assert told == [Step.PREPARED, Step.FENCED]
