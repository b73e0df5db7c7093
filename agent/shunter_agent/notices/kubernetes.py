"""What Kubernetes says of this node, on its Node object: taints, labels, annotations and conditions, each with its meaning. Pure.

A decision (it goes), a hint (it may go: `rebalance`), or that it is gone already (nothing may be dumped). That a node isn't Ready is none
of them: it says so half a minute to minutes after the end, and for much else. Every signal has an age up to which it is believed, since
taints are left behind by whoever crashed; one that is older moves nothing and is told instead.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard, get_args

import msgspec
from shunter.model import snapshot
from shunter.model.snapshot import NoticeKind

from shunter_agent.notices import nodeconditions
from shunter_agent.notices.gpus import Gpus
from shunter_agent.notices.signals import Meaning, Signal
from shunter_agent.notices.times import maybe

_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR

TAINTS: Final[Mapping[str, Meaning]] = {
    "aws-node-termination-handler/spot-itn": Meaning(NoticeKind.PREEMPTION, 30 * _MINUTE, "the spot instance is taken"),
    "aws-node-termination-handler/scheduled-maintenance": Meaning(NoticeKind.MAINTENANCE, _DAY, "scheduled maintenance"),
    "aws-node-termination-handler/asg-lifecycle-termination": Meaning(
        NoticeKind.DRAIN, 48 * _HOUR, "the Auto Scaling group takes the instance out"
    ),
    "aws-node-termination-handler/rebalance-recommendation": Meaning(
        NoticeKind.REBALANCE, _DAY, "the chance of a spot interruption has risen"
    ),
    "node.kubernetes.io/out-of-service": Meaning(kind=NoticeKind.GONE, lasts=None, says="declared out of service", dumpable=False),
    "node.cloudprovider.kubernetes.io/shutdown": Meaning(
        kind=NoticeKind.GONE, lasts=None, says="the cloud has shut it down", dumpable=False
    ),
    "karpenter.sh/disrupted": Meaning(NoticeKind.DRAIN, _DAY, "Karpenter takes it out"),
    "karpenter.sh/disruption": Meaning(NoticeKind.DRAIN, _DAY, "Karpenter takes it out"),
    "ToBeDeletedByClusterAutoscaler": Meaning(NoticeKind.DRAIN, _HOUR, "the cluster autoscaler takes it out"),
    "DeletionCandidateOfClusterAutoscaler": Meaning(NoticeKind.REBALANCE, _DAY, "the cluster autoscaler may take it out"),
    "cloud.google.com/impending-node-termination": Meaning(NoticeKind.PREEMPTION, 2 * _HOUR, "GKE ends the VM"),
    "cloud.google.com/maintenance-window-started": Meaning(NoticeKind.REBALANCE, _DAY, "GKE may maintain it from now on"),
}
"""How long each is believed is our judgement: a few times what its controller needs. A lifecycle hook can wait 48 hours, a GPU VM's drain
on GKE takes an hour."""
LABELS: Final[Mapping[tuple[str, str], Meaning]] = {
    ("qos.coreweave.cloud/pending-preemption", "true"): Meaning(NoticeKind.PREEMPTION, _DAY, "CoreWeave preempts it"),
    ("cloud.google.com/active-node-maintenance", "ongoing"): Meaning(NoticeKind.MAINTENANCE, 2 * _HOUR, "GKE stops what is on it"),
}
"""Their values in lower case."""
PLANNED: Final = "cloud.google.com/scheduled-maintenance-time"
"""Label: when GKE begins to maintain the host of a GPU's node, in seconds since the epoch. Weeks ahead, which is a hint at first."""
DEADLINE: Final = "karpenter.sh/nodeclaim-termination-timestamp"
"""Annotation: when Karpenter ends the instance, drained or not."""
CORDON: Final = Meaning(NoticeKind.REBALANCE, _DAY, "cordoned: it gets no new pods, and somebody may mean to drain it")
_CORDON_TAINT: Final = "node.kubernetes.io/unschedulable"
_DELETED: Final = Meaning(NoticeKind.DRAIN, _DAY, "its Node object is being deleted")


class Taint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """As in `spec.taints`."""

    key: str
    value: str | None = None
    effect: str | None = None
    time_added: str | None = None


