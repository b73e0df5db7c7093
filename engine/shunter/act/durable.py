"""A SQLite database in WAL mode with synchronous FULL: what a write did is on the disk when it returns. Used from one thread.

While the disk takes no writes, what can't wait is done in memory (`act.volatile`): not durable, and whoever holds the database must say so
(`unwritten`). `recover` brings it to the disk, in order and as a whole, as soon as there is one again.

With a `beyond`, operations are durable only when they are there as well: it is another place from which a next engine goes on, elsewhere.
What it can't take is what the disk can't take.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from shunter.act.beyond import Beyond, Deposed
from shunter.act.volatile import Volatile
from shunter.model.errors import Problem, Stalled
from shunter.model.ids import OperationId
from shunter.model.operation import OperationRecord

T = TypeVar("T")


_AGAIN_S: Final = 0.01
"""Between two tries to change a file's mode."""


class Durable:
    """See the module. What `Store` keeps, and the words for it, is `Store`'s."""

    def __init__(
        self, path: Path, tables: str, recent: float, *, busy_s: float, read_only: bool, wal_pages: int, beyond: Beyond | None
    ) -> None:
        """Open or make the file (0600); what is in it is looked at by whoever knows its tables. `tables` and `recent` as in `Volatile`, all
        others as in `Store`. Raises Stalled SH501.
        """
        self.path = path
        self._tables, self._recent = tables, recent
        self._beyond = beyond
        self._touched: dict[OperationId, OperationRecord] = {}
        """Operations that the transaction under way has written."""
        self._owed: dict[OperationId, OperationRecord] = {}
        """Operations that are in memory only, as they are now."""
        self.gate: Callable[[], bool] = lambda: True
        """What else must hold for something voluntary to start."""
        self._memory: Volatile | None = None
        self._why: Problem | None = None
        try:
            if read_only:
                self._db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=busy_s)
            else:
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
                self._db = sqlite3.connect(path, isolation_level=None, timeout=busy_s)
                _into_wal_mode(self._db, busy_s)
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.execute(f"PRAGMA wal_autocheckpoint={wal_pages}")
        except (OSError, sqlite3.Error) as error:
            raise self._stalled(error) from error

    def close(self) -> None:
        """Close the file. What is in memory only is lost: see `unwritten`."""
        if self._memory is not None:
            self._memory.close()
        self._db.close()

    @property
    def healthy(self) -> bool:
        """Writes reach the disk, as far as is known, and the gate is open."""
        return self.problem is None and self.gate()

    @property
    def elsewhere(self) -> bool:
        """A next engine may go on from another place than this disk."""
        return self._beyond is not None

    @property
    def problem(self) -> Problem | None:
        """Why the last write didn't reach the disk; None when it did."""
        return self._why

    @property
    def unwritten(self) -> int:
        """How many changes are in memory only."""
        return 0 if self._memory is None else len(self._memory.redo)

    def probe(self) -> bool:
        """Whether something voluntary may start: the gate is open, and a durable write succeeds."""
        return self.gate() and self.recover()

    def recover(self) -> bool:
        """Bring what is in memory only to the disk, all or nothing, or try a write if there is nothing; say whether it succeeded."""
        try:
            self._on_disk(self._again, owed=True)
        except Stalled:
            return False
        self._owed.clear()
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        return True

    # -- for what is kept in it

    def _written(self) -> None:
        """Operations that were `_touched` are as they are there now, on the disk or in memory."""

    def _doubted(self) -> None:
        """A write failed: whether it happened all the same is for the disk to say."""

    def _write(self, work: Callable[[], T], urgent: Callable[[], bool] = lambda: False) -> T:
        """Do `work` as one transaction, in memory if it is `urgent` and the disk doesn't take it. Raises Stalled, and what `work` does."""
        if self._memory is None:
            try:
                done = self._on_disk(work)
                self._written()
                return done
            except Deposed:
                raise
            except Stalled:
                if not urgent():
                    raise
                self._memory = self._copied()
        elif not urgent():
            raise Stalled(self._why or self._problem("it goes on in memory"))
        self._touched.clear()
        done = _in_memory(self._memory, work)
        self._owed |= self._touched
        self._written()
        return done

    def _on_disk(self, work: Callable[[], T], *, owed: bool = False) -> T:
        """Do `work` as one transaction, which is committed once `beyond` has what it changed, too; with `owed`, what is only in memory."""
        self._touched.clear()

        def hand_over() -> None:
            if self._beyond is not None:
                records = self._owed if owed else self._touched
                self._beyond.put(tuple(records.values()), together=not owed)

        try:
            done = transaction(self._db, work, hand_over)
        except (OSError, sqlite3.Error) as error:
            self._doubted()
            raise self._stalled(error) from error
        except Stalled as error:
            self._why = error.problem
            raise
        self._why = None
        return done

    def _copied(self) -> Volatile:
        """What to go on with in memory. Raises Stalled if the disk can't even be read."""
        try:
            return Volatile(self._db, self._tables, self._recent)
        except (OSError, sqlite3.Error) as error:
            raise self._stalled(error) from error

    def _again(self) -> None:
        if self._memory is None:
            self._set_meta("probe", self._meta("probe") + 1)
            return
        for statement, values in self._memory.redo:
            self._db.execute(statement, values)

    @property
    def _at(self) -> sqlite3.Connection:
        return self._db if self._memory is None else self._memory.db

    def _change(self, statement: str, *values: object) -> None:
        self._at.execute(statement, values)
        if self._memory is not None:
            self._memory.note(statement, values)

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._at.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._stalled(error) from error

    def _look_up(self, query: str, key: str) -> tuple[Any, ...] | None:
        found = self._rows(query, key)
        if not found and self._memory is not None:
            # Older than the working set. If the disk can't be read either it counts as new: agents do no order twice.
            with suppress(sqlite3.Error):
                found = self._db.execute(query, (key,)).fetchall()
        return found[0] if found else None

    def _meta(self, key: str) -> int:
        rows = self._rows("SELECT value FROM meta WHERE key=?", key)
        return int(rows[0][0]) if rows else 0

    def _set_meta(self, key: str, value: int) -> None:
        self._change("INSERT OR REPLACE INTO meta VALUES (?, ?)", key, value)

    def _stalled(self, error: Exception) -> Stalled:
        self._why = self._problem(str(error))
        return Stalled(self._why)

    def _problem(self, reason: str) -> Problem:
        return Problem(
            code="SH501",
            what=f"the engine's store can't be written: {reason}",
            remedy="Free disk space or mend the state directory; until then nothing voluntary starts",
            subject=str(self.path),
        )


def _into_wal_mode(db: sqlite3.Connection, busy_s: float) -> None:
    """Of two that make one file at the same time SQLite lets neither wait for the other: one is told at once that it is locked."""
    ends = time.monotonic() + busy_s
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= ends:
                raise
        time.sleep(_AGAIN_S)


def _in_memory(memory: Volatile, work: Callable[[], T]) -> T:
    kept = False
    try:
        done = transaction(memory.db, work)
        kept = True
    finally:
        memory.settle(kept=kept)
    return done


def transaction(db: sqlite3.Connection, work: Callable[[], T], last: Callable[[], None] = lambda: None) -> T:
    """`last` is called when all of it is written, right before it counts. Raises sqlite3.Error and what the two do; then nothing of it was
    done.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        done = work()
        last()
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # what it undoes has failed already, and that is the error to tell
            if db.in_transaction:
                db.execute("ROLLBACK")
        raise
    return done
