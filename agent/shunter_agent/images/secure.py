"""TLS over a socket with few system calls: Python's own TLS socket makes one or two for every 16 KiB, and wakes the other side as often."""

import socket
import ssl
import time
from typing import Final

_READ: Final = 1 << 18
"""Most bytes that are taken from the socket at once."""


class Secure:
    """A TLS connection, after its handshake. Has what `frames.Link` needs of a socket, and closes the plain one with itself."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server_side: bool, within_s: float) -> None:
        """Shake hands, all of it within `within_s` seconds. Raises OSError; the socket is then still the caller's to close."""
        until = time.monotonic() + within_s
        self._plain = plain
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._raw = memoryview(bytearray(_READ))
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError("TLS wasn't agreed on in time") from None
                plain.settimeout(left)
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
        """The plain socket's."""
        self._plain.settimeout(seconds)

    def sendall(self, data: memoryview | bytes) -> None:
        """Encrypt and send it all. Raises OSError."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.tls.write(rest) :]
        self._flush()

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

    def recv(self, most: int) -> bytes:
        """Take what has come, undeciphered, to throw it away. Empty at the end of the connection. Raises OSError."""
        return self._plain.recv(most)

    def _more(self) -> bool:
        self._flush()
        count = self._plain.recv_into(self._raw)
        self._incoming.write(self._raw[:count])
        return count > 0

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._plain.sendall(self._outgoing.read())
