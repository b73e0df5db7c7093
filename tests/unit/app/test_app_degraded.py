"""What is let through and what isn't while the engine's disk is full or takes nothing, and what is said of it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from shunter.act.store import Store
from shunter.app.degraded import Condition, Watch, condition, condition_path, places, urgent
from shunter.app.room import Room, Sizes, suiting
from shunter.audit.head import Head
from shunter.audit.journal import Journal
from shunter.audit.trail import Trail
from shunter.model.errors import Problem, Stalled
from shunter.model.ids import Commit, Digest, Epoch, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status, Step
from shunter.model.plan import Lane, OperationKind, Plan, PlannedOperation, Preconditions
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet, Node, Slot, Worker, WorkerState

FULL = Problem(code="SH901", what="the disk that holds the audit is full", remedy="Free some space")


def planned(name: str, lane: Lane = "voluntary", after: tuple[str, ...] = ()) -> PlannedOperation:
    return PlannedOperation(
        id=OperationId(name),
        kind=OperationKind.MOVE,
        worker=WorkerId(name),
        lane=lane,
        policy=PolicyName("p"),
        reason="r",
        expect=Preconditions(incarnation=Incarnation(0)),
        after=tuple(OperationId(one) for one in after),
    )


def step(lane: str, kind: RecordKind = RecordKind.STEP) -> Record:
    return Record(at=1.0, kind=kind, subject="w", what="w", epoch=Epoch(1), body={"lane": lane})


class Disk:
    """The parts that a watch keeps, on a disk that the test fills: `full` takes what was set aside, `dead` nothing."""

    def __init__(self, folder: Path, store: Store, journal: Journal) -> None:
        self.folder, self.store, self.journal = folder, store, journal
        self.full: str | None = None
        self.dead = False
        self.aside = 0
        self.now = 1000.0
        self.sizes = Sizes(reserve=2**20, probe=4096)
        self.trail = Trail(self, lambda: self.now)
        self.watch = Watch(store, self.trail, self, folder, lambda: self.now)  # type: ignore[arg-type]

    def missing(self) -> str | None:
        return self.full

    def set_aside(self) -> bool:
        self.aside += 1
        return True

    @property
    def last(self) -> Head:
        return self.journal.last

    def append(self, records: Sequence[Record]) -> object:
        if self.dead:
            raise Stalled(FULL)
        return self.journal.append(records)

    def catch_up(self) -> None:
        self.journal.catch_up()

    def die(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dead = True
        monkeypatch.setattr(self.store, "_db", Dead(self.store._db))


class Dead:
    """A connection that can be read only."""

    def __init__(self, db: object) -> None:
        self.db = db

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> object:
        if not statement.startswith("SELECT"):
            raise OSError(30, "Read-only file system")
        return self.db.execute(statement, values)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self.db, name)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with closing(Store(tmp_path / "engine.db")) as store, Journal(tmp_path / "audit.db") as journal:
        yield Disk(tmp_path, store, journal)


def test_all_is_well(disk: Disk) -> None:
    assert disk.watch.check() is None
    assert disk.store.healthy
    assert disk.aside == 1
    disk.watch.audit(step("voluntary"))
    assert condition(disk.folder, 1.0) is None
    assert disk.watch.farewell() is None


def test_a_full_disk_stops_what_is_voluntary_and_what_is_written_is_durable(disk: Disk) -> None:
    disk.full = "No space left on device"
    found = disk.watch.check()
    assert found is not None
    assert (found.problem.code, found.since) == ("SH531", 1000.0)
    assert "since 1970-01-01 00:16:40 UTC" in found.problem.what
    assert "No space left on device" in found.problem.what
    assert condition(disk.folder, 1.0) == found
    assert not disk.store.probe()
    assert disk.aside == 0
    disk.watch.audit(step("voluntary"))  # what is under way goes on: its record is on the disk
    assert len(disk.journal.list()) == 1
    disk.now, disk.full = 1060.0, "No space left on device"
    assert disk.watch.check() == found, "since when it is, not since it was last looked at"
    disk.full = None
    assert disk.watch.check() is None
    assert disk.store.healthy
    assert condition(disk.folder, 1.0) is None


def test_a_dead_disk_is_another_condition_and_all_comes_back(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.full = "Read-only file system"
    with monkeypatch.context() as dead:
        disk.die(dead)
        found = disk.watch.check()
        assert found is not None
        assert found.problem.code == "SH532", "a disk that became full is tried: this one takes nothing"
        one = planned("w", "involuntary")
        disk.store.insert([OperationRecord(planned=one, plan=Digest("d"), epoch=Epoch(1), created_at=1.0)])
        disk.watch.audit(step("involuntary", RecordKind.INTENT))
        with pytest.raises(Stalled, match="SH901"):
            disk.watch.audit(step("voluntary"))
        disk.watch.audit(step("voluntary", RecordKind.OUTCOME))
        disk.store.finish(one.id, Outcome(status=Status.SUCCEEDED, at=2.0))
        found = disk.watch.check()
        assert found is not None
        assert (found.changes, found.records) == (2, 3), "the voluntary step's record is kept too"
        lost = disk.watch.farewell()
        assert lost is not None
        assert (lost.code, "2 changes of operations and 3 records of the audit" in lost.what) == ("SH533", True)
    disk.full, disk.dead = None, False
    assert disk.watch.check() is None
    assert disk.watch.farewell() is None
    assert [s.record.kind for s in disk.journal.list()] == [RecordKind.INTENT, RecordKind.STEP, RecordKind.OUTCOME]
    with closing(Store(disk.store.path)) as again:
        kept = again.get(one.id)
        assert kept is not None
        assert kept.outcome is not None
    assert disk.journal.verify().ok


@pytest.mark.parametrize("at", Step)
def test_only_a_step_that_licenses_another_on_the_way_to_the_commit_is_held_up(disk: Disk, at: Step) -> None:
    disk.dead = True
    told = msgspec.structs.replace(step("voluntary"), body={"lane": "voluntary", "step": at.value})
    if at in (Step.INTENDED, Step.PREPARED, Step.FENCED, Step.FROZEN, Step.HELD):
        with pytest.raises(Stalled, match="SH901"):
            disk.watch.audit(told)
    else:
        disk.watch.audit(told)
    disk.dead = False
    disk.watch.check()
    assert len(disk.journal.list()) == 1, "none is left out"


def test_records_wait_for_their_operations(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Intent before what is told of it: the store is brought to the disk before the audit is."""
    with monkeypatch.context() as dead:
        disk.die(dead)
        one = planned("w", "involuntary")
        disk.store.insert([OperationRecord(planned=one, plan=Digest("d"), epoch=Epoch(1), created_at=1.0)])
        disk.watch.audit(step("involuntary", RecordKind.INTENT))
        disk.dead = False
        disk.watch.check()
        assert disk.journal.list() == ()
    disk.watch.check()
    assert len(disk.journal.list()) == 1


