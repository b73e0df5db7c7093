"""What the engine must remember: operations, plans carried out, its epoch, and the fleet as it last was.

When the disk takes no writes, nothing voluntary begins, and what of it is under way comes to an end: back to where it was, or on if it is
committed. That, and what is involuntary, is in memory then (`act.durable`).
"""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from shunter.act.beyond import Beyond, Remembered, pack, unpack
from shunter.act.durable import Durable, transaction
from shunter.act.kept import Kept
from shunter.model.canon import decode, encode
from shunter.model.errors import Problem, Rejected, Stalled
from shunter.model.ids import Digest, Epoch, NodeId, OperationId, WorkerId
from shunter.model.operation import EngineState, OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind
from shunter.model.snapshot import Fleet, Notice

T = TypeVar("T")

SCHEMA: Final = 2
"""1: the fleet wasn't compressed. It is read as well."""
_NONE: Final[Mapping[WorkerId, frozenset[NodeId]]] = {}
_RECENT: Final = 3600.0
"""Seconds that ended operations stay in the engine's state."""
_AHEAD: Final = frozenset({Step.INTENDED, Step.PREPARED, Step.FENCED, Step.FROZEN, Step.HELD, Step.COMMITTING})
"""Steps that license a next effect on the way to the commit, or the commit itself: of what is voluntary they are durable, or not done."""
ENDING: Final = frozenset(Step) - _AHEAD | {Step.COMMITTING}
"""Steps at which an operation, whatever its lane, has but to come to its end: it is committed, or goes back."""
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
CREATE TABLE IF NOT EXISTS noticed (one INTEGER PRIMARY KEY CHECK (one = 1), body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS ended (worker TEXT PRIMARY KEY, operation TEXT NOT NULL, at REAL NOT NULL) STRICT;
"""


class Store(Durable):
    """See the module. Every method that writes raises Stalled SH501 when the disk doesn't take it, unless it goes on in memory.

    Nothing voluntary may start unless `healthy`, or after `probe`. `gate` is what else must hold for that: the audit's disk, for one.
    """

    def __init__(
        self, path: Path, *, busy_s: float = 5.0, read_only: bool = False, wal_pages: int = 1000, beyond: Beyond | None = None
    ) -> None:
        """Open or make it (0600). `busy_s`: how long to wait for another process's lock. With `read_only` it must be there, and nothing
        of it is changed, so that it can be looked at while an engine works on it. `wal_pages`: how long the write-ahead log may grow before
        it is brought into the file. `beyond` None: the disk is enough. Raises Stalled SH501, SH502 (newer format).
        """
        super().__init__(path, _TABLES, _RECENT, busy_s=busy_s, read_only=read_only, wal_pages=wal_pages, beyond=beyond)
        self._kept: Kept | None = None
        """None: they are to be read; and always where another process writes."""
        self._writes = not read_only
        found = self._meta("schema") if self.begun else 0
        self._refuse_newer(found)
        if self._writes and found < SCHEMA:
            self._write(self._make)

    @property
    def begun(self) -> bool:
        """An engine has made its tables."""
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name='meta'"))

    def _make(self) -> None:
        """All of it as one: who looks at the store of an engine that is just starting finds a whole one, or none."""
        for statement in _TABLES.split(";"):
            self._change(statement)
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

    def rebase(self, epoch: Epoch, records: Iterable[OperationRecord], fleet: Remembered | None) -> None:
        """Begin an epoch with these operations instead of those that are here: `beyond` is where it is known what became of them. Which
        workers were ended on purpose is worked out anew. The fleet is taken over if it is newer than what is remembered here. Raises
        Stalled SH501.
        """

        def work() -> None:
            self._set_meta("epoch", epoch)
            here = self.load_fleet()
            if fleet is not None and (here is None or here.at < fleet.at):
                self._put_fleet(pack(fleet))
            self._change("DELETE FROM operations")
            self._change("DELETE FROM ended")
            for record in sorted(records, key=lambda r: (r.outcome.at if r.outcome else float("inf"), r.created_at)):
                self._put(record)
                if record.outcome is not None:
                    self._note_end(record, record.outcome)

        try:
            transaction(self._db, work)
        except (OSError, sqlite3.Error) as error:
            raise self._stalled(error) from error
        finally:
            self._touched.clear()
            self._kept = None

    # -- operations

    def insert(self, records: Iterable[OperationRecord]) -> None:
        """Make intents durable, all or none; in memory if one of them is involuntary. Raises Rejected SH503 if one of the operations exists
        already: no order is given twice.
        """
        batch = tuple(records)
        self._write(lambda: self._insert(batch), lambda: any(_urgent(record) for record in batch))

    def accept(self, plan: Digest, at: float, records: Iterable[OperationRecord]) -> None:
        """Note that a plan is being carried out and make its intents durable, all or none, and on the disk alone: what a person has ordered
        must not be forgotten. Raises Rejected SH504 if the plan was carried out before, SH503 if one of its operations was.
        """
        batch = tuple(records)

        def work() -> None:
            self._consume(plan, at)
            self._insert(batch)

        self._write(work)

    def advance(
        self,
        operation: OperationId,
        step: Step,
        at: float,
        *,
        by: Step | None = None,
        **changes: Any,  # noqa: ANN401  (record fields)
    ) -> OperationRecord:
        """Note that it has come to `step`, on disk before this returns; in memory if need be when it is involuntary, or this leads to its
        end. `by` is a step that it has come by at the same time. `changes` are other fields of the record.

        A step that it is at already gets no second line in its history. Raises Rejected SH505 (never heard of it), SH506 (it has ended).
        """

        def work() -> OperationRecord:
            record = self._open(operation)
            passed = record.history if by is None else (*record.history, (by, at))
            history = passed if record.step is step and record.history else (*passed, (step, at))
            record = msgspec.structs.replace(record, step=step, history=history, **changes)
            self._put(record)
            return record

        return self._write(work, lambda: _may_be_volatile(self._open(operation), step))

    def finish(self, operation: OperationId, outcome: Outcome) -> OperationRecord:
        """Note how it ended; in memory if need be, as no effect follows. Raises Rejected SH505, SH506 as `advance` does."""

        def work() -> OperationRecord:
            record = msgspec.structs.replace(self._open(operation), outcome=outcome, outstanding=None)
            self._put(record)
            self._note_end(record, outcome)
            return record

        return self._write(work, _always)

    def adopt(self, epoch: Epoch) -> tuple[OperationRecord, ...]:
        """Take over under `epoch` what earlier leaders left unfinished; in memory if need be. The active operations, oldest first."""

        def work() -> None:
            for record in self.active():
                self._put(msgspec.structs.replace(record, epoch=epoch))

        self._write(work, _always)
        return self.active()

    def get(self, operation: OperationId) -> OperationRecord | None:
        """None when there never was one."""
        if self._kept is not None and (known := self._kept.get(operation)) is not None:
            return known
        row = self._look_up("SELECT body FROM operations WHERE id=?", operation)
        return decode(row[0], OperationRecord) if row else None

    def active(self) -> tuple[OperationRecord, ...]:
        """Operations without an outcome, oldest first; those begun at one time in the order in which they were inserted."""
        return self._kept.active() if self._kept is not None else self._under_way()

    def recent(self, since: float) -> tuple[OperationRecord, ...]:
        """Operations that ended at `since` (seconds since the epoch) or later, newest last."""
        if self._kept is not None and since >= self._kept.since:
            return self._kept.recent(since)
        return self._records("ended_at >= ? ORDER BY ended_at, id", since)

    def state(self, now: float) -> EngineState:
        """What `evaluate` has to know of the engine: what is under way, and what ended in the last hour. What hasn't changed since the last
        time is the very same.
        """
        since = now - _RECENT
        if self._kept is None and self._writes:
            self._kept = Kept(since, self._records("ended_at IS NULL ORDER BY rowid"), self.recent(since))
        elif self._kept is not None:
            self._kept.forget(since)
        return EngineState(active=self.active(), recent=self.recent(now - _RECENT))

    # -- plans, epoch, fleet

    def consume(self, plan: Digest, at: float) -> None:
        """Note that a plan is being carried out; in memory if need be. Raises Rejected SH504 if it was before."""
        self._write(lambda: self._consume(plan, at), _always)

    def consumed(self, plan: Digest) -> bool:
        """The plan was carried out, or begun to be, within the last 30 days."""
        return self._look_up("SELECT 1 FROM plans WHERE digest=?", plan) is not None

    @property
    def epoch(self) -> Epoch:
        """The highest epoch that an engine on this store had; 0 before the first."""
        return Epoch(self._meta("epoch"))

    def next_epoch(self) -> Epoch:
        """Begin a new epoch, durably."""

        def work() -> Epoch:
            epoch = self._meta("epoch") + 1
            self._set_meta("epoch", epoch)
            return Epoch(epoch)

        return self._write(work)

    def save_fleet(
        self,
        fleet: Fleet,
        notices: tuple[Notice, ...],
        at: float,
        packed: bytes | None = None,
        *,
        namesakes: Mapping[WorkerId, frozenset[NodeId]] = _NONE,
    ) -> None:
        """Remember the fleet, so that a restarted engine knows its parked and lost workers; in memory if need be. `packed` is what
        `beyond.pack` makes of all the others; None: it is made here.
        """
        remembered = Remembered(at=at, fleet=fleet, notices=notices, namesakes=namesakes)
        body = packed if packed is not None else pack(remembered)
        self._write(lambda: self._put_fleet(body), _always)
        if self._beyond is not None:
            self._beyond.remember(remembered)

    def save_notices(
        self, fleet: Fleet, notices: tuple[Notice, ...], at: float, *, namesakes: Mapping[WorkerId, frozenset[NodeId]] = _NONE
    ) -> None:
        """Remember these with a fleet in which nothing has changed its place since `save_fleet`, and with the same `namesakes`. In memory
        if need be.
        """
        body = encode(notices)
        self._write(lambda: self._change("INSERT OR REPLACE INTO noticed VALUES (1, ?)", body), _always)
        if self._beyond is not None:
            self._beyond.remember(Remembered(at=at, fleet=fleet, notices=notices, namesakes=namesakes))

    def load_fleet(self) -> Remembered | None:
        """What `save_fleet` was last given, with the notices of a later `save_notices`; None before the first time. Raises Stalled SH501
        where that can't be read.
        """
        rows = self._rows("SELECT body FROM fleet")
        try:
            remembered = unpack(rows[0][0]) if rows else None
        except (zlib.error, msgspec.MsgspecError) as error:
            raise self._stalled(error) from error
        if remembered is None or not self._rows(
            "SELECT 1 FROM sqlite_master WHERE name='noticed'"
        ):  # written before there was such a table
            return remembered
        newer = self._rows("SELECT body FROM noticed")
        return msgspec.structs.replace(remembered, notices=decode(newer[0][0], tuple[Notice, ...])) if newer else remembered

    def ended(self) -> frozenset[WorkerId]:
        """Workers that were drained or parked and not brought back since: they aren't lost, they were ended on purpose."""
        return frozenset(WorkerId(row[0]) for row in self._rows("SELECT worker FROM ended"))

    # -- inner parts

    def _written(self) -> None:
        if self._kept is not None:
            self._kept.put(self._touched.values())

    def _doubted(self) -> None:
        self._kept = None

    def _put_fleet(self, body: bytes) -> None:
        self._change("INSERT OR REPLACE INTO fleet VALUES (1, ?)", body)
        self._change("DELETE FROM noticed")  # by what came last, and not by clocks

    def _under_way(self) -> tuple[OperationRecord, ...]:
        return self._records("ended_at IS NULL ORDER BY created_at, rowid")

    def _insert(self, batch: Iterable[OperationRecord]) -> None:
        for record in batch:
            if self._look_up("SELECT 1 FROM operations WHERE id=?", record.id):
                raise Rejected(
                    Problem(
                        code="SH503",
                        what="this operation was begun before",
                        remedy="Nothing to do: it is done once. A new plan makes a new operation if there is still a need",
                        subject=record.id,
                    )
                )
            self._put(record)

    def _consume(self, plan: Digest, at: float) -> None:
        if self.consumed(plan):
            raise Rejected(
                Problem(
                    code="SH504",
                    what="this plan was carried out before",
                    remedy="Make a new plan: the fleet isn't what it was when this one was made",
                    subject=plan,
                )
            )
        self._change("DELETE FROM plans WHERE at < ?", at - _PLANS_KEPT)
        self._change("INSERT INTO plans VALUES (?, ?)", plan, at)

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
            self._change("INSERT OR REPLACE INTO ended VALUES (?, ?, ?)", record.planned.worker, record.id, outcome.at)
        elif record.planned.kind is OperationKind.RESTORE:
            self._change("DELETE FROM ended WHERE worker=?", record.planned.worker)

    def _put(self, record: OperationRecord) -> None:
        self._touched[record.id] = record
        self._change(
            "INSERT INTO operations VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
            " status=excluded.status, step=excluded.step, ended_at=excluded.ended_at, body=excluded.body",
            record.id,
            record.status.value,
            record.step.value,
            record.planned.worker,
            record.created_at,
            record.outcome.at if record.outcome else None,
            encode(record),
        )

    def _records(self, where: str, *values: float) -> tuple[OperationRecord, ...]:
        return tuple(decode(row[0], OperationRecord) for row in self._rows(f"SELECT body FROM operations WHERE {where}", *values))  # noqa: S608


@contextmanager
def looked_at(path: Path) -> Iterator[Store | None]:
    """A store that isn't to be changed, whatever an engine does to it meanwhile. None where none has begun it: there is no file, or nothing
    in it yet. Raises Stalled SH501, SH502.
    """
    if not path.exists():
        yield None
        return
    with closing(Store(path, read_only=True)) as store:
        yield store if store.begun else None


def _always() -> bool:
    return True


def _urgent(record: OperationRecord) -> bool:
    return record.planned.lane == "involuntary"


def _may_be_volatile(record: OperationRecord, to: Step) -> bool:
    """Nobody is left dead or out of the router's sight for as long as a disk is: what was begun may come to its end. A word on the step at
    which it is (why it waits, that it is given up) licenses nothing new either, unless that step is its beginning.
    """
    if _urgent(record) or to not in _AHEAD or any(step in ENDING for step, _ in record.history):
        return True
    return to is record.step and not record.waits
