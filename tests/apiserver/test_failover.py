"""Two `shunter engine` processes on two machines' worth of state, real agents and a real API server: one of them dies, or stands still.

The agents only pretend to move the worker, so no root is needed; everything else is as in a cluster.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import install, running
from control_plane import ControlPlane, free_port, until
from fleet import ANY, BIN, Fleet, NodePlan, WorkerPlan
from shunter.act.agents import AgentClient, TlsFiles
from shunter.app.settings import load
from shunter.cluster.operation import collection
from shunter.model.errors import Rejected
from shunter.model.ids import NodeId
from shunter.wire import agent_pb2 as pb
from test_engine import kubeconfig

NODES = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
)
SAVE = """\
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [preemption], reserve: 5s}
"""
LASTS_S = 3.0
NAMESPACE = "engine-itself"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/shunter-leader"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    for found in running(tmp_path_factory.mktemp("failover")):
        install(found)
        found.must("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield found


@pytest.fixture
def fleet(tmp_path: Path, plane: ControlPlane) -> Iterator[Fleet]:
    for one in plane.must("GET", collection(NAMESPACE))["items"]:
        plane.must("DELETE", f"{collection(NAMESPACE)}/{one['metadata']['name']}")
    (tmp_path / "source" / "policies").mkdir(parents=True)
    (tmp_path / "source" / "policies" / "save.yaml").write_text(SAVE)
    with Fleet(tmp_path / "fleet", pretend=True, weights_mb=1, nodes=NODES) as made:
        made.start_nodes()
        made.make_repository(tmp_path / "source")
        yield made


class Engine:
    """One candidate, with a folder and a port of its own."""

    def __init__(self, fleet: Fleet, plane: ControlPlane, name: str) -> None:
        folder = fleet.folder / name
        folder.mkdir()
        text = fleet.engine_config.read_text()
        text = text.replace(f'state = "{fleet.state}"', f'state = "{folder / "state"}"')
        self.port = free_port()
        text = text.replace(f'listen = "127.0.0.1:{fleet.engine_port}"', f'listen = "127.0.0.1:{self.port}"')
        text += f'[health]\nlease = "2s"\n[cluster]\nkubeconfig = "{kubeconfig(plane, folder)}"\nlasts = "{LASTS_S:g}s"\n'
        (folder / "engine.toml").write_text(text.replace('tick = "1s"', 'tick = "200ms"'))
        self.log, self.settings_file = folder / "log", folder / "engine.toml"
        self.process = fleet.run(str(BIN / "shunter"), "engine", "--config", str(folder / "engine.toml"), log=f"{name}/log")
        self.settings = load(folder / "engine.toml")

    def late(self) -> dict[str, str]:
        """What it says of itself that is too old, and why; empty: it is ready."""
        page = httpx.get(f"http://127.0.0.1:{self.port}/readyz", trust_env=False, timeout=10)
        told: dict[str, str] = page.json()["reasons"]
        assert (page.status_code == 200) is (not told)
        return told

    def said(self, what: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return what in self.log.read_text()


def operations(plane: ControlPlane) -> list[Any]:
    found: list[Any] = plane.must("GET", collection(NAMESPACE))["items"]
    return found


def lease(plane: ControlPlane) -> Any:
    status, found = plane.ask("GET", LEASE)
    return found["spec"] if status == 200 else {}


def phases(plane: ControlPlane) -> list[str]:
    return [one.get("status", {}).get("phase", "active") for one in operations(plane)]


def two(fleet: Fleet, plane: ControlPlane) -> tuple[Engine, Engine, int]:
    """One that leads, one that stands by, and the leader's epoch."""
    before = lease(plane).get("leaseTransitions", 0)
    first = Engine(fleet, plane, "one")
    until(lambda: lease(plane).get("leaseTransitions", 0) > before, 20, "the first leads")
    epoch = lease(plane)["leaseTransitions"]
    second = Engine(fleet, plane, "two")
    until(lambda: second.said("SH554"), 20, "the second stands by")
    return first, second, epoch


def moved(plane: ControlPlane) -> bool:
    """It is over, and the leader has let go of all of it."""
    found = phases(plane)
    return (
        "succeeded" in found
        and not {"active", "unknown"} & set(found)
        and not any(one["metadata"].get("finalizers") for one in operations(plane))
    )


def begun(plane: ControlPlane, engine: Engine) -> Callable[[], bool]:
    return lambda: engine.said("intended") and bool(operations(plane))


