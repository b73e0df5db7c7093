"""Which golden image fits a pool, what a pod that starts from it is like, and how far one has come; without a server."""

import copy
from typing import Any

import msgspec
import pytest
from shunter.cluster.dynamo.golden import choose, native, orphan, outcome, refuses, restoring
from shunter.cluster.dynamo.parse import golden, pod, standby
from shunter.cluster.dynamo.starting import Wanted
from shunter.cluster.dynamo.values import Golden, Graph, Pod
from shunter.cluster.template import Wanted as Move
from shunter.cluster.template import placeholder
from shunter.model.ids import NodeId, OperationId, WorkerId

ONE = Golden(
    namespace="ns", name="gold", pod="checkpoint", container="main", ready=True, graph="llama", component="prefill", worker_hash="h1",
    created="2026-01-02T00:00:00Z",
)  # fmt: skip
P = Pod(
    namespace="ns", name="p", uid="u", assigned=True, phase="Running", ready=True, cost=0, created="2026-01-01T00:00:00Z", leaving=False,
    worker_hash="h1", standby=True,
)  # fmt: skip


LLAMA = Graph(namespace="ns", name="llama", uid="u-llama", version="v1beta1", generation=1, observed=1, state="successful")


def but(one: Any, **more: Any) -> Any:
    return msgspec.structs.replace(one, **more)


def chosen(*images: Golden, pods: tuple[Pod, ...] = (P,)) -> tuple[str, str] | None:
    found = choose(images, pods, LLAMA, "prefill")
    return None if found is None else (found.name, found.why)


def test_the_newest_that_fits_counts() -> None:
    newer = but(ONE, name="newer", created="2026-01-03T00:00:00Z")
    assert chosen(ONE, newer) == ("newer", "")
    assert chosen(ONE, but(newer, ready=False)) == ("gold", "")
    assert chosen(ONE, but(newer, worker_hash="h0")) == ("gold", "")
    assert chosen(ONE, but(newer, worker_hash="")) == ("gold", "")


def test_what_dynamos_operator_has_taken_for_this_very_graph_counts() -> None:
    assert chosen(but(ONE, automatic=True, owner="u-llama", compatibility="v2", gms="disabled")) == ("gold", "")
    assert chosen(but(ONE, namespace="other")) is None


def test_pods_that_moves_have_made_dont_count() -> None:
    """Their containers wait for a worker that comes from elsewhere."""
    moved = but(P, moved=True, standby=False)
    assert chosen(ONE, pods=(moved, P)) == ("gold", "")
    found = chosen(ONE, pods=(moved,))
    assert found is not None
    assert "no pod of its controller's own" in found[1]


def test_of_another_component_or_graph_there_is_none() -> None:
    assert chosen(but(ONE, component="decode"), but(ONE, graph="other"), but(ONE, graph="")) is None


@pytest.mark.parametrize(
    ("images", "pods", "said"),
    [
        ((but(ONE, ready=False),), (P,), "gold isn't ready"),
        ((but(ONE, worker_hash=""),), (P,), "gold is of version unknown, and the pool is of h1"),
        ((ONE,), (but(P, worker_hash=""),), "gold is of version h1, and the pool is of unknown"),
        ((but(ONE, gms="intraPod"),), (P,), "gold was taken with GPU memory served besides (intraPod)"),
        (
            (but(ONE, automatic=True, owner="u-old"),),
            (P,),
            "gold was taken for another graph (u-old), and not for llama as it is now (u-llama)",
        ),
        ((but(ONE, owner="u-old"),), (P,), "gold was taken for another graph (u-old)"),
        ((but(ONE, automatic=True),), (P,), "gold was taken for one that isn't said, and not"),
        ((but(ONE, compatibility="v1"),), (P,), "gold is by Dynamo's compatibility version v1, and v2 is what is known"),
        ((but(ONE, compatibility="v3"),), (P,), "compatibility version v3"),
        ((ONE,), (P, but(P, worker_hash="h2")), "they aren't all of one version"),
        ((ONE,), (), "it has no pod of its controller's own"),
        ((ONE,), (but(P, leaving=True),), "it has no pod of its controller's own"),
        ((ONE,), (but(P, standby=False),), "their container doesn't run an engine of Dynamo's by itself"),
        ((ONE,), (but(P, restored=True),), "Dynamo's operator has them restored itself"),
        ((but(ONE, ready=False), but(ONE, name="b", worker_hash="h0")), (P,), "gold isn't ready"),
    ],
)
def test_where_none_fits_it_is_said_why(images: tuple[Golden, ...], pods: tuple[Pod, ...], said: str) -> None:
    found = chosen(*images, pods=pods)
    assert found is not None
    assert found[0] == ""
    assert said in found[1]


