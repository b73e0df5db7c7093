"""Sending images to another agent, also while they are still being written."""

import contextlib
import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3
from shunter.model.errors import Problem, Rejected, Retry, Unknown

from shunter_agent.images.frames import CHUNK, Broken, Data, Hello, Link, Ready, Refused, Stored, Wait, Whole
from shunter_agent.images.manifest import ImageFile, ImageInfo, ImageManifest, belongs, check_id, manifest_of
from shunter_agent.images.secure import Secure
from shunter_agent.images.store import ImageStore
from shunter_agent.tls import TlsFiles, client_context, require_agent

_GROWING: Final = "pages-*.img"
"""Files that CRIU only ever appends to. All others are sent once they are complete."""
_LOOK_S: Final = 0.002
_REASSURE_S: Final = 1.0


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Another agent's image port. `node` is who must be found there."""

    node: str
    host: str
    port: int

    @classmethod
    def at(cls, node: str, address: str) -> "Peer":
        """From `host:port`. Raises Rejected SH805."""
        host, _colon, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise Rejected(
                Problem(
                    code="SH805",
                    what=f"{address!r} is not an image port's address",
                    remedy="Give host:port, as the node's report does",
                    subject=node,
                )
            )
        return cls(node=node, host=host.strip("[]"), port=int(port))


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a transfer may take: to connect, silent, and in all. Seconds."""

    connect_s: float = 5.0
    idle_s: float = 20.0
    total_s: float = 3600.0


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A finished transfer. `bytes` went over the link (0 when the image was there already) in `seconds`; of those, `after_s` passed after
    the image was complete here: what the transfer added to the dump that it followed.
    """

    manifest: ImageManifest
    bytes: int
    seconds: float
    after_s: float

    @property
    def files(self) -> dict[str, ImageFile]:
        """The files by name, for `ImageStore.commit`."""
        return {file.name: file for file in self.manifest.files}


class Growth:
    """Tells a sender how the dump that it follows goes on. Exactly one of `finish` and `fail` ends it; safe between threads."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._good = False
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._hung_up = False

    def finish(self) -> None:
        """All files have their final bytes."""
        self._good = True
        self._over.set()

    def fail(self) -> None:
        """There will be no image: what was sent is dropped."""
        self._over.set()

    def goes_over(self, link: socket.socket) -> None:
        """There is a connection now, which `hang_up` ends: at once, if that was called already."""
        with self._lock:
            self._link = link
            if self._hung_up:
                _shut(link)

    def hang_up(self) -> None:
        """End the sender's connection under it, whatever it waits for: a node that lost its power never answers. Idempotent."""
        with self._lock:
            self._hung_up = True
            if self._link is not None:
                _shut(self._link)

    def wait(self, seconds: float) -> bool:
        """Wait at most so long. True once all files are final. Raises Rejected SH805 when the dump has failed."""
        if not self._over.wait(seconds):
            return False
        if not self._good:
            raise Rejected(Problem(code="SH805", what="the image was given up before it was complete", remedy="See why its dump failed"))
        return True


def send_growing(
    folder: Path,
    image: str,
    describe: Callable[[], ImageInfo],
    growth: Growth,
    peer: Peer,
    tls: TlsFiles,
    *,
    expected: int = 0,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    progress: Callable[[int], None] = lambda _bytes: None,
    taken: Callable[[], None] = lambda: None,
) -> Sent:
    """Send the image that is being written into `folder`, and return when it is whole and visible at the peer.

    The peer keeps room for `expected` bytes (0: nobody knows); it may become larger or smaller. `describe` is called once `growth` has
    finished. `progress` gets the bytes sent so far; `taken` is called once the peer is ready for it. Raises Retry SH806 (nothing is left
    there), Rejected SH801, SH805 and what the peer refuses with, SH807 when somebody else is there; Unknown SH811 when the link broke after
    the last byte: the image may be whole there.
    """
    check_id(image)
    with _link(peer, tls, limits, growth.goes_over) as link:
        sender = _Sender(link, folder, progress)
        with _explained(peer):
            sender.open(Hello(image=image, bytes=expected))
            taken()
            sender.follow(growth)
            complete = time.monotonic()
            sender.rest()
        return sender.close(manifest_of(describe(), sender.files()), complete, peer)


def send_whole(
    store: ImageStore,
    image: str,
    peer: Peer,
    tls: TlsFiles,
    *,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    progress: Callable[[int], None] = lambda _bytes: None,
) -> Sent:
    """Send a whole image of `store`. Nothing is sent when the peer has this very image already.

    Raises as `send_growing` does, and Rejected SH802, or SH804 when the bytes here aren't those of the manifest any more.
    """
    manifest = store.get(image)
    folder = store.folder(image)
    began = time.monotonic()
    with _link(peer, tls, limits) as link:
        sender = _Sender(link, folder, progress)
        with _explained(peer):
            if sender.open(Hello(image=image, digests=digests_of(manifest), bytes=manifest.bytes)):
                return Sent(manifest=manifest, bytes=0, seconds=time.monotonic() - began, after_s=0.0)
            sender.rest()
        if sender.files() != manifest.files:
            raise Rejected(
                Problem(
                    code="SH804",
                    what="the image is damaged: its files are not those of its manifest",
                    remedy="Discard it, and use another copy",
                    subject=image,
                )
            )
        return sender.close(manifest, began, peer)


def digests_of(manifest: ImageManifest) -> str:
    """One digest over the names, sizes and digests of its files."""
    return blake3(msgspec.json.encode(manifest.files)).hexdigest()


