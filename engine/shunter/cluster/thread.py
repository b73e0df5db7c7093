"""An event loop in a thread of its own: Kubernetes goes on there, whatever the engine's own loop is busy with."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shunter.model.errors import Problem, Retry

T = TypeVar("T")


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """All of them at once, until all have ended. When one fails, or we are cancelled, the others are cancelled and waited for, so that
    nothing still asks by a connection that its owner ends next. Raises what the first one did.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Thread:
    """Runs `main` until it is closed; others may have coroutines run beside it, from any thread."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`main` is cancelled by `close`; before its first await it can count on `loop`."""
        self._main = main
        self._ready = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self.failed: BaseException | None = None
        """What ended it before it was closed."""
        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def call(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        """Run it there and wait for what it gives. Raises what it does, TimeoutError after `within_s` seconds (it is cancelled then), Retry
        SH258 when the thread has ended.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError as error:
            work.close()
            raise self._over() from error
        try:
            return future.result(within_s)
        except concurrent.futures.CancelledError as error:
            raise self._over() from error
        except TimeoutError:
            future.cancel()
            raise

    def soon(self, work: Callable[[], object]) -> None:
        """Have it called there. Nothing happens once the thread has ended."""
        if not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(work)
            except RuntimeError:
                return  # closed just now

    def close(self) -> None:
        """End it and wait for that. Idempotent."""
        self.soon(lambda: self._task.cancel() if self._task is not None else None)
        self._thread.join()

    def _run(self) -> None:
        async def main() -> None:
            self._task = asyncio.current_task()
            self._ready.set()
            await self._main()

        try:
            with asyncio.Runner() as runner:
                self.loop = runner.get_loop()
                runner.run(main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.failed = error
        finally:
            self._ready.set()

    @staticmethod
    def _over() -> Retry:
        return Retry(Problem(code="SH258", what="what follows the cluster has ended", remedy="Nothing yet: it begins anew"))