def test_a_word_that_can_not_be_read_is_none(tmp_path: Path) -> None:
    assert condition(tmp_path, 1.0) is None
    condition_path(tmp_path).write_bytes(b'{"since": 1.0, "pro\n')
    assert condition(tmp_path, 1.0) is None


def test_a_disk_that_is_read_only_is_seen_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    condition_path(tmp_path).write_bytes(b"\n")
    real = os.statvfs(tmp_path)

    class ReadOnly:
        f_flag = real.f_flag | os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda _path: ReadOnly)
    found = condition(tmp_path, 7.0)
    assert isinstance(found, Condition)
    assert (found.problem.code, found.since) == ("SH532", 7.0)


def test_of_a_plan_only_chains_with_something_involuntary_are_left_and_the_digest_stays() -> None:
    plan = Plan(
        at=1.0,
        commit=Commit("c"),
        policy_set=Digest("s"),
        snapshot=Digest("t"),
        operations=(
            planned("room"),
            planned("saved", "involuntary", after=("room",)),
            planned("alone"),
            planned("later", after=("alone",)),
        ),
    )
    less = urgent(plan)
    assert [o.id for o in less.operations] == ["room", "saved"]
    assert less.digest == plan.digest


def test_places_are_all_but_ages_and_measures() -> None:
    worker = Worker(
        id=WorkerId("w"),
        role="decode",
        graph="g",
        engine="e",
        state=WorkerState.RUNNING,
        node=NodeId("n"),
        slot=SlotId("n/0"),
        incarnation=Incarnation(0),
        memory=1,
    )
    node = Node(id=NodeId("n"), slots=(Slot(id=SlotId("n/0"), worker=worker.id),), seen_at=1.0)
    fleet = Fleet(nodes=(node,), workers=(worker,))

    def with_(node: Node = node, worker: Worker = worker) -> object:
        return places(msgspec.structs.replace(fleet, nodes=(node,), workers=(worker,)))

    replace = msgspec.structs.replace
    assert with_(replace(node, seen_at=2.0), replace(worker, memory=2)) == places(fleet)
    assert with_(worker=replace(worker, incarnation=Incarnation(1))) != places(fleet)
    assert with_(worker=replace(worker, state=WorkerState.LOST)) != places(fleet)
    assert with_(node=replace(node, reachable=False)) != places(fleet)


