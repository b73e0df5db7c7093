"""The records that are asked for again and again, as the store has them: those under way, and those that ended of late.

An engine asks for them many times a second, and for all of them in each tick; to read them anew each time would take longer than deciding.
A record that hasn't changed is the very same object from one time to the next.
"""

from bisect import bisect_left
from collections.abc import Iterable
from operator import attrgetter

from shunter.model.ids import OperationId
from shunter.model.operation import OperationRecord

_made = attrgetter("created_at")


class Kept:
    """See the module. What is put into it is durable, or counts as that."""

    def __init__(self, since: float, active: Iterable[OperationRecord], ended: Iterable[OperationRecord]) -> None:
        """`active` in the order in which they were inserted; `ended` are all that did at `since` (seconds since the epoch) or later."""
        self.since = since
        self._active = {record.id: record for record in active}
        self._ended = {record.id: record for record in ended}
        self._records = sorted(self._ended.values(), key=_key)
        self._order = [_key(record) for record in self._records]
        """Of those, beside them."""

    def put(self, records: Iterable[OperationRecord]) -> None:
        """These are so from now on."""
        for record in records:
            if record.outcome is None:
                self._active[record.id] = record
                continue
            self._active.pop(record.id, None)
            if record.outcome.at >= self.since:
                self._end(record)

    def _end(self, record: OperationRecord) -> None:
        before = self._ended.get(record.id)
        if before is not None:
            place = bisect_left(self._order, _key(before))
            del self._order[place], self._records[place]
        place = bisect_left(self._order, _key(record))
        self._order.insert(place, _key(record))
        self._records.insert(place, record)
        self._ended[record.id] = record

    def get(self, operation: OperationId) -> OperationRecord | None:
        """None: it isn't here, and may be on the disk."""
        return self._active.get(operation) or self._ended.get(operation)

    def active(self) -> tuple[OperationRecord, ...]:
        """Oldest first; those begun at one time in the order in which they were inserted."""
        return tuple(sorted(self._active.values(), key=_made))

    def recent(self, since: float) -> tuple[OperationRecord, ...]:
        """Those that ended at `since` or later, which may not be before the `since` that this one knows of; newest last."""
        return tuple(self._records[bisect_left(self._order, (since, "")) :])

    def forget(self, before: float) -> None:
        """Keep no more of those that ended before that."""
        first = bisect_left(self._order, (before, ""))
        for _, name in self._order[:first]:
            del self._ended[name]
        del self._order[:first], self._records[:first]
        self.since = max(self.since, before)


def _key(record: OperationRecord) -> tuple[float, OperationId]:
    assert record.outcome is not None
    return record.outcome.at, record.id
