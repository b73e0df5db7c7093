"""What would make a dump fail, read from /proc and said in words, before anything is stopped.

CRIU's own messages for these are cryptic ("Can't dump file 3 of that type [600]"), come after the worker was stopped, and for one of them
(a UNIX stream with a peer outside) only at the restore.
"""

import contextlib
import os
import re
import stat as modes
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from shunter.model.errors import Problem

from shunter_agent.runtime import breakpoints, deleted
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.cuda.seen import DEVICES as GPU
from shunter_agent.runtime.namespaces import network_of
from shunter_agent.runtime.port import Process
from shunter_agent.runtime.unixpeers import stream_peers

_ANONYMOUS_FINE: Final = frozenset({"[eventpoll]", "[eventfd]", "[timerfd]", "[signalfd]", "inotify", "[pidfd]", "[fanotify]"})
_SOCKETS_FINE: Final = frozenset(
    {"TCP", "TCPv6", "UDP", "UDPv6", "UDP-Lite", "UDPLITEv6", "UNIX", "UNIX-STREAM", "NETLINK", "PACKET", "RAW", "RAWv6", "PING", "PINGv6"}
)
_DEVICES_FINE: Final = re.compile(r"/dev/(null|zero|full|random|urandom|tty|ptmx|pts/.*|kmsg|net/tun)( \(deleted\))?|.*/pts/ptmx")

_NAMESPACES: Final = ("mnt", "net", "uts", "ipc", "user", "cgroup", "pid")
_RDMA: Final = "/dev/infiniband"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_FLAGS: Final = re.compile(r"^flags:\s*([0-7]+)", re.MULTILINE)
_MNT_ID: Final = re.compile(r"^mnt_id:\s*(\d+)", re.MULTILINE)


class File(msgspec.Struct, frozen=True, kw_only=True):
    """One open descriptor. `size` and `links` are those of the file behind it; `protocol` is a socket's, else empty; `mount` is None
    where the kernel doesn't say.
    """

    pid: int
    fd: int
    target: str
    mode: int = 0
    size: int = 0
    links: int = 1
    protocol: str = ""
    mount: int | None = None
    writes: bool = False
    """It may be written to through this descriptor."""

    @property
    def where(self) -> str:
        """For a problem's subject."""
        return f"pid {self.pid} fd {self.fd}"


def traced(pid: int) -> bool:
    """Somebody traces it: a debugger, or CRIU while it dumps. False when it is gone."""
    return processes.status(pid).get("TracerPid", "0") != "0"


def check(process: Process, *, ghost_limit: int, contained: bool = False) -> tuple[Problem, ...]:
    """Everything known against a dump of this process tree; empty when nothing is. `ghost_limit`: bytes of an unlinked file that fit in.
    `contained`: it lives in a container, which is dumped with its mounts.

    A tree changes while it is looked at: what has been closed or has ended meanwhile is left out.
    """
    if not processes.find(process):
        return (processes.gone(process.pid),)
    pids = processes.tree(process.pid)
    found = [*_of_root(process.pid), *(() if contained else _of_namespace(process.pid)), *nested(process, contained=contained)]
    opened = [file for pid in pids for file in open_files(pid)]
    for file in opened:
        found.extend(_of_file(file, ghost_limit))
    for pid in pids:
        found.extend(_of_mounts(pid, opened))
        found.extend(_of_maps(pid))
        found.extend(deleted.of_maps(pid, ghost_limit))
    found.extend(breakpoints.check(pids))
    found.extend(_of_unix_peers(process.pid, opened))
    return tuple(found)


def _of_root(pid: int) -> Iterator[Problem]:
    status = processes.status(pid)
    if status.get("NSsid", "1").split()[-1] == "0":
        yield _problem(
            "SH731",
            "the session leader is outside of the worker's PID namespace",
            "Start the worker through the agent, which makes it a session leader",
            f"pid {pid}",
        )
    if status.get("TracerPid", "0") != "0":
        yield _problem(
            "SH733",
            f"it is traced by process {status['TracerPid']}, and can have one tracer only",
            "End the debugger, or wait for the dump that is going on",
            f"pid {pid}",
        )


def _of_namespace(pid: int) -> Iterator[Problem]:
    """What is dumped from another mount namespace than CRIU's can't be restored, here or elsewhere: it fails deep in CRIU ("mnt: BUG")."""
    try:
        same = os.stat(f"/proc/{pid}/ns/mnt").st_ino == os.stat("/proc/self/ns/mnt").st_ino
    except OSError:  # it has ended, or it can't be seen: then CRIU says more
        return
    if not same:
        yield _problem(
            "SH735",
            "it is in another mount namespace than its agent, and an image of it couldn't be restored anywhere",
            "Run the agent without ProtectSystem= and its like, which give it a new one at each start, and start the worker anew",
            f"pid {pid}",
        )


def nested(process: Process, *, contained: bool = False) -> Iterator[Problem]:
    """Namespaces of its own that a process of the tree has made. CRIU refuses to dump most of them; an image with another network or other
    mounts is made, and can't be restored. The mounts of a `contained` worker are its container's, and dumped.
    """
    kinds = [kind for kind in _NAMESPACES if not (contained and kind == "mnt")]
    with contextlib.suppress(OSError):  # its root has ended
        own = {kind: os.readlink(f"/proc/{process.pid}/ns/{kind}") for kind in kinds}
        for pid in processes.tree(process.pid)[1:]:
            with contextlib.suppress(OSError):  # it has ended, or is about to
                other = {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in kinds}
                if names := ", ".join(f"{other[kind]} instead of {own[kind]}" for kind in kinds if other[kind] != own[kind]):
                    yield _problem(
                        "SH736",
                        f"a process of the worker is in namespaces of its own, as a sandbox makes them: {names}",
                        "Have the worker end it, or run such tools elsewhere, before it is frozen",
                        f"pid {pid}",
                    )


