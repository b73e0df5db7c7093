"""Plays Dynamo's operator and what is below it, as far as tests need them. See dynamo/README.md for what it is and what it isn't."""

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import pytest
import yaml
from conftest import APPLY, admin
from control_plane import ROOT, ControlPlane, until
from shunter.cluster.access import Access
from shunter.cluster.api import Api

FOLDER = ROOT / "tests" / "apiserver" / "dynamo"
NAMES = itertools.count()
GRAPHS, ADAPTERS, DEPLOYMENTS = "dynamographdeployments", "dynamographdeploymentscalingadapters", "dynamocomponentdeployments"
COST = "controller.kubernetes.io/pod-deletion-cost"
RESTORE_FROM, RESTORED = "nvidia.com/restore-from", "nvidia.com/Restored"


def install(plane: ControlPlane) -> None:
    """The kinds and the webhook's rule, and wait until both are in force."""
    definitions = list(yaml.safe_load_all((FOLDER / "crds.yaml").read_text()))
    for one in definitions:
        where = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{one['metadata']['name']}"
        plane.must("PATCH", f"{where}?fieldManager=test&force=true&fieldValidation=Strict", one, APPLY)
    for one in definitions:
        plural = one["spec"]["names"]["plural"]
        for version in one["spec"]["versions"]:
            until(lambda p=plural, v=version["name"]: plane.ask("GET", f"/apis/nvidia.com/{v}/{p}")[0] == 200, 20, plural)
    for one in yaml.safe_load_all((FOLDER / "admission.yaml").read_text()):
        plural = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}.get(one["kind"], "validatingadmissionpolicybindings")
        where = f"/apis/admissionregistration.k8s.io/v1/{plural}/{one['metadata']['name']}"
        plane.must("PATCH", f"{where}?fieldManager=test&force=true&fieldValidation=Strict", one, APPLY)