def test_another_finishes_what_one_that_was_killed_had_begun(fleet: Fleet, plane: ControlPlane) -> None:
    first, second, epoch = two(fleet, plane)
    fleet.nodes["node-a"].post_notice("preemption", "300s", "n1")
    until(begun(plane, first), 20, "a move to begin")
    first.process.kill()
    killed = time.monotonic()
    (move,) = operations(plane)
    until(lambda: moved(plane), 30, "the other to finish")
    assert time.monotonic() - killed < 4 * LASTS_S
    after = {one["metadata"]["name"]: one["status"] for one in operations(plane)}
    assert move["metadata"]["name"] in after, "it isn't lost"
    assert lease(plane)["leaseTransitions"] == epoch + 1
    done = [one for one in after.values() if one["phase"] == "succeeded"]
    assert len(done) == 1, "done once"
    assert {one["phase"] for one in after.values()} <= {"succeeded", "rolled-back"}
    second.process.terminate()
    assert second.process.wait(15) == 0
    assert not lease(plane).get("holderIdentity"), "it makes way for the next at once"


def test_a_server_that_is_restarted_in_mid_operation_has_it_done_once(fleet: Fleet, plane: ControlPlane) -> None:
    """Whether the leader outlasts it or the other one takes over: the worker has moved once, and nobody is left half-way."""
    first, second, epoch = two(fleet, plane)
    fleet.nodes["node-a"].post_notice("preemption", "300s", "n1")
    until(begun(plane, first), 20, "a move to begin")
    plane.restart_api()
    until(lambda: plane.ask("GET", collection(NAMESPACE))[0] == 200, 20, "operations to be served again")
    until(lambda: moved(plane), 30, "the move to end")
    assert phases(plane).count("succeeded") == 1
    assert set(phases(plane)) <= {"succeeded", "rolled-back", "superseded"}, "what was begun, or never was"
    until(lambda: lease(plane).get("holderIdentity"), 10, "somebody to lead")
    assert lease(plane)["leaseTransitions"] >= epoch
    assert second.process.poll() is None, "who stood by outlives it"
    asked = fleet.shunter("plan", "--config", str(second.settings_file), "--notice", "node-b=preemption:300s").stdout
    assert "decode-0" in asked.partition("node-b/0")[0], "it lives at the destination"


def test_one_that_stands_by_and_hears_nothing_of_the_lead_is_not_ready(fleet: Fleet, plane: ControlPlane) -> None:
    """It would take over from nobody: whoever counts on it, as a drain of the leader's node does, has to be told."""
    _, second, _ = two(fleet, plane)
    assert second.late() == {}
    plane.freeze_api()
    try:
        reason = until(second.late, 20, "the one that stands by to be late")["lease"]
        assert "may be 2 s: " in reason
        assert "SH251" in reason
    finally:
        plane.thaw_api()
    until(lambda: "lease" not in second.late(), 20, "it to know again")


async def test_one_that_stood_still_past_its_term_does_nothing_more(fleet: Fleet, plane: ControlPlane) -> None:
    first, second, epoch = two(fleet, plane)
    fleet.nodes["node-a"].post_notice("preemption", "300s", "n1")
    until(begun(plane, first), 20, "a move to begin")
    os.kill(first.process.pid, signal.SIGSTOP)
    until(lambda: moved(plane), 30, "the other to finish")
    before = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in operations(plane)}
    os.kill(first.process.pid, signal.SIGCONT)
    until(lambda: first.process.poll() is not None, 15, "the old leader to end")
    assert first.process.returncode != 0
    said = first.log.read_text()
    assert "SH550" in said or "SH551" in said or "SH557" in said, said
    assert {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in operations(plane)} == before, "it wrote nothing"
    assert lease(plane)["holderIdentity"], "the other leads on"
    tls = TlsFiles(ca=first.settings.tls.ca, cert=first.settings.tls.cert, key=first.settings.tls.key)
    agent = AgentClient(NodeId("node-b"), next(a.address for a in first.settings.agents if a.node == "node-b"), tls)
    try:
        with pytest.raises(Rejected) as raised:
            await agent.fence(pb.Order(operation="late", epoch=epoch, worker="decode-0", incarnation=1), 5.0)
    finally:
        await agent.close()
    assert raised.value.problem.code == "SH601", "and the agents would refuse it"
    assert second.process.poll() is None
