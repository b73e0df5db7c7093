"""What the API server says of a worker's pod, as far as moves need it. Pure.

A pod that is only about to be, or has ended, holds no worker; one that is being deleted holds one that ends by itself, and soon.
"""

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from shunter.cluster.api import Object
from shunter.cluster.dynamo.words import COST, COST_BEFORE, RESTORE_FROM, RESTORE_TARGET
from shunter.model.ids import NodeId
from shunter.model.pod import CONTAINER, MAIN, OPERATION, SERVING, STARTED_BY, STATE, Pod, Resident, resident
from shunter.model.snapshot import Toleration

GPUS: Final = "nvidia.com/gpu"
UNSCHEDULABLE: Final = "Unschedulable"
GRACE_S: Final = 1
"""With which the engine deletes pods, in which nothing is left that could end in peace: the least that isn't an end by force, behind the
kubelet's back. Nobody else does."""
_OVER: Final = ("Succeeded", "Failed")
_HANDED_OVER: Final = ("", "ReplicaSet")
"""Controllers that can be given another pod in the place of one: they know theirs by labels alone. Empty: there is none."""
HASH: Final = "pod-template-hash"
SPARE: Final = "shunter.dev/spare"
"""Annotation of a pod that is to go when another one joins: the deletion cost that it had before; empty: none."""
JOINS: Final = "shunter.dev/joins"
"""Annotation: labels, as JSON, that a pod gets once its worker serves: by them its controller knows it."""


class Being(enum.StrEnum):
    """Where a pod is in its life."""

    COMING = "coming"
    """Nothing of the worker runs yet, or not any more: it waits for a node, an image, or to be started again."""
    RUNNING = "running"
    ENDING = "ending"
    """It was deleted, and its processes are told to end."""
    ENDED = "ended"
    """It failed, was evicted, or is done. Its processes are gone."""


class WorkerPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's pod, or one that waits for a worker to come. `node` is None before it has one; `why` says in words what keeps it from
    running, or being ready; empty: nothing does. `gpus` are those that its container asks for.
    """

    pod: Pod
    resident: Resident
    node: NodeId | None
    being: Being
    ready: bool
    why: str
    labels: dict[str, str]
    tolerations: tuple[Toleration, ...]
    gpus: int
    controller: str
    """Kind and name of what has it be there, such as `ReplicaSet/decode-5f9c`; empty: nothing does."""
    gated: bool
    """It isn't ready until the engine says so (`SERVING`)."""
    reason: str = ""
    """The same in a word of Kubernetes', such as `Unschedulable` or `CreateContainerError`; empty where there is none."""
    hidden: bool = False
    """The engine doesn't say so."""
    joins: dict[str, str] = {}
    """Labels that it is to get when its worker serves, by which its controller knows it."""
    address: str = ""
    """Its IP; empty before it has one."""
    cost: int = 0
    """Of its deletion, for whoever removes pods: the lowest first."""
    spare: str | None = None
    """The engine has named it as the one that goes when another one joins; its deletion cost before that, empty: it had none."""
    restored: bool = False
    """Its worker is one that Dynamo Snapshot restores, or has restored."""
    retired: bool = False
    """The engine has deleted it, by its grace, or has named it as the one that goes: whoever lived in it was to leave it."""

    @property
    def operation(self) -> str:
        """The operation that made it; empty: none of ours did."""
        return self.labels.get(OPERATION, "")

    @property
    def started_by(self) -> str:
        """The operation that made it to start from a golden image; empty: none of ours did."""
        return self.labels.get(STARTED_BY, "")

    @property
    def placeholder(self) -> bool:
        """It waits for a worker that is still to come."""
        return self.labels.get(STATE) == "placeholder"

    @property
    def held_by(self) -> str:
        """Why its worker can't live in another pod, in words; empty: it can."""
        kind, _, name = self.controller.partition("/")
        if self.restored:
            return "Dynamo Snapshot has restored it beside the first process of its container, which is what an agent would take for it"
        if kind not in _HANDED_OVER:
            return f"its pod belongs to {kind} {name}, which would start another one in its place"
        if kind and HASH not in self.labels:
            return f"its pod belongs to {kind} {name} of no Deployment, whose pods can't be told from those that leave it"
        return ""


