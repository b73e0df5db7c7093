"""Hardware changes sides in a graph: one component gets a replica more, another one less, and the pod that goes is the chosen one.

In this order, each step repeatable after a death at any point:

1. Nothing is touched unless the graph is settled, the chosen pod would be the one that goes, and the server takes both writes in a dry run,
   its webhooks included.
2. The chosen pod's deletion cost becomes the lowest there is.
3. The component that gets one is written first: a pod too many waits, a pod too few is gone. Where both stand in one resource they are one
   write.
4. The component that gives one is written. Refused, the first write is taken back.
5. The chosen pod goes.

Replicas are only ever written into the resource of record, never below it, at the version that was read, together with a mark that says so
(see `record`).
"""

import asyncio
import contextlib
import copy
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from shunter.cluster.api import Absent, Api, Conflict, Object
from shunter.cluster.dynamo.drift import moving, unsettled
from shunter.cluster.dynamo.parse import controlled
from shunter.cluster.dynamo.parse import graph as read_graph
from shunter.cluster.dynamo.parse import pod as read_pod
from shunter.cluster.dynamo.record import MANAGER, Mark, Place, body, changeable, git_has_not, place
from shunter.cluster.dynamo.values import Component, Graph, Pod
from shunter.cluster.dynamo.victim import certain, newest
from shunter.cluster.dynamo.words import (
    ADAPTERS,
    COMPONENT_LABEL,
    COST,
    COST_BEFORE,
    GRAPH_LABEL,
    GRAPHS,
    LOWEST,
    UNDONE,
    VERSIONS,
    collection,
    pods,
)
from shunter.model.errors import Problem, Rejected, Retry, ShunterError

_TRIES: Final = 5
"""Of a write that finds another version: the operator writes into the same resources."""
GOES_S: Final = 10.0
"""For so long it is waited for the chosen pod to go: its operator and its controller are to be quicker by far."""
_LOOK_S: Final = 0.25
_REFUSED: Final = ("SH255", "SH256")
"""What a webhook's refusal is: forbidden, or invalid."""
_COST_MANAGER: Final = "shunter-deletion-cost"


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """One change of sides. `operation` names it: it is done once. `gives` is the component that has one less, with the pod that goes;
    `takes` the one that has one more. Empty: the other alone.
    """

    operation: str
    namespace: str
    graph: str
    gives: str = ""
    pod: str = ""
    uid: str = ""
    takes: str = ""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of a shift: where both components' replicas stand, in the order in which they are written."""

    shift: Shift
    places: tuple[Place, ...]

    def mark(self, one: Place) -> Mark | None:
        """What the shift has changed there."""
        return one.mark(self.shift.operation)

    @property
    def begun(self) -> bool:
        """Something of it was written."""
        return any(self.mark(one) is not None for one in self.places)

    @property
    def left(self) -> tuple[Place, ...]:
        """What is still to be written."""
        return tuple(one for one in self.places if self.mark(one) is None)


