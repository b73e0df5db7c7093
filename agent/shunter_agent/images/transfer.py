"""Sending images to another agent, also while they are still being written."""

import contextlib
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
from blake3 import blake3
from shunter.model.errors import Problem, Rejected, Retry, Unknown

from shunter_agent.images.bases import Bases
from shunter_agent.images.frames import Broken, Hello, Lane, Link, Ready, Resume, Resumed, Stored
from shunter_agent.images.growth import Growth
from shunter_agent.images.index import Place
from shunter_agent.images.lanes import Lanes
from shunter_agent.images.manifest import ImageFile, ImageInfo, ImageManifest, check_id, manifest_of
from shunter_agent.images.offering import ChunkSender
from shunter_agent.images.pacing import Pace, unpaced
from shunter_agent.images.sealed import new_key
from shunter_agent.images.secure import Secure
from shunter_agent.images.store import ImageStore
from shunter_agent.images.streaming import WholeSender
from shunter_agent.images.talk import Talk
from shunter_agent.tls import TlsFiles, client_context, require_agent

MOVING_S: Final = 2.0
LANES: Final = max(0, min(3, (os.cpu_count() or 1) // 2 - 1))
"""Links beside the first one: where each finds a core of its own to encrypt and to hash with. On two cores they'd wait for each other."""
_PAUSE_S: Final = 0.1
"""Seconds between tries to connect again."""
_MOST_BREAKS: Final = 20
"""Links of one transfer that may break without a header more having been made use of."""


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
    resume_s: float = 10.0
    """How long a transfer whose link broke looks for another one. For an image that is still being written at most `MOVING_S`, as its
    worker may stand still for it."""
    lanes: int = LANES
    """Links beside the first one, over which chunks go."""


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
    bases: Callable[[], Bases] = dict,
    store: ImageStore | None = None,
    pace: Pace = unpaced,
) -> Sent:
    """Send the image that is being written into `folder`, and return when it is whole and visible at the peer. `bases` are chunks in
    `store` which those of the image may differ little from; the store also signs the image. None: it has none, and nobody signs.

    The peer keeps room for `expected` bytes (0: nobody knows); it may become larger or smaller. `describe` is called once `growth` has
    finished. `progress` gets the bytes sent so far; `taken` is called once the peer is ready for it. Raises Retry SH806 (nothing is left
    there), Rejected SH801, SH805 and what the peer refuses with, SH807 when somebody else is there; Unknown SH811 when the link broke after
    the last byte: the image may be whole there.
    """
    check_id(image)
    began = time.monotonic()
    links = _Links(peer, tls, msgspec.structs.replace(limits, resume_s=min(limits.resume_s, MOVING_S)), image, growth)
    with links, _talking(Talk(links.first(), pace)) as talk:
        with _explained(peer):
            hello = Hello(image=image, bytes=expected, chunks=True, signed=store is not None and store.signs, session=links.session)
            ready = links.agree(talk, hello)
        make: Callable[[], _Sender] = partial(WholeSender, talk, folder, progress)
        if ready.chunks:
            make = partial(ChunkSender, talk, folder, bases, store.read if store else _nowhere, ready.known > 0, progress)
        with contextlib.closing(make()) as sender:
            with _explained(peer):
                taken()
                sender.follow(growth)
                complete = time.monotonic()
                sender.rest()
            manifest = manifest_of(describe(), sender.files())
            return _close(sender, store.sign(manifest) if store else manifest, began, complete, peer)


def _nowhere(_place: Place, _size: int) -> bytes:
    raise FileNotFoundError("there is no store to read from")


def send_whole(
    store: ImageStore,
    image: str,
    peer: Peer,
    tls: TlsFiles,
    *,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    progress: Callable[[int], None] = lambda _bytes: None,
    pace: Pace = unpaced,
) -> Sent:
    """Send a whole image of `store`. Nothing is sent when the peer has this very image already.

    Raises as `send_growing` does, and Rejected SH802, or SH804 when the bytes here aren't those of the manifest any more.
    """
    store.join(image)
    manifest = store.get(image)
    began = time.monotonic()
    links = _Links(peer, tls, limits, image)
    with links, _talking(Talk(links.first(), pace)) as talk, contextlib.ExitStack() as opened:
        with _explained(peer):
            ready = links.agree(talk, _hello(manifest, links.session))
            if ready.have:
                return Sent(manifest=manifest, bytes=0, seconds=time.monotonic() - began, after_s=0.0)
        folder = opened.enter_context(store.opened(image))
        make: Callable[[], _Sender] = partial(WholeSender, talk, folder, progress)
        if ready.chunks:
            make = partial(ChunkSender, talk, folder, dict, store.read, ready.known > 0, progress, manifest)
        elif manifest.in_chunks and any(file.chunks for file in manifest.files):
            manifest = _unchunked(store, manifest)
        with contextlib.closing(make()) as sender:
            with _explained(peer):
                sender.rest()
            if sender.files() != manifest.files:
                raise Rejected(_damaged(image))
            try:
                return _close(sender, manifest, began, began, peer)
            except Rejected as error:
                if error.problem.code == "SH804" and store.verify(image):
                    raise Rejected(_damaged(image)) from error
                raise


def _hello(manifest: ImageManifest, session: str) -> Hello:
    return Hello(
        image=manifest.id,
        digests=digests_of(manifest),
        bytes=manifest.bytes,
        chunks=manifest.in_chunks,
        signed=manifest.signature is not None,
        session=session if manifest.in_chunks else "",
    )


def _unchunked(store: ImageStore, manifest: ImageManifest) -> ImageManifest:
    """The manifest for a release that knows no chunks. Raises Rejected SH804."""
    if store.verify(manifest.id):
        raise Rejected(_damaged(manifest.id))
    folder = store.folder(manifest.id)  # its sender has it open
    files = (msgspec.structs.replace(f, chunks=(), blake3=blake3().update_mmap(folder / f.name).hexdigest()) for f in manifest.files)
    return msgspec.structs.replace(manifest, files=tuple(files))


def _damaged(image: str) -> Problem:
    return Problem(
        code="SH804",
        what="the image is damaged: its files are not those of its manifest",
        remedy="Discard it, and use another copy",
        subject=image,
    )


def digests_of(manifest: ImageManifest) -> str:
    """One digest over the names, sizes and digests of its files."""
    return blake3(msgspec.json.encode(manifest.files)).hexdigest()


class _Sender(Protocol):
    """How the files of an image go over: in chunks, or whole to a release that knows no others."""

    bytes: int

    def follow(self, growth: Growth) -> None: ...
    def rest(self) -> None: ...
    def files(self) -> tuple[ImageFile, ...]: ...
    def end(self, manifest: ImageManifest) -> Stored: ...
    def close(self) -> None: ...


@contextlib.contextmanager
def _talking(talk: Talk) -> Iterator[Talk]:
    """Tell the other side when it comes to nothing: it would wait for another link."""
    try:
        yield talk
    except BaseException:
        talk.give_up()
        raise
    finally:
        talk.close()


class _Links:
    """The links of one transfer: the first one, those that take its place when it breaks, and those beside it."""

    def __init__(self, peer: Peer, tls: TlsFiles, limits: Limits, image: str, growth: Growth | None = None) -> None:
        self._peer = peer
        self._tls = tls
        self._limits = limits
        self._image = image
        self._growth = growth
        self._open = contextlib.ExitStack()
        self._breaks = 0
        self._until = time.monotonic() + limits.total_s
        self.session = secrets.token_hex(16)

    def __enter__(self) -> "_Links":
        return self

    def __exit__(self, *_exc: object) -> None:
        self._open.close()

    def first(self) -> Link:
        """A link to the peer, in place of any other. Raises as `_link` does."""
        self._open.close()
        return self._open.enter_context(_link(self._peer, self._tls, self._limits, self._connected, self._until))

    def _connected(self, plain: socket.socket) -> None:
        if self._growth is not None:
            self._growth.goes_over(plain)

    def agree(self, talk: Talk, hello: Hello) -> Ready:
        """Begin the transfer. Raises Broken, and what the peer refuses with."""
        key = new_key() if hello.session else b""
        talk.say(msgspec.structs.replace(hello, key=key))
        answer = talk.listen()
        if not isinstance(answer, Ready):
            raise Broken("the other side answered out of turn")
        if answer.sealed:
            talk.seal(key)
        if answer.session:
            talk.outlive(self._again)
            connect = partial(_link, self._peer, self._tls, self._limits, until=self._until)
            talk.open_lanes(partial(Lanes, self._limits.lanes, connect, Lane(image=self._image, session=self.session)))
        return answer

    def _again(self, heard: int, broken: Broken) -> tuple[Link, int]:
        """Another link for the one that broke, and how many headers the peer has made use of. Raises Broken when there is none in time."""
        self._breaks += 1
        until = time.monotonic() + self._limits.resume_s
        while self._breaks <= _MOST_BREAKS and not self._given_up():
            with contextlib.suppress(Retry, Broken):
                link, key = self.first(), new_key()
                link.send(Resume(image=self._image, session=self.session, heard=heard, key=key))
                answer = link.from_receiver()
                if isinstance(answer, Resumed):
                    if answer.sealed:
                        link.seal(key)
                    return link, answer.done
                break  # it doesn't know the transfer any more: what broke is what there is to say
            if time.monotonic() >= until:
                break
            time.sleep(_PAUSE_S)
        raise broken

    def _given_up(self) -> bool:
        return self._growth is not None and self._growth.given_up


def _close(sender: _Sender, manifest: ImageManifest, began: float, complete: float, peer: Peer) -> Sent:
    """Send the manifest and wait until the image is visible at the peer. `complete`: when it was complete here (monotonic)."""
    try:
        if sender.end(manifest).bytes != manifest.bytes:
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
    return Sent(manifest=manifest, bytes=sender.bytes, seconds=now - began, after_s=now - complete)


@contextlib.contextmanager
def _explained(peer: Peer) -> Iterator[None]:
    try:
        yield
    except Broken as error:
        raise Retry(_unsent(peer, str(error))) from error


@contextlib.contextmanager
def _link(
    peer: Peer,
    tls: TlsFiles,
    limits: Limits,
    connected: Callable[[socket.socket], None] = lambda _plain: None,
    until: float = float("inf"),
) -> Iterator[Link]:
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
        yield Link(secure, limits.idle_s, min(limits.total_s, until - time.monotonic()))


def _unsent(peer: Peer, why: str) -> Problem:
    return Problem(
        code="SH806",
        what=f"the image wasn't sent to {peer.node}, and nothing of it is left there: {why}",
        remedy="Check that its agent runs and that its image port can be reached; then try again",
        subject=f"{peer.host}:{peer.port}",
    )


__all__ = ["Growth", "Limits", "Peer", "Sent", "digests_of", "send_growing", "send_whole"]
