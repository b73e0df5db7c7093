"""Looks at what a dump writes, piece by piece, while it writes.

Where the pages of a process will lie in its file is known before the dump says so: from the process, which stands still. If that turns
out wrong (the order of the processes is a guess, too), pieces were looked at that nobody asks for, and nothing else is lost.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

from shunter_agent.images.cutting import Piece, along
from shunter_agent.images.pagemap import Run
from shunter_agent.runtime.port import Live

T = TypeVar("T")


class Foresight(Generic[T]):
    """For one dump into `folder`."""

    def __init__(self, folder: Path, memories: Sequence[Live], pool: ThreadPoolExecutor, look: Callable[[Path, Live, Piece], T]) -> None:
        """`memories` in the order of the pages files that CRIU will make of them. `look` is called by `pool`, once for each piece."""
        self._folder = folder
        self._memories = {f"pages-{n}.img": memory for n, memory in enumerate(memories, 1)}
        self._pool = pool
        self._look_at = look
        self._coming: dict[str, list[Piece]] = {}
        """Pieces of each file that aren't written yet, the last one first."""
        self._found: dict[tuple[str, int, int], Future[T]] = {}

    def look(self) -> bool:
        """Begin with what has been written since the last time. False: there was nothing new."""
        return any([self._look(name) for name in self._memories])

    def _look(self, name: str) -> bool:
        try:
            size = (self._folder / name).stat().st_size
            if name not in self._coming and size:
                runs = (Run(address, pages) for address, pages in self._memories[name].runs())
                self._coming[name] = list(along(runs))[::-1]
        except OSError:  # not there yet, or the process is gone
            return False
        coming, begun = self._coming.get(name, []), False
        while coming and coming[-1].offset + coming[-1].size <= size:
            piece = coming.pop()
            self._found[name, piece.offset, piece.size] = self._pool.submit(self._look_at, self._folder / name, self._memories[name], piece)
            begun = True
        return begun

    def of(self, name: str, piece: Piece) -> T | None:
        """What was seen at this place of a file; None when nobody looked. Raises what looking did."""
        future = self._found.get((name, piece.offset, piece.size))
        return future.result() if future is not None else None
