"""Argo CD's health checks on what a real API server gives back: nothing that they look at is dropped, defaulted or renamed on the way."""

import itertools
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from control_plane import ControlPlane
from shunter.cluster.kinds import collection
from shunter.cluster.operation import Batch, resource, status
from shunter.cluster.operation import collection as operations
from shunter.cluster.reading import file_of, read
from shunter.cluster.telling import statuses
from shunter.lang.load import load
from shunter.model.ids import Digest, Epoch, OperationId, PolicyName, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "deploy"))
from lua_health import judge

MERGE = "application/merge-patch+json"
NAMES = itertools.count()


@pytest.fixture
def namespace(plane: ControlPlane) -> str:
    name = f"health-{next(NAMES)}"
    plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


def told(one: dict[str, Any]) -> dict[str, Any]:
    """The status that the engine writes of it."""
    reading = read([(one["kind"], one)])
    found = statuses(reading, load(reading.revision, None), {}, lambda _path, _resource: {}, 1_800_000_000.0)
    return {"status": msgspec.to_builtins(found[file_of(one["kind"], "one")])}


@pytest.mark.parametrize(
    ("kind", "spec", "wanted"),
    [
        ("PreemptionPolicy", {"workers": {"all": True}, "notices": ["preemption"]}, "Healthy"),
        ("DisruptionBudget", {"workers": {"all": True}, "maxConcurrent": 1}, "Healthy"),
        ("CheckpointPolicy", {"workers": {"all": True}, "every": "5m", "mode": "off"}, "Suspended"),
        ("CheckpointPolicy", {"workers": {"all": True}, "every": "5m", "when": "worker.kvUsag < 0.5"}, "Degraded"),
    ],
    ids=["in force", "budget", "off", "refused by the engine alone"],
)
def test_a_policy(plane: ControlPlane, namespace: str, tmp_path: Path, kind: str, spec: dict[str, Any], wanted: str) -> None:
    made = {"apiVersion": "shunter.dev/v1alpha1", "kind": kind, "metadata": {"name": "one", "namespace": namespace}, "spec": spec}
    where = collection(kind, namespace)
    one = plane.must("POST", where, made)
    assert judge(one, tmp_path)[0] == "Progressing", "the engine hasn't looked at it"
    plane.must("PATCH", f"{where}/one/status", told(one), MERGE)
    one = plane.must("GET", f"{where}/one")
    status, message = judge(one, tmp_path)
    assert (status, bool(message)) == (wanted, True), message
    plane.must("PATCH", f"{where}/one", {"spec": {"workers": {"all": None, "role": "decode"}}}, MERGE)
    assert judge(plane.must("GET", f"{where}/one"), tmp_path)[0] == "Progressing", "what is said is about an older generation"


@pytest.mark.parametrize(("outcome", "wanted"), [(None, "Progressing"), (Status.SUCCEEDED, "Healthy"), (Status.FAILED, "Degraded")])
def test_an_operation(plane: ControlPlane, namespace: str, tmp_path: Path, outcome: Status | None, wanted: str) -> None:
    planned = PlannedOperation(
        id=OperationId("op-1"), kind=OperationKind.CHECKPOINT, worker=WorkerId("d0"), lane="voluntary", policy=PolicyName("p"), reason="so",
        expect=Preconditions(incarnation=0),
    )  # type: ignore[arg-type]  # fmt: skip
    ended = Outcome(status=outcome, at=20.0, reason="it says why") if outcome else None
    record = OperationRecord(planned=planned, plan=Digest("sha256:" + "0" * 64), epoch=Epoch(1), created_at=10.0, outcome=ended)
    where = operations(namespace)
    one = plane.must("POST", where, resource(record, Batch(first="op-1", size=1), namespace))
    assert judge(one, tmp_path) == ("Progressing", "it is decided, and not begun")
    plane.must("PATCH", f"{where}/op-1/status", {"status": status(record)}, MERGE)
    assert judge(plane.must("GET", f"{where}/op-1"), tmp_path)[0] == wanted
