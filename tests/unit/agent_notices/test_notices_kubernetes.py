"""One row per signal: what a Node or Pod says, and the notice that it is. Objects as `kubectl get -o json` gives them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shunter.model.snapshot import NoticeKind
from shunter_agent.notices import kubernetes, nodepods
from shunter_agent.notices.gpus import Gpus
from shunter_agent.notices.kubernetes import NodeObject
from shunter_agent.notices.nodepods import PodObject
from shunter_agent.notices.signals import ESCALATE_S, Reading, read

NOW = 1_767_322_800.0  # 2026-01-02T03:00:00Z
GPUS = Gpus(pci={"0000:ef:00": "n/1"}, uuids={"GPU-b5f21324-f1f9-f1a4-1a37-1166234f6e4f": "n/0"})


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOW + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(
    *, taints: Any = (), conditions: Any = (), labels: Any = None, annotations: Any = None, spec: Any = None, meta: Any = None
) -> NodeObject:
    return msgspec.convert(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n", "uid": "u", "labels": labels, "annotations": annotations, **(meta or {})},
            "spec": {"podCIDR": "10.0.0.0/24", "taints": list(taints), **(spec or {})},
            "status": {"conditions": [ready(), *conditions], "nodeInfo": {"kubeletVersion": "v1.36.0"}},
        },
        NodeObject,
    )


def ready(status: str = "True", message: str = "kubelet is posting ready status", since: float = -9_000) -> dict[str, str]:
    return condition("Ready", message, reason="KubeletReady", status=status, since=since)


def condition(kind: str, message: str = "", *, reason: str = "", status: str = "True", since: float = -5) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at(since)}


def taint(key: str, value: str = "", *, added: float | None = None) -> dict[str, str]:
    return {"key": key, "value": value, "effect": "NoSchedule", **({} if added is None else {"timeAdded": at(added)})}


def reading(given: NodeObject, now: float = NOW, before: Reading | None = None) -> Reading:
    return read(kubernetes.signals(given, GPUS), source="kubernetes", now=now, before=(before or Reading()).since)


def facts(found: Reading) -> list[tuple[str, str, float | None]]:
    """Kind, slot and seconds to the deadline; a star where nothing may be dumped."""
    return [
        (n.kind + ("" if n.dumpable else "*"), n.slot, None if n.deadline is None else n.deadline - NOW) for n in found.notices.values()
    ]


NTH = "aws-node-termination-handler/"
PREEMPT = "Preempt Scheduled: Fri, 02 Jan 2026 03:00:30 GMT. For more information, see https://example.com. EventId: A1"
XID_79 = (
    "ErrorCode:79 PCI:0000:ef:00 GPU_UUID:GPU-b5f21324-f1f9-f1a4-1a37-1166234f6e4f MESSAGE=NVRM: Xid (PCI:0000:ef:00): 79, pid=0, "
    "name=<unknown>, GPU has fallen off the bus. Recommended Action=RESTART_BM;"
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(node(), [], id="nothing"),
        pytest.param(node(taints=[taint(NTH + "spot-itn", "event-1")]), [("preemption", "", None)], id="nth spot"),
        pytest.param(node(taints=[taint(NTH + "scheduled-maintenance")]), [("maintenance", "", None)], id="nth maintenance"),
        pytest.param(node(taints=[taint(NTH + "asg-lifecycle-termination")]), [("drain", "", None)], id="nth lifecycle"),
        pytest.param(node(taints=[taint(NTH + "rebalance-recommendation")]), [("rebalance", "", None)], id="nth rebalance: a hint"),
        pytest.param(
            node(taints=[taint("node.kubernetes.io/out-of-service", "nodeshutdown", added=-40)]),
            [("gone*", "", None)],
            id="out of service: gone, nothing is dumped",
        ),
        pytest.param(node(taints=[taint("node.cloudprovider.kubernetes.io/shutdown")]), [("gone*", "", None)], id="shut down by the cloud"),
        pytest.param(node(taints=[taint("karpenter.sh/disrupted")]), [("drain", "", None)], id="karpenter"),
        pytest.param(node(taints=[taint("karpenter.sh/disruption", "disrupting")]), [("drain", "", None)], id="karpenter v1beta1"),
        pytest.param(
            node(annotations={kubernetes.DEADLINE: "2026-01-02T03:10:00Z"}), [("drain", "", 600.0)], id="karpenter's own deadline"
        ),
        pytest.param(node(annotations={kubernetes.DEADLINE: "soon"}), [], id="karpenter's deadline, unreadable"),
        pytest.param(
            node(taints=[taint("ToBeDeletedByClusterAutoscaler", f"{NOW - 60:.0f}")]), [("drain", "", None)], id="autoscaler: decided"
        ),
        pytest.param(
            node(taints=[taint("DeletionCandidateOfClusterAutoscaler", f"{NOW:.0f}")]), [("rebalance", "", None)], id="autoscaler: a hint"
        ),
        pytest.param(node(taints=[taint("cloud.google.com/impending-node-termination")]), [("preemption", "", None)], id="gke"),
        pytest.param(node(taints=[taint("cloud.google.com/maintenance-window-started")]), [("rebalance", "", None)], id="gke's window"),
        pytest.param(node(labels={"cloud.google.com/active-node-maintenance": "ONGOING"}), [("maintenance", "", None)], id="gke: at work"),
        pytest.param(node(labels={"cloud.google.com/active-node-maintenance": "PENDING"}), [], id="gke: not yet"),
        pytest.param(node(labels={kubernetes.PLANNED: f"{NOW + 600_000:.0f}"}), [("maintenance", "", 600_000.0)], id="gke: planned"),
        pytest.param(node(labels={kubernetes.PLANNED: "soon"}), [], id="gke: planned, unreadable"),
        pytest.param(node(labels={kubernetes.PLANNED: f"{NOW - 90_000:.0f}"}), [], id="gke: planned and over"),
        pytest.param(node(labels={"qos.coreweave.cloud/pending-preemption": "true"}), [("preemption", "", None)], id="coreweave: a label"),
        pytest.param(node(labels={"qos.coreweave.cloud/pending-preemption": "false"}), [], id="coreweave: not"),
        pytest.param(node(labels={"together.ai/compute-class": "preemptible"}), [], id="together: what it is, not that it goes"),
        pytest.param(node(spec={"unschedulable": True}), [("rebalance", "", None)], id="cordoned: a hint"),
        pytest.param(node(meta={"deletionTimestamp": at(-1)}), [("drain", "", None)], id="its object is being deleted"),
        pytest.param(
            node(conditions=[condition("PreemptionScheduled", PREEMPT, reason="SpotEvictionIncoming")]),
            [("preemption", "", 30.0)],
            id="aks spot: the deadline is in the text",
        ),
        pytest.param(
            node(conditions=[condition("PreemptionScheduled", "Preempt Started.", reason="SpotEvictionIncoming")]),
            [("preemption", "", -5.0)],
            id="aks spot: it has begun",
        ),
        pytest.param(
            node(conditions=[condition("PreemptionScheduled", "SpotRebalanceRecommendation Advisory: Fri, 02 Jan 2026 03:00:00 GMT.")]),
            [("rebalance", "", None)],
            id="aks: an advice is a hint",
        ),
        pytest.param(
            node(conditions=[condition("PreemptionScheduled", "something new", reason="SpotEvictionIncoming")]),
            [("rebalance", "", None)],
            id="aks: unknown words are a hint",
        ),
        pytest.param(
            node(conditions=[condition("VMEventScheduled", "Reboot Scheduled: Fri, 02 Jan 2026 03:15:00 GMT")]),
            [("maintenance", "", 900.0)],
            id="aks reboot",
        ),
        pytest.param(
            node(conditions=[condition("VMEventScheduled", "Terminate Scheduled: Fri, 02 Jan 2026 03:05:00 GMT")]),
            [("drain", "", 300.0)],
            id="aks terminate",
        ),
        pytest.param(
            node(conditions=[condition("VMEventScheduled", "Freeze Scheduled: Fri, 02 Jan 2026 03:05:00 GMT")]), [], id="aks freeze"
        ),
        pytest.param(
            node(conditions=[condition("VMEventScheduled", "VM has no scheduled event", reason="NoVMEventScheduled", status="False")]),
            [],
            id="aks: none",
        ),
        pytest.param(
            node(conditions=[ready("False", "container runtime is down", -5)]), [], id="not ready: no notice, whatever it may mean"
        ),
        pytest.param(node(conditions=[ready("Unknown", "Kubelet stopped posting node status.", -5)]), [], id="no word of the kubelet"),
        pytest.param(node(conditions=[ready("False", "node is shutting down", -5)]), [("preemption", "", None)], id="kubelet's shutdown"),
        pytest.param(
            node(taints=[taint("node.kubernetes.io/unreachable"), taint("node.kubernetes.io/not-ready")]), [], id="their taints"
        ),
        pytest.param(
            node(conditions=[condition("SysLogsXIDError", XID_79, reason="SysLogsXIDErrorIsNotHealthy")]),
            [("gpu-failing*", "n/1", None)],
            id="nvsentinel: one GPU, by its PCI address",
        ),
        pytest.param(
            node(conditions=[condition("GpuMemWatch", "ErrorCode:X GPU:3 Recommended Action=RESET;", reason="GpuMemWatchIsNotHealthy")]),
            [("gpu-failing", "", None)],
            id="nvsentinel: a GPU that no slot names is taken for the node",
        ),
        pytest.param(
            node(
                conditions=[
                    condition(
                        "GpuNvlinkWatch",
                        "ErrorCode:DCGM_FR_NVLINK GPU:0 GPU_UUID:GPU-b5f21324-f1f9-f1a4-1a37-1166234f6e4f Recommended Action=RESTART_VM;",
                        reason="GpuNvlinkWatchIsNotHealthy",
                    )
                ]
            ),
            [("gpu-failing", "n/0", None)],
            id="nvsentinel: by its UUID",
        ),
        pytest.param(
            node(conditions=[condition("SysLogsGPUFallenOff", "PCI:0000:ef:00", reason="SysLogsGPUFallenOffIsNotHealthy")]),
            [("gpu-failing*", "n/1", None)],
            id="nvsentinel: fallen off",
        ),
        pytest.param(
            node(conditions=[condition("CSPMaintenance", "EC2 maintenance Recommended Action=NONE;", reason="CSPMaintenanceIsNotHealthy")]),
            [("maintenance", "", None)],
            id="nvsentinel: the cloud's maintenance",
        ),
        pytest.param(
            node(conditions=[condition("GpuMemWatch", "No Health Failures", reason="GpuMemWatchIsHealthy", status="False")]),
            [],
            id="nvsentinel: healthy",
        ),
        pytest.param(
            node(conditions=[condition("XidCriticalError", "NVRM: Xid (PCI:0000:EF:00): 48, pid=1", since=-90_000)]),
            [("gpu-failing", "n/1", None)],
            id="gke xid: it stays until the VM is restarted",
        ),
        pytest.param(node(conditions=[condition("NVLinkStatusInactive", "2 links")]), [("gpu-failing", "", None)], id="aks nvlink"),
    ],
)  # fmt: skip
def test_what_a_node_says(given: NodeObject, expected: list[tuple[str, str, float | None]]) -> None:
    assert facts(reading(given)) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(79, ["gpu-failing*"]), (48, ["gpu-failing"]), (63, ["rebalance"]), (94, [])],
)
def test_xids_mean_the_same_whoever_tells_of_them(number: int, expected: list[str]) -> None:
    """k8s-device-plugin condemns a GPU for 94 and leaves 109; here one table counts."""
    message = f"ErrorCode:{number} PCI:0000:ef:00 Recommended Action=COMPONENT_RESET;"
    found = reading(node(conditions=[condition("SysLogsXIDError", message, reason="SysLogsXIDErrorIsNotHealthy")]))
    assert [kind for kind, _, _ in facts(found)] == expected
    assert [p.code for p in found.problems] == (["SH647"] if number == 94 else [])


def test_several_gpus_in_one_condition_are_several_notices() -> None:
    message = "ErrorCode:48 PCI:0000:ef:00 Recommended Action=COMPONENT_RESET;ErrorCode:79 PCI:0000:17:00 Recommended Action=RESTART_BM;"
    found = reading(node(conditions=[condition("SysLogsXIDError", message, reason="SysLogsXIDErrorIsNotHealthy")]))
    assert facts(found) == [("gpu-failing", "n/1", None), ("gpu-failing*", "", None)]


def test_a_fault_with_no_advice_is_a_hint_and_a_person_is_told() -> None:
    """Its node would stay cordoned for ever with nobody to mend it."""
    message = "ErrorCode:DCGM_FR_PENDING PCI:0000:ef:00 Recommended Action=NONE;"
    found = reading(node(conditions=[condition("GpuInforomWatch", message, reason="GpuInforomWatchIsNotHealthy")]))
    assert facts(found) == [("rebalance", "n/1", None)]
    (problem,) = found.problems
    assert (problem.code, problem.subject) == ("SH650", "n/1")


def test_a_taint_that_was_left_behind_stops_to_count_and_is_told() -> None:
    given = node(taints=[taint(NTH + "spot-itn")])
    first = reading(given)
    assert facts(first) == [("preemption", "", None)]
    later = reading(given, NOW + 1799, first)
    assert facts(later) == [("preemption", "", None)]
    assert later.notices["kubernetes-taint-aws-node-termination-handler.spot-itn"].seen_at == NOW
    stuck = reading(given, NOW + 1801, later)
    assert facts(stuck) == []
    (problem,) = stuck.problems
    assert problem.code == "SH650"
    assert "2026-01-02T03:00:00Z" in problem.what
    assert facts(reading(node(), NOW + 1900, stuck)) == []
    again = reading(given, NOW + 2000, reading(node(), NOW + 1900, stuck))
    assert facts(again) == [("preemption", "", None)], "one that was taken off and put on again is new"


def test_an_agent_that_starts_late_doesnt_take_an_old_taint_for_a_new_one() -> None:
    old = [taint(NTH + "spot-itn")]
    changed = [{"manager": "nth", "operation": "Update", "time": at(-3600), "fieldsV1": {"f:spec": {"f:taints": {}}}}]
    assert facts(reading(node(taints=old, meta={"managedFields": changed}))) == []
    assert facts(reading(node(taints=[taint(NTH + "spot-itn", added=-3600)]))) == []
    assert facts(reading(node(taints=[taint("ToBeDeletedByClusterAutoscaler", f"{NOW - 3601:.0f}")]))) == []
    other = [{"manager": "kubelet", "operation": "Update", "time": at(-3600), "fieldsV1": {"f:status": {"f:conditions": {}}}}]
    assert facts(reading(node(taints=old, meta={"managedFields": other}))) == [("preemption", "", None)]


def test_another_taint_doesnt_make_an_old_one_young_again() -> None:
    changed = [{"manager": "x", "operation": "Update", "time": at(1000), "fieldsV1": {"f:spec": {"f:taints": {}}}}]
    first = reading(node(taints=[taint(NTH + "spot-itn")]))
    later = reading(node(taints=[taint(NTH + "spot-itn"), taint("gpu")], meta={"managedFields": changed}), NOW + 1801, first)
    assert facts(later) == []


def test_a_cordon_that_nobody_follows_up_is_told() -> None:
    cordoned = node(spec={"unschedulable": True})
    first = reading(cordoned)
    assert first.problems == ()
    assert [p.code for p in reading(cordoned, NOW + ESCALATE_S, first).problems] == ["SH650"]
    drained = node(spec={"unschedulable": True}, taints=[taint("karpenter.sh/disrupted")])
    assert reading(drained, NOW + ESCALATE_S, first).problems == (), "it is followed up"


# -- pods


def pod(
    name: str = "decode-0", *, slot: str | None = "1", disrupted: Any = None, ends: float | None = None, tolerations: Any = ()
) -> PodObject:
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "uid": f"u-{name}",
                "labels": {} if slot is None else {nodepods.SLOT: slot},
                **({} if ends is None else {"deletionTimestamp": at(ends)}),
            },
            "spec": {"nodeName": "node", "tolerations": list(tolerations)},
            "status": {"phase": "Running", "conditions": [] if disrupted is None else [disrupted]},
        },
        PodObject,
    )  # fmt: skip


def disruption(reason: str, message: str = "", since: float = -2) -> dict[str, str]:
    return condition("DisruptionTarget", message, reason=reason, since=since)


SHUTDOWN = "Pod was terminated in response to imminent node shutdown."


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(pod(), [], id="nothing"),
        pytest.param(pod(ends=60), [("drain", "n/1", 60.0)], id="deleted: the grace is the deadline"),
        pytest.param(pod(slot=None, ends=60), [], id="another's pod"),
        pytest.param(pod(slot="../0", ends=60), [], id="no slot"),
        pytest.param(
            pod(disrupted=disruption("EvictionByEvictionAPI"), ends=30), [("drain", "n/1", 30.0)], id="evicted, as by kubectl drain"
        ),
        pytest.param(pod(disrupted=disruption("PreemptionByScheduler")), [("drain", "n/1", None)], id="preempted by another pod"),
        pytest.param(pod(disrupted=disruption("DeletionByTaintManager"), ends=0), [("drain", "n/1", 0.0)], id="not tolerating a taint"),
        pytest.param(
            pod(slot=None, disrupted=disruption("TerminationByKubelet", SHUTDOWN)), [("preemption", "", None)], id="the node shuts down"
        ),
        pytest.param(
            pod(slot=None, disrupted=disruption("TerminationByKubelet", "The node was low on resource: memory.")), [], id="out of memory"
        ),
        pytest.param(
            pod(slot=None, disrupted=disruption("TerminationByKubelet", SHUTDOWN, since=-9_500)),
            [],
            id="left over from an earlier shutdown",
        ),
        pytest.param(pod(ends=-3601), [], id="stuck in its end for an hour"),
    ],
)
def test_what_a_pod_says(given: PodObject, expected: list[tuple[str, str, float | None]]) -> None:
    found = nodepods.signals([given], node(), "n")
    assert facts(read(found, source="kubernetes", now=NOW, before={})) == expected


HOMES = {"u-decode-0": "n/2"}
"""The pod of a worker that the agent has found by Dynamo's labels: nothing names its slot."""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(pod(slot=None), [], id="nothing"),
        pytest.param(pod(slot=None, disrupted=disruption("EvictionByEvictionAPI"), ends=30), [("drain", "n/2", 30.0)], id="kubectl drain"),
        pytest.param(pod(slot=None, disrupted=disruption("PreemptionByScheduler"), ends=30), [("drain", "n/2", 30.0)], id="preempted"),
        pytest.param(pod(slot=None, disrupted=disruption("DeletionByTaintManager")), [("drain", "n/2", None)], id="a taint"),
        pytest.param(pod(slot=None, ends=30), [], id="its controller wants one less"),
        pytest.param(pod("another", slot=None, disrupted=disruption("EvictionByEvictionAPI"), ends=30), [], id="another's"),
        pytest.param(pod(disrupted=disruption("EvictionByEvictionAPI"), ends=30), [("drain", "n/1", 30.0)], id="the label says more"),
    ],
)
def test_what_the_pod_of_a_worker_says_that_was_found_in_it(given: PodObject, expected: list[tuple[str, str, float | None]]) -> None:
    found = nodepods.signals([given], node(), "n", HOMES)
    assert facts(read(found, source="kubernetes", now=NOW, before={})) == expected


