"""The agent's own Node object, and the pods on it, as a source of notices."""

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from shunter.model.errors import Problem
from shunter.model.snapshot import NoticeKind, Taint

from shunter_agent.notices import kubernetes, nodepods
from shunter_agent.notices.doubts import Doubt
from shunter_agent.notices.firsts import Firsts, Sight
from shunter_agent.notices.gpus import Gpus
from shunter_agent.notices.kubernetes import NodeObject
from shunter_agent.notices.listwatch import BETWEEN, SOURCE, Access, Copy, Times, failed
from shunter_agent.notices.nodepods import PodObject
from shunter_agent.notices.port import Notice
from shunter_agent.notices.signals import Reading, Signal, read
from shunter_agent.notices.watching import Look, Watching
from shunter_agent.refusals import retry

SKEWED_S: Final = 30.0
"""From here on it is told that the API server's clock is another: what is said by neither of the two is off by it."""
ABSURD_S: Final = 86_400.0
"""A clock that is off by more isn't kept by anybody, and nothing that is by it is corrected."""
Homes: TypeAlias = Callable[[], Mapping[str, str] | None]


class NodeSource:
    """What the two looks share: the node, by which pods are judged."""

    def __init__(
        self,
        access: Access,
        node: str,
        name: str,
        gpus: Gpus,
        *,
        pods: bool,
        times: Times,
        clock: Callable[[], float] = time.time,
        homes: Homes = dict,
        firsts: Firsts | None = None,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """`node` is its name in Kubernetes, `name` the one that slots are named by. `clock` gives seconds since the epoch; `homes` the
        slots of the workers that live in pods, by the pod's uid; None while nobody can say; `firsts` knows what was seen before;
        `elapsed` gives seconds since the machine's start.
        """
        self._firsts, self._elapsed = firsts or Firsts(clock=clock), elapsed
        self._homes = homes
        self._known: Mapping[str, str] = {}
        self._node_name, self._name, self._gpus, self._clock, self._times = node, name, gpus, clock, times
        self._nodes = Copy(lambda: access.client(times), "/api/v1/nodes", f"metadata.name={node}", NodeObject, times, wall=clock)
        self._pods = Copy(lambda: access.client(times), "/api/v1/pods", f"spec.nodeName={node}", PodObject, times, wall=clock)
        self._with_pods = pods
        self._seen = threading.Event()
        self._reading, self._pod_reading = Reading(), Reading()
        self._taints: tuple[Taint, ...] = ()

    def looks(self) -> tuple[Look, ...]:
        """One for the node; one for the pods where they are wanted."""
        patience = self._times.most + self._times.margin + 2 * self._times.request

        node = Look(
            name="kubernetes node",
            ask=self.ask_node,
            every=0.0,
            rest=lambda failures: self._rest(max(failures, self._nodes.brief)),
            patience=patience,
            problems=lambda: (*self._reading.problems, *_unwatched(self._nodes), *_skewed(self._nodes.ahead, self._node_name)),
            doubts=self.doubts,
        )
        pods = Look(
            name="kubernetes pods",
            ask=self.ask_pods,
            every=0.0,
            rest=lambda failures: self._rest(max(failures, self._pods.brief)),
            patience=patience,
            problems=lambda: (*self._pod_reading.problems, *_unwatched(self._pods)),
        )
        return (node, pods) if self._with_pods else (node,)

    def close(self) -> None:
        """End the connections."""
        self._nodes.close()
        self._pods.close()

    def ask_node(self) -> Mapping[str, Notice]:
        """Wait for news of the node. Raises Retry SH648, or SH649 when there is none of that name."""
        self._firsts.save()  # of what was told before
        self._nodes.step()
        node = self._node()
        if node is None and not self._seen.is_set():
            what = f"the cluster has no node {self._node_name}"
            raise retry("SH649", what, "Name it in [kubernetes] as `kubectl get nodes` does", self._node_name)
        self._seen.set()
        self._taints = kubernetes.taints(node) if node is not None else self._taints
        booted = self._clock() - self._elapsed()
        ahead = _believed(self._nodes.ahead)
        found = kubernetes.signals(node, self._gpus, ahead=ahead, booted=booted) if node is not None else (_DELETED,)
        self._reading = self._read("kubernetes node", found, self._reading)
        return self._reading.notices

    def ask_pods(self) -> Mapping[str, Notice]:
        """Wait for news of the pods on it. Raises Retry SH648."""
        self._firsts.save()
        self._pods.step()
        self._seen.wait(self._times.request)  # a shutdown is judged by when the node was ready
        homes = self._homes()
        self._known = self._known if homes is None else homes
        found = nodepods.signals(
            list(self._pods.objects.values()), self._node(), self._name, self._known, ahead=_believed(self._pods.ahead)
        )
        self._pod_reading = self._read("kubernetes pods", found, self._pod_reading)
        return self._pod_reading.notices

    def doubts(self) -> tuple[Doubt, ...]:
        """What conditions of the node make suspect. Who writes them goes by the node's own clock."""
        ahead = self._elapsed() - self._clock()
        return tuple(Doubt(slot=slot, at=at + ahead, what=what) for slot, at, what in self._reading.suspects)

    def taints(self) -> tuple[Taint, ...]:
        """Those of the node as it was last seen, from any thread."""
        return self._taints

    def _node(self) -> NodeObject | None:
        return next(iter(self._nodes.objects.values()), None)

    def _read(self, group: str, found: Iterable[Signal], before: Reading) -> Reading:
        """What they say now. What the agent before this one has seen is as old as it was then."""
        reading = read(found, source=SOURCE, now=self._clock(), before={**self._firsts.recalled(group), **before.since})
        self._firsts.seen(group, {key: Sight(at) for key, at in reading.since.items()})
        return reading

    def _rest(self, failures: int) -> float:
        full = min(self._times.rest_most, self._times.rest_first * 2.0 ** min(failures - 1, 20))
        return full * (0.5 + 0.5 * random.random())  # noqa: S311  (spreads many agents, hides nothing)


_DELETED: Final = Signal(key="deleted", kind=NoticeKind.DRAIN, lasts=86_400.0, detail="deleted: its Node object is gone from the cluster")


def source(
    access: Access,
    node: str,
    name: str,
    gpus: Gpus,
    *,
    pods: bool = False,
    times: Times | None = None,
    clock: Callable[[], float] = time.time,
    log: Callable[[Problem], None] = lambda _problem: None,
    homes: Homes = dict,
    firsts: Firsts | None = None,
) -> Watching:
    """Kubernetes as a source of notices. `clock` gives seconds since the epoch; `log` gets each new problem once; the rest as above."""
    made = NodeSource(access, node, name, gpus, pods=pods, times=times or Times(), clock=clock, homes=homes, firsts=firsts)
    return Watching(SOURCE, made.looks(), clock=clock, log=log, close=made.close, taints=made.taints)


def _believed(ahead: float) -> float:
    return ahead if abs(ahead) <= ABSURD_S else 0.0


def _skewed(ahead: float, node: str) -> tuple[Problem, ...]:
    if abs(ahead) < SKEWED_S:
        return ()
    whose = f"the API server's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this node's"
    believed = _believed(ahead) == ahead
    so = (
        "the times of taints, pods and labels are taken to be so much off"
        if believed
        else "that isn't believed, and times count as they are"
    )
    return (Problem(code="SH684", what=f"{whose}: {so}", remedy="Keep the node and the control plane on NTP", subject=node),)


def _unwatched(copy: Copy[NodeObject] | Copy[PodObject]) -> tuple[Problem, ...]:
    if copy.brief < 3:
        return ()
    return (failed("its watches end at once, and lists alone are late", BETWEEN).problem,)
