"""Audit records for other programs: JSON Lines, CSV and Parquet. However many there are, few are in memory at once."""

import csv
import datetime
import importlib
import io
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO, Final, TypeAlias

import msgspec

from shunter.model.canon import encode
from shunter.model.errors import Problem, Rejected
from shunter.model.record import Sealed

Writer: TypeAlias = Callable[[Iterable[Sealed], BinaryIO], int]
COLUMNS: Final = (
    "seq", "at", "kind", "subject", "what", "epoch", "commit", "snapshot", "plan", "operation", "pretend", "body", "previous", "hash",
)  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_ROWS: Final = 10_000


def json_lines(records: Iterable[Sealed], out: BinaryIO) -> int:
    """One sealed record a line, its canonical bytes: what the hash is over is the value of `record`. Returns how many there were."""
    count = 0
    for sealed in records:
        out.write(encode(sealed) + b"\n")
        count += 1
    return count


def comma_separated(records: Iterable[Sealed], out: BinaryIO) -> int:
    """RFC 4180 with a header; times in ISO 8601, UTC; the body as JSON. A text that a spreadsheet would take for a formula gets an
    apostrophe in front. Returns how many there were.
    """
    text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    try:
        table = csv.writer(text)
        table.writerow(COLUMNS)
        count = 0
        for sealed in records:
            table.writerow([_cell(value) for value in _values(sealed)])
            count += 1
        return count
    finally:
        text.detach()


def parquet(records: Iterable[Sealed], out: BinaryIO) -> int:
    """One row group for each 10,000 records; times as timestamps in UTC, microseconds. Returns how many there were.

    Raises Rejected SH973 without pyarrow.
    """
    arrow, storage = _pyarrow()
    text, whole = arrow.string(), arrow.int64()
    types = {"seq": whole, "epoch": whole, "at": arrow.timestamp("us", tz="UTC"), "pretend": arrow.bool_()}
    schema = arrow.schema([(name, types.get(name, text)) for name in COLUMNS])
    count = 0
    with storage.ParquetWriter(out, schema, compression="zstd") as file:
        for rows in _portions(records):
            count += len(rows)
            file.write_table(arrow.table([list(column) for column in zip(*rows, strict=True)], schema=schema))
    return count


FORMATS: Final[dict[str, Writer]] = {"jsonl": json_lines, "csv": comma_separated, "parquet": parquet}


def _values(sealed: Sealed) -> tuple[Any, ...]:
    r = sealed.record
    at = datetime.datetime.fromtimestamp(r.at, datetime.UTC)
    body = msgspec.json.encode(r.body, order="sorted").decode()
    stated = (r.commit, r.snapshot, r.plan, r.operation, r.pretend, body)
    return sealed.seq, at, r.kind.value, r.subject, r.what, int(r.epoch), *stated, sealed.previous, sealed.hash


def _cell(value: object) -> object:
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _portions(records: Iterable[Sealed]) -> Iterator[list[tuple[Any, ...]]]:
    rows = (_values(sealed) for sealed in records)
    while portion := list(islice(rows, _ROWS)):
        yield portion


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise Rejected(
            Problem(
                code="SH973",
                what="Parquet files are written with pyarrow, which isn't installed",
                remedy="Install it with `pip install 'shunter[parquet]'`, or export JSON Lines, which every tool for Parquet reads",
            )
        ) from None