class Shifts:
    """Of one API server. Everything is asked of it anew: what a copy says may be a moment old, and a moment is what this is about."""

    def __init__(
        self,
        api: Api,
        version: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`version` of Dynamo's API; None: it is looked up. `clock`: seconds that never go back."""
        self._api, self._version, self._clock, self._sleep = api, version, clock, sleep
        self._may: Callable[[], None] = lambda: None

    def under(self, may: Callable[[], None]) -> "Shifts":
        """The same, calling `may` before each write: what it raises keeps it from being made."""
        found = copy.copy(self)
        found._may = may
        return found

    async def version(self) -> str:
        """The version of Dynamo's API that is spoken here. Raises Absent SH252 where there is none, Retry as `Api.get` does."""
        if self._version is None:
            self._version = await served(self._api)
        return self._version

    async def check(self, shift: Shift, *, begins: bool = True) -> None:
        """Whether it could be made now, without doing anything: raises what `carry` would. It can't promise what comes between. `begins`:
        nothing of what it belongs to was done, so that the graph has to be as its operator wants it.
        """
        seen = await self.see(shift)
        await self._allowed(seen, unsettled if begins else moving)
        for writes in _together(seen.left):
            await self._write(seen, writes, dry_run=True)

    async def carry(self, shift: Shift) -> None:
        """Make it, or what is left of it, and see the chosen pod go.

        Raises Rejected or Retry when nothing of it is left in force: SH272 (such replicas aren't changed), SH273 (Git has them), SH274
        (another pod would go), SH275 (the server's webhooks refuse it, in their words; it was taken back before), SH276 (another pod
        went), SH277 (the chosen pod didn't go in time), SH278 (the graph isn't settled). Unknown SH251 when a write got no answer: then
        `carry` or `undo` finds out.
        """
        seen = await self.see(shift)
        if not seen.begun:
            await self.check(shift, begins=False)
        if shift.uid and seen.left:
            await self._cost(shift.namespace, shift.pod, shift.uid, LOWEST)
        try:
            await self._write_left(shift)
            if shift.uid:
                await self._see_it_go(shift)
        except (Rejected, Retry):
            await self.undo(shift)
            raise

    async def undo(self, shift: Shift, *, begun: bool = True) -> None:
        """Take back what of it was written, the component that gave first. Idempotent; once it was undone it isn't made any more.

        Where nothing was written that is marked too: a write of whoever was cut off, or has died, may be on its way still, and is refused
        for the version at which it was made. Not where nobody has `begun` it, for certain. Replicas that somebody else changed meanwhile
        stay as they are. Raises as `carry` does.
        """
        for _ in range(_TRIES):
            seen = await self.see(shift)
            left = [one for one in reversed(seen.places) if (begun if (mark := seen.mark(one)) is None else not mark.undone)]
            try:
                for writes in _together(left):
                    await self._write_back(seen, writes)
            except Conflict:
                continue
            break
        else:
            raise Retry(_restless(f"{shift.namespace}/{shift.graph}"))
        if shift.uid:
            await self._cost_back(shift)

    async def graph(self, namespace: str, name: str) -> Graph:
        """A graph as it is now. Raises Absent SH252 where there is none, Retry as `Api.get` does, Rejected SH270."""
        return read_graph(await self._api.get(f"{collection(await self.version(), GRAPHS, namespace)}/{name}"))

    async def lacks(self, namespace: str, graph: str, component: str) -> bool:
        """A component has fewer pods that are ready than it is kept at: a worker that comes is one that was asked for already, and the pod
        that was to start for it is the one too many then. Raises as `see` does.
        """
        (one,) = (await self.see(Shift(operation="", namespace=namespace, graph=graph, takes=component))).places
        there = await self.pods(namespace, graph, component)
        return sum(pod.ready and not pod.leaving for pod in there) < one.replicas

    async def see(self, shift: Shift) -> Seen:
        """What there is of it now. Raises Absent, Retry, Rejected SH270 and SH272."""
        version = await self.version()
        found = await self._api.get(f"{collection(version, GRAPHS, shift.namespace)}/{shift.graph}")
        adapters = await everything(self._api, collection(version, ADAPTERS, shift.namespace))
        names = [name for name in (shift.takes, shift.gives) if name]
        return Seen(shift=shift, places=tuple(place(found, adapters, name) for name in names))

    async def pods(self, namespace: str, graph: str, component: str) -> tuple[Pod, ...]:
        """The pods of a component that a controller counts: a placeholder that waits for its worker isn't one of them."""
        query = {"labelSelector": f"{GRAPH_LABEL}={graph},{COMPONENT_LABEL}={component}"}
        return tuple(read_pod(one) for one in await everything(self._api, pods(namespace), query) if controlled(one))

    # -- inside

    async def _allowed(self, seen: Seen, kept: Callable[[Graph], str]) -> None:
        shift = seen.shift
        if why := kept(seen.places[0].graph):
            remedy = "Nothing to do: it is planned again once the graph is settled"
            raise Rejected(Problem(code="SH278", what=why, remedy=remedy, subject=f"{shift.namespace}/{shift.graph}"))
        for one in seen.places:
            changeable(one)
            if one.plural == ADAPTERS and one.replicas != one.component.replicas:
                what = f"{one.name} asks for {one.replicas} of {one.component.name}, and the graph still has {one.component.replicas}"
                remedy = "Nothing to do: it is planned again once the operator has carried that over"
                raise Rejected(Problem(code="SH278", what=what, remedy=remedy, subject=one.called))
        if shift.gives:
            certain(await self.pods(shift.namespace, shift.graph, shift.gives), shift.uid, seen.places[-1].replicas)

    async def _write_left(self, shift: Shift) -> None:
        for _ in range(_TRIES):
            seen = await self.see(shift)
            if any(mark.undone for one in seen.places if (mark := seen.mark(one)) is not None):
                raise Rejected(
                    Problem(code="SH275", what="it was taken back before", remedy="Nothing to do: it is planned anew", subject=shift.graph)
                )
            if not seen.left:
                return
            writes = _together(seen.left)[0]
            if any(one.component.name == shift.gives for one in writes):  # what was so when it was checked may have changed
                certain(await self.pods(shift.namespace, shift.graph, shift.gives), shift.uid, seen.places[-1].replicas)
            with contextlib.suppress(Conflict):
                await self._write(seen, writes)
        raise Retry(_restless(f"{shift.namespace}/{shift.graph}"))

    async def _write(self, seen: Seen, writes: Sequence[Place], *, dry_run: bool = False) -> None:
        changes: list[tuple[Component, int | None, Mark]] = []
        for one in writes:
            git_has_not(one)
            giving = one.component.name == seen.shift.gives
            after = one.replicas + (-1 if giving else 1)
            mark = Mark(
                operation=seen.shift.operation,
                component=one.component.name,
                before=one.replicas,
                after=after,
                pod=seen.shift.pod if giving else "",
                uid=seen.shift.uid if giving else "",
            )
            changes.append((one.component, after, mark))
        await self._apply(writes[0], changes, dry_run=dry_run)

    async def _write_back(self, seen: Seen, writes: Sequence[Place]) -> None:
        shift = seen.shift
        changes: list[tuple[Component, int | None, Mark]] = []
        for one in writes:
            mark = seen.mark(one)
            if mark is None:
                number = one.replicas
                never = Mark(operation=shift.operation, component=one.component.name, before=number, after=number, undone=True)
                changes.append((one.component, None, never))
                continue
            stays = one.replicas != mark.after
            if mark.after > mark.before and not stays:
                await self._spare_the_others(shift)
            changes.append((one.component, one.replicas if stays else mark.before, msgspec.structs.replace(mark, undone=True)))
        try:
            await self._apply(writes[0], changes)
        except Rejected:  # who takes not even a mark of ours takes no write that is late
            if any(number is not None for _, number, _ in changes):
                raise

    async def _apply(self, one: Place, changes: Sequence[tuple[Component, int | None, Mark]], *, dry_run: bool = False) -> None:
        self._may()
        try:
            await self._api.apply(one.path, body(one, changes), MANAGER, dry_run=dry_run)
        except (Rejected, Retry) as refused:
            if refused.problem.code not in _REFUSED:
                raise
            raise Rejected(_webhook(refused.problem, one)) from refused

    async def _see_it_go(self, shift: Shift) -> None:
        until = self._clock() + GOES_S
        while True:
            there = await self.pods(shift.namespace, shift.graph, shift.gives)
            if not any(one.uid == shift.uid and not one.leaving for one in there):
                return
            mark = await self._given(shift)
            if mark is not None and await self._other_went(shift, mark):
                what = f"another pod of {shift.gives} went than {shift.pod}; the replicas are put back, so that a new one is made"
                raise Rejected(Problem(code="SH276", what=what, remedy="Look at the pods' events: who removed which", subject=shift.graph))
            if self._clock() >= until:
                what = f"{shift.pod} wasn't removed within {GOES_S:g} s of {shift.gives} having a replica less"
                remedy = "Look whether Dynamo's operator and the cluster's controllers run; the replicas are put back"
                raise Retry(Problem(code="SH277", what=what, remedy=remedy, subject=shift.graph))
            await self._sleep(_LOOK_S)

    async def _given(self, shift: Shift) -> Mark | None:
        seen = await self.see(shift)
        return next((seen.mark(one) for one in seen.places if one.component.name == shift.gives), None)

    async def _other_went(self, shift: Shift, mark: Mark) -> bool:
        """As many pods are left as are asked for now, and the chosen one is among them."""
        if not mark.uid:
            return False
        there = [one for one in await self.pods(shift.namespace, shift.graph, mark.component) if not one.leaving]
        return len(there) <= mark.after and any(one.uid == mark.uid for one in there)

    async def _spare_the_others(self, shift: Shift) -> None:
        """What goes when the component that got one has it taken away again is what came last."""
        last = newest(await self.pods(shift.namespace, shift.graph, shift.takes))
        if last is not None:
            with contextlib.suppress(Absent, Conflict):  # it is gone, which is what was wanted
                await self._cost(shift.namespace, last.name, last.uid, LOWEST)

    async def _cost(self, namespace: str, name: str, uid: str, cost: int) -> None:
        def chosen(there: Mapping[str, str]) -> dict[str, str]:
            return {COST: str(cost), COST_BEFORE: there.get(COST_BEFORE, there.get(COST, ""))}

        await self._annotate(namespace, name, uid, chosen)

    async def _cost_back(self, shift: Shift) -> None:
        """Also where it is as it was: a write that is on its way still is refused then (see `undo`)."""
        ours = True

        def spared(there: Mapping[str, str]) -> dict[str, str] | None:
            nonlocal ours
            before = there.get(COST_BEFORE, there.get(COST, ""))
            kept = {COST: before} if before else {}
            ours = COST_BEFORE in there
            if ours:
                return kept
            return {**kept, UNDONE: shift.operation} if there.get(UNDONE) != shift.operation else None

        try:
            await self._annotate(shift.namespace, shift.pod, shift.uid, spared)
        except (Absent, Conflict):  # it is gone, or another of its name is there
            pass
        except (Rejected, Retry) as refused:  # who takes not even a mark of ours takes no write that is late
            if ours or refused.problem.code not in _REFUSED:
                raise

    async def _annotate(self, namespace: str, name: str, uid: str, wanted: Callable[[Mapping[str, str]], dict[str, str] | None]) -> None:
        """What is to be ours of a pod's annotations, by those that it has, at the version at which it has them. None: they stay.

        Raises as `Api.apply` does, Conflict where another pod has its name.
        """
        path = f"{pods(namespace)}/{name}"
        for _ in range(_TRIES):
            meta = (await self._api.get(path))["metadata"]
            ours = wanted(meta.get("annotations") or {})
            if ours is None:
                return
            own = {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": meta["resourceVersion"], "annotations": ours}
            self._may()
            try:
                await self._api.apply(path, {"apiVersion": "v1", "kind": "Pod", "metadata": own}, _COST_MANAGER)
            except Conflict:
                if meta["uid"] != uid:
                    raise
            else:
                return
        raise Retry(_restless(f"{namespace}/{name}"))


def _together(places: Sequence[Place]) -> list[list[Place]]:
    """What stands in one resource is one write. In the order given."""
    found: dict[str, list[Place]] = {}
    for one in places:
        found.setdefault(one.path, []).append(one)
    return list(found.values())


def _webhook(said: Problem, one: Place) -> Problem:
    remedy = "Do what it says, or leave this graph out of the policy; nothing was changed"
    return Problem(code="SH275", what=f"the API server refuses other replicas of it: {said.what}", remedy=remedy, subject=one.called)


def _restless(subject: str) -> Problem:
    what = "it changes each time that it is to be written"
    return Problem(code="SH253", what=what, remedy="Nothing to do: it is planned again", subject=subject)


async def everything(api: Api, path: str, query: dict[str, str] | None = None) -> list[Object]:
    """All of a collection, in as many pages as it takes. Raises as `Api.get` does."""
    found: list[Object] = []
    asked: dict[str, str | int] = {**(query or {}), "limit": 500}
    while True:
        page = await api.get(path, asked)
        found += page.get("items") or ()
        token = (page.get("metadata") or {}).get("continue")
        if not token:
            return found
        asked["continue"] = token


async def served(api: Api) -> str:
    """The version of Dynamo's API that a server speaks, the newest that we know. Raises Absent SH252 where there is none."""
    absent: ShunterError | None = None
    for version in VERSIONS:
        try:
            found = await api.get(collection(version, "", "").rstrip("/"))
        except Absent as error:
            absent = error
            continue
        if any(one.get("name") == GRAPHS for one in found.get("resources") or ()):
            return version
    raise absent or Absent(
        Problem(code="SH252", what="the API server has no DynamoGraphDeployment", remedy="Install Dynamo's operator", subject="nvidia.com")
    )
