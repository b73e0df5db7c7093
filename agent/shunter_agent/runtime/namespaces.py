"""Linux calls that Python 3.11 has no words for: join and make namespaces for one thread, and become the reaper of orphans.

A namespace belongs to a thread. Everything here that changes one does so in a thread made for it, so that the agent's own threads stay
where they are; what such a thread starts inherits its namespaces.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

CLONE_NEWNET: Final = 0x4000_0000
CLONE_NEWPID: Final = 0x2000_0000
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc: Final = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int) -> None:
    """One of the C library's functions that answer 0 or an error. Raises OSError."""
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


class _Errand(threading.Thread, Generic[T]):
    """Runs one function in a thread of its own and keeps what came out."""

    def __init__(self, function: Callable[[], T]) -> None:
        super().__init__(name="namespace-errand", daemon=True)
        self._function = function
        self._result: T
        self._error: BaseException | None = None

    def run(self) -> None:
        """Called by `start`."""
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """Wait for it. Raises what the function raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._result


def errand(function: Callable[[], T]) -> T:
    """Call `function` in a thread of its own, which may change its namespaces. Raises what `function` raises."""
    thread = _Errand(function)
    thread.start()
    return thread.result()


def inside(netns: int | None, function: Callable[[], T], *, new_pids: bool = False) -> T:
    """Call `function` in the network namespace behind the descriptor `netns` (None: the agent's own).

    With `new_pids` the first process that it starts is process 1 of a new PID namespace. Raises OSError, and what `function` raises.
    """
    if netns is None and not new_pids:
        return function()

    def run() -> T:
        if netns is not None:
            call("setns", netns, CLONE_NEWNET)
        if new_pids:
            call("unshare", CLONE_NEWPID)
        return function()

    return errand(run)


def make_network() -> int:
    """A new, empty network namespace, as a descriptor that keeps it. Raises OSError."""

    def run() -> int:
        call("unshare", CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return errand(run)


def network_of(pid: int) -> int:
    """The network namespace that process `pid` is in, as a descriptor that keeps it. Raises OSError."""
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def become_subreaper() -> None:
    """Orphans of this process's children become its own children, so that they can be reaped. Raises OSError."""
    call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
