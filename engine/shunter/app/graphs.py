"""Dynamo's graphs in the cluster, as the `[cluster.dynamo]` of the settings says: what they say of pools, and their replicas of record.

What is of record now says nothing of the past: it goes into samples of now alone.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from shunter.app.clustered import reached
from shunter.app.drifting import Shown, write
from shunter.app.housed import Housed, fleet_of, housing
from shunter.app.settings import DynamoSettings, LeaseSettings, Settings
from shunter.cluster.api import Absent, Api
from shunter.cluster.dynamo.fence import Slices
from shunter.cluster.dynamo.following import Following, View
from shunter.cluster.dynamo.pools import lines, merged, troubles
from shunter.cluster.dynamo.record import component_of
from shunter.cluster.dynamo.shift import Shift, Shifts
from shunter.cluster.dynamo.starting import GoldenStarts, Wanted
from shunter.model.errors import Problem, Retry
from shunter.model.ids import Epoch, OperationId, PoolId, node_of
from shunter.model.operation import OperationRecord
from shunter.model.plan import OperationKind
from shunter.model.pod import Pod, Started
from shunter.model.snapshot import Samples

REQUEST_S: Final = 3.0
LISTED_S: Final = 3.0
"""For so long an engine that begins waits for the first lists; what isn't known by then is missing."""
_NOWHERE: Final = "the operation leaves no slot for it"
_REMEMBERED: Final = 256
"""Operations of which it is known that nothing was written: more than are ever under way in Dynamo's graphs."""
NOW_S: Final = 30.0
"""Samples older than this are of the past."""


class Graphs:
    """For one engine. `open` it in the event loop in which operations are carried out."""

    def __init__(self, lease: LeaseSettings, dynamo: DynamoSettings, *, clock: Callable[[], float] = time.time) -> None:
        """Raises Stalled SH250 for an access that can't work. `clock`: seconds since the epoch. Touches nothing yet."""
        self._access = reached(lease.kubeconfig, lease.context)
        pods = lease.pods.namespace if lease.pods is not None else ""
        self._makes_pods = lease.pods is not None
        self.namespace = dynamo.namespace or pods or lease.namespace or self._access.namespace
        self._fleet = fleet_of(lease, self._access)
        self._clock = clock
        self._written: Shown | None = None
        self._noted: tuple[View, Shown, tuple[Problem, ...]] | None = None
        self._following: Following
        self._api: Api
        self.replicas: Counted
        self.router: Slices
        self.starts: Golden | None = None
        """None: there are no workers in pods for us to make."""

    async def open(self) -> Self:
        """Follow. What isn't known yet is missing."""
        self._following = Following(lambda: Api(self._access), self.namespace)
        self._api = Api(self._access, timeout_s=REQUEST_S)
        shifts = Shifts(self._api)
        self.replicas, self.router = Counted(shifts, self.namespace), Slices(self._api)
        self.starts = Golden(GoldenStarts(self._api, shifts), self.namespace, self._fleet) if self._makes_pods else None
        return self

    async def listed(self, within_s: float) -> None:
        """Return once all is known, or that time is over: then samples say why they are missing."""
        with contextlib.suppress(Retry):
            await asyncio.to_thread(self._following.wait, within_s)

    async def close(self) -> None:
        """End all connections."""
        await asyncio.to_thread(self._following.close)
        await self._api.aclose()

    def view(self) -> View:
        """All of it as it is now."""
        return self._following.view()

    def measured(self, samples: Samples, at: float) -> Samples:
        """With what Dynamo's resources say of pools, if `at` is now."""
        if self._clock() - at > NOW_S:
            return samples
        return msgspec.structs.replace(samples, pools=merged(samples.pools, self.view(), at))

    def note(self, state: Path, epoch: Epoch, at: float) -> tuple[Problem, ...]:
        """Write down for `shunter status` what there is, if it changed; what is wrong is returned. A full disk keeps the older one. Raises
        what ended the following, if anything did: the engine ends with it, and begins anew.
        """
        if self._following.failed is not None:
            raise self._following.failed
        view = self.view()
        if self._noted is None or self._noted[0] is not view:  # it is the same one for as long as nothing changes
            wrong = troubles(view)
            self._noted = view, Shown.of(epoch, lines(view, at), wrong), wrong
        _, new, wrong = self._noted
        self._written = write(state, new, self._written)
        return wrong


