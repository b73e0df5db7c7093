"""Mounts: what a container has, and how a copy of one's whole tree comes into another mount namespace.

A worker is restored by a CRIU that lives in a mount namespace made for it: the agent's own, so that CRIU and the image are where they are,
with the placeholder's tree put at one place in it. From there CRIU takes each mount that the image names.
"""

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from shunter_agent.runtime.namespaces import CLONE_NEWPID, call, errand

T = TypeVar("T")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_CLONE_FS: Final = 0x200
_CLONE_NEWNS: Final = 0x2_0000
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2 = 428, 429, 437
_AT_FDCWD: Final = -100
_CLONE_TREE: Final = 0x1 | 0x8000 | 0o2000000
"""OPEN_TREE_CLONE, AT_RECURSIVE and OPEN_TREE_CLOEXEC."""
_EMPTY_PATH: Final = 0x4
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x4_0000
_IN_ROOT: Final = 0x10 | 0x02
"""RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS."""
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One line of mountinfo. `root` is what of its file system is mounted, `device` that file system's number."""

    id: int
    parent: int
    device: str
    root: str
    point: str
    kind: str
    options: frozenset[str]
    own: frozenset[str]
    """Of the file system itself."""

    @property
    def writable(self) -> bool:
        """Neither it nor its file system is read-only."""
        return "ro" not in self.options and "ro" not in self.own

    def option(self, name: str) -> str | None:
        """The value of one of the file system's options. None: it has no such."""
        found = [one.partition("=")[2] for one in self.own if one.startswith(f"{name}=")]
        return found[0] if found else None


def of(pid: int | str) -> list[Mount]:
    """The mounts that a process sees, in the order of the kernel. Raises OSError when it is gone."""
    return [parse(line) for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]


def parse(line: str) -> Mount:
    """One line of mountinfo, whose optional fields end with a dash."""
    before, _, after = line.partition(" - ")
    fields, rest = before.split(), after.split()
    return Mount(
        id=int(fields[0]),
        parent=int(fields[1]),
        device=fields[2],
        root=_plain(fields[3]),
        point=_plain(fields[4]),
        kind=rest[0],
        options=frozenset(fields[5].split(",")),
        own=frozenset(_plain(part) for part in rest[2].split(",")) if len(rest) > 2 else frozenset(),
    )


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


class Namespaces:
    """A container's namespaces as descriptors, which keep them and can't come to mean another's. Close it."""

    def __init__(self, pid: int, kinds: Sequence[str] = ("mnt", "net", "uts", "ipc", "cgroup", "pid")) -> None:
        """Of process `pid`. Raises OSError when it is gone."""
        self._opened: dict[str, int] = {}
        try:
            for kind in kinds:
                self._opened[kind] = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.close()
            raise

    def __getitem__(self, kind: str) -> int:
        return self._opened[kind]

    def close(self) -> None:
        """Idempotent."""
        while self._opened:
            os.close(self._opened.popitem()[1])


def beside(spaces: Namespaces, function: Callable[[], T]) -> T:
    """Call `function` in a thread that has a container's network, host name, IPC and cgroup namespaces, and the agent's files and
    processes: what it starts can dump the container from outside. Raises OSError, and what `function` raises."""

    def run() -> T:
        for kind in ("net", "uts", "ipc", "cgroup"):
            call("setns", spaces[kind], 0)
        return function()

    return errand(run)


def within(spaces: Namespaces, stage: Path, instead: tuple[Path, Path], function: Callable[[], T]) -> T:
    """Call `function` in a thread whose children live in a container: they have all of its namespaces but the one of mounts, which is a
    copy of the agent's with the container's whole tree at `stage`, the container's /proc, and the second file of `instead` in the place of
    the first. Raises OSError, and what `function` raises.

    In the container's own mount namespace nothing is done but to take hold of its tree. No module may be imported there: it would be the
    container's.
    """
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def run() -> T:
        call("unshare", _CLONE_FS)
        call("setns", spaces["mnt"], 0)
        tree, proc = -1, -1
        try:
            try:
                tree = _open_tree(b"/")
                proc = _open_tree(b"/proc")
            finally:
                call("setns", own, 0)
            call("unshare", _CLONE_NEWNS)
            _mount(b"none", b"/", _MS_REC | _MS_PRIVATE)
            _move_mount(tree, os.fsencode(stage))
            _move_mount(proc, b"/proc")
            _mount(os.fsencode(instead[1]), os.fsencode(instead[0]), _MS_BIND)
        finally:
            for descriptor in (tree, proc):
                if descriptor >= 0:
                    os.close(descriptor)
        for kind in ("net", "uts", "ipc", "cgroup"):
            call("setns", spaces[kind], 0)
        call("setns", spaces["pid"], CLONE_NEWPID)  # of the children alone, hence last
        return function()

    try:
        return errand(run)
    finally:
        os.close(own)


def carry_over(source: int, target: int, points: Sequence[str]) -> None:
    """Mount for process `target` what process `source` has at these points. Raises OSError, also where `target` has no place for it.

    As in `within`, nothing else is done in a container's mount namespace, and no module may be imported there.
    """
    names = [os.fsencode(point) for point in points]

    def run() -> None:
        call("unshare", _CLONE_FS)
        call("setns", there["mnt"], 0)
        opened: list[int] = []
        try:
            for name in names:
                opened.append(_open_tree(name))
            call("setns", here["mnt"], 0)
            for name, tree in zip(names, opened, strict=True):
                _move_mount(tree, name)
        finally:
            for tree in opened:
                os.close(tree)

    with contextlib.closing(Namespaces(source, ("mnt",))) as there, contextlib.closing(Namespaces(target, ("mnt",))) as here:
        errand(run)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _open_tree(path: bytes) -> int:
    return _checked(int(_LIBC.syscall(_OPEN_TREE, _AT_FDCWD, path, ctypes.c_uint(_CLONE_TREE))), "open_tree")


def _move_mount(tree: int, to: bytes) -> None:
    _checked(int(_LIBC.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, to, ctypes.c_uint(_EMPTY_PATH))), "move_mount")


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _checked(int(_LIBC.mount(source, target, None, ctypes.c_ulong(flags), None)), "mount")


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


class Root:
    """A container's file system as the agent reaches it: names are looked up as if its root were the root, whatever links are on the way.
    Close it."""

    def __init__(self, pid: int) -> None:
        """Of process `pid`. Raises OSError when it is gone."""
        self._root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Idempotent."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def open(self, path: str, flags: int) -> int:
        """A descriptor of `path` there. Raises OSError."""
        how = _How(flags | os.O_CLOEXEC, 0, _IN_ROOT)
        found = _LIBC.syscall(_OPENAT2, self._root, os.fsencode(path.lstrip("/") or "."), ctypes.byref(how), ctypes.sizeof(how))
        return _checked(int(found), path)

    @contextlib.contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """A descriptor of a folder, for as long as this lasts. Raises OSError."""
        found = self.open(path, os.O_PATH | os.O_DIRECTORY)
        try:
            yield found
        finally:
            os.close(found)
