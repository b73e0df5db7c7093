"""Whether checkpoint and restore work on this node, found by doing them: once after the agent's start, again while they don't, and once
more when what does them was replaced.

CRIU's own check says yes where no socket can be dumped. Without this, that would be found out with a worker that stands still.
"""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem

AGAIN_S: Final = 30.0
"""Seconds after which what failed is tried again, when somebody asks."""
PATIENCE_S: Final = 5.0
"""Seconds that whoever asks waits for a trial that goes on."""


class Proven:
    """One per agent; belongs to the event loop's thread."""

    def __init__(
        self,
        canary: Callable[[Path], tuple[Problem, ...]],
        folder: Path,
        tell: Callable[[Problem], None],
        elapsed: Callable[[], float] = time.monotonic,
        *,
        tool: Callable[[], object] = lambda: None,
        tried: Callable[[], None] = lambda: None,
    ) -> None:
        """Begins at once. `canary` and `tool` are a `port.Provable`'s; `folder` is nobody else's. `tell` hears of what was wrong; `tried`
        is called after each trial."""
        self._canary, self._tool, self._tried = canary, tool, tried
        self._tell = tell
        self._folder = folder
        self._elapsed = elapsed
        self._ended = 0.0
        self._with = tool()
        self._trial = asyncio.create_task(self._try())

    async def _try(self) -> tuple[Problem, ...]:
        self._with = self._tool()
        try:
            found = await asyncio.to_thread(self._fly)
        except OSError as error:
            found = (_unproven(f"a trial checkpoint of a small process couldn't be made: {error}", "Run `shunter-agent check` there"),)
        self._ended = self._elapsed()
        self._tried()
        for problem in found:
            self._tell(problem)
        return found

    def _fly(self) -> tuple[Problem, ...]:
        """What fails twice in a row isn't the moment's fault."""
        found: tuple[Problem, ...] = ()
        for _time in range(2):
            shutil.rmtree(self._folder, ignore_errors=True)  # of an agent that was killed meanwhile
            found = self._canary(self._folder)
            if not found:
                break
        return found

    async def problems(self) -> tuple[Problem, ...]:
        """Why no worker should be frozen or restored here. Empty: it was seen to work."""
        if self._trial.done():
            over = self._trial.result() and self._elapsed() - self._ended >= AGAIN_S
            if over or self._tool() != self._with:
                self._trial = asyncio.create_task(self._try())
        done, _pending = await asyncio.wait((self._trial,), timeout=PATIENCE_S)
        if not done:
            return (_unproven("a trial checkpoint of a small process isn't over yet", "Try again in a while"),)
        return self._trial.result()

    async def close(self) -> None:
        """Wait a while for a trial that goes on: what it has started ends with it."""
        await asyncio.wait((self._trial,), timeout=PATIENCE_S)


def _unproven(what: str, remedy: str) -> Problem:
    return Problem(code="SH704", what=what, remedy=remedy)
