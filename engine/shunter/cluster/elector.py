"""Who leads: a Lease, whose transitions give the epoch.

Only durations on this machine count, never the times in the Lease, which are other machines' clocks. A leader counts from before it sent a
renewal, a candidate from when it saw one; as the leader stops at `renew_deadline` and a candidate waits `lease`, which is longer, no two
lead at once, as long as their clocks run equally fast. Should they not: every order carries the epoch, and agents refuse an older one.
"""

import asyncio
import datetime as dt
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from shunter.cluster.api import Absent, Api, Object
from shunter.model.errors import Problem, ShunterError, Stalled
from shunter.model.ids import Epoch

_LOG: Final = logging.getLogger(__name__)
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `renew_deadline` must be shorter than `lease`, and `retry` shorter than `renew_deadline`."""

    lease: float = 15.0
    """A candidate takes a Lease over that it saw unchanged for this long."""
    renew_deadline: float = 10.0
    """A leader whose last renewal began longer ago than this leads no more."""
    retry: float = 2.0
    """Between renewals, and between a candidate's looks; shortened by up to a fifth at random."""
    request: float = 3.0
    """Bound of a single request."""


def steady_clock() -> float:
    """Seconds that never go back, and go on while the machine sleeps, as the others' do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Term:
    """One leadership."""

    def __init__(self, epoch: Epoch, renewed_at: float, deadline: float, clock: Callable[[], float]) -> None:
        self.epoch = epoch
        self.renewed_at = renewed_at
        self._deadline, self._clock = deadline, clock
        self.ended = False
        """It was lost or given back: nothing brings it back."""

    def left(self) -> float:
        """Seconds until it ends unless it is renewed; 0 when it has ended."""
        return 0.0 if self.ended else max(0.0, self.renewed_at + self._deadline - self._clock())

    def held(self) -> bool:
        """Whether we lead. Ask before every effect: it is true for no longer than the deadline, even if nothing here got to run since."""
        if not self.ended and self.left() <= 0.0:
            self.ended = True
        return not self.ended


class Elector:
    """A candidate for the Lease `name` in `namespace`. `identity` must differ from everybody else's, and from our own after a restart."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        *,
        terms: Terms | None = None,
        above: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = steady_clock,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rnd: Callable[[], float] = random.random,
    ) -> None:
        """`above` is the highest epoch that is known from elsewhere (the store, the agents): ours is higher even if the Lease was deleted.

        `now` (seconds since the epoch) is only written down for people. Raises ValueError for terms that don't fit each other.
        """
        self._terms = terms or Terms()
        if not 0 < self._terms.retry < self._terms.renew_deadline < self._terms.lease:
            raise ValueError("retry, renew_deadline and lease must rise in this order")
        self._api, self._identity, self._above = api, identity, above
        self._clock, self._now, self._sleep, self._rnd = clock, now, sleep, rnd
        self._collection = _LEASES.format(namespace)
        self._path = f"{self._collection}/{name}"
        self._meta = {"name": name, "namespace": namespace}
        self._seen: tuple[object, float] | None = None
        self._stamped = 0.0
        self._highest = 0
        self.problem: Problem | None = None
        """Why the Lease can't be read or written at present, or None."""
        self.leader: str | None = None
        """Who leads, as last seen; None: nobody, or not known."""
        self._answered: float | None = None

    def age(self) -> float | None:
        """Seconds since the Lease was last read or written; None: never."""
        return None if self._answered is None else self._clock() - self._answered

    async def lead(self, work: Callable[[Term], Awaitable[None]]) -> None:
        """Wait until we lead, then do `work` until it returns; the Lease is given back then, or when this is cancelled.

        When leadership is lost `work` is cancelled, and once it has ended this raises Stalled SH550: begin anew, from what is stored.
        """
        term = await self._acquire()
        _LOG.info("leads at epoch %d", term.epoch)
        working = asyncio.ensure_future(work(term))
        renewing = asyncio.create_task(self._renew(term))
        try:
            await asyncio.wait([working, renewing], return_when=asyncio.FIRST_COMPLETED)
            lost = not working.done()
        finally:
            await _end(renewing)
            await _end(working)
            held, term.ended = term.held(), True
            if held:
                await self._release(term)
        if lost:
            what = f"the Lease couldn't be renewed within {self._terms.renew_deadline:g} s, so this engine leads no more"
            raise Stalled(
                Problem(
                    code="SH550",
                    what=f"{what}: {self.problem.what}" if self.problem else what,
                    remedy="Nothing to do: another engine takes over, and this one begins anew",
                    subject=self._meta["name"],
                )
            )
        await working

    # -- taking it

    async def _acquire(self) -> Term:
        while True:
            try:
                term = await self._try()
                self.problem, self._answered = None, self._clock()
                if term is not None:
                    return term
            except ShunterError as error:
                self.problem = error.problem
            await self._pause(self._terms.retry)

    async def _try(self) -> Term | None:
        """The Lease is free, or hasn't changed for its time: take it. None: somebody has it. Raises ShunterErrors."""
        try:
            lease = await self._api.get(self._path, timeout_s=self._terms.request)
        except Absent:
            began = self._clock()
            return self._taken(await self._write(None, {}, max(self._highest, self._above()) + 1), began)
        spec = lease.get("spec") or {}
        self._highest = max(self._highest, int(spec.get("leaseTransitions") or 0))
        self.leader = spec.get("holderIdentity") or None
        if self.leader not in (None, self._identity) and not self._expired(lease, spec):
            return None  # our own name without a term of ours: a write whose answer got lost
        began = self._clock()
        epoch = max(self._highest, self._above()) + 1
        return self._taken(await self._write(lease, {**spec, "acquireTime": self._stamp()}, epoch), began)

    def _expired(self, lease: Object, spec: Object) -> bool:
        """Nobody changed it for its whole time, on our clock."""
        version = (lease["metadata"].get("uid"), lease["metadata"].get("resourceVersion"))
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock())
            return False
        lasts = max(self._terms.lease, float(spec.get("leaseDurationSeconds") or 0))
        return self._clock() - self._seen[1] >= lasts

    def _taken(self, lease: Object, began: float) -> Term:
        self.leader = self._identity
        return Term(Epoch(int(lease["spec"]["leaseTransitions"])), began, self._terms.renew_deadline, self._clock)

    # -- keeping it

    async def _renew(self, term: Term) -> None:
        """Until the term ends."""
        while term.held():
            await self._pause(min(self._terms.retry, term.left()))
            if term.held():
                await self._renewed(term)

    async def _renewed(self, term: Term) -> None:
        try:
            lease = await self._api.get(self._path, timeout_s=self._bound(term))
            spec = lease.get("spec") or {}
            if not self._ours(spec, term):
                self.leader = spec.get("holderIdentity") or None
                term.ended = True
                return
            began = self._clock()
            await self._write(lease, spec, term.epoch, self._bound(term))
            term.renewed_at = max(term.renewed_at, began)
            self.problem = None
        except Absent as error:
            term.ended = True  # somebody deleted it: whoever makes it anew leads
            self.problem = error.problem
        except ShunterError as error:
            self.problem = error.problem

    def _bound(self, term: Term) -> float:
        """No request outlasts the term: it ends on time."""
        return min(self._terms.request, max(0.05, term.left()))

    def _ours(self, spec: Object, term: Term) -> bool:
        return spec.get("holderIdentity") == self._identity and spec.get("leaseTransitions") == term.epoch

    async def _release(self, term: Term) -> None:
        """Give it back, so that the next one needn't wait. When that fails, it waits."""
        try:
            lease = await self._api.get(self._path, timeout_s=self._terms.request)
            if self._ours(lease.get("spec") or {}, term):
                spec = {**lease["spec"], "holderIdentity": "", "renewTime": self._stamp(), "leaseDurationSeconds": 1}
                await self._api.replace(self._path, {**lease, "spec": spec}, timeout_s=self._terms.request)
                self.leader = None
        except ShunterError as error:
            self.problem = error.problem

    # -- the Lease

    async def _write(self, lease: Object | None, spec: Object, epoch: int, timeout_s: float | None = None) -> Object:
        timeout_s = timeout_s or self._terms.request
        spec = {
            **spec,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._terms.lease)),
            "leaseTransitions": epoch,
            "renewTime": self._stamp(),
        }
        spec.setdefault("acquireTime", spec["renewTime"])
        if lease is not None:
            return await self._api.replace(self._path, {**lease, "spec": spec}, timeout_s=timeout_s)
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": self._meta, "spec": spec}
        return await self._api.create(self._collection, body, timeout_s=timeout_s)

    def _stamp(self) -> str:
        # never the same twice: a write that changes nothing gives no new version, and looks as if nobody renewed
        self._stamped = max(self._now(), self._stamped + 1e-5)
        return dt.datetime.fromtimestamp(self._stamped, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    async def _pause(self, seconds: float) -> None:
        await self._sleep(seconds * (0.8 + 0.2 * self._rnd()))


async def _end(task: asyncio.Future[None]) -> None:
    """Cancel a task and wait until it has ended; how it ended is the caller's to ask."""
    task.cancel()
    await asyncio.wait([task])
