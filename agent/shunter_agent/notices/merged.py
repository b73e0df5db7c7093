"""Several sources, one word: what they say of one event becomes one notice, and one that comes and goes is damped.

Sources see the same event under ids of their own, at times of their own. All open notices of one kind about one thing are one event here: a
node goes once.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from shunter.model.errors import Problem
from shunter.model.snapshot import FAR_S, NoticeKind

from shunter_agent.notices.firsts import Firsts, Sight
from shunter_agent.notices.port import Notice, NoticeSource

FLAPS: Final = 3
"""Withdrawals within FLAPPING_S after which a notice isn't believed to be withdrawn at once."""
FLAPPING_S: Final = 600.0
LOOK_S: Final = 10.0
"""How often it is looked whether the clock was set, while a notice is open whose end is counted from when it was first seen."""
DAMPED_S: Final = 300.0
"""Seconds for which a withdrawal that isn't believed is put off."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event's notice as it is told, and when the like of it was withdrawn lately. `until` is when a put-off withdrawal counts."""

    told: Notice | None = None
    withdrawn: tuple[float, ...] = ()
    until: float | None = None


STALE_S: Final = 600.0
"""A deadline that was over for longer when it was first told isn't believed beside another's: the node would be gone."""
Key: TypeAlias = tuple[str, str, bool, str]
"""A kind, a slot (empty: the node), whether it may be dumped, and of a canary whose it is (empty: it is none)."""
Events: TypeAlias = Mapping[Key, Event]


def merge(seen: Sequence[Notice], before: Events, now: float) -> dict[Key, Event]:
    """What is told at `now` (seconds since the epoch), from all that the sources say and what was told before."""
    by_key: dict[Key, list[Notice]] = {}
    for notice in sorted(seen, key=lambda n: (n.seen_at, n.source, n.id)):
        key = (notice.kind, notice.slot, notice.dumpable, notice.source if notice.canary else "")
        by_key.setdefault(key, []).append(notice)
    after = {key: _event(by_key.get(key, []), before.get(key, Event()), now) for key in {*by_key, *before}}
    return {key: event for key, event in after.items() if event.told is not None or event.withdrawn}


def _event(said: list[Notice], before: Event, now: float) -> Event:
    recent = tuple(at for at in before.withdrawn if now - at < FLAPPING_S)
    if said:
        return Event(told=_one(said, before.told, now), withdrawn=recent)
    if before.told is None or before.told.canary:
        return Event(withdrawn=recent)
    if before.until is None:
        recent = (*recent, now)
        if len(recent) >= FLAPS:
            return Event(told=before.told, withdrawn=recent, until=now + DAMPED_S)
    elif now < before.until:
        return Event(told=before.told, withdrawn=recent, until=before.until)
    return Event(withdrawn=recent)


def _one(said: list[Notice], told: Notice | None, now: float) -> Notice:
    """The first one's name, also when only others still say it; the earliest deadline; everyone's words.

    A deadline that was over when it was first told (to an agent that starts late, or by a clock that is wrong) is taken for that moment:
    whoever says that the node goes, and when, still says that it goes. Maintenance that somebody says has begun isn't made a hint by what
    is planned for next week.
    """
    first = said[0] if told is None or told.canary else told
    begun = any(n.kind == NoticeKind.MAINTENANCE and n.deadline is None for n in said)
    dated = [n for n in said if n.deadline is not None and not (begun and n.deadline - now > FAR_S)]
    deadlines = [max(n.deadline or 0.0, n.seen_at) for n in [n for n in dated if not _stale(n)] or dated]
    return msgspec.structs.replace(
        first,
        deadline=min(deadlines, default=None),
        source=", ".join(sorted({n.source for n in said if n.source})),
        detail="; ".join(dict.fromkeys(n.detail for n in said if n.detail)),
    )


def _stale(notice: Notice) -> bool:
    return notice.deadline is not None and notice.seen_at - notice.deadline > STALE_S


class Merged:
    """Implements `port.NoticeSource` over several."""

    name = "all"

    def __init__(self, sources: Sequence[NoticeSource], *, clock: Callable[[], float] = time.time, firsts: Firsts | None = None) -> None:
        """`clock` gives seconds since the epoch; `firsts` knows what the agent before this one has seen."""
        self.sources = tuple(sources)
        self._clock = clock
        self._firsts = firsts or Firsts(clock=clock)
        names = [source.name for source in self.sources]
        self._groups = [f"notices of {name}{names[:at].count(name) or ''}" for at, name in enumerate(names)]
        """By what each source's are remembered. A canary has the name of whom it tries out, and nothing to do with what that one says."""
        self._lock = threading.Lock()
        self._said: dict[int, Mapping[str, Notice]] = {}
        self._events: dict[Key, Event] = {}
        self._told: dict[str, Notice] | None = None
        self._changed: Callable[[Mapping[str, Notice]], None] = lambda _notices: None
        self._again: threading.Timer | None = None
        self._stopped = False

    def start(self, changed: Callable[[Mapping[str, Notice]], None]) -> None:
        """See the port."""
        self._changed = changed
        for index, source in enumerate(self.sources):
            source.start(lambda notices, index=index: self._heard(index, notices))  # type: ignore[misc]
        self.look()

    def stop(self) -> None:
        """See the port."""
        with self._lock:
            self._stopped = True
            if self._again is not None:
                self._again.cancel()
        for source in self.sources:
            source.stop()

    def health(self) -> tuple[Problem, ...]:
        """See the port: what is wrong with any of them."""
        return tuple(problem for source in self.sources for problem in source.health())

    def look(self) -> None:
        """Merge what is known now; tell of changes. Needed when a put-off withdrawal counts, else nothing changes by itself."""
        with self._lock:
            if self._stopped:
                return
            now = self._clock()
            self._events = merge([n for index in self._said for n in self._counted(index)], self._events, now)
            told = {e.told.id: e.told for e in self._events.values() if e.told is not None}
            if told != self._told:
                self._told = told
                self._changed(dict(told))
            self._wake_for(now)
        self._firsts.save()  # after it is told: no notice waits for a disk

    def _counted(self, index: int) -> list[Notice]:
        """What a source says, with the times of what is counted from when it was first seen, by whichever agent."""
        said = self._said[index].values()
        counted = {n.id: Sight(n.seen_at, n.deadline) for n in said if n.counted and not n.canary}
        since = self._firsts.seen(self._groups[index], counted)
        return [msgspec.structs.replace(n, seen_at=since[n.id].at, deadline=since[n.id].deadline) if n.id in since else n for n in said]

    def _heard(self, index: int, notices: Mapping[str, Notice]) -> None:
        with self._lock:
            self._said[index] = dict(notices)
        self.look()

    def _wake_for(self, now: float) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        waits = [e.until - now for e in self._events.values() if e.until is not None]
        if any(n.counted and not n.canary for notices in self._said.values() for n in notices.values()):
            waits.append(LOOK_S)
        if waits:
            self._again = threading.Timer(max(0.1, min(waits)), self.look)
            self._again.daemon = True
            self._again.start()
