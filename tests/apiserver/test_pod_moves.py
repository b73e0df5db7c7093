"""`shunter engine` moves a worker between pods on a real API server, and is killed on the way.

Agents are real and found by their pods; they only pretend to move the worker (agent_in_pods.py says what that leaves out), and nodes are
played (nodes_simulated.py does).
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import install, running
from control_plane import ControlPlane, free_port, until
from fleet import ANY, BIN, Fleet, NodePlan, WorkerPlan
from nodes_simulated import Nodes, node, worker
from proxy import Proxy
from shunter.act.agents import AgentClient, TlsFiles
from shunter.cluster.operation import collection
from shunter.model.ids import NodeId
from shunter.model.pod import STATE, WORKER
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
ENGINE, WORKERS, AGENTS = "engine-itself", "dynamo", "shunter-agents"
pytestmark = pytest.mark.timeout(300)
PODS = f"/api/v1/namespaces/{WORKERS}/pods"
EVENTS = f"/api/v1/namespaces/{WORKERS}/events"
HASH = {"pod-template-hash": "5f9c"}
RUNNING = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    for found in running(tmp_path_factory.mktemp("moves")):
        install(found)
        for name in (ENGINE, WORKERS, AGENTS):
            found.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for name in ("node-a", "node-b"):
            found.must("POST", "/api/v1/nodes", node(name))
        yield found


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[Nodes]:
    for path in (PODS, f"/api/v1/namespaces/{AGENTS}/pods", collection(ENGINE)):
        for one in plane.must("GET", path)["items"]:
            if one["metadata"].get("finalizers"):
                plane.must("PUT", f"{path}/{one['metadata']['name']}", {**one, "metadata": {**one["metadata"], "finalizers": []}})
            plane.ask("DELETE", f"{path}/{one['metadata']['name']}")
    found = Nodes(plane, WORKERS, {"node-a": 1, "node-b": 1})
    yield found
    found.close()


@pytest.fixture
def fleet(tmp_path: Path, plane: ControlPlane, nodes: Nodes) -> Iterator[Fleet]:
    (tmp_path / "source" / "policies").mkdir(parents=True)
    (tmp_path / "source" / "policies" / "save.yaml").write_text(SAVE)
    with Fleet(tmp_path / "fleet", pretend=True, weights_mb=1, nodes=NODES) as made:
        plane.must("POST", PODS, worker("decode-0", WORKERS, "node-a", **HASH))
        until(lambda: phase(plane, "decode-0") == "Running", 30, "the worker's pod")
        home = {"namespace": WORKERS, "name": "decode-0", "uid": plane.must("GET", f"{PODS}/decode-0")["metadata"]["uid"]}
        (made.nodes["node-a"].folder / "pod.json").write_text(json.dumps(home))
        for one in made.nodes.values():
            one.command = [sys.executable, str(Path(__file__).with_name("agent_in_pods.py")), "run", "--config", str(one.config)]
        made.start_nodes()
        made.make_repository(tmp_path / "source")
        for name, one in made.nodes.items():
            agent = {
                "metadata": {"name": f"agent-{name}", "labels": {"app.kubernetes.io/name": "shunter-agent"}},
                "spec": {
                    "nodeName": name,
                    "containers": [{"name": "agent", "image": "i", "ports": [{"name": "agent", "containerPort": one.port(0)}]}],
                },
            }
            plane.must("POST", f"/api/v1/namespaces/{AGENTS}/pods", agent)
            status = {"status": {"phase": "Running", "podIP": one.address}}
            path = f"/api/v1/namespaces/{AGENTS}/pods/agent-{name}/status"
            plane.must("PATCH", path, status, "application/merge-patch+json")
        yield made


def phase(plane: ControlPlane, name: str) -> str:
    status, found = plane.ask("GET", f"{PODS}/{name}")
    return found.get("status", {}).get("phase", "") if status == 200 else ""


class Engine:
    """One candidate, with a folder and a port of its own. Its settings name no agent."""

    def __init__(self, fleet: Fleet, plane: ControlPlane, name: str, *, port: int = 0, lasts: str = "6s") -> None:
        """`port`: where it reaches the API server, if that isn't the server's own."""
        folder = fleet.folder / name
        folder.mkdir()
        text = fleet.engine_config.read_text().partition("[[agents]]")[0]
        text = text.replace(f'state = "{fleet.state}"', f'state = "{folder / "state"}"').replace('tick = "1s"', 'tick = "200ms"')
        text = text.replace('hold = "20s"', 'hold = "5s"')
        text = text.replace(f'listen = "127.0.0.1:{fleet.engine_port}"', f'listen = "127.0.0.1:{free_port()}"')
        access = kubeconfig(plane, folder)
        if port:
            access.write_text(access.read_text().replace(f":{plane.port}", f":{port}"))
        text += f'[cluster]\nkubeconfig = "{access}"\nlasts = "{lasts}"\n[cluster.pods]\nnamespace = "{WORKERS}"\n'
        (folder / "engine.toml").write_text(text)
        self.log = folder / "log"
        self.process = fleet.run(str(BIN / "shunter"), "engine", "--config", str(folder / "engine.toml"), log=f"{name}/log")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def alive(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return True


def pods(plane: ControlPlane) -> dict[str, Any]:
    return {p["metadata"]["name"]: p for p in plane.must("GET", PODS)["items"] if not p["metadata"].get("deletionTimestamp")}


def operations(plane: ControlPlane) -> list[Any]:
    found: list[Any] = plane.must("GET", collection(ENGINE))["items"]
    return found


def over(plane: ControlPlane, engine: Engine) -> bool:
    engine.alive()
    phases = [one.get("status", {}).get("phase", "active") for one in operations(plane)]
    return "succeeded" in phases and not {"active", "unknown"} & set(phases)


def settled(plane: ControlPlane) -> bool:
    """One pod, on node-b, that serves, and counts as one of its controller's."""
    found = list(pods(plane).values())
    if len(found) != 1:
        return False
    labels, spec = found[0]["metadata"]["labels"], found[0]["spec"]
    return (labels.get(STATE), labels.get("pod-template-hash"), spec.get("nodeName")) == ("serving", "5f9c", "node-b")


