"""What became of operations since it was last told."""

from collections.abc import Iterator, Sequence

import msgspec

from shunter.model.ids import OperationId
from shunter.model.operation import OperationRecord, Step


def news(records: Sequence[OperationRecord], told: dict[OperationId, int]) -> Iterator[OperationRecord]:
    """Each record as it was at each step that wasn't told yet, and as it ended. `told` is how much of each was, and grows."""
    for record in records:
        ended = record.outcome is not None
        known, now = told.get(record.id, 0), len(record.history) + ended
        for index in range(known, min(now, len(record.history))):
            history = record.history[: index + 1]
            waits = record.waits and history[-1][0] is Step.INTENDED
            yield msgspec.structs.replace(record, history=history, step=history[-1][0], outcome=None, waits=waits, outstanding=None)
        if ended and now > known:
            yield record
        told[record.id] = now
