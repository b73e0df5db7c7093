"""What the store goes on with while its disk takes no writes: its working set in memory, and what was written to it, in order.

Nothing of it outlives the process. It is for what can't wait: a worker on a node that is going is moved first, and brought to book later.
"""

import sqlite3
from collections.abc import Iterable
from typing import Any, Final

_SETS: Final = {
    "meta": "",
    "fleet": "",
    "noticed": "",
    "ended": "",
    "operations": "WHERE ended_at IS NULL OR ended_at >= (SELECT max(ended_at) FROM operations) - ? ORDER BY rowid",
}
"""What is copied: all that is asked for as a whole. What is looked up by its key is looked up on the disk if it isn't here."""


class Volatile:
    """See the module. `db` has the store's tables; `redo` are the statements since, each with its values."""

    def __init__(self, disk: sqlite3.Connection, tables: str, recent: float) -> None:
        """Copy the working set: of ended operations, those that ended in the last `recent` seconds before the newest. Raises sqlite3.Error
        if the disk can't be read either.
        """
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.redo: list[tuple[str, tuple[Any, ...]]] = []
        self._begun: list[tuple[str, tuple[Any, ...]]] = []
        try:
            self.db.executescript(tables)
            for table, which in _SETS.items():
                rows: Iterable[tuple[Any, ...]] = disk.execute(f"SELECT * FROM {table} {which}", (recent,) if which else ())  # noqa: S608
                for row in rows:
                    self.db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608  (our own names)
        except BaseException:
            self.close()
            raise

    def note(self, statement: str, values: tuple[Any, ...]) -> None:
        """Remember a statement of the transaction under way."""
        self._begun.append((statement, values))

    def settle(self, *, kept: bool) -> None:
        """The transaction is over: what it did counts, or it doesn't."""
        if kept:
            self.redo += self._begun
        self._begun = []

    def close(self) -> None:
        """Forget all of it."""
        self.db.close()
