"""deploy/kubernetes in a real API server: it takes all of it, and each service account may do what it needs and nothing else.

Against the default server always, and against a genuine kube-apiserver where there is one (see README.md).
"""

import asyncio
import copy
import os
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from conftest import APPLY, needed, running
from control_plane import ROOT, ControlPlane, until
from corpus import WHOLE
from nodes_simulated import Nodes, worker
from nodes_simulated import node as a_node
from shunter.app.clustered import Clustered
from shunter.app.policies import PolicyFeed
from shunter.cluster.access import Access
from shunter.cluster.api import Api
from shunter.cluster.elector import Elector, Term
from shunter.cluster.estate import Following, Where
from shunter.cluster.kinds import PLURALS, collection
from shunter.cluster.ledger import Ledger
from shunter.cluster.memory import Memory
from shunter.cluster.places import Pods
from shunter.cluster.policies import ClusterSource
from shunter.lang.load import load
from shunter.model.errors import Retry
from shunter.model.ids import Digest, Epoch, ImageId, Incarnation, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.pod import Resident

ENGINE = "system:serviceaccount:shunter:shunter-engine"
AGENT = "system:serviceaccount:shunter-agents:shunter-agent"
PREVIEW = "system:serviceaccount:shunter-policies:shunter-preview"
NOBODY = "system:serviceaccount:kube-public:nobody"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
WORKERS = "dynamo"
POLICIES = "shunter-policies"
NAMESPACES = ("shunter", POLICIES, "shunter-agents", "default", "kube-system", "")
PODS = ("StatefulSet", "DaemonSet")
Right = tuple[str, str, str, str]
"""Verb, group, resource with its subresource, namespace (empty: the whole cluster)."""


@pytest.fixture(scope="module")
def manifests() -> list[Any]:
    overlay = ROOT / "deploy" / "kubernetes" / "example"
    made = subprocess.run([needed("kubectl"), "kustomize", str(overlay)], check=True, capture_output=True, timeout=30)
    return list(yaml.safe_load_all(made.stdout))


@pytest.fixture(scope="module", params=["kube-apiserver", "kube-apiserver-1.20"])
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, manifests: list[Any]) -> Iterator[ControlPlane]:
    """A server to which everything was applied, as `kubectl apply --server-side` does."""
    for found in running(tmp_path_factory.mktemp("manifests"), request.param):
        old = request.param.endswith("1.20")
        paths = _paths(found)
        for one in manifests:
            if old and one["kind"] == "PodDisruptionBudget":
                continue  # its version came with 1.21
            where = _where(paths, one)
            if old:
                status, answer = found.ask("POST", where.rpartition("/")[0], _for_1_20(one))
            else:
                status, answer = found.ask("PATCH", f"{where}?fieldManager=test&force=true&fieldValidation=Strict", one, APPLY)
            assert status < 300, (where, answer)
            if one["kind"] == "CustomResourceDefinition":
                served(found, one["spec"]["names"]["plural"])
        yield found


def served(plane: ControlPlane, plural: str) -> None:
    until(lambda: plane.ask("GET", f"/apis/shunter.dev/v1alpha1/{plural}")[0] == 200, 20, plural)


def _for_1_20(one: Any) -> Any:
    """ReadWriteOncePod came with 1.22. Validation rules, which came with 1.25, it drops when something is created."""
    document = copy.deepcopy(one)
    for claim in document.get("spec", {}).get("volumeClaimTemplates", ()):
        claim["spec"]["accessModes"] = ["ReadWriteOnce"]
    return document


def _paths(plane: ControlPlane) -> dict[tuple[str, str], tuple[str, bool]]:
    """Group version and kind to the resource's name and whether it is in a namespace, of the kinds that are built in."""
    found = {}
    groups = {one["name"] for one in plane.must("GET", "/apis")["groups"]}
    policy = [one["groupVersion"] for one in plane.must("GET", "/apis/policy")["versions"]] if "policy" in groups else []
    for version in (*policy, "v1", "apps/v1", "rbac.authorization.k8s.io/v1", "networking.k8s.io/v1", "apiextensions.k8s.io/v1"):
        listed = plane.must("GET", f"/api/{version}" if version == "v1" else f"/apis/{version}")
        for one in listed["resources"]:
            if "/" not in one["name"]:
                found[version, one["kind"]] = (one["name"], one["namespaced"])
    return found


