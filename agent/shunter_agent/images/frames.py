"""What goes over the link between two agents: headers (a length, then JSON), and after a Data header that many raw bytes."""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from shunter_agent.images.manifest import Chunk, ImageManifest
from shunter_agent.images.sealed import Sealed, Wrong
from shunter_agent.images.secure import Secure

VERSION: Final = 1
_MOST_HEADER: Final = 8 << 20
_LOOK_S: Final = 0.1
_LENGTH: Final = struct.Struct(">I")


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Sender: an image follows, of about `bytes` bytes (0: not known). `digests` is a digest of what its manifest will say of its files;
    empty while it is still being written. `chunks`: it may come in chunks, if the receiver likes. `signed`: its manifest will be.
    `session`: a random name by which the transfer can be gone on with over another link; empty: it can't. `key`: the bytes behind headers
    may be sealed by it, if the receiver likes; empty: they go in TLS."""

    image: str
    version: int = VERSION
    digests: str = ""
    key: bytes = b""  # before a field takes the type's name
    bytes: int = 0
    chunks: bool = False
    signed: bool = False
    session: str = ""


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag="resume"):
    """Sender, at the beginning of a link: go on with a transfer whose link broke. `heard`: so many answers came over; `key` as Hello's."""

    image: str
    session: str
    heard: int
    key: bytes = b""


class Lane(msgspec.Struct, frozen=True, kw_only=True, tag="lane"):
    """Sender, at the beginning of a link: chunks of a transfer that goes on over another link come over this one. `key` as Hello's."""

    image: str
    session: str
    key: bytes = b""


class GiveUp(msgspec.Struct, frozen=True, tag="give-up"):
    """Sender: there will be no image, and no other link."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Receiver: go on, or `have`: this very image is here already, and nothing need be sent. `chunks`: it is to come in chunks, of which
    there are `known` here already, of all images together. `session`: the transfer may go on over another link. `sealed`: the bytes behind
    headers are to be sealed by the key that was given, from here on."""

    have: bool = False
    chunks: bool = False
    known: int = 0
    session: bool = False
    sealed: bool = False


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag="ack"):
    """Receiver: of the headers after Hello (or of a lane's), so many have been made use of."""

    done: int


class Resumed(msgspec.Struct, frozen=True, kw_only=True, tag="resumed"):
    """Receiver: go on behind so many headers; unheard answers follow. `sealed` as Ready's."""

    done: int
    sealed: bool = False


class Data(msgspec.Struct, frozen=True, kw_only=True, tag="data"):
    """Sender: `size` bytes of file `name` follow, from `offset` on; each file's bytes come in order.

    In chunks they are one, and come in any order. `area` is the folder in the image's that the file is in: see `spread`.
    """

    name: str
    offset: int
    size: int
    area: str = ""


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """A chunk that the sender has, and the digest of one that it differs little from (empty: it knows none)."""

    blake3: str
    size: int
    base: str = ""


class Offer(msgspec.Struct, frozen=True, kw_only=True, tag="offer"):
    """Sender: at `offset` of file `name` there are these chunks side by side: take those that you have. Answered by an Answer."""

    name: str
    offset: int
    chunks: tuple[Wanted, ...]
    area: str = ""


class Patch(msgspec.Struct, frozen=True, kw_only=True, tag="patch"):
    """Sender: a chunk is made of `pieces`: of chunk `base`, so many bytes from an offset on; or, where that is negative, of so many
    of those that follow this header."""

    name: str
    offset: int
    size: int
    blake3: str
    base: str
    pieces: tuple[tuple[int, int], ...]
    area: str = ""


class Listed(msgspec.Struct, frozen=True, kw_only=True, tag="listed"):
    """Sender: of file `name`, which the receiver has in parts, these are the next chunks."""

    name: str
    chunks: tuple[Chunk, ...]


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """Sender: nothing new yet, but I am here."""


class Whole(msgspec.Struct, frozen=True, kw_only=True, tag="whole"):
    """Sender: that was all of it. `spread`: what it had before is in `parent`; see `spread`. Of what came in chunks, the manifest leaves
    out which: an image of terabytes has millions, and the receiver knows them."""

    manifest: ImageManifest
    spread: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """Receiver: of each chunk that was offered, in turn: `y` it is in its place, `b` only its base is here, `n` neither is."""

    chunks: str


class Missing(msgspec.Struct, frozen=True, array_like=True):
    """A chunk whose bytes were wrong."""

    area: str
    name: str
    offset: int
    size: int