class Site:
    """A namespace with one graph, `llama`: a frontend, prefill and decode, and whoever makes their pods."""

    def __init__(self, plane: ControlPlane, namespace: str, version: str = "v1beta1") -> None:
        self.plane, self.namespace, self.version = plane, namespace, version
        self.api = Api(admin(plane))
        self.gpus = 5
        """Pods of workers that can be scheduled at once."""
        self.stands = False
        """Nobody makes or removes anything."""
        self.history: list[tuple[int, int]] = []
        """How many decode and prefill pods there were, whenever that changed."""
        self._numbers = itertools.count()
        self._deployed: dict[str, int] = {}
        self._endpoints: list[Any] = []
        self.restores = "RestoreSucceeded"
        """The reason that Dynamo Snapshot's agent gives of each restore; empty: it says nothing of any."""
        self.serving_removed: list[str] = []
        """Pods that were ready when their controller removed them."""
        self.hash = "h1"
        """Of what the operator makes worker pods like."""
        self.ready_deleted: list[str] = []
        """Pods that were ready right before the engine deleted them; kept by whoever lets it do so (see `Noting`)."""
        self.first: Literal["", "own", "golden"] = ""
        """The scheduler comes before the controllers in each round: which pod it takes up first."""
        self.sentinel = False
        """What Dynamo Snapshot's agent leaves for the startup probe is there before the condition, and whatever that says."""
        self.slow = False
        """The kubelets look at no readiness gates."""

    def path(self, plural: str, name: str = "", version: str = "") -> str:
        root = "/api/v1" if plural == "pods" else f"/apis/nvidia.com/{version or self.version}"
        return f"{root}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    # -- what people do

    def graph(self, *, adapters: tuple[str, ...] = (), manager: str = "kubectl", **replicas: int) -> None:
        counts = {"frontend": 1, "prefill": 2, "decode": 3, **replicas}
        parts = {
            name: {
                **({"replicas": number} if number >= 0 else {}),
                **({"scalingAdapter": {"enabled": True} if self.version == "v1alpha1" else {}} if name in adapters else {}),
            }
            for name, number in counts.items()
        }
        if self.version == "v1alpha1":
            spec: Any = {"services": {name: {"componentType": _old(name)[0], **_old(name)[1], **part} for name, part in parts.items()}}
        else:
            spec = {"components": [{"name": name, "type": name, **part} for name, part in parts.items()]}
        body = {"apiVersion": f"nvidia.com/{self.version}", "kind": "DynamoGraphDeployment", "metadata": {"name": "llama"}, "spec": spec}
        self.plane.must("PATCH", f"{self.path(GRAPHS, 'llama')}?fieldManager={manager}&force=true", body, APPLY)
        for name in adapters:
            spec = {"dgdRef": {"name": "llama", "serviceName": name}, "replicas": counts[name]}
            body = {
                "apiVersion": f"nvidia.com/{self.version}", "kind": "DynamoGraphDeploymentScalingAdapter",
                "metadata": {"name": f"llama-{name}"}, "spec": spec,
            }  # fmt: skip
            self.plane.must("POST", f"{self.path(ADAPTERS)}?fieldManager=manager", body)

    def edit(self, plural: str, name: str, patch: Any, sub: str = "") -> None:
        """A merge patch, by nobody in particular."""
        self.plane.must("PATCH", self.path(plural, name) + sub, patch, "application/merge-patch+json")

    # -- what there is

    def get(self, plural: str, name: str) -> Any:
        return self.plane.must("GET", self.path(plural, name))

    def replicas(self, component: str) -> int:
        """By the graph."""
        spec = self.get(GRAPHS, "llama")["spec"]
        if "services" in spec:
            return int(spec["services"][component].get("replicas", 1))
        return int(next(one for one in spec["components"] if one["name"] == component).get("replicas", 1))

    def of_record(self, component: str) -> int:
        """By the adapter, if there is one."""
        status, found = self.plane.ask("GET", self.path(ADAPTERS, f"llama-{component}"))
        return int(found["spec"]["replicas"]) if status == 200 else self.replicas(component)

    def pods(self, component: str) -> dict[str, Any]:
        found = self.plane.must("GET", self.path("pods"))["items"]
        return {one["metadata"]["name"]: one for one in found if one["metadata"]["labels"].get("nvidia.com/dynamo-component") == component}

    # -- the operator and the controllers

    async def run(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # somebody else was faster: the next round sees it
                if not self.stands:
                    await self.reconcile()
            await asyncio.sleep(0.05)

    async def reconcile(self) -> None:
        """One round: adapters into the graph, the graph into what is below it, that into pods, and the pods into the graph's status."""
        graph = await self.api.get(self.path(GRAPHS, "llama"))
        graph = await self._adapt(graph)
        old = "services" in graph["spec"]
        parts = graph["spec"]["services"] if old else {one["name"]: one for one in graph["spec"]["components"]}
        counts = {}
        pods = (await self.api.get(self.path("pods")))["items"]
        if self.first:
            await self._schedule(pods)
        for name, part in parts.items():
            number = int(part.get("replicas", 1))
            await self._deploy(name, number)
            counts[name] = await self._scale(name, number, pods)
        for one in pods:
            if "pod-template-hash" not in one["metadata"]["labels"] and "nodeName" not in one["spec"]:
                await self._start(one)  # whoever made it has seen to its place
            await self._restore(one)
            await self._ready_or_not(one)
        await self._slices(pods)
        self._note(counts)
        statuses = {
            name: {
                "componentKind": "Deployment", "componentNames": [f"llama-{name}"], "replicas": counts[name][0],
                "updatedReplicas": counts[name][0], "readyReplicas": counts[name][1],
            }
            for name in parts
        }  # fmt: skip
        whole = all(counts[name][1] == int(part.get("replicas", 1)) for name, part in parts.items())
        status = {
            **(graph.get("status") or {}),
            "observedGeneration": graph["metadata"]["generation"],
            "state": "failed" if (graph.get("status") or {}).get("state") == "failed" else "successful" if whole else "pending",
            "services" if old else "components": statuses,
        }
        if status != graph.get("status"):
            await self.api.replace(f"{self.path(GRAPHS, 'llama')}/status", {**graph, "status": status})

    async def _adapt(self, graph: Any) -> Any:
        for one in (await self.api.get(self.path(ADAPTERS)))["items"]:
            name = one["spec"]["dgdRef"]["serviceName"]
            old = graph["spec"].get("services")
            part = old[name] if old else next(c for c in graph["spec"]["components"] if c["name"] == name)
            if part.get("replicas") != one["spec"]["replicas"]:
                part["replicas"] = one["spec"]["replicas"]
                graph = await self.api.replace(self.path(GRAPHS, "llama"), graph, {"fieldManager": "manager"})
        return graph

    async def _deploy(self, name: str, number: int) -> None:
        if self._deployed.get(name) == number:
            return
        body = {
            "apiVersion": f"nvidia.com/{self.version}", "kind": "DynamoComponentDeployment",
            "metadata": {"name": f"llama-{name}", "labels": {"nvidia.com/dynamo-graph-deployment-name": "llama"}},
            "spec": {"serviceName": name, "replicas": number},
        }  # fmt: skip
        await self.api.apply(self.path(DEPLOYMENTS, f"llama-{name}"), body, "manager")
        self._deployed[name] = number

    async def _scale(self, name: str, number: int, found: list[Any]) -> tuple[int, int]:
        own = [one for one in found if one["metadata"]["labels"].get("pod-template-hash") == f"{name}-5f"]
        await self._adopt(own, name)
        for one in sorted(own, key=_first_to_go)[: max(0, len(own) - number)]:
            await self.api.delete(self.path("pods", one["metadata"]["name"]))
            if is_ready(one):
                self.serving_removed.append(one["metadata"]["name"])
            own.remove(one)
            found.remove(one)
        new = [await self.api.create(self.path("pods"), self._pod(name)) for _ in range(number - len(own))]
        own += new
        found += new
        for one in own:
            if "nodeName" not in one["spec"]:
                busy = sum("nodeName" in other["spec"] for other in found if other["metadata"]["labels"]["role"] != "frontend")
                if name == "frontend" or busy < self.gpus:
                    await self._start(one)
        return len(own), sum(is_ready(one) for one in own)

    async def _schedule(self, found: list[Any]) -> None:
        """Workers' pods that have no node, before any controller has seen what is there."""
        waiting = [one for one in found if "nodeName" not in one["spec"] and one["metadata"]["labels"].get("role") != "frontend"]
        for one in sorted(waiting, key=lambda one: _restoring(one) != (self.first == "golden")):
            if sum("nodeName" in other["spec"] for other in found if other["metadata"]["labels"].get("role") != "frontend") < self.gpus:
                await self._start(one)

    def _pod(self, name: str) -> Any:
        labels = {
            "nvidia.com/dynamo-graph-deployment-name": "llama", "nvidia.com/dynamo-component": name,
            "nvidia.com/dynamo-component-type": name, "role": name, "pod-template-hash": f"{name}-5f",
            "nvidia.com/dynamo-worker-hash": self.hash,
        }  # fmt: skip
        meta = {"name": f"llama-{name}-5f-{next(self._numbers)}", "labels": labels, "ownerReferences": [_owner(name)]}
        main = {"name": "main", "image": "dynamo", "command": ["python3"], "args": ["-m", "dynamo.vllm"]}
        spec = {"containers": [main], "readinessGates": [{"conditionType": "shunter.dev/serving"}]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    async def _adopt(self, own: list[Any], name: str) -> None:
        """A pod that has the labels, and nobody's, is one of the controller's own from now on."""
        for one in own:
            if not one["metadata"].get("ownerReferences"):
                one["metadata"]["ownerReferences"] = [_owner(name)]
                one.update(await self.api.replace(self.path("pods", one["metadata"]["name"]), one))

    async def _start(self, pod: Any) -> None:
        """The scheduler, the kubelet and the worker at once: it serves, unless it waits to be restored."""
        pod["spec"]["nodeName"] = _node(pod)
        pod.update(await self.api.replace(self.path("pods", pod["metadata"]["name"]), pod))
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False" if _restoring(pod) else "True"}]}
        pod.update(await self.api.replace(self.path("pods", pod["metadata"]["name"]) + "/status", {**pod, "status": status}))

    async def _restore(self, pod: Any) -> None:
        """Dynamo Snapshot's agent on the pod's node, and the kubelet's startup probe: what is restored is ready."""
        if not (self.restores and _restoring(pod) and pod["spec"].get("nodeName")) or _condition(pod, RESTORED):
            return
        said = "True" if self.restores == "RestoreSucceeded" else "False"
        told = {"type": RESTORED, "status": said, "reason": self.restores, "message": "as the test has it"}
        status = {**pod["status"], "conditions": [{"type": "Ready", "status": "True" if self.sentinel else said}, told]}
        pod.update(await self.api.replace(self.path("pods", pod["metadata"]["name"]) + "/status", {**pod, "status": status}))

    async def _ready_or_not(self, pod: Any) -> None:
        """The kubelet: a pod whose readiness gate says no isn't ready. One of which nobody said anything counts as if its gate said yes."""
        conditions = {one["type"]: one["status"] for one in (pod.get("status") or {}).get("conditions") or ()}
        counted = "pod-template-hash" in pod["metadata"]["labels"]
        wanted = "True" if conditions.get("shunter.dev/serving", "True" if counted else "False") == "True" else "False"
        if _restoring(pod) and conditions.get(RESTORED) != "True" and not self.sentinel:
            wanted = "False"  # its startup probe
        if self.slow or self.stands or conditions.get("Ready") in (None, wanted):  # it may stand since this round began
            return
        status = pod["status"]
        status["conditions"] = [{**one, "status": wanted} if one["type"] == "Ready" else one for one in status["conditions"]]
        pod.update(await self.api.replace(self.path("pods", pod["metadata"]["name"]) + "/status", pod))

    async def _slices(self, pods: list[Any]) -> None:
        """The EndpointSlices' controller, for one Service of all workers."""
        endpoints = [
            {
                "addresses": ["10.0.0.1"], "conditions": {"ready": is_ready(one)},
                "targetRef": {"kind": "Pod", "name": one["metadata"]["name"], "uid": one["metadata"]["uid"]},
            }
            for one in pods
            if one["metadata"]["labels"]["role"] != "frontend"
        ]  # fmt: skip
        if endpoints == self._endpoints:
            return
        body = {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "llama-workers"},
            "addressType": "IPv4", "endpoints": endpoints,
        }  # fmt: skip
        where = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        await self.api.apply(f"{where}/llama-workers", body, "manager")
        self._endpoints = endpoints

    def _note(self, counts: dict[str, tuple[int, int]]) -> None:
        now = (counts["decode"][0], counts["prefill"][0])
        if not self.history or self.history[-1] != now:
            self.history.append(now)


def _owner(name: str) -> Any:
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"llama-{name}-5f", "uid": f"rs-{name}", "controller": True}


