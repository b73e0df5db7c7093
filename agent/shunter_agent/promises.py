"""Memory that is promised to workers on their way here: what is free now isn't there for somebody else."""

from collections.abc import Callable
from typing import Final

import msgspec

from shunter_agent.journal import Journal

UNPREPARED_S: Final = 30.0
"""Seconds for which memory stays promised to a worker of which nothing was heard since: its slot would be reserved by then."""


class _Promised(msgspec.Struct, frozen=True, kw_only=True):
    worker: int
    beside: int
    at: float


class Promises:
    """By operation. They are kept in memory alone: an agent that starts again has no copies on their way either."""

    def __init__(self, journal: Journal, elapsed: Callable[[], float]) -> None:
        """`elapsed` gives seconds since some moment, never set back."""
        self._journal, self._elapsed = journal, elapsed
        self._kept: dict[str, _Promised] = {}

    def keep(self, operation: str, worker: int, *, beside: int = 0) -> None:
        """From now on so many bytes are for its worker, and for what lies in memory `beside` it, until that is restored, or won't come."""
        self._kept = {name: kept for name, kept in self._kept.items() if self._stands(name, kept)}
        self._kept[operation] = _Promised(worker=worker, beside=beside, at=self._elapsed())

    def others(self, operation: str) -> int:
        """Bytes that all but this operation's worker will take and haven't taken yet. One that is being restored counts as a whole."""
        return sum(kept.worker + kept.beside for name, kept in self._kept.items() if name != operation and self._stands(name, kept))

    def of(self, operation: str) -> int:
        """Bytes that its worker itself will take; 0: nobody asked for it here."""
        kept = self._kept.get(operation)
        return kept.worker if kept is not None else 0

    def _stands(self, operation: str, kept: _Promised) -> bool:
        reservation = self._journal.reservation(operation)
        if reservation is not None:
            return reservation.process is None
        return self._elapsed() - kept.at < UNPREPARED_S and not self._journal.entries(operation)
