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
"""Bytes by which a page is known again."""


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
            digests = b"".join(_digest(data[at : at + PAGE]) for at in range(0, len(data), PAGE))
            self._known[piece.window] = _Known(piece.runs, chunk, digests)
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
        digests = {address: at // PAGE * _DIGEST for address, at in pages_in(known.runs)}
        same: list[Run] = []
        fresh = bytearray()
        for address, at in pages_in(piece.runs):
            page = data[at : at + PAGE]
            place = digests.get(address, -1)
            if place >= 0 and known.pages[place : place + _DIGEST] == _digest(page):
                same.append(Run(address, 1))
            else:
                fresh += page
        return joined(same), bytes(fresh)


def places(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Where pages are, whatever else is known of them."""
    return joined(Run(run.vaddr, run.pages) for run in runs)


def _digest(page: bytes | memoryview) -> bytes:
    return blake3(page).digest(_DIGEST)
