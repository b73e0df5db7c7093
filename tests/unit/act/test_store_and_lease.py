"""The store keeps its promises, and one engine leads."""

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shunter.act.beyond import Remembered
from shunter.act.lease import Lease
from shunter.act.store import SCHEMA, Store, looked_at
from shunter.model.canon import encode
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
    shared = {WorkerId("w"): frozenset({NodeId("m"), NodeId("n")})}
    store.save_fleet(fleet, notices, 5.0, namesakes=shared)
    kept = Store(store.path).load_fleet()
    assert kept is not None
    assert (kept.fleet, kept.notices, kept.at, kept.namesakes) == (fleet, notices, 5.0, shared)


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


def test_a_fleet_that_is_damaged_is_said_and_no_traceback(store: Store) -> None:
    store.save_fleet(Fleet(), (), 10.0)
    for damaged in (b"x\x9cnonsense", b'{"at": "then"}'):
        store._db.execute("UPDATE fleet SET body = ?", (damaged,))
        with pytest.raises(Stalled, match="SH501"):
            Store(store.path, read_only=True).load_fleet()


def test_a_newer_format_is_refused(store: Store) -> None:
    store._db.execute("UPDATE meta SET value=? WHERE key='schema'", (SCHEMA + 1,))
    with pytest.raises(Stalled, match="SH502"):
        Store(store.path)