def _where(paths: dict[tuple[str, str], tuple[str, bool]], one: Any) -> str:
    version = one["apiVersion"]
    plural, namespaced = paths[version, one["kind"]]
    root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    inside = f"/namespaces/{one['metadata']['namespace']}" if namespaced else ""
    return f"{root}{inside}/{plural}/{one['metadata']['name']}"


def test_what_the_server_has_is_what_the_manifests_say(plane: ControlPlane, manifests: list[Any], request: pytest.FixtureRequest) -> None:
    """It may add to it. What it writes in another way would be a difference for good to whoever compares, as Argo CD does."""
    paths, old = _paths(plane), "kube-apiserver-1.20" in request.node.name
    compared = 0
    for one in manifests:
        said = _for_1_20(one) if old else one
        if old and one["kind"] in ("PodDisruptionBudget", "CustomResourceDefinition"):
            continue  # there is none; validation rules are dropped
        found = plane.must("GET", _where(paths, said))
        parts = said.keys() - {"apiVersion", "kind", "metadata"}
        assert [other for part in sorted(parts) for other in _differs(said[part], found.get(part), f"{one['kind']} {part}")] == []
        compared += 1
    assert compared > 10


def _differs(said: Any, found: Any, path: str) -> Iterator[str]:
    if isinstance(said, dict) and isinstance(found, dict):
        for key, below in said.items():
            yield from _differs(below, found.get(key), f"{path}.{key}")
    elif isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        for index, below in enumerate(said):
            yield from _differs(below, found[index], f"{path}[{index}]")
    elif said != found:
        yield f"{path}: {said!r} is {found!r}"


# -- rights


def _resources(plane: ControlPlane) -> list[tuple[str, str, bool]]:
    """Every resource that the server has: group, name with subresource, whether it is in a namespace."""
    versions = [("", "/api/v1")]
    for group in plane.must("GET", "/apis")["groups"]:
        version = group["preferredVersion"]["groupVersion"]
        versions.append((group["name"], f"/apis/{version}"))
    return [(group, one["name"], one["namespaced"]) for group, path in versions for one in plane.must("GET", path)["resources"]]


