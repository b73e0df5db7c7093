import errno
import os
import sqlite3
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from shunter.audit.check import Break
from shunter.audit.head import GENESIS, HeadFile, chained
from shunter.audit.journal import Journal
from shunter.audit.key import load
from shunter.audit.layout import head_path
from shunter.audit.redact import Redaction
from shunter.audit.trail import Trail
from shunter.model.canon import encode
from shunter.model.errors import Rejected, Stalled
from shunter.model.ids import Commit, Epoch
from shunter.model.record import Record, RecordKind


def record(number: int, **more: Any) -> Record:
    fields: dict[str, Any] = {"kind": RecordKind.STEP, "subject": f"decode-{number % 3}", "operation": f"move-{number % 2}", **more}
    return Record(at=1000.0 + number, what=f"step {number}", epoch=Epoch(1), commit=Commit("c" * 40), body={"number": number}, **fields)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "audit.db"


@pytest.fixture
def filled(path: Path) -> Path:
    with Journal(path) as journal:
        journal.append([record(n) for n in range(1, 6)])
        journal.append([record(6), record(7)])
    return path


def tamper(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path)
    with db:
        for statement in statements:
            db.execute(statement)
    db.close()


def verify(path: Path):
    with Journal(path, read_only=True) as journal:
        return journal.verify()


def test_records_come_back_as_they_were_given_and_chained(path: Path):
    given = [record(n) for n in range(1, 4)]
    with Journal(path) as journal:
        sealed = journal.append(given)
    with Journal(path, read_only=True) as reader:
        assert reader.list() == sealed
        assert reader.get(2) == sealed[1]
    assert [s.record for s in sealed] == given
    assert [s.seq for s in sealed] == [1, 2, 3]
    assert sealed[0].previous == GENESIS
    for one, following in pairwise(sealed):
        assert following.previous == one.hash
    for one in sealed:
        assert one.hash == chained(one.previous, encode(one.record))


def test_the_chain_goes_on_after_reopening(filled: Path):
    with Journal(filled) as journal:
        (eighth,) = journal.append([record(8)])
        assert eighth.seq == 8
        assert eighth.previous == journal.get(7).hash
        assert journal.verify() == verify(filled)
    assert (verify(filled).ok, verify(filled).count, verify(filled).head) == (True, 8, eighth.hash)


def test_nothing_to_append_writes_nothing(filled: Path):
    with Journal(filled) as journal:
        assert journal.append([]) == ()
        assert journal.verify().count == 7


def test_files_are_for_their_owner_only(path: Path):
    old = os.umask(0)
    try:
        with Journal(path) as journal:
            journal.append([record(1)])
            modes = {p.name: p.stat().st_mode & 0o777 for p in path.parent.iterdir()}
    finally:
        os.umask(old)
    assert modes.pop("audit.pub") == 0o644
    assert set(modes.values()) == {0o600}, modes
    assert {"audit.db", "audit.db.head", "audit.db-wal", "audit.key", "audit.heads"} <= set(modes)
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_every_commit_is_synced(path: Path):
    with Journal(path) as journal:
        assert journal.shelf.db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert journal.shelf.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"limit": 2}, [6, 7]),
        ({"limit": None}, [1, 2, 3, 4, 5, 6, 7]),
        ({"subject": "decode-0"}, [3, 6]),
        ({"operation": "move-1"}, [1, 3, 5, 7]),
        ({"subject": "decode-1", "operation": "move-1"}, [1, 7]),
        ({"since": 1003.0, "until": 1005.0}, [3, 4]),
        ({"kind": RecordKind.OUTCOME}, []),
        ({"subject": "' OR 1=1 --"}, []),
    ],
)
def test_filters(filled: Path, filters: dict[str, Any], expected: list[int]):
    with Journal(filled, read_only=True) as journal:
        assert [s.seq for s in journal.list(**filters)] == expected


def test_a_number_that_is_not_there(filled: Path):
    with Journal(filled, read_only=True) as journal, pytest.raises(Rejected, match=r"SH906 .*no record 99.*1 to 7"):
        journal.get(99)


def test_floats_that_are_not_finite_are_tagged(path: Path):
    with Journal(path) as journal:
        (sealed,) = journal.append([Record(at=1.0, kind=RecordKind.STEP, subject="s", what="w", epoch=Epoch(1), body={"x": float("nan")})])
        assert sealed.record.body == {"x": {"notFinite": "nan"}}
        assert journal.get(1) == sealed
        assert journal.verify().ok


CHANGE = """UPDATE records SET body = CAST(replace(CAST(body AS TEXT), 'step 3', 'step 9') AS BLOB) WHERE seq = 3"""


