"""The receiver's side of a transfer that outlives its link: see `talk`. Nothing of it stays when no other link comes in time."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from shunter.model.errors import Problem, Rejected

from shunter_agent.images.frames import Ack, Again, Answer, Broken, FromSender, GiveUp, Link, Resume, Resumed, Stored

CONFIRM: Final = 8 << 20
"""Bytes, at most, that were made use of without a word."""
_CONFIRM_HEADERS: Final = 256
_ANSWERS: Final = 64
"""Answers that may be unheard: more than a sender ever waits for."""
_LOOK_S: Final = 0.1


class Session:
    """Has what `Assembly` needs of a link. One thread reads; others bring new links."""

    def __init__(self, link: Link, sender: str, patience_s: float, closing: Callable[[], bool]) -> None:
        """`sender` is the node that it belongs to; it waits for another link for `patience_s` seconds, unless `closing` says otherwise."""
        self.link = link
        self.sender = sender
        self._patience_s = patience_s
        self._closing = closing
        self._changed = threading.Condition()
        self._coming: tuple[Link, int] | None = None
        self._over = False
        self._superseded = False
        self.over = threading.Event()
        """Nothing is left of it."""
        self._read = self._done = self._confirmed = self._given = 0
        self._unconfirmed = 0
        self._current: FromSender | None = None
        self._answers: deque[Answer | Again | Stored] = deque(maxlen=_ANSWERS)
        self.finished_at: float | None = None
        """When the image became whole (monotonic); None: it hasn't."""

    # -- as a link

    def from_sender(self) -> FromSender:
        """The next header; what came with the one before has been made use of. Raises Broken."""
        self._done = self._read
        if self._unconfirmed >= CONFIRM or self._done - self._confirmed >= _CONFIRM_HEADERS:
            self._confirm()
        self._current = self._header()
        self._read += 1
        if isinstance(self._current, GiveUp):
            self._patience_s = 0.0
            raise Broken("the sender has given it up")
        return self._current

    def _header(self) -> FromSender:
        while True:
            try:
                return self.link.from_sender()
            except Broken as error:
                self._wait(error)

    def read(self, into: memoryview) -> None:
        """The bytes behind the header. Raises Broken."""
        while True:
            try:
                self.link.read(into)
            except Broken as error:
                self._wait(error)
                if self._header() != self._current:
                    raise Broken("the sender goes on with something else") from error
            else:
                self._unconfirmed += len(into)
                return

    def send(self, answer: Answer | Again | Stored) -> None:
        """Answer; after a break, too. Raises Broken."""
        self._answers.append(answer)
        self._given += 1
        self._done = self._read  # else what is answered would be said and answered again
        if isinstance(answer, Stored):
            self.finished_at = time.monotonic()
        try:
            self.link.send(answer)
        except Broken as error:
            if self.finished_at is None:  # else whoever comes back for the answer gets it
                self._wait(error)

    def _confirm(self) -> None:
        try:
            self.link.send(Ack(done=self._done))
        except Broken as error:
            self._wait(error)
        self._confirmed, self._unconfirmed = self._done, 0

    # -- links

    def _wait(self, error: Broken) -> None:
        """Wait for another link, which goes on with what wasn't made use of. Raises the error when none comes."""
        self.link.hang_up()  # what broke for this side may not have for the other
        until = time.monotonic() + self._patience_s
        while True:
            with self._changed:
                while self._coming is None:
                    left = until - time.monotonic()
                    if left <= 0 or self._superseded or self._closing():
                        raise error
                    self._changed.wait(min(left, _LOOK_S))
                (self.link, heard), self._coming = self._coming, None
                self._changed.notify_all()
            try:
                self._resumed(self.link, heard)
            except Broken:
                continue
            return

    def _resumed(self, link: Link, heard: int) -> None:
        link.send(Resumed(done=self._done, sealed=link.sealed))
        unheard = self._given - heard
        if not 0 <= unheard <= len(self._answers):
            raise Broken("the sender has heard what nobody said")
        for answer in list(self._answers)[len(self._answers) - unheard :]:
            link.send(answer)
        self._confirmed, self._unconfirmed = self._done, 0

    def adopt(self, link: Link, resume: Resume) -> None:
        """Go on over this link; blocks for as long as it is used. Raises Rejected SH821 when it is all over; Broken."""
        if self.finished_at is not None:
            self._resumed(link, resume.heard)
            return
        self.link.hang_up()  # it may not have noticed yet that the other side is gone
        with self._changed:
            if self._over:
                raise Rejected(unknown_session(resume.image))
            self._coming = link, resume.heard
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._over or (self.link is not link and (self._coming is None or self._coming[0] is not link)))

    def give_way(self) -> None:
        """Its sender begins anew, and goes on with this one no more: end it, and leave nothing."""
        with self._changed:
            self._superseded = True
            self._changed.notify_all()
        self.link.hang_up()

    def end(self) -> None:
        """Nobody reads any more, and nothing is left: let go of all links."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self.over.set()


def unknown_session(image: str) -> Problem:
    """SH821."""
    return Problem(
        code="SH821",
        what="the transfer that is to be gone on with isn't known here any more, and nothing of it is left",
        remedy="Send the image again from its beginning",
        subject=image,
    )
