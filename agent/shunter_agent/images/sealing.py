"""Images at rest that nobody can read without the node's key.

A sealed image is a folder of its own: `sealed.json` names the node's key and holds the image's own key, wrapped by it (AES key wrap, RFC
3394); every file of the image and its manifest lie beside it, encrypted by the image's key with AES-256-GCM. That key is random and new
each time that an image is sealed. Files are encrypted in frames of at most a chunk, each under a nonce of its own: the number of the file
and that of the frame. The image's id, the file's name, the frame's number and the number of frames are authenticated with each, so nothing
can be swapped, cut off or taken from another image. Other nodes never see any of this: they get plain bytes over TLS, and seal with their
own.
"""

import bisect
import io
import itertools
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap
from shunter.model.errors import Problem, Rejected, Stalled

from shunter_agent.images.checking import damaged
from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.manifest import HEAD, MANIFEST, Chunk, ImageFile, ImageManifest

_KEY: Final = 32
_TAG: Final = 16
_MANIFEST_FILE: Final = 2**32 - 1
"""The manifest's number among the files of an image, for its nonces."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """`sealed.json`: by which of the node's keys, and the image's own key wrapped by it."""

    version: int = 1
    by: str
    key: bytes


class Keys:
    """The keys of a node: the first one seals, all of them open."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Each file holds 32 random bytes and is its owner's alone. Raises Stalled SH818."""
        self._keys = {}
        for path in files:
            key = read_key(path)
            self._keys[_name_of(key)] = key
        self.sealing = next(iter(self._keys))
        """The name of the key that seals: a digest of it, which tells nothing of it."""

    def wrap(self, key: bytes) -> Head:
        """A new image's key."""
        return Head(by=self.sealing, key=aes_key_wrap(self._keys[self.sealing], key))

    def unwrap(self, head: Head, image: str) -> bytes:
        """An image's key. Raises Rejected SH819 without the key that it was sealed by."""
        key = self._keys.get(head.by)
        if key is None:
            raise Rejected(sealed_by_another(image, head.by, ", ".join(self._keys)))
        try:
            return aes_key_unwrap(key, head.key)
        except (InvalidUnwrap, ValueError) as error:
            raise Rejected(damaged(image, f"its own key in {HEAD} isn't what was written")) from error


def read_key(path: Path) -> bytes:
    """A key of 32 bytes. Raises Stalled SH818."""
    try:
        if path.stat().st_mode & 0o077:
            raise Stalled(_bad_key(path, "others than its owner may read it"))
        key = path.read_bytes()
    except OSError as error:
        raise Stalled(_bad_key(path, error.strerror or str(error))) from error
    if len(key) != _KEY:
        raise Stalled(_bad_key(path, f"it has {len(key)} bytes instead of {_KEY}"))
    return key


def _name_of(key: bytes) -> str:
    return blake3(key, derive_key_context="shunter 2026 name of an image key").hexdigest()[:16]


def _bad_key(path: Path, what: str) -> Problem:
    return Problem(
        code="SH818",
        what=f"a key for images can't be used: {what}",
        remedy=f"Make one with `(umask 077; head -c {_KEY} /dev/urandom > FILE)`, and keep a copy elsewhere: without it images are lost",
        subject=str(path),
    )


def sealed_by_another(image: str, by: str, here: str) -> Problem:
    """SH819, with the names of the key that sealed it and of those that are here (empty: none)."""
    return Problem(
        code="SH819",
        what=f"the image is sealed by key {by}, and this node has {here or 'none'}",
        remedy="Name the file of that key under `keys` in the `[images]` of this node's settings, after the others; or use another copy",
        subject=image,
    )


def frames_of(file: ImageFile) -> tuple[int, ...]:
    """The sizes of a file's frames: its chunks, those of a release that knew none cut again."""
    return tuple(size for part in file.parts for size in _cut(part))


def _cut(part: Chunk) -> tuple[int, ...]:
    return tuple(min(CHUNK, part.size - at) for at in range(0, max(part.size, 1), CHUNK))


class _Cipher:
    """The frames of one file of one image."""

    def __init__(self, key: bytes, image: str, number: int, name: str, frames: int) -> None:
        self._aead = AESGCM(key)
        self._number = number.to_bytes(4, "big")
        self._said = f"{image}\0{name}\0{frames}".encode()

    def seal(self, frame: int, data: bytes) -> bytes:
        return self._aead.encrypt(self._number + frame.to_bytes(8, "big"), data, self._said)

    def open(self, frame: int, data: bytes) -> bytes:
        """Raises InvalidTag."""
        return self._aead.decrypt(self._number + frame.to_bytes(8, "big"), data, self._said)


def is_sealed(folder: Path) -> bool:
    """The folder is that of a sealed image."""
    return (folder / HEAD).is_file()


