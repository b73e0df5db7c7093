"""Images that are kept away from the nodes, in an object store: for when no node has them any more.

Each chunk is one object, named by what it is: equal chunks of whatever images and workers lie there once. An image is one more object, its
manifest with the signature of its maker, which is written when all chunks are there; beside it lies a short one, without its files, for
lists of what there is. With keys, all of it is encrypted before it leaves
the node (AES-256-GCM, a random nonce with each object), and names are keyed digests, which tell nothing of what is in them even to somebody
who has the same bytes. All nodes need the same keys then; the first encrypts, all decrypt.

Chunks that no image needs are deleted by `sweep`, a day after they were written: until then they may be part of an image that is just being
put there. Whoever finds a chunk that is half that old writes it anew.
"""

import contextlib
import itertools
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from shunter.model.errors import Problem, Rejected

from shunter_agent.images.checking import damaged
from shunter_agent.images.manifest import Chunk, ImageFile, ImageManifest, check_id, check_name
from shunter_agent.images.pacing import Pace, unpaced
from shunter_agent.images.port import Kept, Objects
from shunter_agent.images.store import ImageStore

A = TypeVar("A")
B = TypeVar("B")

GRACE_S: Final = 86400.0
"""How long a chunk that no image needs is kept."""
_THREADS: Final = 8
_NONCE: Final = 12
_CHUNKS: Final = "chunks/"
_IMAGES: Final = "images/"
_ABOUT: Final = "about/"


class Ring:
    """The archive's keys, by which objects are encrypted and named. Without any, they are plain."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        """Keys of 32 bytes: the first encrypts, all decrypt."""
        self._keys = tuple(keys)

    def names(self, digest: str) -> tuple[str, ...]:
        """By which a chunk may be kept: the first is that of one that is written now."""
        if not self._keys:
            return (digest,)
        naming = (blake3(key, derive_key_context="shunter 2026 names of archived chunks").digest() for key in self._keys)
        return tuple(blake3(bytes.fromhex(digest), key=key).hexdigest() for key in naming)

    def close(self, data: bytes, name: str) -> bytes:
        """What is kept of an object's bytes."""
        if not self._keys:
            return data
        nonce = secrets.token_bytes(_NONCE)
        return nonce + AESGCM(self._keys[0]).encrypt(nonce, data, name.encode())

    def open(self, kept: bytes, name: str) -> bytes | None:
        """An object's bytes; None when none of the keys opens it."""
        if not self._keys:
            return kept
        for key in self._keys:
            with contextlib.suppress(InvalidTag):
                return AESGCM(key).decrypt(kept[:_NONCE], kept[_NONCE:], name.encode())
        return None