def lives(fleet: Fleet) -> list[tuple[str, str]]:
    """Where agents report the worker, and as what."""
    certs = fleet.folder / "certs"
    tls = TlsFiles(ca=certs / "ca.pem", cert=certs / "engine.pem", key=certs / "engine.key")

    async def ask() -> list[tuple[str, str]]:
        found = []
        for name, one in fleet.nodes.items():
            agent = AgentClient(NodeId(name), f"{one.address}:{one.port(0)}", tls)
            found += [(name, worker.state) for worker in (await agent.report(5.0)).workers]
            await agent.close()
        return found

    return asyncio.run(ask())


def test_a_worker_moves_to_a_pod_of_its_own_and_the_old_one_goes(fleet: Fleet, plane: ControlPlane, nodes: Nodes) -> None:
    engine = Engine(fleet, plane, "one")
    nodes.stuck["decode-0-"] = {"waiting": {"reason": "ContainerCreating"}}
    home = plane.must("GET", f"{PODS}/decode-0")["metadata"]["uid"]
    until(lambda: engine.alive() and _known(plane), 60, "it leads")
    plane.must("POST", PODS, worker("decode-9", WORKERS, "node-z"))
    plane.must("PATCH", f"{PODS}/decode-9/status", RUNNING, "application/merge-patch+json")
    config = str(engine.log.with_name("engine.toml"))
    preview = fleet.shunter("plan", "--config", config, "--notice", "node-a=preemption:300s").stdout
    assert "move decode-0 from node-a/0 to node-b/0" in preview, "who looks on finds agents and pods by itself"
    said = fleet.shunter("why", "decode-9", "--config", config).stdout
    assert "dynamo/decode-9" in said
    assert "no agent runs on node-z" in said
    plane.must("DELETE", f"{PODS}/decode-9")
    fleet.nodes["node-a"].post_notice("preemption", "300s", "n1")
    until(lambda: len(pods(plane)) == 2, 60, "a pod for it")
    time.sleep(1.0)
    (move,) = operations(plane)
    assert move.get("status", {}).get("step", "intended") == "intended", "nothing is touched before its new pod runs"
    assert pods(plane)["decode-0"]["status"]["phase"] == "Running"
    nodes.stuck.clear()
    until(lambda: over(plane, engine), 90, "moved")
    until(lambda: settled(plane), 60, "one pod that is its controller's")
    (pod,) = pods(plane).values()
    assert pod["metadata"]["annotations"][WORKER] == "decode-0"
    (move,) = [one for one in operations(plane) if one["status"]["phase"] == "succeeded"]
    assert move["status"]["pod"]["uid"] == pod["metadata"]["uid"]
    assert move["status"]["left"]["name"] == "decode-0"
    assert lives(fleet) == [("node-b", "running")]
    came = pod["metadata"]
    for name, uid, all_of in (("decode-0", home, ["MoveBegun", "MoveSucceeded"]), (came["name"], came["uid"], ["MoveSucceeded"])):
        until(lambda name=name, uid=uid, all_of=all_of: told(plane, name, uid) == all_of, 10, f"Events about {name}")