def test_of_several_that_make_a_store_at_once_each_has_it(tmp_path: Path) -> None:
    """SQLite doesn't have one wait for the other while a file changes its mode. Fifty times, as it takes two at the same moment."""
    epochs: list[list[Epoch]] = []

    def begin(path: Path, together: threading.Barrier, found: list[Epoch]) -> None:
        together.wait()
        with contextlib.closing(Store(path)) as own:
            found.append(own.next_epoch())

    for n in range(50):
        found = list[Epoch]()
        arguments = tmp_path / f"{n}.db", threading.Barrier(4), found
        threads = [threading.Thread(target=begin, args=arguments) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        epochs.append(sorted(found))
    assert epochs == [[1, 2, 3, 4]] * 50


@pytest.mark.parametrize("earlier", [False, True])
def test_who_looks_while_an_engine_starts_sees_a_whole_store_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    path, seen = tmp_path / "engine.db", list[str]()
    if earlier:  # what an older engine left, which knew less
        Store(path).close()
        with sqlite3.connect(path) as db:
            db.execute("DROP TABLE noticed")
            db.execute("UPDATE meta SET value = 1")
        db.close()

    def look() -> None:
        with looked_at(path) as store:
            if store is None:
                seen.append("none")
                return
            assert (store.load_fleet(), store.ended(), store.active(), store.epoch) == (None, frozenset(), (), 0)
            seen.append("one")

    class Watched(sqlite3.Connection):
        def execute(self, *what: Any) -> sqlite3.Cursor:
            with monkeypatch.context() as before:
                before.setattr(sqlite3, "connect", connect)
                look()
            return super().execute(*what)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", partial(connect, factory=Watched))
    Store(path).close()
    monkeypatch.undo()
    look()
    assert len(seen) > 12
    assert seen == sorted(seen), "never again nothing once there is one"
    assert seen[-1] == "one"
    assert seen[0] == ("one" if earlier else "none")


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


def test_on_a_full_disk_the_lock_is_taken_in_the_block_that_is_there(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").write_text("12345678901234567890\n")  # of a process before, with a longer number

    def cut(_fd: int, _length: int) -> None:
        raise AssertionError("what is given back may be gone")

    monkeypatch.setattr(os, "ftruncate", cut)
    with Lease(tmp_path / "lock", store), pytest.raises(Rejected, match=f"SH507.*process {os.getpid()}[.]"):
        Lease(tmp_path / "lock", store)


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


class Sick:
    """A connection whose disk takes no writes, as a disk that went read-only or an I/O error would have it; reads go on unless `blind`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db, self.sick, self.blind = db, True, False

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        if self.sick and (self.blind or statement.startswith(("BEGIN", "INSERT", "DELETE", "COMMIT"))):
            raise sqlite3.OperationalError("disk I/O error")
        return self.db.execute(statement, values)  # type: ignore[arg-type]

    @property
    def in_transaction(self) -> bool:
        return self.db.in_transaction

    def close(self) -> None:
        self.db.close()


def fall_ill(store: Store) -> Sick:
    sick = Sick(store._db)
    store._db = sick  # type: ignore[assignment]
    return sick


def urgent(name: str, kind: OperationKind = OperationKind.MOVE, at: float = 10.0) -> OperationRecord:
    one = record(name, kind, at)
    return msgspec.structs.replace(one, planned=msgspec.structs.replace(one.planned, lane="involuntary"))


def test_what_is_involuntary_goes_on_in_memory_and_comes_to_the_disk_as_it_was(store: Store) -> None:
    store.insert([record("older"), urgent("begun", at=11.0)])
    store.finish(OperationId("older"), Outcome(status=Status.SUCCEEDED, at=12.0))
    sick = fall_ill(store)
    store.consume(Digest("plan"), 13.0)
    store.insert([urgent("new", OperationKind.DRAIN, at=13.0)])
    store.advance(OperationId("begun"), Step.FENCED, 14.0)
    store.finish(OperationId("new"), Outcome(status=Status.SUCCEEDED, at=15.0))
    store.save_fleet(Fleet(nodes=(Node(id=NodeId("n"), slots=()),)), (), 16.0)
    assert not store.healthy
    assert store.unwritten == 8, "the plan is two statements, and so are a drain's end and the fleet"
    now = (store.active(), store.recent(0.0), store.ended(), store.load_fleet())
    assert [r.step for r in now[0]] == [Step.FENCED]
    assert [r.id for r in now[1]] == ["older", "new"]
    assert Store(store.path).get(OperationId("new")) is None, "nothing of it is on the disk"
    with pytest.raises(Rejected, match="SH504"):
        store.consume(Digest("plan"), 17.0)
    assert not store.recover()
    sick.sick = False
    assert store.recover()
    assert (store.unwritten, store.healthy, store.problem) == (0, True, None)
    again = Store(store.path)
    assert (again.active(), again.recent(0.0), again.ended(), again.load_fleet()) == now
    with pytest.raises(Rejected, match="SH504"):
        again.consume(Digest("plan"), 17.0)


@pytest.mark.parametrize("before", [False, True])
def test_what_is_voluntary_stalls_whether_or_not_something_is_in_memory(store: Store, before: bool) -> None:
    store.insert([record("begun"), urgent("saved")])
    fall_ill(store)
    if before:
        store.advance(OperationId("saved"), Step.FENCED, 1.0)
    with pytest.raises(Stalled, match=r"SH501.*disk I/O error"):
        store.insert([record("new")])
    with pytest.raises(Stalled, match="SH501"):
        store.advance(OperationId("begun"), Step.FENCED, 1.0)
    with pytest.raises(Stalled, match="SH501"):
        store.next_epoch()
    assert not store.probe()
    assert store.get(OperationId("new")) is None
    ended = store.finish(OperationId("begun"), Outcome(status=Status.SUPERSEDED, at=2.0))
    assert ended.status is Status.SUPERSEDED, "no effect follows an end, and it must not stand in the way of what is urgent"


def test_no_order_twice_also_of_those_older_than_what_is_in_memory(store: Store) -> None:
    store.insert([urgent("old"), urgent("late")])
    store.finish(OperationId("old"), Outcome(status=Status.SUCCEEDED, at=0.0))
    store.finish(OperationId("late"), Outcome(status=Status.SUCCEEDED, at=1e6))
    fall_ill(store)
    for name in ("old", "late"):
        with pytest.raises(Rejected, match="SH503"):
            store.insert([urgent("new"), urgent(name)])
    assert store.get(OperationId("new")) is None
    assert store.unwritten == 0, "what was refused is undone"
    store.insert([urgent("new")])
    assert [r.id for r in store.active()] == ["new"]


def test_a_disk_that_can_not_even_be_read_stalls_and_what_is_in_memory_goes_on(store: Store) -> None:
    store.insert([urgent("a")])
    sick = fall_ill(store)
    sick.blind = True
    with pytest.raises(Stalled, match="SH501"):
        store.advance(OperationId("a"), Step.FENCED, 1.0)
    sick.blind = False
    store.advance(OperationId("a"), Step.FENCED, 1.0)
    sick.blind = True
    store.insert([urgent("b")])
    assert [r.id for r in store.active()] == ["a", "b"]


def test_a_return_that_fails_in_the_middle_leaves_all_in_memory(store: Store) -> None:
    sick = fall_ill(store)
    store.insert([urgent("a"), urgent("b")])
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("CREATE TRIGGER no BEFORE INSERT ON operations WHEN NEW.id = 'b' BEGIN SELECT RAISE(FAIL, 'full'); END")
    sick.sick = False
    assert not store.recover()
    assert other.execute("SELECT count(*) FROM operations").fetchone() == (0,)
    other.execute("DROP TRIGGER no")
    other.close()
    assert store.recover()
    assert [r.id for r in Store(store.path).active()] == ["a", "b"]


def test_the_gate_keeps_what_is_voluntary_from_starting(store: Store) -> None:
    store.gate = lambda: False
    assert (store.healthy, store.probe(), store.recover()) == (False, False, True)
    store.gate = lambda: True
    assert (store.healthy, store.probe()) == (True, True)


def test_notices_are_remembered_without_writing_the_fleet_again(store: Store) -> None:
    fleet = Fleet(nodes=(Node(id=NodeId("n"), slots=()),))
    notice = Notice(id=NoticeId("n/1"), kind=NoticeKind.PREEMPTION, node=NodeId("n"), seen_at=1.0, deadline=2.0)
    store.save_fleet(fleet, (), 10.0)
    (before,) = store._rows("SELECT body FROM fleet")
    store.save_notices(fleet, (notice,), 9.0)  # the clock was set back
    assert store._rows("SELECT body FROM fleet") == [before]
    kept = Store(store.path, read_only=True).load_fleet()
    assert kept is not None
    assert (kept.fleet, kept.notices, kept.at) == (fleet, (notice,), 10.0), "the fleet is as old as it is"
    store.save_fleet(fleet, (), 8.0)
    assert Store(store.path).load_fleet().notices == (), "what came last counts"  # type: ignore[union-attr]


def test_a_store_from_before_notices_were_kept_apart_is_read(store: Store) -> None:
    store.save_fleet(Fleet(), (), 10.0)
    store._db.execute("DROP TABLE noticed")
    store._db.execute("UPDATE fleet SET body = ?", (encode(Remembered(at=10.0, fleet=Fleet())),))
    store._db.execute("UPDATE meta SET value = 1 WHERE key = 'schema'")
    kept = Store(store.path, read_only=True).load_fleet()
    assert kept is not None
    assert kept.at == 10.0
