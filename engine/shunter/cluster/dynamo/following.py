"""Dynamo's resources of one namespace, followed in a thread of their own, and what of them can't be read.

What isn't installed (a release without adapters, a cluster without snapshots) is asked for in vain, and hides nothing else.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from shunter.cluster.api import Absent, Api, Object
from shunter.cluster.dynamo import parse
from shunter.cluster.dynamo.reading import Unreadable
from shunter.cluster.dynamo.shift import served
from shunter.cluster.dynamo.values import Adapter, Deployed, Golden, Graph, Pod, Registered
from shunter.cluster.dynamo.words import (
    ADAPTERS,
    COMPONENT_LABEL,
    DEPLOYMENTS,
    GRAPH_LABEL,
    GRAPHS,
    REGISTRATIONS,
    SNAPSHOTS,
    collection,
    pods,
)
from shunter.cluster.reflector import Change, Key, Reflector, Times, key_of
from shunter.cluster.thread import Thread, together
from shunter.model.errors import Problem, Retry, ShunterError

STALE_S: Final = 180.0
"""Older than this, what we have isn't called the newest."""
_AGAIN_S: Final = 30.0
"""Between two looks whether Dynamo has been installed meanwhile."""
_READ: Final = "shunter"
_NEEDED: Final = (GRAPHS, ADAPTERS, "pods")
_READERS: Final[dict[str, Callable[[Object], Any]]] = {
    GRAPHS: parse.graph,
    ADAPTERS: parse.adapter,
    DEPLOYMENTS: parse.deployed,
    REGISTRATIONS: parse.registered,
    SNAPSHOTS: parse.golden,
}
_OLD: Final = (REGISTRATIONS, SNAPSHOTS)
"""There is but one version of these."""


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that can't be read. `graph` is the one that it belongs to; empty: it can't even be said."""

    graph: str
    problem: Problem


class View(msgspec.Struct, frozen=True, kw_only=True):
    """All of it at one instant. `pods` are those that a controller counts, by graph and component; `registered` by the pod's uid, or name
    where no owner is named; `doubt` says why it may be older than `STALE_S`, or that there is nothing: None: neither.
    """

    namespace: str
    graphs: tuple[Graph, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    deployed: tuple[Deployed, ...] = ()
    pods: Mapping[tuple[str, str], tuple[Pod, ...]] = {}
    registered: Mapping[str, Registered] = {}
    golden: tuple[Golden, ...] = ()
    broken: tuple[Broken, ...] = ()
    doubt: Problem | None = None


class Following:
    """Follows until it is closed. `make_api` is called once, in the thread that does the work."""

    def __init__(
        self,
        make_api: Callable[[], Api],
        namespace: str,
        *,
        times: Times | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins at once."""
        self._make_api, self._namespace, self._times, self._clock = make_api, namespace, times, clock
        self._reflectors: dict[str, Reflector] = {}
        self._kept: dict[str, dict[Key, Any]] = {}
        """By the plural: what was read of each resource. A copy of our own, as the reflectors' are for their thread alone."""
        self._absent: Problem | None = Problem(
            code="SH258", what="the API server has listed nothing of Dynamo yet", remedy="Nothing yet: it is asked", subject=namespace
        )
        self._version = 0
        self._last: tuple[int, Problem | None, View] | None = None
        self._thread = Thread("dynamo", self._main)

    def wait(self, within_s: float) -> None:
        """Return once everything that is needed was listed. Blocks. Raises Retry: what was said last where that isn't so in time."""
        try:
            self._thread.call(self._listed(), within_s)
        except TimeoutError as error:
            raise Retry(self._doubt() or _silent(self._namespace)) from error

    def view(self) -> View:
        """As it is now, as far as it is known. From any thread; the same one for as long as nothing changes."""
        version, doubt = self._version, self._doubt()
        if self._last is None or self._last[:2] != (version, doubt):
            self._last = version, doubt, self._put_together(doubt)
        return self._last[2]

    @property
    def failed(self) -> BaseException | None:
        """What ended the thread, as nothing should: from then on nothing is followed any more. None: it runs, or was closed."""
        return self._thread.failed

    def close(self) -> None:
        """End the thread and its connections."""
        self._thread.close()

    # -- in the thread

    async def _main(self) -> None:
        api = self._make_api()
        try:
            version = await self._found(api)

            def follow(plural: str, path: str, read: Callable[[Object], Any], selector: str = "") -> Reflector:
                query = {"labelSelector": selector} if selector else {}
                kept = self._kept.setdefault(plural, {})

                def changed(change: Change, found: Object) -> None:
                    self._changed(kept, change, found)

                return Reflector(api, path, query=query, listener=changed, keep=_keeping(read), times=self._times, clock=self._clock)

            where = self._namespace
            reflectors = {
                plural: follow(plural, collection("v1alpha1" if plural in _OLD else version, plural, where), read)
                for plural, read in _READERS.items()
            }
            reflectors["pods"] = follow("pods", pods(where), _counted, GRAPH_LABEL)
            self._reflectors = reflectors
            self._absent = None
            await together(*(reflector.run() for reflector in self._reflectors.values()))
        finally:
            await api.aclose()

    async def _found(self, api: Api) -> str:
        while True:
            try:
                return await served(api)
            except ShunterError as error:
                self._absent = error.problem
                await asyncio.sleep(_AGAIN_S if isinstance(error, Absent) else 1.0)

    async def _listed(self) -> None:
        while not self._reflectors:
            await asyncio.sleep(0.05)
        for plural in _NEEDED:
            await self._reflectors[plural].synced.wait()

    def _changed(self, kept: dict[Key, Any], change: Change, found: Object) -> None:
        if change == "removed":
            kept.pop(key_of(found), None)
        else:
            kept[key_of(found)] = found[_READ]
        self._version += 1

    def _doubt(self) -> Problem | None:
        if self._absent is not None:
            return self._absent
        for plural in _NEEDED:
            age = self._reflectors[plural].age()
            if age is None or age > STALE_S:
                since = "yet" if age is None else f"for {STALE_S:.0f} s"
                trouble = self._reflectors[plural].problem
                why = f": {trouble.what}" if trouble is not None else ""
                what = f"the API server has confirmed nothing of {plural} {since}{why}"
                return Problem(code="SH258", what=what, remedy="Nothing yet: it is still asked", subject=self._namespace)
        return None

    def _put_together(self, doubt: Problem | None) -> View:
        broken: list[Broken] = []

        def read(plural: str) -> list[Any]:
            found = [one for _, one in sorted(self._kept.get(plural, {}).copy().items())]
            broken.extend(one for one in found if isinstance(one, Broken))
            return [one for one in found if one is not None and not isinstance(one, Broken)]

        counted: dict[tuple[str, str], list[Pod]] = {}
        for key, one in read("pods"):
            counted.setdefault(key, []).append(one)
        return View(
            namespace=self._namespace,
            graphs=tuple(read(GRAPHS)),
            adapters=tuple(read(ADAPTERS)),
            deployed=tuple(read(DEPLOYMENTS)),
            pods={key: tuple(own) for key, own in counted.items()},
            registered={one.pod_uid or one.pod: one for one in read(REGISTRATIONS)},
            golden=tuple(read(SNAPSHOTS)),
            broken=tuple(broken),
            doubt=doubt,
        )