def told(plane: ControlPlane, name: str, uid: str) -> list[str]:
    """The reasons of the Events about a pod."""
    about = ("Pod", name, uid)
    found = [(e, e["involvedObject"]) for e in plane.must("GET", EVENTS)["items"]]
    return sorted(e["reason"] for e, pod in found if (pod["kind"], pod["name"], pod.get("uid")) == about)


def _known(plane: ControlPlane) -> bool:
    return plane.ask("GET", f"/api/v1/namespaces/{ENGINE}/configmaps/shunter-memory")[0] == 200


def test_engines_that_are_killed_on_the_way_leave_one_worker_and_one_pod(fleet: Fleet, plane: ControlPlane, nodes: Nodes) -> None:
    """The first while the pod is awaited, the second when the move is committed. Every other point is tried in
    tests/property/test_protocol_pods.py.
    """
    nodes.stuck["decode-0-"] = {"waiting": {"reason": "ContainerCreating"}}
    first = Engine(fleet, plane, "one")
    fleet.nodes["node-a"].post_notice("preemption", "300s", "n1")
    until(lambda: first.alive() and len(pods(plane)) == 2, 60, "a pod for it")
    first.kill()
    made = next(name for name in pods(plane) if name != "decode-0")
    uid = pods(plane)[made]["metadata"]["uid"]
    nodes.stuck.clear()
    _kill_at(Engine(fleet, plane, "two"), "committing")
    third = Engine(fleet, plane, "three")
    until(lambda: over(plane, third), 90, "moved by another")
    until(lambda: settled(plane), 60, "one pod")
    (pod,) = pods(plane).values()
    moves = [one for one in operations(plane) if one["spec"]["kind"] == "move"]
    phases = [one["status"]["phase"] for one in moves]
    assert set(phases) == {"rolled-back", "succeeded"}
    assert phases.count("succeeded") == 1
    assert pod["metadata"]["uid"] != uid, "what the first one made is gone, as its operation went back"
    assert lives(fleet) == [("node-b", "running")]


def _kill_at(engine: Engine, step: str) -> None:
    """As soon as its log says that the step is reached: whatever it does next, it may not come to do."""
    end = time.monotonic() + 60
    with engine.log.open("rb") as log:
        said = b""
        while step.encode() not in said:
            assert time.monotonic() < end, said.decode()
            said += log.read()
            engine.alive()
    engine.kill()


@pytest.mark.parametrize("answers", [True, False])
async def test_a_move_that_nobody_could_write_down_leaves_one_worker_and_one_pod(
    fleet: Fleet, plane: ControlPlane, nodes: Nodes, *, answers: bool
) -> None:
    """The API server is away from the moment on at which its new pod runs, and the engine dies before it is back. All that the next one
    knows is that the move was intended; the node that the worker was on may never answer it.
    """
    left = plane.must("GET", f"{PODS}/decode-0")["metadata"]["uid"]
    nodes.stuck["decode-0-"] = {"waiting": {"reason": "ContainerCreating"}}
    slow = fleet.nodes["node-b"].folder / "slow"
    os.mkfifo(slow)
    async with Proxy(plane.port) as proxy:
        first = await asyncio.to_thread(Engine, fleet, plane, "one", port=proxy.port, lasts="20s")
        fleet.nodes["node-a"].post_notice("preemption", "300s", "n1")
        await asyncio.to_thread(until, lambda: first.alive() and len(pods(plane)) == 2, 60, "a pod for it")
        made = next(name for name in pods(plane) if name != "decode-0")
        nodes.stuck.clear()
        assert await asyncio.to_thread(slow.read_text) == "decode-0", "the engine has seen its new pod run"
        proxy.refusing = True
        proxy.cut()
        await asyncio.to_thread(slow.write_text, "go on")
        await asyncio.to_thread(until, lambda: lives(fleet) == [("node-b", "running")] and first.alive(), 30, "moved")
        first.kill()
    (move,) = operations(plane)
    assert "status" not in move or move["status"]["step"] == "intended"
    assert set(pods(plane)) == {"decode-0", made}
    if not answers:
        fleet.nodes["node-a"].kill_agent()
    second = Engine(fleet, plane, "two")
    until(lambda: over(plane, second), 90, "found out")
    until(lambda: settled(plane), 60, "one pod")
    (move,) = operations(plane)
    assert (move["status"]["phase"], move["status"]["left"]["uid"]) == ("succeeded", left)
    assert set(pods(plane)) == {made}
