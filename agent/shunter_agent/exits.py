"""Notice at once when a worker's process ends, also one that isn't this agent's child: by its pidfd, which becomes readable."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from shunter_agent.runtime.port import Process

AGAIN_S: Final = 1.0
"""Seconds until a process is watched again that couldn't be, or of whose end there is doubt."""


class Exits:
    """Watches processes in the running event loop. `ended(worker, status)` is called once per watched process that ends.

    `status` is the exit code, the negative of the signal that killed it, or -1 when it can't be known (it isn't this agent's child).
    """

    def __init__(self, ended: Callable[[str, int], None]) -> None:
        self._ended = ended
        self._watched: dict[str, int] = {}
        self._again: dict[str, asyncio.TimerHandle] = {}

    def watch(self, worker: str, process: Process) -> None:
        """Watch a worker's process instead of any that was watched for it before. One that is dead already ends at once."""
        self.forget(worker)
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            loop.call_soon(self._ended, worker, -1)
            return
        except OSError:  # no descriptor to be had says nothing of the process
            self.watch_again(worker, process)
            return
        self._watched[worker] = descriptor
        loop.add_reader(descriptor, self._readable, worker, descriptor)

    def watch_again(self, worker: str, process: Process) -> None:
        """Watch it in a moment, instead of what is watched for the worker now."""
        self.forget(worker)
        self._again[worker] = asyncio.get_running_loop().call_later(AGAIN_S, self.watch, worker, process)

    def forget(self, worker: str) -> None:
        """Its end is somebody's doing from now on, and no news."""
        again = self._again.pop(worker, None)
        if again is not None:
            again.cancel()
        descriptor = self._watched.pop(worker, None)
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    @contextlib.contextmanager
    def ending(self, worker: str, process: Process) -> Iterator[None]:
        """While somebody ends it, its end is no news. Where that fails, whatever it was, it may live, and is watched again."""
        self.forget(worker)
        try:
            yield
        except BaseException:
            self.watch(worker, process)
            raise

    def close(self) -> None:
        """Watch nothing any more."""
        for worker in (*self._watched, *self._again):
            self.forget(worker)

    def _readable(self, worker: str, descriptor: int) -> None:
        status = exit_status(descriptor)
        self.forget(worker)
        self._ended(worker, status)


def exit_status(descriptor: int) -> int:
    """How the process of a pidfd ended, leaving it to be reaped by whoever does. -1 when it can't be known."""
    with contextlib.suppress(ChildProcessError, OSError):
        result = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is not None:
            return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
    return -1
