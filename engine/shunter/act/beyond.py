"""Where else than on its disk the store keeps what a next engine has to know: a place that outlives the machine."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from shunter.model.errors import Stalled
from shunter.model.operation import OperationRecord
from shunter.model.snapshot import Fleet, Notice


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet and notices as they last were, and when (seconds since the epoch)."""

    at: float
    fleet: Fleet
    notices: tuple[Notice, ...] = ()


class Deposed(Stalled):
    """Another engine leads, or may by now: nothing more is to be written or ordered, whatever its lane."""


class Beyond(Protocol):
    """Another place in which operations must be before they count as durable."""

    def put(self, records: Sequence[OperationRecord], *, together: bool) -> None:
        """Make them durable before this returns; if `together`, and all are new, all or none. Without any: say whether it would go.

        Raises Stalled when it can't be said that they are, Deposed when it isn't for us to write any more.
        """
        ...

    def remember(self, remembered: Remembered) -> None:
        """Keep the fleet as it is now, soon. Never raises and doesn't wait."""
        ...
