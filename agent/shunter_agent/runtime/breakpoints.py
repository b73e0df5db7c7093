"""Breakpoints that somebody has put into a worker's programs and libraries: uprobes, as profilers and eBPF monitors of GPUs do.

A breakpoint is a byte of a program in memory, and so a part of an image. Restored where nobody knows of it, it ends the worker when it is
next reached. It shows in two ways: the kernel lists the probes that were defined through tracefs, also those that wait to be switched on;
those of perf and of eBPF are listed nowhere, but like all others they differ from their file once they are there.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shunter.model.errors import Problem

EVENTS: Final = (Path("/sys/kernel/tracing/uprobe_events"), Path("/sys/kernel/debug/tracing/uprobe_events"))
_EVENT: Final = re.compile(r"[pr]\d*:(\S+) (.+?):(0x[0-9a-f]+)", re.ASCII)
_INT3: Final = 0xCC
"""The instruction on x86, which is one byte."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_ENTRY: Final = 8
_PRESENT, _OF_FILE = 1 << 7, 1 << 5
"""Bits of the last byte of an entry of /proc/PID/pagemap: the page is in memory, and it is still the file's."""
_CHANGED: Final = bytes((last & (_PRESENT | _OF_FILE)) == _PRESENT for last in range(256))


class Program(NamedTuple):
    """A part of a file that a process maps as one: addresses, offset in the file, and its path in the process' own mounts."""

    start: int
    end: int
    offset: int
    path: str

    @property
    def link(self) -> str:
        """Its name in /proc/PID/map_files."""
        return f"{self.start:x}-{self.end:x}"


def check(pids: Iterable[int], events: Sequence[Path] = EVENTS) -> Iterator[Problem]:
    """SH762 for each file that a process of these maps as a program, and that has a breakpoint in it; once for each process and file."""
    defined = _defined(events)
    for pid in pids:
        said: set[str] = set()
        for one in _programs(pid):
            if one.path in said:
                continue
            why = _named(pid, one, defined) or _seen(pid, one)
            if why:
                said.add(one.path)
                yield _problem(pid, one.path, why)


def _problem(pid: int, path: str, why: str) -> Problem:
    return Problem(
        code="SH762",
        what=f"{path} has a breakpoint in it, which would go into the image and end the worker where it is restored: {why}",
        remedy="End what probes it (profilers, GPU or eBPF monitors; see uprobe_events in /sys/kernel/tracing), then ask again",
        subject=f"pid {pid}",
    )


def _defined(events: Sequence[Path]) -> dict[str, str]:
    """By the path of the file: what the kernel calls the first probe in it, and where that is."""
    found: dict[str, str] = {}
    for path in events:
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                if match := _EVENT.match(line):
                    found.setdefault(match[2], f"the uprobe {match[1]} at {match[3]}")
    return found


def _programs(pid: int) -> Iterator[Program]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and "x" in fields[1] and fields[5].startswith("/"):
            start, end = (int(address, 16) for address in fields[0].split("-"))
            yield Program(start, end, int(fields[2], 16), fields[5])


def _named(pid: int, one: Program, defined: Mapping[str, str]) -> str:
    """A container calls a file otherwise than the node does: it is the file that counts."""
    for path, why in defined.items():
        if path == one.path:
            return why
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), os.stat(f"/proc/{pid}/map_files/{one.link}")):
                return why
    return ""


def _seen(pid: int, one: Program) -> str:
    if os.uname().machine != "x86_64":
        return ""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # it has ended, or maps that no more
        file = stack.enter_context(open(f"/proc/{pid}/map_files/{one.link}", "rb", buffering=0))
        memory = stack.enter_context(open(f"/proc/{pid}/mem", "rb", buffering=0))
        for address in _changed(pid, one):
            at = one.offset + address - one.start
            found = broken(os.pread(memory.fileno(), _PAGE, address), os.pread(file.fileno(), _PAGE, at))
            if found is not None:
                return f"at {at + found:#x} of the file"
    return ""


def _changed(pid: int, one: Program) -> Iterator[int]:
    """The pages of it that aren't the file's any more."""
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        entries = os.pread(pagemap.fileno(), (one.end - one.start) // _PAGE * _ENTRY, one.start // _PAGE * _ENTRY)
    changed = entries[_ENTRY - 1 :: _ENTRY].translate(_CHANGED)  # of the libraries of an engine it is a million
    number = changed.find(1)
    while number >= 0:
        yield one.start + number * _PAGE
        number = changed.find(1, number + 1)


def broken(memory: bytes, file: bytes) -> int | None:
    """Where a page has a breakpoint that its file doesn't have; None: nowhere. What a linker or the program itself has changed differs in
    more than a byte."""
    differing = [n for n, (now, then) in enumerate(zip(memory, file, strict=False)) if now != then]
    near = set(differing)
    return next((n for n in differing if memory[n] == _INT3 and not {n - 1, n + 1} & near), None)
