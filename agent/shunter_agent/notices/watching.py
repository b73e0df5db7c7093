"""A source that has to be asked, over and over: what it said last, since when it is silent, and the threads that ask."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from shunter.model.errors import Problem, ShunterError
from shunter.model.snapshot import Taint

from shunter_agent.notices.doubts import Doubt
from shunter_agent.notices.port import Notice
from shunter_agent.refusals import retry

BLIND_S: Final = 30.0
"""A source that has said nothing for so long is blind, and that is told. Metadata services restart now and then."""
PATIENCE_S: Final = 30.0
"""A question that has no answer after so long counts as no answer, though it may still be waited for."""


_SHORT_S, _STOP_S = 0.3, 1.0
"""For which a source's threads, all together, are waited for when it is stopped: before their connections are closed, and after."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to ask. `ask` gives all notices that are open now, by id; it may wait for news, and raises Retry when it learned nothing.

    `every` is how many seconds to wait between two answers, and `rest` how many after the given number of failures in a row, where that is
    another figure. `patience` is how many seconds an answer may take at most. `problems` is what else is wrong, by the last answer, and
    `doubts` what makes processes suspect (see `doubts.Doubting`).
    """

    name: str
    ask: Callable[[], Mapping[str, Notice]]
    every: float
    rest: Callable[[int], float] | None = None
    patience: float = PATIENCE_S
    problems: Callable[[], Sequence[Problem]] = tuple
    doubts: Callable[[], Sequence[Doubt]] = tuple


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
        taints: Callable[[], Sequence[Taint]] = tuple,
    ) -> None:
        """`clock` gives seconds since the epoch; `log` gets each new problem once; `close` is called when the source is stopped. `taints`
        are the node's, of a source that knows of them besides.
        """
        self.name, self.taints = name, taints
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
        self._asking: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._besides: dict[str, tuple[Problem, ...]] = {}
        self._first: set[str] = set()

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
        self._join(_SHORT_S)  # one that is in the middle of a short question opens nothing any more once it has ended
        self._close()
        self._join(_STOP_S)
        self._threads.clear()

    def _join(self, seconds: float) -> None:
        """Wait for all threads together."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def health(self) -> tuple[Problem, ...]:
        """See the port: SH645 for each look that has been silent for longer than BLIND_S, or waits for an answer for longer than it should,
        and what the looks themselves find wrong.
        """
        with self._lock:
            blind = [problem for look in self._looks if (problem := self._blind(look)) is not None]
        return (*blind, *self.besides())

    def besides(self) -> tuple[Problem, ...]:
        """What the looks themselves find wrong, by their last answers."""
        with self._lock:
            return tuple(problem for found in self._besides.values() for problem in found)

    def doubts(self) -> tuple[Doubt, ...]:
        """See `doubts.Doubting`."""
        return tuple(doubt for look in self._looks for doubt in look.doubts())

    def unsaid(self) -> tuple[str, ...]:
        """The looks by which nothing is open now. From any thread, also while it tells of a change."""
        return tuple(name for name, found in self._open.items() if not found)

    def asked(self) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
        """The looks that have neither answered nor failed so far, and what kept those that have failed."""
        with self._lock:
            waits = tuple(look.name for look in self._looks if look.name not in self._first and look.name not in self._why)
            return waits, tuple(self._why[look.name] for look in self._looks if look.name in self._why)

    def once(self, look: Look) -> None:
        """Ask once, and tell of what is new."""
        with self._lock:
            self._asking[look.name] = self._clock()
        try:
            found, besides = look.ask(), tuple(look.problems())
        except ShunterError as error:
            self._failed(look, error.problem)
        except Exception as error:  # a fault of ours must make the source blind, not end its thread without a word
            self._failed(look, retry("SH644", f"the answer can't be read: {error!r}", "Report it", self.name).problem)
        else:
            self._answered(look.name, dict(found), besides)

    def _run(self, look: Look) -> None:
        while not self._stop.is_set():
            self.once(look)
            failures = self._failures.get(look.name, 0)
            self._stop.wait(look.rest(failures) if failures and look.rest is not None else look.every)

    def _answered(self, name: str, found: dict[str, Notice], besides: tuple[Problem, ...]) -> None:
        with self._lock:
            self._asking.pop(name, None)
            self._failures.pop(name, None)
            self._first.add(name)
            for problem in besides:
                if problem not in self._besides.get(name, ()):
                    self._log(problem)
            self._besides[name] = besides
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

    def _failed(self, look: Look, problem: Problem) -> None:
        name = look.name
        with self._lock:
            began = self._asking.pop(name, None)
            self._failures[name] = self._failures.get(name, 0) + 1
            if self._stop.is_set():
                return
            self._silent_since.setdefault(name, self._clock() if began is None else began)
            self._why[name] = problem
            blind = self._blind(look)
            if blind is not None and name not in self._told:
                self._told.add(name)
                self._log(blind)

    def _blind(self, look: Look) -> Problem | None:
        now, since = self._clock(), self._silent_since.get(look.name)
        if since is not None and now - since >= BLIND_S:
            return self._said_blind(look.name, since, self._why[look.name])
        since = self._asking.get(look.name)
        if since is not None and now - since >= look.patience:
            waits = retry("SH643", f"it doesn't answer within {look.patience:g} s", "Look at what it is that is asked", self.name)
            return self._said_blind(look.name, since, waits.problem)
        return None

    def _said_blind(self, name: str, since: float, why: Problem) -> Problem:
        at = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Problem(code="SH645", what=f"{name} is blind since {at}: {why.what}", remedy=why.remedy, subject=self.name)


def _as_first_seen(notice: Notice, known: Notice | None) -> Notice:
    return msgspec.structs.replace(notice, seen_at=known.seen_at) if known else notice
