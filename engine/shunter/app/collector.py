"""Python's garbage collector, out of the way while there is nothing for it to find.

A decision makes some hundred thousand objects and not one ring of them (a test holds it to that): each is freed when it is no longer
used. The collector would look through them again and again meanwhile.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_CHANGING: Final = threading.Lock()
_pauses = 0
_ours = False
"""It was running before, and we stopped it."""


@contextmanager
def paused() -> Iterator[None]:
    """Nothing is collected, in no thread, until the last that asked for it is done; then the young objects are looked through once. Rings
    that others leave behind wait for so long.
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
        if last:
            gc.collect(0)
