"""Workers in containers of a real containerd and runc, moved by real CRIU between pods as a kubelet makes them. What plays the kubelet is
`kubelet.py`; everything else is what nodes have.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubelet import Kubelet, Pod, running, usable
from shunter.model.errors import Rejected
from shunter.model.pod import PLACEHOLDER
from shunter.model.pod import Pod as PodRef
from shunter_agent.runtime import locktables, process
from shunter_agent.runtime.containers import ContainerRuntime
from shunter_agent.runtime.network import Uplink
from shunter_agent.runtime.pods import Cri, Pods
from shunter_agent.runtime.port import Frozen, Held, Network, Process, WorkerSpec

pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(usable()), reason=usable() or "containers can run")]

WORKER = """
import mmap, os, socket, threading, time
shm = os.open("/dev/shm/blocks", os.O_RDWR | os.O_CREAT)
os.ftruncate(shm, 4096)
shared = mmap.mmap(shm, 4096)
open("/var/tmp/made-at-runtime", "w").write("by the worker")
os.makedirs("/cache/kernels", exist_ok=True)
open("/cache/kernels/compiled", "w").write("kernel")
os.symlink("/etc/hostname", "/var/tmp/link")
os.remove("/etc/from-the-image")
kept = open("/cache/kernels/compiled")
def pump(link):
    for number in range(10 ** 9):
        link.sendall(b"%d\\n" % number)
        shared[0:8] = number.to_bytes(8, "little")
        time.sleep(0.005)
inner = socket.create_server(("127.0.0.1", 7000))
child = os.fork()
if child == 0:
    while True:
        time.sleep(3600)