def test_a_worker_that_was_found_in_a_pod_is_told_too_if_it_tolerates_the_drain() -> None:
    found = nodepods.signals([pod(slot=None, tolerations=[{"operator": "Exists"}])], node(), "n", HOMES)
    assert [(s.problem.code, s.problem.subject) for s in found if s.problem] == [("SH658", "n/2")]


def test_a_worker_that_tolerates_the_drain_is_told() -> None:
    """Karpenter leaves such pods alone until it ends the machine: nothing would announce it."""
    tolerated = ("karpenter.sh/disrupted", "karpenter.sh/disruption")
    for toleration in (*({"key": key, "operator": "Exists"} for key in tolerated), {"operator": "Exists"}):
        found = read(nodepods.signals([pod(tolerations=[toleration])], node(), "n"), source="kubernetes", now=NOW, before={})
        assert [(p.code, p.subject) for p in found.problems] == [("SH658", "n/1")]
        assert found.notices == {}
    for harmless in ({"key": "nvidia.com/gpu", "operator": "Exists"},):
        assert list(nodepods.signals([pod(tolerations=[harmless])], node(), "n")) == []


def test_the_how_to_names_every_signal_that_is_read() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "hear-of-notices.md").read_text()
    for key in (*kubernetes.TAINTS, *(key for key, _ in kubernetes.LABELS), kubernetes.DEADLINE, kubernetes.PLANNED, nodepods.SLOT):
        assert key in text, key


