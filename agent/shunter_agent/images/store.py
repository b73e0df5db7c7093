"""The images of a node: one folder each, whole or not visible at all.

An image in the making is `<id>.partial`; it becomes `<id>` by one rename, once its manifest is in it. Images hold users'
conversations: folders are 0700 and files 0600, and what is discarded is unlinked at once.

How durable: with `fsync` an image is on the disk before it is visible. A move doesn't wait for that while its worker stands still: its
image is committed without, and `sync` is called once the worker runs again; until then a power cut at both nodes could lose it.

How secret: with `keys`, what is kept in the folder `root` is sealed (see `sealing`). CRIU can't encrypt, and a worker that stands still
can't wait for it: an image is made and received in plain bytes in the folder `work`, which had better be a tmpfs, and is sealed when it is
brought to the disk; the plain bytes are gone then. For a restore they are put there again, until `close`.

How large: chunks that images here have in common lie on the disk once where its file system can (see `sharing`), and `sync` sees to that.
What is sealed shares nothing: each image has a key of its own.

How trustworthy: with a `signer`, images that are made here are signed; with `trust`, only signed ones are received and restored. Before a
restore all bytes are compared with the manifest, unless this agent has seen that they are right and nobody has touched the files since.
"""

import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
from shunter.model.errors import Problem, Rejected

from shunter_agent.images import spread
from shunter_agent.images.checking import compare, damaged, describe, exists, files_in, missing, named
from shunter_agent.images.cutting import pagemaps_of, pieces_of
from shunter_agent.images.folders import (
    DOOMED,
    PARTIAL,
    SEALING,
    Seen,
    doom,
    looks,
    nothing,
    own,
    remove,
    seen,
    sweep,
    sync_folder,
    sync_path,
)
from shunter_agent.images.index import ChunkIndex, Place
from shunter_agent.images.manifest import MANIFEST, ImageFile, ImageInfo, ImageManifest, Signature, check_id, manifest_of
from shunter_agent.images.pagemap import NotAPagemap, Pagemap, parse
from shunter_agent.images.room import Room, available_memory, is_in_memory, takes_what_is_written
from shunter_agent.images.sealing import Keys, SealedImage, is_sealed, seal, sealed_by_another, shred
from shunter_agent.images.sharing import can_share, share_chunks
from shunter_agent.images.signing import Signer, Trust, covers


