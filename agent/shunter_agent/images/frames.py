"""What goes over the link between two agents: headers (a length, then JSON), and after a Data header that many raw bytes."""

import ssl
import struct
import time
from typing import Final, TypeAlias

import msgspec

from shunter_agent.images.manifest import ImageManifest
from shunter_agent.images.secure import Secure

VERSION: Final = 1
CHUNK: Final = 1 << 20
"""Most bytes behind one Data header."""
_MOST_HEADER: Final = 8 << 20
_LOOK_S: Final = 0.1
_LENGTH: Final = struct.Struct(">I")


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Sender: an image follows, of about `bytes` bytes (0: not known). `digests` is a digest of what its manifest will say of its files;
    empty while it is still being written."""

    image: str
    version: int = VERSION
    digests: str = ""
    bytes: int = 0


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Receiver: go on, or `have`: this very image is here already, and nothing need be sent."""

    have: bool = False


class Data(msgspec.Struct, frozen=True, kw_only=True, tag="data"):
    """Sender: `size` bytes of file `name` follow, from `offset` on; each file's bytes come in order."""

    name: str
    offset: int
    size: int


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """Sender: nothing new yet, but I am here."""


class Whole(msgspec.Struct, frozen=True, kw_only=True, tag="whole"):
    """Sender: that was all of it."""

    manifest: ImageManifest


class Stored(msgspec.Struct, frozen=True, kw_only=True, tag="stored"):
    """Receiver: checked, whole and visible here."""

    bytes: int


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Receiver: no, and nothing of it is left here. `again`: it may work later."""

    code: str
    what: str
    remedy: str
    again: bool = False


FromSender: TypeAlias = Hello | Data | Wait | Whole
FromReceiver: TypeAlias = Ready | Stored | Refused

_from_sender: Final = msgspec.json.Decoder(FromSender)
_from_receiver: Final = msgspec.json.Decoder(FromReceiver)


class Broken(Exception):
    """The link ended, or what came over it isn't this protocol."""


class Link:
    """Headers and bytes over one TLS socket, each wait at most `idle_s` seconds and all together at most `total_s`."""

    def __init__(self, socket: ssl.SSLSocket | Secure, idle_s: float, total_s: float) -> None:
        self.socket = socket
        self._idle_s = idle_s
        self._until = time.monotonic() + total_s

    def _bound(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise Broken("the time for it is over")
        self.socket.settimeout(min(left, self._idle_s))

    def send(self, header: FromSender | FromReceiver, body: memoryview | bytes = b"") -> None:
        """Send a header and the bytes behind it. Raises Broken."""
        text = msgspec.json.encode(header)
        self._bound()
        try:
            self.socket.sendall(_LENGTH.pack(len(text)) + text)
            if body:
                self.socket.sendall(body)
        except OSError as error:
            raise Broken(_said(error)) from error

    def read(self, into: memoryview) -> None:
        """Fill `into`. Raises Broken."""
        self._bound()
        looked = time.monotonic()
        while into:
            try:
                count = self.socket.recv_into(into)
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
        self.read(memoryview(length))
        (size,) = _LENGTH.unpack(length)
        if size > _MOST_HEADER:
            raise Broken(f"a header of {size} bytes isn't one of this protocol")
        text = bytearray(size)
        self.read(memoryview(text))
        return bytes(text)

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
