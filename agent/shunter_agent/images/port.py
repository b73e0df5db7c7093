"""The port to a place that keeps objects by name, away from the nodes: an object store, or a folder that all nodes share."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Kept(NamedTuple):
    """An object that is there: its key, and when it was written last (seconds since the epoch, by the store's clock)."""

    key: str
    written_at: float


class Objects(Protocol):
    """Whole objects by key (letters, digits and `/-_`). Usable from several threads; calls block.

    All raise Retry SH822 when the store can't be reached or refuses, with what it said.
    """

    name: str
    """Where it is, for messages; no secret in it."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object, over any that is there. It is there as a whole or not at all."""
        ...

    def get(self, key: str) -> bytes | None:
        """Its bytes; None when there is none."""
        ...

    def find(self, key: str) -> Kept | None:
        """Whether it is there."""
        ...

    def all(self, prefix: str) -> Iterator[Kept]:
        """Those whose keys begin so, in any order."""
        ...

    def delete(self, key: str) -> None:
        """Idempotent."""
        ...
