"""Old records go; the chain can be verified from there on, and through the archives; nothing else may go with them."""

import gzip
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from shunter.app.keeping import Keeping
from shunter.app.settings import AuditSettings
from shunter.audit.check import Break
from shunter.audit.head import HeadFile, load_exports
from shunter.audit.journal import Journal
from shunter.model.canon import decode
from shunter.model.errors import Rejected, Stalled
from shunter.model.ids import Epoch
from shunter.model.record import Record, RecordKind, Sealed
from shunter.model.units import Duration


def record(number: int, at: float | None = None) -> Record:
    return Record(at=at or 1000.0 + number, kind=RecordKind.STEP, subject="w", what=f"step {number}", epoch=Epoch(1), body={"n": number})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Journal(tmp_path / "audit.db") as journal:
        for number in range(1, 21):
            journal.append([record(number)])
    return tmp_path / "audit.db"


def numbers(path: Path) -> list[int]:
    with Journal(path, read_only=True) as journal:
        return [s.seq for s in journal.stream()]


def verify(path: Path, archives: Path | None = None):
    with Journal(path, read_only=True) as journal:
        return journal.verify(archives=archives)


def tamper(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


def test_old_records_go_and_the_rest_verifies(path: Path) -> None:
    with Journal(path) as journal:
        assert journal.drop(1011.0, 2000.0) is not None
        assert journal.drop(1011.0, 2000.0) is None
        (told,) = journal.list(kind=RecordKind.ENGINE)
        assert told.record.what == "records 1 to 10 were dropped by retention"
        assert told.record.body["dropped"]["to"] == 10  # type: ignore[index]
        journal.append([record(22)])
    assert numbers(path) == list(range(11, 23))
    result = verify(path)
    assert (result.ok, result.first, result.count) == (True, 11, 12)
    with Journal(path) as journal, pytest.raises(Rejected, match=r"SH906 .*It has records 11 to 22"):
        journal.get(3)


@pytest.mark.parametrize(
    ("statement", "how"),
    [
        ("DELETE FROM records WHERE seq = 11", Break.GAP),
        ("DELETE FROM records WHERE seq = 21", Break.TRUNCATED),
        ("UPDATE records SET subject = 'x' WHERE seq = 12", Break.COLUMNS),
        ("UPDATE head SET base_seq = 12, base_hash = (SELECT hash FROM records WHERE seq = 12)", Break.SIGNATURE),
    ],
)
def test_nobody_else_can_drop_more(path: Path, statement: str, how: Break) -> None:
    with Journal(path) as journal:
        journal.drop(1011.0, 2000.0)
    tamper(path, statement)
    assert verify(path).how is how


def test_what_is_not_old_stays_also_when_something_older_comes_after_it(path: Path) -> None:
    with Journal(path) as journal:
        journal.append([record(21, at=1.0)])  # a clock went back
        journal.drop(1005.0, 2000.0)
    assert numbers(path) == list(range(5, 23))


def test_the_newest_is_never_dropped_and_a_limit_holds(path: Path) -> None:
    with Journal(path) as journal:
        dropped = journal.drop(9000.0, 9000.0, most=5)
        assert dropped is not None
        assert (dropped.first, dropped.end.seq) == (1, 5)
        while journal.drop(9000.0, 9000.0, most=5):
            assert len(journal.list(limit=None)) > 0
            if journal.last.seq > 40:
                pytest.fail("it drops its own records for ever")
        assert verify(path).ok


def test_archives_hold_what_was_dropped_and_the_chain_goes_through_them(path: Path, tmp_path: Path) -> None:
    archives = tmp_path / "archives"
    with Journal(path) as journal:
        before = journal.list(limit=None)
        journal.drop(1006.0, 2000.0, archives)
        journal.drop(1011.0, 2001.0, archives)
    files = sorted(archives.iterdir(), key=lambda f: int(f.name.split("-")[1]))
    assert [f.name for f in files] == ["audit-1-5.jsonl.gz", "audit-6-10.jsonl.gz"]
    assert {f.stat().st_mode & 0o777 for f in files} == {0o600}
    lines = [line for f in files for line in gzip.decompress(f.read_bytes()).splitlines()]
    assert tuple(decode(line, Sealed) for line in lines) == before[:10]
    result = verify(path, archives)
    assert (result.ok, result.first, result.count) == (True, 1, 22)
    changed = gzip.decompress(files[0].read_bytes()).replace(b"step 3", b"step 9")
    files[0].write_bytes(gzip.compress(changed))
    assert (verify(path, archives).how, verify(path, archives).broken) == (Break.HASH, 3)
    files[0].write_bytes(b"rubbish")
    with pytest.raises(Rejected, match="SH972"):
        verify(path, archives)
    files[0].unlink()
    assert verify(path, archives).first == 6, "from the oldest that there is"
    shutil.rmtree(archives)
    assert verify(path).ok


def test_the_last_archive_is_missing(path: Path, tmp_path: Path) -> None:
    with Journal(path) as journal:
        journal.drop(1006.0, 2000.0, tmp_path / "archives")
        journal.drop(1011.0, 2001.0, tmp_path / "archives")
    (tmp_path / "archives" / "audit-6-10.jsonl.gz").unlink()
    assert (verify(path, tmp_path / "archives").how, verify(path, tmp_path / "archives").broken) == (Break.GAP, 6)


def test_an_archive_that_cannot_be_written_drops_nothing(path: Path, tmp_path: Path) -> None:
    (tmp_path / "archives").write_text("a file")
    with Journal(path) as journal, pytest.raises(Stalled, match="SH905"):
        journal.drop(1011.0, 2000.0, tmp_path / "archives")
    assert numbers(path) == list(range(1, 21))
    assert verify(path).ok


@pytest.mark.parametrize("where", ["head", "sweep"])
def test_a_kill_in_the_middle_leaves_a_chain_that_verifies(path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        journal = Journal(path)
        sweep = journal.shelf.sweep
        calls: list[int] = []

        def second(base: int) -> None:
            calls.append(base)
            return kill() if len(calls) == 2 else sweep(base)

        patch.setattr(HeadFile, "write", kill) if where == "head" else patch.setattr(journal.shelf, "sweep", second)
        with pytest.raises(Killed):
            journal.drop(1011.0, 2000.0)
        os.close(journal.shelf.head._fd)  # as a kill does
        journal.shelf.db.close()
    assert verify(path).ok
    with Journal(path) as again:
        assert again.drop(1005.0, 2000.0) is None
    assert numbers(path) == list(range(11, 22))
    assert verify(path).ok


def test_exported_heads_of_dropped_records_are_counted_as_such(path: Path) -> None:
    kept = load_exports(path.with_suffix(".heads"))
    with Journal(path) as journal:
        journal.drop(1011.0, 2000.0)
        result = journal.verify(heads=kept)
    assert (result.ok, result.unkept) == (True, 1)
    assert [e.seq for e in kept] == [1, 20]
    assert [e.seq for e in load_exports(path.with_suffix(".heads"))] == [20, 21], "those of records that are gone needn't be kept here"
    assert result.kept == 1


def test_the_engine_drops_by_its_settings_once_an_hour_and_tells_what_is_wrong(path: Path, tmp_path: Path) -> None:
    class Quiet:
        problem = None

    with Journal(path) as journal:
        keeping = Keeping(AuditSettings(keep=Duration(100), archive=tmp_path / "archives"), journal, Quiet())  # type: ignore[arg-type]
        (tmp_path / "archives").write_text("in the way")
        problem = keeping.house(1111.0)
        assert problem is not None
        assert problem.code == "SH905"
        (tmp_path / "archives").unlink()
        assert keeping.house(1111.0 + 599) is None
        assert journal.list(limit=None)[0].seq == 1, "not yet"
        assert keeping.house(1111.0 + 600) is None
        assert journal.list(limit=None)[0].seq == 20
        assert keeping.house(1111.0 + 600.5) is None
        assert journal.list(limit=None)[0].seq == 21, "the one that was the newest then"
        assert keeping.house(1111.0 + 601) is None, "nothing more: for an hour it doesn't ask"
        journal.append([record(30, at=1200.0)])
        last = journal.last.seq
        assert keeping.house(1111.0 + 601 + 3599) is None
        assert journal.last.seq == last
        assert keeping.house(1111.0 + 601 + 3600) is None
        assert journal.last.seq == last + 1
        assert journal.verify(archives=tmp_path / "archives").count == last + 1
