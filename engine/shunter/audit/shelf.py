"""Where records lie: the port that the journal writes through, to SQLite (`audit.sqlite`) or PostgreSQL (`audit.postgres`)."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from shunter.audit.head import Head, Signed, Slots
from shunter.audit.key import Key

Row: TypeAlias = tuple[Any, ...]
"""(seq, at, kind, subject, operation, previous, hash, body), the body as canonical JSON."""
Found: TypeAlias = tuple[Any, ...]
"""(seq, previous, hash, body)"""
Asked: TypeAlias = tuple[str, str, object]
"""A column, a comparison (`=`, `<`, `>=`, ...), a value."""


class Shelf(Protocol):
    """One writer, any number of readers. What goes wrong is raised as the system's own error; within `faults` it becomes a Stalled."""

    path: Path
    """The audit's place in the state folder: its keys and exported heads are beside it, wherever the records are."""
    subject: str
    """What it is called in messages."""

    def faults(self) -> AbstractContextManager[None]:
        """The system's errors as Stalled SH901, SH902, SH903 or SH905."""
        ...

    @property
    def writes(self) -> bool:
        """Whether it was opened for writing."""
        ...

    def fresh(self) -> bool:
        """Whether there is no audit yet. Raises Stalled SH907 for one of another version."""
        ...

    def begin(self, first: Signed) -> None:
        """Make an audit, committed with this head."""
        ...

    def newest(self) -> Head:
        """The last record that there is."""
        ...

    def oldest(self) -> int | None:
        """The number of the first record that there is."""
        ...

    def committed(self) -> Signed | None:
        """The head that was committed with the records; None when it is missing."""
        ...

    def slots(self) -> Slots:
        """What the head file holds, or what stands for it."""
        ...

    def add(self, rows: Sequence[Row], head: Signed) -> None:
        """Add records and put the head in their place, in one transaction, durable on return. When it raises, it may have happened."""
        ...

    def note(self, head: Signed, key: Key) -> None:
        """Bring the head file up to the head, durable on return."""
        ...

    def sweep(self, base: int) -> None:
        """Take records up to this number away."""
        ...

    def since(self, at: float) -> int | None:
        """The number of the first record that isn't older than `at` (seconds since the epoch)."""
        ...

    def get(self, seq: int) -> Found | None:
        """One record."""
        ...

    def found(self, asked: Sequence[Asked], *, after: int | None, newest_first: bool) -> Iterator[Found]:
        """Records, in portions: no read holds others up for long. `after` is the number of the record before the first one, in the order
        asked for.
        """
        ...

    def rows(self, first: int = 0, last: int | None = None) -> Iterator[Row]:
        """Whole rows from one number to another, both included, in order."""
        ...

    def still(self) -> AbstractContextManager[None]:
        """All that is read within is as it was at one moment."""
        ...

    def close(self) -> None:
        """Let go."""
        ...