def _may(plane: ControlPlane, user: str, right: Right, name: str = "") -> bool:
    verb, group, resource, namespace = right
    plural, _, sub = resource.partition("/")
    _, _, home, _ = user.split(":")
    spec = {
        "user": user,
        "groups": ["system:serviceaccounts", f"system:serviceaccounts:{home}", "system:authenticated"],
        "resourceAttributes": {"verb": verb, "group": group, "resource": plural, "subresource": sub, "namespace": namespace, "name": name},
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool(plane.must("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"])


@cache
def _rights(plane: ControlPlane, user: str) -> set[Right]:
    asked = [
        (verb, group, resource, namespace)
        for group, resource, namespaced in _resources(plane)
        for namespace in (NAMESPACES if namespaced else ("",))
        for verb in VERBS
    ]
    assert len(asked) > 1_000
    return {right for right in asked if _may(plane, user, right)}


def test_the_engine_may_read_policies_tell_their_status_keep_operations_and_hold_its_lease_and_nothing_else(plane: ControlPlane) -> None:
    policies = {(verb, "shunter.dev", plural, POLICIES) for plural in PLURALS.values() for verb in ("get", "list", "watch")}
    statuses = {("patch", "shunter.dev", f"{plural}/status", POLICIES) for plural in PLURALS.values()}
    lease = {("create", "coordination.k8s.io", "leases", "shunter")}
    operations = {(verb, "shunter.dev", "workeroperations", "shunter") for verb in ("get", "list", "create", "update", "delete")}
    operations |= {("update", "shunter.dev", "workeroperations/status", "shunter"), ("create", "", "configmaps", "shunter")}
    operations |= {(verb, "", "events", place) for place in ("shunter", "default") for verb in ("create", "patch")}
    assert _rights(plane, ENGINE) - _rights(plane, NOBODY) == policies | statuses | lease | operations
    for verb, allowed in (("get", True), ("update", True), ("delete", False), ("patch", False), ("list", False), ("watch", False)):
        assert _may(plane, ENGINE, (verb, "", "configmaps", "shunter"), "shunter-memory") is allowed
        assert not _may(plane, ENGINE, (verb, "", "configmaps", "shunter"), "shunter-engine-settings"), "its own settings least of all"
        assert not _may(plane, ENGINE, (verb, "", "configmaps", "shunter-agents"), "shunter-memory")
    for verb, allowed in (("get", True), ("update", True), ("delete", False), ("patch", False)):
        assert _may(plane, ENGINE, (verb, "coordination.k8s.io", "leases", "shunter"), "shunter-leader") is allowed
        assert not _may(plane, ENGINE, (verb, "coordination.k8s.io", "leases", "shunter"), "another")
        assert not _may(plane, ENGINE, (verb, "coordination.k8s.io", "leases", "kube-system"), "shunter-leader")


def test_among_policies_the_engine_makes_nothing_and_reads_nothing_else(plane: ControlPlane) -> None:
    """Whatever kinds this server has: what nobody gave, it doesn't have."""
    for resource in ("secrets", "configmaps", "serviceaccounts", "pods", "pods/exec", "events"):
        assert [verb for verb in VERBS if _may(plane, ENGINE, (verb, "", resource, POLICIES))] == [], resource
    assert not [verb for verb in VERBS if _may(plane, ENGINE, (verb, "batch", "jobs", POLICIES))]
    for plural in PLURALS.values():
        for place in ("shunter", "shunter-agents", "default", WORKERS, "somewhere-else", ""):
            assert [verb for verb in VERBS if _may(plane, ENGINE, (verb, "shunter.dev", plural, place))] == [], (plural, place)


def test_an_agent_may_nothing_that_nobody_may(plane: ControlPlane) -> None:
    assert _rights(plane, AGENT) == _rights(plane, NOBODY)


def test_an_agent_that_hears_of_notices_from_nodes_may_read_nodes_and_nothing_else(plane: ControlPlane, tmp_path: Path) -> None:
    """Last of what is asked of the agents: the component is applied on top, and taken away again."""
    deploy = ROOT / "deploy" / "kubernetes"
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(deploy / "example", tmp_path)],
        "components": [os.path.relpath(deploy / "components" / "node-notices", tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    made = subprocess.run([needed("kubectl"), "kustomize", str(tmp_path)], check=True, capture_output=True, timeout=30)
    built = list(yaml.safe_load_all(made.stdout))
    assert _pods(built)["shunter-agent"]["automountServiceAccountToken"] is True
    paths = _paths(plane)
    added = [one for one in built if one["metadata"]["name"] == "shunter-agent-notices"]
    assert len(added) == 2
    try:
        for one in added:
            plane.must("POST", _where(paths, one).rpartition("/")[0], one)
        wanted = {(verb, "", "nodes", "") for verb in ("get", "list", "watch")}
        until(lambda: _may(plane, AGENT, next(iter(wanted))), 10)
        assert _rights.__wrapped__(plane, AGENT) - _rights(plane, NOBODY) == wanted
    finally:
        for one in added:
            plane.ask("DELETE", _where(paths, one))


@pytest.fixture
def looks_after_pods(plane: ControlPlane) -> Iterator[None]:
    """The rights of deploy/kubernetes/components/worker-pods, on top of the others, and taken away again."""
    plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": WORKERS}})
    paths = _paths(plane)
    added = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "components" / "worker-pods" / "rights.yaml").read_text()))
    for one in added:
        plane.must("POST", _where(paths, one).rpartition("/")[0], one)
    until(lambda: _may(plane, ENGINE, ("list", "", "nodes", "")) and _may(plane, ENGINE, ("create", "", "pods", WORKERS)), 10)
    yield
    for one in added:
        plane.must("DELETE", _where(paths, one))
    until(lambda: not _may(plane, ENGINE, ("list", "", "nodes", "")), 10)


