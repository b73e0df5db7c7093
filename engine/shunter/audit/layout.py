"""How the audit lies in SQLite, and as JSON lines."""

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from shunter.audit.head import Head, Signed, chained
from shunter.audit.redact import Redaction
from shunter.model.canon import encode, plain
from shunter.model.record import Record, Sealed

LAYOUT: Final = 2
BUSY_MS: Final = 5000
SCHEMA: Final = """
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
ROW: Final = "seq, at, kind, subject, operation, previous, hash, body"


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


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the database; a writer makes it, 0600. Raises FileNotFoundError for a reader of none, OSError, sqlite3.Error."""
    if not read_only:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # before SQLite would, with the umask's mode
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
    elif not path.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no audit there", str(path))
    mode = "ro" if read_only else "rw"
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000
    )


def seal(last: Head, records: Sequence[Record], redaction: Redaction) -> tuple[Sealed, ...]:
    """Clean the records, and chain them to the last one."""
    sealed: list[Sealed] = []
    for record in records:
        clean = redaction.clean(msgspec.structs.replace(record, body=plain(record.body)))
        own = chained(last.hash, encode(clean))
        last, previous = Head(seq=last.seq + 1, hash=own), last.hash
        sealed.append(Sealed(seq=last.seq, previous=previous, hash=own, record=clean))
    return tuple(sealed)


def row(sealed: Sealed) -> tuple[Any, ...]:
    """As it lies in `records`: ROW."""
    r = sealed.record
    return sealed.seq, float(r.at), r.kind.value, r.subject, r.operation, sealed.previous, sealed.hash, encode(r)


def newest(db: sqlite3.Connection) -> Head:
    """The last record that there is."""
    found = db.execute("SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1").fetchone()
    return Head(seq=found[0], hash=found[1]) if found else Head()


def committed(db: sqlite3.Connection) -> Signed | None:
    """The head that the database was last committed with; None when there is none."""
    found = db.execute("SELECT turn, seq, hash, base_seq, base_hash, signature FROM head").fetchone()
    if found is None:
        return None
    turn, seq, hashed, base_seq, base_hash, signature = found
    return Signed(turn=turn, head=Head(seq=seq, hash=hashed), base=Head(seq=base_seq, hash=base_hash), signature=signature)


def commit(db: sqlite3.Connection, signed: Signed) -> None:
    """Put the head in, inside a transaction."""
    s = signed
    values = (s.turn, s.head.seq, s.head.hash, s.base.seq, s.base.hash, s.signature)
    db.execute("INSERT OR REPLACE INTO head VALUES (1, ?, ?, ?, ?, ?, ?)", values)


def descending(db: sqlite3.Connection, columns: list[tuple[str, str, object]], chunk: int = 1000) -> Iterator[tuple[Any, ...]]:
    """Rows of (seq, previous, hash, body), newest first."""
    return _ranged(db, columns, None, chunk, newest_first=True)


def ascending(
    db: sqlite3.Connection, columns: list[tuple[str, str, object]], after: int = 0, chunk: int = 1000
) -> Iterator[tuple[Any, ...]]:
    """Rows of (seq, previous, hash, body) after the one with that number, oldest first. New ones come in while it goes on."""
    return _ranged(db, columns, after, chunk, newest_first=False)


def _ranged(
    db: sqlite3.Connection, columns: list[tuple[str, str, object]], after: int | None, chunk: int, *, newest_first: bool
) -> Iterator[tuple[Any, ...]]:
    """In portions, so that no read keeps the write-ahead log from being brought in for long."""
    how, order = ("<", "DESC") if newest_first else (">", "ASC")
    last = after
    while True:
        wanted = columns if last is None else [*columns, ("seq", how, last)]
        where = f"WHERE {' AND '.join(f'{column} {how} ?' for column, how, _ in wanted)}" if wanted else ""
        query = f"SELECT seq, previous, hash, body FROM records {where} ORDER BY seq {order} LIMIT ?"  # noqa: S608  (constants only; values are bound)
        rows = db.execute(query, [*(value for _, _, value in wanted), chunk]).fetchall()
        yield from rows
        if len(rows) < chunk:
            return
        last = rows[-1][0]
