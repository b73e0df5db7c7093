"""How fast images go between this node and others, and which of them first: all that are being sent, and what goes to the archive and comes
from there, share one allowance. What other agents send here has its share of theirs."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from shunter_agent.refusals import retry

Pace: TypeAlias = Callable[[int, Callable[[], None]], None]
"""Waits until so many bytes may go, and calls what it is given every now and then meanwhile."""
_IDLE_S: Final = 0.25
"""Seconds without a byte after which a sending holds up nobody any more: it waits for a dump, say."""
_REASSURE_S: Final = 1.0
"""Seconds after which one that waits says that it is still there."""
_STANDS_S: Final = 5.0
"""Seconds for which a worker without a deadline stands still while others have the link: then it runs on, and is moved another time."""


@dataclass(frozen=True, order=True)
class Urgency:
    """Who goes first: the smallest. Images of workers that have to leave by some moment go by that moment (seconds since the epoch; those
    without come after them); and of those that are equal, images that a worker stands still or is missing for before copies, and copies on
    nodes before those in the archive."""

    deadline: float = float("inf")
    copy: bool = True
    archived: bool = False

    @classmethod
    def by(cls, deadline: float | None, *, copy: bool, archived: bool = False) -> "Urgency":
        """`deadline` None: there is none."""
        return cls(float("inf") if deadline is None else deadline, copy, archived)


def unpaced(_size: int, _meanwhile: Callable[[], None]) -> None:
    """A `Pace` of nobody: as fast as it goes."""


@dataclass(eq=False)
class _Turn:
    urgency: Urgency
    last: float
    stands: Callable[[], bool]
    waiting: int = 0
    held: float | None = None
    """Since when others have gone first, without a break; None: none does."""


@dataclass
class Pacing:
    """One per agent. Usable from any thread."""

    rate: float | None = None
    """Bytes per second, of all that is sent to other agents and to the archive, and of what comes from there; None: as fast as it goes."""
    clock: Callable[[], float] = time.monotonic
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _turns: list[_Turn] = field(default_factory=list)
    _due: float = 0.0
    """When what was taken last will have gone at the allowed rate."""

    @contextlib.contextmanager
    def sending(self, urgency: Urgency, stands: Callable[[], bool] = lambda: False) -> Iterator[Pace]:
        """For as long as one image is sent: what is given may be called from several threads.

        `stands` says whether its worker stands still by now: one without a deadline is held up for `_STANDS_S` seconds at most, after
        which what is given raises Retry SH826.
        """
        turn = _Turn(urgency, self.clock(), stands)
        with self._changed:
            self._turns.append(turn)
        try:
            yield lambda size, meanwhile: self._take(turn, size, meanwhile)
        finally:
            with self._changed:
                self._turns.remove(turn)
                self._changed.notify_all()

    def _take(self, turn: _Turn, size: int, meanwhile: Callable[[], None]) -> None:
        said = self.clock()
        while not self._taken(turn, size):
            if self.clock() - said >= _REASSURE_S:
                meanwhile()
                said = self.clock()

    def _taken(self, turn: _Turn, size: int) -> bool:
        """Wait a little; whether they may go now."""
        with self._changed:
            now = self.clock()
            held_s = self._held_up(turn, now)
            self._stand_no_longer(turn, now, held_s)
            wait_s = max(held_s, self._due - now if self.rate else 0.0)
            if wait_s <= 0:
                turn.last = now
                if self.rate:
                    self._due = max(self._due, now) + size / self.rate
                return True
            turn.waiting += 1
            try:
                self._changed.wait(min(wait_s, _IDLE_S))
            finally:
                turn.waiting -= 1
            return False

    @staticmethod
    def _stand_no_longer(turn: _Turn, now: float, held_s: float) -> None:
        """What isn't urgent gives way, and whoever waits for it isn't kept waiting for nothing."""
        if held_s <= 0 or turn.urgency.deadline < float("inf") or not turn.stands():
            turn.held = None
            return
        turn.held = now if turn.held is None else turn.held
        if now - turn.held >= _STANDS_S:
            what = f"images of workers that have to leave sooner have had the link for {_STANDS_S:g} s, and its worker stood still"
            raise retry("SH826", what, "Nothing to do: the worker runs on, and is moved another time")

    def _held_up(self, turn: _Turn, now: float) -> float:
        """Seconds for which others, which are more urgent, are to go first; 0: none is."""
        ahead = [other for other in self._turns if other.urgency < turn.urgency]
        return max((_IDLE_S if other.waiting else other.last + _IDLE_S - now for other in ahead), default=0.0)
