"""Whose clock a time in Kubernetes is by, and what is left on a Node of the machine's life before."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from metadata_services import Answer, Service, serving
from shunter_agent.notices import kubernetes, nodepods
from shunter_agent.notices.gpus import DISTRUSTED_S, Gpus
from shunter_agent.notices.kubernetes import NodeObject
from shunter_agent.notices.listwatch import Access, Times
from shunter_agent.notices.nodepods import PodObject
from shunter_agent.notices.nodewatch import ABSURD_S, SKEWED_S, NodeSource
from shunter_agent.notices.signals import Reading, read

NOW = 1_767_322_800.0  # 2026-01-02T03:00:00Z
GPUS = Gpus(pci={"0000:ef:00": "n/1"})
DAY = 86_400.0
UID = "u-w"


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOW + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(**parts: Any) -> NodeObject:
    meta = {"name": "n", "uid": "u", **parts.pop("meta", {})}
    return msgspec.convert({"metadata": meta, "spec": parts.pop("spec", {}), "status": parts}, NodeObject)


def condition(
    kind: str, message: str, *, since: float, seen: float | None = None, reason: str = "", status: str = "True"
) -> dict[str, str]:
    beat = {} if seen is None else {"lastHeartbeatTime": at(seen)}
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at(since), **beat}


def reading(given: NodeObject, now: float = NOW, *, ahead: float = 0.0, booted: float | None = None) -> Reading:
    return read(kubernetes.signals(given, GPUS, ahead=ahead, booted=booted), source="kubernetes", now=now, before={})


def when(found: Reading) -> list[tuple[float | None, float]]:
    """Of each notice its deadline and when it was put up, in seconds from now."""
    return [(None if n.deadline is None else n.deadline - NOW, n.seen_at - NOW) for n in found.notices.values()]


CHANGED = [{"manager": "nth", "operation": "Update", "time": at(-20), "fieldsV1": {"f:spec": {"f:taints": {}}}}]
SPOT = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(node(spec={"taints": [{**SPOT, "timeAdded": at(-20)}]}), (None, -50.0), id="a taint's own time"),
        pytest.param(node(spec={"taints": [SPOT]}, meta={"managedFields": CHANGED}), (None, -50.0), id="when taints were changed"),
        pytest.param(
            node(spec={"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": f"{NOW - 20:.0f}"}]}), (None, -50.0), id="its stamp"
        ),
        pytest.param(
            node(
                spec={"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unschedulable", "timeAdded": at(-20)}]},
            ),
            (None, -50.0),
            id="a cordon",
        ),
        pytest.param(node(meta={"deletionTimestamp": at(-20)}), (None, -50.0), id="the object's deletion"),
        pytest.param(node(meta={"annotations": {kubernetes.DEADLINE: at(600)}}), (570.0, 0.0), id="karpenter's deadline"),
        pytest.param(node(meta={"labels": {kubernetes.PLANNED: f"{NOW + 600:.0f}"}}), (570.0, 0.0), id="gke's plan"),
        pytest.param(
            node(conditions=[condition("VMEventScheduled", "Reboot Scheduled: Fri, 02 Jan 2026 03:15:00 GMT", since=-20)]),
            (870.0, -20.0),
            id="azure's time in a condition, which the node itself has written",
        ),
        pytest.param(
            node(conditions=[condition("Ready", "node is shutting down", since=-20, status="False")]),
            (None, -20.0),
            id="the kubelet's time",
        ),
        pytest.param(node(conditions=[condition("XidCriticalError", "XID 48", since=-20)]), (None, -20.0), id="a monitor's time"),
    ],
)
def test_what_is_by_the_control_planes_clock_is_told_by_the_nodes(given: NodeObject, expected: tuple[float | None, float]) -> None:
    """That clock is half a minute ahead: what it calls now the node calls half a minute later."""
    assert when(reading(given, ahead=30.0)) == [expected]


def pod(*, reason: str = "", ends: float | None = None) -> PodObject:
    meta = {"name": "w", "uid": UID, **({} if ends is None else {"deletionTimestamp": at(ends)})}
    conditions = [condition("DisruptionTarget", "", since=-20, reason=reason)] if reason else []
    return msgspec.convert({"metadata": meta, "spec": {}, "status": {"conditions": conditions}}, PodObject)


@pytest.mark.parametrize(("reason", "since"), [("EvictionByEvictionAPI", -50.0), ("TerminationByKubelet", -20.0)])
def test_a_pods_end_is_by_the_api_servers_clock_and_its_reason_by_who_gives_it(reason: str, since: float) -> None:
    (signal,) = nodepods.signals([pod(reason=reason, ends=40)], node(), "n", {UID: "n/0"}, ahead=30.0)
    assert (signal.deadline, signal.since) == (NOW + 10.0, NOW + since)


class Server(Service):
    object: dict[str, Any] = {"metadata": {"name": "n", "uid": "u", "annotations": {kubernetes.DEADLINE: at(600)}}}

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        assert "watch" not in path
        return 200, json.dumps({"metadata": {"resourceVersion": "1"}, "items": [self.object]}), {}


def asked(service: Server) -> tuple[float, list[str]]:
    """How long is left by a new source, and what is wrong."""
    source = NodeSource(Access(server=service.url), "n", "n", GPUS, pods=False, times=Times(), clock=lambda: NOW, elapsed=lambda: 5_000.0)
    (look,) = source.looks()
    (notice,) = look.ask().values()
    source.close()
    assert notice.deadline is not None
    return notice.deadline - NOW, [p.code for p in look.problems()]


@pytest.mark.parametrize(
    ("ahead", "left", "told"),
    [
        (0.0, 600.0, []),
        (1.0, 600.0, []),
        (20.0, 580.0, []),
        (-20.0, 620.0, []),
        (SKEWED_S + 60, 510.0, ["SH684"]),
        (-3600.0, 4200.0, ["SH684"]),
        (ABSURD_S + 60, 600.0, ["SH684"]),
        (-ABSURD_S - 60, 600.0, ["SH684"]),
    ],
)
def test_the_api_server_says_how_far_its_clock_is_off(ahead: float, left: float, told: list[str]) -> None:
    """A `Date` has whole seconds, so that less than two says nothing; one that nobody keeps a clock by isn't believed."""
    with serving(service := Server(), lambda: NOW):
        service.ahead = ahead
        assert asked(service) == (left, told)


