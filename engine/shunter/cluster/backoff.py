"""How long to wait before trying again: longer each time, and never all at once."""

import random
from collections.abc import Callable


class Backoff:
    """Waits that double from `first` to `most` seconds, each shortened by up to a half at random, so that many don't come together."""

    def __init__(self, first: float = 0.25, most: float = 30.0, rnd: Callable[[], float] = random.random) -> None:
        """`rnd` gives numbers from 0 to 1."""
        self._first, self._most, self._rnd = first, most, rnd
        self._tries = 0

    def next(self) -> float:
        """Seconds to wait now."""
        full = min(self._most, self._first * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return full * (0.5 + 0.5 * self._rnd())

    def reset(self) -> None:
        """It went well: begin with short waits again."""
        self._tries = 0
