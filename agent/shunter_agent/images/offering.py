"""Sending an image in chunks: what the other side has is named, what differs little from what it has is sent as a difference."""

import contextlib
import io
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import accumulate, islice, zip_longest
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3

from shunter_agent.images import spread
from shunter_agent.images.bases import Base, Bases, patch
from shunter_agent.images.copying import Copied, Job
from shunter_agent.images.cutting import CHUNK, Piece, along, fixed, pagemaps_of, pages_name
from shunter_agent.images.differences import Difference, Differences, fits
from shunter_agent.images.foresight import Foresight
from shunter_agent.images.frames import Again, Answer, Broken, Data, Listed, Offer, Patch, Stored, Wait, Wanted, Whole
from shunter_agent.images.growth import GROWING, LOOK_S, REASSURE_S, Growth
from shunter_agent.images.index import Place
from shunter_agent.images.manifest import Chunk, ImageFile, ImageManifest, belongs
from shunter_agent.images.pagemap import Pagemap, Run, dump
from shunter_agent.images.talk import Talk
from shunter_agent.runtime.port import Live

_BATCH: Final = 16
_AHEAD: Final = 3
"""Offers that may be unanswered: what is offered is kept in memory meanwhile."""
_HASHERS: Final = max(1, min(4, (os.cpu_count() or 1) - 1))
"""Threads that read and hash: CRIU writes meanwhile, and needs a core of its own."""
_LISTED: Final = 1 << 14
"""Chunks behind one Listed header."""
_SMALL: Final = 1 << 16
"""Bytes of a file that it isn't worth asking about."""


Reading = Callable[[Place, int], bytes]


class Item(NamedTuple):
    """A chunk to be sent: where it belongs, what it is, and its bytes."""

    piece: Piece
    chunk: Chunk
    data: bytes
    base: Base | None = None


