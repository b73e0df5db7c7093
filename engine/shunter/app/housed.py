"""Workers in pods: what an engine in a cluster follows there, and what it makes, as the `[cluster.pods]` of its settings say."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

import msgspec

from shunter.act.beside import Beside
from shunter.act.store import Store
from shunter.app.clustered import reached
from shunter.app.roster import Roster
from shunter.app.settings import LeaseSettings, PodsSettings, Settings
from shunter.cluster.access import Access
from shunter.cluster.api import Api
from shunter.cluster.estate import Estate, Following, Where
from shunter.cluster.joined import forgotten, joined, left_to_cluster, reported
from shunter.cluster.operation import label
from shunter.cluster.places import Pods
from shunter.cluster.pods import WorkerPod
from shunter.cluster.spares import Stake
from shunter.decide.retention import LEFT_S
from shunter.model.errors import Problem
from shunter.model.ids import NodeId, WorkerId
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.sample import Known
from shunter.model.snapshot import Fleet, Samples, Worker, WorkerState

LIST_S: Final = 60.0
"""How long an engine that begins waits for the first lists."""
TIDY_S: Final = 5.0
"""Between two looks at what operations have left."""
REQUEST_S: Final = 3.0
_TIDYING: Final = "pods"


class Housed:
    """The cluster's nodes, agents and pods, for one engine. `open` it in the event loop in which operations are carried out."""

    def __init__(
        self, lease: LeaseSettings, pods: PodsSettings, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        """`clock`: seconds that never go back; `now`: since the epoch. Raises Stalled SH250 for an access that can't work. Touches nothing
        yet.
        """
        self._access = reached(lease.kubeconfig, lease.context)
        own = lease.namespace or self._access.namespace
        self.where = Where(
            namespace=pods.namespace or own,
            selector=pods.selector,
            agents_namespace=pods.agents_namespace,
            agents_selector=pods.agents_selector,
            port=pods.port,
        )
        self._fleet, self._own, self._idle = fleet_of(lease, self._access), own, pods.idle
        self._clock, self._now, self._tidied = clock, now, float("-inf")
        self._well = False
        self._before: dict[str, NodeId] = {}
        """By uid: pods that workers lived in when an engine last noted it, of which nothing was judged since, and their nodes."""
        self._following: Following
        self._api: Api
        self.places: Pods

    async def open(self) -> Self:
        """Follow, and return once all is known. Raises as `Following.wait` does."""
        self._following = Following(lambda: Api(self._access), self.where)
        self._api = Api(self._access, timeout_s=REQUEST_S)
        self.places = Pods(self._api, self.estate, self._fleet, self._own, idle=self._idle)
        try:
            await asyncio.to_thread(self._following.wait, LIST_S)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """End all connections."""
        await asyncio.to_thread(self._following.close)
        await self._api.aclose()

    def estate(self) -> Estate:
        """All of it as it is now."""
        return self._following.estate()

    def overdue(self) -> float:
        """For how many seconds the cluster has confirmed nothing of nodes and pods, once that is too long; 0.0 until then."""
        return self._following.overdue()

    def follow(self, roster: Roster, fleet: Fleet) -> Problem | None:
        """Bring the agents up to date. Why what is known of the cluster is old; None: it isn't. Raises what ended the following, if
        anything did: the engine ends with it, and begins anew.
        """
        if self._following.failed is not None:
            raise self._following.failed
        estate = self.estate()
        roster.follow(estate.agents)
        roster.forget(forgotten(fleet, estate))
        return estate.doubt

    def reported(self, fleet: Fleet) -> Fleet:
        """What agents have reported, without nodes that there aren't any more."""
        gone = forgotten(fleet, self.estate())
        bare = reported(fleet)
        return _without(bare, gone) if gone else bare

    def joined(self, fleet: Fleet) -> Fleet:
        """The fleet as agents report it and the cluster has it."""
        estate = self.estate()
        found = joined(fleet, estate, self.places.deleted, self._before)
        lost = [worker for worker in found.workers if worker.state is WorkerState.LOST]
        if estate.doubt is None:  # once it was judged why one went, its node may recover
            for worker in lost:
                if worker.pod is not None:
                    self._before.pop(worker.pod.uid, None)
        return self._without_those_left(found, lost)

    def _without_those_left(self, fleet: Fleet, lost: Sequence[Worker]) -> Fleet:
        """Nothing brings them back, and each rollout makes more of them: `shunter why` knows of them for a while, and then of those alone
        whose images are still there.
        """
        now = int(self._now())
        since = {w.id: (now if w.left_at is None else w.left_at) if left_to_cluster(w) else None for w in lost}
        over = {name for name, at in since.items() if at is not None and now - at >= LEFT_S}
        over -= {image.worker for image in fleet.images} if over else set()
        if not over and all(since[w.id] == w.left_at for w in lost):
            return fleet
        workers = [w if (at := since.get(w.id)) == w.left_at else msgspec.structs.replace(w, left_at=at) for w in fleet.workers]
        return msgspec.structs.replace(fleet, workers=tuple(w for w in workers if w.id not in over))

    def recall(self, fleet: Fleet, ended: Iterable[OperationRecord]) -> None:
        """Begin with what the engine before knew: where workers lived, and which pods its operations have deleted."""
        self._before = {w.pod.uid: w.node for w in fleet.workers if w.pod is not None and w.node is not None and w.slot is not None}
        for record in ended:
            if record.left is not None and _has_left(record):
                self.places.note_deleted(record.left.uid)

    def tidy(
        self,
        orders: Beside,
        store: Store,
        fleet: Fleet,
        still_leads: Callable[[], None],
        record: Callable[[str], None],
        samples: Samples = Samples(),  # noqa: B008  (frozen)
    ) -> None:
        """See to what operations have left, beside all else, if it is time. `fleet` is as agents have just reported it, `samples` what was
        measured last.
        """
        if self._clock() - self._tidied < TIDY_S:
            return
        self._tidied = self._clock()
        lived_in = {w.pod.uid: w.state is WorkerState.RUNNING for w in fleet.workers if w.pod is not None and w.slot is not None}
        answering = {node.id for node in fleet.nodes if node.reachable}
        doubted = {w.id for w in fleet.workers if w.state is WorkerState.FROZEN}  # several nodes say that they have it, each in its pod

        def under_way(pod: WorkerPod) -> bool:
            if pod.resident.id in doubted:
                return True
            active = store.active()
            touched = {one.uid for record in active for one in (record.left, record.pod) if one is not None}
            return pod.pod.uid in touched or any(record.id in (pod.operation, pod.started_by) for record in active)

        async def work() -> None:
            for done in await self.places.tidy(under_way, lived_in, answering, still_leads, lambda one: stake(samples, one)):
                record(done)
            self._well = True

        if self._well:
            orders.keep(())
        self._well = False
        orders.begin(_TIDYING, work)


def _has_left(record: OperationRecord) -> bool:
    """Its worker left its pod for good: elsewhere, or into its image."""
    outcome = record.outcome
    into = outcome is not None and outcome.status is Status.FAILED and outcome.image is not None
    return into or any(step is Step.RELEASED for step, _ in record.history)


def fleet_of(lease: LeaseSettings, access: Access) -> str:
    """The label of the pods that a fleet's engines make (see `FLEET`)."""
    return label(f"{lease.namespace or access.namespace}.{lease.name}")


def stake(samples: Samples, worker: WorkerId) -> Stake:
    """What a worker holds, as far as it was measured. What is stale isn't known."""
    own = samples.workers.get(worker, {})
    tokens, sessions = (found.value if isinstance(found := own.get(name), Known) else None for name in ("kvTokens", "sessions"))
    return Stake(tokens=tokens, sessions=sessions)


def _without(fleet: Fleet, gone: frozenset[NodeId]) -> Fleet:
    images = [msgspec.structs.replace(i, nodes=tuple(n for n in i.nodes if n not in gone)) for i in fleet.images]
    return msgspec.structs.replace(
        fleet, nodes=tuple(n for n in fleet.nodes if n.id not in gone), images=tuple(i for i in images if i.nodes or i.archived)
    )


async def housing(settings: Settings) -> Housed | None:
    """What the settings say of workers in pods, opened; None: nothing. Raises as `Housed.open` does."""
    if settings.cluster is None or settings.cluster.pods is None:
        return None
    return await Housed(settings.cluster, settings.cluster.pods).open()
