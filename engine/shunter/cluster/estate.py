"""The cluster's nodes, agents and workers' pods, followed in a thread of their own: ten thousand pods hold up nobody who decides.

Of each only what is needed is kept. What can't be followed for a while stays as it was last seen, and its age says so.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from shunter.cluster.api import Api, Object
from shunter.cluster.nodes import AgentPod, ClusterNode, agent_pod, cluster_node
from shunter.cluster.pods import Being, WorkerPod, worker_pod
from shunter.cluster.reflector import Change, Reflector, Times
from shunter.cluster.thread import Thread, together
from shunter.model.errors import Problem, Retry
from shunter.model.ids import NodeId

_LOG: Final = logging.getLogger(__name__)
T = TypeVar("T")
STALE_S: Final = 180.0
"""Older than this, what we have isn't called the newest: more than a copy's doubt and a watch together."""
_READ: Final = "shunter"
"""Under which key what was read of a resource is kept."""
Kind = Literal["nodes", "agents", "pods"]
_REMEMBERED: Final = 10_000
"""Of pods that were removed, the latest."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Which pods are workers' and which are agents'. Selectors are Kubernetes' for labels; empty: all of the namespace's."""

    namespace: str
    selector: str = ""
    agents_namespace: str = "shunter-agents"
    agents_selector: str = "app.kubernetes.io/name=shunter-agent"
    port: int = 7443


class Estate(msgspec.Struct, frozen=True, kw_only=True):
    """All of it at one instant; not to be changed. `agents` are addresses (host:port), empty while one isn't known yet; `pods` are by uid,
    and so are those that were `removed` while they were followed, as they were last. `doubt` says why it may be older than `STALE_S`; None:
    it isn't.
    """

    namespace: str
    nodes: Mapping[NodeId, ClusterNode]
    agents: Mapping[NodeId, str]
    pods: Mapping[str, WorkerPod]
    doubt: Problem | None = None
    removed: Mapping[str, WorkerPod] = {}