class ChunkSender:
    """One transfer of an image in `folder`. `bases` are what the receiver may have, too; `known`: it has chunks of some image."""

    def __init__(
        self,
        talk: Talk,
        folder: Path,
        bases: Callable[[], Bases],
        read: Reading,
        known: bool,
        progress: Callable[[int], None],
        manifest: ImageManifest | None = None,
    ) -> None:
        """`manifest` says how the files of an image that is whole already are cut; `read` reads where a base is, as `ImageStore.read`."""
        self._talk = talk
        self._folder = folder
        self._bases = bases
        self._read = read
        self._known = known
        self._progress = progress
        self.bytes = 0
        """Of files, that went over the link."""
        self._sent: dict[str, list[Chunk]] = {}
        self._files: dict[str, ImageFile] = {}
        self._copied: dict[str, Copied] = {}
        self._pool = ThreadPoolExecutor(_HASHERS, "hash")
        self._against = Differences(self._copied)
        self._foresight: Foresight[Difference] | None = None
        self._spread = False
        self._plan = {file.name: file for file in manifest.files} if manifest else {}

    # -- while the dump goes on

    def follow(self, growth: Growth) -> None:
        """Copy what is asked for; then, if the other side has nothing, send files that only grow as they do, until all files are final."""
        with contextlib.ExitStack() as stack:
            opened: dict[str, io.FileIO] = {}
            while not growth.wait(0 if self._grown(opened, stack) else LOOK_S):
                job = growth.job()
                if job is not None:
                    self._copy(job)
                if time.monotonic() - self._talk.spoke > REASSURE_S:
                    self._talk.say(Wait())

    def _grown(self, opened: dict[str, io.FileIO], stack: contextlib.ExitStack) -> bool:
        if self._foresight is not None:
            return self._foresight.look()
        if self._known:
            return False  # then it is better known where to cut
        for path in self._folder.glob(GROWING):
            if path.name not in opened:
                opened[path.name] = stack.enter_context(io.FileIO(path))
        return any([self._next(name, file) for name, file in opened.items()])

    def _next(self, name: str, file: io.FileIO) -> bool:
        """Send a whole chunk of it, if there is one."""
        sent = self._sent.setdefault(name, [])
        at = sum(chunk.size for chunk in sent)
        if os.fstat(file.fileno()).st_size - at < CHUNK:
            return False
        data = os.pread(file.fileno(), CHUNK, at)
        self._data("", name, Piece(at, CHUNK), data)
        sent.append(Chunk(blake3(data).hexdigest(), CHUNK))
        return True

    def _copy(self, job: Job) -> None:
        try:
            for memory in job.memories:
                name = f"pagemap-{memory.pid}.img"
                copied = Copied(memory, number=len(self._copied) + 1, until=job.until)
                bases = self._bases()
                self._send(spread.COPY, copied.name, (self._item(name, *found, bases) for found in copied.chunks()))
                if copied.pagemap.runs:
                    self._plain(spread.COPY, name, dump(copied.pagemap))
                    self._copied[name] = copied
        except OSError as error:  # it was to save time, and nothing depends on it
            job.failed = str(error)
        self._talk.settle()
        if self._copied:
            self._foresight = Foresight(self._folder, job.memories, self._pool, self._look)
        job.done.set()  # not when the link broke: then the sending is over

    def _look(self, path: Path, memory: Live, piece: Piece) -> Difference:
        return self._against.look(path, f"pagemap-{memory.pid}.img", piece)

    @staticmethod
    def _item(name: str, piece: Piece, data: bytes, chunk: Chunk, bases: Bases) -> Item:
        return Item(piece, chunk, data, bases.get((name, piece.window)))

    # -- when it is over

    def rest(self) -> None:
        """Send whatever hasn't been sent, of all files."""
        pagemaps = pagemaps_of(self._folder)
        cut = {pages_name(pagemap): (name, pagemap) for name, pagemap in pagemaps.items()}
        for path in sorted(self._folder.iterdir()):
            if not belongs(path.name):
                continue
            with io.FileIO(path) as file:
                name, pagemap = cut.get(path.name, ("", None))
                if pagemap is not None and name in self._copied:
                    self._on_top(path.name, name, pagemap)
                elif path.name in pagemaps and path.name in self._copied:
                    self._files[path.name] = self._plain(spread.ORIGINALS, path.name, file.readall())
                else:
                    self._whole(path.name, name, pagemap, file)

    def _whole(self, name: str, pagemap_name: str, pagemap: Pagemap | None, file: io.FileIO) -> None:
        sent, size = self._sent.get(name, []), os.fstat(file.fileno()).st_size
        if size <= _SMALL and not sent:
            self._files[name] = self._plain("", name, file.readall())
            return
        pieces = self._pieces(name, size, pagemap, len(sent))
        bases = self._bases() if any(piece.runs for piece in pieces) else {}
        items = (
            Item(piece, chunk, data, bases.get((pagemap_name, piece.window)) if piece.runs else None)
            for piece, chunk, data in _hashed(file.fileno(), pieces, self._said(name, pieces), self._pool)
        )
        self._files[name] = ImageFile.of(name, [*sent, *self._send("", name, items)])

    def _pieces(self, name: str, size: int, pagemap: Pagemap | None, sent: int) -> tuple[Piece, ...]:
        """How a file is cut, without the chunks that were sent while it grew."""
        if sent:
            return fixed(size)[sent:]
        cut = along(pagemap.own) if pagemap is not None else fixed(size)
        sizes = [part.size for part in self._plan[name].parts] if name in self._plan else [piece.size for piece in cut]
        if sizes == [piece.size for piece in cut]:
            return cut
        return tuple(Piece(at, size) for at, size in zip(accumulate(sizes, initial=0), sizes, strict=False))

    def _said(self, name: str, pieces: Sequence[Piece]) -> Sequence[Chunk]:
        """What the pieces are by the manifest of a whole image: then only the receiver reads them to the last bit, and finds out if they
        aren't. Empty: they have to be hashed."""
        parts = self._plan[name].parts if name in self._plan else ()
        return parts if [part.size for part in parts] == [piece.size for piece in pieces] else ()

    def _plain(self, area: str, name: str, data: bytes) -> ImageFile:
        for piece in fixed(len(data)):
            self._data(area, name, piece, data[piece.offset : piece.offset + piece.size])
        return ImageFile.of(name, [Chunk(blake3(data[p.offset : p.offset + p.size]).hexdigest(), p.size) for p in fixed(len(data))])

    def _on_top(self, name: str, pagemap_name: str, pagemap: Pagemap) -> None:
        """A process that was copied while it ran: send the pages that have changed since."""
        chunks: list[Chunk] = []
        same: list[Run] = []
        changed = spread.on_top(pagemap, ())
        flow = _Flow(self, pages_name(changed))
        for found in self._differences(name, pagemap_name, along(pagemap.own)):
            chunks.append(found.chunk)
            same.extend(found.same)
            flow.add(self._against.fresh(self._folder / name, found))
        flow.flush()
        self._plain("", pagemap_name, dump(spread.on_top(pagemap, same)))
        for first in range(0, len(chunks), _LISTED):
            self._talk.say(Listed(name=name, chunks=tuple(chunks[first : first + _LISTED])))
        self._files[name] = ImageFile.of(name, chunks)
        self._spread = True

    def _differences(self, name: str, pagemap_name: str, pieces: Sequence[Piece]) -> Iterator[Difference]:
        """What pieces of a file are beside their copy, as was found while it grew or is now."""
        seen = [self._foresight.of(name, piece) if self._foresight else None for piece in pieces]
        known = [
            found if found is not None and fits(found, pagemap_name, piece) else None for found, piece in zip(seen, pieces, strict=True)
        ]
        missing = [piece for piece, found in zip(pieces, known, strict=True) if found is None]
        late = self._pool.map(partial(self._against.look, self._folder / name, pagemap_name), missing)
        for found in known:
            yield found if found is not None else next(late)

    # -- over the link

    def _send(self, area: str, name: str, items: Iterable[Item]) -> list[Chunk]:
        """Offer chunks, or just send them where the other side has none; returns what they are."""
        sent: list[Chunk] = []
        waiting: deque[list[Item]] = deque()
        for batch in _batches(items):
            sent += [item.chunk for item in batch]
            if not self._known:
                for item in batch:
                    self._data(area, name, item.piece, item.data)
                continue
            wanted = tuple(Wanted(i.chunk.blake3, i.chunk.size, i.base.chunk.blake3 if i.base else "") for i in batch)
            self._talk.say(Offer(area=area, name=name, offset=batch[0].piece.offset, chunks=wanted))
            waiting.append(batch)
            if len(waiting) >= _AHEAD:
                self._answered(area, name, waiting.popleft())
        while waiting:
            self._answered(area, name, waiting.popleft())
        return sent

    def _answered(self, area: str, name: str, batch: list[Item]) -> None:
        answer = self._talk.listen()
        if not isinstance(answer, Answer) or len(answer.chunks) != len(batch):
            raise Broken("the other side answered out of turn")
        for item, letter in zip(batch, answer.chunks, strict=True):
            if letter == "b" and item.base is not None:
                self._patch(area, name, item, item.base)
            elif letter != "y":
                self._data(area, name, item.piece, item.data)

    def _patch(self, area: str, name: str, item: Item, base: Base) -> None:
        data = item.data
        try:
            old = self._read(base.place, base.chunk.size)
        except OSError:  # discarded meanwhile
            old = b""
        pieces, fresh = patch(old, base.piece, data, item.piece)
        if len(fresh) == len(data):
            self._data(area, name, item.piece, data)
            return
        header = Patch(
            area=area, name=name, offset=item.piece.offset, size=len(data), blake3=item.chunk.blake3, base=base.chunk.blake3, pieces=pieces
        )
        self._talk.say(header, fresh)
        self._count(len(fresh))

    def _data(self, area: str, name: str, piece: Piece, data: bytes) -> None:
        self._talk.ship(Data(area=area, name=name, offset=piece.offset, size=len(data)), data)
        self._count(len(data))

    def _count(self, size: int) -> None:
        self.bytes += size
        self._progress(self.bytes)

    def changed(self, name: str, offset: int, data: bytes) -> None:
        """Send pages that the other side's copy doesn't have."""
        self._data("", name, Piece(offset, len(data)), data)

    def close(self) -> None:
        """Let go of its threads. Idempotent."""
        self._pool.shutdown(cancel_futures=True)

    def files(self) -> tuple[ImageFile, ...]:
        """What was sent, sorted by name."""
        return tuple(self._files[name] for name in sorted(self._files))

    def end(self, manifest: ImageManifest) -> Stored:
        """Say that it was all, and send again what arrived wrong. Raises Broken, and what the other side refuses with."""
        slim = msgspec.structs.replace(manifest, files=tuple(msgspec.structs.replace(file, chunks=()) for file in manifest.files))
        while True:
            self._talk.settle()
            self._talk.say(Whole(manifest=slim, spread=self._spread))
            answer = self._talk.listen()
            if isinstance(answer, Stored):
                return answer
            if not isinstance(answer, Again):
                raise Broken("the other side answered out of turn")
            for area, name, offset, size in ((m.area, m.name, m.offset, m.size) for m in answer.missing):
                self._again(area, name, offset, size)

    def _again(self, area: str, name: str, offset: int, size: int) -> None:
        if area or name not in self._files or not 0 <= size <= CHUNK:
            raise Broken("the other side has lost what can't be sent again")  # a copy of memory that has changed since
        with io.FileIO(self._folder / name) as file:
            piece = Piece(offset, size)
            self._data(area, name, piece, _load(file.fileno(), piece))


