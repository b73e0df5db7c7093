"""The store keeps its promises, and one engine leads."""

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from shunter.act.lease import Lease
from shunter.act.store import SCHEMA, Store
from shunter.model.errors import Rejected, Stalled
from shunter.model.ids import Digest, Epoch, Incarnation, NodeId, NoticeId, OperationId, PolicyName, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.snapshot import Fleet, Node, Notice, NoticeKind


def record(name: str = "op", kind: OperationKind = OperationKind.MOVE, at: float = 10.0) -> OperationRecord:
    planned = PlannedOperation(
        id=OperationId(name),
        kind=kind,
        worker=WorkerId("w"),
        lane="voluntary",
        policy=PolicyName("p"),
        reason="r",
        expect=Preconditions(incarnation=Incarnation(0)),
    )
    return OperationRecord(planned=planned, plan=Digest("d"), epoch=Epoch(1), created_at=at, history=((Step.INTENDED, at),))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "s.db", busy_s=0.05)


def test_an_operation_through_its_life_survives_reopening(store: Store) -> None:
    store.insert([record()])
    store.advance(OperationId("op"), Step.PREPARED, 11.0)
    store.advance(OperationId("op"), Step.PREPARED, 12.0)
    again = Store(store.path)
    (kept,) = again.active()
    assert kept.step is Step.PREPARED
    assert kept.history == ((Step.INTENDED, 10.0), (Step.PREPARED, 11.0)), "the same step is no second line"
    again.finish(OperationId("op"), Outcome(status=Status.SUCCEEDED, at=20.0))
    assert store.active() == ()
    assert [r.id for r in store.state(3619.0).recent] == ["op"]
    assert store.state(3621.0).recent == ()


def test_recent_is_in_the_order_of_ends(store: Store) -> None:
    store.insert([record("a"), record("b"), record("c")])
    for name, at in (("b", 1.0), ("c", 2.0), ("a", 3.0)):
        store.finish(OperationId(name), Outcome(status=Status.SUCCEEDED, at=at))
    assert [r.id for r in store.recent(2.0)] == ["c", "a"]


def test_no_order_twice_and_all_or_none(store: Store) -> None:
    store.insert([record("a")])
    with pytest.raises(Rejected, match="SH503"):
        store.insert([record("b"), record("a")])
    assert [r.id for r in store.active()] == ["a"]
    assert store.healthy, "a refusal is no fault of the disk"


def test_what_has_ended_is_not_changed(store: Store) -> None:
    store.insert([record()])
    store.finish(OperationId("op"), Outcome(status=Status.FAILED, at=1.0))
    with pytest.raises(Rejected, match="SH506"):
        store.advance(OperationId("op"), Step.HELD, 2.0)
    with pytest.raises(Rejected, match="SH506"):
        store.finish(OperationId("op"), Outcome(status=Status.SUCCEEDED, at=2.0))
    with pytest.raises(Rejected, match="SH505"):
        store.advance(OperationId("nobody"), Step.HELD, 2.0)


def test_a_plan_is_consumed_once_also_after_reopening(store: Store) -> None:
    store.consume(Digest("plan"), 1.0)
    with pytest.raises(Rejected, match="SH504"):
        Store(store.path).consume(Digest("plan"), 2.0)


def test_drained_workers_are_over_until_they_are_restored(store: Store) -> None:
    store.insert([record("drain", OperationKind.DRAIN), record("failed", OperationKind.DRAIN), record("back", OperationKind.RESTORE)])
    store.finish(OperationId("failed"), Outcome(status=Status.ROLLED_BACK, at=1.0))
    assert store.ended() == frozenset()
    store.finish(OperationId("drain"), Outcome(status=Status.SUCCEEDED, at=2.0))
    assert store.ended() == {"w"}
    store.finish(OperationId("back"), Outcome(status=Status.SUCCEEDED, at=3.0))
    assert store.ended() == frozenset()


def test_the_fleet_is_remembered(store: Store) -> None:
    assert store.load_fleet() is None
    fleet = Fleet(nodes=(Node(id=NodeId("n"), slots=()),))
    notices = (Notice(id=NoticeId("x"), kind=NoticeKind.GONE, node=NodeId("n"), seen_at=1.0),)
    store.save_fleet(fleet, notices, 5.0)
    kept = Store(store.path).load_fleet()
    assert kept is not None
    assert (kept.fleet, kept.notices, kept.at) == (fleet, notices, 5.0)


def test_a_locked_store_stalls_and_recovers(store: Store) -> None:
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Stalled, match="SH501"):
        store.insert([record()])
    assert not store.healthy
    assert not store.probe()
    other.execute("ROLLBACK")
    other.close()
    assert store.probe()
    assert store.healthy
    assert store.active() == ()


def test_a_full_disk_stalls_and_leaves_what_was_there(store: Store) -> None:
    store.insert([record("kept")])
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Stalled, match="SH501"):
        store.insert([record(f"o{n}") for n in range(200)])
    assert not store.healthy
    assert [r.id for r in store.active()] == ["kept"]
    store._db.execute("PRAGMA max_page_count=100000")
    assert store.probe()


def test_only_its_owner_reads_it(store: Store) -> None:
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


def test_it_is_written_through(store: Store) -> None:
    assert store._db.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert store._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_a_newer_format_is_refused(store: Store) -> None:
    store._db.execute("UPDATE meta SET value=? WHERE key='schema'", (SCHEMA + 1,))
    with pytest.raises(Stalled, match="SH502"):
        Store(store.path)


def test_a_second_engine_is_told_who_leads(store: Store, tmp_path: Path) -> None:
    with Lease(tmp_path / "lock", store) as first:
        assert first.epoch == 1
        with pytest.raises(Rejected, match=f"SH507.*{os.getpid()}"):
            Lease(tmp_path / "lock", store)
        assert store.epoch == 1, "who doesn't lead begins no epoch"
        assert first.held()
    assert not first.held()
    with Lease(tmp_path / "lock", store) as second:
        assert second.epoch == 2
        (tmp_path / "lock").unlink()
        assert not second.held(), "another engine could make the file anew and hold that"


def test_the_lock_goes_with_the_process(store: Store, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from shunter.act.lease import Lease; from shunter.act.store import Store;"
        "p = pathlib.Path(sys.argv[1]); lease = Lease(p / 'lock', Store(p / 's.db')); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(Rejected, match=f"SH507.*{child.pid}"):
            Lease(tmp_path / "lock", store)
        child.kill()
        child.wait()
    with Lease(tmp_path / "lock", store) as mine:
        assert mine.epoch == 2
