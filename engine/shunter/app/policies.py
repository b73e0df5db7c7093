"""The policy set in force: fetched in the background, swapped whole, never lost.

What is fetched is parsed beside the current set; only a whole new set takes its place. While the source is away, or a version is
refused, the last good one stays, and its age and the reason are known (`age`, `problem`).
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, runtime_checkable

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


@runtime_checkable
class Watched(Protocol):
    """A source that tells when it changed, so that nobody has to wait for the next poll."""

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` from a thread after a change; returns what ends it. Raises ShunterErrors."""
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
        except OSError as error:  # no room for git's files, or no git at all
            what = f"the policy source can't be read: {error}"
            self.problem = Problem(code="SH230", what=what, remedy="Free the disk; check that git is installed", subject="policies")
            return False
        self.checked_at = self._clock()
        self.problem = None
        return changed

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Have `on_change` called from a thread when the source changes, if it can tell. Returns what ends it. Never raises."""
        if isinstance(self._source, Watched):
            try:
                return self._source.watch(on_change)
            except ShunterError as error:
                self.problem = error.problem  # polling goes on
        return lambda: None

    def age(self, now: float) -> float | None:
        """Seconds since the source last answered; None if it never did."""
        return None if self.checked_at is None else now - self.checked_at