def test_sizes_suit_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        f_blocks, f_frsize, f_bsize = 2048, 4096, 4096

    with monkeypatch.context() as small:
        small.setattr(os, "statvfs", lambda _path: Small)
        assert suiting(tmp_path) == Sizes(reserve=2**20, probe=2**18)
        assert suiting(tmp_path).wal_pages == 63, "a quarter of the reserve"
    Small.f_blocks = 2**30
    monkeypatch.setattr(os, "statvfs", lambda _path: Small)
    assert (suiting(tmp_path).reserve, suiting(tmp_path).probe, suiting(tmp_path).wal_pages) == (32 * 2**20, 4 * 2**20, 1000)


def test_a_reserve_is_made_once_and_leaves_no_trace_in_the_database(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "engine.db")) as store, Journal(tmp_path / "audit.db") as journal:
        room = Room(tmp_path, (store.path, journal.path), Sizes(reserve=2**20, probe=4096))
        assert room.missing() is None
        assert room.set_aside()
        logs = [path.with_name(path.name + "-wal") for path in (store.path, journal.path)]
        assert all(log.stat().st_blocks * 512 >= 2**20 for log in logs), "blocks, not a hole"
        made = [log.stat().st_size for log in logs]
        assert room.set_aside()
        assert [log.stat().st_size for log in logs] == made
        assert store._db.execute("SELECT name FROM sqlite_master WHERE name = 'room'").fetchall() == []
        assert store.probe()
        assert journal.verify().ok


def test_no_reserve_is_made_of_the_last_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Store(tmp_path / "engine.db")) as store:
        room = Room(tmp_path, (store.path,), Sizes(reserve=2**20, probe=4096))

        class Left:
            f_bavail, f_frsize = 256, 4096

        monkeypatch.setattr(os, "statvfs", lambda _path: Left)
        assert not room.set_aside()
        assert store.path.with_name("engine.db-wal").stat().st_size < 2**20


def test_what_is_urgent_is_audited_as_one_and_in_its_order(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    appended, append = [], disk.journal.append
    monkeypatch.setattr(disk.journal, "append", lambda records: appended.append(len(records)) or append(records))
    first = msgspec.structs.replace(step("involuntary"), what="the notice")
    with disk.watch.gathering([first]):
        disk.watch.audit(step("involuntary"))
        disk.watch.audits([step("involuntary"), step("involuntary")])
        assert appended == [], "nothing of it is licensed before the end"
    assert appended == [4]
    assert disk.journal.list()[0].record.what == "the notice"
    disk.watch.audit(step("involuntary"))
    assert appended == [4, 1]


def test_what_is_voluntary_waits_for_no_end(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins by a record that is durable, or not at all: also right behind what is urgent."""
    with disk.watch.gathering([step("involuntary")]):
        disk.watch.audit(step("voluntary"))
        assert [sealed.record.body["lane"] for sealed in disk.journal.list()] == ["involuntary", "voluntary"]

    def full(_records: object) -> None:
        raise Stalled(Problem(code="SH901", what="full", remedy="Free it"))

    monkeypatch.setattr(disk.journal, "append", full)
    with disk.watch.gathering([step("involuntary")]), pytest.raises(Stalled):
        disk.watch.audit(step("voluntary"))


@pytest.mark.parametrize("kind", [RecordKind.NOTICE, RecordKind.PLAN])
def test_what_licenses_nothing_holds_up_nothing_urgent_on_a_disk_that_takes_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, kind: RecordKind
) -> None:
    """A notice makes something voluntary end as superseded: what it asks for itself is begun after that, within the same call."""
    first = Record(at=1.0, kind=kind, subject="n", what="the notice, or what is planned for it", epoch=Epoch(1))
    disk.die(monkeypatch)
    with disk.watch.gathering([first]):
        disk.watch.audit(step("voluntary", RecordKind.OUTCOME))
        disk.watch.audit(step("involuntary"))
    assert disk.trail.waiting == 3


def test_what_was_begun_is_audited_whatever_breaks_after_it(disk: Disk) -> None:
    def begun() -> None:
        with disk.watch.gathering([]):
            disk.watch.audit(step("involuntary"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        begun()
    assert len(disk.journal.list()) == 1
