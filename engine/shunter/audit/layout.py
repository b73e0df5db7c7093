"""Which files an audit has, and how records become rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from shunter.audit.head import Head, chained
from shunter.audit.redact import Redaction
from shunter.audit.shelf import Row
from shunter.model.canon import encode, plain
from shunter.model.record import Record, Sealed


def head_path(path: Path) -> Path:
    """Where the signed head of the audit at `path` is."""
    return path.with_name(path.name + ".head")


def key_path(path: Path) -> Path:
    """Where the private key of the audit at `path` is, unless the settings name another."""
    return path.with_suffix(".key")


def public_path(path: Path) -> Path:
    """Where the public key of the audit at `path` is."""
    return path.with_suffix(".pub")


def exports_path(path: Path) -> Path:
    """Where signed heads for keeping elsewhere are collected."""
    return path.with_suffix(".heads")


Cleaned: TypeAlias = Sequence[tuple[Record, bytes]]
"""Records as they may be kept, each with its canonical bytes."""


def cleaned(records: Sequence[Record], redaction: Redaction) -> Cleaned:
    """The records as they may be kept, each with its canonical bytes. A plan of hundreds of operations takes a tenth of a second."""
    return [redaction.encoded(msgspec.structs.replace(record, body=plain(record.body), **_storable(record))) for record in records]


def seal(last: Head, records: Cleaned) -> list[tuple[Sealed, Row]]:
    """Chain clean records to the last one; each also as it lies on a shelf."""
    sealed: list[tuple[Sealed, Row]] = []
    for clean, data in records:
        own = chained(last.hash, data)
        last, previous = Head(seq=last.seq + 1, hash=own), last.hash
        one = Sealed(seq=last.seq, previous=previous, hash=own, record=clean)
        sealed.append((one, _row(one, data)))
    return sealed


def _storable(record: Record) -> dict[str, Any]:
    """What stands in columns of text, without the one character that not every database takes there."""
    named = {"subject": record.subject, "operation": record.operation}
    return {name: text.replace("\0", "\ufffd") for name, text in named.items() if text is not None and "\0" in text}


def row(sealed: Sealed) -> Row:
    """As it lies on a shelf."""
    return _row(sealed, encode(sealed.record))


def _row(sealed: Sealed, data: bytes) -> Row:
    r = sealed.record
    return sealed.seq, float(r.at), r.kind.value, r.subject, r.operation, sealed.previous, sealed.hash, data