class Following:
    """Follows until it is closed. `make_api` is called once, in the thread that does the work."""

    def __init__(
        self,
        make_api: Callable[[], Api],
        where: Where,
        *,
        times: Times | None = None,
        clock: Callable[[], float] = time.monotonic,
        news: Callable[[], None] = lambda: None,
    ) -> None:
        """Begins at once. `news` is called in the thread whenever something has changed; it must not block or raise."""
        self._make_api, self._where, self._times, self._clock, self._news = make_api, where, times, clock, news
        self._nodes: dict[str, ClusterNode] = {}
        self._agents: dict[str, AgentPod] = {}
        self._pods: dict[str, WorkerPod] = {}
        self._removed: dict[str, WorkerPod] = {}
        self._reflectors: dict[Kind, Reflector] = {}
        self._version = 0
        self._last: tuple[int, Problem | None, Estate] | None = None
        self._strange: set[str] = set()
        self._thread = Thread("pods", self._main)

    def wait(self, within_s: float) -> None:
        """Return once everything was listed. Blocks. Raises what the API server said last where that isn't so in time (SH251, SH252, SH255,
        SH257), SH261 where it said nothing, Stalled SH250 for an access that can't work.
        """
        if self._thread.failed is not None:
            raise self._thread.failed
        try:
            self._thread.call(self._listed(), within_s)
        except TimeoutError as error:
            wrong = next((r.problem for r in self._reflectors.values() if r.problem is not None), None)
            raise Retry(wrong or _silent(self._where.namespace, within_s)) from error

    def estate(self) -> Estate:
        """As it is now, as far as it is known. From any thread; the same one for as long as nothing changes."""
        version, doubt = self._version, self._doubt()  # what changes while it is put together makes it old at once
        if self._last is None or self._last[:2] != (version, doubt):
            estate = Estate(
                namespace=self._where.namespace,
                nodes={one.name: one for one in self._nodes.copy().values()},
                agents=_addresses(self._agents.copy()),
                pods=self._pods.copy(),
                doubt=doubt,
                removed=self._removed.copy(),
            )
            self._last = version, doubt, estate
        return self._last[2]

    @property
    def failed(self) -> BaseException | None:
        """What ended the thread, as nothing should: from then on nothing is followed any more. None: it runs, or was closed."""
        return self._thread.failed

    def overdue(self) -> float:
        """Seconds since the API server last confirmed what it did longest ago, once those are more than `STALE_S`; 0.0 until then."""
        ages = (reflector.age() for reflector in self._reflectors.values())
        oldest = max((age for age in ages if age is not None), default=0.0)  # None: `wait` hasn't returned yet
        return oldest if oldest > STALE_S else 0.0

    def close(self) -> None:
        """End the thread and its connections."""
        self._thread.close()

    # -- in the thread

    async def _main(self) -> None:
        api, where = self._make_api(), self._where

        def follow(kind: Kind, path: str, selector: str, into: dict[str, T], read: Callable[[Object], T | None]) -> Reflector:
            def keep(found: Object) -> Object:
                return {"metadata": _identity(found), _READ: self._read(found, read)}

            def changed(change: Change, found: Object) -> None:
                self._note(into, change, found)

            query = {"labelSelector": selector} if selector else {}
            return Reflector(api, path, query=query, listener=changed, keep=keep, times=self._times, clock=self._clock)

        try:
            self._reflectors = {
                "nodes": follow("nodes", "/api/v1/nodes", "", self._nodes, cluster_node),
                "agents": follow(
                    "agents",
                    f"/api/v1/namespaces/{where.agents_namespace}/pods",
                    where.agents_selector,
                    self._agents,
                    lambda found: agent_pod(found, where.port),
                ),
                "pods": follow("pods", f"/api/v1/namespaces/{where.namespace}/pods", where.selector, self._pods, worker_pod),
            }
            await together(*(reflector.run() for reflector in self._reflectors.values()))
        finally:
            await api.aclose()

    async def _listed(self) -> None:
        for reflector in self._reflectors.values():
            await reflector.synced.wait()

    def _read(self, found: Object, read: Callable[[Object], T | None]) -> T | None:
        """None also for what can't be read: one strange resource hides no other."""
        try:
            return read(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            name = str(found["metadata"].get("name", ""))
            if name not in self._strange:
                self._strange.add(name)
                _LOG.warning("%s can't be read and is passed over: %s", name, error)
            return None

    def _note(self, into: dict[str, T], change: Change, found: Object) -> None:
        uid, read = str(found["metadata"].get("uid", "")), found[_READ]
        if change == "removed" or read is None:
            self._remember(uid, into.pop(uid, None))
        else:
            into[uid] = _still_retired(into.get(uid), read)
        self._version += 1
        self._news()

    def _remember(self, uid: str, last: object) -> None:
        """As it was last: an object that is removed may say of itself that it was deleted by force."""
        if isinstance(last, WorkerPod) and last.node is not None:
            self._removed[uid] = last
            if len(self._removed) > _REMEMBERED:
                del self._removed[next(iter(self._removed))]

    def _doubt(self) -> Problem | None:
        for kind, reflector in self._reflectors.items():
            age = reflector.age()
            if age is None or age > STALE_S:
                since = "yet" if age is None else f"for {STALE_S:.0f} s"  # always the same words: it is told once
                why = f": {reflector.problem.what}" if reflector.problem is not None else ""
                what = f"the API server has confirmed nothing of {kind} {since}{why}"
                return Problem(code="SH261", what=what, remedy="Nothing yet: it is still asked", subject=self._where.namespace)
        return None


def _still_retired(before: T | None, now: T) -> T:
    """Of a pod that goes: what the engine had to do with that may be taken off it again before it has gone."""
    if isinstance(before, WorkerPod) and isinstance(now, WorkerPod) and before.retired and now.being is Being.ENDING:
        return msgspec.structs.replace(now, retired=True)
    return now


def _identity(found: Object) -> Object:
    meta = found["metadata"]
    return {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion") if key in meta}


def _addresses(pods: Mapping[str, AgentPod]) -> dict[NodeId, str]:
    """While one agent's pod makes way for another, the one that stays counts."""
    chosen: dict[NodeId, AgentPod] = {}
    for one in sorted(pods.values(), key=lambda pod: (bool(pod.address), not pod.ending, pod.made_at)):
        chosen[one.node] = one
    return {node: chosen[node].address for node in sorted(chosen)}


def _silent(namespace: str, within_s: float) -> Problem:
    what = f"the API server listed no nodes and pods within {within_s:.0f} s"
    return Problem(code="SH261", what=what, remedy="Nothing yet: it is still asked", subject=namespace)