@pytest.mark.usefixtures("looks_after_pods")
async def test_an_engine_that_looks_after_pods_may_make_and_delete_them_among_the_workers_and_nowhere_else(plane: ControlPlane) -> None:
    """And with that it finds nodes, agents and workers, and makes, marks and deletes pods."""
    added = {("list", "", "nodes", ""), ("watch", "", "nodes", "")}
    added |= {(verb, "", "pods", "shunter-agents") for verb in ("list", "watch")}
    added |= {(verb, "", "pods", WORKERS) for verb in ("get", "list", "watch", "create", "patch", "delete")}
    added |= {("patch", "", "pods/status", WORKERS), ("create", "", "events", WORKERS), ("patch", "", "events", WORKERS)}
    asked = [
        (verb, group, resource, namespace)
        for group, resource, namespaced in _resources(plane)
        if group == ""
        for namespace in ((WORKERS, "shunter-agents", "kube-system") if namespaced else ("",))
        for verb in VERBS
    ]
    assert {right for right in asked if _may(plane, ENGINE, right) and not _may(plane, NOBODY, right)} == added
    for right in (("create", "", "pods/exec", WORKERS), ("patch", "apps", "replicasets", WORKERS), ("get", "", "secrets", WORKERS)):
        assert not _may(plane, ENGINE, right)
    for one in (a_node("node-a"), a_node("node-b")):
        plane.ask("POST", "/api/v1/nodes", one)
    plane.must("POST", f"/api/v1/namespaces/{WORKERS}/pods", worker("decode-0", WORKERS, "node-a"))
    played = Nodes(plane, WORKERS, {"node-a": 1, "node-b": 1})
    access = Access(server=plane.url, ca=plane.ca, token=_token(plane))
    following, api = Following(lambda: Api(access), Where(namespace=WORKERS)), Api(access)
    try:
        await asyncio.to_thread(following.wait, 10.0)
        until(lambda: [p.being.value for p in following.estate().pods.values()] == ["running"], 10)
        (left,) = (p.pod for p in following.estate().pods.values())
        pods = Pods(api, following.estate, "shunter.shunter-leader", "shunter")
        planned = PlannedOperation(
            id=OperationId("move-9"), kind=OperationKind.MOVE, worker=WorkerId("decode-0"), lane="voluntary", policy=PolicyName("p"),
            reason="r", expect=Preconditions(incarnation=Incarnation(0)), to_slot=SlotId("node-b/0"),
        )  # fmt: skip
        record = OperationRecord(planned=planned, plan=Digest("sha256:x"), epoch=Epoch(1), created_at=1.0)
        who = Resident(id=WorkerId("decode-0"), role="decode", graph="tiny", engine="vllm")
        pod = await pods.prepare(record, SlotId("node-b/0"), left, who, lambda: None)
        assert pod is not None
        await pods.keep(record, pod)
        await pods.retire(left)
        until(lambda: [p.pod.uid for p in following.estate().pods.values() if p.ready] == [pod.uid], 10)
        await pods.retire(pod)
        with pytest.raises(Retry) as raised:
            await api.get("/api/v1/namespaces/kube-system/pods")
        assert raised.value.problem.code == "SH255"
    finally:
        await asyncio.to_thread(following.close)
        await api.aclose()
        played.close()


@pytest.fixture
def previews(plane: ControlPlane) -> Iterator[list[Any]]:
    """What deploy/kubernetes/components/preview and preview-pods bring, on top of the others, and taken away again."""
    plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": WORKERS}})
    paths, components = _paths(plane), ROOT / "deploy" / "kubernetes" / "components"
    files = [components / "preview" / "account.yaml", components / "preview" / "network.yaml", components / "preview-pods" / "rights.yaml"]
    added = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    for one in added:
        plane.must("POST", _where(paths, one).rpartition("/")[0], one)
    until(lambda: _may(plane, PREVIEW, ("list", "", "nodes", "")) and _may(plane, PREVIEW, ("list", "", "pods", WORKERS)), 10)
    yield added
    for one in added:
        plane.must("DELETE", _where(paths, one))
    until(lambda: not _may(plane, PREVIEW, ("list", "", "nodes", "")), 10)


