"""Images that are spread over three folders until there is time to join them.

A worker that was copied while it ran, and is dumped then, differs from its copy in few pages. Its image is

- `parent/`: the copy, in CRIU's own form of an image on top of which another was made: a pagemap and a pages file for each process;
- beside it, what the dump alone has: all other files, pagemaps that say of each page where it is, and pages files of those that changed;
- `whole/`: the pagemaps as they were dumped.

CRIU restores from that as it is, so nothing is copied while the worker stands still. `join` makes of it afterwards what was dumped, byte
for byte: at any moment of that CRIU can restore from it.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from blake3 import blake3

from shunter_agent.images.cutting import CHUNK, Piece, along, pages_name
from shunter_agent.images.folders import nothing, sync_file
from shunter_agent.images.manifest import Chunk, ImageFile, ImageManifest
from shunter_agent.images.pagemap import LAZY, PAGE, PARENT, NotAPagemap, Pagemap, Run, joined, parse, parse_own
from shunter_agent.images.stretches import Stretches, locate

COPY: Final = "parent"
"""CRIU's own name for it."""
ORIGINALS: Final = "whole"
AREAS: Final = ("", COPY, ORIGINALS)
_HASHERS: Final = max(1, min(4, os.cpu_count() or 1))
CHANGED: Final = 1 << 30
"""Added to the number of a pages file, for the one that holds only what changed: CRIU counts its own from 1."""


class SpreadPages:
    """The pages of one process of a spread image. Close it after use."""

    def __init__(self, folder: Path, name: str) -> None:
        """`name` is its pagemap's. Raises NotAPagemap when the folders don't fit together; OSError."""
        self.original = parse((folder / ORIGINALS / name).read_bytes())
        """As it was dumped."""
        self._now = parse_own((folder / name).read_bytes())
        self.copy = parse_own((folder / COPY / name).read_bytes())
        """What was copied while the worker ran."""
        if self.copy.own != self.copy.runs:
            raise NotAPagemap("the copy is on top of another one")
        if _places(self._now.runs) != _places(self.original.runs):
            raise NotAPagemap("it has other pages than were dumped")
        self._files = [os.open(folder / pages_name(self._now), os.O_RDONLY | os.O_CLOEXEC)]
        try:
            self._files.append(os.open(folder / COPY / pages_name(self.copy), os.O_RDONLY | os.O_CLOEXEC))
            for descriptor, pagemap in zip(self._files, (self._now, self.copy), strict=True):
                if os.fstat(descriptor).st_size != pagemap.bytes:
                    raise NotAPagemap("a pages file has another size than its pagemap says")
            self._own, self._copied = Stretches(self._now, self._files[0]), Stretches(self.copy, self._files[1])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "SpreadPages":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of its files."""
        for descriptor in self._files:
            os.close(descriptor)

    def unchanged(self, piece: Piece) -> bool:
        """All of it is in the copy."""
        return all(not self._own.within(run.vaddr, run.end) for run in piece.runs)

    def read(self, piece: Piece, into: memoryview) -> memoryview:
        """Its bytes, from wherever they are, in the beginning of `into`. Raises NotAPagemap when they are nowhere; OSError."""
        left = into = into[: piece.size]
        for run in piece.runs:
            for stretch, at, until in locate(run, self._own, self._copied):
                if os.preadv(stretch.descriptor, [left[: until - at]], stretch.offset + at - stretch.vaddr) != until - at:
                    raise NotAPagemap("a pages file is shorter than its pagemap says")
                left = left[until - at :]
        return into


def _places(runs: Iterable[Run]) -> tuple[Run, ...]:
    return joined(Run(run.vaddr, run.pages, 0) for run in runs)


def on_top(dumped: Pagemap, same: Iterable[Run]) -> Pagemap:
    """The pagemap of what was dumped, on top of a copy that has the pages in `same` (ascending, as in the dump) already."""
    rest = list(same)[::-1]
    runs: list[Run] = []
    for run in dumped.runs:
        at = run.vaddr
        while rest and rest[-1].vaddr < run.end:
            known = rest.pop()
            until = min(known.end, run.end)
            if known.vaddr > at:
                runs.append(Run(at, (known.vaddr - at) // PAGE, run.flags))
            runs.append(Run(known.vaddr, (until - known.vaddr) // PAGE, PARENT | run.flags & LAZY))
            at = until
            if known.end > until:
                rest.append(Run(until, (known.end - until) // PAGE, known.flags))
        if at < run.end:
            runs.append(Run(at, (run.end - at) // PAGE, run.flags))
    return Pagemap(pages_id=dumped.pages_id + CHANGED, runs=joined(runs))


def wrong(folder: Path, manifest: ImageManifest, copied: Callable[[str], dict[int, Chunk]]) -> str:
    """What is wrong with a spread image, in words; empty: nothing. Only what changed since it was copied is read.

    `copied` gives the chunks of a pages file in the copy, by their offsets, as they were when they were written. Raises OSError.
    """
    files = {file.name: file for file in manifest.files}
    try:
        for path in sorted((folder / ORIGINALS).iterdir()):
            with SpreadPages(folder, path.name) as pages:
                file = files.get(pages_name(pages.original))
                if file is None or not _right(pages, file, copied(pages_name(pages.copy))):
                    return f"what {path.name} says isn't what its manifest says"
    except (NotAPagemap, FileNotFoundError) as error:
        return str(error)
    return ""


def _right(pages: SpreadPages, file: ImageFile, chunks: dict[int, Chunk]) -> bool:
    pieces = along(pages.original.own)
    if [piece.size for piece in pieces] != [part.size for part in file.parts]:
        return False
    copies = {piece.window: (_places(piece.runs), chunks.get(piece.offset)) for piece in along(pages.copy.own)}
    changed = (
        (piece, part)
        for piece, part in zip(pieces, file.parts, strict=True)
        if not pages.unchanged(piece) or copies.get(piece.window) != (_places(piece.runs), part)
    )
    with ThreadPoolExecutor(_HASHERS, "check") as pool:  # the worker stands still for it
        return all(pool.map(partial(_is, pages, _Buffers()), changed))


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.whole = memoryview(bytearray(CHUNK))


def _is(pages: SpreadPages, buffers: _Buffers, said: tuple[Piece, Chunk]) -> bool:
    piece, part = said
    return blake3(pages.read(piece, buffers.whole)).hexdigest() == part.blake3


def pages_of(folder: Path) -> set[str]:
    """The pages files that a spread image will have when it is joined. Raises OSError; NotAPagemap."""
    return {pages_name(parse(path.read_bytes())) for path in (folder / ORIGINALS).iterdir()}


def is_spread(folder: Path) -> bool:
    """The image in `folder` isn't joined yet."""
    return (folder / ORIGINALS).is_dir()


