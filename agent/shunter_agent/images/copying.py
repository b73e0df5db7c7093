"""Copying the memory of a worker that runs, so that only what changes afterwards is left to send while it stands still."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from blake3 import blake3

from shunter_agent.images.bases import pages_in
from shunter_agent.images.cutting import Piece, along, pages_name
from shunter_agent.images.manifest import Chunk
from shunter_agent.images.pagemap import PAGE, Pagemap, Run, joined
from shunter_agent.runtime.port import Live

_DIGEST: Final = 16
"""Bytes by which a page, or a block of them, is known again."""
_BLOCK: Final = 16
"""Pages that are looked at together first: one by one takes three times as long."""


@dataclass
class Job:
    """What is to be copied until when (monotonic seconds). `failed` says why not all of it was, in words; `done` is set in any case."""

    memories: Sequence[Live]
    until: float
    done: threading.Event = field(default_factory=threading.Event)
    failed: str = ""


@dataclass(frozen=True)
class _Known:
    runs: tuple[Run, ...]
    chunk: Chunk
    blocks: bytes
    pages: bytes


class Copied:
    """What was copied of one process: of each stretch of addresses which pages, and what they were."""

    def __init__(self, memory: Live, number: int, until: float) -> None:
        """`number` is that of the copy's pages file; nothing more is copied from `until` on."""
        self._memory = memory
        self._until = until
        self._known: dict[int, _Known] = {}
        self._number = number
        self._runs: list[Run] = []

    @property
    def pagemap(self) -> Pagemap:
        """Of the copy."""
        return Pagemap(pages_id=self._number, runs=joined(self._runs))

    @property
    def name(self) -> str:
        """Its pages file."""
        return pages_name(self.pagemap)

    def chunks(self) -> Iterator[tuple[Piece, bytes, Chunk]]:
        """Read the memory piece by piece; each is what it was at one moment or during a few, and is told where it goes. Raises OSError."""
        offset = 0
        for piece in along(Run(address, pages) for address, pages in self._memory.runs()):
            if time.monotonic() >= self._until:
                return
            data = self._read(piece)
            if data is None:
                continue
            chunk = Chunk(blake3(data).hexdigest(), piece.size)
            self._known[piece.window] = _Known(piece.runs, chunk, _digests(data, _BLOCK * PAGE), _digests(data, PAGE))
            self._runs.extend(piece.runs)
            yield Piece(offset, piece.size, piece.runs), data, chunk
            offset += piece.size

    def _read(self, piece: Piece) -> bytes | None:
        data = bytearray(piece.size)
        left = memoryview(data)
        for run in piece.runs:
            size = run.pages * PAGE
            if not self._memory.read(run.vaddr, left[:size]):
                return None
            left = left[size:]
        return bytes(data)

    def holds(self, piece: Piece, chunk: Chunk) -> bool:
        """All of it was the same when it was copied."""
        known = self._known.get(piece.window)
        return known is not None and known.chunk == chunk and places(known.runs) == places(piece.runs)

    def compare(self, piece: Piece, data: bytes | memoryview) -> tuple[tuple[Run, ...], bytes]:
        """Which pages of `data` were the same when they were copied, and the bytes of the others."""
        known = self._known.get(piece.window)
        if known is None:
            return (), bytes(data)
        if places(known.runs) != places(piece.runs):
            digests = {address: at // PAGE * _DIGEST for address, at in pages_in(known.runs)}
            differ = [at for address, at in pages_in(piece.runs) if not _is(known.pages, digests.get(address, -1), data[at : at + PAGE])]
        else:
            differ = list(_differing(known, memoryview(data)))
        return _without(piece.runs, differ), b"".join(data[at : at + PAGE] for at in differ)


def _differing(known: _Known, data: memoryview) -> Iterator[int]:
    """Where pages begin that aren't as they were, of the same pages."""
    for block in range(0, len(data), _BLOCK * PAGE):
        within = data[block : block + _BLOCK * PAGE]
        if not _is(known.blocks, block // (_BLOCK * PAGE) * _DIGEST, within):
            for at in range(0, len(within), PAGE):
                if not _is(known.pages, (block + at) // PAGE * _DIGEST, within[at : at + PAGE]):
                    yield block + at


def _without(runs: tuple[Run, ...], differ: list[int]) -> tuple[Run, ...]:
    """The pages of these runs but those that begin there, among the bytes of all of them; ascending."""
    left: list[Run] = []
    begin, others = 0, iter([*differ, -1])
    other = next(others)
    for run in runs:
        first, end = 0, begin + run.pages * PAGE
        while begin <= other < end:
            page = (other - begin) // PAGE
            left.append(Run(run.vaddr + first * PAGE, page - first))
            first, other = page + 1, next(others)
        left.append(Run(run.vaddr + first * PAGE, run.pages - first))
        begin = end
    return joined(run for run in left if run.pages)


def places(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Where pages are, whatever else is known of them."""
    return joined(Run(run.vaddr, run.pages) for run in runs)


def _digest(data: bytes | memoryview) -> bytes:
    return blake3(data).digest(_DIGEST)


def _digests(data: bytes, size: int) -> bytes:
    return b"".join(_digest(data[at : at + size]) for at in range(0, len(data), size))


def _is(digests: bytes, at: int, data: bytes | memoryview) -> bool:
    return at >= 0 and digests[at : at + _DIGEST] == _digest(data)