def test_a_preview_may_see_pods_and_nodes_and_nothing_else(plane: ControlPlane, previews: list[Any]) -> None:
    """Whoever merges policies can run jobs by this account: it changes nothing anywhere, and reads nothing that is the engine's."""
    may = {(verb, "", "nodes", "") for verb in ("list", "watch")}
    may |= {(verb, "", "pods", place) for place in ("shunter-agents", WORKERS) for verb in ("list", "watch")}
    found = _rights.__wrapped__(plane, PREVIEW) - _rights(plane, NOBODY)
    assert found == {right for right in may if right[3] in NAMESPACES}
    for right in may:
        assert _may(plane, PREVIEW, right)
    for place in ("shunter", POLICIES, "shunter-agents", WORKERS, "default"):
        for resource in ("secrets", "configmaps", "serviceaccounts", "serviceaccounts/token", "pods/exec", "pods/log", "events"):
            assert not [verb for verb in VERBS if _may(plane, PREVIEW, (verb, "", resource, place))], (resource, place)
        for plural in (*PLURALS.values(), "workeroperations"):
            assert not [verb for verb in VERBS if _may(plane, PREVIEW, (verb, "shunter.dev", plural, place))], (plural, place)
        assert not [verb for verb in VERBS if _may(plane, PREVIEW, (verb, "batch", "jobs", place))]
        assert not [verb for verb in VERBS if _may(plane, PREVIEW, (verb, "coordination.k8s.io", "leases", place))]
    (account,) = [one for one in previews if one["kind"] == "ServiceAccount"]
    assert account["automountServiceAccountToken"] is False, "only a pod that asks for it has the token"


@pytest.mark.usefixtures("previews")
def test_a_preview_may_read_of_dynamo_what_the_engine_reads_and_change_nothing(plane: ControlPlane) -> None:
    paths, components = _paths(plane), ROOT / "deploy" / "kubernetes" / "components"
    added = list(yaml.safe_load_all((components / "preview-dynamo" / "rights.yaml").read_text()))
    engines = next(yaml.safe_load_all((components / "dynamo" / "rights.yaml").read_text()))["rules"]
    read = {
        (group, one) for rule in engines for group in rule["apiGroups"] for one in rule["resources"] if "list" in rule["verbs"] and group
    }
    for one in added:
        plane.must("POST", _where(paths, one).rpartition("/")[0], one)
    try:
        until(lambda: _may(plane, PREVIEW, ("list", "nvidia.com", "podsnapshots", WORKERS)), 10)
        assert len(read) == 6
        for group, resource in read:
            assert [verb for verb in VERBS if _may(plane, PREVIEW, (verb, group, resource, WORKERS))] == ["list", "watch"], resource
            assert not [verb for verb in VERBS if _may(plane, PREVIEW, (verb, group, resource, "default"))], resource
        assert not [verb for verb in VERBS if _may(plane, PREVIEW, (verb, "", "pods/status", WORKERS))]
    finally:
        for one in added:
            plane.must("DELETE", _where(paths, one))


@pytest.mark.usefixtures("previews")
async def test_with_its_own_token_a_preview_finds_workers_and_agents(plane: ControlPlane) -> None:
    """The rights are enough for all that [cluster.pods] has a preview follow."""
    plane.ask("POST", "/api/v1/nodes", a_node("node-p"))
    plane.must("POST", f"/api/v1/namespaces/{WORKERS}/pods", worker("decode-p", WORKERS, "node-p"))
    access = Access(server=plane.url, ca=plane.ca, token=_token(plane, POLICIES, "shunter-preview"))
    following, api = Following(lambda: Api(access), Where(namespace=WORKERS)), Api(access)
    try:
        await asyncio.to_thread(following.wait, 10.0)
        assert "decode-p" in {pod.pod.name for pod in following.estate().pods.values()}
        for forbidden in ("/api/v1/namespaces/shunter/secrets", f"/api/v1/namespaces/{POLICIES}/secrets"):
            with pytest.raises(Retry) as raised:
                await api.get(forbidden)
            assert raised.value.problem.code == "SH255"
    finally:
        await asyncio.to_thread(following.close)
        await api.aclose()
        plane.must("DELETE", f"/api/v1/namespaces/{WORKERS}/pods/decode-p")