def join(folder: Path, manifest: ImageManifest, between: Callable[[], None] = nothing) -> bool:
    """Make it what was dumped. False, with nothing changed, when its bytes aren't those of the manifest. Raises OSError.

    Pages come first, then the pagemap that needs no copy takes the place of the other: until then the image is spread, and after it whole.
    `between` is called between parts of it.
    """
    files = {file.name: file for file in manifest.files}
    for path in sorted((folder / ORIGINALS).iterdir()):
        try:
            _join_pages(folder, path, files, between)
        except (NotAPagemap, FileNotFoundError, KeyError):
            return False
    for path in folder.glob("pages-*.img"):
        if path.name not in files:
            path.unlink()
    shutil.rmtree(folder / COPY, ignore_errors=True)
    (folder / ORIGINALS).rmdir()
    return True


def _join_pages(folder: Path, original: Path, files: dict[str, ImageFile], between: Callable[[], None]) -> None:
    making = folder / f"{original.name}.log"  # no file of an image is named so
    with SpreadPages(folder, original.name) as pages:
        file = files[pages_name(pages.original)]
        try:
            buffer = memoryview(bytearray(CHUNK))
            with making.open("wb", buffering=0) as made:
                os.fchmod(made.fileno(), 0o600)
                for piece, part in zip(along(pages.original.own), file.parts, strict=True):
                    between()
                    data = pages.read(piece, buffer)
                    if blake3(data).hexdigest() != part.blake3:
                        raise NotAPagemap("its bytes have changed")
                    made.write(data)
                sync_file(made.fileno(), between)
            making.rename(folder / file.name)
        finally:
            making.unlink(missing_ok=True)
    original.rename(folder / original.name)
