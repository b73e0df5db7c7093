"""The engine's operations in the API server: what a next leader, on whatever machine, goes on from.

Each change is written before it counts, at the version that we wrote last, and never under an epoch that is lower than the one that stands
there: whoever was overtaken finds out at its next write. A write that isn't answered in time says nothing of itself, and those after it
fail at once until the server answers again.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec

from shunter.cluster.api import Absent, Api, Conflict, Object
from shunter.cluster.backoff import Backoff
from shunter.cluster.events import Events
from shunter.cluster.operation import FINALIZER, UNDER_WAY, Batch, collection, epoch_of, released, resource, status
from shunter.cluster.retention import outdated
from shunter.model.errors import Problem, Rejected, Retry, ShunterError, Stalled, Unknown
from shunter.model.ids import Epoch, OperationId
from shunter.model.operation import OperationRecord, Sending, Step

PAGE: Final = 500
_AT_ONCE: Final = 16
"""Requests on the way."""
_TRIES: Final = 4
"""Of a write that finds another version: a person's label, our own write whose answer got lost."""
_LOOK_S: Final = 3.0
"""Between two looks whether somebody has deleted an operation that is under way."""
_SWEEP_S: Final = 60.0
_LIST_S: Final = 15.0
"""Bound of a page of a list, for which nothing waits but a new leader."""
_SHOWN_S: Final = 5.0
"""Between two words of how far an operation's image is on its way: each is a write, for people alone."""
_HICCUP_S: Final = 0.3
"""A failure that takes no longer is tried again, so much later."""


class Overtaken(Stalled):
    """SH551: an operation stands under a higher epoch than ours."""


class _Open(msgspec.Struct, kw_only=True):
    """The resource of an operation that has to be written on, as we know it, and what its status is to be."""

    one: Object
    wanted: OperationRecord
    told: bool
    """Its status says `wanted`."""
    sending: Sending | None = None
    """How far its image was on its way when that was last to be said, in this step. None: nothing is said of it."""
    shown_at: float = float("-inf")
    """When that was."""