def _keeping(read: Callable[[Object], Any]) -> Callable[[Object], Object]:
    """What was read of a resource instead of itself: of a graph with its pods' templates that is little."""

    def keep(found: Object) -> Object:
        meta = found["metadata"]
        identity = {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion") if key in meta}
        try:
            kept = read(found)
        except Unreadable as error:
            kept = Broken(graph=_graph_of(found), problem=error.problem)
        return {"metadata": identity, _READ: kept}

    return keep


def _counted(found: Object) -> tuple[tuple[str, str], Pod] | None:
    labels = found["metadata"].get("labels") or {}
    if not parse.controlled(found):
        return None
    return (labels.get(GRAPH_LABEL, ""), labels.get(COMPONENT_LABEL, "")), parse.pod(found)


def _graph_of(found: Object) -> str:
    """Which graph a resource belongs to that can't be read as a whole; empty: that can't be said either."""
    if found.get("kind") in ("DynamoGraphDeployment", None) and isinstance(found.get("spec"), dict):
        spec = found["spec"]
        if "components" in spec or "services" in spec:
            return str(found["metadata"]["name"])
    spec = found.get("spec")
    ref = spec.get("dgdRef") if isinstance(spec, dict) else None
    if isinstance(ref, dict) and isinstance(ref.get("name"), str):
        return str(ref["name"])
    labels = found["metadata"].get("labels")
    return str(labels.get(GRAPH_LABEL, "")) if isinstance(labels, dict) else ""


def _silent(namespace: str) -> Problem:
    what = "the API server listed nothing of Dynamo in time"
    return Problem(code="SH258", what=what, remedy="Nothing yet: it is still asked", subject=namespace)
