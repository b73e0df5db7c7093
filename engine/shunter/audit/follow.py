"""Records as they come."""

from collections.abc import Callable, Iterator

from shunter.audit.filter import Filter
from shunter.audit.journal import Journal
from shunter.model.record import Sealed


def following(journal: Journal, wanted: Filter, after: int, pause: Callable[[], object]) -> Iterator[Sealed]:
    """Records that fit and have a number above `after`, for ever, each once and in order: `pause` is called when there is none left. Raises
    Stalled SH903 or SH905.
    """
    while True:
        seen = max(after, journal.newest())
        for sealed in journal.stream(wanted, after):
            seen = max(seen, sealed.seq)
            yield sealed
        after = seen
        pause()
