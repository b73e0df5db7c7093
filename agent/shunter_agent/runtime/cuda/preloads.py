"""Libraries that were put between a process and the CUDA driver, by LD_PRELOAD or by the driver's own ways.

What such a library holds open, counts or has handed out instead of the driver's own goes into an image, and nobody knows whether it works
where it is restored. Allocators aren't about the driver; what else is known to be harmless, the agent's settings name.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from shunter.model.errors import Problem

ALLOCATORS: Final = frozenset({"libtcmalloc", "libtcmalloc_minimal", "libjemalloc", "libmimalloc"})
_PRELOAD: Final = "LD_PRELOAD"
_FILE: Final = "etc/ld.so.preload"
_INJECTED: Final = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
"""What the driver and NVIDIA's tools extension load into each process: how profilers get in."""
_SPLIT: Final = re.compile(r"[:\s]+")


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked to be loaded into a process: the `library` as it was named, and `by` what."""

    library: str
    by: str


def asked(pid: int, environment: Mapping[str, str]) -> list[Loaded]:
    """What its environment and its root's own list name. Nothing of one that is gone."""
    found = [(library, _PRELOAD) for library in _SPLIT.split(environment.get(_PRELOAD, ""))]
    found += [(environment.get(name, ""), name) for name in _INJECTED]
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/root/{_FILE}").read_text(errors="replace")
        found += [(library, f"/{_FILE}") for line in text.splitlines() for library in _SPLIT.split(line.partition("#")[0])]
    return [Loaded(library=library, by=by) for library, by in found if library]


def stem(library: str) -> str:
    """The name of a library without folders, version and what a linker knows it by: `libfoo` of `/usr/lib/libfoo.so.1.2`."""
    return os.path.basename(library).partition(".so")[0]


def of_process(pid: int, loaded: Collection[Loaded], maps: Collection[str], allowed: Collection[str] = ()) -> Iterator[Problem]:
    """SH763 for each of these that the process really has mapped, and that is neither an allocator nor `allowed` (by its stem)."""
    there = {stem(path) for path in maps}
    for one in loaded:
        name = stem(one.library)
        if name in there and name not in ALLOCATORS and name not in allowed:
            what = (
                f"process {pid} uses a GPU and has {one.library} loaded by {one.by}: what is between it and the driver may not be restored"
            )
            to_do = f'Start the worker without it, or, where it is known to be restored well, add "{name}" to the agent\'s `preloads`'
            yield Problem(code="SH763", what=what, remedy=to_do, subject=f"pid {pid}")