class Counted:
    """`act.replicas.Replicas` over Dynamo's resources of record. A worker whose pod is of no graph of Dynamo's is kept at no number."""

    def __init__(self, shifts: Shifts, namespace: str) -> None:
        self._shifts, self._namespace = shifts, namespace
        self._unwritten: dict[tuple[OperationId, Epoch], None] = {}
        """Of which nothing was written yet, nor is on its way, for certain: they were checked here, and nothing was changed for them."""

    async def check(self, record: OperationRecord, left: Pod | None, then: PoolId | None) -> None:
        """See `Replicas`."""
        shift = await self._shift(record, left, then)
        if shift is None:
            return
        await self._shifts.check(shift, begins=record.planned.kind is not OperationKind.RESTORE)
        self._unwritten[record.id, record.epoch] = None
        for old in tuple(self._unwritten)[:-_REMEMBERED]:
            del self._unwritten[old]

    async def change(self, record: OperationRecord, may: Callable[[], None]) -> None:
        """See `Replicas`."""
        shift = await self._shift(record, record.left, None)
        if shift is not None and not await self._counted_already(shift):
            self._unwritten.pop((record.id, record.epoch), None)
            await self._shifts.under(may).carry(shift)

    async def take_back(self, record: OperationRecord, may: Callable[[], None]) -> None:
        """See `Replicas`."""
        shift = await self._shift(record, record.left, None)
        if shift is not None:
            await self._shifts.under(may).undo(shift, begun=(record.id, record.epoch) not in self._unwritten)

    async def _counted_already(self, shift: Shift) -> bool:
        """Who comes was asked for before, by a planner that writes the number itself: it isn't asked for twice."""
        return not shift.gives and await self._shifts.lacks(shift.namespace, shift.graph, shift.takes)

    async def _shift(self, record: OperationRecord, left: Pod | None, then: PoolId | None) -> Shift | None:
        planned = record.planned
        comes = planned.kind is OperationKind.RESTORE
        if planned.pool is None or (left is None if not comes else False):
            return None
        name, _, role = planned.pool.rpartition("/")
        try:
            graph = await self._shifts.graph(left.namespace if left is not None else self._namespace, name)
        except Absent:
            return None
        taker = planned.pool if comes else planned.hands_to or then
        gives = "" if comes else component_of(graph, role)
        takes = component_of(graph, taker.rpartition("/")[2]) if taker is not None else ""
        return Shift(
            operation=planned.id,
            namespace=graph.namespace,
            graph=graph.name,
            gives=gives,
            pod=left.name if left is not None else "",
            uid=left.uid if left is not None else "",
            takes=takes,
        )


class Golden:
    """`act.starts.Starts` over Dynamo Snapshot's PodSnapshots."""

    def __init__(self, starts: GoldenStarts, namespace: str, fleet: str) -> None:
        """`fleet`: the label of what its engines make."""
        self._starts, self._namespace, self._fleet = starts, namespace, fleet

    async def begin(self, record: OperationRecord, may: Callable[[], None]) -> str:
        """See `Starts`."""
        wanted = self._wanted(record)
        return await self._starts.under(may).begin(wanted) if wanted is not None else _NOWHERE

    async def look(self, record: OperationRecord) -> Started:
        """See `Starts`."""
        wanted = self._wanted(record)
        return await self._starts.look(wanted) if wanted is not None else Started(state="instead", why=_NOWHERE)

    async def end(self, record: OperationRecord, may: Callable[[], None]) -> bool:
        """See `Starts`."""
        wanted = self._wanted(record)
        return await self._starts.under(may).end(wanted) if wanted is not None else True

    def _wanted(self, record: OperationRecord) -> Wanted | None:
        """None: it isn't for another pool, or in no slot."""
        planned = record.planned
        slot = planned.from_slot or planned.expect.at
        if planned.hands_to is None or slot is None:
            return None
        graph, _, role = planned.hands_to.rpartition("/")
        return Wanted(
            operation=planned.id,
            namespace=record.left.namespace if record.left is not None else self._namespace,
            graph=graph,
            role=role,
            golden=planned.golden,
            node=node_of(slot),
            fleet=self._fleet,
        )


@contextlib.asynccontextmanager
async def following(settings: Settings) -> AsyncIterator[tuple[Housed | None, Graphs | None]]:
    """What the settings say of workers in pods, and of Dynamo's graphs, open for as long as the context lasts; None: nothing. Raises as
    `Housed.open` does.
    """
    async with contextlib.AsyncExitStack() as stack:
        housed, graphs = await housing(settings), None
        if housed is not None:
            stack.push_async_callback(housed.close)
        if settings.cluster is not None and settings.cluster.dynamo is not None:
            graphs = await Graphs(settings.cluster, settings.cluster.dynamo).open()
            stack.push_async_callback(graphs.close)
            await graphs.listed(LISTED_S)
        yield housed, graphs


def known(housed: Housed | None, graphs: Graphs | None) -> dict[str, Any]:
    """What a `World` is told by them."""
    told: dict[str, Any] = {} if housed is None else {"join": housed.joined, "bare": housed.reported}
    return told if graphs is None else {**told, "more": graphs.measured}