def _token(plane: ControlPlane, namespace: str = "shunter", account: str = "shunter-engine") -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [plane.url]}}
    return str(plane.must("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", body)["status"]["token"])


def test_whoever_sees_a_namespace_sees_operations_and_changes_none(plane: ControlPlane) -> None:
    role = plane.must("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/shunter-policies-view")
    assert role["metadata"]["labels"] == {"rbac.authorization.k8s.io/aggregate-to-view": "true", "app.kubernetes.io/part-of": "shunter"}
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert set(role["rules"][0]["resources"]) == {*PLURALS.values(), "workeroperations"}


def test_nobody_may_become_another_or_widen_what_it_may(plane: ControlPlane) -> None:
    for user in (ENGINE, AGENT, PREVIEW):
        for resource in ("users", "groups", "serviceaccounts"):
            assert not _may(plane, user, ("impersonate", "", resource, ""))
        for verb in ("bind", "escalate"):
            assert not _may(plane, user, (verb, "rbac.authorization.k8s.io", "roles", "shunter"))
        assert not _may(plane, user, ("create", "", "serviceaccounts/token", "shunter"))
        assert not _may(plane, user, ("get", "", "nodes/proxy", ""))
        assert not _may(plane, user, ("create", "", "pods/exec", "shunter"))


async def test_with_its_own_token_the_engine_does_all_that_it_does(plane: ControlPlane) -> None:
    """The rights are not only narrow, they are enough: for policies, their status, and the Lease."""
    access = Access(server=plane.url, ca=plane.ca, token=_token(plane))
    kind, name = WHOLE["images"]["kind"], "images"
    where = f"{collection(kind, POLICIES)}/{name}"
    plane.must("PATCH", f"{where}?fieldManager=argocd-controller&force=true", WHOLE["images"], APPLY)
    source = ClusterSource(lambda: Api(access), POLICIES, settle_s=0.1, quiet_s=0.0)
    try:
        policies = load(source.read(source.fetch()), None)
        assert [policy.name for policy in policies.policies] == [name]
        source.report(policies, [], time.time())
        until(lambda: "status" in plane.must("GET", where), 10)
        assert source.status_problem is None
    finally:
        source.close()
    api = Api(access)
    epochs = []

    async def work(term: Term) -> None:
        epochs.append(term.epoch)

    for _ in range(2):  # made, and taken again
        elector = Elector(api, "shunter", "shunter-leader", "me")
        try:
            async with asyncio.timeout(10):
                await elector.lead(work)
        except TimeoutError:
            pytest.fail(f"it doesn't lead: {elector.problem}")
    assert epochs == [1, 2]
    await _keep_an_operation(plane, access)
    with pytest.raises(Retry) as raised:
        await api.apply(where, {**WHOLE["images"], "spec": {**WHOLE["images"]["spec"], "mode": "off"}}, "shunter-engine")
    assert raised.value.problem.code == "SH255", "it can't change a policy"
    await api.aclose()


async def test_an_engine_keeps_what_was_in_force_where_it_may_not_read_policies(plane: ControlPlane, tmp_path: Path) -> None:
    """Rights and settings needn't change at the same moment when policies move to another namespace."""
    access = Access(server=plane.url, ca=plane.ca, token=_token(plane))
    kind = WHOLE["images"]["kind"]
    for place in ("shunter", POLICIES):
        plane.must("PATCH", f"{collection(kind, place)}/images?fieldManager=argocd-controller&force=true", WHOLE["images"], APPLY)
    found = []
    for place in (POLICIES, "shunter"):
        source = Clustered(ClusterSource(lambda: Api(access), place, settle_s=0.1, quiet_s=0.0, patience_s=2.0), tmp_path / "kept")
        feed = PolicyFeed(source, time.time)
        try:
            await feed.refresh()
            await feed.refresh()
        finally:
            source.close()
        assert feed.current is not None
        found.append(([policy.name for policy in feed.current.policies], feed.problem.code if feed.problem else ""))
    assert found == [(["images"], ""), (["images"], "SH255")]


