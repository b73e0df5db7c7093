"""Where else than on its disk the store keeps what a next engine has to know: a place that outlives the machine."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from shunter.model.canon import check, compressed, decode
from shunter.model.errors import Stalled
from shunter.model.ids import NodeId, WorkerId
from shunter.model.operation import OperationRecord
from shunter.model.snapshot import Fleet, Notice


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet and notices as they last were, and when (seconds since the epoch)."""

    at: float
    fleet: Fleet
    notices: tuple[Notice, ...] = ()
    namesakes: Mapping[WorkerId, frozenset[NodeId]] = {}
    """Workers of whose names there are others, and the nodes that have or may have one (see `observe.inventory`)."""


def pack(remembered: Remembered, breathe: Callable[[], None] = lambda: None) -> bytes:
    """As it is kept: canonical JSON, compressed, so that ten megabytes of a large fleet don't go to the disk while orders wait. `breathe`
    is called between its parts. Raises NotCanonical.
    """
    check((remembered.at, remembered.fleet.doubles, remembered.notices))
    return compressed(remembered, breathe)


def unpack(body: bytes) -> Remembered:
    """What `pack` was given. Raises what `decode` does, and zlib.error."""
    return decode(body if body.startswith(b"{") else zlib.decompress(body), Remembered)


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
