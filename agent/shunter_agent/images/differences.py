"""What of a dump differs from the copy that was made while its process ran: found out piece by piece, mostly while the dump is written."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3

from shunter_agent.images.copying import Copied, places
from shunter_agent.images.cutting import CHUNK, Piece
from shunter_agent.images.frames import Broken
from shunter_agent.images.manifest import Chunk
from shunter_agent.images.pagemap import Run

KEPT: Final = 64 << 20
"""Bytes that differ, and are kept until they are sent. Of more than that it is only known that they do: they are read once more."""


class Difference(NamedTuple):
    """A piece of process `pagemap`'s memory as it was dumped: what it is, which pages of it (`same`) are as they were copied, and the bytes
    of all the others (`fresh`; None: too many to keep)."""

    pagemap: str
    piece: Piece
    chunk: Chunk
    same: tuple[Run, ...]
    fresh: bytes | None


class _Buffers(threading.local):
    """One for each thread: a MiB of new memory takes as long to get as to hash."""

    def __init__(self) -> None:
        self.whole = memoryview(bytearray(CHUNK))


class Differences:
    """Of one dump. May be used from several threads."""

    def __init__(self, copied: Mapping[str, Copied]) -> None:
        """`copied` are the processes that were, by their pagemaps' names."""
        self._copied = copied
        self._buffers = _Buffers()
        self._lock = threading.Lock()
        self._kept = 0

    def look(self, path: Path, pagemap: str, piece: Piece) -> Difference:
        """Of a piece of the pages file `path`. Raises OSError."""
        found = self._compare(path, pagemap, piece)
        kept = found.fresh is not None and self._keep(len(found.fresh))
        return found if kept else found._replace(fresh=None)

    def fresh(self, path: Path, found: Difference) -> bytes:
        """The bytes that differ, to be sent now. Raises Broken when the dump isn't what it was; OSError."""
        if found.fresh is not None:
            self._keep(-len(found.fresh))
            return found.fresh
        again = self._compare(path, found.pagemap, found.piece)
        if again.chunk != found.chunk:
            raise Broken("the dump has changed since it was complete")
        return again.fresh or b""

    def _compare(self, path: Path, pagemap: str, piece: Piece) -> Difference:
        with path.open("rb", buffering=0) as file:
            data = self._buffers.whole[: os.preadv(file.fileno(), [self._buffers.whole[: piece.size]], piece.offset)]
        chunk, copied = Chunk(blake3(data).hexdigest(), piece.size), self._copied.get(pagemap)
        if copied is not None and copied.holds(piece, chunk):
            return Difference(pagemap, piece, chunk, piece.runs, b"")
        same, fresh = copied.compare(piece, data) if copied is not None else ((), bytes(data))
        return Difference(pagemap, piece, chunk, same, fresh)

    def _keep(self, size: int) -> bool:
        with self._lock:
            if self._kept + size > KEPT:
                return False
            self._kept += size
            return True


def fits(found: Difference | None, pagemap: str, piece: Piece) -> bool:
    """It is of this very piece: where pieces would lie was a guess."""
    return found is not None and found.pagemap == pagemap and places(found.piece.runs) == places(piece.runs)
