"""What the engine sees, as metrics: each counts what it says, and what is gone is counted no longer."""

import math
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from shunter.app.certs import issue
from shunter.app.gauges import CertificateGauges, FleetGauges
from shunter.app.health import Metrics
from shunter.app.voice import Voice
from shunter.model.errors import Problem
from shunter.model.ids import Digest, Epoch, ImageId, NodeId, NoticeId, OperationId, PolicyName, WorkerId, slot_id
from shunter.model.operation import OperationRecord, Outstanding
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Worker, WorkerState

NOW = 1_000.0
A, B = NodeId("node-a"), NodeId("node-b")
FULL = Problem(code="SH682", what="the disk is full", remedy="Free some")
BLIND = Problem(code="SH645", what="no answer", remedy="Look")
CORDON = Problem(code="SH650", what="it is cordoned", remedy="Drain it", subject="kubernetes")


def worker(name: str, state: WorkerState = WorkerState.RUNNING) -> Worker:
    role = "prefill" if name.startswith("p") else "decode"
    return Worker(id=WorkerId(name), role=role, graph="g", engine="vllm", state=state, node=A, slot=slot_id(A, 0), incarnation=0)  # type: ignore[arg-type]


def image(of: str) -> Image:
    return Image(
        id=ImageId(of), worker=WorkerId(of), incarnation=0, taken_at=1.0, bytes=1, nodes=(A,), role="decode", graph="g", engine="e"
    )  # type: ignore[arg-type]  # fmt: skip


def begun(name: str, lane: str, at: float, waits: bool = False, unknown: float | None = None) -> OperationRecord:
    planned = PlannedOperation(
        id=OperationId(name), kind=OperationKind.MOVE, worker=WorkerId("d0"), lane=lane, policy=PolicyName("p"), reason="so",
        expect=Preconditions(incarnation=0),
    )  # type: ignore[arg-type]  # fmt: skip
    outstanding = None if unknown is None else Outstanding(since=unknown, problem=BLIND)
    return OperationRecord(planned=planned, plan=Digest("sha256:0"), epoch=Epoch(1), created_at=at, waits=waits, outstanding=outstanding)


@pytest.fixture
def seen() -> CollectorRegistry:
    registry = CollectorRegistry()
    gauges = FleetGauges(registry)
    left = msgspec.structs.replace(worker("d3", WorkerState.LOST), pinned="its pod was deleted")
    workers = (worker("d0"), worker("d1"), worker("d2", WorkerState.LOST), left, worker("p0"), worker("p1", WorkerState.PARKED))
    fleet = Fleet(
        nodes=(Node(id=A, slots=(), problems=(CORDON, BLIND)), Node(id=B, slots=(), troubles=(FULL,))),
        workers=workers,
        images=(image("d0"), image("p1")),
    )
    notices = (Notice(id=NoticeId("n"), kind=NoticeKind.PREEMPTION, node=A, seen_at=1.0),)
    active = (
        begun("o1", "involuntary", NOW - 30),
        begun("o2", "involuntary", NOW - 10, unknown=NOW - 4),
        begun("o3", "voluntary", NOW - 99, waits=True),
    )
    gauges.show(fleet, notices, active, (A, B), {B}, NOW)
    registry.gauges = gauges  # type: ignore[attr-defined]
    return registry


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("shunter_agent_up", {"node": "node-a"}, 1),
        ("shunter_agent_up", {"node": "node-b"}, 0),
        ("shunter_notice_source_blind", {"node": "node-a"}, 1),
        ("shunter_notice_source_blind", {"node": "node-b"}, 0),
        ("shunter_node_wants_person", {"node": "node-a"}, 1),
        ("shunter_node_wants_person", {"node": "node-b"}, 0),
        ("shunter_workers", {"role": "decode", "state": "running"}, 2),
        ("shunter_workers", {"role": "decode", "state": "lost"}, 1),
        ("shunter_workers", {"role": "decode", "state": "left"}, 1),
        ("shunter_workers", {"role": "prefill", "state": "left"}, 0),
        ("shunter_workers", {"role": "prefill", "state": "parked"}, 1),
        ("shunter_workers", {"role": "prefill", "state": "fenced"}, 0),
        ("shunter_workers_without_image", {"role": "decode"}, 1),
        ("shunter_workers_without_image", {"role": "prefill"}, 1),
        ("shunter_notices_open", {"kind": "preemption"}, 1),
        ("shunter_notices_open", {"kind": "gone"}, 0),
        ("shunter_operations_active", {"lane": "involuntary"}, 2),
        ("shunter_operations_active", {"lane": "voluntary"}, 0),
        ("shunter_operation_oldest_seconds", {"lane": "involuntary"}, 30),
        ("shunter_operation_oldest_seconds", {"lane": "voluntary"}, 0),
        ("shunter_operations_unknown", {"lane": "involuntary"}, 1),
        ("shunter_operations_unknown", {"lane": "voluntary"}, 0),
        ("shunter_operation_unknown_oldest_seconds", {"lane": "involuntary"}, 4),
        ("shunter_operation_unknown_oldest_seconds", {"lane": "voluntary"}, 0),
    ],
)
def test_what_is_seen_is_counted(seen: CollectorRegistry, name: str, labels: dict[str, str], value: float) -> None:
    assert seen.get_sample_value(name, labels) == value


