"""Two agents, as they run on nodes, and a worker that is found in a pod and moved to another one by the orders of an engine.

Both look at the one container runtime that is here, each at a namespace of its own.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from kubelet import Kubelet, Pod, running, usable
from shunter.model.pod import OPERATION, PLACEHOLDER
from shunter.wire import agent_pb2 as pb
from shunter.wire import agent_pb2_grpc as rpc
from shunter.wire.convert import refusal_of
from shunter_agent.runtime.namespaces import call

pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(usable()), reason=usable() or "containers can run")]

BIN = Path(sys.executable).parent
DYNAMO = {
    "nvidia.com/dynamo-graph-deployment-name": "chat",
    "nvidia.com/dynamo-component-type": "worker",
    "nvidia.com/dynamo-sub-component-type": "decode",
}
WORKER = """
import os, signal, socket, threading, time
def end(*_):
    print("asked to end", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
listener = socket.create_server(("0.0.0.0", 9000))
def serve():
    while True:
        listener.accept()
threading.Thread(target=serve, daemon=True).start()
for n in range(10 ** 9):
    print("token", n, flush=True)
    time.sleep(0.01)
"""
SETTINGS = """
node = "{node}"
listen = "127.0.0.1:{port}"
image_listen = "127.0.0.1:{images}"
state = "state-{node}"
criu = "{criu}"
[containers]
socket = "{socket}"
namespaces = ["{namespace}"]
port = 9000
every = 0.1
[tls]
ca = "certs/ca.pem"
cert = "certs/agent-{node}.pem"
key = "certs/agent-{node}.key"
[[slots]]
index = 0
"""
PORTS = {"a": (47443, 47444), "b": (47453, 47454)}


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    with running(tmp_path / "containerd") as found:
        yield found


class Agents:
    """Processes of two agents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str) -> None:
        with (self.folder / f"{node}.log").open("ab") as log:
            command = [BIN / "shunter-agent", "run", "--config", self.folder / f"{node}.toml"]
            self.running[node] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, node: str) -> None:
        self.running[node].kill()
        self.running[node].wait(20)


@pytest.fixture
def agents(kubelet: Kubelet, criu: Path, tmp_path: Path) -> Iterator[Agents]:
    subprocess.run([BIN / "shunter", "certs", tmp_path / "certs", "--agent", "a", "--agent", "b"], check=True, capture_output=True)
    call("prctl", 36, 0, 0, 0, 0)  # what a killed agent leaves behind goes to the first process, as on a node, and not to this one
    agents = Agents(tmp_path)
    for node, namespace in (("a", "serving"), ("b", "elsewhere")):
        port, images = PORTS[node]
        text = SETTINGS.format(node=node, port=port, images=images, criu=criu, socket=kubelet.socket, namespace=namespace)
        (tmp_path / f"{node}.toml").write_text(text)
        agents.start(node)
    yield agents
    for agent in agents.running.values():
        agent.terminate()
        agent.wait(20)


@contextlib.asynccontextmanager
async def orders_to(node: str, agents: Agents) -> AsyncIterator[rpc.AgentStub]:
    certs = agents.folder / "certs"
    credentials = grpc.ssl_channel_credentials(*((certs / name).read_bytes() for name in ("ca.pem", "engine.key", "engine.pem")))
    options = (("grpc.ssl_target_name_override", f"{node}.agent.shunter"),)
    async with grpc.aio.secure_channel(f"127.0.0.1:{PORTS[node][0]}", credentials, options) as channel:
        await channel.channel_ready()
        yield rpc.AgentStub(channel)


async def workers(agent: rpc.AgentStub) -> list[pb.WorkerReport]:
    return list((await agent.Inventory(pb.InventoryRequest(), timeout=10)).workers)


async def until_there(agent: rpc.AgentStub, agents: Agents) -> pb.WorkerReport:
    end = time.monotonic() + 20
    while not (found := await workers(agent)):
        assert time.monotonic() < end, (agents.folder / "a.log").read_text()[-2000:]
    return found[0]


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def tokens(kubelet: Kubelet, pod: Pod) -> list[int]:
    return [int(line.split()[4]) for line in kubelet.log(pod).splitlines() if " token " in line]


async def test_a_worker_is_found_in_its_pod_and_moved_by_orders(agents: Agents, kubelet: Kubelet) -> None:
    pod = kubelet.pod("decode-0", DYNAMO)
    new = kubelet.pod("decode-0-new", {**DYNAMO, OPERATION: "op"})
    kubelet.container(pod, ["/usr/bin/python3", "-c", WORKER])
    placeholder = kubelet.container(new, list(PLACEHOLDER))
    home = {"pod_uid": new.uid, "pod_namespace": "serving", "pod_name": new.name, "pod_container": "main"}
    async with orders_to("a", agents) as source, orders_to("b", agents) as destination:
        found = await until_there(source, agents)
        assert (found.spec.worker, found.spec.role, found.spec.graph) == ("decode-0", "decode", "chat")
        assert (found.pod_uid, found.pod_container, found.slot) == (pod.uid, "main", "a/0")
        assert found.spec.address == f"{pod.address}:9000"
        until(lambda: tokens(kubelet, pod), "it says nothing")
        order = pb.Order(operation="op", epoch=1, plan="p", worker="decode-0", incarnation=0)
        step = pb.StepOrder(order=order)
        checked = await source.Preflight(pb.PreflightOrder(order=order), timeout=20)
        assert [one.code for one in checked.refusals] == []
        await destination.Prepare(pb.PrepareOrder(order=order, slot="b/0", spec=found.spec, **home), timeout=20)
        peer = pb.Peer(node="b", address=f"127.0.0.1:{PORTS['b'][1]}")
        frozen = await source.Freeze(pb.FreezeOrder(order=order, image="image", to=peer, hold_s=60), timeout=60)
        stood = tokens(kubelet, pod)
        await destination.Restore(pb.RestoreOrder(order=order, slot="b/0", image=frozen.image.id, hold_s=60, **home), timeout=60)
        await source.Release(step, timeout=30)
        resumed = await destination.Resume(step, timeout=30)
        assert "serving port accepts" in resumed.probe
        until(lambda: len(tokens(kubelet, new)) > 5, "it doesn't go on")
        assert tokens(kubelet, new)[0] in (stood[-1] + 1, stood[-1] + 2)
        (here,) = await workers(destination)
        assert (here.pod_uid, here.spec.worker, here.spec.address) == (new.uid, "decode-0", f"{new.address}:9000")
        # what a kubelet starts again in the pod that was left is nobody, however often the agent looks
        kubelet.container(pod, ["/usr/bin/python3", "-c", WORKER], attempt=1)
        until(lambda: tokens(kubelet, pod)[-1] > 50 and 0 in tokens(kubelet, pod)[len(stood) :], "it isn't started again")
        assert await workers(source) == []
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await source.Preflight(pb.PreflightOrder(order=order), timeout=20)
        assert refusal_of(refused.value) is not None
    agents.kill("b")
    agents.start("b")
    async with orders_to("b", agents) as destination:
        assert (await until_there(destination, agents)).pod_uid == new.uid
        before = len(tokens(kubelet, new))
        until(lambda: len(tokens(kubelet, new)) > before, "it doesn't run on without its agent")
        # a pod that is deleted has its worker asked to end, as if that were process 1 of its container
        kubelet.stop_container(placeholder, grace_s=10)
        until(lambda: "asked to end" in kubelet.log(new), "nobody asks it to end")
        assert kubelet.status(placeholder).exit_code == 0
        end = time.monotonic() + 15
        while await workers(destination):
            assert time.monotonic() < end, "the agent doesn't notice"
