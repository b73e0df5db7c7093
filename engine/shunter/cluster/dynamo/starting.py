"""A pool's new worker starts from a golden image: its pod is made here, and the controller's own goes, in whose place it comes.

The pool is asked for one more before this, and its controller has made a pod of its own (X), which waits for the GPU of the worker that
leaves. In this order, each step repeatable after a death at any point:

1. X is named as the one that goes where its controller has one too many: the lowest deletion cost that there is but for a chosen pod's.
2. The pod that starts from the golden image (G) is made, with the labels of the controller's own, for the node whose GPU becomes free. Its
   controller adopts it, has one too many then, and removes the first by its own order: no node before a node, pending before running, not
   ready before ready, and then by cost. G has no node when it is made: so X goes, which has none either and costs less, or G itself where X
   has got a GPU meanwhile. Never one that serves.
3. It is looked at until it is restored and ready.
4. One that isn't is deleted, as it is; its controller makes another one of its own then.

So the controller keeps the pool's number at each moment, whoever dies, and nothing but the cluster says how far it has come.
"""

import asyncio
import contextlib
import copy
import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from shunter.cluster.api import Absent, Api, Conflict, Object
from shunter.cluster.dynamo import parse
from shunter.cluster.dynamo.golden import native, orphan, outcome, ready, refuses, restoring, unfit, unfit_pods
from shunter.cluster.dynamo.record import component_of
from shunter.cluster.dynamo.shift import Shift, Shifts, everything
from shunter.cluster.dynamo.values import Golden
from shunter.cluster.dynamo.words import COMPONENT_LABEL, COST, COST_BEFORE, GRAPH_LABEL, LOWEST, SNAPSHOTS, collection, pods
from shunter.cluster.pods import GRACE_S, HASH, SPARE
from shunter.model.errors import Rejected, Retry
from shunter.model.ids import NodeId, OperationId
from shunter.model.pod import FLEET, STARTED_BY, Pod, Started

OWN_S: Final = 5.0
"""For so long it is waited for the pod that the controller makes by itself: it takes it well under a second."""
ADOPTS_S: Final = 10.0
"""After so long a pod that no controller has taken is none of its pool's."""
PLACED_S: Final = 30.0
"""After so long a pod that no node takes isn't waited for: the GPU that was left is free by then, or somebody else has it."""
_LOOK_S: Final = 0.25
_TRIES: Final = 5
"""Of a pod that changes while it is looked at: the scheduler writes into it."""
_REFUSED: Final = ("SH252", "SH255", "SH256")
"""What isn't there (any more), and what a webhook's refusal is, a quota's, or a lack of rights."""
_NAME_MOST: Final = 63


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A start: of a pool's component (`role` of `graph`), for an operation, on the node whose slot is left, from a PodSnapshot."""

    operation: OperationId
    namespace: str
    graph: str
    role: str
    golden: str
    node: NodeId
    fleet: str
    """Of the engines whose operation it is, as a label."""

    @property
    def labels(self) -> dict[str, str]:
        """Of its pod, beside its controller's: who sees to it, also when the operation is over."""
        return {STARTED_BY: self.operation, FLEET: self.fleet}

    @property
    def name(self) -> str:
        """Of its pod: the same for the same, so that whoever takes the operation up finds it again and can't make a second one."""
        mark = hashlib.sha256(f"{self.operation}\0{self.golden}".encode()).hexdigest()[:10]
        base = re.sub(r"[^a-z0-9]+", "-", f"{self.graph}-{self.role}".lower()).strip("-")[: _NAME_MOST - len(mark) - 1].strip("-")
        return f"{base}-{mark}"


