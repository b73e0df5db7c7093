"""Whether an image's files are what its manifest says, and what there is to say about it."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from blake3 import blake3
from shunter.model.errors import Problem, Rejected

from shunter_agent.images.cutting import Piece, fixed
from shunter_agent.images.manifest import Chunk, ImageFile, ImageManifest, belongs


def files_in(folder: Path, image: str) -> Iterable[Path]:
    """What belongs to the image in `folder`, by name. Raises Rejected SH804 for anything but plain files."""
    for path in sorted(folder.iterdir()):
        if not belongs(path.name):
            continue
        if path.is_symlink() or not path.is_file():
            raise Rejected(damaged(image, f"{path.name} in it is not a plain file"))
        yield path


def describe(path: Path, known: Mapping[str, ImageFile], cuts: Mapping[str, tuple[Piece, ...]], image: str) -> ImageFile:
    """A file as a manifest names it: as in `known`, or read and cut as in `cuts`. Raises Rejected SH804 for another size; OSError."""
    size = path.stat().st_size
    file = known.get(path.name)
    if file is None:
        return ImageFile.of(path.name, tuple(_chunks(path, cuts.get(path.name) or fixed(size))))
    if file.size != size:
        raise Rejected(damaged(image, f"{path.name} has {size} bytes, and had {file.size} when its digest was computed"))
    return file


def _chunks(path: Path, pieces: Iterable[Piece]) -> Iterator[Chunk]:
    with path.open("rb", buffering=0) as file:
        for piece in pieces:
            yield Chunk(blake3(os.pread(file.fileno(), piece.size, piece.offset)).hexdigest(), piece.size)


def _as_it_was(path: Path, file: ImageFile) -> bool:
    if not file.chunks:
        return blake3().update_mmap(path).hexdigest() == file.blake3
    starts = itertools.accumulate((chunk.size for chunk in file.chunks), initial=0)
    pieces = (Piece(at, chunk.size) for at, chunk in zip(starts, file.chunks, strict=False))
    if ImageFile.of(file.name, file.chunks).blake3 != file.blake3:
        return False
    return all(found == chunk for found, chunk in zip(_chunks(path, pieces), file.chunks, strict=True))


def compare(path: Path, file: ImageFile, image: str) -> Iterable[Problem]:
    """SH804 when a file isn't what the manifest says."""
    try:
        size = path.stat().st_size
        if size != file.size:
            yield damaged(image, f"{file.name} has {size} bytes instead of {file.size}")
        elif not _as_it_was(path, file):
            yield damaged(image, f"the bytes of {file.name} are not those that were written")
    except OSError as error:
        yield damaged(image, f"{file.name} can't be read: {error.strerror}")


def named(manifest: ImageManifest, image: str) -> ImageManifest:
    """The manifest itself. Raises Rejected SH804 when it is another image's."""
    if manifest.id != image:
        raise Rejected(damaged(image, f"its manifest is that of {manifest.id!r}"))
    return manifest


def exists(image: str, what: str) -> Problem:
    """SH803."""
    return Problem(code="SH803", what=f"an image of this id {what}", remedy="Use a new id for each image", subject=image)


def missing(image: str) -> Problem:
    """SH802."""
    return Problem(code="SH802", what="there is no such image here", remedy="List the node's images with `shunter status`", subject=image)


def damaged(image: str, what: str) -> Problem:
    """SH804."""
    return Problem(code="SH804", what=f"the image is damaged: {what}", remedy="Discard it, and restore from another copy", subject=image)
