"""Where an image's files are cut into chunks.

What a process holds is cut along its addresses, at every MiB of them: so a region that grows, or that lies elsewhere in the file than in an
earlier image, has the same chunks as before wherever its bytes are the same. All else is cut at every MiB of the file.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from shunter_agent.images.pagemap import PAGE, NotAPagemap, Pagemap, Run, parse

CHUNK: Final = 1 << 20
"""Most bytes of a chunk, and the stretch of addresses that one is cut from."""


class Piece(NamedTuple):
    """Bytes of a file. Of a process' memory, `runs` says which pages they are; empty for anything else."""

    offset: int
    size: int
    runs: tuple[Run, ...] = ()

    @property
    def window(self) -> int:
        """The address at which its stretch begins; meaningless without runs."""
        return self.runs[0].vaddr // CHUNK * CHUNK


def fixed(size: int) -> tuple[Piece, ...]:
    """At every MiB. An empty file is one empty piece."""
    return tuple(Piece(at, min(CHUNK, size - at)) for at in range(0, size, CHUNK)) or (Piece(0, 0),)


def along(runs: Iterable[Run]) -> tuple[Piece, ...]:
    """A file that holds these runs one behind the other, cut at every MiB of addresses, and wherever they fall back."""
    pieces: list[Piece] = []
    inside: list[Run] = []
    at = size = 0
    for part in _split(runs):
        if inside and (part.vaddr // CHUNK != inside[0].vaddr // CHUNK or part.vaddr < inside[-1].end):
            pieces.append(Piece(at, size, tuple(inside)))
            at, size, inside = at + size, 0, []
        inside.append(part)
        size += part.pages * PAGE
    if inside:
        pieces.append(Piece(at, size, tuple(inside)))
    return tuple(pieces)


def _split(runs: Iterable[Run]) -> Iterator[Run]:
    for run in runs:
        at = run.vaddr
        while at < run.end:
            until = min(run.end, (at // CHUNK + 1) * CHUNK)
            yield Run(at, (until - at) // PAGE, run.flags)
            at = until


def pagemaps_of(folder: Path) -> dict[str, Pagemap]:
    """The pagemaps of an image in `folder` by file name, of those whose pages file has the size that they say. Raises OSError."""
    found = {}
    for path in sorted(folder.glob("pagemap-*.img")):
        with contextlib.suppress(NotAPagemap, FileNotFoundError):
            pagemap = parse(path.read_bytes())
            if (folder / pages_name(pagemap)).stat().st_size == pagemap.bytes > 0:
                found[path.name] = pagemap
    return found


def pieces_of(folder: Path) -> dict[str, tuple[Piece, ...]]:
    """How the pages files of an image in `folder` are cut, by name. Those that no pagemap explains are left out: they are cut `fixed`.

    Raises OSError.
    """
    return {pages_name(pagemap): along(pagemap.own) for pagemap in pagemaps_of(folder).values()}


def pages_name(pagemap: Pagemap) -> str:
    """The file that holds its pages."""
    return f"pages-{pagemap.pages_id}.img"
