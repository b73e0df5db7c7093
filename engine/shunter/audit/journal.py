"""The audit: a signed chain of records in SQLite. One process writes, any number read.

A record's hash is sha256 over the previous record's hash (32 bytes) and its own canonical JSON, so a changed, moved or missing record
shows; the signed head shows a missing end, and a chain that was computed anew (see `audit.head`).
"""

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from shunter.audit import faults, layout
from shunter.audit import key as keys
from shunter.audit.archive import Dropped, archived, dropping
from shunter.audit.check import Verification, examine
from shunter.audit.filter import Filter
from shunter.audit.head import COMMIT, SLOT, Export, Head, HeadFile, Signed, Slots, read_exports
from shunter.audit.head import read as read_head
from shunter.audit.redact import Redaction
from shunter.model.canon import decode
from shunter.model.errors import Problem, Rejected
from shunter.model.record import Record, RecordKind, Sealed

_EVERYTHING: Final = Filter()
_AS_IS: Final = Redaction()
_EXPORT_S: Final = 600.0
_EXPORT_RECORDS: Final = 10_000
"""A signed head is exported when either has passed since the one before, by the times of the records, and at the end."""


class Journal:
    """The audit at `path`. Beside it are its head (`audit.db.head`), keys (`audit.key`, `audit.pub`) and exported heads (`audit.heads`);
    what isn't public is made 0600, the folder 0700.

    Without `read_only` this process becomes the writer. It signs with the key in the file `key` (None: the one beside the audit, made with
    it). Raises Stalled: SH902 if another process is it already, SH904 if records are missing or were added that the head doesn't know of,
    SH970 for a key that isn't usable or isn't the one that the audit was signed with, SH903 for a damaged file, SH907 for one of another
    version, SH905 when it can't be opened.
    Calls may come from any thread. `wal_pages`: how long the write-ahead log may grow before it is brought into the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        wal_pages: int = 1000,
        key: Path | None = None,
        redaction: Redaction = _AS_IS,
    ) -> None:
        self.path, self.redaction = path, redaction
        self._lock = threading.Lock()
        self._head: HeadFile | None = None
        self._key: keys.Key | None = None
        self._signed = Signed(turn=0, head=Head())
        self._exported = (0, float("-inf"))
        with self._faults():
            if not read_only:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._head = HeadFile(layout.head_path(path))
            try:
                if self._head is not None:
                    self._key = self._unlock(key, fresh=not self._head.slots.whole)
                self._db = layout.connect(path, read_only=read_only)
            except BaseException:
                self._let_go()
                raise
            try:
                self._prepare(wal_pages)
            except BaseException:
                self._db.close()
                self._let_go()
                raise

    def append(self, records: Sequence[Record]) -> tuple[Sealed, ...]:
        """Add records in one transaction; they are durable and signed on return. Floats in a body that aren't finite are tagged (see
        `canon.plain`), and what `redaction` masks is masked: what is returned is what is kept.

        Raises Stalled SH901 when the disk is full, SH902, SH903 or SH905: then none was added, or, if only the head couldn't be written,
        all were.
        """
        with self._lock, self._faults():
            sealed = self._add(records, self._signed.base)
            self._export(sealed[-1].record.at if sealed else None)
            return sealed

    @property
    def last(self) -> Head:
        """The newest record's number and hash: how a writer sees whether an `append` that raised has added its records."""
        return self._signed.head

    def catch_up(self) -> None:
        """Write the head if an `append` couldn't. Raises Stalled as `append` does."""
        with self._lock, self._faults():
            if self._head is not None and self._key is not None:
                self._head.write(self._signed, self._key)

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
        return self.select(Filter(kind=kind, subject=subject, operation=operation, since=since, until=until), limit)

    def select(self, wanted: Filter, limit: int | None = None) -> tuple[Sealed, ...]:
        """The newest `limit` records (None: all) that fit, oldest first. Raises Stalled SH903 or SH905."""
        found: list[Sealed] = []
        with self._lock, self._faults():
            for sealed in self._fitting(layout.descending(self._db, wanted.columns()), wanted):
                if limit is not None and len(found) >= limit:
                    break
                found.append(sealed)
        return tuple(reversed(found))

    def stream(self, wanted: Filter = _EVERYTHING, after: int = 0) -> Iterator[Sealed]:
        """Records that fit and have a number above `after`, oldest first, however many. For readers. Raises Stalled SH903 or SH905."""
        with self._faults():
            yield from self._fitting(layout.ascending(self._db, wanted.columns(), after), wanted)

    def newest(self) -> int:
        """The number of the newest record in the database; 0 when it has none. Raises Stalled SH903 or SH905."""
        with self._lock, self._faults():
            return layout.newest(self._db).seq

    def get(self, seq: int) -> Sealed:
        """One record. Raises Rejected SH906 if there is none with that number."""
        with self._lock, self._faults():
            row = self._db.execute("SELECT seq, previous, hash, body FROM records WHERE seq = ?", [seq]).fetchone()
            if row is None:
                first = self._db.execute("SELECT min(seq) FROM records").fetchone()[0] or 1
                raise Rejected(
                    Problem(
                        code=faults.NO_RECORD,
                        what=f"the audit has no record {seq}",
                        remedy=f"It has records {first} to {layout.newest(self._db).seq}: `shunter audit list` shows them",
                        subject=str(self.path),
                    )
                )
            return self._read(row)

    def verify(self, key: keys.Public | None = None, heads: Sequence[Export] = (), archives: Path | None = None) -> Verification:
        """Go through the whole chain, as it is at one moment, and stop at the first thing that is wrong. Memory use doesn't grow with it.

        `key` is what signatures are checked with (None: the public key beside the audit, which whoever can write there can replace);
        `heads` are exported heads that were kept elsewhere, which are checked beside those in the folder; `archives` is a folder of dropped
        records that the chain is to be followed through. Raises Rejected SH971 without a key, SH972 for archives that can't be read.
        """
        with self._lock, self._faults():
            public = key or keys.load_public(layout.public_path(self.path))
            slots = read_head(layout.head_path(self.path))  # read first: the database is never behind it
            kept = (*heads, *self._exports())
            self._db.execute("BEGIN")
            try:
                return examine(self._rows(archives), self._committed(), slots, kept, public)
            finally:
                self._roll_back()

    def drop(self, before: float, at: float, archive: Path | None = None, most: int = 20_000) -> Dropped | None:
        """Drop the oldest records, at most so many, as long as they are from before `before`; None when there are none of those.

        What was dropped is told by a record of its own at `at`, and by the signed head, so that the chain can be verified from there on.
        With `archive`, a folder, they are written there first (see `audit.archive`). Times in seconds since the epoch. Raises Stalled as
        `append` does, and SH905 when the archive can't be written: then nothing was dropped.
        """
        with self._lock, self._faults():
            self._sweep()
            base = self._signed.base.seq
            end = self._db.execute("SELECT seq FROM records WHERE at >= ? ORDER BY seq LIMIT 1", [before]).fetchone()
            last = min(base + most, self.last.seq - 1, end[0] - 1 if end else self.last.seq)
            if last <= base:
                return None
            found = dropping(self._db, base + 1, last, archive)
            self._add([found.told(at)], found.end)
            self._sweep()
            return found

    def close(self) -> None:
        """Let go of the files, and export the last head. A record that was appended is durable without it."""
        if self._signed.head.seq > self._exported[0]:
            self._export(None)
        self._db.close()
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing

    def _add(self, records: Sequence[Record], base: Head) -> tuple[Sealed, ...]:
        if self._head is None or self._key is None:
            raise ValueError("this journal was opened read-only")
        sealed = layout.seal(self.last, records, self.redaction)
        if not sealed:
            return ()
        head = Head(seq=sealed[-1].seq, hash=sealed[-1].hash)
        signed = Signed(turn=self._signed.turn + 1, head=head, base=base).sealed(self._key, COMMIT)
        with self._transaction():
            self._db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [layout.row(one) for one in sealed])
            layout.commit(self._db, signed)
        self._signed = signed
        self._head.write(signed, self._key)
        return sealed

    def _sweep(self) -> None:
        """Take away what the base says was dropped: after a kill, what the last `drop` had no time for."""
        with self._transaction():
            self._db.execute("DELETE FROM records WHERE seq <= ?", [self._signed.base.seq])

    def _export(self, at: float | None) -> None:
        """Put a signed head with the others if one is due. `at` None: the end."""
        seq, when = self._exported
        head = self._signed.head
        if self._key is None or head.seq == seq or (at is not None and at - when < _EXPORT_S and head.seq - seq < _EXPORT_RECORDS):
            return
        with suppress(OSError, sqlite3.Error):  # none is missed: the next one says more, and a full disk is told of elsewhere
            export = Export.of(head, self._at(head.seq) if at is None else at, self._key)
            fd = os.open(layout.exports_path(self.path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, msgspec.json.encode(export) + b"\n")
            finally:
                os.close(fd)
        self._exported = (head.seq, when if at is None else at)

    def _at(self, seq: int) -> float:
        return float(self._db.execute("SELECT at FROM records WHERE seq = ?", [seq]).fetchone()[0])

    # -- opening

    def _unlock(self, path: Path | None, *, fresh: bool) -> keys.Key:
        """The key to sign with; a new one only for a new audit."""
        where = path or layout.key_path(self.path)
        try:
            key = keys.load(where)
        except FileNotFoundError:
            if path is not None or not fresh:
                raise faults.no_key(where) from None
            key = keys.Key.make()
            key.save(where)
        key.publish(layout.public_path(self.path), anew=fresh)
        return key

    def _prepare(self, wal_pages: int) -> None:
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found != layout.LAYOUT and (found or self._head is None):
            raise faults.version(self.path, found, layout.LAYOUT)
        if self._head is None or self._key is None:
            return
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(f"PRAGMA wal_autocheckpoint = {wal_pages}")
        if found == 0:
            self._begin(self._head.slots, self._key)
        self._signed = self._agreed(self._head.slots, self._key)
        self._head.write(self._signed, self._key)
        with suppress(OSError, ValueError):
            self._exported = max(((e.seq, e.at) for e in read_exports(layout.exports_path(self.path))), default=self._exported)

    def _begin(self, slots: Slots, key: keys.Key) -> None:
        if slots.newest is not None and slots.newest.head.seq:
            raise faults.cut(self.path, f"the audit is empty, but its head file knows of record {slots.newest.head.seq}")
        with self._transaction():
            for statement in layout.SCHEMA.split(";"):
                self._db.execute(statement)
            layout.commit(self._db, Signed(turn=2, head=Head()).sealed(key, COMMIT))
            self._db.execute(f"PRAGMA user_version = {layout.LAYOUT}")

    def _agreed(self, slots: Slots, key: keys.Key) -> Signed:
        """What the database was last committed with. Refuse to write on when that isn't what is in it, or not what the head file knows."""
        signed, last, file = layout.committed(self._db), layout.newest(self._db), slots.newest
        if signed is None:
            raise faults.cut(self.path, f"the audit has {last.seq} records, but its head is missing")
        if not signed.by(key.public, COMMIT) or not all(slot.by(key.public, SLOT) for slot in slots.whole):
            raise faults.foreign(self.path, key.public.name)
        if signed.head != last:
            raise faults.cut(self.path, f"the audit ends with record {last.seq}, but its signed head is that of record {signed.head.seq}")
        if file is None:
            if last.seq:
                raise faults.cut(self.path, f"the audit has {last.seq} records, but its head file is missing or damaged")
        elif file.turn > signed.turn or (file.turn == signed.turn and not slots.complete):
            raise faults.cut(self.path, f"the audit ends with record {last.seq}, but its head file knows, or knew, of a later one")
        elif file.head.seq > signed.base.seq:
            (known,) = self._db.execute("SELECT hash FROM records WHERE seq = ?", [file.head.seq]).fetchone() or ("",)
            if known != file.head.hash:
                raise faults.cut(self.path, f"record {file.head.seq} of the audit isn't the one that its head file knows")
        return signed

    # -- reading

    def _fitting(self, rows: Iterator[tuple[Any, ...]], wanted: Filter) -> Iterator[Sealed]:
        needles = wanted.needles()
        for row in rows:
            if all(needle in row[3] for needle in needles):
                sealed = self._read(row)
                if wanted.fits(sealed.record):
                    yield sealed

    def _rows(self, archives: Path | None) -> Iterator[tuple[Any, ...]]:
        first = self._db.execute("SELECT min(seq) FROM records").fetchone()[0]
        if archives is not None:
            yield from archived(archives, before=first)
        yield from self._db.execute(f"SELECT {layout.ROW} FROM records ORDER BY seq")  # noqa: S608

    def _committed(self) -> Signed | None:
        try:
            return layout.committed(self._db)
        except sqlite3.DatabaseError as error:
            if not faults.is_corrupt(error):
                raise
            return None

    def _exports(self) -> tuple[Export, ...]:
        try:
            return read_exports(layout.exports_path(self.path))
        except FileNotFoundError:
            return ()
        except ValueError as error:
            raise faults.bad_heads(layout.exports_path(self.path), str(error)) from error

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
            raise faults.of_system(error, self.path) from error

    def _let_go(self) -> None:
        if self._head is not None:
            self._head.close()
            self._head = None
