"""The audit: a signed chain of records. One process writes, any number read.

A record's hash is sha256 over the previous record's hash (32 bytes) and its own canonical JSON, so a changed, moved or missing record
shows; the signed head shows a missing end, and a chain that was computed anew (see `audit.head`).
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from shunter.audit import faults, layout
from shunter.audit import key as keys
from shunter.audit.archive import Dropped, archived, dropping
from shunter.audit.check import Verification, examine
from shunter.audit.filter import Filter
from shunter.audit.head import COMMIT, SLOT, Export, Head, Signed, Slots, read_exports, trim_exports
from shunter.audit.layout import Cleaned
from shunter.audit.redact import Redaction
from shunter.audit.shelf import Found, Row, Shelf
from shunter.audit.sqlite import SqliteShelf
from shunter.model.canon import decode
from shunter.model.errors import Problem, Rejected, Stalled
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
    Calls may come from any thread. `wal_pages`: how long the write-ahead log may grow before it is brought into the file. With a `shelf`
    that was opened already, the records are on that, and only keys and exported heads beside `path`.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        wal_pages: int = 1000,
        key: Path | None = None,
        redaction: Redaction = _AS_IS,
        shelf: Shelf | None = None,
    ) -> None:
        self.path, self.redaction = path, redaction
        self.shelf: Shelf = shelf or SqliteShelf(path, read_only=read_only, wal_pages=wal_pages)
        self._lock = threading.Lock()
        self._key: keys.Key | None = None
        self._signed = Signed(turn=0, head=Head())
        self._doubt: tuple[Signed, tuple[Record, ...]] | None = None
        self._exported = (0, float("-inf"))
        try:
            with self.shelf.faults():
                fresh = self.shelf.fresh()
                if self.shelf.writes:
                    self._open(key, fresh=fresh)
        except BaseException:
            self.shelf.close()
            raise

    def append(self, records: Sequence[Record]) -> tuple[Sealed, ...]:
        """Add records in one transaction; they are durable and signed on return. Floats in a body that aren't finite are tagged (see
        `canon.plain`), and what `redaction` masks is masked: what is returned is what is kept.

        Raises Stalled SH901 when the disk is full, SH902, SH903 or SH905: then none was added, or, if only the head couldn't be written,
        all were. Where it can't be known (a database was lost while it committed), the same records are added once all the same, if they
        come again first.
        """
        return self.append_cleaned(records, self.cleaned(records))

    def cleaned(self, records: Sequence[Record]) -> Cleaned:
        """The records as they are kept, for `append_cleaned`. It may take long, and nobody else's records wait for it."""
        return layout.cleaned(records, self.redaction)

    def append_cleaned(self, records: Sequence[Record], cleaned: Cleaned) -> tuple[Sealed, ...]:
        """`append`, of records that were cleaned before. Raises as that does."""
        with self._lock, self.shelf.faults():
            sealed = self._add(records, cleaned, self._signed.base)
            self._export(sealed[-1].record.at if sealed else None)
            return sealed

    @property
    def last(self) -> Head:
        """The newest record's number and hash: how a writer sees whether an `append` that raised has added its records."""
        return self._signed.head

    def catch_up(self) -> None:
        """Write the head if an `append` couldn't. Raises Stalled as `append` does."""
        with self._lock, self.shelf.faults():
            if self._key is not None:
                self.shelf.note(self._signed, self._key)

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
        with self._lock, self.shelf.faults():
            for sealed in self._fitting(self.shelf.found(wanted.columns(), after=None, newest_first=True), wanted):
                if limit is not None and len(found) >= limit:
                    break
                found.append(sealed)
        return tuple(reversed(found))

    def stream(self, wanted: Filter = _EVERYTHING, after: int = 0) -> Iterator[Sealed]:
        """Records that fit and have a number above `after`, oldest first, however many. For readers. Raises Stalled SH903 or SH905."""
        with self.shelf.faults():
            yield from self._fitting(self.shelf.found(wanted.columns(), after=after, newest_first=False), wanted)

    def newest(self) -> int:
        """The number of the newest record in the database; 0 when it has none. Raises Stalled SH903 or SH905."""
        with self._lock, self.shelf.faults():
            return self.shelf.newest().seq

    def get(self, seq: int) -> Sealed:
        """One record. Raises Rejected SH906 if there is none with that number."""
        with self._lock, self.shelf.faults():
            row = self.shelf.get(seq)
            if row is None:
                raise Rejected(
                    Problem(
                        code=faults.NO_RECORD,
                        what=f"the audit has no record {seq}",
                        remedy=f"It has records {self.shelf.oldest() or 1} to {self.shelf.newest().seq}: `shunter audit list` shows them",
                        subject=self.shelf.subject,
                    )
                )
            return self._read(row)

    def verify(self, key: keys.Public | None = None, heads: Sequence[Export] = (), archives: Path | None = None) -> Verification:
        """Go through the whole chain, as it is at one moment, and stop at the first thing that is wrong. Memory use doesn't grow with it.

        `key` is what signatures are checked with (None: the public key beside the audit, which whoever can write there can replace);
        `heads` are exported heads that were kept elsewhere, which are checked beside those in the folder; `archives` is a folder of dropped
        records that the chain is to be followed through. Raises Rejected SH971 without a key, SH972 for archives that can't be read.
        """
        with self._lock, self.shelf.faults():
            public = key or keys.load_public(layout.public_path(self.path))
            slots = self.shelf.slots()  # read first: the database is never behind it
            kept = (*heads, *self._exports())
            with self.shelf.still():
                return examine(self._rows(archives), self.shelf.committed(), slots, kept, public)

    def drop(self, before: float, at: float, archive: Path | None = None, most: int = 20_000) -> Dropped | None:
        """Drop the oldest records, at most so many, as long as they are from before `before`; None when there are none of those.

        What was dropped is told by a record of its own at `at`, and by the signed head, so that the chain can be verified from there on.
        With `archive`, a folder, they are written there first (see `audit.archive`). Times in seconds since the epoch. Raises Stalled as
        `append` does, and SH905 when the archive can't be written: then nothing was dropped.
        """
        with self._lock, self.shelf.faults():
            base = self._signed.base.seq
            self.shelf.sweep(base)  # what the last `drop` had no time for, if it was cut short
            young = self.shelf.since(before)
            last = min(base + most, self.last.seq - 1, self.last.seq if young is None else young - 1)
            if last <= base:
                return None
            found = dropping(self.shelf, base + 1, last, archive)
            told = [found.told(at)]
            self._add(told, layout.cleaned(told, self.redaction), found.end)
            self.shelf.sweep(found.end.seq)
            with suppress(OSError, ValueError):
                trim_exports(layout.exports_path(self.path), found.end.seq)
            return found

    def close(self) -> None:
        """Let go of the files, and export the last head. A record that was appended is durable without it."""
        if self._signed.head.seq > self._exported[0]:
            self._export(None)
        self.shelf.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing

    def _add(self, records: Sequence[Record], clean: Cleaned, base: Head) -> tuple[Sealed, ...]:
        if self._key is None:
            raise ValueError("this journal was opened read-only")
        left = self._settled(records)
        sealed = layout.seal(self.last, clean[len(records) - len(left) :])
        if not sealed:
            return ()
        head = Head(seq=sealed[-1][0].seq, hash=sealed[-1][0].hash)
        signed = Signed(turn=self._signed.turn + 1, head=head, base=base).sealed(self._key, COMMIT)
        self._doubt = (signed, tuple(left))
        self.shelf.add([row for _, row in sealed], signed)
        self._doubt, self._signed = None, signed
        self.shelf.note(signed, self._key)
        return tuple(one for one, _ in sealed)

    def _settled(self, records: Sequence[Record]) -> Sequence[Record]:
        """What is left to add once it is known whether the last commit, which failed, has happened after all."""
        if self._doubt is None:
            return records
        signed, before = self._doubt
        found = self.shelf.committed()
        if found not in (signed, self._signed):
            raise faults.cut(self.shelf.subject, "another engine has written to the audit since this one did")
        self._doubt = None
        if found != signed:
            return records
        self._signed = signed
        same = 0
        while same < min(len(before), len(records)) and _bare(before[same]) == _bare(records[same]):
            same += 1
        return records[same:]

    def _export(self, at: float | None) -> None:
        """Put a signed head with the others if one is due. `at` None: the end."""
        seq, when = self._exported
        head = self._signed.head
        if self._key is None or head.seq == seq or (at is not None and at - when < _EXPORT_S and head.seq - seq < _EXPORT_RECORDS):
            return
        with suppress(OSError, Stalled):  # none is missed: the next one says more, and a full disk is told of elsewhere
            export = Export.of(head, self._at(head.seq) if at is None else at, self._key)
            fd = os.open(layout.exports_path(self.path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, msgspec.json.encode(export) + b"\n")
            finally:
                os.close(fd)
        self._exported = (head.seq, when if at is None else at)

    def _at(self, seq: int) -> float:
        with self.shelf.faults():
            (row,) = self.shelf.rows(seq, seq)
            return float(row[1])

    # -- opening

    def _open(self, path: Path | None, *, fresh: bool) -> None:
        slots = self.shelf.slots()
        self._key = self._unlock(path, fresh=fresh and not slots.whole)
        if fresh:
            if slots.newest is not None and slots.newest.head.seq:
                raise faults.cut(self.shelf.subject, f"the audit is empty, but its head file knows of record {slots.newest.head.seq}")
            self.shelf.begin(Signed(turn=2, head=Head()).sealed(self._key, COMMIT))
        self._signed = self._agreed(slots, self._key)
        self.shelf.note(self._signed, self._key)
        with suppress(OSError, ValueError):
            self._exported = max(((e.seq, e.at) for e in read_exports(layout.exports_path(self.path))), default=self._exported)

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

    def _agreed(self, slots: Slots, key: keys.Key) -> Signed:
        """What the database was last committed with. Refuse to write on when that isn't what is in it, or not what the head file knows."""
        signed, last, file = self.shelf.committed(), self.shelf.newest(), slots.newest
        if signed is None:
            raise faults.cut(self.shelf.subject, f"the audit has {last.seq} records, but its head is missing")
        if not signed.by(key.public, COMMIT) or not all(slot.by(key.public, SLOT) for slot in slots.whole):
            raise faults.foreign(self.shelf.subject, key.public.name)
        if signed.head != last:
            what = f"the audit ends with record {last.seq}, but its signed head is that of record {signed.head.seq}"
            raise faults.cut(self.shelf.subject, what)
        wrong = self._unlike(file, signed, complete=slots.complete)
        if wrong:
            raise faults.cut(self.shelf.subject, wrong)
        return signed

    def _unlike(self, file: Signed | None, signed: Signed, *, complete: bool) -> str:
        """How the head file says something else than the database; empty when it doesn't."""
        last = signed.head.seq
        if file is None:
            return f"the audit has {last} records, but its head file is missing or damaged" if last else ""
        if file.turn > signed.turn or (file.turn == signed.turn and not complete):
            return f"the audit ends with record {last}, but its head file knows, or knew, of a later one"
        if file.head.seq > signed.base.seq:
            row = self.shelf.get(file.head.seq)
            if row is None or row[2] != file.head.hash:
                return f"record {file.head.seq} of the audit isn't the one that its head file knows"
        return ""

    # -- reading

    def _fitting(self, rows: Iterator[Found], wanted: Filter) -> Iterator[Sealed]:
        needles = wanted.needles()
        for row in rows:
            if all(needle in row[3] for needle in needles):
                sealed = self._read(row)
                if wanted.fits(sealed.record):
                    yield sealed

    def _rows(self, archives: Path | None) -> Iterator[Row]:
        if archives is not None:
            yield from archived(archives, before=self.shelf.oldest())
        yield from self.shelf.rows()

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
                self.shelf.subject,
            ) from error


def _bare(record: Record) -> Record:
    """A record without what says that it waited."""
    return msgspec.structs.replace(record, body={key: value for key, value in record.body.items() if key != "spooled"})
