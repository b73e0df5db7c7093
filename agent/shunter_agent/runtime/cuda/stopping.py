"""A worker's process tree, brought to a stop and let go, and the one thread in it that the driver needs."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, Protocol

from shunter_agent.runtime import process as processes
from shunter_agent.runtime.cuda import ptrace

STOP_S: Final = 5.0
"""Seconds that a tree may take to stop: a thread that waits in the kernel stops when it comes back."""
FREE_S: Final = 60.0
"""Seconds to wait for another tracer (CRIU, or another helper) to let a worker go."""


class NotStopped(Exception):
    """A process didn't stop in time; the text says which."""


class Stops(Protocol):
    """What `steps` needs of the kernel."""

    def tree(self, root: int) -> list[int]:
        """The pids of the tree, root first."""
        ...

    def stop(self, root: int) -> None:
        """Stop all of the tree, and what it forks meanwhile. Raises NotStopped."""
        ...

    def go_on(self, root: int, but: Collection[int]) -> None:
        """Let all of it run on, but for those that were stopped before."""
        ...

    def running(self, thread: int, call: Callable[[], None]) -> None:
        """`thread` runs while `call` does, also when the rest of its process is stopped. Raises OSError, and what `call` does."""
        ...

    def guard(self, root: int) -> None:
        """From here on the stopped tree dies with this process. Raises OSError."""
        ...

    def unguard(self, root: int) -> None:
        """No more."""
        ...


class Kernel:
    """Implements `Stops`. `or_die`: what is let run by itself dies with this process."""

    def __init__(self, *, or_die: bool = False) -> None:
        self.or_die = or_die

    def tree(self, root: int) -> list[int]:
        """See `Stops`."""
        return processes.tree(root)

    def stop(self, root: int) -> None:
        """See `Stops`."""
        until = time.monotonic() + STOP_S
        while moving := [pid for pid in processes.tree(root) if not stopped(pid)]:
            for pid in moving:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            if time.monotonic() > until:
                raise NotStopped(f"process {moving[0]} didn't stop within {STOP_S:.0f} s")
            time.sleep(0.001)

    def go_on(self, root: int, but: Collection[int]) -> None:
        """See `Stops`."""
        for pid in processes.tree(root):
            if pid not in but:  # whether it is seen to be stopped or not: one that was just let go may be about to stop
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def running(self, thread: int, call: Callable[[], None]) -> None:
        """See `Stops`."""
        ptrace.hold(thread, or_die=self.or_die)
        try:
            ptrace.alone(thread, call)
        finally:
            ptrace.let_go(thread)

    def guard(self, root: int) -> None:
        """See `Stops`."""
        ptrace.hold(root, or_die=True)

    def unguard(self, root: int) -> None:
        """See `Stops`."""
        ptrace.let_go(root)


def stopped(pid: int) -> bool:
    """No thread of it moves, or it is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return all(ptrace.state_of(pid, int(thread)) in ("T", "t", "Z", "X", "") for thread in threads)


def wait_untraced(root: int, alive: Callable[[], bool], within_s: float = FREE_S) -> bool:
    """Wait until nobody traces any process of the tree. False when it is gone, or traced for longer than `within_s` seconds."""
    until = time.monotonic() + within_s
    while alive():
        if not any(_traced(pid) for pid in processes.tree(root)):
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return False


def _traced(pid: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return any("\nTracerPid:\t0\n" not in Path(f"/proc/{pid}/task/{thread}/status").read_text() for thread in threads)
    except (FileNotFoundError, ProcessLookupError):
        return False
