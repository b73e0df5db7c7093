"""How much memory there is for a process: what the node has available, and what the cgroups that the process is in leave of their limits.

A process is killed by the kernel when any of its memory cgroups is full, however much the node has. Of a cgroup's pages those of files
count as free: the kernel takes them back first, as it does where it says what is available on the node.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shunter_agent.runtime.port import MemoryLimit

_PROC: Final = Path("/proc")


class _Files(NamedTuple):
    """What a version of cgroups calls its files, and the lines of its statistics that are taken back."""

    limits: tuple[str, ...]
    used: str
    reclaimed: tuple[str, ...]


_V2: Final = _Files(("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file", "slab_reclaimable"))
_V1: Final = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_NO_LIMIT: Final = 1 << 60
"""Version 1 says the largest number of whole pages where there is none."""


def available(proc: Path = _PROC, *, swapping: bool = False) -> int | None:
    """Bytes that the kernel could give, without `swapping` or with it. None: it doesn't say."""
    try:
        lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
        said = {fields[0]: int(fields[1]) * 1024 for fields in lines if fields[0] in ("MemAvailable:", "SwapFree:")}
    except (OSError, ValueError):
        return None
    free = said.get("MemAvailable:")
    return free + said.get("SwapFree:", 0) if free is not None and swapping else free


def limits_of(pid: int | str, proc: Path = _PROC) -> list[MemoryLimit]:
    """The limits of the memory cgroups that a process is in, its own first and then each above it that can be seen from here.

    Empty: there are none, or they can't be told, as of a process in a container where only that container's own cgroups are mounted.
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
        mounts = list(_mounts((proc / "self" / "mountinfo").read_text()))
    except OSError:
        return []
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        for version, root, point in mounts:
            if version == (1 if controllers else 2) and (below := _below(path, root)) is not None and (point / below).is_dir():
                found = limits_at(point / below, point)
                if found:
                    return found
    return []


def limits_at(folder: Path, top: Path | None = None) -> list[MemoryLimit]:
    """The limits of the cgroup in `folder` and of those above it, up to `top` (None: as far as there are cgroups)."""
    found: list[MemoryLimit] = []
    at = folder
    while (at / "cgroup.procs").exists():
        found += _limits(at)
        if at == top:
            break
        at = at.parent
    return found


def least(free: int | None, limits: Iterable[MemoryLimit]) -> tuple[int | None, str]:
    """The least of what is available and what limits leave, in bytes, and the file of the limit that it is; empty: of none. None: nothing
    is known."""
    path = ""
    for limit in limits:
        if free is None or limit.left < free:
            free, path = limit.left, limit.path
    return free, path


def shortest(bytes_of: Mapping[int, int], limits: Mapping[int, Sequence[MemoryLimit]], margin: float) -> tuple[int, MemoryLimit] | None:
    """The first limit that doesn't leave `margin` times what processes in it are about to take, and the bytes that these are. `bytes_of`
    and `limits` are by pid. None: all do."""
    taken: dict[str, int] = {}
    by_path = {limit.path: limit for each in limits.values() for limit in each}
    for pid, size in bytes_of.items():
        for limit in limits.get(pid, ()):
            taken[limit.path] = taken.get(limit.path, 0) + size
    return next(((size, by_path[path]) for path, size in taken.items() if by_path[path].left < size * margin), None)


def _mounts(text: str) -> Iterator[tuple[int, str, Path]]:
    """Version, root and place of each hierarchy that may have the memory controller."""
    for line in text.splitlines():
        fields, _mark, kind = line.partition(" - ")
        of, options = fields.split(), kind.split()
        if options[0] == "cgroup2":
            yield 2, of[3], Path(of[4])
        elif options[0] == "cgroup" and "memory" in options[-1].split(","):
            yield 1, of[3], Path(of[4])


def _below(path: str, root: str) -> str | None:
    """A cgroup's path below the root that is mounted; None: it isn't, or its folders' names can't be told from here."""
    if root != "/" and path != root and not path.startswith(f"{root}/"):
        return None
    below = path if root == "/" else path[len(root) :]
    return None if ".." in below.split("/") else below.lstrip("/")


def _limits(folder: Path) -> Iterator[MemoryLimit]:
    for files in (_V2, _V1):
        with contextlib.suppress(OSError, ValueError):  # the root has none; or it is gone
            used = int((folder / files.used).read_text()) - _reclaimed(folder, files)
            for name in files.limits:
                text = (folder / name).read_text().strip()
                if text != "max" and int(text) < _NO_LIMIT:
                    yield MemoryLimit(path=str(folder / name), most=int(text), left=max(0, int(text) - used))


def _reclaimed(folder: Path, files: _Files) -> int:
    pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return sum(int(value) for name, value in pairs if name in files.reclaimed)