@pytest.mark.parametrize(
    ("statements", "how", "broken", "whole"),
    [
        ([CHANGE], Break.HASH, 3, 2),
        (["DELETE FROM records WHERE seq = 4"], Break.GAP, 4, 3),
        (["DELETE FROM records WHERE seq = 1"], Break.GAP, 1, 0),
        (["DELETE FROM records WHERE seq = 4", "UPDATE records SET seq = seq - 1 WHERE seq > 4"], Break.ORDER, 4, 3),
        ([f"UPDATE records SET seq = {new} WHERE seq = {old}" for old, new in ((2, 99), (3, 2), (99, 3))], Break.ORDER, 2, 1),
        (["UPDATE records SET subject = 'nobody' WHERE seq = 5"], Break.COLUMNS, 5, 4),
        (["UPDATE records SET operation = NULL WHERE seq = 5"], Break.COLUMNS, 5, 4),
        (["UPDATE records SET at = 0 WHERE seq = 5"], Break.COLUMNS, 5, 4),
        (["DELETE FROM records WHERE seq > 5"], Break.TRUNCATED, 6, 5),
        (["DELETE FROM records"], Break.TRUNCATED, 1, 0),
    ],
)  # fmt: skip
def test_what_was_tampered_with_is_found(filled: Path, statements: list[str], how: Break, broken: int, whole: int):
    tamper(filled, *statements)
    result = verify(filled)
    assert (result.ok, result.how, result.broken, result.count) == (False, how, broken, whole)
    assert str(broken) in result.why


def test_a_changed_record_with_a_fitting_hash_breaks_the_next(filled: Path):
    with Journal(filled, read_only=True) as journal:
        third = journal.get(3)
    body = encode(third.record).replace(b"step 3", b"step 9")
    db = sqlite3.connect(filled)
    with db:
        db.execute("UPDATE records SET body = ?, hash = ? WHERE seq = 3", [body, chained(third.previous, body)])
    db.close()
    assert (verify(filled).how, verify(filled).broken) == (Break.ORDER, 4)


def test_an_audit_of_another_key_in_its_place_is_found(filled: Path, tmp_path: Path):
    other = tmp_path / "other" / "audit.db"
    with Journal(other) as journal:
        journal.append([record(n + 1) for n in range(1, 9)])
    for name in ("audit.db", "audit.db.head", "audit.heads"):
        (filled.parent / name).write_bytes((other.parent / name).read_bytes())
    assert verify(filled).how is Break.SIGNATURE
    with pytest.raises(Stalled, match=r"SH970 .*isn't signed with the key SHA256:"):
        Journal(filled)
    (filled.parent / "audit.pub").write_bytes((other.parent / "audit.pub").read_bytes())
    assert verify(filled).ok, "whoever can write the folder can put a key of his own there"
    with Journal(filled, read_only=True) as journal:
        assert journal.verify(load(filled.parent / "audit.key").public).how is Break.SIGNATURE, "but not where an auditor has his"


def test_a_missing_head_is_said(filled: Path):
    head_path(filled).unlink()
    assert verify(filled).how is Break.HEAD
    with pytest.raises(Stalled, match=r"SH904 .*head file is missing"):
        Journal(filled)
    assert verify(filled).how is Break.HEAD, "refusing leaves the evidence as it is"


def test_the_writer_refuses_to_go_on_after_a_cut(filled: Path):
    tamper(filled, "DELETE FROM records WHERE seq = 7")
    with pytest.raises(Stalled, match=r"SH904 .*ends with record 6.*of record 7"):
        Journal(filled)
    assert verify(filled).how is Break.TRUNCATED


def test_a_torn_head_leaves_the_other_slot(path: Path):
    with Journal(path) as journal:
        for n in range(1, 4):
            journal.append([record(n)])
        torn = journal._signed.turn % 2
    data = bytearray(head_path(path).read_bytes())
    data[torn * 4096 : torn * 4096 + 3] = b"xxx"
    head_path(path).write_bytes(data)
    assert verify(path).ok
    with Journal(path) as journal:
        journal.append([record(4)])
    assert verify(path).count == 4
    tamper(path, "DELETE FROM records WHERE seq = 4")
    assert verify(path).how is Break.TRUNCATED


def test_a_half_of_the_head_that_no_power_cut_can_have_torn_is_found(path: Path):
    with Journal(path) as journal:
        for n in range(1, 4):
            journal.append([record(n)])
        older = (journal._signed.turn - 1) % 2
    data = bytearray(head_path(path).read_bytes())
    data[older * 4096 : older * 4096 + 4096] = b"\0" * 4096
    head_path(path).write_bytes(data)
    assert verify(path).how is Break.TRUNCATED
    with pytest.raises(Stalled, match="SH904"):
        Journal(path)