far = socket.create_connection(("127.0.0.1", 7000))
near = inner.accept()[0]
listener = socket.create_server(("0.0.0.0", 9000))
def serve():
    while True:
        link = listener.accept()[0]
        def one(link=link):
            n = 0
            try:
                while True:
                    link.sendall(b"%d\\n" % n); n += 1; time.sleep(0.005)
            except OSError as error:
                print("client lost", type(error).__name__, flush=True)
        threading.Thread(target=one, daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
n = 0
while True:
    near.sendall(b"%08d" % n)
    got = far.recv(8)
    assert int(got) == n, got
    shared[0:8] = n.to_bytes(8, "little")
    own = "self " + os.readlink("/proc/self") + " " + str(len(os.readlink("/proc/1/exe")))
    print("token", n, own, os.listdir("/cache/kernels"), kept.read(), open("/var/tmp/made-at-runtime").read(), flush=True)
    n += 1
    time.sleep(0.01)
"""
COMMAND = ["/usr/bin/python3", "-c", WORKER]


def until(condition: Callable[[], object], what: str, deadline_s: float = 15) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s} s in vain: {what}"
        time.sleep(0.005)


def drain(client: socket.socket) -> None:
    while client.recv(1 << 16):
        pass


@pytest.fixture(scope="module")
def kubelet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    with running(tmp_path_factory.mktemp("containerd")) as found:
        yield found


@pytest.fixture(scope="module")
def runtime(kubelet: Kubelet, criu: Path) -> ContainerRuntime:
    return ContainerRuntime(criu, Uplink(bridge=""), Pods(Cri(kubelet.socket)), kubelet.base / "stage")


def spec(pod: Pod) -> WorkerSpec:
    ref = PodRef(namespace="serving", name=pod.name, uid=pod.uid, container="main")
    return WorkerSpec(worker="decode-0", role="decode", graph="chat", engine="mocker", address=f"{pod.address}:9000", pod=ref)


class Home:
    """A worker's pod, found as an agent finds it."""

    def __init__(self, kubelet: Kubelet, runtime: ContainerRuntime, name: str, command: list[str], volumes: tuple[str, ...]) -> None:
        self.kubelet, self.runtime = kubelet, runtime
        self.pod = kubelet.pod(name)
        self.container = kubelet.container(self.pod, command, volumes=volumes)
        self.spec = spec(self.pod)
        assert self.spec.pod is not None
        self.process: Process = runtime.pods.find(self.spec.pod).init
        self.network: Network = runtime.network(self.spec)
        self.frozen: Frozen | None = None
        self.copies: list[Process] = []

    def tokens(self) -> list[int]:
        lines = self.kubelet.log(self.pod).splitlines()
        return [int(line.split()[4]) for line in lines if " token " in line]

    def runs_on(self) -> None:
        before = len(self.tokens())
        until(lambda: len(self.tokens()) > before + 5, f"{self.pod.name} says nothing new: {self.kubelet.log(self.pod)[-500:]}")

    def freeze(self, folder: Path) -> Frozen:
        folder.mkdir()
        self.frozen = self.runtime.freeze(self.process, self.spec, self.network, folder, lambda _at: None)
        return self.frozen

    def restore(self, folder: Path) -> Held:
        held = self.runtime.restore(self.spec, self.network, folder)
        self.copies.append(held.process)
        return held

    def state(self) -> int:
        return int(self.kubelet.status(self.container).state)

    def remove(self) -> None:
        if self.frozen is not None and self.frozen.alive():  # a test that failed: nothing can be ended while it stands still
            self.frozen.thaw()
        for copy in self.copies:  # an agent sees the end of its children, and reaps them; until then their container can't end
            process.end(copy)
        self.network.destroy()
        self.kubelet.remove(self.pod)


@contextlib.contextmanager
def home(
    kubelet: Kubelet, runtime: ContainerRuntime, name: str, command: list[str] | None = None, volumes: tuple[str, ...] = ("/cache",)
) -> Iterator[Home]:
    made = Home(kubelet, runtime, name, command or list(PLACEHOLDER), volumes)
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def client(worker: Home) -> Iterator[socket.socket]:
    """Somebody outside of the pod, with a stream of the worker's."""
    with socket.create_connection((worker.pod.address, 9000), timeout=10) as found:
        yield found


@pytest.fixture
def worker(kubelet: Kubelet, runtime: ContainerRuntime) -> Iterator[Home]:
    with home(kubelet, runtime, "decode-0", COMMAND) as made:
        until(lambda: made.tokens() or made.state() != 1, "the worker says nothing")
        assert made.state() == 1, kubelet.log(made.pod)
        yield made


def test_a_worker_moves_into_the_container_of_a_placeholder(
    worker: Home, client: socket.socket, kubelet: Kubelet, runtime: ContainerRuntime, tmp_path: Path
) -> None:
    assert client.recv(100)
    assert runtime.check(worker.process, worker.spec) == ()
    with home(kubelet, runtime, "decode-0-new") as there:
        frozen = worker.freeze(tmp_path / "image")
        stood = worker.tokens()
        held = there.restore(tmp_path / "image")
        assert there.tokens() == [], "it runs before it may"
        frozen.release()
        with pytest.raises(ConnectionResetError):  # and not silence, and not what looks like an end
            drain(client)
        until(lambda: worker.state() == 2, "the source's container doesn't end")
        copy = held.resume()
        there.runs_on()
        tokens = there.tokens()
        assert tokens[0] in (stood[-1] + 1, stood[-1] + 2)
        assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
        last = kubelet.log(there.pod).splitlines()[-1]
        assert all(part in last for part in ("self 1 ", "['compiled']", "by the worker")), last
        assert os.readlink(f"/proc/{copy.pid}/root/var/tmp/link") == "/etc/hostname"
        assert Path(f"/proc/{copy.pid}/root/proc/timer_list").read_bytes() == b"", "what the runtime hides is in sight"
        assert not Path(f"/proc/{copy.pid}/root/etc/from-the-image").exists(), "what it deleted of its image is back"
        assert "client lost" in kubelet.log(there.pod)
        with socket.create_connection((there.pod.address, 9000), timeout=10) as again:
            assert again.recv(100).startswith(b"0\n")
        assert Path(f"/proc/{copy.pid}/cgroup").read_text().splitlines()[-1].endswith(f"/{there.container}")
        process.end(copy)
        until(lambda: there.state() == 2, "the placeholder outlives its worker")
        assert kubelet.status(there.container).exit_code == 1


def test_a_move_that_is_rolled_back_leaves_no_trace(
    worker: Home, client: socket.socket, kubelet: Kubelet, runtime: ContainerRuntime, tmp_path: Path
) -> None:
    reader = client.makefile("rb")
    first = int(reader.readline())
    with home(kubelet, runtime, "decode-0-new") as there:
        frozen = worker.freeze(tmp_path / "image")
        held = there.restore(tmp_path / "image")
        held.abort()
        frozen.thaw()
        worker.runs_on()
        assert [int(reader.readline()) for _ in range(200)] == list(range(first + 1, first + 201))
        tokens = worker.tokens()
        assert tokens == list(range(len(tokens)))
        assert there.state() == 1, "the placeholder waits on"
        assert locktables.tables(worker.network.netns) == []
        # and it may be tried again with the very same placeholder
        frozen = worker.freeze(tmp_path / "second")
        held = there.restore(tmp_path / "second")
        frozen.release()
        copy = held.resume()
        there.runs_on()
        # a worker that was moved moves again
        moved = Home.__new__(Home)
        moved.__dict__ |= there.__dict__ | {"process": copy}
        with home(kubelet, runtime, "decode-0-newest") as beyond:
            frozen = moved.freeze(tmp_path / "third")
            held = beyond.restore(tmp_path / "third")
            frozen.release()
            held.resume()
            beyond.runs_on()
            assert beyond.tokens()[0] > there.tokens()[-1]
            until(lambda: there.state() == 2, "an emptied placeholder ends")


def test_a_placeholder_of_another_template_is_refused(worker: Home, kubelet: Kubelet, runtime: ContainerRuntime, tmp_path: Path) -> None:
    with home(kubelet, runtime, "other", volumes=()) as there:
        frozen = worker.freeze(tmp_path / "image")
        with pytest.raises(Rejected) as refused:
            there.restore(tmp_path / "image")
        assert refused.value.problem.code == "SH757"
        assert "/cache" in refused.value.problem.what
        frozen.thaw()
        worker.runs_on()