def worker_pod(found: Object) -> WorkerPod | None:
    """The pod as the server gives it. None: it is no worker's. Raises KeyError and the like for what isn't a pod."""
    meta, spec, status = found["metadata"], found["spec"], found.get("status") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    container = chosen(spec, annotations)
    who = resident(meta["name"], labels, annotations, (*(container.get("command") or ()), *(container.get("args") or ())))
    if who is None:
        return None
    gated = any(gate.get("conditionType") == SERVING for gate in spec.get("readinessGates") or ())
    being, why, reason = _being(meta, spec, status, str(container.get("name", "")))
    return WorkerPod(
        pod=Pod(namespace=meta.get("namespace", ""), name=meta["name"], uid=meta["uid"], container=str(container.get("name", ""))),
        resident=who,
        node=NodeId(spec["nodeName"]) if spec.get("nodeName") else None,
        being=being,
        ready=being is Being.RUNNING and truth(status, "Ready") == "True",
        why=why,
        reason=reason,
        labels=dict(labels),
        tolerations=tuple(_toleration(one) for one in spec.get("tolerations") or ()),
        gpus=_gpus(container),
        controller=controller(meta),
        gated=gated,
        hidden=gated and truth(status, SERVING) != "True",
        joins=json_of(annotations.get(JOINS, "")),
        address=str(status.get("podIP") or ""),
        cost=_cost(annotations),
        spare=annotations.get(SPARE),
        restored=RESTORE_FROM in annotations or labels.get(RESTORE_TARGET) == "true",
        retired=COST_BEFORE in annotations or (bool(meta.get("deletionTimestamp")) and meta.get("deletionGracePeriodSeconds") == GRACE_S),
    )


def chosen(spec: Object, annotations: Mapping[str, str]) -> Object:
    """The container in which the worker lives: the one that is named, Dynamo's, or the first. Empty: there is none."""
    containers: list[Object] = spec.get("containers") or []
    wanted = annotations.get(CONTAINER) or MAIN
    return next((one for one in containers if one.get("name") == wanted), containers[0] if containers else {})


def json_of(text: str) -> dict[str, str]:
    """Labels out of an annotation; none for what isn't that."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def truth(status: Object, condition: str) -> str:
    """`True`, `False` or `Unknown` of a condition; empty: it has none of that type."""
    return next((str(one.get("status", "")) for one in status.get("conditions") or () if one.get("type") == condition), "")


def controller(meta: Object) -> str:
    """Kind and name of the owner that controls it; empty: none."""
    owner = next((one for one in meta.get("ownerReferences") or () if one.get("controller")), None)
    return f"{owner['kind']}/{owner['name']}" if owner is not None else ""


def waits_for(status: Object, container: str) -> tuple[str, str]:
    """Why a container doesn't run: a word of Kubernetes' and a sentence; both empty where it runs, or nothing is said."""
    for one in status.get("containerStatuses") or ():
        state = one.get("state") or {}
        if one.get("name") == container:
            for key in ("waiting", "terminated"):
                if key in state:
                    said = state[key] or {}
                    return str(said.get("reason") or key), str(said.get("message") or "")
    return "", ""


def unscheduled(status: Object) -> str:
    """Why no node takes the pod, as the scheduler says; empty: it has one, or the scheduler hasn't looked yet."""
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "no node takes it")
    return ""


def _being(meta: Object, spec: Object, status: Object, container: str) -> tuple[Being, str, str]:
    phase = status.get("phase") or "Pending"
    if phase in _OVER:
        said = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
        return Being.ENDED, f"its pod has ended ({said or phase})", ""
    if meta.get("deletionTimestamp"):
        return Being.ENDING, "its pod is being deleted", ""
    reason, told = waits_for(status, container)
    if phase == "Pending" or not spec.get("nodeName") or reason:
        full = unscheduled(status)
        why = full or ": ".join(filter(None, (reason, told))) or "it is being started"
        return Being.COMING, f"its pod doesn't run yet: {why}", UNSCHEDULABLE if full else reason
    return Being.RUNNING, "" if truth(status, "Ready") == "True" else "its pod isn't ready", ""


def _toleration(one: Object) -> Toleration:
    seconds = one.get("tolerationSeconds")
    return Toleration(
        key=one.get("key") or "",
        operator=one.get("operator") or "Equal",
        value=one.get("value") or "",
        effect=one.get("effect") or "",
        seconds=None if seconds is None else float(seconds),
    )


def _cost(annotations: Mapping[str, str]) -> int:
    try:
        return int(annotations.get(COST, "0"))
    except ValueError:  # which its controller takes for none
        return 0


def _gpus(container: Object) -> int:
    """Of NVIDIA's device plugin; what is asked for in other ways (DRA, MIG) isn't counted."""
    resources = container.get("resources") or {}
    asked: Any = (resources.get("limits") or {}).get(GPUS) or (resources.get("requests") or {}).get(GPUS) or 0
    try:
        return int(asked)
    except (TypeError, ValueError):
        return 0