BELIEVED = {"30 min": 1800.0, "an hour": 3600.0, "2 h": 7200.0, "a day": 86_400.0, "48 h": 172_800.0, "always": None}


def test_each_taint_and_label_is_believed_for_as_long_as_the_how_to_says() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "hear-of-notices.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ") and line.count("|") == 4]
    signals = [*kubernetes.TAINTS.items(), *((key, meaning) for (key, _), meaning in kubernetes.LABELS.items())]
    for key, meaning in signals:
        ((_, becomes, believed),) = [row for row in rows if f"`{key}" in row[0]]
        assert (f"`{meaning.kind.value}`" in becomes, BELIEVED[believed.strip()]) == (True, meaning.lasts), key
        assert meaning.dumpable is (meaning.kind is not NoticeKind.GONE)


def test_all_taints_keep_workers_off_whatever_they_mean_otherwise() -> None:
    given = node(
        taints=[{"key": "team", "value": "a", "effect": "NoExecute"}, taint(NTH + "spot-itn"), {"key": "new", "effect": "NoFuture"}]
    )
    assert list(map(str, kubernetes.taints(given))) == [f"{NTH}spot-itn:NoSchedule", "team=a:NoExecute"]
    cordoned = node(spec={"unschedulable": True})
    assert list(map(str, kubernetes.taints(cordoned))) == ["node.kubernetes.io/unschedulable:NoSchedule"], "before its taint is there"
    both = node(spec={"unschedulable": True}, taints=[taint("node.kubernetes.io/unschedulable")])
    assert kubernetes.taints(both) == kubernetes.taints(cordoned)
    assert kubernetes.taints(node()) == ()


@pytest.mark.parametrize(("number", "doubts"), [(31, True), (79, True), (48, False), (63, False)])
def test_a_condition_makes_what_was_computed_before_it_suspect(number: int, doubts: bool) -> None:
    found = reading(node(conditions=[condition("XidCriticalError", f"XID {number} on PCI:0000:ef:00", since=-5)]))
    assert [(slot, at - NOW) for slot, at, _ in found.suspects] == ([("n/1", -5)] if doubts else [])