def test_a_date_that_wavers_moves_no_deadline() -> None:
    with serving(service := Server(), lambda: NOW):
        source = NodeSource(Access(server=service.url), "n", "n", GPUS, pods=False, times=Times(), clock=lambda: NOW)
        said = []
        for service.ahead in (20.0, 21.0, 19.0, 22.0, 30.0):
            source._nodes._steps = None  # so that it lists
            (notice,) = source.ask_node().values()
            said.append((notice.deadline or 0.0) - NOW)
        source.close()
    assert said == [580.0, 580.0, 580.0, 580.0, 570.0]


# -- what stays


XID = "XID 48 on PCI:0000:ef:00"


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        pytest.param(condition("XidCriticalError", XID, since=-500), False, id="gke: until the machine is started"),
        pytest.param(condition("XIDErrors", XID, since=-500, seen=-400), False, id="aks"),
        pytest.param(condition("GPUMissing", "", since=-500, seen=-60), True, id="said again since: it is missing still"),
        pytest.param(condition("XidCriticalError", XID, since=-100), True, id="it came since"),
        pytest.param(condition("VMEventScheduled", "Reboot Started.", since=-500), False, id="azure: the reboot that it was"),
        pytest.param(condition("PreemptionScheduled", "Preempt Started.", since=-200), False, id="azure: it was taken, and is back"),
        pytest.param(condition("Ready", "node is shutting down", since=-350, status="False"), False, id="that shutdown is over"),
        pytest.param(
            condition("SysLogsXIDError", f"ErrorCode:48 {XID} Recommended Action=RESET;", since=-500, reason="SysLogsXIDErrorIsNotHealthy"),
            True,
            id="nvsentinel says itself when it is mended",
        ),
    ],
)
def test_what_nobody_has_said_since_the_machine_was_started_was_of_before(given: dict[str, str], counts: bool) -> None:
    found = node(conditions=[given])
    booted = -300.0 if "shutting" not in given["message"] else -340.0
    if "Preempt" in given["message"]:
        booted = -150.0
    assert (len(reading(found, booted=NOW + booted).notices) == 1) is counts
    assert len(reading(found).notices) == 1, "where nobody knows when it was started"


def test_a_gpu_that_is_bad_stays_bad_and_a_person_is_told() -> None:
    given = node(conditions=[condition("XidCriticalError", XID, since=0)])
    assert reading(given, NOW + DAY - 1).problems == ()
    for days in (1, 30):
        found = reading(given, NOW + days * DAY)
        assert [(n.kind, n.slot) for n in found.notices.values()] == [("gpu-failing", "n/1")]
        (problem,) = found.problems
        assert (problem.code, problem.subject, "2026-01-02T03:00:00Z" in problem.what) == ("SH650", "n/1", True)


def test_a_hint_from_a_monitor_is_believed_for_a_day() -> None:
    given = node(conditions=[condition("XidCriticalError", "XID 63 on PCI:0000:ef:00", since=0)])
    assert [n.kind for n in reading(given, NOW + DAY - 1).notices.values()] == ["rebalance"]
    late = reading(given, NOW + DAY)
    assert (late.notices, [p.code for p in late.problems]) == ({}, ["SH650"])


def test_a_process_is_told_to_be_suspect_for_as_long_as_by_the_kernels_log() -> None:
    """What is known against it and its images stays (see `doubts`)."""
    given = node(conditions=[condition("XidCriticalError", "XID 31 on PCI:0000:ef:00", since=0)])
    assert [p.code for p in reading(given, NOW + DISTRUSTED_S - 1).problems] == ["SH647"]
    late = reading(given, NOW + DISTRUSTED_S)
    assert (late.problems, [slot for slot, _, _ in late.suspects]) == ((), ["n/1"])
