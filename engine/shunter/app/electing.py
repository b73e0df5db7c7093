"""`shunter engine` in a cluster: wait for the Lease, lead for as long as it is held, and say meanwhile who does."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from shunter.app.clustered import reached
from shunter.app.engine import Backing
from shunter.app.settings import LeaseSettings, Settings
from shunter.app.upheld import BOUND_S, Upheld, known_epoch
from shunter.cluster.access import Access
from shunter.cluster.api import Api
from shunter.cluster.elector import Elector, Term, Terms
from shunter.model.errors import Problem, Retry
from shunter.model.ids import Epoch

Run: TypeAlias = Callable[[asyncio.Event, Backing], Awaitable[None]]
AGAIN_S: Final = 2.0


class Electing:
    """One candidate. `tell` is told who leads meanwhile (SH554), and why nobody can."""

    def __init__(
        self, settings: Settings, lease: LeaseSettings, tell: Callable[[Problem], None], now: Callable[[], float] = time.time
    ) -> None:
        """`now`: seconds since the epoch. Raises Stalled SH250 for an access that can't work."""
        self._settings, self._lease, self._tell, self._now = settings, lease, tell, now
        self._access: Access = reached(lease.kubeconfig, lease.context)
        self._namespace = lease.namespace or self._access.namespace
        self._leads = False
        self._said: tuple[str, str] | None = None

    async def lead(self, run: Run, stop: asyncio.Event) -> None:
        """Wait for the lead and `run` the engine until `stop` is set. Raises what `run` does, and Stalled SH550 when the lead was lost."""
        api = Api(self._access)
        try:
            above = await self._above(api, stop)
            if above is not None:
                await self._stand(api, above, run, stop)
        finally:
            await api.aclose()

    async def _stand(self, api: Api, above: Epoch, run: Run, stop: asyncio.Event) -> None:
        elector = Elector(api, self._namespace, self._lease.name, identity(), terms=terms(self._lease), above=lambda: above, now=self._now)

        async def work(term: Term) -> None:
            self._leads = True
            await self._work(term, run, stop)

        leading = asyncio.create_task(elector.lead(work), name="elector")
        stopping = asyncio.create_task(stop.wait())
        try:
            while not leading.done():
                await asyncio.wait([leading, stopping], timeout=AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set() and not self._leads:
                    break
                if stop.is_set():
                    await asyncio.wait([leading])
                elif not self._leads:
                    self._say(elector)
            if leading.done():
                leading.result()
        finally:
            stopping.cancel()
            leading.cancel()
            await asyncio.gather(leading, stopping, return_exceptions=True)

    async def _work(self, term: Term, run: Run, stop: asyncio.Event) -> None:
        upheld = Upheld(lambda: Api(self._access, timeout_s=BOUND_S), self._namespace, term, self._now)
        try:
            await asyncio.to_thread(upheld.open)
            await run(stop, upheld.backing)
        finally:
            upheld.close()

    async def _above(self, api: Api, stop: asyncio.Event) -> Epoch | None:
        """The highest epoch that is known, once the API server tells it; None when it is time to stop."""
        while not stop.is_set():
            try:
                return await known_epoch(api, self._namespace, self._settings.state)
            except Retry as error:
                self._once("", error.problem)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), AGAIN_S)
        return None

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
            self._tell(problem)


def terms(lease: LeaseSettings) -> Terms:
    """A leader that couldn't renew for two thirds of a Lease's time stops. It tries several times in it: a hiccup stops nobody."""
    lasts = float(lease.lasts)
    return Terms(lease=lasts, renew_deadline=lasts * 2 / 3, retry=lasts * 2 / 15, request=lasts / 5)


def identity() -> str:
    """Ours alone, also after a restart: the host's name, which is the pod's, and something new."""
    return f"{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}"
