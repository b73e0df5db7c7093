"""Records while the journal takes none: none is lost, their order stays, and each says that it waited."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from shunter.audit import trail as trails
from shunter.audit.head import Head, HeadFile, Signed
from shunter.audit.journal import Journal
from shunter.audit.key import Key
from shunter.audit.trail import Trail
from shunter.model.errors import Problem, Stalled
from shunter.model.ids import Epoch
from shunter.model.record import Record, RecordKind

FULL = Problem(code="SH901", what="the disk that holds the audit is full", remedy="Free some space")


def record(number: int) -> Record:
    return Record(at=float(number), kind=RecordKind.STEP, subject="w", what=str(number), epoch=Epoch(1), body={"number": number})


class Full:
    """A journal that refuses batches while `room` is too small for them."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self.room = journal, 10**9
        self.refused = 0

    @property
    def last(self) -> Head:
        return self.journal.last

    def append(self, records: Sequence[Record]) -> object:
        if len(records) > self.room:
            self.refused += 1
            raise Stalled(FULL)
        self.room -= len(records)
        return self.journal.append(records)

    def catch_up(self) -> None:
        self.journal.catch_up()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Full]:
    with Journal(tmp_path / "audit.db") as journal:
        yield Full(journal)


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def trail(full: Full, clock: list[float]) -> Trail:
    return Trail(full, lambda: clock[0])


def told(full: Full) -> list[tuple[str, object]]:
    return [(s.record.what, s.record.body.get("spooled")) for s in full.journal.list(limit=None)]


def test_what_waited_is_written_in_order_and_marked(trail: Trail, full: Full, clock: list[float]) -> None:
    assert trail.add([record(1)])
    full.room, clock[0] = 0, 110.0
    assert not trail.add([record(2), record(3)])
    full.room, clock[0] = 10**9, 120.0
    assert not trail.add([record(4)]), "it doesn't overtake those that wait"
    assert (trail.waiting, trail.since, trail.problem) == (3, 110.0, FULL)
    assert told(full) == [("1", None)]
    clock[0] = 130.0
    assert trail.retry()
    early, late = {"at": 110.0, "written": 130.0}, {"at": 120.0, "written": 130.0}
    assert told(full) == [("1", None), ("2", early), ("3", early), ("4", late)]
    assert [s.record.at for s in full.journal.list()] == [1.0, 2.0, 3.0, 4.0], "its own time is when it happened"
    assert full.journal.verify().ok
    assert (trail.waiting, trail.since, trail.problem) == (0, None, None)
    assert trail.add([record(5)])
    assert told(full)[-1] == ("5", None)


def test_room_for_a_part_takes_a_part_and_nothing_twice(trail: Trail, full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trails, "_BATCH", 2)
    full.room = 0
    trail.add([record(n) for n in range(1, 6)])
    full.room = 3
    assert not trail.retry()
    assert [what for what, _ in told(full)] == ["1", "2"]
    assert trail.waiting == 3
    full.room = 10**9
    assert trail.retry()
    assert [what for what, _ in told(full)] == ["1", "2", "3", "4", "5"]


def test_a_head_that_fails_after_the_records_is_caught_up_with_and_no_record_is_there_twice(
    trail: Trail, full: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: HeadFile, _head: Signed, _key: Key) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(HeadFile, "write", fail)
        assert not trail.add([record(1)])
        assert trail.problem is not None
        assert trail.problem.code == "SH905"
        assert not trail.retry()
    assert trail.retry()
    assert told(full) == [("1", None)]
    assert full.journal.shelf.head.turn == full.journal._signed.turn


def test_nothing_is_tried_between_two_retries(trail: Trail, full: Full) -> None:
    """A disk that only answers after a while would hold up what can't wait."""
    full.room = 0
    for number in range(5):
        trail.add([record(number)])
    assert full.refused == 1


def test_crowded(trail: Trail, full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trails, "CROWDED", 2)
    full.room = 0
    trail.add([record(1)])
    assert not trail.crowded
    trail.add([record(2)])
    assert trail.crowded
    assert trail.waiting == 2