async def _keep_an_operation(plane: ControlPlane, access: Access) -> None:
    """From its intent until its resource is gone, and the fleet with it."""
    term = Term(Epoch(9), 0.0, 60.0, lambda: 0.0)
    ledger, memory = Ledger(Api(access), "shunter", term.epoch), Memory(Api(access), "shunter")
    planned = PlannedOperation(
        id=OperationId("discard-1"), kind=OperationKind.DISCARD, worker=WorkerId("w"), lane="voluntary", policy=PolicyName("p"),
        reason="old", expect=Preconditions(incarnation=Incarnation(0)), image=ImageId("i"),
    )  # fmt: skip
    record = OperationRecord(planned=planned, plan=Digest("sha256:x"), epoch=term.epoch, created_at=1.0)
    works = [asyncio.create_task(ledger.run()), asyncio.create_task(memory.run())]
    try:
        assert await ledger.load() == []
        await ledger.put([record], together=True)
        await ledger.put([msgspec.structs.replace(record, outcome=Outcome(status=Status.SUCCEEDED, at=time.time()))], together=True)
        memory.offer(term.epoch, lambda: b"fleet")
        where = "/apis/shunter.dev/v1alpha1/namespaces/shunter/workeroperations/discard-1"
        async with asyncio.timeout(10):
            while plane.must("GET", where)["metadata"].get("finalizers") or (await memory.load())[1] != b"fleet":
                assert ledger.problem is None
                assert memory.problem is None
                await asyncio.sleep(0.05)
    finally:
        ledger.stop()
        await works[0]
        works[1].cancel()
        await asyncio.gather(works[1], return_exceptions=True)
        await asyncio.gather(ledger._api.aclose(), memory._api.aclose())


# -- manifests


def _pods(manifests: list[Any]) -> dict[str, Any]:
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in manifests if one["kind"] in PODS}


def test_the_engines_pod_is_one_that_a_restricted_namespace_takes(manifests: list[Any]) -> None:
    pod = _pods(manifests)["shunter-engine"]
    [container] = pod["containers"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_tokens_are_mounted_where_they_are_needed_only(manifests: list[Any]) -> None:
    pods = _pods(manifests)
    assert pods["shunter-engine"]["automountServiceAccountToken"] is True
    assert pods["shunter-agent"]["automountServiceAccountToken"] is False
    assert all(one["automountServiceAccountToken"] is False for one in manifests if one["kind"] == "ServiceAccount")


def test_what_pods_mount_is_there(manifests: list[Any]) -> None:
    made = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in manifests}
    for one in manifests:
        if one["kind"] not in PODS:
            continue
        namespace, pod = one["metadata"]["namespace"], one["spec"]["template"]["spec"]
        assert ("ServiceAccount", namespace, pod["serviceAccountName"]) in made
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for claim in one["spec"].get("volumeClaimTemplates", ()):
            volumes[claim["metadata"]["name"]] = {}
        assert all(mount["name"] in volumes for mount in pod["containers"][0]["volumeMounts"])
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", namespace, volume["configMap"]["name"]) in made


def test_the_settings_in_the_overlay_are_ones_that_engine_and_agents_take(manifests: list[Any], tmp_path: Path) -> None:
    from shunter.app.settings import load as engine_settings
    from shunter_agent.settings import load as agent_settings

    files = {name: text for one in manifests if one["kind"] == "ConfigMap" for name, text in one["data"].items()}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    engine = engine_settings(tmp_path / "engine.toml")
    assert engine.policies.cluster is not None
    agents = {agent.node: agent.address for agent in engine.agents}
    assert agents
    for node, address in agents.items():
        agent = agent_settings(tmp_path / f"{node}.toml")
        assert (agent.node, agent.listen) == (node, address)
