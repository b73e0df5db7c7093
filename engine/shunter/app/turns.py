"""What waits for its turn, said to people: in a preview from what is under way, in the status from what the engine says.

What nothing was begun of is in the engine's memory only, and planned anew after a restart. So that it can be seen, its beginning is in a
file beside the store.
"""

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from shunter.act.chain import linked, under_way
from shunter.model.canon import decode, encode
from shunter.model.ids import Epoch, OperationId
from shunter.model.operation import OperationRecord
from shunter.model.plan import Plan, PlannedOperation
from shunter.report.words import count

_FIRST = 50
"""Operations that are named; of more, the number is told."""


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """What waited when the engine of `epoch` last said so: `number` operations, and the first of them."""

    epoch: Epoch
    number: int = 0
    first: tuple[PlannedOperation, ...] = ()


class Turns:
    """The engine's side: `note` what waits, each tick."""

    def __init__(self, folder: Path, epoch: Epoch) -> None:
        self._path, self._epoch = _path(folder), epoch
        self._written: tuple[OperationId, ...] | None = None

    def note(self, waiting: Sequence[PlannedOperation]) -> None:
        """Write it down if it changed. On a disk that takes no writes it isn't, until there is one again."""
        ids = tuple(o.id for o in waiting)
        if ids == self._written:
            return
        partial = self._path.with_name(f".{self._path.name}")
        with contextlib.suppress(OSError):
            partial.touch(mode=0o600)
            partial.write_bytes(encode(Queue(epoch=self._epoch, number=len(ids), first=tuple(waiting[:_FIRST]))))
            partial.replace(self._path)  # whole or not at all, but not waited for: a power cut takes the queue itself along
            self._written = ids


def queue(folder: Path, epoch: Epoch) -> Queue:
    """What waits by the word of the engine of `epoch` on this state folder; nothing where there is no such word."""
    with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
        found = decode(_path(folder).read_bytes(), Queue)
        if found.epoch == epoch:
            return found
    return Queue(epoch=epoch)


def turns(plan: Plan, active: Iterable[OperationRecord], limit: int) -> tuple[str, ...]:
    """What to say of a plan's voluntary operations that couldn't begin at once beside those that are `active`; empty: all could."""
    records = {record.id: record for record in active}
    busy = under_way(records.values(), records.get)
    voluntary = {o.id for o in plan.operations if o.lane == "voluntary" and not o.preview}
    new = [chain for chain in linked(plan.operations) if chain & voluntary and not any(chain & other for other in busy)]
    late = len(new) - max(0, limit - len(busy))
    if late <= 0:
        return ()
    said = f"{count(len(busy), 'voluntary chain')} under way, and no more than {limit} at a time may be (`limits.voluntary`)"
    return (f"{said}: of the {len(new)} planned here {late} {'waits for its' if late == 1 else 'wait for their'} turn",)


def _path(folder: Path) -> Path:
    return folder / "waiting"
