"""One transaction of SQLite: all that is written inside counts from its end on, or none of it ever does."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Raises sqlite3.Error and what is raised inside; then nothing of it was done."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        roll_back(db)
        raise


def roll_back(db: sqlite3.Connection) -> None:
    """Undo what is under way, if anything is."""
    with suppress(sqlite3.Error):  # what it undoes has failed already, and that is the error to tell
        if db.in_transaction:
            db.execute("ROLLBACK")
