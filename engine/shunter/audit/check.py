"""Going through a chain of records and naming the first thing that is wrong with it."""

import enum
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from shunter.audit.faults import unreadable
from shunter.audit.head import COMMIT, GENESIS, SLOT, Export, Head, Signed, Slots, chained, contradiction
from shunter.audit.key import Public
from shunter.model.canon import decode
from shunter.model.record import Record


class Break(enum.StrEnum):
    """How a chain can be broken."""

    HASH = "hash"
    """A record isn't what its hash was made from: it was changed."""
    ORDER = "order"
    """A record follows another one than the one before it: one of the two was replaced, or they were reordered."""
    GAP = "gap"
    """A record is missing in the middle or at the start."""
    COLUMNS = "columns"
    """A record is whole, but is filed under another time, kind, subject or operation than its own."""
    TRUNCATED = "truncated"
    """The end is missing: a head knows of later records."""
    HEAD = "head"
    """The head is missing, or a head names another record than the one with its number."""
    SIGNATURE = "signature"
    """A head isn't signed by the key."""
    UNSIGNED = "unsigned"
    """There are records after the last one that was signed: somebody else added them."""
    UNREADABLE = "unreadable"
    """The database itself is damaged."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result: `count` records were found whole before the first break, the first of them with the number `first`.

    `broken` is the number of the first record that is wrong or missing, or None; `how` and `why` then say what is. `head` is the hash of
    the last whole record, `key` the fingerprint of the key that the signatures were checked with, `kept` how many heads from elsewhere (or
    exported beside the audit) were found in the chain, `unkept` how many are of records that retention has dropped since.
    """

    ok: bool
    count: int
    head: str
    key: str
    first: int = 1
    kept: int = 0
    unkept: int = 0
    broken: int | None = None
    how: Break | None = None
    why: str = ""


def examine(rows: Iterable[tuple[Any, ...]], commit: Signed | None, slots: Slots, exports: Sequence[Export], key: Public) -> Verification:
    """Check rows of (seq, at, kind, subject, operation, previous, hash, body), in order of seq, against each other, the head that the
    database was committed with (None: it has none), the head file and the exported heads. The file is to be read before the database.
    """
    return _Examination(commit, slots, exports, key).of(rows)