class _Flow:
    """Changed pages, collected into chunks."""

    def __init__(self, sender: ChunkSender, name: str) -> None:
        self._sender = sender
        self._name = name
        self._at = 0
        self._pending = bytearray()
        self._any = False

    def add(self, data: bytes) -> None:
        self._pending += data
        while len(self._pending) >= CHUNK:
            self._send(CHUNK)

    def flush(self) -> None:
        """Send the rest; an empty file is a file."""
        if self._pending or not self._any:
            self._send(len(self._pending))

    def _send(self, size: int) -> None:
        self._any = True
        self._sender.changed(self._name, self._at, bytes(self._pending[:size]))
        del self._pending[:size]
        self._at += size


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    left = iter(items)
    while batch := list(islice(left, _BATCH)):
        yield batch


def _load(descriptor: int, piece: Piece) -> bytes:
    return os.pread(descriptor, piece.size, piece.offset)


def _hashed(
    descriptor: int, pieces: Sequence[Piece], known: Sequence[Chunk], pool: ThreadPoolExecutor
) -> Iterator[tuple[Piece, Chunk, bytes]]:
    """Pieces of a file, what they are (as `known`, unless that is empty), and their bytes; read by several threads but never far ahead."""

    def read(piece: Piece, chunk: Chunk | None) -> tuple[Piece, Chunk, bytes]:
        data = _load(descriptor, piece)
        return piece, chunk or Chunk(blake3(data).hexdigest(), piece.size), data

    ahead: deque[Future[tuple[Piece, Chunk, bytes]]] = deque()
    for piece, chunk in zip_longest(pieces, known):
        ahead.append(pool.submit(read, piece, chunk))
        if len(ahead) > 4 * _HASHERS:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()
