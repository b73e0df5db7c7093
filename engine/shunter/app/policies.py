"""The policy set in force: fetched in the background, swapped whole, never lost.

What is fetched is parsed beside the current set; only a whole new set takes its place. While the source is away, or a version is
refused, the last good one stays, and its age and the reason are known (`age`, `problem`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from shunter.lang.load import load
from shunter.model.errors import Problem, Retry, ShunterError
from shunter.model.finding import Finding
from shunter.model.ids import Commit, Digest
from shunter.model.policy import Policy, PolicySet
from shunter.model.source import Revision
from shunter.source.memory import Remembered


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


@runtime_checkable
class Remembering(Protocol):
    """A source that keeps for the next process what was in force, so that a restart while it is away loses nothing. Neither raises."""

    def remembered(self) -> Remembered | None:
        """What was in force last; None: nothing is known."""
        ...

    def remember(self, remembered: Remembered) -> None:
        """Keep this."""
        ...


@runtime_checkable
class Reporting(Protocol):
    """A source that tells people, where they keep the policies, what became of them."""

    def report(self, policies: PolicySet, findings: Sequence[Finding], at: float, halted: str = "") -> None:
        """Called at every tick. Returns at once and never raises. `at`: seconds since the epoch. `halted`: why nothing voluntary begins at
        present; empty: it does.
        """
        ...


class PolicyFeed:
    """Keeps `current` up to date. One task calls `refresh`; everybody else only reads."""

    def __init__(self, source: Source, clock: Callable[[], float], *, patience_s: float = 2.0) -> None:
        self._source, self._clock, self._patience_s = source, clock, patience_s
        self._fetching: asyncio.Task[str] | None = None
        self.current: PolicySet | None = None
        """None until the first set was read."""
        self.checked_at: float | None = None
        """When what is in force was last known to be the newest that the source has, seconds since the epoch. It outlives the process."""
        self.problem: Problem | None = None
        """Why the source can't be followed at present, or None."""
        self.signed_by = ""
        """Who signed the commit in force; empty where signatures aren't checked."""

    async def refresh(self) -> bool:
        """Look for a newer commit; True when `current` changed. Never raises for what a source or a policy can do wrong.

        The first call puts in force what was before, and gives the source `patience_s` to answer: a start doesn't wait for more.
        """
        before = self.current
        try:
            previous = self.current or await self._recall()
            commit = await self._fetch(patient=before is not None or self.current is None)
            if self.current is None or commit != self.current.commit:
                await self._take(commit, previous)
        except ShunterError as error:
            self.problem = error.problem
        except OSError as error:  # no room for git's files, or no git at all
            what = f"the policy source can't be read: {error}"
            self.problem = Problem(code="SH230", what=what, remedy="Free the disk; check that git is installed", subject="policies")
        else:
            self.checked_at = self._clock()
            self.problem = None
            await asyncio.to_thread(self._remember)
        return self.current is not before

    async def _fetch(self, *, patient: bool) -> Commit:
        """Ask the source, or go on waiting for it where an earlier call left off. Raises Retry SH223 when that takes too long."""
        fetching = self._fetching or asyncio.create_task(asyncio.to_thread(self._source.fetch))
        self._fetching = None
        if not patient:
            done, _ = await asyncio.wait([fetching], timeout=self._patience_s)
            if not done:
                self._fetching = fetching
                fetching.add_done_callback(lambda task: task.cancelled() or task.exception())
                what = f"the policy source hasn't answered within {self._patience_s:g} s of the start"
                remedy = "Nothing yet: it is still asked, and what was in force before the start is in force"
                raise Retry(Problem(code="SH223", what=what, remedy=remedy, subject="policies"))
        return Commit(await fetching)

    async def _take(self, commit: Commit, previous: PolicySet | None) -> None:
        revision = await asyncio.to_thread(self._source.read, commit)
        self.current = await asyncio.to_thread(load, revision, previous)
        self.signed_by = revision.signed_by

    async def _recall(self) -> PolicySet | None:
        """Put in force what was, if it is known and still may be. Returns it file by file, for files that are refused now."""
        known = await asyncio.to_thread(self._known)
        if known is None:
            return None
        previous = await asyncio.to_thread(self._previous, known)
        with contextlib.suppress(ShunterError, OSError):  # then what is newest has to do
            await self._take(known.commit, previous)
            self.checked_at = known.confirmed_at
        return self.current or previous

    def _previous(self, known: Remembered) -> PolicySet | None:
        """What an earlier process had in force, from the commit that each file came from; None when none of it can be read."""
        policies: list[Policy] = []
        for commit in sorted(set(known.files.values())):
            with contextlib.suppress(ShunterError, OSError):
                policies += [p for p in load(self._source.read(commit), None).policies if known.files.get(p.place.file) == commit]
        return PolicySet(commit=known.commit, digest=Digest(""), policies=tuple(policies)) if policies else None

    def _known(self) -> Remembered | None:
        return self._source.remembered() if isinstance(self._source, Remembering) else None

    def _remember(self) -> None:
        if self.current is not None and isinstance(self._source, Remembering):
            files = {p.place.file: p.commit for p in self.current.policies if p.refused is None}
            self._source.remember(Remembered(commit=self.current.commit, confirmed_at=self.checked_at, files=files))

    def read(self, commit: Commit) -> Revision:
        """The policy files at a commit that was in force. Blocks, and raises what the source does."""
        return self._source.read(commit)

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Have `on_change` called from a thread when the source changes, if it can tell. Returns what ends it. Never raises."""
        if isinstance(self._source, Watched):
            try:
                return self._source.watch(on_change)
            except ShunterError as error:
                self.problem = error.problem  # polling goes on
        return lambda: None

    def report(self, policies: PolicySet, findings: Sequence[Finding], at: float, halted: str = "") -> None:
        """Have the source tell what became of the policies, if it can (see `Reporting`). Never raises."""
        if isinstance(self._source, Reporting):
            self._source.report(policies, findings, at, halted)

    def age(self, now: float) -> float | None:
        """Seconds since what is in force was last known to be the source's newest; None if it never was."""
        return None if self.checked_at is None else now - self.checked_at
