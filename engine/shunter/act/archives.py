"""Lists of what the archive has, which agents reach and the engine doesn't."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from shunter.model.errors import ShunterError
from shunter.model.snapshot import Image
from shunter.wire import agent_pb2 as pb
from shunter.wire import convert

ARCHIVE: Final = "archive"
"""In the place of an agent's address."""
_LISTS: Final = 8

Listed: TypeAlias = tuple[float, tuple[Image, ...]]
"""When an agent looked what the archive has (by its clock, seconds since the epoch), and what it saw, sorted by id. 0: it isn't known."""
UNSEEN: Final[Listed] = (0.0, ())


class Lists:
    """Lists of archived images by the digests that agents give them. All agents have the same list but for minutes, so one of them is asked
    for it, whenever there is one that isn't known yet.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Image, ...]] = OrderedDict()
        self._asked: set[str] = set()

    async def of(self, report: pb.NodeReport, fetch: Callable[[], Awaitable[pb.NodeReport]]) -> Listed:
        """What a report says; `fetch` asks its agent for one with the list. It isn't known while another agent is asked, nor when this one
        doesn't answer.

        Raises ValueError for a list that makes no sense.
        """
        digest = report.archive_digest
        if digest and digest not in self._known:
            if digest in self._asked:
                return UNSEEN
            self._asked.add(digest)
            try:
                report = await fetch()
            except ShunterError:
                return UNSEEN
            finally:
                self._asked.discard(digest)
        return self._take(report) if digest else UNSEEN

    def _take(self, report: pb.NodeReport) -> Listed:
        digest = report.archive_digest
        if digest not in self._known:
            self._known[digest] = listed(report)
        self._known.move_to_end(digest)
        while len(self._known) > _LISTS:
            self._known.popitem(last=False)
        return report.archive_looked, self._known[digest]


def listed(report: pb.NodeReport) -> tuple[Image, ...]:
    """The list that a report has. Raises ValueError when it makes no sense."""
    return tuple(sorted((convert.image(i, None) for i in report.archived), key=lambda i: i.id))


LISTS: Final = Lists()
"""Those of all agents of this process."""
