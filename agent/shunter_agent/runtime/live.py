"""The memory of running processes, as a dump of them would take it: for copying ahead of one, never instead of one."""

import contextlib
import ctypes
import mmap
import os
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from shunter_agent.runtime import process as processes
from shunter_agent.runtime.port import Process

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_AT_ONCE: Final = 1 << 16
"""Pages whose entries are read at once."""
_PRESENT: Final = 1 << 63
_OF_A_FILE: Final = 1 << 61
_PFN: Final = (1 << 55) - 1


class _Region(NamedTuple):
    begin: int
    end: int


class LiveMemory:
    """Implements `port.Live`."""

    def __init__(self, pid: int, inner: int) -> None:
        """`pid` is this process' name for it, `inner` its own. Raises OSError."""
        self.pid = inner
        self._pid = pid
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def runs(self) -> Sequence[tuple[int, int]]:
        """See `port.Live`. Private memory that is resident and no mere page of a file. Raises OSError."""
        with open(f"/proc/{self._pid}/pagemap", "rb", buffering=0) as pagemap:
            return [run for region in _regions(Path(f"/proc/{self._pid}/maps").read_text()) for run in _runs(pagemap.fileno(), region)]

    def read(self, address: int, into: memoryview) -> bool:
        """See `port.Live`."""
        with contextlib.suppress(OSError):
            if os.preadv(self._memory, [into], address) == len(into):
                return True
        if not Path(f"/proc/{self._pid}").exists():
            raise ProcessLookupError(f"process {self._pid} is gone")
        return False  # unmapped meanwhile

    def close(self) -> None:
        """See `port.Live`."""
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


def memories(root: Process) -> Sequence[LiveMemory]:
    """All processes of its tree; those that end meanwhile are left out. Raises OSError when the root is gone, or isn't ours to look at."""
    if not processes.find(root):
        raise ProcessLookupError(f"process {root.pid} is gone")
    found = [LiveMemory(root.pid, _inner(root.pid))]
    for pid in processes.tree(root.pid)[1:]:
        with contextlib.suppress(OSError):
            found.append(LiveMemory(pid, _inner(pid)))
    return found


def _inner(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def _regions(maps: str) -> Iterator[_Region]:
    """What a dump takes from the process itself: private mappings, but none of a device's memory."""
    for line in maps.splitlines():
        places, rights, _offset, _device, _inode, *path = line.split(maxsplit=5)
        name = path[0] if path else ""
        if rights[3] == "p" and rights[0] == "r" and not name.startswith(("/dev/", "[v")):
            begin, end = (int(place, 16) for place in places.split("-"))
            yield _Region(begin, end)


def _runs(pagemap: int, region: _Region) -> Iterator[tuple[int, int]]:
    begin = region.begin
    while begin < region.end:
        entries = array("Q", os.pread(pagemap, 8 * min(_AT_ONCE, (region.end - begin) // _PAGE), begin // _PAGE * 8))
        if not entries:
            return
        yield from ((begin + first * _PAGE, count) for first, count in _resident(entries))
        begin += len(entries) * _PAGE


def _resident(entries: Sequence[int]) -> Iterator[tuple[int, int]]:
    zero, first = _zero(), None
    for n, entry in enumerate(entries):
        if entry & _PRESENT and not entry & _OF_A_FILE and entry & _PFN != zero:
            if first is None:
                first = n
        elif first is not None:
            yield first, n - first
            first = None
    if first is not None:
        yield first, len(entries) - first


@cache
def _zero() -> int:
    """The frame of the page of zeros that all processes share until they write; -1 where frames aren't told."""
    with mmap.mmap(-1, _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        page.read(1)  # so that it is there
        where = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(where)
        del where  # or the mapping couldn't be closed
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            (entry,) = array("Q", os.pread(pagemap.fileno(), 8, address // _PAGE * 8))
    return entry & _PFN or -1
