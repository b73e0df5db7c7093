"""An engine that dies between an operation's end and telling of it: the next one tells."""

from pathlib import Path

from shunter.act.store import Store
from shunter.app.untold import WINDOW_S, untold
from shunter.audit.journal import Journal
from shunter.model.ids import Digest, Epoch, Incarnation, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.record import Record, RecordKind

NOW = 1000.0


def begun(store: Store, name: str, ended: float | None) -> None:
    planned = PlannedOperation(
        id=OperationId(name),
        kind=OperationKind.MOVE,
        worker=WorkerId("w"),
        lane="voluntary",
        policy=PolicyName("p"),
        reason="a test",
        expect=Preconditions(incarnation=Incarnation(0), at=SlotId("a/0")),
    )
    at = ((Step.INTENDED, NOW - 500),)
    store.insert([OperationRecord(planned=planned, plan=Digest("sha256:0"), epoch=Epoch(1), created_at=NOW - 500, history=at)])
    if ended is not None:
        store.finish(OperationId(name), Outcome(status=Status.SUCCEEDED, at=ended))


def told(name: str, kind: RecordKind, at: float) -> Record:
    return Record(at=at, kind=kind, subject="w", what="told", epoch=Epoch(1), operation=OperationId(name), body={})


def test_what_has_ended_and_was_not_told_is_found_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "engine.db")
    with Journal(tmp_path / "audit") as journal:
        for name, ended in (("told", NOW - 5), ("untold", NOW), ("open", None), ("long-ago", NOW - 2 * WINDOW_S)):
            begun(store, name, ended)
        journal.append([told("told", RecordKind.OUTCOME, NOW - 5), told("untold", RecordKind.STEP, NOW - 1)])
        found = untold(journal, store.recent)
        assert [record.id for record in found] == ["untold"]
        journal.append([told("untold", RecordKind.OUTCOME, NOW)])
        assert untold(journal, store.recent) == []
    store.close()


def test_an_audit_without_a_record_has_heard_of_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "engine.db")
    begun(store, "untold", NOW - 400)
    with Journal(tmp_path / "audit") as journal:
        assert [record.id for record in untold(journal, store.recent)] == ["untold"]
    store.close()
