"""Records that retention takes out of the audit, in files of their own: `audit-1-20000.jsonl.gz`, a sealed record a line, in order.

The hash of the last one stays in the signed head, so that they can be checked as long as they are kept.
"""

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from shunter.audit import faults
from shunter.audit.head import Head
from shunter.audit.layout import row
from shunter.audit.shelf import Shelf
from shunter.model.ids import Epoch
from shunter.model.record import Record, RecordKind, Sealed

_NAME: Final = re.compile(r"audit-([0-9]+)-([0-9]+)\.jsonl\.gz")


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Records `first` to `end`. `until` is the time of the last one (seconds since the epoch), `file` where they were put (empty: nowhere),
    `digest` that file's sha256.
    """

    first: int
    end: Head
    until: float
    file: str = ""
    digest: str = ""

    def told(self, at: float) -> Record:
        """The record that says so."""
        where = f"; they are in {self.file}" if self.file else ""
        return Record(
            at=at,
            kind=RecordKind.ENGINE,
            subject="audit",
            what=f"records {self.first} to {self.end.seq} were dropped by retention{where}",
            epoch=Epoch(0),
            body={
                "dropped": {
                    "from": self.first,
                    "to": self.end.seq,
                    "hash": self.end.hash,
                    "until": self.until,
                    "file": self.file,
                    "sha256": self.digest,
                }
            },
        )


def dropping(shelf: Shelf, first: int, last: int, folder: Path | None) -> Dropped:
    """Write the records to a file, if a folder is given, durable on return. Raises OSError and what the shelf does."""
    (end,) = shelf.rows(last, last)
    dropped = Dropped(first=first, end=Head(seq=last, hash=end[6]), until=end[1])
    if folder is None:
        return dropped
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"audit-{first}-{last}.jsonl.gz"
    part = path.with_name(f".{path.name}.part")
    with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w+b") as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            for found in shelf.rows(first, last):
                packed.write(_line(found))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    os.replace(part, path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return msgspec.structs.replace(dropped, file=path.name, digest=digest)


def archived(folder: Path, *, before: int | None) -> Iterator[tuple[Any, ...]]:
    """Rows of all files in the folder, in order, up to the record before `before` (None: all). Raises Rejected SH972 for a file that can't
    be read.
    """
    named = ((found, path) for path in folder.glob("audit-*.jsonl.gz") if (found := _NAME.fullmatch(path.name)))
    for _, path in sorted((int(found[1]), path) for found, path in named):
        try:
            with gzip.open(path, "rb") as file:
                for line in file:
                    sealed = msgspec.json.decode(line, type=Sealed)
                    if before is None or sealed.seq < before:
                        yield row(sealed)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise faults.bad_heads(path, str(error)) from error


def _line(found: tuple[Any, ...]) -> bytes:
    seq, *_, previous, own, body = found
    return msgspec.json.encode({"seq": seq, "previous": previous, "hash": own, "record": msgspec.Raw(body)}) + b"\n"