class _Examination:
    def __init__(self, commit: Signed | None, slots: Slots, exports: Sequence[Export], key: Public) -> None:
        self.commit, self.slots, self.key = commit, slots, key
        self.signed = [*slots.whole, *([commit] if commit else [])]
        self.base = max((s.base for s in self.signed), key=lambda base: base.seq, default=Head())
        self.exports = {(export.seq, export.hash) for export in exports}
        self.forged = contradiction(exports, key)
        self.wanted: dict[int, set[str]] = {}
        """What else than its predecessor says what a record's hash is."""
        for seq, hashed in (*((h.seq, h.hash) for s in self.signed for h in (s.head, s.base)), *self.exports):
            self.wanted.setdefault(seq, set()).add(hashed)
        self.last = self.start = Head()

    def of(self, rows: Iterable[tuple[Any, ...]]) -> Verification:
        """Go through all of them."""
        forged = self._forged()
        if forged:
            return self._broken(Break.SIGNATURE, forged)
        try:
            for number, row in enumerate(rows):
                if number == 0:
                    self.last = self.start = self._start(row)
                wrong = _wrong(row, self.last) or self._other(row)
                if wrong is not None:
                    return self._broken(*wrong)
                self.last = Head(seq=row[0], hash=row[6])
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if isinstance(error, sqlite3.Error) and not unreadable(error):
                raise
            return self._broken(Break.UNREADABLE, f"the database is damaged after record {self.last.seq}: {error}")
        wrong = self._end()
        return self._broken(*wrong) if wrong else self._whole()

    def _start(self, row: tuple[Any, ...]) -> Head:
        """What the first row must follow. Those that retention drops may be there still, in part: the hash of the last of them says the
        rest.
        """
        if self.base.seq and isinstance(row[0], int) and row[0] <= self.base.seq:
            return Head(seq=row[0] - 1, hash=row[5]) if _is_hash(row[5]) else Head()
        return self.base

    def _other(self, row: tuple[Any, ...]) -> tuple[Break, str] | None:
        if self.wanted.get(row[0], set()) <= {row[6]}:
            return None
        return Break.HEAD, f"record {row[0]} isn't the one that a signed head knows: the chain was rewritten"

    def _forged(self) -> str:
        if not all(slot.by(self.key, SLOT) for slot in self.slots.whole):
            return f"the head file isn't signed by {self.key.name}: it was forged, or another key is the right one"
        if self.commit is not None and not self.commit.by(self.key, COMMIT):
            return f"the database's head isn't signed by {self.key.name}: it was forged, or another key is the right one"
        return self.forged

    def _end(self) -> tuple[Break, str] | None:
        """What the heads say of the chain's end."""
        last, furthest = self.last.seq, max(self.wanted, default=0)
        if self.start.seq and len(self.wanted.get(self.start.seq, ())) > 1:
            return Break.HEAD, f"two signed heads know different records {self.start.seq}: the chain was rewritten"
        if furthest > last:
            return Break.TRUNCATED, f"records {last + 1} to {furthest} are missing: a signed head knows of them"
        if self.commit is None:
            return Break.SIGNATURE, "the database's head is missing, so nothing says that its records were written by the engine"
        if self.commit is not None and last > self.commit.head.seq:
            many = f"records {self.commit.head.seq + 1} to {last} aren't" if last - self.commit.head.seq > 1 else f"record {last} isn't"
            return Break.UNSIGNED, f"{many} signed: somebody else than the engine added what follows"
        return self._file()

    def _file(self) -> tuple[Break, str] | None:
        newest, turn = self.slots.newest, self.commit.turn if self.commit else 0
        if newest is None:
            return (Break.HEAD, "the head file is missing or damaged, so records may be missing at the end") if self.last.seq else None
        if newest.turn > turn or (newest.turn == turn and not self.slots.complete):
            return Break.TRUNCATED, "the head file doesn't fit the database: a later head was taken away, and maybe records with it"
        return None

    def _broken(self, how: Break, why: str) -> Verification:
        unsigned = how is Break.UNSIGNED and self.commit
        broken = (unsigned.head.seq if unsigned else self.last.seq) + 1
        return msgspec.structs.replace(self._whole(), ok=False, broken=broken, how=how, why=why)

    def _whole(self) -> Verification:
        dropped = sum(seq < self.start.seq for seq, _ in self.exports)
        return Verification(
            ok=True,
            count=self.last.seq - self.start.seq,
            head=self.last.hash,
            key=self.key.name,
            first=self.start.seq + 1,
            kept=len(self.exports) - dropped,
            unkept=dropped,
        )


def _wrong(row: tuple[Any, ...], last: Head) -> tuple[Break, str] | None:
    seq, at, kind, subject, operation, previous, own, body = row
    if not isinstance(body, bytes) or not isinstance(seq, int):
        return Break.HASH, f"record {last.seq + 1} was changed: it isn't a record any more"
    if seq != last.seq + 1:
        return Break.GAP, f"record {last.seq + 1} is missing: the next one is {seq}"
    if previous != last.hash:
        before = "the start of the chain" if previous == GENESIS else "another record than the one before it"
        return Break.ORDER, f"record {seq} follows {before}: records were replaced or reordered"
    if chained(previous, body) != own:
        return Break.HASH, f"record {seq} was changed: its hash doesn't fit its content"
    try:
        record = decode(body, Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Break.HASH, f"record {seq} can't be read: {error}"
    if (record.at, record.kind.value, record.subject, record.operation) != (at, kind, subject, operation):
        return Break.COLUMNS, f"record {seq} is filed under another time, kind, subject or operation than its own"
    return None


def _is_hash(text: object) -> bool:
    return isinstance(text, str) and len(text) == len(GENESIS) and set(text) <= set("0123456789abcdef")
