"""The agent's own durable journal: what it was ordered, what came of it, and what it must know after a SIGKILL.

SQLite in WAL mode with synchronous FULL: what a method wrote is on disk when it returns. Used from one thread.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
from shunter.model.canon import decode, encode
from shunter.model.errors import Problem, Stalled
from shunter.model.standing import Stood

from shunter_agent.runtime.port import Process, WorkerSpec

T = TypeVar("T")
SCHEMA: Final = 1
State = Literal["begun", "done", "failed", "undone"]
"""`undone`: it was done, and was taken back since (a hold ended, a rollback): the same order is carried out anew."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an operation here. `reply` is a done step's serialised answer; `at` (seconds since the epoch) is of its last change."""

    operation: str
    step: str
    state: State
    at: float
    worker: str
    reply: bytes = b""
    detail: str = ""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that lives here. `operation` is the one that it is in, with the epoch of its last order; empty: none."""

    spec: WorkerSpec
    process: Process
    slot: str
    incarnation: int
    state: Literal["running", "fenced", "frozen"] = "running"
    operation: str = ""
    epoch: int = 0
    stopped: tuple[int, ...] = ()
    """Pids of its tree that somebody else had stopped before it was last made to stand still: they stay so when it runs on."""
    doubt: str = ""
    """Why nothing that it computed is to be trusted, nor any image of it; empty: nothing is known against it. See `notices.doubts`."""
    doubted: float = 0.0
    """Since when, in seconds since the machine's start. 0: all along, as the image was that it came from."""
    begun: bool = True
    """False: it is about to be let run for the first time. If its process is dead, it never ran, and may be started yet."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A slot kept for a worker on its way here. `process` is its held copy, None while there is none."""

    slot: str
    operation: str
    epoch: int
    spec: WorkerSpec
    incarnation: int
    at: float
    process: Process | None = None
    doubt: str = ""
    """What is known against the image that the copy is from."""

    @property
    def worker_id(self) -> str:
        """The worker that it is for."""
        return self.spec.worker