class Archive:
    """Whole images in `objects`."""

    def __init__(self, objects: Objects, ring: Ring, clock: Callable[[], float]) -> None:
        """`clock`: seconds since the epoch, about that of the store."""
        self.name = objects.name
        self._objects = objects
        self._ring = ring
        self._clock = clock

    # -- putting

    def put(self, store: ImageStore, image: str, progress: Callable[[int], None] = lambda _bytes: None, pace: Pace = unpaced) -> int:
        """Keep a whole image; how many bytes of it went there. It is there as a whole, or as if it had never been begun. `pace` is called
        before each chunk that goes there, from several threads.

        Raises Rejected SH802, SH804 when its bytes aren't those of its manifest; Retry SH814, SH822; OSError.
        """
        store.join(image)
        manifest = store.get(image)
        if self._objects.find(_IMAGES + image) is not None and self.manifest(image) == manifest:
            return 0
        sent = 0
        with store.opened(image) as folder:
            for size in _beside(lambda job: self._put_chunk(*job, image, pace), _once(folder, manifest)):
                sent += size
                progress(sent)
        for name, what in ((_ABOUT + image, _brief(manifest)), (_IMAGES + image, manifest)):
            self._objects.put(name, self._ring.close(msgspec.json.encode(what), name))
        return sent

    def _put_chunk(self, path: Path, offset: int, chunk: Chunk, image: str, pace: Pace) -> int:
        name = _CHUNKS + self._ring.names(chunk.blake3)[0]
        found = self._objects.find(name)
        if found is not None and self._clock() - found.written_at < GRACE_S / 2:
            return 0
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            data = file.read(chunk.size)
        if blake3(data).hexdigest() != chunk.blake3:
            raise Rejected(damaged(image, f"the bytes of {path.name} are not those that were written"))
        pace(len(data), _nobody)
        self._objects.put(name, self._ring.close(data, name))
        return len(data)

    # -- getting

    def manifest(self, image: str) -> ImageManifest | None:
        """What is kept of this id; None: nothing. Raises Rejected SH801, SH804, SH824 without the key; Retry SH822."""
        return self._read(_IMAGES + check_id(image), image)

    def about(self, image: str) -> ImageManifest | None:
        """What is kept of this id, without its files and signature: little to read. As it isn't signed, nothing may be restored by it.
        None: nothing is kept. Raises as `manifest` does.
        """
        found = self._read(_ABOUT + check_id(image), image)
        if found is None:  # a release that wrote none has put it there
            found = self.manifest(image)
        return _brief(found) if found is not None else None

    def _read(self, name: str, image: str) -> ImageManifest | None:
        kept = self._objects.get(name)
        if kept is None:
            return None
        data = self._ring.open(kept, name)
        if data is None:
            raise Rejected(_locked(image, self._objects.name))
        try:
            manifest = msgspec.json.decode(data, type=ImageManifest)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Rejected(damaged(image, f"its manifest in the archive can't be read: {error}")) from error
        if manifest.id != image:
            raise Rejected(damaged(image, f"its manifest in the archive is that of {manifest.id!r}"))
        return manifest

    def all(self) -> tuple[str, ...]:
        """The ids of all images that are kept. Raises Retry SH822."""
        return tuple(sorted(kept.key for kept in self.kept()))

    def kept(self) -> tuple[Kept, ...]:
        """All images that are kept, with their ids as keys. Raises Retry SH822."""
        return tuple(Kept(kept.key.removeprefix(_IMAGES), kept.written_at) for kept in self._objects.all(_IMAGES))

    def now(self) -> float:
        """By this node's clock; seconds since the epoch."""
        return self._clock()

    def fetch(
        self, store: ImageStore, image: str, progress: Callable[[int], None] = lambda _bytes: None, pace: Pace = unpaced
    ) -> ImageManifest | None:
        """Bring an image into a node's store, with its signature checked as that store does; None when it isn't kept here. `progress` gets
        the bytes that are here, `pace` is called before each chunk is asked for, from several threads.

        Raises as `manifest` and `ImageStore.commit_received` do, Rejected SH803, SH804 for chunks that are missing or wrong, Retry SH814;
        OSError.
        """
        manifest = self.manifest(image)
        if manifest is None:
            return None
        if store.trust is not None:
            store.trust.check(manifest)
        with store.room.share(image) as share:
            share.announce(manifest.bytes)
            folder = store.begin(image)
            try:
                done = 0
                for file in manifest.files:
                    for size in self._fetch_file(folder / check_name(file.name), file, image, pace):
                        done += size
                        progress(done)
                store.commit_received(manifest, fsync=True)
            finally:
                store.abandon(image)  # does nothing to one that has become whole
        return manifest

    def _fetch_file(self, path: Path, file: ImageFile, image: str, pace: Pace) -> Iterator[int]:
        """Write a file; the sizes of its chunks, as they come."""
        if file.chunks and ImageFile.of(file.name, file.chunks) != file:
            raise Rejected(damaged(image, f"the chunks of {file.name} aren't what its manifest says they are together"))
        with path.open("xb") as made:
            for data in _beside(lambda chunk: self._chunk(chunk, image, pace), file.parts):
                made.write(data)
                yield len(data)

    def _chunk(self, chunk: Chunk, image: str, pace: Pace) -> bytes:
        pace(chunk.size, _nobody)
        for name in self._ring.names(chunk.blake3):
            kept = self._objects.get(_CHUNKS + name)
            data = self._ring.open(kept, _CHUNKS + name) if kept is not None else None
            if data is not None and blake3(data).hexdigest() == chunk.blake3:
                return data
        raise Rejected(damaged(image, f"chunk {chunk.blake3[:16]} of it is missing in the archive, or isn't what was written"))

    # -- deleting

    def discard(self, image: str) -> bool:
        """Forget an image; its chunks go with the next `sweep`. False when there was none. Raises Rejected SH801; Retry SH822."""
        name = _IMAGES + check_id(image)
        if self._objects.find(name) is None:
            return False
        self._objects.delete(name)  # first: what is left of one that broke off here is no image
        self._objects.delete(_ABOUT + image)
        return True

    def sweep(self) -> int:
        """Delete chunks that no image needs, and that nobody may be about to need; how many. Nothing is deleted when any manifest can't be
        read. Raises as `manifest` does."""
        old = [kept for kept in self._objects.all(_CHUNKS) if self._clock() - kept.written_at > GRACE_S]
        needed = set(self._needed()) if old else set()  # asked after: what came to be needed meanwhile is newer, or was written anew
        doomed = [kept for kept in old if kept.key not in needed and self._still_old(kept)]
        for kept in (*doomed, *self._left_over()):
            self._objects.delete(kept.key)
        return len(doomed)

    def _left_over(self) -> list[Kept]:
        """Short manifests of images that never came to be, or that were deleted but for these."""
        old = [kept for kept in self._objects.all(_ABOUT) if self._clock() - kept.written_at > GRACE_S]
        images = set(self.all()) if old else set()
        return [kept for kept in old if kept.key.removeprefix(_ABOUT) not in images]

    def _needed(self) -> Iterator[str]:
        for image in self.all():
            manifest = self.manifest(image)
            if manifest is not None:
                for part in itertools.chain.from_iterable(file.parts for file in manifest.files):
                    yield from (_CHUNKS + name for name in self._ring.names(part.blake3))

    def _still_old(self, kept: Kept) -> bool:
        found = self._objects.find(kept.key)
        return found is not None and found.written_at == kept.written_at


