"""`shunter engine` in a cluster: wait for the Lease, lead for as long as it is held, and say meanwhile who does."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from shunter.app.clustered import reached
from shunter.app.engine import Backing
from shunter.app.settings import LeaseSettings, Settings
from shunter.app.upheld import BOUND_S, Upheld, known_epoch
from shunter.cluster.access import Access
from shunter.cluster.api import Api
from shunter.cluster.elector import Elector, Term, Terms
from shunter.cluster.thread import Thread
from shunter.model.errors import Problem, Retry, Stalled
from shunter.model.ids import Epoch

Run: TypeAlias = Callable[[asyncio.Event, Backing], Awaitable[None]]
AGAIN_S: Final = 2.0
STILL_S: Final = 60.0
"""An engine whose event loop didn't come round for so long gives the lead up. Its ticks take a second, its longest writes some."""
FAREWELL_S: Final = 30.0
"""How long a process that is to end waits for what it led with to be closed."""


class Electing:
    """One candidate. `tell` is told who leads meanwhile (SH554), and why nobody can."""

    def __init__(
        self, settings: Settings, lease: LeaseSettings, tell: Callable[[Problem], None], now: Callable[[], float] = time.time
    ) -> None:
        """`now`: seconds since the epoch. Raises Stalled SH250 for an access that can't work."""
        self._settings, self._lease, self._tell, self._now = settings, lease, tell, now
        self._access: Access = reached(lease.kubeconfig, lease.context)
        self._namespace = lease.namespace or self._access.namespace
        self._loop: asyncio.AbstractEventLoop
        self._leads = False
        self._beat = 0.0
        self._elector: Elector | None = None
        self._unheard: Problem | None = None
        """Why the API server says nothing, while it was never heard."""
        self._over = asyncio.Event()
        """What was led with is closed."""
        self._said: tuple[str, str] | None = None

    def age(self) -> float | None:
        """Seconds since the API server last said who leads; None: never. From any thread."""
        return self._elector.age() if self._elector is not None else None

    @property
    def problem(self) -> Problem | None:
        """Why that isn't known at present; None: it is."""
        return self._elector.problem if self._elector is not None else self._unheard

    async def lead(self, run: Run, stop: asyncio.Event) -> None:
        """Wait for the lead and `run` the engine until `stop` is set. Raises what `run` does, and Stalled SH550 when the lead was lost."""
        self._loop = loop = asyncio.get_running_loop()
        self._beat = time.monotonic()
        beating = asyncio.create_task(self._beating(), name="heartbeat")
        ended: asyncio.Future[None] = loop.create_future()

        async def work(term: Term) -> None:
            self._leads = True
            here = asyncio.run_coroutine_threadsafe(self._work(term, run, stop), loop)
            await self._while_it_beats(asyncio.wrap_future(here))

        async def stand() -> None:
            try:
                await self._stand(work)
            except BaseException as error:
                loop.call_soon_threadsafe(_settle, ended, error)
                raise
            loop.call_soon_threadsafe(_settle, ended, None)

        thread = Thread("elector", stand)
        try:
            await self._until(stop, ended)
        finally:
            beating.cancel()
            await asyncio.to_thread(thread.close)
            await asyncio.gather(beating, return_exceptions=True)
            if self._leads:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), FAREWELL_S)

    async def _until(self, stop: asyncio.Event, ended: "asyncio.Future[None]") -> None:
        """It has ended, or is to before it ever led: who leads finds out by itself."""
        stopping = asyncio.create_task(stop.wait())
        try:
            while not ended.done() and (self._leads or not stop.is_set()):
                waits: set[asyncio.Future[Any]] = {ended} if stop.is_set() else {ended, stopping}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)

    async def _work(self, term: Term, run: Run, stop: asyncio.Event) -> None:
        upheld = Upheld(lambda: Api(self._access, timeout_s=BOUND_S), self._namespace, term, self._now)
        try:
            await asyncio.to_thread(upheld.open)
            await run(stop, upheld.backing)
        finally:
            await asyncio.to_thread(upheld.close)
            self._over.set()

    async def _beating(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(1.0)

    # -- in the elector's thread, so that nothing that holds the engine up keeps it from renewing its Lease

    async def _stand(self, work: Callable[[Term], Awaitable[None]]) -> None:
        api = Api(self._access)
        try:
            above = await self._above(api)
            self._elector = elector = Elector(
                api, self._namespace, self._lease.name, identity(), terms=terms(self._lease), above=lambda: above, now=self._now
            )
            leading = asyncio.create_task(elector.lead(work))
            try:
                while not leading.done():
                    await asyncio.wait([leading], timeout=AGAIN_S)
                    if not self._leads:
                        self._say(elector)
                leading.result()
            finally:
                leading.cancel()
                await asyncio.gather(leading, return_exceptions=True)
        finally:
            await api.aclose()

    async def _while_it_beats(self, working: "asyncio.Future[None]") -> None:
        """An engine whose loop has stood still for long mustn't keep the lead. Raises Stalled SH556 for one."""
        while not working.done():
            await asyncio.wait([working], timeout=1.0)
            still = time.monotonic() - self._beat
            if still > STILL_S and not working.done():
                what = f"the engine has done nothing for {still:.0f} s, and gives the lead up"
                raise Stalled(Problem(code="SH556", what=what, remedy="Please report this, with its log", subject=self._lease.name))
        working.result()

    async def _above(self, api: Api) -> Epoch:
        """The highest epoch that is known, once the API server tells it."""
        while True:
            try:
                return await known_epoch(api, self._namespace, self._settings.state)
            except Retry as error:
                self._unheard = error.problem
                self._once("", error.problem)
            await asyncio.sleep(AGAIN_S)

    def _say(self, elector: Elector) -> None:
        if elector.problem is not None:
            self._once("", elector.problem)
        elif elector.leader:
            what = f"{elector.leader} leads, and this engine stands by"
            remedy = "Nothing to do: it takes over when that one ends or can't be reached"
            self._once(elector.leader, Problem(code="SH554", what=what, remedy=remedy, subject=self._lease.name))

    def _once(self, leader: str, problem: Problem) -> None:
        """Once for as long as it is so."""
        if self._said != (problem.code, leader):
            self._said = (problem.code, leader)
            self._loop.call_soon_threadsafe(self._tell, problem)


def _settle(ended: "asyncio.Future[None]", error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    elif isinstance(error, asyncio.CancelledError):
        ended.cancel()
    else:
        ended.set_exception(error)


def terms(lease: LeaseSettings) -> Terms:
    """A leader that couldn't renew for two thirds of a Lease's time stops. It tries several times in it: a hiccup stops nobody."""
    lasts = float(lease.lasts)
    return Terms(lease=lasts, renew_deadline=lasts * 2 / 3, retry=lasts * 2 / 15, request=lasts / 5)


def identity() -> str:
    """Ours alone, also after a restart: the host's name, which is the pod's, and something new."""
    return f"{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}"
