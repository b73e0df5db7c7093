"""A turn at a worker: its lock, for work of which a thread may go on when whoever waits for it is cancelled."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Self


class Turn:
    """Holds a lock from `async with` on, until it is left and what was begun in it has ended: a thread can't be stopped, and nobody else
    may be at the worker while one is.
    """

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._going: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._lock.acquire()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._going is None or self._going.done():
            self._lock.release()
        else:
            self._going.add_done_callback(lambda _: self._lock.release())

    async def do(self, work: Coroutine[object, object, None]) -> None:
        """Do it, and wait for its end; one piece of work at a time. It goes on when the caller is cancelled. Raises what it does."""
        self._going = asyncio.create_task(work)
        await asyncio.shield(self._going)