def _condition(pod: Any, kind: str) -> str:
    return next((one["status"] for one in (pod.get("status") or {}).get("conditions") or () if one["type"] == kind), "")


def _restoring(pod: Any) -> bool:
    return RESTORE_FROM in (pod["metadata"].get("annotations") or {})


def _node(pod: Any) -> str:
    """The one that it asks for by name, else any."""
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    fields = [field for term in affinity.get("nodeSelectorTerms") or () for field in term.get("matchFields") or ()]
    return str(fields[0]["values"][0]) if fields else "node-a"


def is_ready(pod: Any) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in (pod.get("status") or {}).get("conditions") or ())


def _first_to_go(pod: Any) -> Any:
    """ReplicaSet's order: no node, pending before unknown before running, not ready, the lowest cost, then the youngest."""
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    cost = int((pod["metadata"].get("annotations") or {}).get(COST, "0"))
    age = [-ord(letter) for letter in pod["metadata"]["creationTimestamp"]]
    order = ("Pending", "Unknown", "Running").index(phase)
    return bool(pod["spec"].get("nodeName")), order, is_ready(pod), cost, age, [-ord(c) for c in pod["metadata"]["name"]]


def _old(name: str) -> tuple[str, dict[str, str]]:
    """Type and subtype, as v1alpha1 had them."""
    return (name, {}) if name == "frontend" else ("worker", {"subComponentType": name})