def open_files(pid: int) -> Iterator[File]:
    """What a process has open; nothing when it is gone."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):  # closed while we look
            yield _file(pid, int(name))


def _file(pid: int, fd: int) -> File:
    path = f"/proc/{pid}/fd/{fd}"
    target = os.readlink(path)
    about = os.stat(path)
    protocol = os.getxattr(path, "system.sockprotoname").rstrip(b"\0").decode() if modes.S_ISSOCK(about.st_mode) else ""
    info = Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
    mount, flags = _MNT_ID.search(info), _FLAGS.search(info)
    return File(
        pid=pid,
        fd=fd,
        target=target,
        mode=about.st_mode,
        size=about.st_size,
        links=about.st_nlink,
        protocol=protocol,
        mount=int(mount[1]) if mount else None,
        writes=flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY,
    )


def _of_file(file: File, ghost_limit: int) -> Iterator[Problem]:
    if file.target.startswith("anon_inode:"):
        yield from _of_anonymous(file.target.removeprefix("anon_inode:"), file.where)
    elif file.protocol and file.protocol not in _SOCKETS_FINE:
        yield _problem(
            "SH722",
            f"a {file.protocol} socket is open, which CRIU can't dump",
            "Have the worker close it, or use TCP or UNIX sockets",
            file.where,
        )
    elif modes.S_ISCHR(file.mode) or modes.S_ISBLK(file.mode):
        yield from _of_device(file.target, file.where)
    else:
        yield from deleted.of_file(deleted.Deleted(file.target, file.mode, file.size, file.links), file.where, ghost_limit)


def _of_anonymous(kind: str, where: str) -> Iterator[Problem]:
    if kind == "[io_uring]":
        yield _problem(
            "SH720",
            "an io_uring is open, which CRIU can't dump",
            "Start the worker with io_uring off (UV_USE_IO_URING=0 for libuv, or the sysctl kernel.io_uring_disabled=2)",
            where,
        )
    elif kind not in _ANONYMOUS_FINE:
        yield _problem(
            "SH721",
            f"a kernel object that CRIU can't dump is open ({kind.strip('[]')})",
            "Have the worker close it before it is frozen",
            where,
        )


def _of_device(path: str, where: str) -> Iterator[Problem]:
    if path.startswith(GPU):
        return  # closed by the driver before CRIU comes: what speaks against that is told by `cuda.node`
    if path.startswith(_RDMA):
        yield _problem(
            "SH725", f"{path} is open: RDMA connections can't be moved", "Start the worker without RDMA (NCCL_IB_DISABLE=1)", where
        )
    elif not _DEVICES_FINE.fullmatch(path):
        yield _problem("SH723", f"the device {path} is open, which CRIU can't dump", "Have the worker close it before it is frozen", where)


def _of_mounts(pid: int, opened: list[File]) -> Iterator[Problem]:
    try:
        mounts = {int(line.split()[0]) for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()}
    except OSError:
        return
    for file in opened:
        if file.pid == pid and file.mount is not None and not deleted.kernels_own(file.target) and file.mount not in mounts:
            yield _problem(
                "SH727",
                f"{file.target} was opened in another mount namespace, where CRIU can't find it",
                "Start the worker through the agent, which hands it no descriptors",
                file.where,
            )


def _of_maps(pid: int) -> Iterator[Problem]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return
    for path in sorted({line.split(maxsplit=5)[5] for line in lines if line.count(" ") >= 5 and len(line.split(maxsplit=5)) == 6}):
        where = f"pid {pid} map"
        if path.startswith("/SYSV"):
            yield _problem(
                "SH729",
                "it maps System V shared memory of an IPC namespace that isn't its own",
                "Have the worker use POSIX shared memory",
                where,
            )
        elif path.startswith("anon_inode:"):
            yield from _of_anonymous(path.removeprefix("anon_inode:"), where)
        elif path.startswith((GPU, _RDMA)):
            yield from _of_device(path, where)


def _of_unix_peers(root: int, opened: list[File]) -> Iterator[Problem]:
    inodes = {int(match[1]): file for file in opened if (match := _SOCKET.fullmatch(file.target))}
    if not any(file.protocol.startswith("UNIX") for file in inodes.values()):
        return
    try:
        peers = _peers(root)
    except OSError as error:
        yield _problem(
            "SH734", f"its UNIX sockets can't be looked at: {error}", "Run the agent as root, on a kernel with unix_diag", f"pid {root}"
        )
        return
    for inode, file in inodes.items():
        if (peer := peers.get(inode)) is not None and peer not in inodes:
            yield _problem(
                "SH728",
                "a UNIX stream socket is connected to a process outside of the worker: it could be dumped, but never restored",
                "Have the worker close it before it is frozen, or use TCP",
                file.where,
            )


def _peers(root: int) -> dict[int, int]:
    netns = network_of(root)
    try:
        return stream_peers(netns)
    finally:
        os.close(netns)


def _problem(code: str, what: str, remedy: str, subject: str) -> Problem:
    return Problem(code=code, what=what, remedy=remedy, subject=subject)
