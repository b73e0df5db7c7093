"""Pods for workers to come to, made and removed in the API server: see `act.places.Places`, which this is.

A pod is found again by its name, which follows from the operation and the node; one is deleted by its uid, so that no other of its name is.
A pod that was made for an operation and in which no worker runs is marked so, and goes when the operation is over (`tidy`).
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from shunter.cluster.api import Absent, Api, Conflict, Object
from shunter.cluster.awaiting import LOOK_S, Awaiting, Patience, not_running
from shunter.cluster.dynamo.abandoned import Abandoned
from shunter.cluster.dynamo.words import COST, COST_BEFORE
from shunter.cluster.estate import Estate
from shunter.cluster.operation import collection, label, stamp
from shunter.cluster.pods import GRACE_S, HASH, JOINS, SPARE, Being, WorkerPod, worker_pod
from shunter.cluster.spares import NAMED, Goes, Stake, goes, pending
from shunter.cluster.template import IDLE, Wanted, placeholder, pod_name
from shunter.model.errors import Problem, Rejected, Retry, Unknown
from shunter.model.ids import NodeId, OperationId, SlotId, WorkerId, node_of
from shunter.model.operation import OperationRecord
from shunter.model.pod import FLEET, OPERATION, SERVING, STATE, Pod, Resident

TEMPLATE: Final = "shunter.dev/pod-template"
"""Annotation of a park's WorkerOperation: the pod that its worker left."""
_REMEMBERED: Final = 10_000
"""Of pods that were deleted, the latest."""
JOIN_S: Final = 600.0
"""For so long a pod whose worker serves isn't given to its controller while that would end sessions of another one."""
SPARE_S: Final = 60.0
"""After so long a controller has ended the pod that was to go, or it had none too many."""
_TRIES: Final = 4
"""Of a change of what others change as well."""
_TEMPLATE_MOST: Final = 200_000
"""Bytes. An object's annotations may take 256 KiB in all."""