@pytest.mark.parametrize(
    ("command", "args", "waits"),
    [
        (["python3"], ["-m", "dynamo.vllm", "--model", "m"], True),
        (["python3", "-m", "dynamo.sglang"], [], True),
        (["/opt/venv/bin/python3.12", "-u"], ["-m", "dynamo.trtllm"], True),
        (["/bin/sh", "-c"], ["python3 -m dynamo.vllm"], False),
        (["python3"], ["-m", "dynamo.frontend"], False),
        (["python3"], ["-m", "my.wrapper", "dynamo.vllm"], False),
        (["python3"], ["-W", "ignore", "-m", "dynamo.vllm"], False),
        (["python3"], [], False),
        ([], ["python3", "-m", "dynamo.vllm"], True),
        ([], [], False),
    ],
)
def test_only_an_engine_of_dynamos_that_runs_by_itself_can_be_asked_to_wait(command: list[str], args: list[str], waits: bool) -> None:
    assert standby({"name": "main", "command": command, "args": args}) is waits


@pytest.fixture
def own() -> dict[str, Any]:
    """A pod as a ReplicaSet makes it, and the server completes it."""
    return {
        "metadata": {
            "name": "llama-prefill-5f-x", "namespace": "ns", "uid": "u-x", "resourceVersion": "9",
            "labels": {
                "nvidia.com/dynamo-graph-deployment-name": "llama", "nvidia.com/dynamo-component": "prefill",
                "nvidia.com/dynamo-component-type": "prefill", "nvidia.com/dynamo-worker-hash": "h1", "pod-template-hash": "5f",
                "nvidia.com/snapshot-capture-eligible": "true",
            },
            "annotations": {"nvidia.com/enable-metrics": "true", "kubectl.kubernetes.io/restartedAt": "x"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}],
        },
        "spec": {
            "priority": 5, "nodeSelector": {"gpu": "h200"}, "restartPolicy": "Always",
            "readinessGates": [{"conditionType": "shunter.dev/serving"}],
            "affinity": {"podAntiAffinity": {"x": 1}},
            "volumes": [{"name": "models", "emptyDir": {}}, {"name": "kube-api-access-ab1cd", "projected": {}}],
            "initContainers": [{"name": "fetch", "image": "i"}],
            "containers": [
                {
                    "name": "main", "image": "dynamo:1.6.1", "command": ["python3"], "args": ["-m", "dynamo.vllm"],
                    "env": [{"name": "DYN_NAMESPACE", "value": "llama"}],
                    "volumeMounts": [{"name": "models", "mountPath": "/m"}, {"name": "kube-api-access-ab1cd", "mountPath": "/t"}],
                    "startupProbe": {"httpGet": {"path": "/live"}}, "livenessProbe": {"httpGet": {"path": "/live"}},
                    "readinessProbe": {"httpGet": {"path": "/health"}}, "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    "securityContext": {"runAsUser": 1000},
                },
                {"name": "sidecar", "image": "s", "startupProbe": {"exec": {"command": ["true"]}}},
            ],
        },
        "status": {"phase": "Pending"},
    }  # fmt: skip


def made(own: dict[str, Any]) -> dict[str, Any]:
    wanted = Wanted(
        operation=OperationId("park-1"), namespace="ns", graph="llama", role="prefill", golden="gold", node=NodeId("b"), fleet="shunter.e"
    )  # fmt: skip
    return restoring(own, ONE, NodeId("node-b"), "llama-prefill-abc", wanted.labels)


