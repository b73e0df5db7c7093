"""Following the policies while an engine leads: what is in force is recorded once, what is wrong with it is told."""

import asyncio
import contextlib
from collections.abc import Callable

from shunter.app.duty import Duty
from shunter.app.voice import Voice
from shunter.model.canon import plain
from shunter.model.ids import Commit
from shunter.model.policy import PolicySet
from shunter.model.record import RecordKind


class Following:
    """Keeps the feed of policies fresh. `learn` gets each new set."""

    def __init__(self, duty: Duty, voice: Voice, learn: Callable[[PolicySet], None]) -> None:
        self._duty, self._voice, self._learn = duty, voice, learn
        self._told: Commit | None = None
        """Of the newest policy set that has its record."""

    async def run(self) -> None:
        """Look at each change, and at each `poll` of the settings, until cancelled."""
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        close = self._duty.feed.watch(lambda: _drop(loop.call_soon_threadsafe(changed.set)))
        changed.set()  # whatever changed since they were read, and before anybody watched
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), float(self._duty.settings.policies.poll))
                changed.clear()
                await self.once()
        finally:
            await asyncio.to_thread(close)

    async def once(self) -> None:
        """Look once."""
        feed = self._duty.feed
        await feed.refresh()
        self._voice.tell_or_clear("policies", feed.problem)
        if not feed.current or feed.current.commit == self._told:
            return
        body = {"policies": [p.name for p in feed.current.policies], "problems": plain(feed.current.problems), "signed_by": feed.signed_by}
        what = f"{len(feed.current.policies)} policies in force, {len(feed.current.problems)} problems"
        self._voice.record(RecordKind.POLICIES, feed.current.commit, what, body)
        self._told = feed.current.commit
        self._learn(feed.current)
        for problem in feed.current.problems:
            self._duty.on_problem(problem)
        self._duty.wake.set()


def _drop(_value: object) -> None:
    """For a callback that gives nothing back."""
