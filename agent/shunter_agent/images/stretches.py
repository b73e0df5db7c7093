"""Where in an image's pages files the bytes of addresses are."""

import bisect
from collections.abc import Iterator
from typing import NamedTuple

from shunter_agent.images.pagemap import PAGE, NotAPagemap, Pagemap, Run


class Stretch(NamedTuple):
    """Addresses from `vaddr` to `end`, whose bytes are in the file `descriptor` from `offset` on."""

    vaddr: int
    end: int
    descriptor: int
    offset: int


class Stretches:
    """All that one pages file holds."""

    def __init__(self, pagemap: Pagemap, descriptor: int) -> None:
        """`descriptor` is that of its pages file, whoever closes it."""
        found, offset = [], 0
        for run in pagemap.own:
            found.append(Stretch(run.vaddr, run.end, descriptor, offset))
            offset += run.pages * PAGE
        self._sorted = sorted(found)

    def covering(self, at: int) -> Stretch | None:
        """The one with the byte at this address."""
        n = bisect.bisect_right(self._sorted, at, key=lambda stretch: stretch.vaddr) - 1
        return self._sorted[n] if n >= 0 and at < self._sorted[n].end else None

    def beyond(self, at: int) -> int:
        """The address at which the next one begins; 1 << 64 after the last."""
        n = bisect.bisect_right(self._sorted, at, key=lambda stretch: stretch.vaddr)
        return self._sorted[n].vaddr if n < len(self._sorted) else 1 << 64

    def within(self, at: int, end: int) -> bool:
        """Any byte between these addresses is here."""
        return self.covering(at) is not None or self.beyond(at) < end


def locate(run: Run, own: Stretches, copied: Stretches) -> Iterator[tuple[Stretch, int, int]]:
    """Where the bytes of a run are, one stretch after the other, each with the addresses that it has of the run: among what changed, else
    in the copy. Raises NotAPagemap when they are nowhere."""
    at = run.vaddr
    while at < run.end:
        stretch = own.covering(at)
        until = run.end
        if stretch is None:
            stretch = copied.covering(at)
            until = min(until, own.beyond(at))
        if stretch is None:
            raise NotAPagemap("a page is neither in the copy nor among what changed")
        until = min(until, stretch.end)
        yield stretch, at, until
        at = until
