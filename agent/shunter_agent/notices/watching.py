"""A source that has to be asked, over and over: what it said last, since when it is silent, and the threads that ask."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from shunter.model.errors import Problem, ShunterError

from shunter_agent.notices.port import Notice
from shunter_agent.refusals import retry

BLIND_S: Final = 30.0
"""A source that has said nothing for so long is blind, and that is told. Metadata services restart now and then."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to ask. `ask` gives all notices that are open now, by id; it may wait for news, and raises Retry when it learned nothing.

    `every` is how many seconds to wait between two answers.
    """

    name: str
    ask: Callable[[], Mapping[str, Notice]]
    every: float


class Watching:
    """Implements `port.NoticeSource` over looks, each in a thread of its own: a slow one keeps none of the others.

    A look that fails withdraws nothing: that a service is away is no word that the node stays.
    """

    def __init__(
        self,
        name: str,
        looks: Sequence[Look],
        *,
        clock: Callable[[], float] = time.time,
        log: Callable[[Problem], None] = lambda _problem: None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """`clock` gives seconds since the epoch; `log` gets each new problem once; `close` is called when the source is stopped."""
        self.name = name
        self._looks = tuple(looks)
        self._clock = clock
        self._log = log
        self._close = close
        self._changed: Callable[[Mapping[str, Notice]], None] = lambda _notices: None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._open: dict[str, dict[str, Notice]] = {look.name: {} for look in looks}
        self._silent_since: dict[str, float] = {}
        self._why: dict[str, Problem] = {}
        self._told: set[str] = set()

    def start(self, changed: Callable[[Mapping[str, Notice]], None]) -> None:
        """See the port."""
        self._changed = changed
        changed({})
        for look in self._looks:
            thread = threading.Thread(target=self._run, args=(look,), name=f"{self.name} {look.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """See the port. A look that is waiting for news is left to end by itself: its thread doesn't keep the process."""
        self._stop.set()
        self._close()
        for thread in self._threads:
            thread.join(1.0)
        self._threads.clear()

    def health(self) -> tuple[Problem, ...]:
        """See the port: SH645 for each look that has been silent for longer than BLIND_S."""
        with self._lock:
            return tuple(problem for look in self._looks if (problem := self._blind(look.name)) is not None)

    def once(self, look: Look) -> None:
        """Ask once, and tell of what is new."""
        try:
            found = look.ask()
        except ShunterError as error:
            self._failed(look.name, error.problem)
        except Exception as error:  # a fault of ours must make the source blind, not end its thread without a word
            self._failed(look.name, retry("SH644", f"the answer can't be read: {error!r}", "Report it", self.name).problem)
        else:
            self._answered(look.name, dict(found))

    def _run(self, look: Look) -> None:
        while not self._stop.is_set():
            self.once(look)
            self._stop.wait(look.every)

    def _answered(self, name: str, found: dict[str, Notice]) -> None:
        with self._lock:
            self._silent_since.pop(name, None)
            self._why.pop(name, None)
            self._told.discard(name)
            if self._stop.is_set():
                return
            before = self._open[name]
            now = {key: _as_first_seen(notice, before.get(key)) for key, notice in found.items()}
            self._open[name] = now
            if now != before:
                self._changed({key: notice for each in self._open.values() for key, notice in each.items()})

    def _failed(self, name: str, problem: Problem) -> None:
        with self._lock:
            if self._stop.is_set():
                return
            self._silent_since.setdefault(name, self._clock())
            self._why[name] = problem
            blind = self._blind(name)
            if blind is not None and name not in self._told:
                self._told.add(name)
                self._log(blind)

    def _blind(self, name: str) -> Problem | None:
        since = self._silent_since.get(name)
        if since is None or self._clock() - since < BLIND_S:
            return None
        at = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        why = self._why[name]
        return Problem(code="SH645", what=f"{name} is blind since {at}: {why.what}", remedy=why.remedy, subject=self.name)


def _as_first_seen(notice: Notice, known: Notice | None) -> Notice:
    return msgspec.structs.replace(notice, seen_at=known.seen_at) if known else notice
