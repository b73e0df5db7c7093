"""The sender's side of a transfer, on which a refusal may come at any moment, and which outlives its link.

What was said is kept until the other side confirms that it has made use of it, `WINDOW` bytes at most: a receiver that is slower than the
sender holds it up by that. When the link breaks, another one takes its place, and what wasn't confirmed is said again, in turn. So whatever
is being sent goes on where it was, and need not know.
"""

import contextlib
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from shunter.model.errors import Problem, Rejected, Retry

from shunter_agent.images.frames import (
    Ack,
    Again,
    Answer,
    Broken,
    Data,
    GiveUp,
    Hello,
    Link,
    Listed,
    Offer,
    Patch,
    Ready,
    Refused,
    Resumed,
    Stored,
    Wait,
    Whole,
)
from shunter_agent.images.growth import REASSURE_S
from shunter_agent.images.lanes import Lanes
from shunter_agent.images.pacing import Pace, unpaced

WINDOW: Final = 64 << 20
"""Bytes that may be unconfirmed."""
REFUSED_S: Final = 1.0
"""Seconds that a refusal may be late, on a link that takes nothing any more."""
Said: TypeAlias = Hello | Data | Offer | Patch | Listed | Wait | Whole | GiveUp
Heard: TypeAlias = Ready | Answer | Again | Stored


class _Kept(NamedTuple):
    header: Said
    body: memoryview | bytes


class Talk:
    """Says things, and listens between. One thread's."""

    def __init__(self, link: Link, pace: Pace = unpaced) -> None:
        """`pace` is called before bytes are sent."""
        self._link = link
        self._pace = pace
        self._heard: deque[Answer] = deque()
        self._mend: Callable[[int, Broken], tuple[Link, int]] | None = None
        self._kept: deque[_Kept] = deque()
        self._lanes: Lanes | None = None
        self._confirmed = 0
        self._unconfirmed = 0
        self._answers = 0
        self.spoke = time.monotonic()
        """When something was last said (monotonic)."""

    def seal(self, key: bytes) -> None:
        """See `Link.seal`."""
        self._link.seal(key)

    def outlive(self, mend: Callable[[int, Broken], tuple[Link, int]]) -> None:
        """From here on, `mend` finds another link for one that broke: it is given how many answers were heard, and returns how many headers
        the other side has made use of. It raises when there is no other link to be had."""
        self._mend = mend

    def say(self, header: Said, body: memoryview | bytes = b"") -> None:
        """Send a header and its bytes. Raises Broken, and Rejected or Retry when the other side has refused."""
        if body:
            self._pace(len(body), self._reassure)
        while select.select([self._link.socket], [], [], 0)[0]:
            self._hear()  # nothing but answers and a refusal comes before the end
        self._say(header, body)

    def _say(self, header: Said, body: memoryview | bytes = b"") -> None:
        if self._mend is not None:
            self._kept.append(_Kept(header, body))
            self._unconfirmed += len(body)
        try:
            self._link.send(header, body)
        except Broken as error:
            self._link.hurry(REFUSED_S)
            with contextlib.suppress(Broken):
                while True:
                    self._hear_now()  # a refusal may have come in the meantime, and says more
            self._again(error)
        self.spoke = time.monotonic()
        while self._unconfirmed > WINDOW:
            self._hear()

    def _reassure(self) -> None:
        self._say(Wait())

    def open_lanes(self, lanes: Callable[[Callable[[Data, bytes | memoryview], None]], Lanes]) -> None:
        """Have chunks sent over more links than this one; `close` ends them."""
        self._lanes = lanes(self._say)

    def ship(self, header: Data, body: bytes | memoryview) -> None:
        """As `say`, but over whichever link has room for it. Until `settle`, nobody knows whether it came over."""
        if self._lanes is None:
            self.say(header, body)
            return
        self._pace(len(body), self._reassure)
        self._lanes.ship(header, body)
        if time.monotonic() - self.spoke > REASSURE_S:
            self.say(Wait())

    def settle(self) -> None:
        """Return when the other side has made use of all that was shipped. Raises as `say` does."""
        if self._lanes is not None:
            self._lanes.settle()

    def close(self) -> None:
        """End all links but the first. Idempotent."""
        if self._lanes is not None:
            self._lanes.close()

    def give_up(self) -> None:
        """Tell the other side, if it can be told, that nothing more comes and nothing is to be kept."""
        with contextlib.suppress(Broken, OSError):
            self._link.send(GiveUp())

    def _again(self, error: Broken) -> None:
        """Go on over another link, from what wasn't confirmed. Raises Broken when there is none."""
        if self._mend is None:
            raise error
        while True:
            self._link, done = self._mend(self._answers, error)
            self._confirm(done)
            try:
                for kept in self._kept:
                    self._link.send(kept.header, kept.body)
            except Broken as broken:
                error = broken
            else:
                return

    def _confirm(self, done: int) -> None:
        while self._confirmed < done and self._kept:
            self._unconfirmed -= len(self._kept.popleft().body)
            self._confirmed += 1

    def _hear(self) -> None:
        try:
            self._hear_now()
        except Broken as error:
            self._again(error)

    def _hear_now(self) -> None:
        answer = self._take(self._link.from_receiver())
        if isinstance(answer, Answer):
            self._heard.append(answer)
        elif answer is not None:
            raise Broken("the other side answered out of turn")

    def listen(self) -> Heard:
        """What the other side says next. Raises as `say` does."""
        while not self._heard:
            try:
                answer = self._take(self._link.from_receiver())
            except Broken as error:
                self._again(error)
                continue
            if answer is not None:
                return answer
        return self._heard.popleft()

    def _take(self, heard: Heard | Ack | Resumed | Refused) -> Heard | None:
        if isinstance(heard, Refused):
            problem = Problem(code=heard.code, what=heard.what, remedy=heard.remedy)
            raise Retry(problem) if heard.again else Rejected(problem)
        if isinstance(heard, Ack):
            self._confirm(heard.done)
            return None
        if isinstance(heard, Resumed):
            raise Broken("the other side answered out of turn")
        self._answers += not isinstance(heard, Ready)
        return heard
