"""Outcomes that are durable in the store and that the audit has never heard of: the engine before this one died between the two.

The store comes first, so that nothing is done twice; an operation that has ended is taken up by nobody, and so nobody would tell its end.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from shunter.model.operation import OperationRecord
from shunter.model.record import RecordKind, Sealed

WINDOW_S: Final = 60.0
"""An outcome is told a moment after it is durable: one that ended so long before the last thing that was told has been, too."""


class Journal(Protocol):
    """The part of the audit's journal that is asked."""

    def list(self, *, kind: RecordKind | None = None, operation: str | None = None, limit: int | None = 100) -> Sequence[Sealed]:
        """The newest `limit` records that fit."""
        ...


def untold(journal: Journal, ended_since: Callable[[float], Sequence[OperationRecord]]) -> list[OperationRecord]:
    """Operations whose end isn't in the journal, oldest first. `ended_since` gives those that ended at a time (seconds since the epoch) or
    later. To be asked before anything new is told. Raises Stalled as both do.
    """
    newest = journal.list(limit=1)
    since = newest[0].record.at - WINDOW_S if newest else 0.0
    return [record for record in ended_since(since) if not journal.list(kind=RecordKind.OUTCOME, operation=record.id, limit=1)]
