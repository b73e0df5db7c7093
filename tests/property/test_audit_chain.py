"""Whoever can write the audit's database and its head file, but hasn't the key, can't change, drop, move, add or cut off a thing unseen."""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shunter.audit.check import Verification
from shunter.audit.head import COMMIT, GENESIS, SLOT, Head, Signed, _slot, chained, load_exports, read
from shunter.audit.journal import Journal
from shunter.audit.key import Key, load, load_public
from shunter.model.canon import decode, encode
from shunter.model.errors import Stalled
from shunter.model.ids import Commit, Epoch
from shunter.model.record import Record, RecordKind

MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
COUNT = 12
INSERT = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
COLUMNS = ("seq", "at", "kind", "subject", "operation", "previous", "hash", "body")


def record(number: int) -> Record:
    kind = (RecordKind.STEP, RecordKind.OUTCOME)[number % 2]
    return Record(at=1000.0 + number, kind=kind, subject=f"w{number % 3}", what=f"step {number}", epoch=Epoch(1), body={"n": number})


@pytest.fixture(scope="module")
def original() -> Iterator[Path]:
    """Twelve records, appended two at a time."""
    with tempfile.TemporaryDirectory() as folder:
        with Journal(Path(folder) / "audit.db") as journal:
            for number in range(1, COUNT, 2):
                journal.append([record(number), record(number + 1)])
        with closing(sqlite3.connect(Path(folder) / "audit.db")) as db:
            db.execute("PRAGMA journal_mode = DELETE")  # one file to copy
        (Path(folder) / "audit.heads").unlink()  # nothing but the database and its head file may be needed
        yield Path(folder)


def attacked(original: Path, attack: Callable[[Path], None]) -> Verification:
    """What an auditor who has the public key finds, and that no engine would go on with it."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        for name in ("audit.db", "audit.db.head", "audit.pub", "audit.key"):
            shutil.copy(original / name, there / name)
        attack(there)
        with Journal(there / "audit.db", read_only=True) as journal:
            return journal.verify(load_public(original / "audit.pub"))


def run(folder: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    with closing(sqlite3.connect(folder / "audit.db")) as db, db:
        for statement in statements:
            db.execute(statement, values)


def rechained(folder: Path, rows: list[tuple[Any, ...]]) -> None:
    """Write these records as a chain of their own, as somebody would who knows how it is made, with a head that isn't signed by the key."""
    previous, db = GENESIS, sqlite3.connect(folder / "audit.db")
    with closing(db), db:
        db.execute("DELETE FROM records")
        for seq, row in enumerate(rows, 1):
            own = chained(previous, bytes(row[7]))
            r = decode(row[7], Record)
            db.execute(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [seq, r.at, r.kind.value, r.subject, r.operation, previous, own, row[7]],
            )
            previous = own
        db.execute("UPDATE head SET seq = ?, hash = ?", [len(rows), previous])
    thief, turn = Key.make(), read(folder / "audit.db.head").whole[0].turn
    slots = [_slot(Signed(turn=t, head=Head(seq=len(rows), hash=previous)).sealed(thief, SLOT)) for t in (turn, turn - 1)]
    (folder / "audit.db.head").write_bytes(b"".join(slots if turn % 2 == 0 else reversed(slots)))


def rows_of(folder: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "audit.db")) as db:
        return db.execute(f"SELECT {', '.join(COLUMNS)} FROM records ORDER BY seq").fetchall()


def test_what_nobody_touched_is_whole(original: Path) -> None:
    result = attacked(original, lambda _folder: None)
    assert (result.ok, result.count, result.first) == (True, COUNT, 1)


@MANY
@given(st.integers(1, COUNT), st.sampled_from(COLUMNS), st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_of_any_column_is_found(original: Path, seq: int, column: str, place: int, flip: int) -> None:
    def attack(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "audit.db")) as db, db:
            (value,) = db.execute(f"SELECT {column} FROM records WHERE seq = ?", [seq]).fetchone()
            db.execute("PRAGMA ignore_check_constraints = 1")
            db.execute(f"UPDATE records SET {column} = ? WHERE seq = ?", [changed(value, place, flip), seq])

    result = attacked(original, attack)
    assert not result.ok
    assert result.broken is not None
    assert result.broken <= seq + 1


def changed(value: object, place: int, flip: int) -> object:
    match value:
        case None:
            return "x"
        case bytes():
            data = bytearray(value)
            data[place % len(data)] ^= flip
            return bytes(data)
        case str():
            at = place % len(value)
            return value[:at] + chr((ord(value[at]) + flip) % 0xD000 or 1) + value[at + 1 :]
        case int():
            return value + 100 + flip
        case _:
            return float(value) + flip / 7  # type: ignore[arg-type]


@MANY
@given(st.integers(0, 8191), st.integers(1, 255))
def test_any_changed_byte_of_the_head_file_is_found(original: Path, place: int, flip: int) -> None:
    def attack(folder: Path) -> None:
        data = bytearray((folder / "audit.db.head").read_bytes())
        data[place] ^= flip
        (folder / "audit.db.head").write_bytes(data)
        newest = read(original / "audit.db.head").whole[0].turn
        if place // 4096 == newest % 2:  # a torn write of the newest is what a power cut leaves: take the records away with it
            run(folder, f"DELETE FROM records WHERE seq > {COUNT - 2}")

    assert not attacked(original, attack).ok


