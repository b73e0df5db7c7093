"""Which golden image a pool's new worker can start from, and the pod that does. Pure.

Dynamo Snapshot's agent restores a pod that has, when it is created, an annotation with the PodSnapshot's name, a volume by which the two
speak to each other, and a container that idles until then (its "Restore Pod contract"). It completes nothing itself: whoever makes the pod
does. A Dynamo engine idles where its environment says so, and notes there what the restored process is to know of its new pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from shunter.cluster.api import Object
from shunter.cluster.dynamo.parse import standby
from shunter.cluster.dynamo.values import Golden, Graph, Pod
from shunter.cluster.dynamo.words import COST, RESTORE_FROM, RESTORED, SUPPORTED
from shunter.cluster.pods import controller, truth, worker_pod
from shunter.cluster.template import again, copied, pinned
from shunter.model.ids import NodeId
from shunter.model.pod import OPERATION, STARTED_BY, Started

_VOLUME, _AT = "snapshot-control", "/snapshot-control"
_TOLD: Final = {
    "SNAPSHOT_CONTROL_DIR": _AT,
    "DYN_SNAPSHOT_CONTROL_DIR": _AT,
    "SNAPSHOT_RESTORE_STANDBY": "1",
    "DYN_SNAPSHOT_RESTORE_STANDBY": "1",
}
"""Of the environment, by the names of now and of the releases before."""
_GATE: Final = {
    "exec": {"command": ["cat", f"{_AT}/restore-complete"]},
    "timeoutSeconds": 1,
    "periodSeconds": 1,
    "failureThreshold": 1800,
    "successThreshold": 1,
}
"""Until it is restored the pod isn't ready, and nothing asks it whether it lives."""
_SECCOMP: Final = {"type": "Localhost", "localhostProfile": "profiles/block-iouring.json"}
"""As Dynamo Snapshot's chart installs it on each node: what CRIU can't restore isn't to be used after it either."""
_FAILED: Final = ("RestoreFailed", "RestoreIncompatible", "RestorePartiallySucceeded", "RestoreReplenishmentIncompatible")
"""Reasons for which a restore is over; others are on the way."""
_NODES: Final = ("UnexpectedAdmissionError", "NodeAffinity", "Evicted", "Preempting", "NodeShutdown", "Terminated", "Shutdown", "NodeLost")
"""Reasons for which a node doesn't take a pod, or has ended it, which say nothing of the image; `OutOf...` besides."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The golden image to start from; empty: none, and why."""

    name: str = ""
    why: str = ""


def choose(golden: Iterable[Golden], pods: Sequence[Pod], graph: Graph, component: str) -> Choice | None:
    """The newest that a component's pods can start from. `pods` are those that its controller counts. None: there is none of it at all."""
    own = [one for one in golden if (one.namespace, one.graph, one.component) == (graph.namespace, graph.name, component)]
    if not own:
        return None
    there = [one for one in pods if not one.leaving and not one.moved]
    if why := unfit_pods(there):
        return Choice(why=why)
    found = {
        one.name: unfit(one, graph, there[0].worker_hash) for one in sorted(own, key=lambda one: (one.created, one.name), reverse=True)
    }
    best = next((name for name, why in found.items() if not why), "")
    return Choice(name=best) if best else Choice(why="; ".join(f"{name} {why}" for name, why in found.items()))


def unfit_pods(pods: Sequence[Pod]) -> str:
    """Why none of a component's pods can start from a golden image, by those that its controller has made; empty: they can."""
    if any(one.restored for one in pods):
        return "Dynamo's operator has them restored itself, from the component's own checkpoints"
    if not pods:
        return "it has no pod of its controller's own that says what one has to be like"
    if any(not one.standby for one in pods):
        return "their container doesn't run an engine of Dynamo's by itself (python3 -m dynamo.vllm), which could be asked to wait"
    if len({one.worker_hash for one in pods}) > 1:
        return "they aren't all of one version"
    return ""


def unfit(one: Golden, graph: Graph, current: str) -> str:
    """Why a graph's pods of the version `current` can't start from it, as the rest of a sentence; empty: they can."""
    if not one.ready:
        return "isn't ready"
    if (one.automatic or one.owner) and one.owner != graph.uid:
        whose = f"another graph ({one.owner})" if one.owner else "one that isn't said"
        return f"was taken for {whose}, and not for {graph.name} as it is now ({graph.uid})"
    if one.compatibility and one.compatibility not in SUPPORTED:
        return f"is by Dynamo's compatibility version {one.compatibility}, and {', '.join(SUPPORTED)} is what is known"
    if not one.worker_hash or one.worker_hash != current:
        return f"is of version {one.worker_hash or 'unknown'}, and the pool is of {current or 'unknown'}"
    if one.gms not in ("", "disabled"):
        return f"was taken with GPU memory served besides ({one.gms})"
    return ""