class _Sender:
    """One transfer: files are read once, hashed and sent."""

    def __init__(self, link: Link, folder: Path, progress: Callable[[int], None]) -> None:
        self._link = link
        self._folder = folder
        self._progress = progress
        self._began = time.monotonic()
        self._bytes = 0
        self._sizes: dict[str, int] = {}
        self._hashes: dict[str, blake3] = {}
        self._buffer = memoryview(bytearray(CHUNK))
        self._spoke = self._began

    def open(self, hello: Hello) -> bool:
        """Announce the image. True when the peer has it already."""
        self._link.send(hello)
        answer = self._answer()
        if not isinstance(answer, Ready):
            raise Broken("the other side answered out of turn")
        return answer.have

    def follow(self, growth: Growth) -> None:
        """Send files that only grow, as they do, until all files are final."""
        with contextlib.ExitStack() as stack:
            opened: dict[str, io.FileIO] = {}
            while not growth.wait(0 if self._grown(opened, stack) else _LOOK_S):
                if time.monotonic() - self._spoke > _REASSURE_S:
                    self._say(Wait())

    def _grown(self, opened: dict[str, io.FileIO], stack: contextlib.ExitStack) -> bool:
        for path in self._folder.glob(_GROWING):
            if path.name not in opened:
                opened[path.name] = stack.enter_context(io.FileIO(path))
        return any([self._chunk(name, file) for name, file in opened.items()])

    def rest(self) -> None:
        """Send whatever hasn't been sent, of all files."""
        for path in sorted(self._folder.iterdir()):
            if belongs(path.name):
                with io.FileIO(path) as file:
                    file.seek(self._sizes.get(path.name, 0))
                    self._hashes.setdefault(path.name, blake3())
                    while self._chunk(path.name, file):
                        pass
                    if path.name not in self._sizes:
                        self._say(Data(name=path.name, offset=0, size=0))  # an empty file is a file
                        self._sizes[path.name] = 0

    def _chunk(self, name: str, file: io.FileIO) -> int:
        count = file.readinto(self._buffer) or 0
        if count:
            body = self._buffer[:count]
            self._hashes.setdefault(name, blake3()).update(body)
            self._say(Data(name=name, offset=self._sizes.get(name, 0), size=count), body)
            self._sizes[name] = self._sizes.get(name, 0) + count
            self._bytes += count
            self._progress(self._bytes)
        return count

    def _say(self, header: Data | Wait | Whole, body: memoryview | bytes = b"") -> None:
        if select.select([self._link.socket], [], [], 0)[0]:
            self._answer()  # nothing but a refusal comes before the end
            raise Broken("the other side answered out of turn")
        try:
            self._link.send(header, body)
        except Broken:
            with contextlib.suppress(Broken):
                self._answer()  # a refusal may have come in the meantime, and says more
            raise
        self._spoke = time.monotonic()

    def files(self) -> tuple[ImageFile, ...]:
        """What was sent, sorted by name."""
        return tuple(ImageFile(name=name, size=size, blake3=self._hashes[name].hexdigest()) for name, size in sorted(self._sizes.items()))

    def close(self, manifest: ImageManifest, complete: float, peer: Peer) -> Sent:
        """Send the manifest and wait until the image is visible at the peer. `complete`: when it was complete here (monotonic)."""
        with _explained(peer):
            self._say(Whole(manifest=manifest))
        try:
            answer = self._answer()
            if not isinstance(answer, Stored) or answer.bytes != manifest.bytes:
                raise Broken("the other side answered out of turn")
        except Broken as error:
            raise Unknown(
                Problem(
                    code="SH811",
                    what=f"the link to {peer.node} broke before it confirmed the image, which may be whole there: {error}",
                    remedy="Ask the node for its images, or send it again: it is taken only once",
                    subject=manifest.id,
                )
            ) from error
        now = time.monotonic()
        return Sent(manifest=manifest, bytes=self._bytes, seconds=now - self._began, after_s=now - complete)

    def _answer(self) -> Ready | Stored:
        answer = self._link.from_receiver()
        if isinstance(answer, Refused):
            problem = Problem(code=answer.code, what=answer.what, remedy=answer.remedy)
            raise Retry(problem) if answer.again else Rejected(problem)
        return answer


@contextlib.contextmanager
def _explained(peer: Peer) -> Iterator[None]:
    try:
        yield
    except Broken as error:
        raise Retry(_unsent(peer, str(error))) from error


def _shut(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _link(peer: Peer, tls: TlsFiles, limits: Limits, connected: Callable[[socket.socket], None] = lambda _plain: None) -> Iterator[Link]:
    context = client_context(tls)
    try:
        plain = socket.create_connection((peer.host, peer.port), limits.connect_s)
    except OSError as error:
        raise Retry(_unsent(peer, str(error))) from error
    try:
        connected(plain)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secure = Secure(plain, context, server_side=False, within_s=limits.connect_s)
    except (OSError, ssl.SSLError) as error:
        plain.close()
        raise Retry(_unsent(peer, str(error))) from error
    with secure:
        require_agent(secure.tls, peer.node)
        yield Link(secure, limits.idle_s, limits.total_s)


def _unsent(peer: Peer, why: str) -> Problem:
    return Problem(
        code="SH806",
        what=f"the image wasn't sent to {peer.node}, and nothing of it is left there: {why}",
        remedy="Check that its agent runs and that its image port can be reached; then try again",
        subject=f"{peer.host}:{peer.port}",
    )


__all__ = ["Growth", "Limits", "Peer", "Sent", "digests_of", "send_growing", "send_whole"]
