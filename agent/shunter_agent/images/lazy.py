"""The memory of an image that CRIU can leave to another process to load: private memory of no file, and no stack in use.

CRIU's own dumps mark it in their pagemaps, and an image that is spread over its copy keeps the marks. What is said here is where its bytes
are, cut so that each part lies within one mapping of the process and is short enough for several threads to share the work.
"""

import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from shunter_agent.images.criu_images_pb2 import MmEntry
from shunter_agent.images.cutting import CHUNK, pages_name
from shunter_agent.images.pagemap import LAZY, PAGE, PARENT, NotAPagemap, Pagemap, Run, parse
from shunter_agent.images.spread import COPY
from shunter_agent.images.stretches import Stretch, Stretches, locate

_PAGEMAP: Final = re.compile(r"pagemap-(\d+)\.img", re.ASCII)
_MM_HEAD: Final = struct.Struct("<III")
_MM_MAGIC: Final = (0x54564319, 0x57492820)
_NOTHING: Final = Pagemap(pages_id=0, runs=())


class LazyMemory:
    """What can be left out of each process, by the pid that it knows itself by. Close it after use."""

    def __init__(self, folder: Path) -> None:
        """Of the image in `folder`. Raises NotAPagemap when its files don't fit together; OSError."""
        self._files = ExitStack()
        try:
            found = {int(match[1]): self._parts(folder, path.name, match[1]) for path, match in _pagemaps(folder)}
        except BaseException:
            self._files.close()
            raise
        self.processes: Mapping[int, tuple[Stretch, ...]] = {pid: parts for pid, parts in found.items() if parts}
        """Ascending, of at most 1 MiB each, without those of which nothing can be left out."""

    def __enter__(self) -> "LazyMemory":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of its files."""
        self._files.close()

    @property
    def bytes(self) -> int:
        """Of all processes."""
        return sum(part.end - part.vaddr for parts in self.processes.values() for part in parts)

    @property
    def shared(self) -> int:
        """How many bytes at most were shared between processes: what lies at the same addresses in several, after a fork perhaps."""
        total, beyond = 0, 0
        for part in sorted(part for parts in self.processes.values() for part in parts):
            total += max(0, min(part.end, beyond) - part.vaddr)
            beyond = max(beyond, part.end)
        return total

    def _parts(self, folder: Path, name: str, pid: str) -> tuple[Stretch, ...]:
        pagemap = parse((folder / name).read_bytes())
        lazy = [run for run in pagemap.runs if run.flags & LAZY]
        if not lazy:
            return ()
        own, copied = self._opened(folder, pagemap), Stretches(_NOTHING, -1)
        if any(run.flags & PARENT for run in lazy):
            copied = self._opened(folder / COPY, parse((folder / COPY / name).read_bytes()))
        mappings = _mappings((folder / f"mm-{pid}.img").read_bytes())
        return tuple(
            Stretch(at, until, stretch.descriptor, stretch.offset + at - stretch.vaddr)
            for run in _cut(lazy, mappings)
            for stretch, at, until in locate(run, own, copied)
        )

    def _opened(self, folder: Path, pagemap: Pagemap) -> Stretches:
        if not pagemap.own:
            return Stretches(pagemap, -1)
        descriptor = os.open(folder / pages_name(pagemap), os.O_RDONLY | os.O_CLOEXEC)
        self._files.callback(os.close, descriptor)
        if os.fstat(descriptor).st_size != pagemap.bytes:
            raise NotAPagemap("a pages file has another size than its pagemap says")
        return Stretches(pagemap, descriptor)


def _pagemaps(folder: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for path in sorted(folder.iterdir()):
        match = _PAGEMAP.fullmatch(path.name)
        if match:
            yield path, match


def _mappings(data: bytes) -> list[tuple[int, int]]:
    """Where each mapping begins and ends, ascending."""
    if len(data) < _MM_HEAD.size or _MM_HEAD.unpack_from(data)[:2] != _MM_MAGIC:
        raise NotAPagemap("what should list a process' mappings doesn't")
    try:
        entry = MmEntry.FromString(data[_MM_HEAD.size :][: _MM_HEAD.unpack_from(data)[2]])
    except DecodeError as error:
        raise NotAPagemap(f"what should list a process' mappings doesn't: {error}") from error
    return sorted((vma.start, vma.end) for vma in entry.vmas)


def _cut(runs: Iterable[Run], mappings: list[tuple[int, int]]) -> Iterator[Run]:
    """The same pages, at most a MiB each, none across the end of a mapping. Raises NotAPagemap for those outside of all."""
    rest = iter(mappings)
    begin, end = next(rest, (0, 0))
    for run in sorted(runs):
        at = run.vaddr
        while at < run.end:
            while at >= end:
                begin, end = next(rest, (1 << 64, 1 << 64))
            if at < begin:
                raise NotAPagemap("a page lies in no mapping of its process")
            until = min(run.end, end, (at // CHUNK + 1) * CHUNK)
            yield Run(at, (until - at) // PAGE, run.flags)
            at = until