class Managed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who changed what last, and when."""

    time: str | None = None
    fields_v1: dict[str, Any] | None = msgspec.field(name="fieldsV1", default=None)


class Meta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """As in `metadata`."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None
    managed_fields: list[Managed] | None = None


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """As in `spec`."""

    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """As in `status`."""

    conditions: list[nodeconditions.Condition] | None = None


class NodeObject(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a Node. What isn't named here isn't looked at, whatever the version of Kubernetes."""

    metadata: Meta
    spec: Spec = Spec()
    status: Status = Status()


def taints(node: NodeObject) -> tuple[snapshot.Taint, ...]:
    """What keeps pods off it, whatever it means. The node controller taints what is cordoned a moment later: that isn't waited for."""
    found = {snapshot.Taint(key=t.key, value=t.value or "", effect=t.effect) for t in node.spec.taints or () if _is_effect(t.effect)}
    if node.spec.unschedulable:
        found.add(snapshot.Taint(key=_CORDON_TAINT))
    return tuple(sorted(found, key=str))


def _is_effect(text: str | None) -> TypeGuard[snapshot.Effect]:
    return text in get_args(snapshot.Effect)


def signals(node: NodeObject, gpus: Gpus, *, ahead: float = 0.0, booted: float | None = None) -> Iterator[Signal]:
    """All signals on the object that are known here, however old. `ahead`: for how many seconds the API server's clock, and those of the
    controllers beside it, are ahead of this node's; `booted`: when the machine was started, seconds since the epoch, None: nobody knows.
    """
    changed = _less(_taints_changed(node.metadata), ahead)
    for taint in node.spec.taints or ():
        if (meaning := TAINTS.get(taint.key)) is not None:
            own = _less(maybe(taint.time_added) or _stamp(taint), ahead)
            yield meaning.signal(f"taint {taint.key}", since=own or changed, exact=own is not None)
    yield from _labelled(node.metadata, ahead)
    if node.spec.unschedulable:
        put = next((t for t in node.spec.taints or () if t.key == _CORDON_TAINT), None)
        yield CORDON.signal("cordon", since=_less(maybe(put.time_added), ahead) if put is not None else None)
    if node.metadata.deletion_timestamp is not None:
        yield _DELETED.signal("deletion", since=_less(maybe(node.metadata.deletion_timestamp), ahead))
    for condition in node.status.conditions or ():
        yield from nodeconditions.signals(condition, gpus, ahead=ahead, booted=booted)


def _less(at: float | None, ahead: float) -> float | None:
    """The same moment by the node's own clock."""
    return None if at is None else at - ahead


def _labelled(meta: Meta, ahead: float) -> Iterator[Signal]:
    for key, value in (meta.labels or {}).items():
        if (meaning := LABELS.get((key, value.lower()))) is not None:
            yield meaning.signal(f"label {key}")
    begins = (meta.labels or {}).get(PLANNED, "")
    if begins.isdigit():
        planned = Meaning(NoticeKind.MAINTENANCE, _DAY, "GKE maintains its host")
        yield planned.signal(f"label {PLANNED}", deadline=float(begins) - ahead)
    ends = maybe((meta.annotations or {}).get(DEADLINE))
    if ends is not None:
        # an hour after its own deadline it was wrong
        meaning = Meaning(NoticeKind.DRAIN, _HOUR, "Karpenter ends the instance")
        yield meaning.signal(f"annotation {DEADLINE}", deadline=ends - ahead)


def _stamp(taint: Taint) -> float | None:
    """The cluster autoscaler writes the time into the taint's value, in seconds since the epoch."""
    value = taint.value or ""
    return float(value) if taint.key.endswith("ByClusterAutoscaler") and value.isdigit() and len(value) == 10 else None


def _taints_changed(meta: Meta) -> float | None:
    """When the list of taints was last changed: none of them is younger, which tells the age of one that was there before we looked."""
    times = [
        at
        for entry in meta.managed_fields or ()
        if "f:taints" in ((entry.fields_v1 or {}).get("f:spec") or {}) and (at := maybe(entry.time)) is not None
    ]
    return max(times, default=None)
