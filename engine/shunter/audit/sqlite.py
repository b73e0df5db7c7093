"""The audit in SQLite, with its head in a file beside it. One process writes, any number read."""

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from shunter.audit import faults
from shunter.audit.head import Head, HeadFile, Signed, Slots
from shunter.audit.head import read as read_head
from shunter.audit.key import Key
from shunter.audit.layout import head_path
from shunter.audit.shelf import Asked, Found, Row
from shunter.audit.transaction import roll_back, transaction

_LAYOUT: Final = 2
_BUSY_MS: Final = 5000
_PORTION: Final = 1000
_SCHEMA: Final = """
CREATE TABLE records (
  seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, operation TEXT,
  previous TEXT NOT NULL, hash TEXT NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE INDEX records_by_kind ON records (kind, seq);
CREATE INDEX records_by_subject ON records (subject, seq);
CREATE INDEX records_by_operation ON records (operation, seq) WHERE operation IS NOT NULL;
CREATE TABLE head (
  id INTEGER PRIMARY KEY CHECK (id = 1), turn INTEGER NOT NULL, seq INTEGER NOT NULL, hash TEXT NOT NULL,
  base_seq INTEGER NOT NULL, base_hash TEXT NOT NULL, signature TEXT NOT NULL
) STRICT
"""
_ROW: Final = "seq, at, kind, subject, operation, previous, hash, body"


