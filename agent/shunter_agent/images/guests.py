"""The connections of an image port. There are never more of them than threads can be spared for, and nobody fills it who says nothing."""

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from shunter.model.errors import Problem

_TELL_S: Final = 10.0
"""At most one line about closed connections in this many seconds."""


class Guests:
    """All open connections, at most `most`. One that comes when it is full takes the place of one that hasn't shown a certificate yet: the
    oldest of the host that has most of those, so that a host can't crowd out any but itself. Usable from any thread."""

    def __init__(self, most: int, tell: Callable[[Problem], None]) -> None:
        """`tell` gets a Problem SH813 now and then while connections are closed for others."""
        self._most = most
        self._tell = tell
        self._changed = threading.Condition()
        self._inside: dict[socket.socket, str | None] = {}
        """Each link's host, as long as it is a stranger that may be shown out; oldest first."""
        self._closing = False
        self._closed = 0
        self._told = float("-inf")

    def enter(self, link: socket.socket, host: str) -> bool:
        """Wait for a place and take it. False once the port is closed. Every True is followed by a `leave`."""
        with self._changed:
            if len(self._inside) >= self._most:
                self._make_room()
            self._changed.wait_for(lambda: self._closing or len(self._inside) < self._most)
            if not self._closing:
                self._inside[link] = host
            return not self._closing

    def _make_room(self) -> None:
        hosts = Counter(host for host in self._inside.values() if host is not None)
        if not hosts:
            return  # all are agents, or leave already
        crowd = hosts.most_common(1)[0][0]
        oldest = next(link for link, host in self._inside.items() if host == crowd)
        self._inside[oldest] = None
        _shut(oldest)
        self._closed += 1
        now = time.monotonic()
        if now - self._told >= _TELL_S:
            self._tell(
                Problem(
                    code="SH813",
                    what=f"{self._closed} connections to the image port were closed for others: they had shown no certificate",
                    remedy=f"Find out what connects from {crowd}, and let none but agents reach the image port",
                    subject=crowd,
                )
            )
            self._told, self._closed = now, 0

    def greet(self, link: socket.socket) -> None:
        """Its certificate is one of the fleet's: it stays as long as it likes."""
        with self._changed:
            self._inside[link] = None

    def leave(self, link: socket.socket) -> None:
        """It is closed."""
        with self._changed:
            self._inside.pop(link, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Break all connections off, and wait until they have left. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            for link in self._inside:
                _shut(link)
            self._changed.wait_for(lambda: not self._inside)


def _shut(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
