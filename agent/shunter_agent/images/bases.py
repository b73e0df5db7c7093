"""What a chunk of a process' memory may differ little from: the one of the same addresses in the worker's last image here."""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from shunter.model.errors import Rejected

from shunter_agent.images.cutting import Piece, along, pages_name
from shunter_agent.images.index import Place
from shunter_agent.images.manifest import Chunk
from shunter_agent.images.pagemap import PAGE, Run
from shunter_agent.images.store import ImageStore


class Base(NamedTuple):
    """A chunk that is here."""

    chunk: Chunk
    piece: Piece
    place: Place


Bases = Mapping[tuple[str, int], Base]
"""By pagemap's name and where the stretch of addresses begins."""


def bases_of(store: ImageStore, worker: str) -> Bases:
    """Of the worker's newest image that is whole and joined here; empty when there is none. Raises OSError."""
    for manifest in reversed(store.list()):
        if manifest.spec.worker == worker and manifest.in_chunks:
            try:
                pagemaps = {} if store.is_spread(manifest.id) else store.pagemaps(manifest.id)
            except Rejected:
                continue  # discarded meanwhile
            if not pagemaps:
                continue
            files = {file.name: file for file in manifest.files}
            found: dict[tuple[str, int], Base] = {}
            for name, pagemap in pagemaps.items():
                file, pieces = files.get(pages_name(pagemap)), along(pagemap.own)
                if file is not None and [part.size for part in file.parts] == [piece.size for piece in pieces]:
                    for part, piece in zip(file.parts, pieces, strict=True):
                        found[name, piece.window] = Base(part, piece, Place(manifest.id, file.name, piece.offset))
            return found
    return {}


def pages_in(runs: tuple[Run, ...]) -> Iterator[tuple[int, int]]:
    """Each page's address, and where its bytes are among those of the runs."""
    starts = accumulate((run.pages * PAGE for run in runs), initial=0)
    for run, start in zip(runs, starts, strict=False):
        for n in range(run.pages):
            yield run.vaddr + n * PAGE, start + n * PAGE


def patch(old: bytes, base: Piece, new: bytes, piece: Piece) -> tuple[tuple[tuple[int, int], ...], bytes]:
    """How `new` is made of `old`, page by page of equal address: `frames.Patch.pieces` and the bytes that go with them."""
    places = dict(pages_in(base.runs))
    made: list[tuple[int, int]] = []
    fresh = bytearray()
    for address, at in pages_in(piece.runs):
        data = new[at : at + PAGE]
        place = places.get(address, -1)
        if place >= 0 and old[place : place + PAGE] == data:
            if made and made[-1][0] >= 0 and sum(made[-1]) == place:
                made[-1] = (made[-1][0], made[-1][1] + PAGE)
            else:
                made.append((place, PAGE))
        else:
            fresh += data
            if made and made[-1][0] < 0:
                made[-1] = (-1, made[-1][1] + PAGE)
            else:
                made.append((-1, PAGE))
    return tuple(made), bytes(fresh)
