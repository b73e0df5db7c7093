"""What nobody else plays where there is an API server and no node: a scheduler, kubelets, and a ReplicaSet's controller.

What it is not: no container runs, no image is pulled, no volume is mounted, no probe is sent, no device plugin gives GPUs away. A pod that
has found a node is said to run after a moment, with an address of its own, and to be ready when its readiness gates are True; one that is
being deleted is gone after a moment. The scheduler knows node names, the pods' required node affinity by `metadata.name`, node selectors
by host name and the number of GPUs. The controller does what kubernetes' `ActivePodsWithRanks` says for phase, readiness, deletion cost
and age, and adopts pods that its selector matches. Agents are told nothing: whoever ends a container (`end`) does what an agent would have
done to its process.
"""

import copy
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from control_plane import ControlPlane

GPUS = "nvidia.com/gpu"
STRATEGIC = "application/strategic-merge-patch+json"


class Nodes:
    """Plays the nodes of a namespace's pods, in a thread, until it is closed. `gpus` by node."""

    def __init__(self, plane: ControlPlane, namespace: str, gpus: Mapping[str, int]) -> None:
        self._plane = copy.copy(plane)
        self._plane._kept = None  # a connection of its own: it isn't for two threads
        self.namespace, self.gpus = namespace, dict(gpus)
        self.stuck: dict[str, dict[str, Any]] = {}
        """By the beginning of a pod's name: the state of the container that never runs, such as `{"waiting": {"reason": ...}}`."""
        self.unready: set[str] = set()
        """Beginnings of names of pods whose containers run and don't answer their probes."""
        self.replicas: dict[str, tuple[dict[str, str], int, Callable[[str], dict[str, Any]]]] = {}
        """ReplicaSets by name: the selector, how many, and what makes a pod of a name."""
        self.seen_most: dict[str, int] = {}
        self._ended: set[str] = set()
        self._restarted: set[str] = set()
        self._number = 0
        self._stop = threading.Event()
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._plane._kept is not None:
            self._plane._kept.close()
        if self.failed is not None:
            raise self.failed

    def end(self, uid: str) -> None:
        """The pod's container has ended by itself, or by an agent."""
        self._ended.add(uid)

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.03):
                pods = self._pods()
                for pod in pods:
                    self._one(pod, pods)
                for name in tuple(self.replicas):
                    self._reconcile(name, self._pods())
        except BaseException as error:
            if not self._stop.is_set():
                self.failed = error

    def _pods(self) -> list[Any]:
        status, answer = self._plane.ask("GET", self.path)
        return answer["items"] if status == 200 else []

    # -- scheduler and kubelets

    def _one(self, pod: Any, pods: list[Any]) -> None:
        status = pod.get("status") or {}
        if pod["metadata"].get("deletionTimestamp"):
            self._plane.ask("DELETE", f"{self.path}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        elif status.get("phase") in ("Succeeded", "Failed"):
            return
        elif not pod["spec"].get("nodeName"):
            self._schedule(pod, pods)
        elif pod["spec"]["nodeName"] in self.gpus:
            wanted = self._status(pod)
            if any(status.get(key) != value for key, value in wanted.items() if key != "conditions") or self._conditions(status, wanted):
                self._tell(pod, wanted)

    def _schedule(self, pod: Any, pods: list[Any]) -> None:
        wanted = _gpus(pod)
        taken = {node: 0 for node in self.gpus}
        for other in pods:
            node = other["spec"].get("nodeName")
            if node in taken and (other.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                taken[node] += _gpus(other)
        for node in sorted(self.gpus):
            if _takes(pod, node) and self.gpus[node] - taken[node] >= wanted:
                self._bind(pod, node)
                return
        why = f"0/{len(self.gpus)} nodes are available: Insufficient {GPUS}."
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
        if not any(c.get("message") == why for c in (pod.get("status") or {}).get("conditions") or ()):
            self._tell(pod, {"phase": "Pending", "conditions": [said]})

    def _bind(self, pod: Any, node: str) -> None:
        name = pod["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": self.namespace}, "target": target}
        status, _ = self._plane.ask("POST", f"{self.path}/{name}/binding", body)
        if status >= 400:  # the default server has no such subresource, and takes it as a change
            self._plane.ask("PUT", f"{self.path}/{name}", {**pod, "spec": {**pod["spec"], "nodeName": node}})

    def _status(self, pod: Any) -> dict[str, Any]:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        status = pod.get("status") or {}
        stuck = next((state for start, state in self.stuck.items() if name.startswith(start)), None)
        containers = [one["name"] for one in pod["spec"]["containers"]]
        if uid in self._ended:
            if pod["spec"].get("restartPolicy") == "Never":
                return {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False", "reason": "PodCompleted"}]}
            self._ended.discard(uid)  # it is started again, natively: ready later
            self._restarted.add(uid)
        state = stuck or {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        running = stuck is None
        gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
        true = {c["type"] for c in status.get("conditions") or () if c["status"] == "True"}
        unready = uid in self._restarted or any(name.startswith(start) for start in self.unready)
        ready = running and set(gates) <= true and not unready
        octets = uuid.UUID(uid).bytes
        return {
            "phase": "Running" if running else "Pending",
            "podIP": f"10.{octets[0]}.{octets[1]}.{octets[2]}",
            "containerStatuses": [
                {"name": one, "state": state, "ready": running, "restartCount": 0, "image": "i", "imageID": "i"} for one in containers
            ],
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True" if ready else "False"}],
        }

    @staticmethod
    def _conditions(status: Any, wanted: Any) -> bool:
        """They differ in what is wanted."""
        have = {c["type"]: c["status"] for c in status.get("conditions") or ()}
        return any(have.get(c["type"]) != c["status"] for c in wanted["conditions"])

    def _tell(self, pod: Any, status: Any) -> None:
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        self._plane.ask("PATCH", f"{self.path}/{pod['metadata']['name']}/status", body, STRATEGIC)

    # -- a ReplicaSet's controller

    def _reconcile(self, name: str, pods: list[Any]) -> None:
        if name not in self.replicas:  # it was taken away meanwhile
            return
        selector, wanted, make = self.replicas[name]
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": f"uid-{name}", "controller": True}
        own = []
        for pod in pods:
            meta, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
            labels = meta.get("labels") or {}
            if any(labels.get(key) != value for key, value in selector.items()) or phase in ("Succeeded", "Failed"):
                continue
            if not meta.get("ownerReferences"):
                self._plane.ask("PATCH", f"{self.path}/{meta['name']}", {"metadata": {"ownerReferences": [owner]}}, STRATEGIC)
            if not meta.get("deletionTimestamp"):
                own.append(pod)
        self.seen_most[name] = max(self.seen_most.get(name, 0), len(own))
        for _ in range(wanted - len(own)):
            self._number += 1
            made = make(f"{name}-{self._number:05d}")
            made["metadata"]["ownerReferences"] = [owner]
            self._plane.ask("POST", self.path, made)
        newest = sorted(own, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]), reverse=True)
        for pod in sorted(newest, key=_rank)[: max(0, len(own) - wanted)]:
            self._plane.ask("DELETE", f"{self.path}/{pod['metadata']['name']}")


def _rank(pod: Any) -> tuple[bool, int, bool, int]:
    """Who goes first."""
    status, meta = pod.get("status") or {}, pod["metadata"]
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    phase = {"Pending": 0, "Running": 2}.get(status.get("phase", "Pending"), 1)
    cost = int((meta.get("annotations") or {}).get("controller.kubernetes.io/pod-deletion-cost", "0"))
    return bool(pod["spec"].get("nodeName")), phase, ready, cost


def _gpus(pod: Any) -> int:
    asked = ((one.get("resources") or {}).get("limits") or {} for one in pod["spec"]["containers"])
    return sum(int(limits.get(GPUS, 0)) for limits in asked)


def _takes(pod: Any, node: str) -> bool:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or [{}]
    fits = any(all(node in field["values"] for field in term.get("matchFields") or ()) for term in terms)
    wanted = (pod["spec"].get("nodeSelector") or {}).get("kubernetes.io/hostname", node)
    return fits and bool(wanted == node)


def worker(name: str, namespace: str, node: str = "", *, gpus: int = 1, role: str = "decode", **labels: str) -> dict[str, Any]:
    """A pod such as Dynamo's operator has it made."""
    spec: dict[str, Any] = {
        "containers": [
            {
                "name": "main", "image": "registry.example.com/vllm:1",
                "command": ["python3", "-m", "dynamo.vllm"], "args": ["--model", "x"],
                "env": [{"name": "HF_HOME", "value": "/models"}],
                "resources": {"limits": {GPUS: str(gpus)}} if gpus else {},
                "livenessProbe": {"httpGet": {"path": "/live", "port": 9090}},
                "readinessProbe": {"httpGet": {"path": "/health", "port": 9090}},
            }
        ],
        "terminationGracePeriodSeconds": 60,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }  # fmt: skip
    if node:
        spec["nodeName"] = node
    own = {"nvidia.com/dynamo-graph-deployment-name": "tiny", "nvidia.com/dynamo-component-type": "worker",
           "nvidia.com/dynamo-sub-component-type": role, **{key.replace("_", "-"): value for key, value in labels.items()}}  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": own}, "spec": spec}


def node(name: str, **labels: str) -> dict[str, Any]:
    """A Node that is ready."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": at, "reason": "KubeletReady", "message": ""}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"conditions": [ready]}}