class SqliteShelf:
    """See `shelf.Shelf`. Both files are made 0600, their folder 0700. Raises Stalled SH902 when another process writes it, SH905 when it
    can't be opened. `wal_pages`: how long the write-ahead log may grow before it is brought into the file.
    """

    def __init__(self, path: Path, *, read_only: bool, wal_pages: int) -> None:
        self.path, self.subject = path, str(path)
        self.head: HeadFile | None = None
        with self.faults():
            if not read_only:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.head = HeadFile(head_path(path))
            try:
                self.db = _connect(path, read_only=read_only)
            except BaseException:
                self._let_go()
                raise
            try:
                self._version = self.db.execute("PRAGMA user_version").fetchone()[0]
                if self.writes and self._version in (0, _LAYOUT):
                    self.db.execute("PRAGMA journal_mode = WAL")
                    self.db.execute("PRAGMA synchronous = FULL")
                    self.db.execute(f"PRAGMA wal_autocheckpoint = {wal_pages}")
            except BaseException:
                self.close()
                raise

    @property
    def writes(self) -> bool:
        """See Shelf; and for what follows."""
        return self.head is not None

    def fresh(self) -> bool:  # noqa: D102
        if self._version != _LAYOUT and (self._version or not self.writes):
            raise faults.version(self.path, self._version, _LAYOUT)
        return bool(self._version == 0)

    def begin(self, first: Signed) -> None:  # noqa: D102
        with transaction(self.db):
            for statement in _SCHEMA.split(";"):
                self.db.execute(statement)
            self._commit(first)
            self.db.execute(f"PRAGMA user_version = {_LAYOUT}")
        self._version = _LAYOUT

    def newest(self) -> Head:  # noqa: D102
        row = self.db.execute("SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1").fetchone()
        return Head(seq=row[0], hash=row[1]) if row else Head()

    def oldest(self) -> int | None:  # noqa: D102
        found: int | None = self.db.execute("SELECT min(seq) FROM records").fetchone()[0]
        return found

    def committed(self) -> Signed | None:  # noqa: D102
        try:
            row = self.db.execute("SELECT turn, seq, hash, base_seq, base_hash, signature FROM head").fetchone()
        except UnicodeDecodeError:
            return None
        except sqlite3.DatabaseError as error:
            if not faults.is_corrupt(error):
                raise
            return None
        return None if row is None else signed_of(row)

    def slots(self) -> Slots:  # noqa: D102
        return read_head(head_path(self.path))

    def add(self, rows: Sequence[Row], head: Signed) -> None:  # noqa: D102
        with transaction(self.db):
            self.db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            self._commit(head)

    def note(self, head: Signed, key: Key) -> None:  # noqa: D102
        assert self.head is not None  # only a writer has one to note
        self.head.write(head, key)

    def sweep(self, base: int) -> None:  # noqa: D102
        with transaction(self.db):
            self.db.execute("DELETE FROM records WHERE seq <= ?", [base])

    def since(self, at: float) -> int | None:  # noqa: D102
        row = self.db.execute("SELECT seq FROM records WHERE at >= ? ORDER BY seq LIMIT 1", [at]).fetchone()
        return None if row is None else int(row[0])

    def get(self, seq: int) -> Found | None:  # noqa: D102
        row: Found | None = self.db.execute("SELECT seq, previous, hash, body FROM records WHERE seq = ?", [seq]).fetchone()
        return row

    def found(self, asked: Sequence[Asked], *, after: int | None, newest_first: bool) -> Iterator[Found]:  # noqa: D102
        comparison, order = ("<", "DESC") if newest_first else (">", "ASC")
        while True:
            wanted = [*asked, *([] if after is None else [("seq", comparison, after)])]
            where = f"WHERE {' AND '.join(f'{column} {how} ?' for column, how, _ in wanted)}" if wanted else ""
            query = f"SELECT seq, previous, hash, body FROM records {where} ORDER BY seq {order} LIMIT {_PORTION}"  # noqa: S608  (constants only; values are bound)
            rows = self.db.execute(query, [value for _, _, value in wanted]).fetchall()
            yield from rows
            if len(rows) < _PORTION:
                return
            after = rows[-1][0]

    def rows(self, first: int = 0, last: int | None = None) -> Iterator[Row]:  # noqa: D102
        upto = "" if last is None else f" AND seq <= {int(last)}"
        yield from self.db.execute(f"SELECT {_ROW} FROM records WHERE seq >= ?{upto} ORDER BY seq", [first])  # noqa: S608

    @contextmanager
    def still(self) -> Iterator[None]:  # noqa: D102
        self.db.execute("BEGIN")
        try:
            yield
        finally:
            roll_back(self.db)

    def close(self) -> None:  # noqa: D102
        self.db.close()
        self._let_go()

    @contextmanager
    def faults(self) -> Iterator[None]:  # noqa: D102
        try:
            yield
        except sqlite3.Error as error:
            raise faults.of_sqlite(error, self.path) from error
        except UnicodeDecodeError as error:  # SQLite's own words of a damaged file can have its bytes in them
            raise faults.damaged(self.path, str(error)) from error
        except BlockingIOError as error:
            raise faults.busy(self.path) from error
        except OSError as error:
            raise faults.of_system(error, self.path) from error

    def _commit(self, head: Signed) -> None:
        self.db.execute("INSERT OR REPLACE INTO head VALUES (1, ?, ?, ?, ?, ?, ?)", values_of(head))

    def _let_go(self) -> None:
        if self.head is not None:
            self.head.close()
            self.head = None


def signed_of(row: tuple[Any, ...]) -> Signed | None:
    """A head from its columns; None when they hold something else, as in a damaged file."""
    turn, seq, hashed, base_seq, base_hash, signature = row
    found = {"turn": turn, "head": {"seq": seq, "hash": hashed}, "base": {"seq": base_seq, "hash": base_hash}, "signature": signature}
    try:
        return msgspec.convert(found, Signed)
    except msgspec.ValidationError:
        return None


def values_of(head: Signed) -> tuple[Any, ...]:
    """A head as columns: turn, seq, hash, base_seq, base_hash, signature."""
    return head.turn, head.head.seq, head.head.hash, head.base.seq, head.base.hash, head.signature


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    if not read_only:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # before SQLite would, with the umask's mode
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
    elif not path.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no audit there", str(path))
    mode = "ro" if read_only else "rw"
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1000
    )
