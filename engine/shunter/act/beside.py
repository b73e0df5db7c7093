"""Orders that are given apart from the ticks, one at a time for each thing that they are about, and again later when they fail."""

import asyncio
from collections.abc import Callable, Collection, Coroutine

import msgspec

from shunter.model.errors import Problem, ShunterError

LONGEST_S = 60.0
"""Between two tries."""


class _Failed(msgspec.Struct, frozen=True):
    times: int
    again: float


class Beside:
    """An agent that is slow holds nobody up. `tell` is told, by thing, why its order failed, and None once there is no need any more."""

    def __init__(self, clock: Callable[[], float], tell: Callable[[str, Problem | None], None]) -> None:
        self._clock, self._tell = clock, tell
        self._failed: dict[str, _Failed] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._crash: BaseException | None = None

    def check(self) -> None:
        """Raise what broke an earlier order."""
        if self._crash is not None:
            raise self._crash

    def keep(self, wanted: Collection[str]) -> None:
        """Forget how often orders about other things than these have failed."""
        for thing in [t for t in self._failed if t not in wanted and t not in self._tasks]:
            del self._failed[thing]
            self._tell(thing, None)

    def begin(self, thing: str, order: Callable[[], Coroutine[None, None, None]]) -> None:
        """Give the order, unless one about this is under way, or failed so lately that it isn't time yet."""
        failed = self._failed.get(thing)
        if thing in self._tasks or (failed is not None and 0 < failed.again - self._clock() <= LONGEST_S):  # more: the clock was set back
            return
        task = asyncio.get_running_loop().create_task(self._try(thing, order), name=f"beside {thing}")
        self._tasks[thing] = task
        task.add_done_callback(lambda done: self._over(thing, done))

    async def stop(self) -> None:
        """Give no more orders."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def idle(self) -> None:
        """Return once no order is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())
            await asyncio.sleep(0)

    async def _try(self, thing: str, order: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await order()
        except ShunterError as error:
            times = self._failed[thing].times if thing in self._failed else 0
            self._failed[thing] = _Failed(times + 1, self._clock() + min(2.0**times, LONGEST_S))
            self._tell(thing, error.problem)

    def _over(self, thing: str, done: asyncio.Task[None]) -> None:
        del self._tasks[thing]
        if not done.cancelled() and done.exception() is not None:
            self._crash = done.exception()
