"""What pods and nodes say, what a new pod is made of, and the fleet that agents and the API server make together."""

import copy
from typing import Any

import msgspec
import pytest
from shunter.cluster.estate import Estate
from shunter.cluster.joined import forgotten, joined, reported
from shunter.cluster.nodes import agent_pod, cluster_node
from shunter.cluster.pods import Being, WorkerPod, worker_pod
from shunter.cluster.template import Wanted, placeholder, pod_name
from shunter.model.errors import Problem
from shunter.model.ids import Incarnation, NodeId, OperationId, SlotId, WorkerId
from shunter.model.pod import GRAPH, OPERATION, ROLE, SERVING, STATE, WORKER, Pod, resident
from shunter.model.snapshot import Fleet, Node, Slot, Taint, Worker, WorkerState

RUNNING = {
    "phase": "Running", "podIP": "10.1.2.3",
    "containerStatuses": [{"name": "main", "state": {"running": {}}}],
    "conditions": [{"type": "Ready", "status": "True"}],
}  # fmt: skip
DYNAMO = {"nvidia.com/dynamo-graph-deployment-name": "tiny", "nvidia.com/dynamo-component-type": "worker",
          "nvidia.com/dynamo-sub-component-type": "decode", "pod-template-hash": "5f9c"}  # fmt: skip
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "decode-5f9c", "uid": "rs", "controller": True}


def raw(name: str = "decode-0", node: str | None = "node-a", status: Any = None, **meta: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "containers": [
            {"name": "sidecar", "image": "s"},
            {
                "name": "main", "image": "vllm:1", "command": ["python3", "-m", "dynamo.vllm"], "args": ["--model", "x"],
                "resources": {"limits": {"nvidia.com/gpu": "8"}}, "env": [{"name": "A", "value": "b"}],
                "livenessProbe": {"httpGet": {}}, "startupProbe": {"httpGet": {}}, "readinessProbe": {"httpGet": {"port": 9090}},
                "lifecycle": {"postStart": {"exec": {}}, "preStop": {"exec": {"command": ["drain"]}}},
                "volumeMounts": [{"name": "models", "mountPath": "/m"}, {"name": "kube-api-access-x7x9q", "mountPath": "/var/run"}],
            },
        ],
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "m"}}, {"name": "kube-api-access-x7x9q", "projected": {}}],
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}],
        "priority": 1000, "priorityClassName": "high", "restartPolicy": "Always", "serviceAccountName": "dynamo",
    }  # fmt: skip
    if node:
        spec["nodeName"] = node
    given = {"name": name, "namespace": "dynamo", "uid": f"uid-{name}", "labels": dict(DYNAMO), "ownerReferences": [OWNER]}
    return {"metadata": {**given, **meta}, "spec": spec, "status": RUNNING if status is None else status}


def read(found: dict[str, Any]) -> WorkerPod:
    pod = worker_pod(found)
    assert pod is not None
    return pod


# -- reading


def test_a_workers_pod_says_who_where_and_how_much() -> None:
    pod = read(raw())
    assert (pod.resident.id, pod.resident.role, pod.resident.graph, pod.resident.engine) == ("decode-0", "decode", "tiny", "vllm")
    assert (pod.node, pod.gpus, pod.controller, pod.pod.container) == ("node-a", 8, "ReplicaSet/decode-5f9c", "main")
    assert (pod.being, pod.ready, pod.why, pod.held_by, pod.address) == (Being.RUNNING, True, "", "", "10.1.2.3")
    assert not pod.tolerations[0].tolerates(Taint(key="spot", effect="NoExecute")), "not for ever"


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        ({"nvidia.com/dynamo-component-type": "prefill"}, "prefill"),
        ({"nvidia.com/dynamo-component-type": "worker", "nvidia.com/dynamo-sub-component-type": "prefill"}, "prefill"),
        ({"nvidia.com/dynamo-component-type": "worker"}, "decode"),
        ({"nvidia.com/dynamo-component-type": "frontend"}, None),
        ({"nvidia.com/dynamo-component-type": "planner"}, None),
        ({ROLE: "decode"}, "decode"),
        ({}, None),
    ],
)
def test_only_workers_are_workers(labels: dict[str, str], role: str | None) -> None:
    found = resident("p", {**labels, GRAPH: "g"}, {})
    assert (found.role if found else None) == role
    assert resident("p", labels, {}) is None, "of no graph"