class GoldenStarts:
    """Of one API server. Everything is asked of it anew, as in `shift`."""

    def __init__(
        self,
        api: Api,
        shifts: Shifts,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`clock`: seconds that never go back."""
        self._api, self._shifts, self._clock, self._sleep = api, shifts, clock, sleep
        self._since: dict[tuple[str, str], float] = {}
        """By what a pod waits for, and its uid: since when (`clock`) that is seen."""
        self._may: Callable[[], None] = lambda: None

    def under(self, may: Callable[[], None]) -> "GoldenStarts":
        """The same, calling `may` before each write: what it raises keeps it from being made."""
        found = copy.copy(self)
        found._may = may
        return found

    async def begin(self, wanted: Wanted) -> str:
        """Make its pod, once. Why not, in words; empty: it is made, or was before. Raises Retry and Unknown as `Api` does."""
        if await self._found(wanted) is not None:
            return ""
        try:
            return await self._begin(wanted)
        except (Rejected, Retry) as refused:
            if isinstance(refused, Retry) and refused.problem.code not in _REFUSED:
                raise
            return refused.problem.what

    async def look(self, wanted: Wanted) -> Started:
        """How far it has come. Raises as `begin` does."""
        found = await self._found(wanted)
        if found is None:
            return Started(
                state="instead", why="its controller has kept a pod of its own, which had the GPU first, or somebody removed its pod"
            )
        meta = found["metadata"]
        pod = Pod(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])
        began = bool(found["spec"].get("nodeName")) and (found.get("status") or {}).get("phase", "Pending") != "Pending"
        return msgspec.structs.replace(self._unheard(found) or outcome(found), pod=pod, reached=began and not orphan(found))

    def _unheard(self, found: Object) -> Started | None:
        """What can be said of one that no controller has taken, or no node, which is none of the image's faults. None: it has both."""
        uid, name = found["metadata"]["uid"], found["metadata"]["name"]
        if orphan(found):  # as long as it is none of the pool's, the pool has its number without it
            late = self._waited("controller", uid) >= ADOPTS_S
            why = f"no controller has taken its pod {name}" + (f" within {ADOPTS_S:g} s" if late else " yet")
            return Started(state="instead" if late else "coming", why=why)
        if not found["spec"].get("nodeName") and not found["metadata"].get("deletionTimestamp"):
            late = self._waited("node", uid) >= PLACED_S
            return Started(state="instead", why=f"its pod {name} got no node within {PLACED_S:g} s") if late else None
        return None

    def _waited(self, what: str, uid: str) -> float:
        return self._clock() - self._since.setdefault((what, uid), self._clock())

    async def end(self, wanted: Wanted) -> bool:
        """Delete its pod, unless it is ready by now, whatever is said of it: then it stays, which is False. Raises as `begin` does."""
        while (found := await self._found(wanted)) is not None:
            meta = found["metadata"]
            if meta.get("deletionTimestamp"):
                break
            if ready(found):
                return False
            self._may()
            preconditions = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
            options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": GRACE_S, "preconditions": preconditions}
            with contextlib.suppress(Absent, Conflict):  # it has changed meanwhile: it may be ready
                await self._api.delete(f"{pods(wanted.namespace)}/{wanted.name}", options)
        return True

    # -- inside

    async def _found(self, wanted: Wanted) -> Object | None:
        """Its pod; None: there is none. One of its name that isn't ours is none, and none can be made then."""
        try:
            found = await self._api.get(f"{pods(wanted.namespace)}/{wanted.name}")
        except Absent:
            return None
        return found if (found["metadata"].get("labels") or {}).get(STARTED_BY) == wanted.operation else None

    async def _begin(self, wanted: Wanted) -> str:
        golden = await self._golden(wanted)
        graph = await self._shifts.graph(wanted.namespace, wanted.graph)
        component = component_of(graph, wanted.role)
        if (golden.graph, golden.component) != (wanted.graph, component):
            return f"{golden.name} isn't of {component} of {wanted.graph}"
        for _ in range(_TRIES):
            own, why = await self._own(wanted, component)
            if own is None:
                return why
            if why := unfit(golden, graph, parse.pod(own).worker_hash):
                return f"{golden.name} {why}"
            if why := refuses(own, golden.container):
                return why
            with contextlib.suppress(Conflict):
                await self._name(own)
                return await self._make(wanted, golden, own)
        return f"the controller's own pod of {component} changes each time that it is to be named as the one that goes"

    async def _make(self, wanted: Wanted, golden: Golden, own: Object) -> str:
        self._may()
        with contextlib.suppress(Conflict):  # it is there, or one of its name is: it is looked at
            await self._api.create(pods(wanted.namespace), restoring(own, golden, wanted.node, wanted.name, wanted.labels))
        return "" if await self._found(wanted) is not None else f"there is no pod {wanted.name} of ours after it was made"

    async def _golden(self, wanted: Wanted) -> Golden:
        return parse.golden(await self._api.get(f"{collection('v1alpha1', SNAPSHOTS, wanted.namespace)}/{wanted.golden}"))

    async def _own(self, wanted: Wanted, component: str) -> tuple[Object | None, str]:
        """The pod that the controller has made for the one more that its pool is asked for, and that waits for a node; or why there is none
        in whose place another could come.
        """
        until = self._clock() + OWN_S
        shift = Shift(operation="", namespace=wanted.namespace, graph=wanted.graph, takes=component)
        while True:
            (place,) = (await self._shifts.see(shift)).places
            query = {"labelSelector": f"{GRAPH_LABEL}={wanted.graph},{COMPONENT_LABEL}={component}"}
            found = [one for one in await everything(self._api, pods(wanted.namespace), query) if parse.controlled(one)]
            there = [(one, read) for one in found if not (read := parse.pod(one)).leaving]
            if why := unfit_pods([read for _, read in there if not read.moved]):
                return None, why
            if len({(one["metadata"].get("labels") or {}).get(HASH) for one, _ in there}) > 1:
                return None, f"the pods of {component} aren't all of one revision"
            # one that another operation starts so costs more than the controller's own, once that is named
            waiting = [one for one, read in there if not read.assigned and not _started(one)]
            if len(there) == place.replicas and len(waiting) == 1 and native(waiting[0]):
                return waiting[0], ""
            if len(there) >= place.replicas or self._clock() >= until:
                return None, _no_place(component, len(there), len(waiting), place.replicas)
            await self._sleep(_LOOK_S)

    async def _name(self, own: Object) -> None:
        """The controller's own pod goes before all that are as far as it is; if none goes, it is as good as any other after a while (see
        `places`). Raises Conflict where it has changed since it was read: it may have a node.
        """
        meta = own["metadata"]
        there = meta.get("annotations") or {}
        if SPARE in there or COST_BEFORE in there:
            return
        self._may()
        version = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        body = {"metadata": {**version, "annotations": {COST: str(LOWEST + 1), SPARE: there.get(COST, "")}}}
        await self._api.merge(f"{pods(meta['namespace'])}/{meta['name']}", body)


def _started(found: Object) -> bool:
    return STARTED_BY in (found["metadata"].get("labels") or {})


def _no_place(component: str, there: int, waiting: int, replicas: int) -> str:
    if there < replicas:
        return f"the controller of {component} has made no pod of its own within {OWN_S:g} s, in whose place another could come"
    if there > replicas:
        return f"{component} has {there} pods where {replicas} are asked for: which of them goes can't be said"
    if waiting == 0:
        return f"the controller of {component} has a pod of its own that got a GPU first"
    if waiting == 1:
        return f"the pod of {component} that waits for a node isn't one that its controller has made"
    return f"{waiting} pods of {component} wait for a node: which of them goes can't be said"
