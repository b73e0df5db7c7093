"""Which pod its controller ends once one more joins it, and whether sessions end with that one. Pure.

In the place of a pod that a worker has left its controller starts another one, and there is one too many when the worker's new pod joins.
Which one goes follows from node, phase and readiness first, then from the pods' deletion cost, and then from the nodes that they share and
their age, which have nothing to do with what they hold: so of those that come first by readiness the one with the least is given a cost
below all others' (`NAMED`). What cost it has by then has a say only between those that hold the same.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

import msgspec

from shunter.cluster.dynamo.words import LOWEST
from shunter.cluster.pods import HASH, Being, WorkerPod
from shunter.model.ids import WorkerId

NAMED: Final = LOWEST + 1
"""The deletion cost of the pod that goes when another one joins. Below it is only who goes for a change of sides."""
_TAKES: Final = (Being.COMING, Being.RUNNING)


class Stake(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker holds: tokens of context, and sessions. None: it isn't known."""

    tokens: float | None = None
    sessions: float | None = None

    @property
    def known(self) -> bool:
        """Anything is."""
        return self.tokens is not None or self.sessions is not None

    @property
    def empty(self) -> bool:
        """Nothing would be lost. Where it tells its sessions, what is left in its cache is no one's."""
        return (self.tokens if self.sessions is None else self.sessions) == 0


NOTHING: Final = Stake(tokens=0.0, sessions=0.0)


class Goes(msgspec.Struct, frozen=True, kw_only=True):
    """The pod that goes. `costs`: sessions would end with it, or it isn't known that none would."""

    pod: WorkerPod
    costs: bool


def goes(
    joining: WorkerPod, pods: Iterable[WorkerPod], busy: Callable[[WorkerPod], bool], stake: Callable[[WorkerId], Stake]
) -> Goes | None:
    """Who of the pods of the controller that `joining` is given to. None: there is nobody who could. `busy`: an operation is about it."""

    def held(pod: WorkerPod) -> Stake:
        return NOTHING if pod.resident.role == "prefill" or pod.being is Being.COMING else stake(pod.resident.id)

    def order(pod: WorkerPod) -> tuple[bool, bool, bool, bool, bool, bool, float, float, int, str]:
        own = held(pod)
        tokens, sessions = (inf if one is None else one for one in (own.tokens, own.sessions))
        fixed = (pod.node is not None, pod.being is Being.RUNNING, pod.ready, pod.cost > NAMED)
        return (*fixed, busy(pod), not own.empty, tokens, sessions, pod.cost, pod.pod.name)

    first = min((pod for pod in pods if _counted(pod, joining)), key=order, default=None)
    if first is None:
        return None
    own = held(first)
    starts = not first.ready and not first.hidden and not own.known  # it has never told of anything: it is being started
    return Goes(pod=first, costs=busy(first) or not (own.empty or starts))


def pending(joining: WorkerPod, pods: Iterable[WorkerPod], chosen: Callable[[WorkerPod], bool] = lambda pod: pod.retired) -> bool:
    """One of the controller's pods was told to go for another that joined, or is `chosen` to go otherwise, and is there still: who goes for
    the next can't be said.
    """
    return any((pod.spare is not None or chosen(pod)) and _counted(pod, joining) for pod in pods)


def _counted(pod: WorkerPod, joining: WorkerPod) -> bool:
    return (
        pod.controller.startswith("ReplicaSet/")
        and pod.being in _TAKES
        and HASH in joining.joins
        and pod.labels.get(HASH) == joining.joins[HASH]
        and pod.pod.namespace == joining.pod.namespace
        and (pod.resident.role, pod.resident.graph) == (joining.resident.role, joining.resident.graph)
    )
