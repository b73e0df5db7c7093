"""What there is to be placed, and where it may go."""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from shunter.model.ids import NodeId, SlotId, WorkerId


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker to be placed. Its node's lane is occupied for `occupy` seconds, then `tail` seconds pass elsewhere; all must be over by
    `limit` (None: whenever). `value` is not negative. `bytes` are what it has in memory, and its image on the disk; 0: not known.
    """

    worker: WorkerId
    value: float = 0.0
    lane: NodeId | None = None
    occupy: float = 0.0
    tail: float = 0.0
    limit: float | None = None
    bytes: int = 0


class Option(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A slot that a worker may have. `doubtful`: an earlier attempt failed there (2), or a condition on it has no answer (1).

    `shunned`: its node had rather be spared (1).

    `load` counts the workers that its node would have before it. Whoever has the slot now leaves `freed` bytes of memory, and `kept` bytes
    more on the node's disk.
    """

    doubtful: int = 0
    shunned: int = 0
    prefer: float | None = None
    load: int = 0
    freed: int = 0
    kept: int = 0


Options: TypeAlias = Mapping[WorkerId, Mapping[SlotId, Option]]
"""Workers that can have the same slots may share one mapping: placing them is faster then."""