COMPONENT: Final = [ROOT / "deploy" / "kubernetes" / "components" / "dynamo" / "rights.yaml"]
CHART: Final = [
    ROOT / "deploy" / "helm" / "shunter" / "templates" / f"{kind}-shunter-engine-dynamo.yaml" for kind in ("role", "role-binding")
]


def rights(files: list[Path], namespace: str) -> list[Any]:
    """Roles and their bindings, for that namespace; of the chart's files what Helm makes of them where they are chosen."""
    text = "\n---\n".join(file.read_text() for file in files).replace("{{ .Release.Namespace }}", "shunter")
    found = list(yaml.safe_load_all(re.sub(r"\{\{.*?\}\}", "", text)))
    for one in found:
        one["metadata"]["namespace"] = namespace
    return found


def engine_access(plane: ControlPlane, namespace: str, files: list[Path] = COMPONENT) -> Access:
    """As the engine, with the rights for Dynamo's graphs and no others."""
    for name in ("shunter",):
        plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    plane.ask("POST", "/api/v1/namespaces/shunter/serviceaccounts", {"metadata": {"name": "shunter-engine"}})
    for one in rights(files, namespace):
        plural = {"Role": "roles", "RoleBinding": "rolebindings"}[one["kind"]]
        plane.ask("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{plural}", one)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [plane.url]}}
    token = plane.must("POST", "/api/v1/namespaces/shunter/serviceaccounts/shunter-engine/token", body)["status"]["token"]
    return Access(server=plane.url, ca=plane.ca, token=token)


@pytest.fixture(scope="session")
def dynamo_plane(shared_plane: ControlPlane) -> ControlPlane:
    """The shared server, with Dynamo's kinds."""
    install(shared_plane)
    return shared_plane


@pytest.fixture
async def site(dynamo_plane: ControlPlane, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """A namespace of its own. The operator runs beside the test."""
    namespace = f"dynamo-{next(NAMES)}"
    dynamo_plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    found = Site(dynamo_plane, namespace, getattr(request, "param", "v1beta1"))
    task = asyncio.create_task(found.run())
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await found.api.aclose()


@pytest.fixture
async def engine(dynamo_plane: ControlPlane, site: Site) -> AsyncIterator[Api]:
    """The API server, as the engine may use it."""
    found = Api(engine_access(dynamo_plane, site.namespace))
    yield found
    await found.aclose()


def waiting(done: Any, within: float = 60.0) -> Any:
    """As `until`, for what happens in this very loop."""

    async def look() -> Any:
        async with asyncio.timeout(within):
            while not (found := done()):
                await asyncio.sleep(0.06)
            return found

    return look()


def names(found: dict[str, Any]) -> Iterator[str]:
    return iter(sorted(found))
