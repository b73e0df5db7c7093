"""The audit: a chain of records in SQLite. One process writes, any number read.

A record's hash is sha256 over the previous record's hash (32 bytes) and its own canonical JSON, so a changed, moved or missing record
shows, and the head file (`audit.head`) shows a missing end. Whoever can write both files can rewrite the whole chain: keep the head's
hash elsewhere if that matters (`Verification.head`).
"""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from shunter.audit import faults
from shunter.audit.check import Verification, examine
from shunter.audit.head import Head, HeadFile, chained
from shunter.audit.head import read as read_head
from shunter.model.canon import decode, encode, plain
from shunter.model.errors import Problem, Rejected, Stalled
from shunter.model.record import Record, RecordKind, Sealed

_LAYOUT: Final = 1
_BUSY_MS: Final = 5000
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS records (
  seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, operation TEXT,
  previous TEXT NOT NULL, hash TEXT NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS records_by_kind ON records (kind, seq);
CREATE INDEX IF NOT EXISTS records_by_subject ON records (subject, seq);
CREATE INDEX IF NOT EXISTS records_by_operation ON records (operation, seq) WHERE operation IS NOT NULL;
"""
_COLUMNS: Final = "seq, previous, hash, body"


class Journal:
    """The audit at `path`; its head is `path` with `.head` appended. Both files are made 0600, their folder 0700.

    Without `read_only` this process becomes the writer. Raises Stalled: SH902 if another process is it already, SH904 if records are
    missing that the head knows of, SH903 for a damaged file, SH907 for one of another version, SH905 when it can't be opened.
    Calls may come from any thread. `wal_pages`: how long the write-ahead log may grow before it is brought into the file.
    """

    def __init__(self, path: Path, *, read_only: bool = False, wal_pages: int = 1000) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._head: HeadFile | None = None
        self._last = Head()
        with self._faults():
            if not read_only:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._head = HeadFile(head_path(path))
            try:
                self._db = _connect(path, read_only=read_only)
            except BaseException:
                self._let_go()
                raise
            try:
                self._prepare(wal_pages)
            except BaseException:
                self.close()
                raise

    def append(self, records: Sequence[Record]) -> tuple[Sealed, ...]:
        """Add records in one transaction; they are durable on return. Floats in a body that aren't finite are tagged (see `canon.plain`).

        Raises Stalled SH901 when the disk is full, SH902, SH903 or SH905: then none was added, or, if only the head couldn't be written,
        all were.
        """
        if self._head is None:
            raise ValueError("this journal was opened read-only")
        with self._lock, self._faults():
            sealed = _seal(self._last, records)
            if not sealed:
                return ()
            with self._transaction():
                self._db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [_row(one) for one in sealed])
            self._last = Head(seq=sealed[-1].seq, hash=sealed[-1].hash)
            self._head.write(self._last)
            return sealed

    @property
    def last(self) -> Head:
        """The newest record's number and hash: how a writer sees whether an `append` that raised has added its records."""
        return self._last

    def catch_up(self) -> None:
        """Write the head if an `append` couldn't. Raises Stalled as `append` does."""
        with self._lock, self._faults():
            if self._head is not None and self._head.last != self._last:
                self._head.write(self._last)

    def list(
        self,
        *,
        kind: RecordKind | None = None,
        subject: str | None = None,
        operation: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int | None = 100,
    ) -> tuple[Sealed, ...]:
        """The newest `limit` records (None: all) that match every filter given, oldest first. `since` is included, `until` is not; both are
        seconds since the epoch. Raises Stalled SH903 or SH905.
        """
        wanted: list[tuple[str, object]] = [
            (f"{column} {how} ?", value)
            for column, how, value in (
                ("kind", "=", kind.value if kind else None),
                ("subject", "=", subject),
                ("operation", "=", operation),
                ("at", ">=", since),
                ("at", "<", until),
            )
            if value is not None
        ]
        where = f"WHERE {' AND '.join(text for text, _ in wanted)}" if wanted else ""
        query = f"SELECT {_COLUMNS} FROM records {where} ORDER BY seq DESC LIMIT ?"  # noqa: S608  (constants only; values are bound)
        with self._lock, self._faults():
            rows = self._db.execute(query, [*(value for _, value in wanted), -1 if limit is None else limit]).fetchall()
            return tuple(self._read(row) for row in reversed(rows))

    def get(self, seq: int) -> Sealed:
        """One record. Raises Rejected SH906 if there is none with that number."""
        with self._lock, self._faults():
            row = self._db.execute(f"SELECT {_COLUMNS} FROM records WHERE seq = ?", [seq]).fetchone()  # noqa: S608
            if row is None:
                raise Rejected(
                    Problem(
                        code=faults.NO_RECORD,
                        what=f"the audit has no record {seq}",
                        remedy=f"It has records 1 to {self._newest().seq}: `shunter audit list` shows them",
                        subject=str(self.path),
                    )
                )
            return self._read(row)

    def verify(self) -> Verification:
        """Go through the whole chain, as it is at one moment, and stop at the first thing that is wrong. Memory use doesn't grow with
        it.
        """
        with self._lock, self._faults():
            try:
                head = read_head(head_path(self.path))  # read first: the database is never behind it
            except FileNotFoundError:
                head = None
            self._db.execute("BEGIN")
            try:
                return examine(self._rows(), head)
            finally:
                self._roll_back()

    def close(self) -> None:
        """Let go of the files. A record that was appended is durable without it."""
        self._db.close()
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, wal_pages: int) -> None:
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if self._head is None:
            if found != _LAYOUT:
                raise faults.version(self.path, found, _LAYOUT)
            return
        if found not in (0, _LAYOUT):
            raise faults.version(self.path, found, _LAYOUT)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(f"PRAGMA wal_autocheckpoint = {wal_pages}")
        if found == 0:
            with self._transaction():
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {_LAYOUT}")
        self._last = self._newest()
        self._agree(self._head)

    def _agree(self, file: HeadFile) -> None:
        """Refuse to write on when records are gone; catch up when the last run ended between a commit and its head."""
        head = file.last
        if head is None:
            if self._last.seq:
                raise faults.cut(self.path, f"the audit has {self._last.seq} records, but its head file is missing or damaged")
        elif head.seq > self._last.seq:
            raise faults.cut(self.path, f"the audit ends with record {self._last.seq}, but its head file knows of record {head.seq}")
        elif head.seq:
            (known,) = self._db.execute("SELECT hash FROM records WHERE seq = ?", [head.seq]).fetchone() or ("",)
            if known != head.hash:
                raise faults.cut(self.path, f"record {head.seq} of the audit isn't the one that its head file knows")
        if head != self._last:
            file.write(self._last)

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        yield from self._db.execute("SELECT seq, at, kind, subject, operation, previous, hash, body FROM records ORDER BY seq")

    def _newest(self) -> Head:
        row = self._db.execute("SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1").fetchone()
        return Head(seq=row[0], hash=row[1]) if row else Head()

    def _read(self, row: tuple[Any, ...]) -> Sealed:
        seq, previous, own, body = row
        try:
            return Sealed(seq=seq, previous=previous, hash=own, record=decode(body, Record))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise faults.stalled(
                faults.CORRUPT,
                f"record {seq} can't be read: {error}",
                "Run `shunter audit verify` to see where the chain breaks",
                self.path,
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            with suppress(sqlite3.Error):  # what it undoes has failed already, and that is the error to tell
                self._db.execute("ROLLBACK")

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise faults.of_sqlite(error, self.path) from error
        except BlockingIOError as error:
            raise faults.busy(self.path) from error
        except OSError as error:
            raise _of_system(error, self.path) from error

    def _let_go(self) -> None:
        if self._head is not None:
            self._head.close()
            self._head = None


def head_path(path: Path) -> Path:
    """Where the head of the audit at `path` is."""
    return path.with_name(path.name + ".head")


def _seal(last: Head, records: Sequence[Record]) -> tuple[Sealed, ...]:
    sealed: list[Sealed] = []
    for record in records:
        clean = msgspec.structs.replace(record, body=plain(record.body))
        own = chained(last.hash, encode(clean))
        last, previous = Head(seq=last.seq + 1, hash=own), last.hash
        sealed.append(Sealed(seq=last.seq, previous=previous, hash=own, record=clean))
    return tuple(sealed)


def _row(sealed: Sealed) -> tuple[object, ...]:
    r = sealed.record
    return sealed.seq, float(r.at), r.kind.value, r.subject, r.operation, sealed.previous, sealed.hash, encode(r)


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


def _of_system(error: OSError, path: Path) -> Stalled:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return faults.full(path)
    return faults.unusable(path, error.strerror or str(error))
