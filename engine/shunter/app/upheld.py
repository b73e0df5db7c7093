"""An engine among several in a cluster: a Lease says that it leads, and what it must remember is in the API server before it counts.

What is on its own disk is a copy for the next look-up, and for `shunter status`. All of Kubernetes happens in a thread of its own.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shunter.act.beyond import Deposed, Remembered
from shunter.act.lease import Leadership, Lease
from shunter.act.store import Store, looked_at
from shunter.app import gone
from shunter.app.degraded import places
from shunter.cluster.api import Api, Object
from shunter.cluster.elector import Term
from shunter.cluster.events import Events
from shunter.cluster.ledger import Ledger, Overtaken
from shunter.cluster.memory import Memory
from shunter.cluster.operation import incomplete, record_of
from shunter.cluster.thread import Thread
from shunter.model.canon import decode, encode
from shunter.model.errors import Problem, Rejected, ShunterError, Stalled
from shunter.model.ids import Epoch, OperationId
from shunter.model.operation import OperationRecord, Outcome, Sending, Status

BOUND_S: Final = 2.0
"""How long a write of an operation may take: so long it holds up everything else, once."""
_PATIENCE_S: Final = 4 * BOUND_S
"""For one that has to look what stands there, and to write again."""
_EACH_S: Final = 0.1
"""For each of many."""
_LOAD_S: Final = 30.0
_FAREWELL_S: Final = 3.0
_LOST: Final = Problem(
    code="SH557",
    what="this engine leads no more",
    remedy="Nothing to do: another engine takes over, and this one begins anew",
    subject="lease",
)


class Upheld:
    """What one term of leadership stands on: a `Leadership`, and the `Beyond` of the store. `open` it, and `close` it at the end."""

    def __init__(self, make_api: Callable[[], Api], namespace: str, term: Term, now: Callable[[], float]) -> None:
        """`make_api` gives one with a short `timeout_s`: for so long a write holds up everything else. `now`: seconds since the epoch.

        Touches nothing yet.
        """
        self._make_api, self._namespace, self._term, self._now = make_api, namespace, term, now
        self._thread: Thread | None = None
        self._ledger: Ledger
        self._memory: Memory
        self._events: Events
        self._gist: object = None
        self._fleet: Remembered | None = None
        self._records: list[OperationRecord] = []

    @property
    def epoch(self) -> Epoch:
        """See `Leadership`."""
        return self._term.epoch

    @property
    def lost(self) -> Problem:
        """See `Leadership`."""
        return self._ledger.overtaken or _LOST

    @property
    def revoked(self) -> frozenset[OperationId]:
        """See `Leadership`: those whose resources were deleted."""
        return self._ledger.deleted

    @property
    def troubles(self) -> Mapping[str, Problem | None]:
        """See `Leadership`: the fleet that isn't kept for a next leader, and what people aren't told."""
        return {"fleet's memory": self._memory.problem, "cluster's events": self._events.problem}

    def held(self) -> bool:
        """See `Leadership`. Not without the thread that writes: nothing that we know of ends it, and no other way leads out of that."""
        return self._term.held() and self._ledger.overtaken is None and (self._thread is None or self._thread.failed is None)

    def put(self, records: Sequence[OperationRecord], *, together: bool) -> None:
        """See `Beyond`."""
        if not self.held():
            raise Deposed(self.lost)
        if not records:
            if self._ledger.problem is not None:
                raise Stalled(self._ledger.problem)
            return
        assert self._thread is not None
        try:
            self._thread.call(self._ledger.put(records, together=together), _PATIENCE_S + _EACH_S * len(records))
        except Overtaken as error:
            raise Deposed(error.problem) from error
        except ShunterError as error:
            raise Stalled(error.problem) from error
        except TimeoutError as error:
            what = "the thread that writes operations to the API server doesn't get to it"
            raise Stalled(Problem(code="SH558", what=what, remedy="Look at the load of the engine's machine")) from error

    def remember(self, remembered: Remembered) -> None:
        """See `Beyond`. Only what differs in more than ages and measurements, and without images: those that are left are reported."""
        gist = (places(remembered.fleet), remembered.notices, remembered.namesakes)
        if gist == self._gist or self._thread is None or not self.held():
            return
        self._gist = gist
        kept = msgspec.structs.replace(remembered, fleet=msgspec.structs.replace(remembered.fleet, images=()))
        self._thread.soon(lambda: self._memory.offer(self.epoch, lambda: encode(kept)))

    def show(self, sending: Sending) -> None:
        """See `Leadership`."""
        if self._thread is not None:
            self._thread.soon(lambda: self._ledger.show(sending))

    def open(self) -> None:
        """Load what the leaders before left, and write our epoch into what of it is under way: from then on they can change nothing of it.

        Blocks. Raises Retry as `Api.get` does, Stalled SH250, SH260 for an operation under way that can't be read, and as `put` does.
        """
        self._thread = Thread("operations", self._main)
        if self._thread.failed is not None:
            raise self._thread.failed
        found = self._thread.call(self._load(), _LOAD_S)
        parts = incomplete(one for one in found if _whole(one))
        known: list[tuple[Object, OperationRecord]] = []
        for one in found:
            if (record := _read(one)) is not None:
                known.append((one, self._superseded(record) if record.id in parts else record))
        self._thread.soon(lambda: self._ledger.know(known))
        ours = {r.id: msgspec.structs.replace(r, epoch=self.epoch) for _, r in known if r.outcome is None}
        self._records = [ours.get(record.id, record) for _, record in known]
        self.put(tuple(ours.values()), together=False)

    def close(self) -> None:
        """End the thread. What was to be written later is left to the next leader."""
        if self._thread is not None:
            self._thread.close()

    @contextlib.contextmanager
    def backing(self, state: Path, wal_pages: int) -> Iterator[tuple[Store, Leadership]]:
        """The store of an opened term, and the leadership itself: an `app.engine.Backing`. Raises Rejected SH507 when another process has
        this state folder, Stalled SH501, SH502, SH508, and as `gone.declare` does.
        """
        store = Store(state / "engine.db", wal_pages=wal_pages, beyond=self)
        with contextlib.closing(store), Lease(state / "engine.lock", store):
            store.rebase(self.epoch, self._records, self._fleet)
            if self._fleet is not None:
                gone.take_over(state, self._fleet.notices, self._fleet.at)
            self._records = []
            yield store, self

    # -- in the thread

    async def _main(self) -> None:
        api = self._make_api()
        try:
            self._events = Events(api, self._namespace)
            self._ledger = Ledger(api, self._namespace, self.epoch, events=self._events, clock=self._now)
            self._memory = Memory(api, self._namespace)
            works = [asyncio.create_task(work) for work in (self._ledger.run(), self._memory.run(), self._events.run())]
            try:
                done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_EXCEPTION)
                for work in done:
                    work.result()
            finally:
                self._ledger.stop()
                await asyncio.wait(works[:1], timeout=_FAREWELL_S)
                for work in works:
                    work.cancel()
                await asyncio.gather(*works, return_exceptions=True)
        finally:
            await api.aclose()

    async def _load(self) -> list[Object]:
        _, packed = await self._memory.load()
        if packed:
            with contextlib.suppress(msgspec.MsgspecError):  # a later engine's, or a person's: what agents report is known all the same
                self._fleet = decode(packed, Remembered)
        return await self._ledger.load()

    def _superseded(self, record: OperationRecord) -> OperationRecord:
        outcome = Outcome(
            status=Status.SUPERSEDED,
            at=self._now(),
            code="SH555",
            reason="the engine ended before all of what was decided with it was durable; nothing of it was begun",
        )
        return msgspec.structs.replace(record, outcome=outcome)


async def known_epoch(api: Api, namespace: str, state: Path) -> Epoch:
    """The highest epoch that is known from elsewhere than the Lease. Raises Retry as `Api.get` does."""
    remembered, _ = await Memory(api, namespace).load()
    with looked_at(state / "engine.db") as store:
        return remembered if store is None else max(remembered, store.epoch)


def _whole(one: Object) -> bool:
    """It says what it was made together with."""
    return isinstance(one.get("spec"), dict) and {"first", "size"} <= (one["spec"].get("batch") or {}).keys()


def _read(one: Object) -> OperationRecord | None:
    """None for one that can't be read and has ended: nobody has to go on with it. Raises Stalled SH260 for one that is under way."""
    try:
        return record_of(one)
    except Rejected as error:
        if "outcome" in (one.get("status") or {}):
            return None
        raise Stalled(error.problem) from error
