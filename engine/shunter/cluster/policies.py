"""Policies as custom resources of one namespace: a source like a Git repository or a directory, that tells back what became of them.

All of Kubernetes happens in a thread of its own with an event loop; what others call blocks, and may be called from any thread.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from shunter.cluster.api import Api
from shunter.cluster.kinds import PLURALS, collection
from shunter.cluster.reading import Reading, read
from shunter.cluster.reflector import Reflector, Times
from shunter.cluster.telling import gather
from shunter.cluster.writing import StatusWriter
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.finding import Finding
from shunter.model.ids import Commit
from shunter.model.policy import PolicySet
from shunter.model.source import Revision

_LOG: Final = logging.getLogger(__name__)
T = TypeVar("T")

STALE_S: Final = 180.0
"""Older than this, what we have of a kind isn't called the newest: more than a copy's doubt and a watch together."""
_KEPT: Final = 8
"""Readings that stay readable: what was in force a moment ago is still asked for."""


class ClusterSource:
    """The policies of `namespace`. `make_api` is called once, in the thread that does the work.

    A sync changes one resource after the other. While resources state different commits, or changed within the last `quiet_s`, what was
    read before stays, for `settle_s` at most: half a sync isn't what anybody wants in force.
    """

    def __init__(
        self,
        make_api: Callable[[], Api],
        namespace: str,
        *,
        settle_s: float = 20.0,
        quiet_s: float = 0.3,
        patience_s: float = 10.0,
        times: Times | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Touches nothing yet. `patience_s`: how long a `fetch` waits for the first list of each kind."""
        self._make_api, self._namespace, self._times, self._clock = make_api, namespace, times, clock
        self._settle_s, self._quiet_s, self._patience_s = settle_s, quiet_s, patience_s
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._readings: dict[Commit, Reading] = {}
        self._since: float | None = None
        self._changed_at = -1e9
        self._listeners: list[Callable[[], None]] = []

    def fetch(self) -> str:
        """What the cluster holds now, as a commit (see `reading.read`). Raises Retry: what the API server said last where a kind can't be
        followed at present (SH251, SH252, SH255, SH257), SH258 when it didn't answer in time. Stalled SH250 for an access that can't work.
        """
        return self._do(self._fetch)

    def read(self, revision: str) -> Revision:
        """The policies of a commit that `fetch` gave lately. Raises Rejected SH259 for another one."""
        with self._lock:
            reading = self._readings.get(Commit(revision))
        if reading is None:
            raise Rejected(
                Problem(
                    code="SH259",
                    what=f"the cluster no longer holds {revision[:20]}: it knows its present only",
                    remedy="Look at the Git repository that the policies are synced from",
                    subject=self._namespace,
                )
            )
        return reading.revision

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change`, in our thread, when a `fetch` would find something else. Returns what ends it. Raises as `fetch` does."""
        self._started()
        self._listeners.append(on_change)

        def end() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(on_change)

        return end

    def report(self, policies: PolicySet, findings: Sequence[Finding], at: float, halted: str = "") -> None:
        """Have the resources' status say what became of them. `at`: seconds since the epoch. `halted`: why nothing voluntary is begun at
        present. Returns at once and never raises.

        What is written is what differs from what stands there; nothing is for policies that aren't of a reading of ours.
        """
        with self._lock:
            reading, running = self._readings.get(policies.commit), self._running
        if reading is None or running is None:
            return
        with contextlib.suppress(RuntimeError):  # it was closed just now
            running.loop.call_soon_threadsafe(running.writer.offer, reading, policies, gather(findings), at, halted)

    @property
    def status_problem(self) -> Problem | None:
        """Why statuses can't be written at present; None: they can."""
        return self._running.writer.problem if self._running else None

    def close(self) -> None:
        """End the thread and its connections. What was offered and isn't written yet is left."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.close()

    # -- in the thread

    async def _fetch(self, running: "_Running") -> Commit:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                for reflector in running.reflectors.values():
                    await reflector.synced.wait()
        for kind, reflector in running.reflectors.items():
            if reflector.problem is not None:
                raise Retry(reflector.problem)
            age = reflector.age()
            if age is None or age > STALE_S:
                since = "yet" if age is None else f"for {age:.0f} s"
                what = f"the API server has confirmed nothing of {PLURALS[kind]} {since}"
                raise Retry(Problem(code="SH258", what=what, remedy="Nothing yet: it is still asked", subject=self._namespace))
        return self._look(running)

    def _look(self, running: "_Running") -> Commit:
        """The commit in force: what is there now, unless that is still on its way."""
        now = read((kind, one) for kind, reflector in running.reflectors.items() for one in reflector.objects.values())
        commit = now.revision.commit
        with self._lock:
            last = next(reversed(self._readings), None)
            moving = now.mixed or self._clock() - self._changed_at < self._quiet_s
            if last is not None and commit != last and moving:
                self._since = self._clock() if self._since is None else self._since
                if self._clock() - self._since < self._settle_s:
                    return last
            self._since = None
            self._readings.pop(commit, None)
            self._readings[commit] = now
            while len(self._readings) > _KEPT:
                del self._readings[next(iter(self._readings))]
        return commit

    def _changed(self, running: "_Running") -> None:
        """Something did: tell, once it is quiet, and again when a sync that doesn't end is taken as it is."""
        self._changed_at = self._clock()
        running.tell_in(self._quiet_s, self._tell)

    def _tell(self, running: "_Running") -> None:
        for listener in list(self._listeners):
            try:
                listener()
            except Exception:
                _LOG.exception("what was told of a change of the policies failed; the watch goes on")
        if self._since is not None:
            running.tell_in(max(0.05, self._since + self._settle_s - self._clock()), self._tell)

    # -- the thread

    def _started(self) -> "_Running":
        with self._lock:
            if self._running is None or self._running.ended:
                self._running = _Running(self._make_api, self._namespace, self._times, self._changed)
            running = self._running
        try:
            running.wait()
        except BaseException:
            with self._lock:
                if self._running is running:
                    self._running = None  # the next call tries anew
            raise
        return running

    def _do(self, work: Callable[["_Running"], Coroutine[Any, Any, T]]) -> T:
        running = self._started()
        coroutine = work(running)
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, running.loop).result()
        except (RuntimeError, concurrent.futures.CancelledError) as error:
            coroutine.close()
            what = "what follows the cluster has ended"
            raise Retry(Problem(code="SH258", what=what, remedy="Nothing yet: it begins anew", subject=self._namespace)) from error


class _Running:
    """The thread, its loop, and what runs in it."""

    def __init__(self, make_api: Callable[[], Api], namespace: str, times: Times | None, changed: Callable[["_Running"], None]) -> None:
        self._make_api, self._namespace, self._times, self._changed = make_api, namespace, times, changed
        self.loop: asyncio.AbstractEventLoop
        self.reflectors: dict[str, Reflector] = {}
        self.writer: StatusWriter
        self._timer: asyncio.TimerHandle | None = None
        self._begun = threading.Event()
        self._stop = asyncio.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it runs. Raises what kept it from it."""
        self._begun.wait()
        if self._failed is not None:
            raise self._failed

    def tell_in(self, seconds: float, tell: Callable[["_Running"], None]) -> None:
        """Call `tell` so much later, and not for an earlier change."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, tell, self)

    @property
    def ended(self) -> bool:
        """Nothing is followed any more."""
        return not self._thread.is_alive()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                self.loop = runner.get_loop()
                runner.run(self._main())
        except BaseException as error:
            self._failed = error
            if self._begun.is_set():
                _LOG.exception("the thread that follows the cluster ended")
        finally:
            self._begun.set()

    async def _main(self) -> None:
        """Until it is stopped, or one of the works fails as none should: then all of it is to begin anew."""
        api = self._make_api()
        try:
            for kind in PLURALS:
                path = collection(kind, self._namespace)
                self.reflectors[kind] = Reflector(api, path, listener=lambda _change, _one: self._changed(self), times=self._times)
            self.writer = StatusWriter(api, self.reflectors)
            works = [asyncio.create_task(reflector.run()) for reflector in self.reflectors.values()]
            works.append(asyncio.create_task(self.writer.run()))
            stopping = asyncio.create_task(self._stop.wait())
            self._begun.set()
            done, _ = await asyncio.wait([stopping, *works], return_when=asyncio.FIRST_COMPLETED)
            for task in (stopping, *works):
                task.cancel()
            await asyncio.gather(stopping, *works, return_exceptions=True)
            for task in done:
                task.result()
        finally:
            await api.aclose()
