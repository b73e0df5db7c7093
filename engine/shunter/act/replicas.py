"""How many workers a pool is to have by whoever keeps it at that number, where somebody does: Dynamo's operator, by a resource of record.

A worker that leaves its pool for good has to leave that number too, or another one is started in its place; and one that comes has to be
counted before it serves, or the pool has one too many and another has to go. Only reassignments change it: a worker that a dying node has
driven out is still wanted.
"""

from collections.abc import Callable
from typing import Protocol

from shunter.model.ids import PoolId
from shunter.model.operation import OperationRecord
from shunter.model.pod import Pod


class Replicas(Protocol):
    """Changes those numbers. What an operation has changed is known by its id: each of these is safe to do twice.

    All do nothing where nobody keeps the pool at a number. All raise Rejected and Retry when nothing is left changed, and Unknown when it
    isn't known.
    """

    async def check(self, record: OperationRecord, left: Pod | None, then: PoolId | None) -> None:
        """Whether `change` would be taken now, without changing anything. `left` is the pod that the worker lives in; `then` the pool that
        an operation behind this one brings a worker to, whose number is looked at as well.
        """
        ...

    async def change(self, record: OperationRecord, may: Callable[[], None]) -> None:
        """One less in the pool that the worker leaves, with its pod as the one that goes; one more in the pool that gets one. `may` is
        called before each effect, and what it raises keeps it from being made.
        """
        ...

    async def take_back(self, record: OperationRecord, may: Callable[[], None]) -> None:
        """What of it was done is undone, and isn't done any more. `may` as in `change`."""
        ...
