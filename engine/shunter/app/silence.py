"""For how long nodes haven't answered, by a clock that nobody sets.

The clock on the wall may be set forward at any moment, and an agent's clock may be wrong. Neither makes a living node a dead one, whose
workers would be restored a second time. So silence counts from the first look without an answer, and not before a deadline is over that
was so far off when it was first heard of. A restarted engine begins anew.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from shunter.model.ids import NodeId, NoticeId
from shunter.model.snapshot import Notice


class Silence:
    """Told of each look. `clock` must never be set: seconds from any beginning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[NodeId, float] = {}
        self._due: dict[tuple[NodeId, NoticeId, float], float] = {}

    def looked(self, unanswered: Collection[NodeId], notices: Iterable[Notice], now: float) -> None:
        """A look at `now`, by the clock on the wall, has ended: who didn't answer, and which notices are open."""
        at = self._clock()
        self._since = {node: self._since.get(node, at) for node in unanswered}
        dated = {(n.node, n.id, n.deadline): n for n in notices if n.deadline is not None}
        self._due = {key: self._due.get(key, at + _left(notice, now)) for key, notice in dated.items()}

    def lasts(self) -> Mapping[NodeId, float]:
        """Seconds since which each node has been silent and over its earliest deadline, if it has one; less than 0 before that."""
        at = self._clock()
        due: dict[NodeId, float] = {}
        for (node, _, _), when in self._due.items():
            due[node] = min(when, due.get(node, when))
        return {node: at - max(since, due.get(node, since)) for node, since in self._since.items()}


def _left(notice: Notice, now: float) -> float:
    """Seconds to the deadline, by our clock or that of who noticed it, whichever says less: the deadline must be over by our clock as well,
    and one that is wrong by a day shouldn't keep a dead node for one.
    """
    assert notice.deadline is not None
    return max(0.0, min(notice.deadline - now, notice.deadline - notice.seen_at))