class ImageStore:
    """Images under one folder, which is this agent's alone. May be used from several threads."""

    def __init__(
        self, root: Path, *, keys: Keys | None = None, work: Path | None = None, signer: Signer | None = None, trust: Trust | None = None
    ) -> None:
        """Make the folders that are missing, and remove what an earlier run left half made or half discarded. `work` is used with `keys`.

        Raises OSError; Stalled SH820 when the folder for plain bytes is somebody else's.
        """
        self.root = root
        self.work = work if keys is not None and work is not None else root
        """Where images are plain."""
        self.trust = trust
        self.room = Room(self.free_bytes, most=self.most_bytes)
        """What is left of the disk for images."""
        self.index = ChunkIndex()
        """Which chunks the whole images here hold."""
        self._keys = keys
        self._signer = signer
        self._lock = threading.Lock()
        self._resting: WeakValueDictionary[str, threading.RLock] = WeakValueDictionary()
        """Of each image, held while it is joined, sealed or opened: one that takes minutes holds up no other's restore."""
        self._sealing: set[str] = set()
        """Images that are being sealed, and weren't discarded since that began: `discard` waits for none of it."""
        self._users: Counter[str] = Counter()
        self._manifests: dict[str, tuple[Seen, ImageManifest]] = {}
        """As they were read last: one with millions of chunks takes long to read, and an agent is asked for its images every second."""
        self._sealed: dict[str, tuple[Seen, SealedImage]] = {}
        self._right: dict[str, frozenset[Seen]] = {}
        """Images whose bytes were found to be those of their manifests, and what their files looked like then."""
        self._alone: set[str] = set()
        """Images whose files were written here, and don't share yet what others have of them."""
        for folder in {root, self.work}:
            own(folder)
            sweep(folder)
        for manifest in self.list():
            plain = self._plain(manifest.id)
            if plain is not None and is_sealed(self.root / manifest.id):
                shutil.rmtree(plain)  # a run that died had it opened
                plain = None
            if plain is None or not spread.is_spread(plain):
                self.index.add(manifest)

    def begin(self, image: str) -> Path:
        """An empty folder for a new image. Raises Rejected SH801, and SH803 when there is one of this id, whole or in the making."""
        folder = self._partial(image)
        with self._lock:
            if self._whole(image).exists() or (self.root / image).exists():
                raise Rejected(exists(image, "is here already"))
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError as error:
                raise Rejected(exists(image, "is being made or received at this moment")) from error
        return folder

    def commit(
        self, info: ImageInfo, known: Mapping[str, ImageFile] | None = None, *, fsync: bool = True, signature: Signature | None = None
    ) -> ImageManifest:
        """Write the manifest and make the image visible. All regular files in the folder belong to it, except
        logs and statistics, which stay beside it.

        `known` are files whose digest somebody has computed over their final bytes already; they aren't read again. `signature` was made
        over the same image already: another would make another manifest of it. Raises Rejected SH801,
        SH802 when it was never begun, SH804 when the folder holds anything but files, or a
        has another size; Stalled SH810 when it can't be signed; OSError.
        """
        folder = self._partial(info.id)
        if not folder.is_dir():
            raise Rejected(missing(info.id))
        cuts = {} if known else pieces_of(folder)
        manifest = manifest_of(info, tuple(describe(path, known or {}, cuts, info.id) for path in files_in(folder, info.id)))
        if signature is not None and covers(signature, manifest):
            manifest = msgspec.structs.replace(manifest, signature=signature)
        else:
            manifest = self.sign(manifest)
        self._alone.add(info.id)
        self._publish(folder, manifest, fsync)
        return manifest

    @property
    def signs(self) -> bool:
        """Images that are made here get a signature."""
        return self._signer is not None

    def sign(self, manifest: ImageManifest) -> ImageManifest:
        """Signed by this agent, or as it is without a signer. Raises Stalled SH810."""
        return self._signer.sign(manifest) if self._signer is not None else manifest

    def commit_received(self, manifest: ImageManifest, *, fsync: bool) -> None:
        """Make an image visible with a manifest from elsewhere; the caller has checked sizes and digests.

        Raises Rejected, with SH815 to SH817 when it isn't signed as `trust` wants it; OSError.
        """
        folder = self._partial(manifest.id)
        if not folder.is_dir():
            raise Rejected(missing(manifest.id))
        if self.trust is not None:
            self.trust.check(manifest)
        if not spread.is_spread(folder):
            shutil.rmtree(folder / spread.COPY, ignore_errors=True)  # it was copied to be on top of it, and wasn't
            if sorted(path.name for path in files_in(folder, manifest.id)) != [file.name for file in manifest.files]:
                raise Rejected(damaged(manifest.id, "its files are not those of its manifest"))
        elif fsync and not spread.join(folder, manifest):
            raise Rejected(damaged(manifest.id, "its parts don't make what its manifest says"))
        self._publish(folder, manifest, fsync)

    def _publish(self, folder: Path, manifest: ImageManifest, fsync: bool) -> None:
        for path in folder.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        descriptor = os.open(folder / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        if fsync and self._keys is None:
            sync_folder(folder)
        self._right[manifest.id] = looks(folder)
        folder.rename(self._whole(manifest.id))
        if not spread.is_spread(self._whole(manifest.id)):
            self.index.add(manifest)
        if fsync and self._keys is not None:
            self.sync(manifest.id)
        elif fsync:
            sync_path(self.root)

    # -- what becomes of it later

    @contextlib.contextmanager
    def _at_rest(self, image: str) -> Iterator[None]:
        with self._lock:
            lock = self._resting.setdefault(image, threading.RLock())
        with lock:
            yield

    def join(self, image: str, between: Callable[[], None] = nothing) -> None:
        """Make an image that was received on top of a copy what was dumped (see `spread`). Nothing for any other. `between` is called
        between its parts.

        Raises Rejected SH801, SH802, and SH804 when its parts don't make what its manifest says; Retry SH814; OSError.
        """
        with self._at_rest(image):
            manifest, folder = self.get(image), self._plain(image)
            if folder is None or not spread.is_spread(folder):
                return
            right = self._seems_right(image, folder)
            with self.room.share(image) as share:
                share.announce(manifest.bytes)
                if not spread.join(folder, manifest, between):
                    raise Rejected(damaged(image, "its parts don't make what its manifest says"))
            if right:
                self._right[image] = looks(folder)
            self._alone.add(image)
            self.index.add(manifest)
            if not folder.exists():
                self.index.remove(image)

    def sync(self, image: str, between: Callable[[], None] = nothing) -> None:
        """Bring a whole image to the disk: joined if it was spread, sealed if there are keys, and without those to share there what others
        have of it. `between` is called between parts of that, and may hold it up. Raises as `join` does."""
        try:
            self.join(image, between)
            folder = self._plain(image)
            if self._keys is None:
                sync_folder(self.folder(image), between)
            elif folder is not None:
                self._seal(image, folder, self._keys, between)
            sync_path(self.root)
        except OSError:
            self._right.pop(image, None)  # what the disk didn't take may be forgotten: it is read again before a restore
            raise
        if self._keys is None:
            self._share(image, between)

    def _share(self, image: str, between: Callable[[], None]) -> None:
        if image in self._alone and self._shares:
            share_chunks(self.folder(image), self.get(image), self.index.find, self.plain_path, between)
        self._alone.discard(image)

    @cached_property
    def _shares(self) -> bool:
        try:
            return can_share(self.root)
        except OSError:  # nothing can be written there, which shows elsewhere
            return False

    def _seal(self, image: str, folder: Path, keys: Keys, between: Callable[[], None]) -> None:
        with self._at_rest(image):
            if folder == self.root / image and self._users[image]:
                return  # whoever reads it reads it by this name, which the sealed one takes; `unsealed` goes on naming it
            if not is_sealed(self.root / image):
                folder = self._sealed_from(image, folder, keys, between)
                sync_path(self.root)
            if not self._users[image] and is_sealed(self.root / image):  # else it was discarded, and this may be another of its name
                remove(folder)
                self._right.pop(image, None)

    def _sealed_from(self, image: str, folder: Path, keys: Keys, between: Callable[[], None]) -> Path:
        """Seal what is in `folder`, and make that the image. Where the plain files are now."""
        making, sealed = self._making(image), self.root / image
        shutil.rmtree(making, ignore_errors=True)
        try:
            with self._lock:
                making.mkdir(mode=0o700)
                self._sealing.add(image)
            seal(folder, self.get(image), keys, making, between)
            sync_path(making)
        except BaseException as error:
            shutil.rmtree(making, ignore_errors=True)
            if isinstance(error, OSError) and image not in self._sealing:
                raise Rejected(missing(image)) from error
            self._sealing.discard(image)
            raise
        with self._lock:
            if image not in self._sealing:  # or what was discarded would be back
                raise Rejected(missing(image))
            self._sealing.discard(image)
            if folder == sealed:  # plain since a time without keys
                folder = doom(folder)
            making.rename(sealed)
        return folder

    def unsealed(self) -> tuple[str, ...]:
        """Whole images that lie here in plain bytes and are to be sealed; none without keys."""
        if self._keys is None:
            return ()
        return tuple(manifest.id for manifest in self.list() if not is_sealed(self.root / manifest.id))

    @contextlib.contextmanager
    def opened(self, image: str) -> Iterator[Path]:
        """Its plain files, for as long as the context lasts. Raises as `open` does."""
        folder = self.open(image)
        try:
            yield folder
        finally:
            self.close(image)

    def open(self, image: str) -> Path:
        """The folder of its plain files, to which it is decrypted first if it is sealed. Each call is followed by a `close`.

        Raises Rejected SH801, SH802, SH804, SH819; Retry SH814 when there is no room for them; OSError.
        """
        with self._at_rest(image):
            self.get(image)
            folder = self._plain(image)
            if folder is None:
                with self.room.share(image) as share:
                    folder = self._unseal(image, share.announce)
            self._users[image] += 1
            return folder

    def _unseal(self, image: str, announce: Callable[[int], None]) -> Path:
        sealed, making = self._sealed_image(image), self._partial(image)
        announce(sealed.manifest.bytes)
        with self._lock:
            if not is_sealed(self.root / image):  # discarded meanwhile, and what is there may be of a new one
                raise Rejected(missing(image))
            shutil.rmtree(making, ignore_errors=True)  # of a try before this one, if it couldn't be deleted then
            making.mkdir(mode=0o700)
        try:
            sealed.open_into(making)
            self._right[image] = looks(making)  # as it was compared when it was sealed, and nobody else can have written it
            with self._lock:
                if not is_sealed(self.root / image):  # discarded meanwhile: it must not be back
                    raise Rejected(missing(image))
                making.rename(self._whole(image))
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        return self._whole(image)

    def close(self, image: str) -> None:
        """An `open` is over. Plain files of a sealed image that nobody uses any more are deleted. Raises OSError."""
        with self._at_rest(image):
            self._users[image] -= 1
            if self._users[image] > 0:
                return
            del self._users[image]
            folder = self._plain(image)
            if self._keys is not None and folder is not None and is_sealed(self.root / image):
                remove(folder)
                self._right.pop(image, None)

    def open_to_restore(self, image: str) -> Path:
        """As `open`, of an image that is what a trusted agent made, to the last byte.

        Raises as `open` does, Rejected SH815 to SH817 as `Trust.check` does, and SH804 with what is wrong.
        """
        if self.trust is not None:
            self.trust.check(self.get(image))
        folder = self.open(image)
        try:
            if not self._seems_right(image, folder):
                for problem in self.verify(image):
                    raise Rejected(problem)
                self._right[image] = looks(folder)
        except BaseException:
            self.close(image)
            raise
        return folder

    def _seems_right(self, image: str, folder: Path) -> bool:
        return self._right.get(image) == looks(folder)

    def abandon(self, image: str) -> None:
        """Delete an image in the making. Idempotent. Raises Rejected SH801."""
        for folder in self._doomed(self._partial(image)):
            shred(folder)

    def discard(self, image: str) -> bool:
        """Delete a whole image, also one that is just being sealed or opened: that comes to nothing then. False when there was none.
        Idempotent. Raises Rejected SH801."""
        self.index.remove(image)
        with self._lock:
            self._sealing.discard(image)
            halves = self._doomed(self._making(image))  # first: after a death in between, what is whole would be made of it (see `sweep`)
            whole = self._doomed(self._whole(image), self.root / image)
        for folder in (*halves, *whole):
            shred(folder)
        for known in (self._manifests, self._sealed, self._right):
            known.pop(image, None)
        self._alone.discard(image)
        return bool(whole)

    @staticmethod
    def _doomed(*folders: Path) -> "list[Path]":
        """Those of them that there are, put aside."""
        found = []
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                found.append(doom(folder))
        return found

    # -- what is here

    def get(self, image: str) -> ImageManifest:
        """Its manifest.

        Raises Rejected SH801, SH802 when there is no such whole image, SH804 when the manifest can't be read, SH819 when it is sealed by a
        key that isn't here.
        """
        plain = self._plain(image)
        if plain is None:
            return self._sealed_image(image).manifest
        path = plain / MANIFEST
        try:
            now = seen(path)
            known = self._manifests.get(image)
            if known is not None and known[0] == now:
                return known[1]
            data = path.read_bytes()
        except FileNotFoundError as error:
            self._manifests.pop(image, None)
            raise Rejected(missing(image)) from error
        try:
            manifest = msgspec.json.decode(data, type=ImageManifest)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Rejected(damaged(image, f"its manifest can't be read: {error}")) from error
        self._manifests[image] = now, named(manifest, image)
        return manifest

    def _sealed_image(self, image: str) -> SealedImage:
        folder = self.root / check_id(image)
        try:
            if not is_sealed(folder):
                raise Rejected(missing(image))
            now = seen(folder / MANIFEST)
            known = self._sealed.get(image)
            if known is None or known[0] != now:
                known = self._sealed[image] = now, SealedImage(folder, self._keys_for(image))
                named(known[1].manifest, image)
        except FileNotFoundError as error:
            raise Rejected(missing(image)) from error
        return known[1]

    def _keys_for(self, image: str) -> Keys:
        if self._keys is None:
            raise Rejected(sealed_by_another(image, "of a node that had one", ""))
        return self._keys

    def folder(self, image: str) -> Path:
        """Where a whole image's plain files are. Raises Rejected SH801, SH802 when there are none."""
        folder = self._plain(image)
        if folder is None:
            raise Rejected(missing(image))
        return folder

    def read(self, place: Place, size: int) -> bytes:
        """Bytes of a whole image; fewer, or others than were looked for, when it has changed. Raises OSError when they can't be had."""
        folder = self._plain(place.image)
        try:
            if folder is None:
                return self._sealed_image(place.image).read(place.name, place.offset, size)
        except Rejected as error:
            raise FileNotFoundError(error.problem.what) from error
        with (folder / place.name).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), size, place.offset)

    def plain_path(self, place: Place) -> Path | None:
        """The file that holds these bytes as they are; None when they are sealed, or gone."""
        folder = self._plain(place.image)
        return folder / place.name if folder is not None else None

    def pagemaps(self, image: str) -> dict[str, Pagemap]:
        """The pagemaps of a whole image that is joined, by file name. Raises Rejected SH802, SH804; OSError."""
        folder = self._plain(image)
        if folder is not None:
            return pagemaps_of(folder)
        sealed, found = self._sealed_image(image), {}
        for file in sealed.manifest.files:
            if file.name.startswith("pagemap-"):
                with contextlib.suppress(NotAPagemap):
                    found[file.name] = parse(sealed.read(file.name, 0, file.size))
        return found

    def is_spread(self, image: str) -> bool:
        """It was received on top of a copy, and isn't joined yet."""
        folder = self._plain(image)
        return folder is not None and spread.is_spread(folder)

    def list(self) -> "list[ImageManifest]":
        """All whole images, oldest first. One whose manifest can't be read is left out; `verify` says what is wrong with it."""
        found = []
        for name in {path.name for folder in {self.root, self.work} for path in folder.iterdir() if path.is_dir()}:
            if not name.endswith((PARTIAL, DOOMED, SEALING)):
                with contextlib.suppress(Rejected):
                    found.append(self.get(name))
        return sorted(found, key=lambda manifest: (manifest.taken_at, manifest.id))

    def verify(self, image: str) -> tuple[Problem, ...]:
        """Read it all and compare with its manifest and signature. Empty: it is as it was. Logs beside it don't count.

        Raises as `join` does, which comes first.
        """
        self.join(image)
        manifest, folder = self.get(image), self._plain(image)
        if folder is None:
            wrong = self._sealed_image(image).check()
            found = [wrong] if wrong is not None else []
        else:
            found = [problem for file in manifest.files for problem in compare(folder / file.name, file, image)]
        try:
            if self.trust is not None:
                self.trust.check(manifest)
        except Rejected as error:
            found.append(error.problem)
        return tuple(found)

    def free_bytes(self) -> int:
        """Bytes that can still be written to its file systems; what is yet to be sealed is taken off."""
        free = _free(self.root)
        if self._keys is None:
            return min(free, available_memory()) if self.in_memory else free
        waiting = sum(map(self._bytes, self.unsealed()))
        return min(free - waiting, _free(self.work), *([available_memory()] if self.in_memory else []))

    def _bytes(self, image: str) -> int:
        """0 of one that was discarded meanwhile."""
        with contextlib.suppress(Rejected):
            return self.get(image).bytes
        return 0

    def most_bytes(self) -> int | None:
        """Bytes that a dump could write at the very most: what the system keeps for root, what is just being deleted, and memory by
        swapping included. None: not known, as where the file system may compress."""
        if not takes_what_is_written(self.work):
            return None
        stat = os.statvfs(self.work)
        going = sum(path.stat().st_blocks * 512 for path in self.work.glob(f"*{DOOMED}/*") if path.exists())
        most = stat.f_bfree * stat.f_frsize + going
        memory = available_memory(swapping=True) if self.in_memory else 0
        return min(most, memory + going) if memory else most

    @property
    def in_memory(self) -> bool:
        """Plain files are in memory, not on a disk."""
        return is_in_memory(self.work)

    def _whole(self, image: str) -> Path:
        return self.work / check_id(image)

    def _partial(self, image: str) -> Path:
        return self.work / f"{check_id(image)}{PARTIAL}"

    def _making(self, image: str) -> Path:
        return self.root / f"{check_id(image)}{SEALING}"

    def _plain(self, image: str) -> Path | None:
        """The folder of a whole image's plain files, if it has any."""
        for folder in (self._whole(image), self.root / image):
            if folder.is_dir() and not is_sealed(folder):
                return folder
        return None


def _free(root: Path) -> int:
    return shutil.disk_usage(root).free