def test_the_pod_is_the_controllers_own_but_for_what_its_restore_needs(own: dict[str, Any]) -> None:
    before = copy.deepcopy(own)
    found = made(own)
    assert own == before
    meta, spec = found["metadata"], found["spec"]
    assert meta["labels"] == {
        **{key: value for key, value in own["metadata"]["labels"].items() if "snapshot" not in key},
        "shunter.dev/started-by": "park-1",
        "shunter.dev/fleet": "shunter.e",
    }
    assert "ownerReferences" not in meta
    assert meta["annotations"] == {
        "nvidia.com/enable-metrics": "true", "nvidia.com/restore-from": "gold", "controller.kubernetes.io/pod-deletion-cost": "1",
    }  # fmt: skip
    assert (spec["nodeSelector"], spec["restartPolicy"], spec["initContainers"]) == (
        {"gpu": "h200"},
        "Always",
        [{"name": "fetch", "image": "i"}],
    )
    assert "priority" not in spec
    assert spec["readinessGates"] == own["spec"]["readinessGates"]
    assert [one["name"] for one in spec["volumes"]] == ["models", "snapshot-control"]
    main, sidecar = spec["containers"]
    assert sidecar == own["spec"]["containers"][1]
    assert {one["name"]: one["value"] for one in main["env"]} == {
        "DYN_NAMESPACE": "llama", "SNAPSHOT_CONTROL_DIR": "/snapshot-control", "DYN_SNAPSHOT_CONTROL_DIR": "/snapshot-control",
        "SNAPSHOT_RESTORE_STANDBY": "1", "DYN_SNAPSHOT_RESTORE_STANDBY": "1",
    }  # fmt: skip
    assert main["volumeMounts"] == [
        {"name": "models", "mountPath": "/m"},
        {"name": "snapshot-control", "mountPath": "/snapshot-control", "subPath": "main"},
    ]
    assert main["startupProbe"]["exec"] == {"command": ["cat", "/snapshot-control/restore-complete"]}
    assert main["securityContext"] == {
        "runAsUser": 1000, "seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/block-iouring.json"},
    }  # fmt: skip
    assert {key: main[key] for key in ("command", "args", "livenessProbe", "readinessProbe", "resources", "image")} == {
        key: own["spec"]["containers"][0][key] for key in ("command", "args", "livenessProbe", "readinessProbe", "resources", "image")
    }
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-b"]}]}
    assert spec["affinity"]["podAntiAffinity"] == {"x": 1}


def test_what_has_a_seccomp_profile_or_a_control_volume_keeps_them(own: dict[str, Any]) -> None:
    main = own["spec"]["containers"][0]
    main["securityContext"]["seccompProfile"] = {"type": "RuntimeDefault"}
    main["volumeMounts"].append({"name": "snapshot-control", "mountPath": "/snapshot-control", "subPath": "main"})
    own["spec"]["volumes"].append({"name": "snapshot-control", "emptyDir": {}})
    assert refuses(own, "main") == ""
    spec = made(own)["spec"]
    assert spec["containers"][0]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert [one["name"] for one in spec["volumes"]] == ["models", "snapshot-control"]
    assert [one["mountPath"] for one in spec["containers"][0]["volumeMounts"]] == ["/m", "/snapshot-control"]


@pytest.mark.parametrize(
    ("container", "spoil", "said"),
    [
        ("engine", lambda main, spec: None, "the pool's pods have none of that name"),
        ("main", lambda main, spec: main.update(command=["/bin/sh", "-c"]), "doesn't run an engine of Dynamo's by itself"),
        (
            "main",
            lambda main, spec: spec["volumes"].append({"name": "snapshot-control", "hostPath": {}}),
            "something else at /snapshot-control",
        ),
        ("main", lambda main, spec: main["volumeMounts"].append({"name": "x", "mountPath": "/snapshot-control"}), "something else at"),
        ("main", lambda main, spec: main["env"].append({"name": "SNAPSHOT_RESTORE_STANDBY", "value": "0"}), "otherwise"),
        (
            "main",
            lambda main, spec: main["env"].append({"name": "SNAPSHOT_CONTROL_DIR", "valueFrom": {}}),
            "SNAPSHOT_CONTROL_DIR otherwise",
        ),
    ],
)
def test_what_cant_be_restored_so_is_refused_with_the_reason(own: dict[str, Any], container: str, spoil: Any, said: str) -> None:
    assert refuses(own, "main") == ""
    spoil(own["spec"]["containers"][0], own["spec"])
    assert said in refuses(own, container)


def test_only_a_pod_that_its_controller_has_made_is_a_pattern(own: dict[str, Any]) -> None:
    assert native(own)
    for label in ("shunter.dev/operation", "shunter.dev/started-by"):
        other = copy.deepcopy(own)
        other["metadata"]["labels"][label] = "move-1"
        assert not native(other)
    own["metadata"]["ownerReferences"] = []
    assert not native(own)
    assert orphan(own)