_TABLES: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS steps (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, operation TEXT NOT NULL, step TEXT NOT NULL, worker TEXT NOT NULL, state TEXT NOT NULL,
  at REAL NOT NULL, reply BLOB NOT NULL, detail TEXT NOT NULL, UNIQUE (operation, step)
) STRICT;
CREATE TABLE IF NOT EXISTS workers (id TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS reservations (slot TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS started (worker TEXT PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS standing (one INTEGER PRIMARY KEY CHECK (one = 1), body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS words (notice TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS stood (operation TEXT PRIMARY KEY, at REAL NOT NULL, body BLOB NOT NULL) STRICT;
"""
_COLUMNS: Final = "operation, step, state, at, worker, reply, detail"
_LEFT: Final = "(step='freeze' OR step LIKE 'send:%') AND state<>'failed'"
"""A step by which an image may have left this node."""


class Journal:
    """See the module. Every write raises Stalled SH610 when the disk doesn't take it: nothing is done that isn't journaled first."""

    def __init__(self, path: Path) -> None:
        """Open or make it (0600). Raises Stalled SH610 (can't be opened), SH611 (written by a newer agent)."""
        self._path = path
        self._depth = 0
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None, timeout=5)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            raise self._stalled(error) from error
        found = self._meta("schema")
        if found > SCHEMA:
            raise Stalled(
                Problem(
                    code="SH611",
                    what=f"the journal has format {found}, this agent knows up to {SCHEMA}",
                    remedy="Run the newer agent, or move the state directory away once no worker runs here",
                    subject=str(path),
                )
            )
        self._set_meta("schema", SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """All writes inside become durable together, or none does."""
        try:
            if self._depth == 0:
                self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
        except sqlite3.Error as error:
            self._roll_back()
            raise self._stalled(error) from error
        except BaseException:
            self._roll_back()
            raise
        if self._depth == 0:
            try:
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise self._stalled(error) from error

    # -- the epoch

    @property
    def epoch(self) -> int:
        """The highest epoch that any order had; 0 before the first."""
        return self._meta("epoch")

    def raise_epoch(self, epoch: int) -> None:
        """Remember a higher epoch; a lower one changes nothing."""
        if epoch > self.epoch:
            self._set_meta("epoch", epoch)

    # -- steps

    def begin(self, operation: str, step: str, worker: str, at: float) -> None:
        """The step is going to be done. Forgets how it went before."""
        self._write(Entry(operation=operation, step=step, state="begun", at=at, worker=worker))

    def done(self, operation: str, step: str, worker: str, at: float, reply: bytes, detail: str = "") -> None:
        """The step is done, and this is its answer from now on."""
        self._write(Entry(operation=operation, step=step, state="done", at=at, worker=worker, reply=reply, detail=detail))

    def failed(self, operation: str, step: str, worker: str, at: float, problem: Problem) -> None:
        """The step was refused or failed, and left things as they were."""
        detail = f"{problem.code} {problem.what}"
        self._write(Entry(operation=operation, step=step, state="failed", at=at, worker=worker, detail=detail))

    def undo(self, operation: str, steps: tuple[str, ...], at: float, detail: str) -> None:
        """What these steps did is taken back: ordered again, they are carried out again."""
        with self.batch():
            for step in steps:
                self._db.execute(
                    "UPDATE steps SET state='undone', at=?, detail=?, reply=x''"
                    " WHERE operation=? AND step=? AND state IN ('done', 'begun')",
                    (at, detail, operation, step),
                )

    def entry(self, operation: str, step: str) -> Entry | None:
        """None when this agent never was ordered it."""
        return next(iter(self._entries("operation=? AND step=?", operation, step)), None)

    def entries(self, operation: str) -> tuple[Entry, ...]:
        """All steps of an operation here, oldest first."""
        return self._entries("operation=?", operation)

    def last_of(self, worker: str, steps: tuple[str, ...]) -> Entry | None:
        """The newest of these steps that was ordered about a worker, whatever came of it. None: none was."""
        named = ", ".join("?" * len(steps))
        return next(iter(self._entries(f"worker=? AND step IN ({named})", worker, *steps)[-1:]), None)

    def open_steps(self) -> tuple[Entry, ...]:
        """Steps that were begun and have no end yet, oldest first."""
        return self._entries("state='begun'")

    def forget_before(self, at: float) -> None:
        """Drop the steps of operations whose last change is older, but none that is still open. Of each worker that was started here or
        lives here one step by which an image of it may be elsewhere is kept: for how long another node has that, nobody here knows.
        """
        with self.batch():
            self._db.execute(
                "DELETE FROM steps WHERE operation IN"  # noqa: S608  (constants)
                " (SELECT operation FROM steps GROUP BY operation HAVING max(at) < ? AND sum(state='begun') = 0)"
                f" AND seq NOT IN (SELECT max(seq) FROM steps WHERE {_LEFT}"
                " AND (worker IN (SELECT id FROM workers) OR worker IN (SELECT worker FROM started)) GROUP BY worker)",
                (at,),
            )
            self._db.execute("DELETE FROM stood WHERE at < ?", (at,))

    # -- workers and slots

    def workers(self) -> dict[str, WorkerRow]:
        """All workers that live here, by id."""
        rows = self._db.execute("SELECT id, body FROM workers ORDER BY id")
        return {row[0]: msgspec.json.decode(row[1], type=WorkerRow) for row in rows}

    def worker(self, worker: str) -> WorkerRow | None:
        """None when it doesn't live here."""
        return self.workers().get(worker)

    def put_worker(self, row: WorkerRow) -> None:
        """Add or replace it."""
        with self.batch():
            self._db.execute("INSERT OR REPLACE INTO workers VALUES (?, ?)", (row.spec.worker, msgspec.json.encode(row)))

    def drop_worker(self, worker: str) -> None:
        """It lives here no more."""
        with self.batch():
            self._db.execute("DELETE FROM workers WHERE id=?", (worker,))

    def reservations(self) -> dict[str, Reservation]:
        """All reservations, by slot."""
        rows = self._db.execute("SELECT slot, body FROM reservations ORDER BY slot")
        return {row[0]: msgspec.json.decode(row[1], type=Reservation) for row in rows}

    def reservation(self, operation: str) -> Reservation | None:
        """What an operation has reserved here, or None."""
        return next((kept for kept in self.reservations().values() if kept.operation == operation), None)

    def put_reservation(self, reservation: Reservation) -> None:
        """Add or replace it."""
        with self.batch():
            self._db.execute("INSERT OR REPLACE INTO reservations VALUES (?, ?)", (reservation.slot, msgspec.json.encode(reservation)))

    def drop_reservation(self, slot: str) -> None:
        """The slot is free again."""
        with self.batch():
            self._db.execute("DELETE FROM reservations WHERE slot=?", (slot,))

    def started(self, worker: str) -> bool:
        """Whether it was ever started natively from this node's settings: then it isn't again, as it may run elsewhere by now."""
        return self._db.execute("SELECT 1 FROM started WHERE worker=?", (worker,)).fetchone() is not None

    def note_started(self, worker: str) -> None:
        """Remember a native start."""
        with self.batch():
            self._db.execute("INSERT OR IGNORE INTO started VALUES (?)", (worker,))

    def forget_started(self, worker: str) -> None:
        """Whatever was noted of it, it may be begun with here once more."""
        with self.batch():
            self._db.execute("DELETE FROM started WHERE worker=?", (worker,))

    # -- what is to be done without an engine

    def standing(self) -> bytes | None:
        """The standing order as it came, or None."""
        row = self._db.execute("SELECT body FROM standing").fetchone()
        return bytes(row[0]) if row else None

    def put_standing(self, order: bytes) -> None:
        """Keep it in the place of the one before."""
        with self.batch():
            self._db.execute("INSERT OR REPLACE INTO standing VALUES (1, ?)", (order,))

    def stood(self) -> dict[str, Stood]:
        """What was done under standing orders, by operation, oldest first."""
        rows = self._db.execute("SELECT operation, body FROM stood ORDER BY at, operation")
        return {row[0]: decode(bytes(row[1]), Stood) for row in rows}

    def put_stood(self, stood: Stood) -> None:
        """Add or replace it."""
        with self.batch():
            self._db.execute("INSERT OR REPLACE INTO stood VALUES (?, ?, ?)", (stood.operation, stood.at, encode(stood)))

    # -- what was told of this node's end (see `word`)

    def words(self) -> list[bytes]:
        """All that may still count."""
        return [bytes(row[0]) for row in self._db.execute("SELECT body FROM words ORDER BY notice")]

    def put_word(self, notice: str, body: bytes) -> None:
        """Add or replace it."""
        with self.batch():
            self._db.execute("INSERT OR REPLACE INTO words VALUES (?, ?)", (notice, body))

    def drop_word(self, notice: str) -> None:
        """It counts no more."""
        with self.batch():
            self._db.execute("DELETE FROM words WHERE notice=?", (notice,))

    @property
    def presumed(self) -> float:
        """For how many seconds a node must be silent to be taken for dead, as an engine last said; 0: none has."""
        return self._meta("presumed_ms") / 1000

    def note_presumed(self, seconds: float) -> None:
        """An engine has said so."""
        self._set_meta("presumed_ms", round(seconds * 1000))

    def may_be_elsewhere(self, worker: str) -> bool:
        """Whether an image of the worker, as it was started here, may have left this node: it was frozen for another, or one was sent, and
        nobody said that it failed.
        """
        found = f"SELECT 1 FROM steps WHERE worker=? AND {_LEFT}"  # noqa: S608  (constants)
        return self._db.execute(found, (worker,)).fetchone() is not None

    def left(self, worker: str) -> tuple[Entry, ...]:
        """What was done about a worker by which an image of it may have left this node, as far back as the journal goes; oldest first."""
        return self._entries(f"worker=? AND state='done' AND {_LEFT}", worker)

    # -- inner parts

    def _entries(self, where: str, *values: str) -> tuple[Entry, ...]:
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM steps WHERE {where} ORDER BY seq", values)  # noqa: S608  (constants)
        return tuple(msgspec.convert(dict(zip(_COLUMNS.split(", "), row, strict=True)), Entry) for row in rows)

    def _write(self, entry: Entry) -> None:
        with self.batch():
            self._db.execute(
                f"INSERT OR REPLACE INTO steps ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608  (constants)
                (entry.operation, entry.step, entry.state, entry.at, entry.worker, entry.reply, entry.detail),
            )

    def _meta(self, key: str) -> int:
        row = self._db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return int(row[0]) if row else 0

    def _set_meta(self, key: str, value: int) -> None:
        with self.batch():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # what it undoes has failed already, and that is the error to tell
            if self._depth == 0 and self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _stalled(self, error: Exception) -> Stalled:
        return Stalled(
            Problem(
                code="SH610",
                what=f"the agent's journal can't be written: {error}",
                remedy="Free disk space or mend the state directory; until then no order is carried out here",
                subject=str(self._path),
            )
        )
