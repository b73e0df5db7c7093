"""Going through a chain of records and naming the first thing that is wrong with it."""

import enum
import sqlite3
from collections.abc import Iterable
from typing import Any

import msgspec

from shunter.audit.faults import is_corrupt
from shunter.audit.head import GENESIS, Head, chained
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
    """The end is missing: the head knows of later records."""
    HEAD = "head"
    """The head is missing, or names another record than the one with its number."""
    UNREADABLE = "unreadable"
    """The database itself is damaged."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result: `count` records were found whole before the first break.

    `broken` is the number of the first record that is wrong or missing, or None; `how` and `why` then say what is. `head` is the hash of
    the last whole record: keep it elsewhere to be able to tell later that the chain up to there is still the same.
    """

    ok: bool
    count: int
    head: str
    broken: int | None = None
    how: Break | None = None
    why: str = ""


def examine(rows: Iterable[tuple[Any, ...]], head: Head | None) -> Verification:
    """Check rows of (seq, at, kind, subject, operation, previous, hash, body), in order of seq, against each other and the head."""
    last = Head()
    found: Head | None = Head() if head is not None and head.seq == 0 else None
    try:
        for row in rows:
            wrong = _wrong(row, last)
            if wrong is not None:
                return _broken(last, *wrong)
            last = Head(seq=row[0], hash=row[6])
            if head is not None and last.seq == head.seq:
                found = last
    except sqlite3.DatabaseError as error:
        if not is_corrupt(error):
            raise
        return _broken(last, Break.UNREADABLE, f"the database is damaged after record {last.seq}: {error}")
    return _against(last, found, head)


def _against(last: Head, found: Head | None, head: Head | None) -> Verification:
    if head is None and last.seq:
        return _broken(last, Break.HEAD, "the head file is missing or damaged, so records may be missing at the end")
    if head is not None and head.seq > last.seq:
        return _broken(last, Break.TRUNCATED, f"records {last.seq + 1} to {head.seq} are missing: the head knows of them")
    if head is not None and found != head:
        return Verification(
            ok=False,
            count=last.seq,
            head=last.hash,
            broken=head.seq,
            how=Break.HEAD,
            why=f"record {head.seq} isn't the one that the head knows: the chain was rewritten",
        )
    return Verification(ok=True, count=last.seq, head=last.hash)


def _broken(last: Head, how: Break, why: str) -> Verification:
    return Verification(ok=False, count=last.seq, head=last.hash, broken=last.seq + 1, how=how, why=why)


def _wrong(row: tuple[Any, ...], last: Head) -> tuple[Break, str] | None:
    seq, at, kind, subject, operation, previous, own, body = row
    if seq != last.seq + 1:
        return Break.GAP, f"record {last.seq + 1} is missing: the next one is {seq}"
    if previous != last.hash:
        before = "the start of the chain" if previous == GENESIS else "another record than the one before it"
        return Break.ORDER, f"record {seq} follows {before}: records were replaced or reordered"
    if chained(previous, bytes(body)) != own:
        return Break.HASH, f"record {seq} was changed: its hash doesn't fit its content"
    try:
        record = decode(body, Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Break.HASH, f"record {seq} can't be read: {error}"
    if (record.at, record.kind.value, record.subject, record.operation) != (at, kind, subject, operation):
        return Break.COLUMNS, f"record {seq} is filed under another time, kind, subject or operation than its own"
    return None
