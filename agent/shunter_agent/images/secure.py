"""TLS over a socket with few system calls: Python's own TLS socket makes one or two for every 16 KiB, and wakes the other side as often.

Between TLS records there may be bytes that aren't TLS's, where both sides know how many: see `sealed`.
"""

import socket
import ssl
import time
from typing import Final

_READ: Final = 1 << 18
"""Most bytes that are taken from the socket at once."""
_RECORD: Final = 5
"""Bytes before each TLS record, the last two of which say how long it is."""


class Secure:
    """A TLS connection, after its handshake. Has what `frames.Link` needs of a socket, and closes the plain one with itself."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server_side: bool, within_s: float) -> None:
        """Shake hands, all of it within `within_s` seconds. Raises OSError; the socket is then still the caller's to close."""
        until = time.monotonic() + within_s
        self._plain = plain
        self._patience_s = within_s
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._raw = memoryview(bytearray(_READ))
        self._at = self._end = 0
        """Where what was taken from the socket, and not made use of, begins and ends."""
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError("TLS wasn't agreed on in time") from None
                self._patience_s = left
                if not self._more():
                    raise ConnectionResetError("the connection ended before TLS was agreed on") from None
            except ssl.SSLError:
                self._flush()  # the alert that tells the other side why
                raise
            else:
                break
        self._flush()

    def __enter__(self) -> "Secure":
        return self

    def __exit__(self, *_exc: object) -> None:
        self._plain.close()

    def shutdown(self, how: int) -> None:
        """The plain socket's."""
        self._plain.shutdown(how)

    def fileno(self) -> int:
        """The plain socket's, to wait for bytes on it."""
        return self._plain.fileno()

    def settimeout(self, seconds: float) -> None:
        """How long to wait: for a TLS record, for bytes that aren't TLS's, or for the other side to take any."""
        self._patience_s = seconds
        self._plain.settimeout(seconds)

    def sendall(self, data: memoryview | bytes, raw: memoryview | bytes = b"") -> None:
        """Encrypt and send it all; then `raw`, as it is. Raises OSError."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.tls.write(rest) :]
        if not raw:
            self._flush()
            return
        head = self._outgoing.read()
        sent = self._plain.sendmsg([head, raw])
        if sent < len(head):
            self._plain.sendall(head[sent:])
            sent = len(head)
        self._plain.sendall(memoryview(raw)[sent - len(head) :])

    def recv_into(self, into: memoryview) -> int:
        """Wait for some bytes; how many, 0 at the end of the connection. Raises OSError."""
        while True:
            try:
                return int(self.tls.read(len(into), into))  # type: ignore[arg-type, unused-ignore]  # a count, with a buffer
            except ssl.SSLWantReadError:
                if not self._more():
                    return 0
            except ssl.SSLZeroReturnError:
                return 0

    def raw_into(self, into: memoryview) -> int:
        """Wait for bytes that aren't TLS's; how many, 0 at the end of the connection. Raises OSError."""
        if self._at == self._end:
            return self._plain.recv_into(into)
        count = min(len(into), self._end - self._at)
        into[:count] = self._raw[self._at : self._at + count]
        self._at += count
        return count

    def recv(self, most: int) -> bytes:
        """Take what has come, undeciphered, to throw it away. Empty at the end of the connection. Raises OSError."""
        return self._plain.recv(most)

    def _more(self) -> bool:
        """Wait for one TLS record more: all of it, or a sender that gives a byte now and then would be waited for long. False at the end of
        the connection."""
        self._flush()
        until = time.monotonic() + self._patience_s
        if not self._have(_RECORD, until):
            return False
        size = _RECORD + int.from_bytes(self._raw[self._at + _RECORD - 2 : self._at + _RECORD], "big")
        if size > _READ or not self._have(size, until):
            return False
        self._incoming.write(self._raw[self._at : self._at + size])
        self._at += size
        return True

    def _have(self, size: int, until: float) -> bool:
        while self._end - self._at < size:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("it comes too slowly")
            self._plain.settimeout(left)
            if _READ - self._at < size:
                self._raw[: self._end - self._at] = self._raw[self._at : self._end]
                self._at, self._end = 0, self._end - self._at
            elif self._at == self._end:
                self._at = self._end = 0
            count = self._plain.recv_into(self._raw[self._end :])
            if not count:
                return False
            self._end += count
        return True

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._plain.sendall(self._outgoing.read())
