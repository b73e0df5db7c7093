"""The policy set in force: fetched in the background, swapped whole, never lost.

What is fetched is parsed beside the current set; only a whole new set takes its place. While the source is away, or a version is
refused, the last good one stays, and its age and the reason are known (`age`, `problem`).
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from shunter.lang.load import load
from shunter.model.errors import Problem, ShunterError
from shunter.model.ids import Commit
from shunter.model.policy import PolicySet
from shunter.model.source import Revision


class Source(Protocol):
    """Where revisions come from. Both calls block and raise ShunterErrors."""

    def fetch(self) -> str:
        """Ask the source for its newest commit and return it; the last one stays readable when this fails."""
        ...

    def read(self, revision: str) -> Revision:
        """All policy files at a commit."""
        ...


class PolicyFeed:
    """Keeps `current` up to date. One task calls `refresh`; everybody else only reads."""

    def __init__(self, source: Source, clock: Callable[[], float]) -> None:
        self._source, self._clock = source, clock
        self.current: PolicySet | None = None
        """None until the first set was read."""
        self.checked_at: float | None = None
        """When the source last answered, seconds since the epoch."""
        self.problem: Problem | None = None
        """Why the source can't be followed at present, or None."""

    async def refresh(self) -> bool:
        """Look for a newer commit; True when `current` changed. Never raises for what a source or a policy can do wrong."""
        try:
            commit = Commit(await asyncio.to_thread(self._source.fetch))
            if self.current is None or commit != self.current.commit:
                revision = await asyncio.to_thread(self._source.read, commit)
                self.current = await asyncio.to_thread(load, revision, self.current)
                changed = True
            else:
                changed = False
        except ShunterError as error:
            self.problem = error.problem
            return False
        self.checked_at = self._clock()
        self.problem = None
        return changed

    def age(self, now: float) -> float | None:
        """Seconds since the source last answered; None if it never did."""
        return None if self.checked_at is None else now - self.checked_at
