"""Python's garbage collector, out of the way while there is nothing for it to find.

A decision makes some hundred thousand objects and not one ring of them (a test holds it to that): each is freed when it is no longer
used. The collector would look through them again and again meanwhile. And now and then it looks through all that there is: with a large
fleet that takes a tenth of a second, in which no thread does anything else.

While somebody sweeps, what a decision has made isn't looked through afterwards either, which takes 10 to 100 ms: it is put where the
collector doesn't look (`gc.freeze`, which only relinks lists), and the next sweep looks at all of it.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

EVERY_S: Final = 900.0
"""Seconds between looks through everything."""
_NEVER: Final = 2**30
_CHANGING: Final = threading.Lock()
_pauses = 0
_ours = False
"""It was running before, and we stopped it."""
_sweepers = 0
"""Whoever looks through everything now and then."""


@contextmanager
def paused() -> Iterator[None]:
    """Nothing is collected, in no thread, until the last that asked for it is done; then the young objects are looked through once, or by
    the next sweep where there will be one. Rings that others leave behind wait for so long.
    """
    global _pauses, _ours
    with _CHANGING:
        if _pauses == 0:
            _ours = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _CHANGING:
            _pauses -= 1
            if last := _pauses == 0 and _ours:
                gc.enable()
                if _sweepers:
                    gc.freeze()
        if last and not _sweepers:
            gc.collect(0)


class Sweeping:
    """While it is entered, everything is looked through when its owner says so, instead of whenever enough was made."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds from any beginning."""
        self._clock, self._last = clock, clock()

    def __enter__(self) -> "Sweeping":
        global _sweepers
        self._before = gc.get_threshold()
        with _CHANGING:
            _sweepers += 1
            gc.set_threshold(self._before[0], _NEVER, _NEVER)
        return self

    def __exit__(self, *_: object) -> None:
        global _sweepers
        with _CHANGING:
            _sweepers -= 1
            gc.set_threshold(*self._before)
            gc.unfreeze()

    def sweep(self) -> None:
        """Now is a good moment: if the last time is long enough ago."""
        if self._clock() - self._last >= EVERY_S:
            gc.unfreeze()
            gc.collect()
            self._last = self._clock()
