"""What a worker uses of the node that it is on, as CRIU wants to find it wherever the worker is restored, and what of that a node lacks.

CRIU opens every file that a process maps, has open or stands in by its path, and compares types, rights, sizes and build ids; and it binds
sockets to the address that they had. Either fails at the restore, while the worker stands still; both sides of a move compare them before.
An image of a worker that is gone says the same of itself, and nobody stands still for it: there CRIU's own refusal is soon enough.

A connection with a process outside of the worker by a loopback address isn't among it: where the worker comes to, nobody is at its other
end, and it ends.
"""

import contextlib
import errno
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem

from shunter_agent.runtime import connections, preflight
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.buildid import build_id
from shunter_agent.runtime.port import FileUse, Process, Uses

NAMED: Final = 3
"""Files that are named in a message; of more, the number is told."""
_ELSEWHERE: Final = re.compile(r"/(proc|sys|dev(?!/shm/))/|/(memfd:|SYSV)")
"""What begins so is made by the kernel, on any node, or goes along."""
_GONE: Final = " (deleted)"
_KINDS: Final = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISFIFO)


def of_tree(process: Process, *, own_network: bool, closes: bool = False) -> Uses:
    """What the worker's processes use. `own_network`: it takes its addresses along; `closes`: its connections end when it leaves.

    A tree changes while it is looked at: what has been closed or has ended meanwhile is left out. Raises OSError.
    """
    pids = processes.tree(process.pid)
    files: dict[str, FileUse] = {}
    for use in _files(pids):
        files[use.path] = _both(files.get(use.path, use), use)
    local = set[str]() if own_network else set(_local(pids, connected=not closes))
    return Uses(files=tuple(files[path] for path in sorted(files)), addresses=tuple(sorted(local)))


def _both(one: FileUse, other: FileUse) -> FileUse:
    """One file that is used in two ways: its size lasts if it does by both."""
    lasts = one.bytes is not None and other.bytes is not None
    return FileUse(path=one.path, mode=other.mode, bytes=other.bytes if lasts else None, build=one.build or other.build)


def lacking(uses: Uses, node: str) -> list[Problem]:
    """What this node lacks of it: SH767 files, SH768 addresses. Raises OSError."""
    found = [why for use in uses.files if (why := _differs(use)) is not None]
    problems = []
    if found:
        more = f"; and {len(found) - NAMED} more files" if len(found) > NAMED else ""
        remedy = "Install the same version of what the worker runs on this node, put its files there, or choose another node"
        problems.append(_problem("SH767", "; ".join(found[:NAMED]) + more, remedy, node))
    if missing := [address for address in uses.addresses if not _is_here(address)]:
        what = f"the worker has sockets bound to {', '.join(missing)}, which isn't an address of this node"
        remedy = "Give the worker a network of its own (`mac`), which it takes along, or have it listen at all addresses"
        problems.append(_problem("SH768", what, remedy, node))
    return problems


def _files(pids: Iterable[int]) -> Iterator[FileUse]:
    for pid in pids:
        for link in ("cwd", "root"):
            with contextlib.suppress(OSError):
                yield from _by_path(os.readlink(f"/proc/{pid}/{link}"))
        for file in preflight.open_files(pid):
            if file.links:
                yield from _by_path(file.target, writes=file.writes)
        yield from _mapped(pid)


def _mapped(pid: int) -> Iterator[FileUse]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return
    rights: dict[str, str] = {}
    for line in lines:
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/"):
            rights[parts[5]] = rights.get(parts[5], "") + parts[1]
    for path, given in rights.items():
        yield from _by_path(path, runs="x" in given)


def _by_path(path: str, *, writes: bool = False, runs: bool = False) -> Iterator[FileUse]:
    """One use, if it is of something that has to be there under that name. What is written to has no size that would last."""
    if not path.startswith("/") or path.endswith(_GONE) or _ELSEWHERE.match(path):
        return
    with contextlib.suppress(OSError):  # gone since
        about = os.stat(path)
        if any(kind(about.st_mode) for kind in _KINDS):
            sized = stat.S_ISREG(about.st_mode) and not writes
            size = about.st_size if sized else None
            yield FileUse(path=path, mode=about.st_mode, bytes=size, build=build_id(path) if runs and sized else "")


def _differs(use: FileUse) -> str | None:
    """How what is here under that name differs, with both values; None: it doesn't."""
    try:
        about = os.stat(use.path)
        if use.mode and about.st_mode != use.mode:
            return f"the worker uses {use.path} as {stat.filemode(use.mode)}, here it is {stat.filemode(about.st_mode)}"
        if use.bytes is None:
            return None
        if about.st_size != use.bytes:
            return f"the worker uses {use.path} with {use.bytes} bytes, here it has {about.st_size}"
        if use.build and (own := build_id(use.path)) != use.build:
            return f"the worker uses {use.path} of build {use.build}, here it is of build {own or 'unknown'}"
    except OSError as error:
        return f"the worker uses {use.path}, which this node can't open: {error.strerror or error}"
    return None


def _local(pids: Iterable[int], *, connected: bool) -> Iterator[str]:
    """Addresses that sockets are bound to, those of TCP connections if `connected`; loopback ones each node has for itself."""
    for told in connections.bound_of(pids, connected=connected):
        address = ipaddress.ip_address(re.sub("%.*", "", told))
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        own = mapped or address
        if not own.is_loopback and not own.is_unspecified:
            yield str(own)


def _is_here(address: str) -> bool:
    """A connection can be bound to it, which is what CRIU will do."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def _problem(code: str, what: str, remedy: str, subject: str) -> Problem:
    return Problem(code=code, what=what, remedy=remedy, subject=subject)
