"""What makes a process suspect: an error of a GPU after which nothing that the process computed is to be trusted, nor any image of it.

The process may go on for long, or be moved. What is known against it is written beside it in the journal, goes into each image that is
taken of it from then on, and from an image to whoever is restored from that. It is over when the worker is started anew, or restored from
an image that is older than the error.
"""

import os
from collections.abc import Iterable
from typing import Final, Protocol, runtime_checkable

import msgspec

from shunter_agent.journal import WorkerRow

TICKS: Final = os.sysconf("SC_CLK_TCK")
"""Of the kernel's clock in a second: what a process' start is counted in."""
LATE_S: Final = 1.0
"""An error may be told so many seconds after it has done its work."""


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """An error of a GPU. `at` is in seconds since the machine's start, as `Node.elapsed` has them; `slot` is empty where no slot is known
    to have the GPU.
    """

    slot: str
    at: float
    what: str


@runtime_checkable
class Doubting(Protocol):
    """A source of notices that hears of such errors."""

    def doubts(self) -> tuple[Doubt, ...]:
        """The last of each GPU, from any thread. Whether a process is that old is for who asks."""
        ...


def doubted(row: WorkerRow, known: Iterable[Doubt], *, own_gpus: bool) -> WorkerRow:
    """The worker with what is known against it since it was started; what was known before stays. `own_gpus`: it is known which GPUs its
    slot has; where it isn't, any that no slot is known to have may be its own.
    """
    began = row.process.started / TICKS
    against = [d for d in known if d.at > began and (d.slot == row.slot or (not d.slot and not own_gpus))]
    if row.doubt or not against:
        return row
    first = min(against, key=lambda d: (d.at, d.what))
    return msgspec.structs.replace(row, doubt=first.what, doubted=first.at)


def of_image(row: WorkerRow, frozen_at: float) -> str:
    """Why an image of the worker that stood still at `frozen_at` (seconds since the machine's start) isn't to be trusted; empty: it is."""
    return row.doubt if frozen_at >= row.doubted - LATE_S else ""
