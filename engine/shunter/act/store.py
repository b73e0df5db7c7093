"""What the engine must remember: operations, plans carried out, its epoch, and the fleet as it last was.

SQLite in WAL mode with synchronous FULL: what a method wrote is on disk when it returns. Used from one thread.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from shunter.model.canon import decode, encode
from shunter.model.errors import Problem, Rejected, Stalled
from shunter.model.ids import Digest, Epoch, OperationId, WorkerId
from shunter.model.operation import EngineState, OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind
from shunter.model.snapshot import Fleet, Notice

SCHEMA: Final = 1
_RECENT: Final = 3600.0
"""Seconds that ended operations stay in the engine's state."""
_PLANS_KEPT: Final = 30 * 86400.0
"""Seconds that a plan is remembered as carried out. Its operations are remembered for good."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS operations (
  id TEXT PRIMARY KEY, status TEXT NOT NULL, step TEXT NOT NULL, worker TEXT NOT NULL, created_at REAL NOT NULL, ended_at REAL,
  body BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS operations_ended ON operations (ended_at);
CREATE TABLE IF NOT EXISTS plans (digest TEXT PRIMARY KEY, at REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS fleet (one INTEGER PRIMARY KEY CHECK (one = 1), body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS ended (worker TEXT PRIMARY KEY, operation TEXT NOT NULL, at REAL NOT NULL) STRICT;
"""


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet and notices as they last were, and when (seconds since the epoch)."""

    at: float
    fleet: Fleet
    notices: tuple[Notice, ...] = ()


class Store:
    """See the module. Every method that writes raises Stalled SH501 when the disk doesn't take it.

    `healthy` is False from a write that failed until one succeeds; nothing voluntary may start meanwhile (see `probe`).
    """

    def __init__(self, path: Path, *, busy_s: float = 5.0, read_only: bool = False) -> None:
        """Open or make it (0600). `busy_s`: how long to wait for another process's lock. With `read_only` it must be there, and nothing
        of it is changed, so that it can be looked at while an engine works on it. Raises Stalled SH501, SH502 (newer format).
        """
        self.path = path
        self.healthy = True
        try:
            if read_only:
                self._db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=busy_s)
                self._refuse_newer(self._meta("schema"))
                return
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None, timeout=busy_s)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            raise self._stalled(error) from error
        found = self._meta("schema")
        self._refuse_newer(found)
        if found < SCHEMA:
            with self._writing():
                self._set_meta("schema", SCHEMA)

    def _refuse_newer(self, found: int) -> None:
        if found > SCHEMA:
            self._db.close()
            raise Stalled(
                Problem(
                    code="SH502",
                    what=f"the engine's store has format {found}, this engine knows up to {SCHEMA}",
                    remedy="Run the newer engine; an older one can't tell what it would overlook",
                    subject=str(self.path),
                )
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def probe(self) -> bool:
        """Try a durable write, and say whether it succeeded; `healthy` is set to it."""
        try:
            with self._writing():
                self._set_meta("probe", self._meta("probe") + 1)
        except Stalled:
            return False
        return True

    # -- operations

    def insert(self, records: Iterable[OperationRecord]) -> None:
        """Make intents durable, all or none. Raises Rejected SH503 if one of the operations exists already: no order is given twice."""
        with self._writing():
            for record in records:
                if self._db.execute("SELECT 1 FROM operations WHERE id=?", (record.id,)).fetchone():
                    raise Rejected(
                        Problem(
                            code="SH503",
                            what="this operation was begun before",
                            remedy="Nothing to do: it is done once. A new plan makes a new operation if there is still a need",
                            subject=record.id,
                        )
                    )
                self._put(record)

    def advance(self, operation: OperationId, step: Step, at: float, **changes: Any) -> OperationRecord:  # noqa: ANN401  (record fields)
        """Note that it has come to `step`, on disk before this returns. `changes` are other fields of the record.

        A step that it is at already gets no second line in its history. Raises Rejected SH505 (never heard of it), SH506 (it has ended).
        """
        with self._writing():
            record = self._open(operation)
            history = record.history if record.step is step and record.history else (*record.history, (step, at))
            record = msgspec.structs.replace(record, step=step, history=history, **changes)
            self._put(record)
        return record

    def finish(self, operation: OperationId, outcome: Outcome) -> OperationRecord:
        """Note how it ended. Raises Rejected SH505, SH506 as `advance` does."""
        with self._writing():
            record = msgspec.structs.replace(self._open(operation), outcome=outcome)
            self._put(record)
            self._note_end(record, outcome)
        return record

    def adopt(self, epoch: Epoch) -> tuple[OperationRecord, ...]:
        """Take what earlier leaders left unfinished over under `epoch`. The active operations as they then are, oldest first."""
        with self._writing():
            for record in self.active():
                self._put(msgspec.structs.replace(record, epoch=epoch))
        return self.active()

    def get(self, operation: OperationId) -> OperationRecord | None:
        """None when there never was one."""
        row = self._db.execute("SELECT body FROM operations WHERE id=?", (operation,)).fetchone()
        return decode(row[0], OperationRecord) if row else None

    def active(self) -> tuple[OperationRecord, ...]:
        """Operations without an outcome, oldest first; those begun at one time in the order in which they were inserted."""
        return self._records("ended_at IS NULL ORDER BY created_at, rowid")

    def recent(self, since: float) -> tuple[OperationRecord, ...]:
        """Operations that ended at `since` (seconds since the epoch) or later, newest last."""
        return self._records("ended_at >= ? ORDER BY ended_at, id", since)

    def state(self, now: float) -> EngineState:
        """What `evaluate` has to know of the engine: what is under way, and what ended in the last hour."""
        return EngineState(active=self.active(), recent=self.recent(now - _RECENT))

    # -- plans, epoch, fleet

    def consume(self, plan: Digest, at: float) -> None:
        """Note that a plan is being carried out. Raises Rejected SH504 if it was before."""
        with self._writing():
            if self._db.execute("SELECT 1 FROM plans WHERE digest=?", (plan,)).fetchone():
                raise Rejected(
                    Problem(
                        code="SH504",
                        what="this plan was carried out before",
                        remedy="Make a new plan: the fleet isn't what it was when this one was made",
                        subject=plan,
                    )
                )
            self._db.execute("DELETE FROM plans WHERE at < ?", (at - _PLANS_KEPT,))
            self._db.execute("INSERT INTO plans VALUES (?, ?)", (plan, at))

    @property
    def epoch(self) -> Epoch:
        """The highest epoch that an engine on this store had; 0 before the first."""
        return Epoch(self._meta("epoch"))

    def next_epoch(self) -> Epoch:
        """Begin a new epoch, durably."""
        with self._writing():
            epoch = self._meta("epoch") + 1
            self._set_meta("epoch", epoch)
        return Epoch(epoch)

    def save_fleet(self, fleet: Fleet, notices: tuple[Notice, ...], at: float) -> None:
        """Remember the fleet, so that a restarted engine knows its parked and lost workers."""
        with self._writing():
            body = encode(Remembered(at=at, fleet=fleet, notices=notices))
            self._db.execute("INSERT OR REPLACE INTO fleet VALUES (1, ?)", (body,))

    def load_fleet(self) -> Remembered | None:
        """What `save_fleet` was last given; None before the first time."""
        row = self._db.execute("SELECT body FROM fleet").fetchone()
        return decode(row[0], Remembered) if row else None

    def ended(self) -> frozenset[WorkerId]:
        """Workers that were drained or parked and not brought back since: they aren't lost, they were ended on purpose."""
        return frozenset(WorkerId(row[0]) for row in self._db.execute("SELECT worker FROM ended"))

    # -- inner parts

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            self._roll_back()
            self.healthy = False
            raise self._stalled(error) from error
        except BaseException:
            self._roll_back()
            raise
        self.healthy = True

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            self.healthy = False

    def _open(self, operation: OperationId) -> OperationRecord:
        record = self.get(operation)
        if record is None:
            raise Rejected(
                Problem(code="SH505", what="there is no such operation", remedy="Look at the list of operations", subject=operation)
            )
        if record.outcome is not None:
            raise Rejected(
                Problem(
                    code="SH506",
                    what=f"this operation has ended: {record.outcome.status.value}",
                    remedy="Nothing to do: what has ended isn't changed",
                    subject=operation,
                )
            )
        return record

    def _note_end(self, record: OperationRecord, outcome: Outcome) -> None:
        if outcome.status is not Status.SUCCEEDED:
            return
        if record.planned.kind in (OperationKind.DRAIN, OperationKind.PARK):
            self._db.execute("INSERT OR REPLACE INTO ended VALUES (?, ?, ?)", (record.planned.worker, record.id, outcome.at))
        elif record.planned.kind is OperationKind.RESTORE:
            self._db.execute("DELETE FROM ended WHERE worker=?", (record.planned.worker,))

    def _put(self, record: OperationRecord) -> None:
        self._db.execute(
            "INSERT INTO operations VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
            " status=excluded.status, step=excluded.step, ended_at=excluded.ended_at, body=excluded.body",
            (
                record.id,
                record.status.value,
                record.step.value,
                record.planned.worker,
                record.created_at,
                record.outcome.at if record.outcome else None,
                encode(record),
            ),
        )

    def _records(self, where: str, *values: float) -> tuple[OperationRecord, ...]:
        rows = self._db.execute(f"SELECT body FROM operations WHERE {where}", values)  # noqa: S608  (constants)
        return tuple(decode(row[0], OperationRecord) for row in rows)

    def _meta(self, key: str) -> int:
        row = self._db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return int(row[0]) if row else 0

    def _set_meta(self, key: str, value: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _stalled(self, error: Exception) -> Stalled:
        return Stalled(
            Problem(
                code="SH501",
                what=f"the engine's store can't be written: {error}",
                remedy="Free disk space or mend the state directory; until then nothing voluntary starts",
                subject=str(self.path),
            )
        )