def test_what_is_gone_is_counted_no_longer(seen: CollectorRegistry) -> None:
    seen.gauges.show(Fleet(nodes=(Node(id=B, slots=()),)), (), (), (B,), (), NOW + 1)  # type: ignore[attr-defined]
    value = seen.get_sample_value
    assert value("shunter_agent_up", {"node": "node-b"}) == 1
    assert value("shunter_agent_up", {"node": "node-a"}) is None
    assert value("shunter_notice_source_blind", {"node": "node-a"}) is None
    assert value("shunter_workers", {"role": "decode", "state": "running"}) == 0
    assert value("shunter_notices_open", {"kind": "preemption"}) == 0
    assert value("shunter_operations_active", {"lane": "involuntary"}) == 0
    assert value("shunter_operation_oldest_seconds", {"lane": "involuntary"}) == 0
    assert value("shunter_operations_unknown", {"lane": "involuntary"}) == 0
    assert value("shunter_operation_unknown_oldest_seconds", {"lane": "involuntary"}) == 0


def test_a_node_that_comes_back_is_counted_anew(seen: CollectorRegistry) -> None:
    fleet = Fleet(nodes=(Node(id=A, slots=()), Node(id=B, slots=())))
    seen.gauges.show(msgspec.structs.replace(fleet, nodes=fleet.nodes[1:]), (), (), (B,), (), NOW)  # type: ignore[attr-defined]
    seen.gauges.show(fleet, (), (), (A, B), (A,), NOW)  # type: ignore[attr-defined]
    assert seen.get_sample_value("shunter_agent_up", {"node": "node-a"}) == 0


def test_problems_are_counted_once_for_as_long_as_they_last() -> None:
    told: list[Problem] = []
    duty = SimpleNamespace(metrics=Metrics(), clock=lambda: NOW, on_problem=told.append, feed=SimpleNamespace(current=None))
    voice = Voice.of(duty, SimpleNamespace(add=lambda _records: None), Epoch(1))  # type: ignore[arg-type]
    for problem in (BLIND, BLIND, None, BLIND):
        voice.tell_each("notices node-a", [problem] if problem else [])
    assert told == [BLIND, BLIND]
    assert duty.metrics.registry.get_sample_value("shunter_problems_total", {"code": "SH645"}) == 2


def test_certificates_are_told_to_end_when_they_do_and_a_new_one_at_once(tmp_path: Path) -> None:
    made = {one.cert.name: one.cert for one in issue(tmp_path, [], NOW, days=30)}
    registry = CollectorRegistry()
    CertificateGauges(registry).watch({"engine": made["engine.pem"], "ca": made["ca.pem"], "none": tmp_path / "none.pem"})

    def ends(of: str) -> float | None:
        return registry.get_sample_value("shunter_certificate_ends_timestamp_seconds", {"of": of})

    assert ends("engine") == pytest.approx(NOW + 30 * 86400, abs=600)
    assert ends("ca") == pytest.approx(NOW + 3650 * 86400, abs=600)
    assert math.isnan(ends("none") or 0.0)
    made["engine.pem"].write_bytes(made["ca.pem"].read_bytes())
    assert ends("engine") == ends("ca")


def test_a_cordon_that_stays_makes_no_source_blind() -> None:
    registry = CollectorRegistry()
    FleetGauges(registry).show(Fleet(nodes=(Node(id=A, slots=(), problems=(CORDON,)),)), (), (), (A,), (), NOW)
    told = [registry.get_sample_value(f"shunter_{name}", {"node": "node-a"}) for name in ("notice_source_blind", "node_wants_person")]
    assert told == [0, 1]
