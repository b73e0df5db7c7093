"""How long the resources of ended operations stay. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

from shunter.model.ids import OperationId, WorkerId
from shunter.model.operation import OperationRecord, Status
from shunter.model.plan import OperationKind

ROUTINE_S: Final = 2 * 3600.0
"""Of a checkpoint or a deletion that succeeded: there are many, and what is decided looks back for an hour."""
KEPT_S: Final = 7 * 86400.0
"""Of everything else: the audit has it for longer."""
_ROUTINE: Final = (OperationKind.CHECKPOINT, OperationKind.DISCARD)
_ENDING: Final = (OperationKind.PARK, OperationKind.DRAIN)


def outdated(records: Iterable[OperationRecord], now: float) -> Iterator[OperationId]:
    """Ended operations whose resources may go. The one that ended a worker on purpose stays for as long as nothing brought it back: without
    it a next leader would take the worker for lost.
    """
    found = list(records)
    last: dict[WorkerId, OperationRecord] = {}
    for record in sorted(found, key=_ended_at):
        if record.planned.kind in (*_ENDING, OperationKind.RESTORE) and record.status is Status.SUCCEEDED:
            last[record.planned.worker] = record
    needed = {record.id for record in last.values() if record.planned.kind in _ENDING}
    for record in found:
        routine = record.planned.kind in _ROUTINE and record.status is Status.SUCCEEDED
        if record.id not in needed and now - _ended_at(record) > (ROUTINE_S if routine else KEPT_S):
            yield record.id


def _ended_at(record: OperationRecord) -> float:
    return record.outcome.at if record.outcome is not None else float("inf")
