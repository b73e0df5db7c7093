"""An image in the making, in chunks: those that are here already are copied, and only the others come from the other agent."""

import contextlib
import os
import threading
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3
from shunter.model.errors import Problem, Rejected

from shunter_agent.images import spread
from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.frames import Ack, Again, Answer, Broken, Data, Link, Listed, Missing, Offer, Patch, Wait, Wanted, Whole
from shunter_agent.images.incoming import problem, too_large
from shunter_agent.images.index import Place
from shunter_agent.images.manifest import Chunk, ImageFile, ImageManifest, check_name
from shunter_agent.images.pagemap import PAGE, NotAPagemap
from shunter_agent.images.room import Share
from shunter_agent.images.session import CONFIRM, Session
from shunter_agent.images.store import ImageStore

_MOST_OFFERED: Final = 1024
_MOST_AGAIN: Final = 3
"""Times that wrong bytes are asked for again: on a link with checksums they come from a sender that is at fault."""


class _File:
    """A file that is being filled, in any order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.chunks: dict[int, Chunk] = {}
        """Those that are written, by their offsets."""
        self._meant: dict[int, Chunk] = {}
        """Those that are, or are being."""

    def mean(self, offset: int, chunk: Chunk) -> None:
        """A chunk is about to be written. It may come again, over another link, say; but another in its place would leave bytes of either
        to which no digest belongs. Raises Rejected SH804.
        """
        if self._meant.setdefault(offset, chunk) != chunk:
            raise Rejected(_not_as_said())

    def described(self, name: str) -> ImageFile | None:
        """What it is, if its chunks lie side by side from its beginning on."""
        at, parts = 0, []
        for offset, chunk in sorted(self.chunks.items()):
            if offset != at:
                return None
            at += chunk.size
            parts.append(chunk)
        return ImageFile.of(name, parts) if parts else None


class Assembly:
    """An image in the making, in chunks. Leaves nothing behind unless it became whole."""

    def __init__(self, store: ImageStore, image: str, share: Share, *, bytes: int, files: int) -> None:
        """As `Incoming`. Raises Rejected SH801, SH803; OSError."""
        self._store = store
        self._image = image
        self._share = share
        self._most_bytes = bytes
        self._most_files = files
        self._bytes = 0
        self._folder = store.begin(image)
        self._files: dict[tuple[str, str], _File] = {}
        self._listed: dict[str, list[Chunk]] = {}
        self._wrong: dict[tuple[str, str, int], int] = {}
        self._buffer = memoryview(bytearray(CHUNK))
        self._changed = threading.Condition()
        """Guards what lanes change; they write their bytes beside each other."""
        self._writing = 0
        self._closed = False

    def __enter__(self) -> "Assembly":
        return self

    def __exit__(self, *_exc: object) -> None:
        self._close()
        self._store.abandon(self._image)  # does nothing to one that has become whole

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._writing)  # else a lane could write to what has become another file's descriptor
        for file in self._files.values():
            if file.descriptor >= 0:
                os.close(file.descriptor)
                file.descriptor = -1

    def take(self, link: Link | Session) -> ImageManifest:
        """Receive all files, compare with the manifest at the end. Raises Rejected SH801, SH804, SH808; Retry SH814; Broken; OSError."""
        asked = 0
        while True:
            header = link.from_sender()
            if isinstance(header, Data):
                self._data(header, link)
            elif isinstance(header, Offer):
                link.send(Answer(chunks=self._offered(header)))
            elif isinstance(header, Patch):
                self._patch(header, link)
            elif isinstance(header, Listed):
                self._list(header)
            elif isinstance(header, Whole):
                if not self._wrong:
                    return self._checked(header)
                asked += 1
                if asked > _MOST_AGAIN:
                    raise Rejected(_not_as_said())
                link.send(Again(missing=tuple(Missing(area, name, at, size) for (area, name, at), size in self._wrong.items())))
            elif not isinstance(header, Wait):
                raise Broken("the sender spoke out of turn")

    # -- bytes

    def _data(self, header: Data, link: Link | Session, buffer: memoryview | None = None) -> None:
        body = self._body(header.size, link, self._buffer if buffer is None else buffer)
        self._put(header.area, header.name, header.offset, body, blake3(body).hexdigest())

    def _body(self, size: int, link: Link | Session, buffer: memoryview) -> memoryview:
        if not 0 <= size <= CHUNK:
            raise Broken("a chunk has another size than chunks have")
        body = buffer[:size]
        link.read(body)
        return body

    def take_lane(self, link: Link) -> None:
        """Receive chunks over another link of the same transfer, in a thread of its own, until it ends. Raises as `take` does."""
        buffer, done, unconfirmed = memoryview(bytearray(CHUNK)), 0, 0
        while True:
            header = link.from_sender()
            if isinstance(header, Data):
                self._data(header, link, buffer)
                done, unconfirmed = done + 1, unconfirmed + header.size
            elif not isinstance(header, Wait):
                raise Broken("the sender spoke out of turn")
            if isinstance(header, Wait) or unconfirmed >= CONFIRM:
                link.send(Ack(done=done))
                unconfirmed = 0

    def _put(self, area: str, name: str, offset: int, body: memoryview | bytes, digest: str, source: tuple[int, int] | None = None) -> None:
        """Write a chunk; one that lies in another file here (`source`: descriptor, offset) without its bytes, where the disk can share."""
        chunk = Chunk(digest, len(body))
        if offset > 0 and not body:
            raise Rejected(_not_as_said())  # of chunks of nothing there could be any number
        with self._changed:
            file = self._file(area, name, offset, chunk.size)
            file.mean(offset, chunk)
            self._writing += 1
        try:
            at, rest = offset, memoryview(body)
            if source is not None:
                with contextlib.suppress(OSError):  # other file systems say so in other ways, and then the bytes are written
                    count = os.copy_file_range(source[0], file.descriptor, len(body), source[1], offset)
                    at, rest = at + count, rest[count:]
            while rest:
                count = os.pwrite(file.descriptor, rest, at)
                at, rest = at + count, rest[count:]
        finally:
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()
        with self._changed:
            self._share.wrote(len(body))
            file.chunks[offset] = chunk
            self._wrong.pop((area, name, offset), None)

    def _file(self, area: str, name: str, offset: int, size: int) -> _File:
        """The file, with room for so many bytes more."""
        if self._closed:
            raise Broken("the image is complete, and more of it comes")
        if offset < 0 or area not in spread.AREAS:
            raise Broken("the sender's bytes are out of place")
        self._bytes += size
        if self._bytes > self._most_bytes or offset > self._most_bytes:
            raise Rejected(too_large(self._bytes, self._most_bytes))
        self._share.need(size)
        found = self._files.get((area, name))
        if found is None:
            if len(self._files) >= self._most_files:
                raise Rejected(problem("SH808", f"the image has more than {self._most_files} files", "Find out what made it"))
            folder = self._folder / area
            folder.mkdir(mode=0o700, exist_ok=True)
            found = self._files[area, name] = _File(folder / check_name(name))
        return found

    # -- chunks that are here

    def _offered(self, header: Offer) -> str:
        if len(header.chunks) > _MOST_OFFERED:
            raise Broken("the sender offers too much at once")
        at, answers = header.offset, []
        for chunk in header.chunks:
            answers.append(self._fetch(header.area, header.name, at, chunk))
            at += chunk.size
        return "".join(answers)

    def _fetch(self, area: str, name: str, offset: int, chunk: Wanted) -> str:
        if not 0 <= chunk.size <= CHUNK:
            raise Broken("a chunk has another size than chunks have")
        for place in self._places(chunk.blake3):
            if self._copy(place, area, name, offset, chunk):
                return "y"
        return "b" if chunk.base and self._places(chunk.base) else "n"

    def _places(self, digest: str) -> tuple[Place, ...]:
        try:
            return self._store.index.find(digest)
        except ValueError as error:
            raise Broken("a digest isn't one") from error

    def _copy(self, place: Place, area: str, name: str, offset: int, chunk: Wanted) -> bool:
        """Take a chunk from another image here, and look at what was taken. False when it isn't what it was any more."""
        path = self._store.plain_path(place)
        if path is None:
            return self._copy_sealed(place, area, name, offset, chunk)
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False  # discarded meanwhile
        try:
            body = self._buffer[: chunk.size]
            if os.preadv(source, [body], place.offset) != chunk.size or blake3(body).hexdigest() != chunk.blake3:
                return False
            self._put(area, name, offset, body, chunk.blake3, (source, place.offset))
        finally:
            os.close(source)
        return True

    def _copy_sealed(self, place: Place, area: str, name: str, offset: int, chunk: Wanted) -> bool:
        try:
            body = self._store.read(place, chunk.size)
        except OSError:
            return False  # discarded meanwhile, or damaged
        if len(body) != chunk.size or blake3(body).hexdigest() != chunk.blake3:
            return False
        self._put(area, name, offset, body, chunk.blake3)
        return True

    def _patch(self, header: Patch, link: Link | Session) -> None:
        """Make a chunk of another one here. If the result is wrong, it is asked for at the end."""
        new = sum(length for at, length in header.pieces if at < 0)
        if not 0 <= header.size <= CHUNK or any(length < 0 for _at, length in header.pieces):
            raise Broken("a chunk has another size than chunks have")
        if sum(length for _at, length in header.pieces) != header.size:
            raise Broken("a chunk's pieces are more or less than it")
        body = memoryview(bytes(self._body(new, link, self._buffer)))
        base = self._base(header.base)
        made = bytearray()
        for at, length in header.pieces:
            if at < 0:
                made += body[:length]
                body = body[length:]
            else:
                made += base[at : at + length]
        digest = blake3(made).hexdigest()
        if len(made) == header.size and digest == header.blake3:
            self._put(header.area, header.name, header.offset, bytes(made), digest)
        else:
            with self._changed:
                self._file(header.area, header.name, header.offset, 0)
                self._wrong[header.area, header.name, header.offset] = header.size

    def _base(self, digest: str) -> bytes:
        for place in self._places(digest):
            with contextlib.suppress(OSError):  # discarded meanwhile, or damaged
                return self._store.read(place, CHUNK)
        return b""

    # -- the end

    def _list(self, header: Listed) -> None:
        listed = self._listed.setdefault(check_name(header.name), [])
        listed.extend(header.chunks)
        if len(self._listed) > self._most_files or sum(map(len, self._listed.values())) > self._most_bytes // PAGE:
            raise Broken("the sender lists more than an image can have")

    def _checked(self, header: Whole) -> ImageManifest:
        self._close()
        originals = {name for area, name in self._files if area == spread.ORIGINALS}
        if header.manifest.id != self._image or bool(originals) != header.spread:
            raise Rejected(_not_as_said())
        files = tuple(self._of(file, originals) for file in header.manifest.files)
        manifest = msgspec.structs.replace(header.manifest, files=files)
        here = {name for area, name in self._files if not area}
        named = {file.name for file in files}
        if header.spread:
            self._check_spread(manifest, here - named)
        elif here != named or self._listed:
            raise Rejected(_not_as_said())
        if manifest.bytes != sum(file.size for file in files):
            raise Rejected(_not_as_said())
        return manifest

    def _of(self, said: ImageFile, originals: set[str]) -> ImageFile:
        """The file with its chunks, of which the manifest on its way says only what they are together. Raises Rejected SH804; OSError."""
        if said.name in self._listed:
            found: ImageFile | None = ImageFile.of(said.name, self._listed[said.name])
        else:
            file = self._files.get((spread.ORIGINALS if said.name in originals else "", said.name))
            found = file.described(said.name) if file is not None else None
            if file is not None and file.path.stat().st_size != said.size:
                raise Rejected(_not_as_said())
        if found is None or (found.size, found.blake3) != (said.size, said.blake3):
            raise Rejected(_not_as_said())
        return found

    def _check_spread(self, manifest: ImageManifest, more: set[str]) -> None:
        """`more` are files that aren't in the manifest: pages that changed."""
        try:
            pages = spread.pages_of(self._folder)
        except NotAPagemap as error:
            raise Rejected(_not_as_said()) from error
        if pages != set(self._listed) or any(not name.startswith("pages-") for name in more):
            raise Rejected(_not_as_said())
        what = spread.wrong(self._folder, manifest, self._copied)
        if what:
            raise Rejected(problem("SH804", f"what arrived is not what the manifest says: {what}", "Send it again"))

    def _copied(self, name: str) -> dict[int, Chunk]:
        file = self._files.get((spread.COPY, name))
        return file.chunks if file is not None and file.described(name) is not None else {}


def _not_as_said() -> Problem:
    return problem("SH804", "what arrived is not what the manifest says", "Send it again; if it happens again, check the link")