def _nobody() -> None:
    """There is none at the other end who has to be told that something still comes."""


def _brief(manifest: ImageManifest) -> ImageManifest:
    """Without its files and signature, nor how its worker is started: that may be a secret."""
    spec = msgspec.structs.replace(manifest.spec, command=(), env={})
    return msgspec.structs.replace(manifest, spec=spec, files=(), signature=None)


def _once(folder: Path, manifest: ImageManifest) -> Iterator[tuple[Path, int, Chunk]]:
    """Each different chunk of an image, and where it is."""
    seen: set[str] = set()
    for file in manifest.files:
        at = 0
        for part in file.parts:
            if part.blake3 not in seen:
                seen.add(part.blake3)
                yield folder / file.name, at, part
            at += part.size


def _beside(call: Callable[[A], B], jobs: Iterable[A]) -> Iterator[B]:
    """What the calls return, in turn; several at once, and never far ahead."""
    with ThreadPoolExecutor(_THREADS, "archive") as pool:
        ahead: deque[Future[B]] = deque()
        try:
            for job in jobs:
                ahead.append(pool.submit(call, job))
                if len(ahead) > 2 * _THREADS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _locked(image: str, name: str) -> Problem:
    return Problem(
        code="SH824",
        what="the image in the archive is encrypted by a key that this node hasn't",
        remedy="Give all nodes the same `keys` in `[archive]`, the old ones after the new one",
        subject=f"{image} in {name}",
    )
