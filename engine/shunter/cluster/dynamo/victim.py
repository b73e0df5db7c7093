"""Which of a component's pods goes when it is to have one less: what a ReplicaSet's controller goes by. Pure.

It removes first what has no node, then what is pending, then what isn't ready, then by `controller.kubernetes.io/pod-deletion-cost`, the
lowest first (kubernetes: ActivePodsWithRanks). A cost outweighs nothing of what comes before it; so whoever is to go must be the first by
these four.
"""

from collections.abc import Sequence
from typing import Final

from shunter.cluster.dynamo.values import Pod
from shunter.cluster.dynamo.words import LOWEST
from shunter.model.errors import Problem, Rejected

_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}


def rank(pod: Pod, cost: int | None = None) -> tuple[bool, int, bool, int]:
    """The lowest goes first. `cost` None: the pod's own."""
    return pod.assigned, _PHASES.get(pod.phase, 1), pod.ready, pod.cost if cost is None else cost


def certain(pods: Sequence[Pod], chosen: str, replicas: int) -> Pod:
    """The chosen pod (by its uid), when it would be the one that goes once its cost is the lowest and its component has one replica less.

    Raises Rejected SH274, saying which other pod would go, or why none would.
    """
    there = [one for one in pods if not one.leaving]
    own = next((one for one in there if one.uid == chosen), None)
    if own is None:
        raise _refused("the chosen pod isn't there any more, or is going already", "Nothing to do: what is planned next knows it", chosen)
    if len(there) != replicas:
        what = f"there are {len(there)} pods where {replicas} are asked for: with one less it can't be said which of them would go"
        raise _refused(what, "Nothing to do: once its controller has caught up it is planned again", own.name)
    ours = rank(own, LOWEST)
    first = next((one for one in sorted(there, key=rank) if one.uid != chosen and rank(one) <= ours), None)
    if first is not None:
        why = "as it isn't ready" if not first.ready else "as its deletion cost is as low"
        raise _refused(f"its controller could remove {first.name} instead, {why}", "Wait until that pod is ready, or end it", own.name)
    return own


def newest(pods: Sequence[Pod]) -> Pod | None:
    """The one that a component can do without most easily once it has one too many: what came last. None: there is none."""
    return min((one for one in pods if not one.leaving), key=lambda one: (rank(one, 0)[:3], _later(one.created), one.name), default=None)


def _later(stamp: str) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in stamp)


def _refused(what: str, remedy: str, pod: str) -> Rejected:
    return Rejected(Problem(code="SH274", what=what, remedy=remedy, subject=pod))