@MANY
@given(st.data())
def test_any_dropped_or_reordered_records_are_found_also_when_the_chain_is_computed_anew(original: Path, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(COUNT)), label="order")
    kept = data.draw(st.integers(0, COUNT), label="kept")
    wanted = list(order)[:kept]
    if wanted == list(range(COUNT)):
        wanted = wanted[::-1]

    def attack(folder: Path) -> None:
        rows = rows_of(folder)
        rechained(folder, [rows[number] for number in wanted])

    assert not attacked(original, attack).ok


@MANY
@given(st.integers(1, COUNT), st.booleans(), st.booleans())
def test_an_end_that_was_cut_off_is_found_however_much_of_the_head_goes_with_it(
    original: Path, left: int, without_newest: bool, without_both: bool
) -> None:
    """The database's own head is put back to what the older slot knows: what one can know who comes now."""
    left -= 1

    def attack(folder: Path) -> None:
        older = read(folder / "audit.db.head").whole[1]
        run(folder, f"DELETE FROM records WHERE seq > {left}")
        known = older.sealed(load(folder / "audit.key"), COMMIT)  # the database's write-ahead log has it still
        values = (known.turn, known.head.seq, known.head.hash, known.signature)
        run(folder, "UPDATE head SET turn = ?, seq = ?, hash = ?, signature = ?", values=values)
        if without_newest or without_both:
            data = bytearray((folder / "audit.db.head").read_bytes())
            for turn in (older.turn + 1, *([older.turn] if without_both else [])):
                data[turn % 2 * 4096 : turn % 2 * 4096 + 4096] = b"\0" * 4096
            (folder / "audit.db.head").write_bytes(data)

    assert not attacked(original, attack).ok


@MANY
@given(st.integers(1, COUNT), st.text(max_size=20))
def test_a_rewritten_record_is_found_when_all_after_it_are_chained_anew(original: Path, seq: int, words: str) -> None:
    def attack(folder: Path) -> None:
        rows = rows_of(folder)
        forged = encode(Record(at=1.0, kind=RecordKind.STEP, subject="w", what=words, epoch=Epoch(1), commit=Commit("f" * 40)))
        rows[seq - 1] = (*rows[seq - 1][:7], forged)
        rechained(folder, rows)

    assert not attacked(original, attack).ok


@MANY
@given(st.integers(1, 3), st.booleans())
def test_records_that_somebody_else_added_are_found_and_not_signed_by_the_next_engine(original: Path, more: int, known: bool) -> None:
    def attack(folder: Path) -> None:
        rows = rows_of(folder)
        previous = rows[-1][6]
        with closing(sqlite3.connect(folder / "audit.db")) as db, db:
            for number in range(COUNT + 1, COUNT + 1 + more):
                body = encode(record(number))
                own = chained(previous, body)
                r = record(number)
                db.execute(
                    "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    [number, r.at, r.kind.value, r.subject, None, previous, own, body],
                )
                previous = own
            if known:
                db.execute("UPDATE head SET seq = ?, hash = ?", [COUNT + more, previous])
        with pytest.raises(Stalled, match=r"SH904|SH970"):
            Journal(folder / "audit.db")

    assert not attacked(original, attack).ok


def test_a_folder_that_was_put_back_as_a_whole_is_found_by_a_head_that_was_kept_elsewhere(tmp_path: Path) -> None:
    state, copy, elsewhere = tmp_path / "state", tmp_path / "copy", tmp_path / "elsewhere"
    with Journal(state / "audit.db") as journal:
        journal.append([record(1)])
    shutil.copytree(state, copy)
    with Journal(state / "audit.db") as journal:
        journal.append([record(2), record(3)])
    shutil.copy(state / "audit.heads", elsewhere)
    with Journal(copy / "audit.db", read_only=True) as journal:
        assert journal.verify().ok, "nothing in the folder says so"
        found = journal.verify(heads=load_exports(elsewhere))
    assert not found.ok
    assert found.broken == 2
    with Journal(state / "audit.db", read_only=True) as journal:
        assert journal.verify(heads=load_exports(elsewhere)).kept >= 2


def test_an_audit_that_was_emptied_is_found(original: Path) -> None:
    def attack(folder: Path) -> None:
        run(folder, "DELETE FROM records", "DELETE FROM head")
        (folder / "audit.db.head").write_bytes(b"\0" * 8192)

    assert not attacked(original, attack).ok


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255), st.sampled_from(["flip", "cut", "zero"]))
def test_any_damage_to_the_database_file_is_found_or_changes_nothing(original: Path, place: float, flip: int, how: str) -> None:
    """A byte of a page that holds nothing may be anything. Whatever is read of a chain that verifies is what was written."""
    with Journal(original / "audit.db", read_only=True) as journal:
        written = journal.list(limit=None)
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        for name in ("audit.db", "audit.db.head", "audit.pub"):
            shutil.copy(original / name, there / name)
        data = bytearray((there / "audit.db").read_bytes())
        at = int(place * len(data))
        if how == "flip":
            data[at] ^= flip
        else:
            data[at:] = b"" if how == "cut" else bytes(min(512, len(data) - at)) + data[at + 512 :]
        (there / "audit.db").write_bytes(data)
        with contextlib.suppress(Stalled), Journal(there / "audit.db", read_only=True) as journal:
            if journal.verify().ok:
                assert journal.list(limit=None) == written
