"""How a dump goes on, as the one who sends its image meanwhile is told."""

import contextlib
import socket
import threading
from typing import Final

from shunter.model.errors import Problem, Rejected

from shunter_agent.images.copying import Job

GROWING: Final = "pages-*.img"
"""Files that CRIU only ever appends to. All others are sent once they are complete."""
LOOK_S: Final = 0.002
"""Seconds between looks whether they have grown."""
REASSURE_S: Final = 1.0
"""Seconds after which the other side is told that the sender is still there."""


class Growth:
    """Tells a sender how the dump that it follows goes on. Exactly one of `finish` and `fail` ends it; safe between threads."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._good = False
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._hung_up = False
        self._job: Job | None = None

    def finish(self) -> None:
        """All files have their final bytes."""
        self._good = True
        self._over.set()

    def fail(self) -> None:
        """There will be no image: what was sent is dropped."""
        self._over.set()

    def copy(self, job: Job) -> None:
        """Before the dump begins, have memory copied ahead of it."""
        with self._lock:
            self._job = job

    def job(self) -> Job | None:
        """What is to be copied, once."""
        with self._lock:
            job, self._job = self._job, None
        return job

    def goes_over(self, link: socket.socket) -> None:
        """There is a connection now, which `hang_up` ends: at once, if that was called already."""
        with self._lock:
            self._link = link
            if self._hung_up:
                shut(link)

    def hang_up(self) -> None:
        """End the sender's connection under it, whatever it waits for: a node that lost its power never answers. Idempotent."""
        with self._lock:
            self._hung_up = True
            if self._link is not None:
                shut(self._link)

    @property
    def given_up(self) -> bool:
        """It has failed, or its sender is to end whatever it does."""
        return self._hung_up or (self._over.is_set() and not self._good)

    def wait(self, seconds: float) -> bool:
        """Wait at most so long. True once all files are final. Raises Rejected SH805 when the dump has failed."""
        if not self._over.wait(seconds):
            return False
        if not self._good:
            raise Rejected(Problem(code="SH805", what="the image was given up before it was complete", remedy="See why its dump failed"))
        return True


def shut(link: socket.socket) -> None:
    """End a connection, also while somebody waits on it."""
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
