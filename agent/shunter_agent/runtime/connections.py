"""TCP connections of a stopped process, kept quiet: in repair mode one sends nothing by itself, and nobody hears that its process has died.

CRIU holds a copy's connections so until it lets the copy go. A copy that has to wait longer, since its GPU memory isn't there yet, must
not, should it be ended, hang up on its peers: they go on with the source, or soon will with another copy. What peers send it is confirmed
by the kernel all the same (seen on 6.18): what keeps them apart is that the copy's network isn't connected before the source has ended.
"""

import contextlib
import ctypes
import os
import socket
import stat
from collections.abc import Callable, Iterable
from typing import Final

_PIDFD_GETFD: Final = 438
_TCP_REPAIR: Final = 19
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_TCP_INFO: Final = 11
_CLOSED: Final = 7
_LISTEN: Final = 10


def hush(pids: Iterable[int]) -> dict[int, int]:
    """Put the connections of these processes into repair mode. Gives, by inode, what `speak` needs. Raises OSError."""
    found: dict[int, int] = {}

    def quiet(inode: int, link: socket.socket) -> None:
        found[inode] = link.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        link.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)

    _each(pids, quiet)
    return found


def speak(pids: Iterable[int], hushed: dict[int, int]) -> None:
    """Take them out of it: each tells its peer at once that it is there. Raises OSError."""

    def loud(inode: int, link: socket.socket) -> None:
        if inode in hushed:
            link.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 0)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, hushed[inode])  # repair mode changes it

    _each(pids, loud)


def connected_of(pids: Iterable[int]) -> list[socket.socket]:
    """The connections of these processes, each once, held beside them: close them. Raises OSError."""
    found: list[socket.socket] = []
    try:
        _each(pids, lambda _inode, link: found.append(link.dup()))
    except OSError:
        for link in found:
            link.close()
        raise
    return found


def _each(pids: Iterable[int], call: Callable[[int, socket.socket], None]) -> None:
    seen: set[int] = set()
    for pid in pids:
        pidfd = os.pidfd_open(pid)
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                inode = _inode(pid, name)
                if inode is not None and inode not in seen:
                    seen.add(inode)
                    with contextlib.closing(socket.socket(fileno=_take(pidfd, int(name)))) as link:
                        if _connected(link):
                            call(inode, link)
        finally:
            os.close(pidfd)


def _inode(pid: int, name: str) -> int | None:
    about = os.stat(f"/proc/{pid}/fd/{name}")
    return about.st_ino if stat.S_ISSOCK(about.st_mode) else None


def _take(pidfd: int, descriptor: int) -> int:
    """The process' own open file, under a number of ours."""
    taken = int(_LIBC.syscall(_PIDFD_GETFD, pidfd, descriptor, 0))
    if taken < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return taken


def _connected(link: socket.socket) -> bool:
    """It is TCP, and neither listens nor is closed."""
    if link.type != socket.SOCK_STREAM or link.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        return link.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] not in (_LISTEN, _CLOSED)
    except OSError:  # another protocol
        return False