def native(found: Object) -> bool:
    """The pod is as its controller has made it: none of ours, whose containers wait for a worker."""
    labels = found["metadata"].get("labels") or {}
    return controller(found["metadata"]).startswith("ReplicaSet/") and OPERATION not in labels and STARTED_BY not in labels


def refuses(source: Object, container: str) -> str:
    """Why no pod that is like this one can be restored by Dynamo Snapshot; empty: one can."""
    spec = source["spec"]
    own = next((one for one in spec.get("containers") or () if one.get("name") == container), None)
    if own is None:
        return f"the golden image is of a container {container}, and the pool's pods have none of that name"
    if not standby(own):
        return f"the container {container} doesn't run an engine of Dynamo's by itself, which could be asked to wait"
    taken = [one for one in spec.get("volumes") or () if one.get("name") == _VOLUME and "emptyDir" not in one]
    mounts = [one for one in own.get("volumeMounts") or () if one.get("name") == _VOLUME or one.get("mountPath") == _AT]
    if taken or any((one.get("name"), one.get("mountPath"), one.get("subPath")) != (_VOLUME, _AT, container) for one in mounts):
        return f"the pool's pods have something else at {_AT}"
    said = {one.get("name"): one.get("value") for one in own.get("env") or () if one.get("name") in _TOLD}
    if any(value != _TOLD[name] for name, value in said.items()):
        return f"the pool's pods set {', '.join(sorted(said))} otherwise"
    return ""


def restoring(source: Object, golden: Golden, node: NodeId, name: str, ours: Mapping[str, str]) -> Object:
    """The pod to create, like `source`, a native one of the same controller: it is one of that controller's from the start. `ours` are
    labels that say who has made it.
    """
    meta, spec = source["metadata"], again(source["spec"])
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    spec["affinity"] = pinned(spec.get("affinity") or {}, node)
    if not any(one.get("name") == _VOLUME for one in spec["volumes"]):
        spec["volumes"].append({"name": _VOLUME, "emptyDir": {}})
    spec["containers"] = [_idling(one) if one["name"] == golden.container else one for one in spec["containers"]]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {**{key: value for key, value in labels.items() if copied(key)}, **ours},
            "annotations": {
                **{key: value for key, value in annotations.items() if copied(key)},
                RESTORE_FROM: golden.name,
                COST: "1",
            },
        },
        "spec": spec,
    }


def _idling(container: Object) -> Object:
    mounts = container.get("volumeMounts") or []
    if not any(one.get("name") == _VOLUME for one in mounts):
        mounts = [*mounts, {"name": _VOLUME, "mountPath": _AT, "subPath": container["name"]}]
    env: list[Any] = [one for one in container.get("env") or () if one.get("name") not in _TOLD]
    security = container.get("securityContext") or {}
    return {
        **container,
        "env": [*env, *({"name": name, "value": value} for name, value in _TOLD.items())],
        "volumeMounts": mounts,
        "startupProbe": _GATE,
        "securityContext": {"seccompProfile": _SECCOMP, **security},
    }


def outcome(found: Object) -> Started:
    """How far a pod that starts from a golden image has come, by the pod. What is ready serves, whatever Dynamo Snapshot's agent has said
    of it so far: it lets the kubelet find it ready first, and writes its condition later, if it can.
    """
    meta, status = found["metadata"], found.get("status") or {}
    if meta.get("deletionTimestamp"):
        return Started(state="instead", why="its controller, or somebody else, has removed its pod")
    told: Object = next((one for one in status.get("conditions") or () if one.get("type") == RESTORED), {})
    said = ": ".join(str(told[key]) for key in ("reason", "message") if told.get(key))
    if told.get("status") == "False" and told.get("reason") in _FAILED:
        return Started(state="failed", why=said)
    if status.get("phase") in ("Succeeded", "Failed"):
        reason = str(status.get("reason") or "")
        state: Literal["instead", "failed"] = "instead" if reason.startswith("OutOf") or reason in _NODES else "failed"
        return Started(state=state, why=f"its pod has ended ({reason or status['phase']})")
    if ready(found):
        return Started(state="serves")
    if told.get("status") == "True":
        return Started(state="coming", why="it is restored, and its pod isn't ready")
    known = worker_pod(found)
    waits = known.why if known is not None and known.why and not said else f"it isn't restored yet ({said or 'nothing is said of it'})"
    return Started(state="coming", why=waits)


def ready(found: Object) -> bool:
    """Requests come to it: nobody of ours removes it."""
    status = found.get("status") or {}
    return status.get("phase") not in ("Succeeded", "Failed") and truth(status, "Ready") == "True"


def asleep(found: Object) -> bool:
    """What runs in it waits to be restored: it never was, or a container of it was started again since then. One that was restored and
    only isn't ready may be so again by itself.
    """
    status = found.get("status") or {}
    again = any(int(one.get("restartCount") or 0) > 0 for one in status.get("containerStatuses") or ())
    return again or truth(status, RESTORED) != "True"


def orphan(found: Object) -> bool:
    """No controller counts it as one of its own."""
    return not controller(found["metadata"])
