"""What a transaction that failed leaves, and which error is told."""

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from shunter.audit.inputs import Inputs
from shunter.audit.transaction import transaction
from shunter.model.errors import Stalled


class Unwilling(sqlite3.Connection):
    """Fails at statements that begin with any of `against`."""

    against: tuple[str, ...] = ()

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self.against and statement.startswith(self.against):
            raise sqlite3.OperationalError(f"{statement} failed")
        return super().execute(statement, *values)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Unwilling]:
    found = sqlite3.connect(tmp_path / "x.db", isolation_level=None, factory=Unwilling)
    found.execute("CREATE TABLE t (x INTEGER)")
    yield found
    found.close()


def rows(db: sqlite3.Connection) -> list[int]:
    return [x for (x,) in db.execute("SELECT x FROM t")]


def interrupted(db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO t VALUES (2)")
    raise KeyboardInterrupt


def test_all_of_it_counts_or_none(db: Unwilling) -> None:
    with transaction(db):
        db.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(KeyboardInterrupt), transaction(db):
        interrupted(db)
    db.against = ("COMMIT",)
    with pytest.raises(sqlite3.OperationalError, match="COMMIT"), transaction(db):
        db.execute("INSERT INTO t VALUES (3)")
    assert (rows(db), db.in_transaction) == ([1], False)


def test_what_failed_first_is_told_and_not_that_it_cannot_be_undone(db: Unwilling) -> None:
    db.against = ("INSERT", "ROLLBACK")
    with pytest.raises(sqlite3.OperationalError, match="INSERT"), transaction(db):
        db.execute("INSERT INTO t VALUES (1)")


def test_of_kept_inputs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Unwilling))
    inputs = Inputs(tmp_path / "inputs.db")
    monkeypatch.setattr(Unwilling, "against", ("DELETE", "ROLLBACK"))
    with pytest.raises(Stalled, match="DELETE"):
        inputs.drop(1.0, 0)
    inputs.close()
