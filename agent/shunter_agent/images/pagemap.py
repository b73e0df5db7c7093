"""CRIU's `pagemap-*.img`: which pages of a process there are, and which of them a `pages-*.img` holds, in this order."""

import os
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from shunter_agent.images.criu_images_pb2 import PagemapEntry, PagemapHead

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
PARENT: Final = 1
"""The page is in the image that this one was made on top of."""
LAZY: Final = 2
"""The page may be loaded by another process than CRIU."""
PRESENT: Final = 4
"""The page is in this image's own pages file."""
_MAGIC: Final = struct.pack("<II", 0x54564319, 0x56084025)
_LENGTH: Final = struct.Struct("<I")


class Run(NamedTuple):
    """`pages` pages from address `vaddr` on."""

    vaddr: int
    pages: int
    flags: int = PRESENT

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.vaddr + self.pages * PAGE


class Pagemap(msgspec.Struct, frozen=True, kw_only=True):
    """The pages file is `pages-<pages_id>.img`; runs are in the order of the file."""

    pages_id: int
    runs: tuple[Run, ...]

    @property
    def own(self) -> tuple[Run, ...]:
        """Those whose bytes are in the pages file itself."""
        return tuple(run for run in self.runs if run.flags & PRESENT)

    @property
    def bytes(self) -> int:
        """How large the pages file is."""
        return sum(run.pages for run in self.own) * PAGE


class NotAPagemap(ValueError):
    """The bytes aren't those of a pagemap that this program can read."""


def parse(data: bytes) -> Pagemap:
    """Read a pagemap file. Raises NotAPagemap."""
    try:
        head, *entries = _records(data)
        pages_id = PagemapHead.FromString(head).pages_id
        runs = tuple(_run(PagemapEntry.FromString(entry)) for entry in entries)
    except (DecodeError, ValueError) as error:
        raise NotAPagemap(f"not a pagemap of CRIU: {error}") from error
    return Pagemap(pages_id=pages_id, runs=runs)


def _records(data: bytes) -> Iterator[bytes]:
    if data[: len(_MAGIC)] != _MAGIC:
        raise NotAPagemap("it doesn't begin as a pagemap does")
    at = len(_MAGIC)
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise NotAPagemap("it ends in the middle of a record")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise NotAPagemap("it ends in the middle of a record")
        yield data[at : at + length]
        at += length


def _run(entry: PagemapEntry) -> Run:
    pages = entry.nr_pages if entry.HasField("nr_pages") else entry.compat_nr_pages
    flags = entry.flags | (PARENT if entry.in_parent else 0)  # as CRIU reads what both its older and its newer releases write
    if not entry.in_parent and not entry.HasField("flags"):
        flags = PRESENT
    if pages <= 0 or entry.vaddr % PAGE:
        raise NotAPagemap("a run has no pages, or doesn't begin at one")
    return Run(entry.vaddr, pages, flags)


def parse_own(data: bytes) -> Pagemap:
    """Read a pagemap that an agent wrote, by `dump`, and that no manifest names: all of it counts, and each page is in one place, so that
    nothing can be read out of it by CRIU that isn't read out of it here. Raises NotAPagemap.
    """
    found = parse(data)
    if dump(found) != data:
        raise NotAPagemap("it isn't written as agents write them")
    at = 0
    for run in found.runs:
        if run.vaddr < at or run.flags & (PRESENT | PARENT) not in (PRESENT, PARENT) or run.flags & ~(PRESENT | PARENT | LAZY):
            raise NotAPagemap("it says of a page that it is in two places, or in none")
        at = run.end
    return found


def dump(pagemap: Pagemap) -> bytes:
    """The bytes of a pagemap file, as CRIU 4.1 and newer write and read it."""
    parts = [PagemapHead(pages_id=pagemap.pages_id).SerializeToString()]
    parts += [
        PagemapEntry(vaddr=run.vaddr, compat_nr_pages=0, flags=run.flags, nr_pages=run.pages).SerializeToString() for run in pagemap.runs
    ]
    return _MAGIC + b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same pages in as few runs as can be."""
    found: list[Run] = []
    for run in runs:
        if found and found[-1].end == run.vaddr and found[-1].flags == run.flags:
            found[-1] = Run(found[-1].vaddr, found[-1].pages + run.pages, run.flags)
        else:
            found.append(run)
    return tuple(found)
