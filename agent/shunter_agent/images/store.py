"""The images of a node: one folder each, whole or not visible at all.

An image in the making is `<id>.partial`; it becomes `<id>` by one rename, once its manifest is in it. Images hold users'
conversations: folders are 0700 and files 0600, and what is discarded is unlinked at once.

How durable: with `fsync` an image is on the disk before it is visible. A move doesn't wait for that while its worker stands still: its
image is committed without, and `sync` is called once the worker runs again; until then a power cut at both nodes could lose it.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3
from shunter.model.errors import Problem, Rejected

from shunter_agent.images.manifest import MANIFEST, ImageFile, ImageInfo, ImageManifest, belongs, check_id, manifest_of
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
        self._lock = threading.Lock()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        for left in [*root.glob(f"*{PARTIAL}"), *root.glob(f"*{DOOMED}")]:
            shutil.rmtree(left)

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
        manifest = manifest_of(info, tuple(_describe(path, known or {}, info.id) for path in _files(folder, info.id)))
        self._publish(folder, manifest, fsync)
        return manifest

    def commit_received(self, manifest: ImageManifest, *, fsync: bool) -> None:
        """Make an image visible with a manifest from elsewhere; the caller has checked sizes and digests. Raises Rejected; OSError."""
        folder = self._partial(manifest.id)
        if not folder.is_dir():
            raise Rejected(_missing(manifest.id))
        if sorted(path.name for path in _files(folder, manifest.id)) != [file.name for file in manifest.files]:
            raise Rejected(_damaged(manifest.id, "its files are not those of its manifest"))
        self._publish(folder, manifest, fsync)

    def _publish(self, folder: Path, manifest: ImageManifest, fsync: bool) -> None:
        for path in folder.iterdir():
            path.chmod(0o600)
        descriptor = os.open(folder / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        if fsync:
            _fsync(folder)
        folder.rename(self._whole(manifest.id))
        if fsync:
            _fsync_path(self.root)

    def sync(self, image: str) -> None:
        """Bring a whole image to the disk. Raises Rejected SH802, OSError."""
        self.get(image)
        _fsync(self._whole(image))
        _fsync_path(self.root)

    def abandon(self, image: str) -> None:
        """Delete an image in the making. Idempotent. Raises Rejected SH801."""
        self._delete(self._partial(image))

    def discard(self, image: str) -> None:
        """Delete a whole image. Idempotent. Raises Rejected SH801."""
        self._delete(self._whole(image))

    def _delete(self, folder: Path) -> None:
        doomed = folder.with_name(f"{folder.name}{DOOMED}")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(doomed)  # so that it is never seen half deleted
            shutil.rmtree(doomed)

    def get(self, image: str) -> ImageManifest:
        """Its manifest. Raises Rejected SH801, SH802 when there is no such whole image, SH804 when the manifest can't be read."""
        try:
            data = (self._whole(image) / MANIFEST).read_bytes()
        except FileNotFoundError as error:
            raise Rejected(_missing(image)) from error
        try:
            manifest = msgspec.json.decode(data, type=ImageManifest)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Rejected(_damaged(image, f"its manifest can't be read: {error}")) from error
        if manifest.id != image:
            raise Rejected(_damaged(image, f"its manifest is that of {manifest.id!r}"))
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

        Raises Rejected SH801, SH802, SH804.
        """
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


def _describe(path: Path, known: Mapping[str, ImageFile], image: str) -> ImageFile:
    size = path.stat().st_size
    file = known.get(path.name)
    if file is None:
        return ImageFile(name=path.name, size=size, blake3=digest_of(path))
    if file.size != size:
        raise Rejected(_damaged(image, f"{path.name} has {size} bytes, and had {file.size} when its digest was computed"))
    return file


def digest_of(path: Path) -> str:
    """The BLAKE3 of a file's bytes, in hex. Raises OSError."""
    return blake3().update_mmap(path).hexdigest()


def _compare(path: Path, file: ImageFile, image: str) -> Iterable[Problem]:
    try:
        size = path.stat().st_size
        if size != file.size:
            yield _damaged(image, f"{file.name} has {size} bytes instead of {file.size}")
        elif digest_of(path) != file.blake3:
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
