"""The pod that a worker is to come to, from the one that it leaves or from one of its pool. Pure.

It asks for the same GPUs, volumes and place in the network's policies, idles until an agent restores the worker into it, and stays out of
every Service until the engine says that it serves. No controller counts it before that: what makes it one of theirs is kept in an
annotation, and put on it when the worker has come.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from shunter.cluster.api import Object
from shunter.cluster.dynamo.words import COST, COST_BEFORE, UNDONE
from shunter.cluster.pods import HASH, JOINS, SPARE, chosen, json_of
from shunter.model.ids import NodeId, OperationId, WorkerId
from shunter.model.pod import CONTAINER, ENGINE, OPERATION, PLACEHOLDER, SERVING, STARTED_BY, STATE, WORKER

_HELD_BACK: Final = (HASH, "app.kubernetes.io/instance")
"""Labels by which a controller would take it at once, and end it as the one that isn't ready, or Argo CD prune it as one of its own."""
_NOT_COPIED: Final = (
    "argocd.argoproj.io/",
    "kubectl.kubernetes.io/",
    "kubernetes.io/config.",
    "cni.projectcalico.org/",
    "k8s.v1.cni.cncf.io/network-status",
    "k8s.ovn.org/",
    "nvidia.com/snapshot-",
    "nvidia.com/restore",
    COST,
    OPERATION,
    STARTED_BY,
    STATE,
    JOINS,
    SPARE,
    COST_BEFORE,
    UNDONE,
)
"""What others wrote about the one pod, or that would have them act on the new one."""
_ASSIGNED: Final = ("nodeName", "ephemeralContainers", "priority", "overhead", "schedulingGates")
"""What admission and the scheduler fill in, and what was added to the one pod by hand."""
_TOKEN: Final = re.compile(r"kube-api-access-[a-z0-9]{5}")
_NAME_MOST: Final = 63
IDLE: Final = PLACEHOLDER


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the new pod is for. `idle` is what its container runs until the worker comes."""

    operation: OperationId
    worker: WorkerId
    node: NodeId
    engine: str = ""
    idle: tuple[str, ...] = IDLE


def pod_name(operation: OperationId, worker: WorkerId, node: NodeId) -> str:
    """The same for the same: whoever takes the operation up finds the pod again, or can't make a second one."""
    mark = hashlib.sha256(f"{operation}\0{node}".encode()).hexdigest()[:10]
    base = re.sub(r"[^a-z0-9]+", "-", worker.lower()).strip("-")[: _NAME_MOST - len(mark) - 1].strip("-")
    return f"{base}-{mark}" if base else f"worker-{mark}"


def placeholder(source: Object, wanted: Wanted) -> Object:
    """The pod to create, from one as the server gives it."""
    meta, spec = source["metadata"], source["spec"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    kept = json_of(annotations.get(JOINS, ""))  # of one that was made so itself, and hasn't joined yet
    joins = {**kept, **{name: labels[name] for name in _HELD_BACK if name in labels}}
    container = chosen(spec, annotations)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(wanted.operation, wanted.worker, wanted.node),
            "namespace": meta["namespace"],
            "labels": {
                **{key: value for key, value in labels.items() if key not in _HELD_BACK and copied(key)},
                OPERATION: wanted.operation,
                STATE: "placeholder",
                **({ENGINE: wanted.engine} if wanted.engine else {}),
            },
            "annotations": {
                **{key: value for key, value in annotations.items() if copied(key)},
                WORKER: wanted.worker,
                CONTAINER: container.get("name", ""),
                JOINS: msgspec.json.encode(joins, order="sorted").decode(),
            },
        },
        "spec": _spec(spec, container.get("name", ""), wanted),
    }


def copied(key: str) -> bool:
    """A label or an annotation is of what the pod is for, and not about this one pod."""
    return not key.startswith(_NOT_COPIED)


