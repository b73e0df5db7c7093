"""The way of all records into the journal: in order, and none left out because the disk took no writes for a while.

What the journal doesn't take waits in memory, and so does all that comes after it. That isn't durable: whoever has a trail must say so
(`waiting`), and let nothing voluntary start. A record that waited says so in its body: `spooled` has `at`, when it came to wait, and
`written`, when it was written, both in seconds since the epoch. Its own `at` is, as always, when it happened.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol

import msgspec

from shunter.audit.head import Head
from shunter.audit.layout import Cleaned
from shunter.model.errors import Problem, Stalled
from shunter.model.record import Record

_BATCH: Final = 500
"""Records written at once: a disk with little room takes few where it wouldn't take all."""
CROWDED: Final = 20_000
"""This many that wait are enough: what can be told later isn't added. What was done always is."""


class Writable(Protocol):
    """The part of a journal that is written to."""

    @property
    def last(self) -> Head:
        """The newest record's number and hash."""
        ...

    def append(self, records: Sequence[Record]) -> object:
        """Raises Stalled; `last` then says whether the records were added."""
        ...

    def catch_up(self) -> None:
        """Write the head if `append` couldn't. Raises Stalled."""
        ...


class Ahead(Protocol):
    """A journal that cleans records beforehand: see `journal.Journal`."""

    def cleaned(self, records: Sequence[Record]) -> Cleaned: ...  # noqa: D102

    def append_cleaned(self, records: Sequence[Record], cleaned: Cleaned) -> object: ...  # noqa: D102


class Trail:
    """See the module. For any thread, each call whole. `problem` is why the journal didn't take the last write; None when it did.

    `complete` adds to a record what only others know, before anything else is done with it. It must not raise.
    """

    def __init__(
        self,
        journal: Writable,
        clock: Callable[[], float],
        complete: Callable[[Record], Record] = lambda record: record,
        ahead: Ahead | None = None,
    ) -> None:
        """`ahead` is the same journal, where it cleans records before it is their turn: others don't wait for that. None: it doesn't."""
        self._journal, self._clock, self._complete, self._ahead = journal, clock, complete, ahead
        self._waiting: deque[tuple[float, Record]] = deque()
        self._turn = threading.RLock()
        self.problem: Problem | None = None

    @property
    def waiting(self) -> int:
        """How many records are in memory only."""
        return len(self._waiting)

    @property
    def since(self) -> float | None:
        """When the oldest of them came (seconds since the epoch); None when there is none."""
        return self._waiting[0][0] if self._waiting else None

    @property
    def crowded(self) -> bool:
        """So many wait that only what was done should be added."""
        return len(self._waiting) >= CROWDED

    def add(self, records: Sequence[Record]) -> bool:
        """Take records; True when they are durable. While others wait, they wait too: `retry` writes them."""
        if not records:
            return self.problem is None
        records = [self._complete(record) for record in records]
        cleaned = self._ahead.cleaned(records) if self._ahead is not None else None
        with self._turn:
            if not self._waiting and self._written(records, cleaned):
                return self.problem is None
            now = self._clock()
            self._waiting.extend((now, record) for record in records)
            return False

    def retry(self) -> bool:
        """Write what waits, oldest first; True when nothing waits any more and the head is written."""
        with self._turn:
            return self._retry()

    def _retry(self) -> bool:
        while self._waiting:
            batch = list(islice(self._waiting, _BATCH))
            if not self._written([_marked(record, at, self._clock()) for at, record in batch]):
                return False
            for _ in batch:
                self._waiting.popleft()
        if self.problem is not None:
            try:
                self._journal.catch_up()
            except Stalled as error:
                self.problem = error.problem
            else:
                self.problem = None
        return self.problem is None

    def _written(self, records: Sequence[Record], cleaned: Cleaned | None = None) -> bool:
        before = self._journal.last.seq
        try:
            if self._ahead is not None and cleaned is not None:
                self._ahead.append_cleaned(records, cleaned)
            else:
                self._journal.append(records)
        except Stalled as error:
            self.problem = error.problem
            return self._journal.last.seq > before  # the records are in, and only the head isn't
        self.problem = None
        return True


def _marked(record: Record, at: float, now: float) -> Record:
    return msgspec.structs.replace(record, body={**record.body, "spooled": {"at": at, "written": now}})