@pytest.mark.parametrize(
    ("status", "state", "said"),
    [
        ({"phase": "Pending"}, "coming", "its pod doesn't run yet"),
        ({"phase": "Running", "ready": "False"}, "coming", "isn't ready"),
        ({"phase": "Running", "restored": ("False", "RestoreInProgress")}, "coming", "RestoreInProgress"),
        ({"phase": "Running", "restored": ("False", "SomethingNew")}, "coming", "SomethingNew"),
        ({"phase": "Running", "restored": ("Unknown", "")}, "coming", "isn't ready"),
        (
            {"phase": "Running", "restored": ("True", "RestoreSucceeded"), "ready": "False"},
            "coming",
            "it is restored, and its pod isn't ready",
        ),
        ({"phase": "Running", "restored": ("True", "RestoreSucceeded"), "ready": "True"}, "serves", ""),
        ({"phase": "Running", "ready": "True"}, "serves", ""),
        ({"phase": "Running", "restored": ("False", "RestoreInProgress"), "ready": "True"}, "serves", ""),
        ({"phase": "Running", "restored": ("False", "RestorePartiallySucceeded"), "ready": "True"}, "failed", "RestorePartiallySucceeded"),
        ({"phase": "Running", "restored": ("False", "RestoreFailed")}, "failed", "RestoreFailed: because"),
        ({"phase": "Running", "restored": ("False", "RestoreIncompatible")}, "failed", "RestoreIncompatible"),
        ({"phase": "Running", "restored": ("False", "RestorePartiallySucceeded")}, "failed", "RestorePartiallySucceeded"),
        ({"phase": "Failed"}, "failed", "its pod has ended"),
        ({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}, "instead", "its pod has ended (OutOfnvidia.com/gpu)"),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "instead", "its pod has ended"),
        ({"phase": "Failed", "reason": "Evicted", "restored": ("False", "RestoreFailed")}, "failed", "RestoreFailed: because"),
    ],
)
def test_how_far_it_has_come(own: dict[str, Any], status: dict[str, Any], state: str, said: str) -> None:
    found = made(own)
    conditions = []
    if "ready" in status:
        conditions.append({"type": "Ready", "status": status["ready"]})
    if "restored" in status:
        told, reason = status["restored"]
        conditions.append({"type": "nvidia.com/Restored", "status": told, "reason": reason, "message": "because" if reason else ""})
    found["metadata"]["uid"] = "u-g"
    found["spec"]["nodeName"] = "node-b"
    found["status"] = {"phase": status["phase"], "conditions": conditions, **({"reason": status["reason"]} if "reason" in status else {})}
    seen = outcome(found)
    assert seen.state == state
    assert said in seen.why
    assert outcome({**found, "metadata": {**found["metadata"], "deletionTimestamp": "x"}}).state == "instead"


def test_the_labels_of_a_snapshot_say_whose_it_is_and_of_which_version() -> None:
    found = golden(
        {
            "metadata": {
                "name": "gold", "namespace": "ns", "creationTimestamp": "2026-01-02T00:00:00Z",
                "labels": {
                    "nvidia.com/dynamo-graph-deployment-name": "llama", "nvidia.com/dynamo-component": "prefill",
                    "nvidia.com/dynamo-worker-hash": "h1",
                },
                "annotations": {
                    "nvidia.com/dynamo-snapshot-gms-mode": "disabled", "nvidia.com/dynamo-auto-checkpoint": "true",
                    "nvidia.com/dynamo-checkpoint-owner-uid": "u-llama", "nvidia.com/dynamo-snapshot-compatibility-version": "v2",
                },
            },
            "spec": {"source": {"podRef": {"name": "checkpoint", "containers": ["main"]}}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
    )  # fmt: skip
    assert found == but(ONE, gms="disabled", automatic=True, owner="u-llama", compatibility="v2")


def test_what_a_pod_says_of_its_version_and_of_who_restores_it(own: dict[str, Any]) -> None:
    assert (pod(own).worker_hash, pod(own).standby, pod(own).restored) == ("h1", True, False)
    own["metadata"]["annotations"]["nvidia.com/dynamo-checkpoint-restore-candidate"] = "true"
    assert pod(own).restored
    assert not pod(own).moved
    own["metadata"]["labels"]["shunter.dev/operation"] = "move-1"
    assert pod(own).moved


def test_its_name_follows_from_the_operation() -> None:
    one = Wanted(
        operation=OperationId("park-1"), namespace="ns", graph="Llama_70b" * 12, role="prefill", golden="gold", node=NodeId("b"), fleet="f"
    )  # fmt: skip
    assert one.name == but(one, node=NodeId("c")).name
    assert one.name != but(one, operation=OperationId("park-2")).name
    assert len(one.name) <= 63
    assert one.name.startswith("llama-70bllama-70b")


def test_one_that_is_moved_later_takes_nothing_of_its_start_along(own: dict[str, Any]) -> None:
    found = made(own)
    moved = placeholder(found, Move(operation=OperationId("move-1"), worker=WorkerId("w"), node=NodeId("node-c")))
    assert "shunter.dev/started-by" not in moved["metadata"]["labels"]
    assert "nvidia.com/restore-from" not in moved["metadata"]["annotations"]
    assert "startupProbe" not in moved["spec"]["containers"][0]