class Pods:
    """Of the workers' namespace. Belongs into the event loop in which it is used; `api` with a short timeout."""

    def __init__(
        self,
        api: Api,
        estate: Callable[[], Estate],
        fleet: str,
        operations: str,
        *,
        idle: tuple[str, ...] = IDLE,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`fleet` is the label of what it makes, `operations` the namespace of the operations. `idle` is what a container runs until its
        worker comes. `clock`: seconds that never go back; `now`: since the epoch.
        """
        self._api, self._estate, self._fleet, self._operations, self._idle = api, estate, fleet, operations, idle
        self._patience, self._clock, self._sleep, self._now = patience or Patience(), clock, sleep, now
        self.deleted: dict[str, None] = {}
        """Uids of pods that this engine deleted, or was about to."""
        self._since: dict[tuple[str, str], float] = {}
        """By what is waited for with a pod, and its uid: since when (`clock`)."""
        self._abandoned = Abandoned(api, self.note_deleted, clock)
        self._awaiting = Awaiting(self._ask, lambda uid: self._estate().pods.get(uid), self._patience, clock, sleep)

    async def prepare(
        self,
        record: OperationRecord,
        slot: SlotId,
        left: Pod | None,
        who: Resident,
        may_go_on: Callable[[], None],
    ) -> Pod | None:
        """See `Places`."""
        node, worker = node_of(slot), record.planned.worker
        name, namespace = pod_name(record.id, worker, node), left.namespace if left is not None else self._estate().namespace
        for _ in range(3):
            found = await self._get(namespace, name)
            if found is None:
                source = await self._source(record, left, who)
                if source is None:
                    return None
                may_go_on()
                wanted = Wanted(operation=record.id, worker=worker, node=node, engine=who.engine, idle=self._idle)
                found = await self._make(placeholder(source, wanted))
            if found is not None:
                self._is_ours(found, record.id)
                if _over(found):
                    may_go_on()
                    await self._delete(namespace, name, found["metadata"]["uid"])
                    await self._until_gone(namespace, name, found["metadata"]["uid"], may_go_on)
                else:
                    return await self._awaiting.until_it_runs(_known(found), node, may_go_on)
        raise Retry(not_running(name, node, "it ends as soon as it is made"))

    def strange(self, pod: Pod, node: NodeId) -> str:
        """See `Places`. By its uid: a name alone is none."""
        known = self._estate().pods.get(pod.uid)
        if known is None:
            return "the API server has no such pod of a worker"
        return f"that is on {known.node}" if known.node != node else ""

    async def keep(self, record: OperationRecord, pod: Pod) -> None:
        """See `Places`."""
        with contextlib.suppress(Absent, Conflict):  # it was deleted meanwhile, by somebody who may
            await self._patch(pod, {"metadata": {"uid": pod.uid, "labels": {STATE: "serving"}}})
            await self._say_ready(pod, shown=True)

    async def show(self, pod: Pod, *, shown: bool) -> None:
        """See `Places`."""
        known = self._estate().pods.get(pod.uid)
        if known is not None and known.gated:
            with contextlib.suppress(Absent, Conflict):
                await self._say_ready(pod, shown=shown)

    async def remember(self, record: OperationRecord, pod: Pod) -> None:
        """See `Places`."""
        found = await self._get(pod.namespace, pod.name)
        if found is None or found["metadata"].get("uid") != pod.uid:
            raise Rejected(_no_template(record.planned.worker, f"its pod {pod} isn't there any more"))
        kept = {"metadata": {k: found["metadata"].get(k) for k in ("name", "namespace", "labels", "annotations")}, "spec": found["spec"]}
        text = msgspec.json.encode(kept, order="sorted").decode()
        if len(text) > _TEMPLATE_MOST:
            raise Rejected(_no_template(record.planned.worker, f"its pod's specification takes {len(text):,} bytes, too many to be kept"))
        where = f"{collection(self._operations)}/{record.id}"
        for _ in range(_TRIES):
            one = await self._api.get(where)
            meta = one["metadata"]
            annotations = {**(meta.get("annotations") or {}), TEMPLATE: text}
            with contextlib.suppress(Conflict):
                await self._api.replace(where, {**one, "metadata": {**meta, "annotations": annotations}})
                return
        raise Retry(_restless(where))

    async def retire(self, pod: Pod) -> None:
        """See `Places`."""
        await self._delete(pod.namespace, pod.name, pod.uid)

    async def withdraw(self, record: OperationRecord) -> None:
        """See `Places`."""
        query = {"labelSelector": f"{OPERATION}={record.id},{STATE}=placeholder"}
        for one in (await self._api.get(self._path(self._estate().namespace), query)).get("items") or ():
            if self._made(one["metadata"]["labels"]):
                await self._delete_as_it_is(one)

    # -- when operations are over

    async def tidy(
        self,
        under_way: Callable[[WorkerPod], bool],
        lived_in: Mapping[str, bool],
        answering: Collection[NodeId],
        still_leads: Callable[[], None],
        stake: Callable[[WorkerId], Stake] = lambda _worker: Stake(),
    ) -> list[str]:
        """Remove what operations that are over have left, and bring what serves to its controller. What was done, in words.

        `under_way` says whether an operation that isn't over made the pod, whatever for, or moves a worker out of it. `lived_in` are the
        uids of pods in which agents report a worker, and whether the router is to see it; `answering` are the nodes whose agents said so
        lately: of what others have nothing is known. `stake` is what a worker holds: where another pod goes when one joins, it is the one
        with the least. `still_leads` raises once we don't: then there may be operations that we know nothing of. Raises what it does, Retry
        and Unknown.
        """
        done: list[str] = []
        joined: set[tuple[str, str]] = set()
        """Controllers to which a pod was given just now: their pods aren't seen as they are any more."""
        pods = self._estate().pods
        self._abandoned.begin(lambda uid: uid in pods)
        self._since = {key: at for key, at in self._since.items() if key[1] in pods and _still(key[0], pods[key[1]])}
        for pod in tuple(pods.values()):
            if pod.spare is not None:
                await self._spared(pod, still_leads)
            if pod.started_by and self._made(pod.labels):
                node = self._estate().nodes.get(pod.node) if pod.node is not None else None
                heard = node is not None and node.ready
                done += await self._abandoned.see_to(pod, still_leads, heard=heard) if not under_way(pod) else ()
                continue
            if not self._made(pod.labels) or not (pod.placeholder or pod.joins or pod.hidden) or under_way(pod):
                continue
            if pod.placeholder and lived_in.get(pod.pod.uid) and pod.being is Being.RUNNING:
                done += await self._mark(pod, still_leads)
            elif pod.placeholder:
                empty = pod.being in (Being.COMING, Being.ENDED) or (pod.being is Being.RUNNING and pod.node in answering)
                done += await self._remove(pod, still_leads) if empty and pod.pod.uid not in lived_in else ()
            elif pod.being is Being.RUNNING:
                found = goes(pod, pods.values(), under_way, stake) if pod.joins and pod.ready else None
                owner = (pod.pod.namespace, pod.joins.get(HASH, ""))
                waits = bool(pod.joins) and (owner in joined or pending(pod, pods.values(), self._chosen))
                said = await self._settle(pod, found, still_leads, shown=lived_in.get(pod.pod.uid, False), waits=waits)
                if said:
                    joined.add(owner)
                done += said
        return done

    async def _remove(self, pod: WorkerPod, still_leads: Callable[[], None]) -> list[str]:
        """By what the server says now: it may have been marked as serving right before its operation ended, which our copy needn't show. If
        we lead after that, no other engine had made it by then.
        """
        found = await self._still_waits(pod.pod)
        if found is None:
            return []
        still_leads()
        await self._delete_as_it_is(found)
        return [f"deleted the pod {pod.pod}, to which no worker came by {pod.operation}"]

    async def _still_waits(self, pod: Pod) -> Object | None:
        """The pod as the server has it now. None: it isn't there, or a worker has come to it."""
        found = await self._get(pod.namespace, pod.name)
        if found is None or found["metadata"].get("uid") != pod.uid:
            return None
        return found if (found["metadata"].get("labels") or {}).get(STATE) == "placeholder" else None

    async def _mark(self, pod: WorkerPod, still_leads: Callable[[], None]) -> list[str]:
        """A worker serves in it, and whoever brought it there didn't come to say so: an engine that died with it in memory only."""
        if await self._still_waits(pod.pod) is None:
            return []
        still_leads()
        try:
            await self._patch(pod.pod, {"metadata": {"labels": {STATE: "serving"}}})
        except (Absent, Conflict):
            return []
        return [f"marked the pod {pod.pod} as one that serves: a worker runs in it, and no operation is under way"]

    async def _settle(self, pod: WorkerPod, other: Goes | None, still_leads: Callable[[], None], *, shown: bool, waits: bool) -> list[str]:
        """Its controller counts it from now on, once it is ready: before that, it would be the first of them to go. Nor before that costs
        no sessions of the `other` that goes for it, which may have got some in the place of the worker that moved; in the end it does. Nor
        while it `waits` for another that joins the same controller: each is to find the one that goes for it.
        """
        if shown and pod.hidden:
            still_leads()
            with contextlib.suppress(Absent, Conflict):
                await self._say_ready(pod.pod, shown=True)
        if not pod.ready or not pod.joins or waits:
            return []
        told = f"gave the pod {pod.pod} to its controller"
        if other is not None and other.costs:
            if ("joins", pod.pod.uid) not in self._since:
                self._since["joins", pod.pod.uid] = self._clock()
                return [f"the pod {pod.pod} isn't given to its controller yet: that would end {other.pod.pod}, and sessions with it"]
            if self._clock() - self._since["joins", pod.pod.uid] < JOIN_S:
                return []
            told += f", which ends {other.pod.pod}: for {JOIN_S:.0f} s nobody in its pool was without sessions"
        if other is not None and not await self._named(other.pod, still_leads):
            return []
        still_leads()
        meta = {"uid": pod.pod.uid, "labels": dict(pod.joins), "annotations": {JOINS: None, COST: "1"}}
        try:
            await self._patch(pod.pod, {"metadata": meta})
        except (Absent, Conflict):
            return []
        return [told]

    def _chosen(self, pod: WorkerPod) -> bool:
        """A shift has chosen it as the one that goes, and it hasn't had the time for that yet."""
        return pod.retired and self._clock() - self._since.setdefault(("chosen", pod.pod.uid), self._clock()) < SPARE_S

    async def _named(self, pod: WorkerPod, still_leads: Callable[[], None]) -> bool:
        """It goes before all that are as ready as it is. False: it has gone already, or goes for a shift that has just chosen it."""
        before = pod.spare if pod.spare is not None else str(pod.cost or "")
        if pod.retired:  # for long: it goes first as it is
            return True
        return await self._cost(pod, {COST: str(NAMED), SPARE: before}, still_leads)

    async def _spared(self, pod: WorkerPod, still_leads: Callable[[], None]) -> None:
        """Its controller has ended nobody: from now on it is as good as any other again. One that a shift has chosen meanwhile is the
        shift's, which gives it back as it has found it.
        """
        since = self._since.setdefault(("goes", pod.pod.uid), self._clock())
        if self._clock() - since >= SPARE_S and pod.being is not Being.ENDING:
            await self._cost(pod, {COST: pod.spare or None, SPARE: None}, still_leads)

    async def _cost(self, pod: WorkerPod, annotations: dict[str, str | None], still_leads: Callable[[], None]) -> bool:
        """Change them at the version that is there. False: it isn't there any more, or a shift has chosen it, which our copy needn't show.
        Raises Retry where others change it at each try.
        """
        path = f"{self._path(pod.pod.namespace)}/{pod.pod.name}"
        for tries_left in reversed(range(_TRIES)):
            found = await self._get(pod.pod.namespace, pod.pod.name)
            meta = found["metadata"] if found is not None else {}
            if meta.get("uid") != pod.pod.uid or COST_BEFORE in (meta.get("annotations") or {}):
                return False
            still_leads()
            version = {"uid": pod.pod.uid, "resourceVersion": meta["resourceVersion"]}
            try:
                await self._api.merge(path, {"metadata": {**version, "annotations": annotations}})
            except (Rejected, Conflict, Absent) as error:  # it is gone, or another has its name
                if not tries_left:
                    raise Retry(error.problem) from error
            else:
                return True
        raise AssertionError

    # -- one pod

    async def _source(self, record: OperationRecord, left: Pod | None, who: Resident) -> Object | None:
        """What the new pod is to be like: the one that is left, one that this operation made before, what a park kept, or another of the
        worker's pool. None: nothing says that it ever lived in one. Raises Rejected SH561.
        """
        if left is not None:
            found = await self._get(left.namespace, left.name)
            if found is not None and found["metadata"].get("uid") == left.uid:
                return found
        query = {"labelSelector": f"{OPERATION}={record.id}"}
        namespace = left.namespace if left is not None else self._estate().namespace
        for made in (await self._api.get(self._path(namespace), query)).get("items") or ():
            if self._made(made["metadata"]["labels"]):
                return dict(made)
        kept = await self._kept(record.planned.worker)
        if kept is not None:
            return kept
        for one in self._siblings(who):
            found = await self._get(one.pod.namespace, one.pod.name)
            if found is not None and worker_pod(found) is not None:
                return found
        if left is None:
            return None
        raise Rejected(_no_template(record.planned.worker, f"its pod {left} isn't there any more, and none of its pool is"))

    def _siblings(self, who: Resident) -> list[WorkerPod]:
        """Pods of its pool, the worker's own first."""
        pool = [p for p in self._estate().pods.values() if (p.resident.role, p.resident.graph) == (who.role, who.graph) and not p.held_by]
        return sorted(pool, key=lambda p: (p.resident.id != who.id, p.being is not Being.RUNNING, p.pod.name))[:3]

    async def _kept(self, worker: WorkerId) -> Object | None:
        """What the newest park of the worker kept."""
        found: list[tuple[str, Object]] = []
        listed = await self._api.get(collection(self._operations), {"labelSelector": f"shunter.dev/worker={label(worker)}"})
        for one in listed.get("items") or ():
            text = (one["metadata"].get("annotations") or {}).get(TEMPLATE)
            if text and one["spec"].get("worker") == worker:
                with contextlib.suppress(msgspec.MsgspecError):
                    found.append((str(one["spec"].get("createdAt", "")), msgspec.json.decode(text, type=dict[str, Any])))
        return max(found, key=lambda pair: pair[0])[1] if found else None

    async def _make(self, body: Object) -> Object | None:
        """None: something of its name is there, or may be: look."""
        body["metadata"]["labels"][FLEET] = self._fleet
        try:
            return await self._api.create(self._path(body["metadata"]["namespace"]), body)
        except (Conflict, Unknown):
            return None

    async def _until_gone(self, namespace: str, name: str, uid: str, may_go_on: Callable[[], None]) -> None:
        until = self._clock() + self._patience.gone
        while (found := await self._get(namespace, name)) is not None and found["metadata"].get("uid") == uid:
            if self._clock() >= until:
                raise Retry(not_running(name, NodeId(""), "the one before it, which was deleted, isn't gone"))
            may_go_on()
            await self._sleep(LOOK_S)

    async def _ask(self, pod: Pod) -> WorkerPod | None:
        found = await self._get(pod.namespace, pod.name)
        return worker_pod(found) if found is not None and found["metadata"].get("uid") == pod.uid else None

    def _made(self, labels: Mapping[str, str]) -> bool:
        return labels.get(FLEET, "").partition(".")[0] == self._fleet.partition(".")[0]

    def _is_ours(self, found: Object, operation: OperationId) -> None:
        labels = found["metadata"].get("labels") or {}
        if labels.get(OPERATION) != operation or not self._made(labels):
            name = found["metadata"]["name"]
            raise Rejected(
                Problem(
                    code="SH563",
                    what=f"there is a pod {name} already, which this engine didn't make for {operation}",
                    remedy="Find out whose it is, and delete it",
                    subject=name,
                )
            )

    async def _get(self, namespace: str, name: str) -> Object | None:
        try:
            return await self._api.get(f"{self._path(namespace)}/{name}")
        except Absent:
            return None

    async def _delete(self, namespace: str, name: str, uid: str) -> None:
        """Nothing, where it is gone, going, or another has its name."""
        self.note_deleted(uid)
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": GRACE_S, "preconditions": {"uid": uid}}
        with contextlib.suppress(Absent, Conflict):
            await self._api.delete(f"{self._path(namespace)}/{name}", options)

    async def _delete_as_it_is(self, found: Object) -> None:
        """Nothing, where it has changed since: a worker may have come."""
        meta = found["metadata"]
        self.note_deleted(meta["uid"])
        preconditions = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": GRACE_S, "preconditions": preconditions}
        with contextlib.suppress(Absent, Conflict):
            await self._api.delete(f"{self._path(meta['namespace'])}/{meta['name']}", options)

    def note_deleted(self, uid: str) -> None:
        """Keep in mind that the engine has deleted it, whoever of its processes did."""
        self.deleted[uid] = None
        if len(self.deleted) > _REMEMBERED:
            del self.deleted[next(iter(self.deleted))]

    async def _patch(self, pod: Pod, body: Object) -> None:
        """Of this very pod."""
        await self._merge(pod, f"{self._path(pod.namespace)}/{pod.name}", body, strategic=False)

    async def _merge(self, pod: Pod, path: str, body: Object, *, strategic: bool) -> None:
        """Raises Conflict where another has its name: the server calls that invalid, as a uid never changes, or a conflict. Raises Retry
        where this one was changed by others each time that the server was about to.
        """
        try:
            await self._api.merge(path, {"metadata": {"uid": pod.uid}} | body, strategic=strategic)
        except (Rejected, Conflict) as error:
            found = await self._get(pod.namespace, pod.name)
            if found is None or found["metadata"].get("uid") != pod.uid:
                raise Conflict(error.problem) from error
            if isinstance(error, Conflict):
                raise Retry(error.problem) from error
            raise

    async def _say_ready(self, pod: Pod, *, shown: bool) -> None:
        condition = {
            "type": SERVING,
            "status": "True" if shown else "False",
            "reason": "Serving" if shown else "Fenced",
            "lastTransitionTime": stamp(self._now())[:19] + "Z",
        }
        body = {"status": {"conditions": [condition]}}
        await self._merge(pod, f"{self._path(pod.namespace)}/{pod.name}/status", body, strategic=True)

    @staticmethod
    def _path(namespace: str) -> str:
        return f"/api/v1/namespaces/{namespace}/pods"


def _still(what: str, pod: WorkerPod) -> bool:
    """What was waited for is: else it begins anew the next time."""
    return {"goes": pod.spare is not None, "chosen": pod.retired}.get(what, True)


def _known(found: Object) -> WorkerPod:
    pod = worker_pod(found)
    if pod is None:
        raise Rejected(not_running(str(found["metadata"]["name"]), NodeId(""), "it lost the labels that say who is to live in it"))
    return pod


def _over(found: Object) -> bool:
    return bool(found["metadata"].get("deletionTimestamp")) or (found.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _no_template(worker: WorkerId, why: str) -> Problem:
    remedy = "Keep a pod of its pool running, or start the worker anew"
    return Problem(code="SH561", what=f"it isn't known what a pod for the worker has to be like: {why}", remedy=remedy, subject=worker)


def _restless(where: str) -> Problem:
    what = "an operation's resource changes each time that something is to be noted on it"
    return Problem(code="SH552", what=what, remedy="Find out who writes it: operations are the engine's", subject=where)
