"""Workers that start from golden images, where somebody can have them start so: pods that Dynamo Snapshot restores.

The pool is kept at its number by whoever keeps it, whatever becomes of such a start: one that fails costs time, and is followed by a native
one. What an operation has started is known by its id, so that all of these are safe to do twice.
"""

from collections.abc import Callable
from typing import Protocol

from shunter.model.operation import OperationRecord
from shunter.model.pod import Started


class Starts(Protocol):
    """All raise Retry (nothing was done) and Unknown (it may have been: do it again)."""

    async def begin(self, record: OperationRecord, may: Callable[[], None]) -> str:
        """Have the worker that is to come to `hands_to`, in the slot that is left, start from the golden image `golden`: once for each
        operation. Why that isn't done, in words, and nothing is; empty: it is begun, or was before. `may` is called before each effect,
        and what it raises keeps it from being made.
        """
        ...

    async def look(self, record: OperationRecord) -> Started:
        """How far it has come. Of one that was never begun: `instead`."""
        ...

    async def end(self, record: OperationRecord, may: Callable[[], None]) -> bool:
        """Remove what was begun, unless it serves by now, which is False: then it stays. True: it is gone. `may` as in `begin`."""
        ...
