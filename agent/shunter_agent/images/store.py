"""The images of a node: one folder each, whole or not visible at all.

An image in the making is `<id>.partial`; it becomes `<id>` by one rename, once its manifest is in it. Images hold users'
conversations: folders are 0700 and files 0600, and what is discarded is unlinked at once.

How durable: with `fsync` an image is on the disk before it is visible. A move doesn't wait for that while its worker stands still: its
image is committed without, and `sync` is called once the worker runs again; until then a power cut at both nodes could lose it.
"""

import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3
from shunter.model.errors import Problem, Rejected

from shunter_agent.images import spread
from shunter_agent.images.cutting import Piece, fixed, pieces_of
from shunter_agent.images.index import ChunkIndex
from shunter_agent.images.manifest import MANIFEST, Chunk, ImageFile, ImageInfo, ImageManifest, belongs, check_id, manifest_of
from shunter_agent.images.room import Room

PARTIAL: Final = ".partial"
DOOMED: Final = ".discarded"


class ImageStore:
    """Images under one folder, which is this agent's alone. May be used from several threads."""

    def __init__(self, root: Path) -> None:
        """Make the folder if it is missing, and remove what an earlier run left half made or half discarded. Raises OSError."""
        self.root = root
        self.room = Room(self.free_bytes)
        """What is left of the disk for images."""
        self.index = ChunkIndex(root)
        """Which chunks the whole images here hold."""
        self._lock = threading.Lock()
        self._joining = threading.Lock()
        self._manifests: dict[str, tuple[tuple[int, int, int], ImageManifest]] = {}
        """As they were read last: one with millions of chunks takes long to read, and an agent is asked for its images every second."""
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        for left in [*root.glob(f"*{PARTIAL}"), *root.glob(f"*{DOOMED}")]:
            shutil.rmtree(left)
        for manifest in self.list():
            if not spread.is_spread(self._whole(manifest.id)):
                self.index.add(manifest)

    def begin(self, image: str) -> Path:
        """An empty folder for a new image. Raises Rejected SH801, and SH803 when there is one of this id, whole or in the making."""
        folder = self._partial(image)
        with self._lock:
            if self._whole(image).exists():
                raise Rejected(_exists(image, "is here already"))
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError as error:
                raise Rejected(_exists(image, "is being made or received at this moment")) from error
        return folder

    def commit(self, info: ImageInfo, known: Mapping[str, ImageFile] | None = None, *, fsync: bool = True) -> ImageManifest:
        """Write the manifest and make the image visible. All regular files in the folder belong to it, except
        logs and statistics, which stay beside it.

        `known` are files whose digest somebody has computed over their final bytes already; they aren't read again. Raises Rejected SH801,
        SH802 when it was never begun, SH804 when the folder holds anything but files, or a
        has another size; OSError.
        """
        folder = self._partial(info.id)
        if not folder.is_dir():
            raise Rejected(_missing(info.id))
        cuts = {} if known else pieces_of(folder)
        manifest = manifest_of(info, tuple(_describe(path, known or {}, cuts, info.id) for path in _files(folder, info.id)))
        self._publish(folder, manifest, fsync)
        return manifest

    def commit_received(self, manifest: ImageManifest, *, fsync: bool) -> None:
        """Make an image visible with a manifest from elsewhere; the caller has checked sizes and digests. Raises Rejected; OSError."""
        folder = self._partial(manifest.id)
        if not folder.is_dir():
            raise Rejected(_missing(manifest.id))
        if not spread.is_spread(folder):
            shutil.rmtree(folder / spread.COPY, ignore_errors=True)  # it was copied to be on top of it, and wasn't
            if sorted(path.name for path in _files(folder, manifest.id)) != [file.name for file in manifest.files]:
                raise Rejected(_damaged(manifest.id, "its files are not those of its manifest"))
        elif fsync and not spread.join(folder, manifest):
            raise Rejected(_damaged(manifest.id, "its parts don't make what its manifest says"))
        self._publish(folder, manifest, fsync)

    def _publish(self, folder: Path, manifest: ImageManifest, fsync: bool) -> None:
        for path in folder.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        descriptor = os.open(folder / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        if fsync:
            _fsync(folder)
        folder.rename(self._whole(manifest.id))
        if not spread.is_spread(self._whole(manifest.id)):
            self.index.add(manifest)
        if fsync:
            _fsync_path(self.root)

    def join(self, image: str) -> None:
        """Make an image that was received on top of a copy what was dumped (see `spread`). Nothing for any other.

        Raises Rejected SH801, SH802, and SH804 when its parts don't make what its manifest says; Retry SH814; OSError.
        """
        with self._joining:
            manifest, folder = self.get(image), self._whole(image)
            if not spread.is_spread(folder):
                return
            with self.room.share(image) as share:
                share.announce(manifest.bytes)
                if not spread.join(folder, manifest):
                    raise Rejected(_damaged(image, "its parts don't make what its manifest says"))
            self.index.add(manifest)
            if not folder.exists():
                self.index.remove(image)

    def sync(self, image: str) -> None:
        """Bring a whole image to the disk, joined if it was spread. Raises as `join` does."""
        self.join(image)
        _fsync(self._whole(image))
        _fsync_path(self.root)

    def abandon(self, image: str) -> None:
        """Delete an image in the making. Idempotent. Raises Rejected SH801."""
        self._delete(self._partial(image))

    def discard(self, image: str) -> None:
        """Delete a whole image. Idempotent. Raises Rejected SH801."""
        self.index.remove(image)
        self._delete(self._whole(image))
        self._manifests.pop(image, None)

    def _delete(self, folder: Path) -> None:
        doomed = folder.with_name(f"{folder.name}{DOOMED}")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(doomed)  # so that it is never seen half deleted
            shutil.rmtree(doomed)

    def get(self, image: str) -> ImageManifest:
        """Its manifest. Raises Rejected SH801, SH802 when there is no such whole image, SH804 when the manifest can't be read."""
        path = self._whole(image) / MANIFEST
        try:
            seen = path.stat()
            key = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
            known = self._manifests.get(image)
            if known is not None and known[0] == key:
                return known[1]
            data = path.read_bytes()
        except FileNotFoundError as error:
            self._manifests.pop(image, None)
            raise Rejected(_missing(image)) from error
        try:
            manifest = msgspec.json.decode(data, type=ImageManifest)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Rejected(_damaged(image, f"its manifest can't be read: {error}")) from error
        if manifest.id != image:
            raise Rejected(_damaged(image, f"its manifest is that of {manifest.id!r}"))
        self._manifests[image] = key, manifest
        return manifest

    def folder(self, image: str) -> Path:
        """Where a whole image's files are. Raises Rejected SH801, SH802."""
        folder = self._whole(image)
        if not folder.is_dir():
            raise Rejected(_missing(image))
        return folder

    def list(self) -> "list[ImageManifest]":
        """All whole images, oldest first. One whose manifest can't be read is left out; `verify` says what is wrong with it."""
        found = []
        for path in self.root.iterdir():
            if path.is_dir() and path.suffix not in (PARTIAL, DOOMED):
                with contextlib.suppress(Rejected):
                    found.append(self.get(path.name))
        return sorted(found, key=lambda manifest: (manifest.taken_at, manifest.id))

    def verify(self, image: str) -> tuple[Problem, ...]:
        """Read it all and compare with its manifest. Empty: it is as it was. Logs beside it don't count.

        Raises as `join` does, which comes first.
        """
        self.join(image)
        manifest, folder = self.get(image), self._whole(image)
        return tuple(problem for file in manifest.files for problem in _compare(folder / file.name, file, image))

    def free_bytes(self) -> int:
        """Bytes that can still be written to its file system."""
        return _free(self.root)

    def _whole(self, image: str) -> Path:
        return self.root / check_id(image)

    def _partial(self, image: str) -> Path:
        return self.root / f"{check_id(image)}{PARTIAL}"


def _free(root: Path) -> int:
    return shutil.disk_usage(root).free


def _files(folder: Path, image: str) -> Iterable[Path]:
    for path in sorted(folder.iterdir()):
        if not belongs(path.name):
            continue
        if path.is_symlink() or not path.is_file():
            raise Rejected(_damaged(image, f"{path.name} in it is not a plain file"))
        yield path


def _describe(path: Path, known: Mapping[str, ImageFile], cuts: Mapping[str, tuple[Piece, ...]], image: str) -> ImageFile:
    size = path.stat().st_size
    file = known.get(path.name)
    if file is None:
        return ImageFile.of(path.name, tuple(_chunks(path, cuts.get(path.name) or fixed(size))))
    if file.size != size:
        raise Rejected(_damaged(image, f"{path.name} has {size} bytes, and had {file.size} when its digest was computed"))
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
    return all(found == chunk for found, chunk in zip(_chunks(path, pieces), file.chunks, strict=True))


def _compare(path: Path, file: ImageFile, image: str) -> Iterable[Problem]:
    try:
        size = path.stat().st_size
        if size != file.size:
            yield _damaged(image, f"{file.name} has {size} bytes instead of {file.size}")
        elif not _as_it_was(path, file):
            yield _damaged(image, f"the bytes of {file.name} are not those that were written")
    except OSError as error:
        yield _damaged(image, f"{file.name} can't be read: {error.strerror}")


def _fsync(folder: Path) -> None:
    for path in folder.iterdir():
        _fsync_path(path)
    _fsync_path(folder)


def _fsync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exists(image: str, what: str) -> Problem:
    return Problem(code="SH803", what=f"an image of this id {what}", remedy="Use a new id for each image", subject=image)


def _missing(image: str) -> Problem:
    return Problem(code="SH802", what="there is no such image here", remedy="List the node's images with `shunter status`", subject=image)


def _damaged(image: str, what: str) -> Problem:
    return Problem(code="SH804", what=f"the image is damaged: {what}", remedy="Discard it, and restore from another copy", subject=image)