def test_a_worker_that_came_by_a_move_keeps_its_name() -> None:
    assert read(raw("decode-0-1a2b", annotations={WORKER: "decode-0"})).resident.id == "decode-0"


@pytest.mark.parametrize(
    ("more", "being", "said"),
    [
        ({"status": {"phase": "Pending"}, "node": None}, Being.COMING, "doesn't run yet"),
        (
            {"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}},
            Being.COMING, "0/3 nodes",
        ),
        (
            {"status": {**RUNNING, "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}},
            Being.COMING, "CrashLoopBackOff",
        ),
        ({"status": {**RUNNING, "conditions": [{"type": "Ready", "status": "False"}]}}, Being.RUNNING, "isn't ready"),
        ({"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}}, Being.ENDED, "Evicted: low on memory"),
        ({"status": {"phase": "Succeeded"}}, Being.ENDED, "Succeeded"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, Being.ENDING, "is being deleted"),
    ],
)  # fmt: skip
def test_each_state_of_a_pod_means_something(more: dict[str, Any], being: Being, said: str) -> None:
    pod = read(raw(**more))
    assert pod.being is being
    assert said in pod.why
    assert not pod.ready


def test_controllers_that_know_their_pods_by_name_hold_them() -> None:
    assert "StatefulSet lws-0" in read(raw(ownerReferences=[{**OWNER, "kind": "StatefulSet", "name": "lws-0"}])).held_by
    assert "PodClique" in read(raw(ownerReferences=[{**OWNER, "kind": "PodClique"}])).held_by
    bare = {key: value for key, value in DYNAMO.items() if key != "pod-template-hash"}
    assert "of no Deployment" in read(raw(labels=bare)).held_by
    assert read(raw(labels=bare, ownerReferences=[])).held_by == ""


@pytest.mark.parametrize(
    "more",
    [
        {"annotations": {"nvidia.com/restore-from": "gold"}},
        {"labels": {**DYNAMO, "nvidia.com/snapshot-is-restore-target": "true"}},
    ],
    ids=["by-annotation", "by-label"],
)
def test_a_worker_that_dynamo_snapshot_has_restored_stays_where_it_is(more: dict[str, Any]) -> None:
    """Its container's first process, which agents take for the worker, does nothing but sleep."""
    assert "Dynamo Snapshot has restored it" in read(raw(**more)).held_by


def test_nodes_and_agents() -> None:
    taints = [{"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "x", "effect": "New"}]
    node = cluster_node({"metadata": {"name": "n", "labels": {"zone": "a"}}, "spec": {"taints": taints}, "status": {}})
    assert (node.labels, [str(t) for t in node.taints], node.ready) == ({"zone": "a"}, ["k=v:NoSchedule"], False)
    agent = {"metadata": {"name": "a"}, "spec": {"nodeName": "n", "hostNetwork": True}, "status": {"hostIP": "fd00::1"}}
    found = agent_pod(agent, 7443)
    assert found is not None
    assert found.address == "[fd00::1]:7443"
    agent["spec"]["containers"] = [{"ports": [{"name": "agent", "containerPort": 8000}]}]  # type: ignore[index]
    found = agent_pod(agent, 7443)
    assert found is not None
    assert found.address == "[fd00::1]:8000"
    assert agent_pod({**agent, "status": {"phase": "Failed"}}, 7443) is None


# -- a new pod

WANTED = Wanted(operation=OperationId("move-1"), worker=WorkerId("decode-0"), node=NodeId("node-b"), engine="vllm")


def test_a_new_pod_is_like_the_one_that_is_left_and_is_nobodys_yet() -> None:
    source = raw(
        annotations={
            "argocd.argoproj.io/tracking-id": "app:/Pod:dynamo/decode-0", "kubectl.kubernetes.io/last-applied-configuration": "{}",
            "nvidia.com/restore-from": "golden", "nvidia.com/restore-container-map": "a=b", "nvidia.com/restored-container-ids": "{}",
            "k8s.v1.cni.cncf.io/networks": "rdma", "k8s.v1.cni.cncf.io/network-status": "[]", "team": "inference",
        },
        labels={**DYNAMO, "app.kubernetes.io/instance": "dynamo", "nvidia.com/snapshot-is-restore-target": "true"},
    )  # fmt: skip
    before = copy.deepcopy(source)
    made = placeholder(source, WANTED)
    assert source == before
    meta, spec = made["metadata"], made["spec"]
    assert "ownerReferences" not in meta
    assert "uid" not in meta
    assert {k: v for k, v in meta["annotations"].items() if not k.startswith("shunter.dev/")} == {
        "k8s.v1.cni.cncf.io/networks": "rdma", "team": "inference",
    }  # fmt: skip
    assert not {"pod-template-hash", "app.kubernetes.io/instance", "nvidia.com/snapshot-is-restore-target"} & meta["labels"].keys()
    assert (meta["labels"][OPERATION], meta["labels"][STATE]) == ("move-1", "placeholder")
    again = read({**made, "metadata": {**meta, "uid": "u"}})
    assert (again.resident.id, again.resident.engine, again.placeholder, again.gated) == ("decode-0", "vllm", True, True)
    assert again.joins == {"pod-template-hash": "5f9c", "app.kubernetes.io/instance": "dynamo"}
    sidecar, main = spec["containers"]
    assert sidecar == source["spec"]["containers"][0]
    assert (main["command"], "args" in main) == (list(WANTED.idle), False)
    assert not {"livenessProbe", "startupProbe"} & main.keys()
    assert main["lifecycle"] == {"preStop": {"exec": {"command": ["drain"]}}}
    assert main["readinessProbe"] == {"httpGet": {"port": 9090}}
    assert (main["resources"], main["env"]) == (source["spec"]["containers"][1]["resources"], [{"name": "A", "value": "b"}])
    assert main["volumeMounts"] == [{"name": "models", "mountPath": "/m"}], "the token is mounted anew"
    assert [v["name"] for v in spec["volumes"]] == ["models"]
    assert (spec["restartPolicy"], spec["serviceAccountName"], spec["priorityClassName"]) == ("Never", "dynamo", "high")
    assert not {"nodeName", "priority"} & spec.keys()
    assert spec["readinessGates"] == [{"conditionType": SERVING}]


def test_of_its_init_containers_only_those_run_again_whose_work_doesnt_come_along() -> None:
    def mount(*names: str, **more: Any) -> list[dict[str, Any]]:
        return [{"name": name, "mountPath": f"/{name}", **more} for name in names]

    source = raw()
    spec = source["spec"]
    spec["volumes"] = [*spec["volumes"], *({"name": name, "emptyDir": {}} for name in ("weights", "fixed", "shared", "before"))]
    spec["containers"][0]["volumeMounts"] = mount("shared")
    spec["containers"][1]["volumeMounts"] = [*mount("weights", "models"), *mount("fixed", readOnly=True)]
    spec["initContainers"] = [
        {"name": "fetch-weights", "volumeMounts": mount("weights")},
        {"name": "migrate", "volumeMounts": mount("models")},
        {"name": "keys", "volumeMounts": mount("before")},
        {"name": "config", "volumeMounts": mount("shared", "before")},
        {"name": "certificates", "volumeMounts": mount("fixed")},
        {"name": "mesh", "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}},
        {"name": "driver", "securityContext": {"privileged": True}},
        {"name": "proxy", "restartPolicy": "Always"},
        {"name": "warm-up", "securityContext": {"capabilities": {"drop": ["ALL"]}}},
    ]
    again = [one["name"] for one in placeholder(source, WANTED)["spec"]["initContainers"]]
    assert again == ["keys", "config", "certificates", "mesh", "driver", "proxy"]


def test_it_goes_to_the_one_node_and_whatever_was_asked_of_nodes_still_is() -> None:
    source = raw()
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    other = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    source["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term, other]}},
        "podAntiAffinity": {"x": 1},
    }
    source["spec"]["nodeSelector"] = {"pool": "gold"}
    spec = placeholder(source, WANTED)["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    here = [{"key": "metadata.name", "operator": "In", "values": ["node-b"]}]
    assert terms == [{**term, "matchFields": here}, {**other, "matchFields": here}]
    assert (spec["affinity"]["podAntiAffinity"], spec["nodeSelector"]) == ({"x": 1}, {"pool": "gold"})


def test_of_a_pod_that_was_made_so_and_hasnt_joined_yet_what_it_is_to_join_is_kept() -> None:
    first = placeholder(raw(), WANTED)
    first["metadata"]["uid"] = "u"
    second = placeholder(first, msgspec.structs.replace(WANTED, operation=OperationId("move-2")))
    assert read({**second, "metadata": {**second["metadata"], "uid": "v"}}).joins == {"pod-template-hash": "5f9c"}
    assert second["spec"]["readinessGates"] == [{"conditionType": SERVING}]
    assert second["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] != []


@pytest.mark.parametrize("worker", ["decode-0", "Weird/Name_With.Everything", "x" * 300, "///"])
def test_names_are_ones_that_a_pod_can_have_and_differ(worker: str) -> None:
    names = {pod_name(OperationId(o), WorkerId(worker), NodeId(n)) for o in ("move-1", "move-2") for n in ("a", "b")}
    assert len(names) == 4
    for name in names:
        assert len(name) <= 63
        assert name.replace("-", "").isalnum()
        assert name == name.lower().strip("-")


def test_a_second_move_to_another_node_asks_for_that_one_alone() -> None:
    first = placeholder(raw(), WANTED)
    second = placeholder(first, msgspec.structs.replace(WANTED, operation=OperationId("move-2"), node=NodeId("node-c")))
    (term,) = second["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["node-c"]}]


# -- one fleet


def estate(
    *pods: dict[str, Any], nodes: tuple[str, ...] = ("node-a", "node-b"), doubt: Problem | None = None, ready: bool = True
) -> Estate:
    known = [read(pod) for pod in pods]
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    there = [cluster_node({"metadata": {"name": n, "labels": {"zone": n[-1]}}, "status": {"conditions": conditions}}) for n in nodes]
    return Estate(
        namespace="dynamo", nodes={n.name: n for n in there}, agents=dict.fromkeys(map(NodeId, nodes), ""),
        pods={pod.pod.uid: pod for pod in known}, doubt=doubt,
    )  # fmt: skip


def worker(name: str = "decode-0", at: str = "node-a/0", pod: str | None = "uid-decode-0", **more: Any) -> Worker:
    home = Pod(namespace="dynamo", name=name, uid=pod) if pod else None
    fields: dict[str, Any] = {"state": WorkerState.RUNNING, "node": NodeId(at.partition("/")[0]), "slot": SlotId(at), **more}
    return Worker(id=WorkerId(name), role="decode", graph="tiny", engine="vllm", incarnation=Incarnation(0), pod=home, **fields)


def fleet(*workers: Worker, reachable: bool = True) -> Fleet:
    taken = {w.slot: w.id for w in workers}
    nodes = tuple(
        Node(
            id=NodeId(name), labels={"own": "1"}, reachable=reachable,
            slots=tuple(Slot(id=SlotId(f"{name}/{k}"), gpus=8, worker=taken.get(SlotId(f"{name}/{k}"))) for k in (0, 1)),
        )
        for name in ("node-a", "node-b")
    )  # fmt: skip
    return Fleet(nodes=nodes, workers=workers)


def only(found: Fleet, name: str = "decode-0") -> Worker:
    (one,) = [w for w in found.workers if w.id == name]
    return one


def test_taints_are_those_of_the_server_and_those_that_the_agent_knows_besides() -> None:
    own = Taint(key="own")
    reported = fleet(worker())
    nodes = tuple(msgspec.structs.replace(n, taints=(own,)) for n in reported.nodes)
    spec = {"taints": [{"key": "team", "value": "a", "effect": "NoExecute"}, {"key": "own", "effect": "NoSchedule"}]}
    there = cluster_node({"metadata": {"name": "node-a"}, "spec": spec})
    known = msgspec.structs.replace(estate(raw()), nodes={**estate().nodes, "node-a": there})
    found = joined(msgspec.structs.replace(reported, nodes=nodes), known)
    assert [str(t) for t in found.nodes[0].taints] == ["own:NoSchedule", "team=a:NoExecute"]
    assert found.nodes[1].taints == (own,)


def test_a_worker_that_its_agent_and_the_server_know_can_be_moved_and_has_what_both_say() -> None:
    found = joined(fleet(worker()), estate(raw()))
    assert only(found).pinned == ""
    assert only(found).labels["pod-template-hash"] == "5f9c"
    assert only(found).tolerations is not None
    assert found.nodes[0].labels == {"zone": "a", "own": "1"}
    assert reported(found).workers[0].id == "decode-0"


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (raw(deletionTimestamp="2026-01-01T00:00:00Z"), "is being deleted"),
        (raw(status={"phase": "Failed", "reason": "Evicted"}), "Evicted"),
        (raw(ownerReferences=[{**OWNER, "kind": "StatefulSet"}]), "StatefulSet"),
        (raw("other"), "isn't in the API server"),
    ],
)
def test_why_one_that_its_agent_knows_cant_be_moved(pod: dict[str, Any], why: str) -> None:
    assert why in only(joined(fleet(worker()), estate(pod))).pinned


def test_while_what_is_known_is_old_nobody_is_pinned_for_what_isnt_known() -> None:
    doubt = Problem(code="SH261", what="old", remedy="none")
    assert only(joined(fleet(worker()), estate(doubt=doubt))).pinned == ""


@pytest.mark.parametrize(
    ("node", "reachable", "why"),
    [("node-z", True, "no agent runs on node-z"), ("node-a", True, "reports no process"), ("node-a", False, "doesn't answer")],
)
def test_one_that_no_agent_reports_is_in_the_fleet_and_says_why_nothing_is_done(node: str, why: str, *, reachable: bool) -> None:
    found = joined(fleet(reachable=reachable), estate(raw(node=node)))
    assert why in only(found).pinned
    assert (only(found).slot, only(found).node, only(found).state) == (None, node, WorkerState.RUNNING)
    assert reported(found).workers == (), "and isn't lost when it is gone"


def test_of_a_node_that_nobody_hears_of_that_is_said() -> None:
    assert "node-a isn't ready" in only(joined(fleet(reachable=False), estate(raw(), ready=False))).pinned
    assert "reports no process" in only(joined(fleet(), estate(raw(), ready=False))).pinned, "its agent answers"
    assert only(joined(fleet(worker()), estate(raw(), ready=False))).pinned == "", "what its agent reports can be saved"


def test_one_that_isnt_ready_is_out_of_traffic_and_one_that_doesnt_run_isnt_there() -> None:
    unready = raw(status={**RUNNING, "conditions": []})
    assert only(joined(fleet(), estate(unready))).state is WorkerState.FENCED
    for pod in (raw(status={"phase": "Pending"}), raw(status={"phase": "Failed"}), raw(node=None, status={"phase": "Pending"})):
        assert joined(fleet(), estate(pod)).workers == ()


def test_gpus_that_a_pod_has_which_no_agent_knows_are_not_free() -> None:
    found = joined(fleet(), estate(raw(status={"phase": "Pending"})))
    assert [slot.worker for slot in found.nodes[0].slots] == [None, "decode-0"]
    known = joined(fleet(worker()), estate(raw()))
    assert [slot.worker for slot in known.nodes[0].slots] == ["decode-0", None], "its own isn't counted twice"


def test_a_pod_that_waits_for_a_worker_is_no_worker_and_takes_no_slot_from_it() -> None:
    waiting = raw("decode-0-1a2b", "node-b", annotations={WORKER: "decode-0"}, labels={**DYNAMO, STATE: "placeholder", OPERATION: "m"})
    found = joined(fleet(worker()), estate(raw(), waiting))
    assert len(found.workers) == 1
    assert [slot.worker for slot in found.nodes[1].slots] == [None, None]


def test_the_pod_that_a_worker_has_left_makes_no_second_one() -> None:
    here = raw("decode-0-1a2b", "node-b", annotations={WORKER: "decode-0"}, labels={**DYNAMO, STATE: "serving", OPERATION: "m"})
    there = worker(at="node-b/0", pod="uid-decode-0-1a2b")
    found = joined(fleet(there), estate(raw(), here))
    assert [(w.id, w.node) for w in found.workers] == [("decode-0", "node-b")]
    assert found.nodes[0].slots[1].worker == "decode-0", "until it is gone it has its GPUs"


def test_a_node_is_forgotten_only_once_nothing_says_that_there_is_anything_on_it() -> None:
    silent = fleet(reachable=False)
    assert forgotten(silent, estate(nodes=("node-a",))) == {"node-b"}
    assert forgotten(fleet(), estate(nodes=("node-a",))) == frozenset(), "its agent answers"
    assert forgotten(fleet(worker(at="node-b/0"), reachable=False), estate(nodes=("node-a",))) == frozenset(), "a worker is there"
    assert forgotten(silent, estate(raw(node="node-b"), nodes=("node-a",))) == frozenset(), "a pod is"
    doubt = Problem(code="SH261", what="old", remedy="none")
    assert forgotten(silent, estate(nodes=("node-a",), doubt=doubt)) == frozenset(), "what is known is old"


def test_workers_on_plain_hosts_stay_as_they_are() -> None:
    plain = fleet(worker(pod=None))
    assert joined(plain, estate(nodes=())).workers == plain.workers


# -- workers whose process has ended


def lost(before: str = "", pod: str | None = "uid-decode-0") -> Fleet:
    return fleet(msgspec.structs.replace(worker(pod=pod), state=WorkerState.LOST, node=None, slot=None, pinned=before))


def past(
    *pods: dict[str, Any], nodes: tuple[str, ...] = ("node-a", "node-b"), ready: bool = True, taint: dict[str, str] | None = None
) -> Estate:
    found = estate(nodes=nodes, ready=ready)
    known = {read(pod).pod.uid: read(pod) for pod in pods}
    taints = (Taint(key=taint["key"], effect=taint["effect"]),) if taint else ()  # type: ignore[arg-type]
    there = {name: msgspec.structs.replace(node, taints=taints) for name, node in found.nodes.items()}
    return msgspec.structs.replace(found, removed=known, nodes=there)


LEAVING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def test_a_worker_whose_pod_starts_it_again_isnt_brought_back_beside_that() -> None:
    waits = {**RUNNING, "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}
    for status in (RUNNING, waits):
        found = only(joined(lost(), estate(raw(status=status))))
        assert "its pod starts it again" in found.pinned
        assert found.pod is not None, "or it wouldn't be known in the next round"
    again = joined(reported(joined(lost(), estate(raw()))), estate(raw(status={"phase": "Failed", "reason": "Evicted"})))
    assert only(again).pinned == "", "nothing starts it there any more"


@pytest.mark.parametrize(
    "seen",
    [estate(raw(**LEAVING)), past(raw()), past(raw(**LEAVING)), past(raw(), taint={"key": "nvidia.com/gpu", "effect": "NoSchedule"})],
)
def test_one_that_kubernetes_ended_isnt_brought_back_against_it(seen: Estate) -> None:
    found = joined(lost(), seen)
    assert "its pod was deleted" in only(found).pinned
    later = joined(reported(found), estate())
    assert "its pod was deleted" in only(later).pinned, "also once nobody knows of the pod any more"
    doubt = Problem(code="SH261", what="old", remedy="none")
    assert "its pod was deleted" in only(joined(reported(found), estate(doubt=doubt))).pinned


@pytest.mark.parametrize(
    ("seen", "ours"),
    [
        (past(raw()), {"uid-decode-0"}),
        (past(raw(**LEAVING, deletionGracePeriodSeconds=1)), set()),
        (estate(raw(**LEAVING, deletionGracePeriodSeconds=1)), set()),
        (past(raw(**LEAVING, annotations={"shunter.dev/pod-deletion-cost-before": ""})), set()),
        (past(raw(), nodes=("node-b",)), set()),
        (past(raw(), ready=False), set()),
        (past(raw(), taint={"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}), set()),
        (past(raw(), taint={"key": "spot", "effect": "NoExecute"}), set()),
        (past(raw(), taint={"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}), set()),
        (past(raw(status={"phase": "Failed"})), set()),
        (estate(), set()),
        (estate(raw(labels={**DYNAMO, STATE: "serving", OPERATION: "m"})), set()),
    ],
)  # fmt: skip
def test_one_that_its_node_or_an_operation_has_cost_its_pod_is_brought_back(seen: Estate, ours: set[str]) -> None:
    assert only(joined(lost(before="its pod is being deleted"), seen, ours)).pinned == ""


def test_one_whose_pod_went_while_no_engine_looked_is_judged_by_its_node_and_by_what_operations_did() -> None:
    before = {"uid-decode-0": NodeId("node-a")}
    found = joined(lost(), estate(), (), before)
    assert "went while no engine looked" in only(found).pinned
    assert "went while no engine looked" in only(joined(reported(found), estate(nodes=("node-b",)))).pinned, "it stays so"
    assert only(joined(lost(), estate(), {"uid-decode-0"}, before)).pinned == ""
    for failed in (estate(nodes=("node-b",)), estate(ready=False), past(taint={"key": "spot", "effect": "NoExecute"})):
        assert only(joined(lost(), failed, (), before)).pinned == ""
    assert only(joined(lost(), estate(), (), {"another": NodeId("node-a")})).pinned == "", "it was judged before"
    doubt = Problem(code="SH261", what="old", remedy="none")
    assert only(joined(lost(), estate(doubt=doubt), (), before)).pinned == ""


def test_of_a_parked_one_no_pod_is_kept() -> None:
    parked = msgspec.structs.replace(worker(), state=WorkerState.PARKED, node=None, slot=None)
    found = only(joined(fleet(parked), past(raw())))
    assert (found.pod, found.pinned) == (None, "")
