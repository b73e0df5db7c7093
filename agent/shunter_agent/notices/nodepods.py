"""What becomes of pods says of the node that they are on, and of the slot that a worker's pod has. Pure.

A pod that is taken away is its worker's drain: by an eviction, a preemption by the scheduler, or a taint that it doesn't tolerate, as
different as they are to Kubernetes. Whose pod it is the agent knows of the workers that it has found in pods; another pod can name its slot
with the label `shunter.dev/slot`. Of the latter a plain deletion counts, too; of the former it doesn't: whatever has pods be there deletes
them when it wants fewer, or others, and a worker that moved away from that would be one too many. Others count only when a kubelet ends
them because the machine goes down.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from shunter.model.errors import Problem
from shunter.model.snapshot import NoticeKind

from shunter_agent.notices.kubernetes import Meta, NodeObject
from shunter_agent.notices.nodeconditions import Condition
from shunter_agent.notices.signals import Signal
from shunter_agent.notices.times import maybe

SLOT: Final = "shunter.dev/slot"
"""Label of a pod: the index of the slot that its worker has."""
_HOUR: Final = 3600.0
_SHUTDOWN_S: Final = 600.0
_BY_KUBELET: Final = "TerminationByKubelet"
_DRAINING: Final = ("karpenter.sh/disrupted", "karpenter.sh/disruption")
"""Karpenter's taint, and what it was before v1."""


class Toleration(msgspec.Struct, frozen=True, kw_only=True):
    """As in `spec.tolerations`."""

    key: str | None = None
    operator: str | None = None


class PodSpec(msgspec.Struct, frozen=True, kw_only=True):
    """As in `spec`."""

    tolerations: list[Toleration] | None = None


class PodStatus(msgspec.Struct, frozen=True, kw_only=True):
    """As in `status`."""

    conditions: list[Condition] | None = None


class PodObject(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a Pod."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


def signals(
    pods: Sequence[PodObject],
    node: NodeObject | None,
    name: str,
    homes: Mapping[str, str] = MappingProxyType({}),
    *,
    ahead: float = 0.0,
) -> Iterator[Signal]:
    """What the pods on the node say. `name` is the node's name here, of which slots are named; without a `node` nobody can say whether a
    shutdown is this one. `homes` are the slots of the workers that live in pods, by the pod's uid. `ahead`: for how
    many seconds the API server's clock is ahead of this node's, by which its kubelet goes.
    """
    ready = next((c for c in (node.status.conditions or () if node else ()) if c.type == "Ready" and c.status == "True"), None)
    up_since = ready.since if ready is not None else None
    for pod in pods:
        disrupted = next((c for c in pod.status.conditions or () if c.type == "DisruptionTarget" and c.status == "True"), None)
        if node is not None and disrupted is not None and _shutdown(disrupted, up_since):
            yield Signal(
                key="shutdown",
                kind=NoticeKind.PREEMPTION,
                lasts=_SHUTDOWN_S,
                detail="shutdown: the kubelet ends its pods, since the machine goes down",
                since=disrupted.since,
            )
        slot = (pod.metadata.labels or {}).get(SLOT, "")
        if slot.isdigit():
            yield from _worker(pod, disrupted, maybe(pod.metadata.deletion_timestamp), f"{name}/{slot}", ahead)
        elif (home := homes.get(pod.metadata.uid)) is not None:
            yield from _worker(pod, disrupted, maybe(pod.metadata.deletion_timestamp) if disrupted else None, home, ahead)


def _shutdown(disrupted: Condition, up_since: float | None) -> bool:
    """What a kubelet ended in an earlier shutdown stays as it was after the node is back: that is older than the node's being Ready."""
    if disrupted.reason != _BY_KUBELET or "node shutdown" not in (disrupted.message or ""):
        return False
    return up_since is None or disrupted.since is None or disrupted.since > up_since


def _since(disrupted: Condition, ahead: float) -> float | None:
    by_kubelet = disrupted.reason == _BY_KUBELET
    return disrupted.since if by_kubelet or disrupted.since is None else disrupted.since - ahead


def _worker(pod: PodObject, disrupted: Condition | None, ends: float | None, slot: str, ahead: float) -> Iterator[Signal]:
    name = pod.metadata.name
    key = f"pod {name} {pod.metadata.uid}".rstrip()
    if disrupted is not None or ends is not None:
        why = f"{disrupted.reason}: {disrupted.message or ''}"[:200].rstrip(": ") if disrupted else "it is deleted"
        yield Signal(
            key=key,
            kind=NoticeKind.DRAIN,
            lasts=_HOUR,
            detail=f"pod {name}: {why}",
            since=_since(disrupted, ahead) if disrupted else None,
            deadline=None if ends is None else ends - ahead,  # Kubernetes counts the grace into it
            slot=slot,
        )
    if any(t.key in _DRAINING or (t.operator == "Exists" and not t.key) for t in pod.spec.tolerations or ()):
        what = f"pod {name} tolerates {_DRAINING[0]}: Karpenter doesn't drain it, and ends it with its node"
        remedy = "Take the toleration off, so that its end is announced"
        yield Signal(
            key=f"{key} tolerates", kind=None, lasts=None, detail="", problem=Problem(code="SH658", what=what, remedy=remedy, subject=slot)
        )
