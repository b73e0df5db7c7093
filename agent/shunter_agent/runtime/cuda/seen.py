"""Which processes use a GPU, as /proc shows it."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

DEVICES: Final = "/dev/nvidia"
_LIBRARY: Final = "/libcuda.so"


def maps(pid: int) -> frozenset[str]:
    """The files that a process maps. Empty when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6)


def open_files(pid: int) -> frozenset[str]:
    """The files that a process has open. Empty when it is gone."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return frozenset(found)


def cuda_processes(pids: Iterable[int]) -> list[int]:
    """Those that have the driver's library loaded, whether or not they use it. That also shows of one whose GPU is taken away."""
    return [pid for pid in pids if any(_LIBRARY in path for path in maps(pid))]


def devices(pid: int) -> frozenset[str]:
    """The GPU devices that a process has open or maps."""
    return frozenset(path for path in open_files(pid) | maps(pid) if path.startswith(DEVICES))


def environment(pid: int) -> dict[str, str]:
    """What a process was started with. Empty when it can't be read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (part.decode(errors="replace").partition("=") for part in raw.split(b"\0"))
    return {name: value for name, mark, value in pairs if mark}