class Again(msgspec.Struct, frozen=True, kw_only=True, tag="again"):
    """Receiver: not yet: send these, and then that it was all."""

    missing: tuple[Missing, ...]


class Stored(msgspec.Struct, frozen=True, kw_only=True, tag="stored"):
    """Receiver: checked, whole and visible here."""

    bytes: int


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Receiver: no, and nothing of it is left here. `again`: it may work later."""

    code: str
    what: str
    remedy: str
    again: bool = False


FromSender: TypeAlias = Hello | Resume | Lane | Data | Offer | Patch | Listed | Wait | Whole | GiveUp
FromReceiver: TypeAlias = Ready | Resumed | Ack | Answer | Again | Stored | Refused

_from_sender: Final = msgspec.json.Decoder(FromSender)
_from_receiver: Final = msgspec.json.Decoder(FromReceiver)


class Broken(Exception):
    """The link ended, or what came over it isn't this protocol."""


class Link:
    """Headers and bytes over one TLS socket, each wait at most `idle_s` seconds and all together at most `total_s`."""

    def __init__(self, link: ssl.SSLSocket | Secure, idle_s: float, total_s: float) -> None:
        self.socket = link
        self._sealed: Sealed | None = None
        self._last = b""
        self._idle_s = idle_s
        self._until = time.monotonic() + total_s

    def _bound(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise Broken("the time for it is over")
        self.socket.settimeout(min(left, self._idle_s))

    def seal(self, key: bytes) -> None:
        """From here on, the bytes behind headers go beside TLS: see `sealed`. Raises Broken when the key is none."""
        try:
            self._sealed = Sealed(key)
        except ValueError as error:
            raise Broken(str(error)) from error

    def send(self, header: FromSender | FromReceiver, body: memoryview | bytes = b"") -> None:
        """Send a header and the bytes behind it. Raises Broken."""
        text = msgspec.json.encode(header)
        head = _LENGTH.pack(len(text)) + text
        self._bound()
        try:
            if body and self._sealed is not None and isinstance(self.socket, Secure):
                self.socket.sendall(head, self._sealed.seal(body, text))
                return
            self.socket.sendall(head)
            if body:
                self.socket.sendall(body)
        except OSError as error:
            raise Broken(_said(error)) from error

    @property
    def sealed(self) -> bool:
        """The bytes behind headers go beside TLS."""
        return self._sealed is not None

    def hurry(self, idle_s: float) -> None:
        """Wait no longer than so many seconds from here on."""
        self._idle_s = min(self._idle_s, idle_s)

    def hang_up(self) -> None:
        """End it, whoever waits on it. Idempotent."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def read(self, into: memoryview) -> None:
        """Fill `into` with the bytes behind the last header. Raises Broken."""
        if not into or self._sealed is None or not isinstance(self.socket, Secure):
            self._fill(into, self.socket.recv_into)
            return
        sealed = self._sealed.room(len(into))
        self._fill(sealed, self.socket.raw_into)
        try:
            self._sealed.open(sealed, self._last, into)
        except Wrong as error:
            raise Broken("the bytes on the link aren't those that were sent") from error

    def _fill(self, into: memoryview, receive: Callable[[memoryview], int]) -> None:
        self._bound()
        looked = time.monotonic()
        while into:
            try:
                count = receive(into)
            except OSError as error:
                raise Broken(_said(error)) from error
            if count == 0:
                raise Broken("the other side closed the connection")
            into = into[count:]
            if (now := time.monotonic()) - looked > _LOOK_S:  # not for every 16 KiB that TLS gives at a time
                self._bound()
                looked = now

    def _header(self) -> bytes:
        length = bytearray(_LENGTH.size)
        self._fill(memoryview(length), self.socket.recv_into)
        (size,) = _LENGTH.unpack(length)
        if size > _MOST_HEADER:
            raise Broken(f"a header of {size} bytes isn't one of this protocol")
        text = bytearray(size)
        self._fill(memoryview(text), self.socket.recv_into)
        self._last = bytes(text)
        return self._last

    def from_sender(self) -> FromSender:
        """The sender's next header. Raises Broken."""
        try:
            return _from_sender.decode(self._header())
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Broken(f"a header isn't one of this protocol: {error}") from error

    def from_receiver(self) -> FromReceiver:
        """The receiver's next header. Raises Broken."""
        try:
            return _from_receiver.decode(self._header())
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Broken(f"a header isn't one of this protocol: {error}") from error


def _said(error: OSError) -> str:
    return "the other side was silent for too long" if isinstance(error, TimeoutError) else str(error)
