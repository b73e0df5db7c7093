"""One thread of a stopped process, let run by itself: ptrace(2), as far as it takes. All of it belongs to the thread that seized.

A process that SIGSTOP has stopped stays so while one of its threads, seized, is told to go on; let go, that thread stops with the others
again. So the driver's thread can do its work in a process of which nothing else moves.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

_CONT: Final = 7
_DETACH: Final = 17
_SEIZE: Final = 0x4206
_INTERRUPT: Final = 0x4207
_GETSIGMASK: Final = 0x420A
_SETSIGMASK: Final = 0x420B
_EXITKILL: Final = 0x100000
_WALL: Final = 0x40000000
_ALL_BUT_SIGTRAP: Final = (1 << 64) - 1 - (1 << 4)
_LOOK_S: Final = 0.001
"""Seconds between looks whether a thread that shall run does."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.restype = ctypes.c_long
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _ptrace(request: int, tid: int, address: int = 0, data: "int | ctypes.c_uint64" = 0) -> None:
    where = ctypes.addressof(data) if isinstance(data, ctypes.c_uint64) else data
    if _LIBC.ptrace(request, tid, address, where) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"thread {tid}")


def _wait_stopped(tid: int) -> None:
    _, status = os.waitpid(tid, _WALL)
    if not os.WIFSTOPPED(status):
        raise ProcessLookupError(f"thread {tid} ended")


def state_of(pid: int, tid: int) -> str:
    """Its letter in /proc: `T` stopped, `t` traced. Empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def hold(tid: int, *, or_die: bool = False) -> None:
    """Seize a thread, stopped or not: it is held then. With `or_die` its process is killed when this one ends. Raises OSError."""
    _ptrace(_SEIZE, tid, 0, _EXITKILL if or_die else 0)
    _ptrace(_INTERRUPT, tid)  # what state it is in can't be told by looking: somebody may just have let it go
    _wait_stopped(tid)


def let_go(tid: int) -> None:
    """Detach; it runs, or stops again with its process, as that does. Nothing when it is gone."""
    with contextlib.suppress(ProcessLookupError):
        _ptrace(_DETACH, tid)


def alone(tid: int, call: Callable[[], None]) -> None:
    """Let a held thread run for as long as `call` takes, which is made on another thread. It is held again afterwards, unless it is gone.

    All signals are kept from it. SIGSTOP can't be, of which one may be left to come: it would stop it once more, and is swallowed.
    Raises OSError, and what `call` does.
    """
    before, blocked = ctypes.c_uint64(), ctypes.c_uint64(_ALL_BUT_SIGTRAP)
    _ptrace(_GETSIGMASK, tid, 8, before)
    _ptrace(_SETSIGMASK, tid, 8, blocked)
    try:
        _ptrace(_CONT, tid)
        with ThreadPoolExecutor(1) as other:
            going = other.submit(call)
            while not going.done():
                _go_on(tid)
                wait((going,), _LOOK_S)
        _ptrace(_INTERRUPT, tid)
        _wait_stopped(tid)
        going.result()
    finally:
        with contextlib.suppress(ProcessLookupError):
            _ptrace(_SETSIGMASK, tid, 8, before)


def _go_on(tid: int) -> None:
    """If it has stopped for something, it has not to."""
    seen, status = os.waitpid(tid, _WALL | os.WNOHANG)
    if seen and os.WIFSTOPPED(status):
        _ptrace(_CONT, tid)