class Ledger:
    """Of one namespace, for one term. All but the constructor belongs into the event loop in which `run` runs."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        epoch: Epoch,
        *,
        events: Events | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`events`, if any, are offered what begins and ends. How long a `put` takes is bounded by the `timeout_s` of `api`. `clock`:
        seconds since the epoch; `steady`: that never go back.
        """
        self._api, self._namespace, self._epoch, self._clock, self._steady = api, namespace, epoch, clock, steady
        self._events = events
        self._path = collection(namespace)
        self._open: dict[OperationId, _Open] = {}
        self._ended: dict[OperationId, OperationRecord] = {}
        self._doubtful: set[OperationId] = set()
        """May have been made by a write that failed: nothing that counts."""
        self._locks: dict[OperationId, asyncio.Lock] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._news = asyncio.Event()
        self._looked = self._swept = float("-inf")
        self._stopping = False
        self.problem: Problem | None = None
        """Why nothing can be written at present; None: it can."""
        self.overtaken: Problem | None = None
        """Who writes instead of us; once it is set nothing is written any more."""
        self.deleted: frozenset[OperationId] = frozenset()
        """Operations under way whose resources somebody has deleted."""

    async def load(self) -> list[Object]:
        """Every operation that is there. Raises Retry as `Api.get` does."""
        return await self._list({})

    def know(self, found: Iterable[tuple[Object, OperationRecord]]) -> None:
        """Go on from what was loaded."""
        for one, record in found:
            if record.outcome is not None and not one["metadata"].get("finalizers"):
                self._ended[record.id] = record
            else:
                self._open[record.id] = _Open(one=one, wanted=record, told=bool(one.get("status")))
        self._news.set()

    async def put(self, records: Sequence[OperationRecord], *, together: bool) -> None:
        """Make them durable. If `together` and all are new, whoever loads them finds all of them or none.

        Raises Stalled: what the server said last (SH251 and so on), SH552 when somebody changes them all the time; Overtaken SH551.
        """
        if self.overtaken is not None:
            raise Overtaken(self.overtaken)
        if self.problem is not None:
            raise Stalled(self.problem)
        new = [record.id for record in records if record.id not in self._open]
        batch = Batch(first=new[0], size=len(new)) if together and 0 < len(new) == len(records) else None
        try:
            await _all([self._put(record, batch) for record in records])
            self._tell_people(records)
        except Overtaken:
            raise
        except ShunterError as error:
            if batch is not None:
                # without one they are under way, in the store's memory alone: each that is there is one that isn't lost
                for name in new:
                    self._open.pop(name, None)
                self._doubtful.update(new)
            raise Stalled(error.problem) from error
        finally:
            self._news.set()

    def show(self, sending: Sending) -> None:
        """Have an operation that is under way say so, unless it has just done: soon, and if the server takes it. For people."""
        kept, now = self._open.get(sending.operation), self._steady()
        if kept is None or kept.wanted.outcome is not None or now - kept.shown_at < _SHOWN_S:
            return
        kept.sending, kept.shown_at, kept.told = sending, now, False
        self._news.set()

    async def run(self) -> None:
        """Until stopped or overtaken: write what may come later, let go of what has ended and drop what is old, see what was deleted, and
        whether a server that failed answers again.
        """
        backoff = Backoff(most=5.0)
        while self.overtaken is None and not self._stopping:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _LOOK_S)
            self._news.clear()
            try:
                await self._tidy()
                self.problem = None
                backoff.reset()
            except Overtaken:
                return
            except ShunterError as error:
                if self.problem is not None:
                    self.problem = error.problem  # what may come later says nothing of what has to be now
                await asyncio.sleep(backoff.next())
                self._news.set()

    def stop(self) -> None:
        """Have `run` end once what it is about is written."""
        self._stopping = True
        self._news.set()

    # -- writing

    async def _put(self, record: OperationRecord, batch: Batch | None) -> None:
        async with self._slots, self._lock(record.id):
            if self.problem is not None:
                raise Stalled(self.problem)  # another of them has found out
            try:
                await self._again(lambda: self._put_one(record, batch))
            except ShunterError as error:
                self.problem = error.problem
                raise

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Once more after a hiccup: a server that is busy or has just come back, an etcd that elects. Not after a silence, which was long
        enough.
        """
        began = self._steady()
        try:
            await work()
        except (Retry, Unknown):
            if self._steady() - began > _HICCUP_S:
                raise
            await asyncio.sleep(_HICCUP_S)
            await work()

    async def _put_one(self, record: OperationRecord, batch: Batch | None) -> None:
        kept = self._open.get(record.id)
        if kept is None:
            one = await self._make(record, batch or Batch(first=record.id, size=1))
            self._doubtful.discard(record.id)
            kept = self._open[record.id] = _Open(one=one, wanted=record, told=False)
            if batch is not None and record.step is Step.INTENDED and record.outcome is None:
                return  # the spec says it all; the status follows
        if kept.told and kept.wanted == record:
            return
        before = kept.wanted
        kept.wanted, kept.told, kept.sending = record, False, None
        try:
            await self._tell(kept)
        except BaseException:
            kept.wanted = before  # it doesn't count, so that it isn't to be told later either
            raise

    def _tell_people(self, records: Sequence[OperationRecord]) -> None:
        if self._events is not None:
            for record in records:
                kept = self._open.get(record.id)
                self._events.offer(record, str(kept.one["metadata"].get("uid", "")) if kept is not None else "")

    async def _make(self, record: OperationRecord, batch: Batch) -> Object:
        body, where = resource(record, batch, self._namespace), f"{self._path}/{record.id}"
        for _ in range(_TRIES):
            try:
                return await self._api.create(self._path, body)
            except Conflict:
                with contextlib.suppress(Absent):
                    standing = await self._api.get(where)
                    self._check(standing)
                    if standing["spec"] == body["spec"] and not standing["metadata"].get("deletionTimestamp"):
                        return standing  # made by a write whose answer got lost
                    await self._remove(standing)
        raise Stalled(_restless(where))

    async def _tell(self, kept: _Open) -> None:
        """Write the status that is wanted. Raises Overtaken, and as `Api.replace` does."""
        where = f"{self._path}/{kept.wanted.id}"
        for _ in range(_TRIES):
            try:
                kept.one = await self._api.replace(f"{where}/status", {**kept.one, "status": status(kept.wanted, kept.sending)})
            except Conflict:
                kept.one = await self._api.get(where)
                self._check(kept.one)
            except Absent:  # somebody took the finalizer away, and it with it
                kept.one = await self._make(kept.wanted, Batch(first=kept.wanted.id, size=1))
            except Rejected:
                self._check(await self._api.get(where))
                raise
            else:
                kept.told = True
                return
        raise Stalled(_restless(where))

    def _check(self, standing: Object) -> None:
        """Raises Overtaken when a higher epoch than ours wrote it."""
        if (found := epoch_of(standing)) > self._epoch:
            self.overtaken = Problem(
                code="SH551",
                what=f"an engine with epoch {found} has taken over from this one, which has {self._epoch}",
                remedy="Nothing to do: that one goes on with what this one began, and this one begins anew",
                subject=str(standing["metadata"]["name"]),
            )
            raise Overtaken(self.overtaken)

    # -- what comes later

    async def _tidy(self) -> None:
        now = self._steady()
        if self.problem is not None:
            await self._api.get(self._path, {"limit": 1})
        for name in tuple(self._doubtful):
            await self._undo(name)
        await _all([self._catch_up(name) for name, kept in self._open.items() if not kept.told or kept.wanted.outcome is not None])
        if self._open and now - self._looked >= _LOOK_S:
            self._looked = now
            # out of the server's cache: what it says may be a moment old, and costs hardly anything
            found = await self._list({"labelSelector": f"{UNDER_WAY}=true", "resourceVersion": "0"})
            self.deleted = frozenset(OperationId(one["metadata"]["name"]) for one in found if one["metadata"].get("deletionTimestamp"))
        if now - self._swept >= _SWEEP_S:
            self._swept = now
            await _all([self._drop(name) for name in outdated(self._ended.values(), self._clock())])

    async def _undo(self, name: OperationId) -> None:
        async with self._lock(name):
            if name in self._doubtful:
                with contextlib.suppress(Absent):
                    standing = await self._api.get(f"{self._path}/{name}")
                    self._check(standing)
                    await self._remove(standing)
                self._doubtful.discard(name)

    async def _catch_up(self, name: OperationId) -> None:
        async with self._slots, self._lock(name):
            kept = self._open.get(name)
            if kept is None:
                return
            if not kept.told:
                await self._tell(kept)
            if kept.wanted.outcome is None:
                return
            with contextlib.suppress(Absent):
                await self._let_go(kept.one)
            self._ended[name] = self._open.pop(name).wanted
            self._locks.pop(name, None)

    async def _let_go(self, one: Object) -> Object:
        for _ in range(_TRIES):
            try:
                return await self._api.replace(f"{self._path}/{one['metadata']['name']}", released(one))
            except Conflict:
                one = await self._api.get(f"{self._path}/{one['metadata']['name']}")
        raise Stalled(_restless(one["metadata"]["name"]))

    async def _remove(self, one: Object) -> None:
        if FINALIZER in (one["metadata"].get("finalizers") or ()):
            one = await self._let_go(one)
        with contextlib.suppress(Absent):
            await self._api.delete(f"{self._path}/{one['metadata']['name']}")

    async def _drop(self, name: OperationId) -> None:
        async with self._slots:
            with contextlib.suppress(Absent):
                await self._api.delete(f"{self._path}/{name}")
            self._ended.pop(name, None)

    async def _list(self, selected: dict[str, str | int]) -> list[Object]:
        found: list[Object] = []
        query = {**selected, "limit": PAGE}
        while True:
            page = await self._api.get(self._path, query, timeout_s=_LIST_S)
            found += page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found
            query["continue"] = token

    def _lock(self, name: OperationId) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


async def _all(works: Sequence[Awaitable[None]]) -> None:
    """All of them; raises what one of them did once all have ended, that we were overtaken first."""
    failed = [found for found in await asyncio.gather(*works, return_exceptions=True) if isinstance(found, BaseException)]
    for found in sorted(failed, key=lambda one: not isinstance(one, Overtaken)):
        raise found


def _restless(where: str) -> Problem:
    return Problem(
        code="SH552",
        what="an operation's resource changes each time that its state is to be written",
        remedy="Find out who writes it: operations are the engine's",
        subject=where,
    )
