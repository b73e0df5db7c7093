"""TCP connections of a stopped process, kept quiet: in repair mode one sends nothing by itself, and nobody hears that its process has died.

CRIU holds a copy's connections so until it lets the copy go. A copy that has to wait longer, since its GPU memory isn't there yet, must
not, should it be ended, hang up on its peers: they go on with the source, or soon will with another copy. What peers send it is confirmed
by the kernel all the same (seen on 6.18): what keeps them apart is that the copy's network isn't connected before the source has ended.
"""

import contextlib
import ctypes
import errno
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterable
from typing import Final

_PIDFD_GETFD: Final = 438
_TCP_REPAIR: Final = 19
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_TCP_INFO: Final = 11
_MOVED: Final = struct.Struct("=120xQQ")
"""Of `struct tcp_info`, `tcpi_bytes_acked` and `tcpi_bytes_received`."""
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


def wake(pids: Iterable[int]) -> None:
    """Take what a CRIU that was killed has left in repair mode out of it: what such a connection is to send goes out by repetition alone,
    late, and its end is told to nobody. The processes may run, or have ended. Raises nothing."""

    def loud(_inode: int, link: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if link.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR):
                link.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 0)

    for pid in pids:
        with contextlib.suppress(OSError):
            _each((pid,), loud)


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


def bound_of(pids: Iterable[int], *, connected: bool = True) -> set[str]:
    """The addresses that these processes' sockets have at their own end, of whatever protocol; without TCP connections unless `connected`.
    Raises OSError.
    """
    found: set[str] = set()

    def note(_inode: int, link: socket.socket) -> None:
        with contextlib.suppress(OSError):  # bound to none
            found.add(str(link.getsockname()[0]))

    _each(pids, note, lambda link: link.family in (socket.AF_INET, socket.AF_INET6) and (connected or not _connected(link)))
    return found


def moved(pids: Iterable[int]) -> dict[int, int]:
    """Bytes that each open connection of these processes has moved, both ways, by inode. Raises OSError."""
    found: dict[int, int] = {}

    def count(inode: int, link: socket.socket) -> None:
        info = link.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _MOVED.size)
        found[inode] = sum(_MOVED.unpack(info)) if len(info) == _MOVED.size else 0

    _each(pids, count)
    return found


def _each(pids: Iterable[int], call: Callable[[int, socket.socket], None], wanted: Callable[[socket.socket], bool] | None = None) -> None:
    """Each one that is `wanted` (None: each connection) once. What a process that runs closes meanwhile is left out."""
    seen: set[int] = set()
    for pid in pids:
        pidfd = os.pidfd_open(pid)
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                found = _socket(pid, pidfd, name)
                if found is None:
                    continue
                inode, link = found
                with contextlib.closing(link):
                    if inode not in seen and (wanted or _connected)(link):
                        call(inode, link)
                seen.add(inode)
        finally:
            os.close(pidfd)


def _socket(pid: int, pidfd: int, name: str) -> tuple[int, socket.socket] | None:
    """The socket that is one of a process' open files, with its inode. None: it is another kind of file, or was closed meanwhile."""
    try:
        # by the link's own text: to ask for the file behind it can take for ever, where a mount of the worker's hangs
        if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:["):
            return None
        taken = _take(pidfd, int(name))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EBADF):
            return None
        raise
    about = os.fstat(taken)
    if stat.S_ISSOCK(about.st_mode):
        with contextlib.suppress(OSError):  # of a family that has no addresses: no connection of ours
            return about.st_ino, socket.socket(fileno=taken)
    os.close(taken)  # or its number is another file's by now
    return None


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