def again(spec: Object) -> Object:
    """The specification of a pod to create, from one that was created: without what admission and the scheduler have filled in."""
    tokens = {one["name"] for one in spec.get("volumes") or () if _TOKEN.fullmatch(one.get("name", ""))}
    made: Object = msgspec.json.decode(msgspec.json.encode({key: value for key, value in spec.items() if key not in _ASSIGNED}))
    made["volumes"] = [one for one in made.get("volumes") or () if one["name"] not in tokens]
    for kind in ("containers", "initContainers"):
        made[kind] = [_mounted(one, tokens) for one in made.get(kind) or ()]
    return made


def _spec(given: Object, named: str, wanted: Wanted) -> Object:
    made = again(given)
    container: Object = next((one for one in made["containers"] if one.get("name", "") == named), {})
    made["initContainers"] = _initial(made, container)
    made["containers"] = [_idling(one, wanted) if one is container else one for one in made["containers"]]
    made["affinity"] = pinned(made.get("affinity") or {}, wanted.node)
    gates = [gate for gate in made.get("readinessGates") or () if gate.get("conditionType") != SERVING]
    made["readinessGates"] = [*gates, {"conditionType": SERVING}]
    made["restartPolicy"] = "Never"  # when the worker ends, so does the pod: what were started again would be an empty one
    return made


def _initial(spec: Object, worker: Object) -> list[Object]:
    """Init containers that have something to do in a new pod: those that go on beside the worker, that may set up the pod's own network (as
    a mesh's do), or that fill an emptyDir for others than the worker, or for it to read alone. What the others have left comes along in the
    worker's memory and files, or is in the volumes: to fetch weights again is what a move is too short for.
    """
    scratch = {one["name"] for one in spec.get("volumes") or () if "emptyDir" in one}
    wanted = scratch & {one["name"] for one in worker.get("volumeMounts") or () if one.get("readOnly")}
    for other in spec.get("containers") or ():
        if other is not worker:
            wanted |= scratch & _volumes(other)
    found: list[Object] = []
    for one in reversed(spec.get("initContainers") or []):
        if _begins_again(one) or wanted & _volumes(one):
            wanted |= scratch & _volumes(one)
            found.insert(0, one)
    return found


def _volumes(container: Object) -> set[str]:
    return {one["name"] for one in container.get("volumeMounts") or ()}


def _begins_again(container: Object) -> bool:
    security = container.get("securityContext") or {}
    added = (security.get("capabilities") or {}).get("add") or ()
    return container.get("restartPolicy") == "Always" or bool(security.get("privileged")) or not {"NET_ADMIN", "ALL"}.isdisjoint(added)


def _mounted(container: Object, without: set[str]) -> Object:
    """Without the token that admission adds again."""
    if not container.get("volumeMounts"):
        return container
    return {**container, "volumeMounts": [one for one in container["volumeMounts"] if one.get("name") not in without]}


def _idling(container: Object, wanted: Wanted) -> Object:
    """Nothing may end it because it doesn't answer: it idles first, and stands still later whenever it is moved again."""
    kept = {key: value for key, value in container.items() if key not in ("args", "livenessProbe", "startupProbe", "lifecycle")}
    if hook := (container.get("lifecycle") or {}).get("preStop"):
        kept["lifecycle"] = {"preStop": hook}
    return {**kept, "command": list(wanted.idle)}


def pinned(affinity: Mapping[str, Any], node: NodeId) -> Object:
    """To the one node, in each way in which the pod may be scheduled: what it asks of its node stays, and may refuse this one. By the
    scheduler all the same, as that knows whether there are GPUs left.
    """
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    nodes: Object = affinity.get("nodeAffinity") or {}
    terms = (nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or [{}]
    # a pod that was made for an earlier move names the node of that one
    here_alone = [
        {**term, "matchFields": [*(one for one in term.get("matchFields") or () if one.get("key") != here["key"]), here]} for term in terms
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": here_alone}}
    return {**affinity, "nodeAffinity": {**nodes, **required}}
