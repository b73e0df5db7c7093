"""Files that a worker has open or maps, and that have lost the name by which it does. CRIU finds a file by that name; one that has none at
all it takes along, up to a limit."""

import contextlib
import os
import re
import stat as modes
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from shunter.model.errors import Problem

_MARK: Final = " (deleted)"
_KERNEL_OWN: Final = ("/memfd:", "/SYSV", "/dev/zero (deleted)")
"""What the kernel shows as deleted files and never had a name: CRIU knows each by itself."""
_MAP: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .* (/.* \(deleted\))$", re.MULTILINE)


def kernels_own(target: str) -> bool:
    """It is no file of any file system that a process could have opened by a name."""
    return not target.startswith("/") or target.startswith(_KERNEL_OWN)


class Deleted(NamedTuple):
    """A file that a process has `how` (`open` or `mapped`), as `target` in /proc; `size` and `links` are the file's own."""

    target: str
    mode: int
    size: int
    links: int
    how: str = "open"


def of_file(file: Deleted, where: str, ghost_limit: int) -> Iterator[Problem]:
    """What is wrong with it. `ghost_limit`: bytes that a file without any name may have."""
    if kernels_own(file.target) or not modes.S_ISREG(file.mode):
        return
    if file.links == 0 and file.size > ghost_limit:
        yield Problem(
            code="SH726",
            what=f"{file.target} is unlinked but {file.how}, with {file.size} bytes: more than the {ghost_limit} that go into an image",
            remedy="Have the worker close it or keep it under its name",
            subject=where,
        )
    elif file.links > 0 and file.target.endswith(_MARK):
        name = file.target.removesuffix(_MARK)
        yield Problem(
            code="SH737",
            what=f"{name} is {file.how} and was deleted, but still has {file.links} other names, by none of which CRIU would find it",
            remedy="Have the worker keep the name by which it has it, or delete the others, too (a semaphore: sem_unlink)",
            subject=where,
        )


def of_maps(pid: int, ghost_limit: int) -> Iterator[Problem]:
    """The same of what a process maps; nothing when it is gone."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
    except OSError:
        return
    seen = set[str]()
    for start, end, target in _MAP.findall(text):
        if target not in seen and not kernels_own(target):
            seen.add(target)
            with contextlib.suppress(OSError):  # unmapped while we look
                about = os.stat(f"/proc/{pid}/map_files/{int(start, 16):x}-{int(end, 16):x}")
                file = Deleted(target, about.st_mode, about.st_size, about.st_nlink, "mapped")
                yield from of_file(file, f"pid {pid} map", ghost_limit)