def test_a_crash_between_commit_and_head_is_caught_up_with(path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = Journal(path)
    journal.append([record(1)])
    with monkeypatch.context() as killed:
        killed.setattr(HeadFile, "write", lambda *_: None)
        for n in (2, 3, 4):
            journal.append([record(n)])
        journal.close()
    assert verify(path).ok, "the database has it signed"
    with Journal(path):
        pass
    assert verify(path).ok
    (path.parent / "audit.heads").unlink()
    tamper(path, "DELETE FROM records WHERE seq = 4")
    assert verify(path).how is Break.TRUNCATED


def test_a_full_disk_adds_nothing_and_says_what_to_do(path: Path):
    with Journal(path) as journal:
        journal.append([record(1)])
        pages = journal.shelf.db.execute("PRAGMA page_count").fetchone()[0]
        journal.shelf.db.execute(f"PRAGMA max_page_count = {pages + 1}")
        big = [record(n, subject="x" * 2000) for n in range(2, 20)]
        with pytest.raises(Stalled, match=r"SH901 .*full.*Free some space"):
            journal.append(big)
        assert [s.seq for s in journal.list()] == [1]
        journal.shelf.db.execute("PRAGMA max_page_count = 100000")
        assert journal.append(big)[0].seq == 2
        assert journal.verify().ok


def test_a_head_that_cannot_be_written_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_room(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(path) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", no_room)
            with pytest.raises(Stalled, match="SH901"):
                journal.append([record(1)])
        journal.append([record(2)])
        assert [s.record.what for s in journal.list()] == ["step 1", "step 2"]
        assert journal.verify().ok


def test_there_is_one_writer(filled: Path):
    with Journal(filled) as writer:
        with pytest.raises(Stalled, match=r"SH902 .*another process"):
            Journal(filled)
        writer.append([record(8)])
        assert verify(filled).count == 8, "readers are welcome meanwhile"
    with Journal(filled) as again:
        again.append([record(9)])


def test_a_lock_held_by_another_program_is_told(filled: Path):
    with Journal(filled) as journal:
        journal.shelf.db.execute("PRAGMA busy_timeout = 1")
        other = sqlite3.connect(filled, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Stalled, match="SH902"):
            journal.append([record(8)])
        other.execute("ROLLBACK")
        other.close()
        assert journal.append([record(8)])[0].seq == 8


def test_a_reader_in_another_process_sees_what_was_appended(filled: Path):
    program = (
        "import sys, pathlib; from shunter.audit.journal import Journal;"
        "print(Journal(pathlib.Path(sys.argv[1]), read_only=True).verify().count)"
    )
    with Journal(filled) as journal:
        journal.append([record(8)])
        shown = subprocess.run([sys.executable, "-W", "ignore", "-c", program, str(filled)], capture_output=True, text=True, check=True)
    assert shown.stdout == "8\n"


def test_a_damaged_database_is_told(filled: Path):
    data = bytearray(filled.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    filled.write_bytes(data)
    with Journal(filled, read_only=True) as journal:
        result = journal.verify()
        assert (result.ok, result.how) == (False, Break.UNREADABLE)
        with pytest.raises(Stalled, match="SH903"):
            journal.list()
    filled.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(Stalled, match="SH903"):
        Journal(filled)


def test_what_cannot_be_opened(tmp_path: Path):
    with pytest.raises(Stalled, match=r"SH905 .*no audit there"):
        Journal(tmp_path / "nowhere" / "audit.db", read_only=True)
    assert not (tmp_path / "nowhere").exists(), "a reader makes nothing"
    (tmp_path / "file").touch()
    with pytest.raises(Stalled, match="SH905"):
        Journal(tmp_path / "file" / "audit.db")


def test_another_layout_is_refused(filled: Path):
    tamper(filled, "PRAGMA user_version = 7")
    for read_only in (True, False):
        with pytest.raises(Stalled, match=r"SH907 .*layout 7"):
            Journal(filled, read_only=read_only)


def test_a_reader_cannot_write(filled: Path):
    with Journal(filled, read_only=True) as journal, pytest.raises(ValueError, match="read-only"):
        journal.append([record(1)])


def test_nobody_waits_for_another_ones_long_record_to_be_cleaned(path: Path, monkeypatch: pytest.MonkeyPatch):
    """A plan of hundreds of operations, while a notice has to be written before its orders."""
    begun, go_on, encoded = threading.Event(), threading.Event(), Redaction.encoded

    def slow(redaction: Redaction, one: Record) -> tuple[Record, bytes]:
        if one.subject == "long":
            begun.set()
            assert go_on.wait(10)
        return encoded(redaction, one)

    monkeypatch.setattr(Redaction, "encoded", slow)
    with Journal(path) as journal:
        trail = Trail(journal, lambda: 1000.0, ahead=journal)
        threads = [
            threading.Thread(target=trail.add, args=([record(number, subject=subject)],), daemon=True)
            for number, subject in ((1, "long"), (2, "short"))
        ]
        threads[0].start()
        assert begun.wait(10)
        threads[1].start()
        threads[1].join(10)
        assert not threads[1].is_alive()
        go_on.set()
        threads[0].join(10)
        assert [one.record.subject for one in journal.list()] == ["short", "long"]
    assert verify(path).ok


def test_an_audit_that_is_written_to_meanwhile_verifies(filled: Path):
    written, stop = [], threading.Event()

    def write() -> None:
        with Journal(filled) as journal:
            while not stop.is_set():
                written.extend(journal.append([record(len(written) + 8)]))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        counts = []
        while len(counts) < 40:
            result = verify(filled)
            assert result.ok, result.why
            counts.append(result.count)
    finally:
        stop.set()
        writer.join()
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] <= 7 + len(written)