def seal(plain: Path, manifest: ImageManifest, keys: Keys, into: Path, between: Callable[[], None] = lambda: None) -> None:
    """Encrypt the files and the manifest of a whole image in folder `plain` into the empty folder `into`, and bring that to the disk; the
    head comes last. Logs and statistics beside the image are left out. `between` is called between its parts.

    Raises Rejected SH804 when a file's bytes aren't those of its manifest; OSError.
    """
    key = secrets.token_bytes(_KEY)
    for number, file in enumerate(manifest.files):
        cipher = _Cipher(key, manifest.id, number, file.name, len(frames_of(file)))
        with (plain / file.name).open("rb", buffering=0) as source:
            _write(into / file.name, _sealed(cipher, _checked(source, file, manifest.id), between))
    _write(into / MANIFEST, [_Cipher(key, manifest.id, _MANIFEST_FILE, MANIFEST, 1).seal(0, msgspec.json.encode(manifest))])
    _write(into / HEAD, [msgspec.json.encode(keys.wrap(key))])


def _sealed(cipher: _Cipher, frames: Iterable[bytes], between: Callable[[], None]) -> Iterator[bytes]:
    for frame, data in enumerate(frames):
        between()
        yield cipher.seal(frame, data)


def _checked(source: io.FileIO, file: ImageFile, image: str) -> Iterator[bytes]:
    for part in file.parts:
        digest = blake3()
        for size in _cut(part):
            data = source.read(size)
            digest.update(data)
            yield data
        if digest.hexdigest() != part.blake3:
            raise Rejected(damaged(image, f"the bytes of {file.name} are not those that were written"))


def _write(path: Path, parts: Iterable[bytes], *, sync: bool = True) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as made:
        for part in parts:
            made.write(part)
        if sync:
            made.flush()
            os.fsync(descriptor)


class SealedImage:
    """A sealed image in `folder`, opened with the node's keys."""

    def __init__(self, folder: Path, keys: Keys) -> None:
        """Raises Rejected SH804 when its key or manifest isn't what was written, SH819 when its node's key isn't here; OSError."""
        self._folder = folder
        self._image = folder.name
        try:
            head = msgspec.json.decode((folder / HEAD).read_bytes(), type=Head)
            self._key = keys.unwrap(head, self._image)
            data = self._cipher(_MANIFEST_FILE, MANIFEST, 1).open(0, (folder / MANIFEST).read_bytes())
            self.manifest: ImageManifest = msgspec.json.decode(data, type=ImageManifest)
        except (msgspec.DecodeError, msgspec.ValidationError, InvalidTag) as error:
            raise Rejected(damaged(self._image, "its manifest isn't what was written")) from error
        self._numbers = {file.name: number for number, file in enumerate(self.manifest.files)}
        self._found: dict[str, list[int]] = {}

    def _starts(self, name: str) -> list[int]:
        """Where each frame of a file begins among its plain bytes, and where the last one ends."""
        found = self._found.get(name)
        if found is None:
            sizes = frames_of(self.manifest.files[self._numbers[name]])
            found = self._found[name] = list(itertools.accumulate(sizes, initial=0))
        return found

    def _cipher(self, number: int, name: str, frames: int) -> _Cipher:
        return _Cipher(self._key, self._image, number, name, frames)

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Plain bytes of a file. Raises Rejected SH804 when they aren't what was written; OSError."""
        file = self.manifest.files[self._numbers[name]]
        starts = self._starts(name)
        first = max(0, bisect.bisect_right(starts, offset) - 1)
        last = max(first + 1, bisect.bisect_left(starts, offset + size))
        data = b"".join(self._frames(file, first, last))
        return data[offset - starts[first] :][:size]

    def _frames(self, file: ImageFile, first: int = 0, last: int | None = None) -> Iterator[bytes]:
        starts = self._starts(file.name)
        frames = len(starts) - 1
        cipher = self._cipher(self._numbers[file.name], file.name, frames)
        with (self._folder / file.name).open("rb", buffering=0) as sealed:
            sealed.seek(starts[first] + first * _TAG)
            for frame in range(first, frames if last is None else min(last, frames)):
                try:
                    yield cipher.open(frame, sealed.read(starts[frame + 1] - starts[frame] + _TAG))
                except InvalidTag as error:
                    what = f"the bytes of {file.name} are not those that were written"
                    raise Rejected(damaged(self._image, what)) from error

    def open_into(self, folder: Path) -> None:
        """Write its plain files and manifest into a folder, which exists. Raises as `read` does."""
        for file in self.manifest.files:
            _write(folder / file.name, self._frames(file), sync=False)
        _write(folder / MANIFEST, [msgspec.json.encode(self.manifest)], sync=False)

    def check(self) -> Problem | None:
        """What is wrong with its files: SH804; None when all are what was written, which was compared with the manifest then."""
        try:
            for file in self.manifest.files:
                for _frame in self._frames(file):
                    pass
        except Rejected as error:
            return error.problem
        except OSError as error:
            return damaged(self._image, f"it can't be read: {error.strerror or error}")
        return None


def shred(folder: Path) -> None:
    """Delete a sealed image: its own key first, overwritten where it lies, so that what a disk keeps of the rest can't be read by anybody
    who gets the node's key later. A disk or file system that writes elsewhere instead may keep the wrapped key, too. Raises OSError.
    """
    head = folder / HEAD
    if head.is_file():
        with head.open("r+b", buffering=0) as file:
            file.write(secrets.token_bytes(head.stat().st_size))
            os.fsync(file.fileno())
    shutil.rmtree(folder)
