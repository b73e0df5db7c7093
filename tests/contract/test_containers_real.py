"""Workers in containers of a real containerd and runc, moved by real CRIU between pods as a kubelet makes them. What plays the kubelet is
`kubelet.py`; everything else is what nodes have.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from kubelet import Kubelet, Pod, running, usable
from shunter.model.errors import Rejected
from shunter.model.pod import PLACEHOLDER
from shunter.model.pod import Pod as PodRef
from shunter_agent.runtime import containers_volumes as volumes
from shunter_agent.runtime import locktables, process
from shunter_agent.runtime.containers import ContainerRuntime
from shunter_agent.runtime.network import Uplink
from shunter_agent.runtime.pods import Cri, Pods, inner_pids, pids_in
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

    def __init__(
        self,
        kubelet: Kubelet,
        runtime: ContainerRuntime,
        name: str,
        command: list[str],
        volumes: tuple[str, ...] = ("/cache",),
        host: tuple[Path, str] | None = None,
    ) -> None:
        self.kubelet, self.runtime = kubelet, runtime
        self.pod = kubelet.pod(name)
        self.container = kubelet.container(self.pod, command, volumes=volumes, host=host)
        self.spec = spec(self.pod)
        assert self.spec.pod is not None
        self.process: Process = runtime.pods.find(self.spec.pod).init
        self.network: Network = runtime.network(self.spec)
        self.frozen: Frozen | None = None
        self.helds: list[Held] = []

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
        self.helds.append(held)
        return held

    def looks(self, times: int) -> None:
        """Wait until a placeholder has looked for its worker so often, each time before it sleeps again."""
        seen: set[int] = set()

        def look() -> bool:
            for name in os.listdir("/proc"):
                if name.isdigit() and (one := process.stat(int(name))) is not None and one.parent == self.process.pid:
                    seen.add(one.pid)
            return len(seen) >= times

        until(look, "the placeholder doesn't look")

    def state(self) -> int:
        return int(self.kubelet.status(self.container).state)

    def remove(self) -> None:
        if self.frozen is not None and self.frozen.alive():  # a test that failed: nothing can be ended while it stands still
            self.frozen.thaw()
        for held in self.helds:  # an agent sees the end of its children, and reaps them; until then their container can't end
            with contextlib.suppress(Rejected):
                held.abort()
            process.end(held.process)
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
        last = next(line for line in reversed(kubelet.log(there.pod).splitlines()) if " token " in line)
        assert all(part in last for part in ("self 1 ", "['compiled']", "by the worker")), last
        assert os.readlink(f"/proc/{copy.pid}/root/var/tmp/link") == "/etc/hostname"
        assert Path(f"/proc/{copy.pid}/root/proc/timer_list").read_bytes() == b"", "what the runtime hides is in sight"
        assert not Path(f"/proc/{copy.pid}/root/etc/from-the-image").exists(), "what it deleted of its image is back"
        until(lambda: "client lost" in kubelet.log(there.pod), "it takes a connection that is over for one that lives")
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
        there.looks(3)
        held.abort()
        frozen.thaw()
        worker.runs_on()
        assert [int(reader.readline()) for _ in range(200)] == list(range(first + 1, first + 201))
        tokens = worker.tokens()
        assert tokens == list(range(len(tokens)))
        there.looks(3)
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
    """Before the worker is touched, and by its image as well."""
    used = runtime.uses(worker.process, worker.spec)
    assert used is not None
    assert used.container is not None
    with home(kubelet, runtime, "alike") as alike:
        assert alike.spec.pod is not None
        assert runtime.unfit(worker.spec, used.container, alike.spec.pod) is None
    with home(kubelet, runtime, "other", volumes=()) as there:
        assert there.spec.pod is not None
        unfit = runtime.unfit(worker.spec, used.container, there.spec.pod)
        assert unfit is not None
        assert (unfit.code, "/cache" in unfit.what) == ("SH757", True)
        frozen = worker.freeze(tmp_path / "image")
        with pytest.raises(Rejected) as refused:
            there.restore(tmp_path / "image")
        assert refused.value.problem.code == "SH757"
        assert "/cache" in refused.value.problem.what
        frozen.thaw()
        worker.runs_on()


def orphans() -> list[int]:
    """What a killed agent has left behind becomes this process' (see `become_subreaper`), as on a node it becomes the first one's."""
    mine = [seen for name in os.listdir("/proc") if name.isdigit() and (seen := process.stat(int(name))) and seen.parent == os.getpid()]
    for seen in mine:
        if seen.state == "Z":
            process.reap(seen.pid)
    return [seen.pid for seen in mine]


AGENT = """
import sys
from pathlib import Path
import msgspec
from shunter_agent.runtime.containers import ContainerRuntime
from shunter_agent.runtime.network import Uplink
from shunter_agent.runtime.pods import Cri, Pods
from shunter_agent.runtime.port import WorkerSpec
what, criu, socket, stage, folder, spec = sys.argv[1:]
runtime = ContainerRuntime(Path(criu), Uplink(bridge=""), Pods(Cri(Path(socket))), Path(stage))
spec, folder = msgspec.json.decode(spec, type=WorkerSpec), Path(folder)
network = runtime.network(spec)
if what == "freeze":
    kept = runtime.freeze(runtime.pods.find(spec.pod).init, spec, network, folder, lambda at: None)
else:
    kept = runtime.restore(spec, network, folder)
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def agent(what: str, home: Home, criu: Path, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another agent, which holds a worker, or a copy of one, until it is killed."""
    stage = home.kubelet.base / f"stage-{what}"
    command = [sys.executable, "-c", AGENT, what, str(criu), str(home.kubelet.socket), str(stage), str(folder)]
    told = msgspec.json.encode(home.spec).decode()
    with subprocess.Popen([*command, told], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def test_whichever_agent_dies_the_worker_runs_in_one_place(
    worker: Home, client: socket.socket, kubelet: Kubelet, runtime: ContainerRuntime, criu: Path, tmp_path: Path
) -> None:
    reader = client.makefile("rb")
    first = int(reader.readline())
    (tmp_path / "image").mkdir()
    with home(kubelet, runtime, "decode-0-new") as there:
        before = set(orphans())
        with agent("freeze", worker, criu, tmp_path / "image") as source:
            with agent("restore", there, criu, tmp_path / "image") as destination:
                copies = [pid for pid in pids_in(runtime.pods.find(there.spec.pod).cgroup) if len(inner_pids(pid)) > 2]  # type: ignore[arg-type]
                assert copies
                destination.kill()
                until(lambda: not set(copies) & set(orphans()), "a held copy outlives its agent")
            source.kill()
            worker.runs_on()
        until(lambda: set(orphans()) <= before, "a CRIU outlives its agent")
        assert [int(reader.readline()) for _ in range(100)] == list(range(first + 1, first + 101))
        assert there.state() == 1
        assert there.tokens() == []
        tokens = worker.tokens()
        assert tokens == list(range(len(tokens)))


def test_what_cant_go_along_is_said_beforehand(kubelet: Kubelet, criu: Path, runtime: ContainerRuntime, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    strict = ContainerRuntime(criu, Uplink(bridge=""), runtime.pods, kubelet.base / "stage", carry=1000, keep_streams=True)
    script = """
import os, socket, time
kept = open("/models/log", "w"); kept.write("x"); kept.flush()
open("/cache/large", "w").write("x" * 2000)
far = socket.create_connection(("10.88.0.1", %d))
print("token 0", flush=True)
time.sleep(3600)
"""
    pod = kubelet.pod("decode-1")  # with the first one the node's end of their network comes to be
    with socket.create_server(("10.88.0.1", 0)) as others:
        command = ["/usr/bin/python3", "-c", script % others.getsockname()[1]]
        container = kubelet.container(pod, command, volumes=("/cache",), host=(tmp_path / "models", "/models"), tty=True)
        try:
            until(lambda: "token" in kubelet.log(pod) or kubelet.status(container).state != 1, "it doesn't begin")
            who = spec(pod)
            assert who.pod is not None
            found = runtime.pods.find(who.pod)
            assert {one.code for one in strict.check(found.init, who)} == {"SH753", "SH754", "SH756", "SH761"}
            said = {one.code: one.what for one in strict.check(found.init, who)}
            assert "at most 1kB" in said["SH754"]
            assert "/models" in said["SH756"]
            assert "1 of its connections" in said["SH761"]
            assert runtime.remarks(found.init, who) == (
                "1 of its connections are with others, and would be reset when the move is committed",
            )
            # and without anybody to ask, by the names of cgroups alone, it is the same container
            assert Pods(None).find(who.pod).init == found.init
        finally:
            kubelet.remove(pod)


def test_what_is_mounted_for_a_device_is_the_new_ones(
    kubelet: Kubelet, runtime: ContainerRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NVIDIA's runtime mounts something for each GPU, under its name."""
    monkeypatch.setattr(volumes, "_HARDWARE", re.compile(r"/gpu-[ab]$"))
    for name in ("gpu-a", "gpu-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "about").write_text(name)
    with contextlib.ExitStack() as stack:
        worker = Home(kubelet, runtime, "decode-0", COMMAND, host=(tmp_path / "gpu-a", "/gpu-a"))
        stack.callback(worker.remove)
        there = Home(kubelet, runtime, "decode-0-new", list(PLACEHOLDER), host=(tmp_path / "gpu-b", "/gpu-b"))
        stack.callback(there.remove)
        until(worker.tokens, "the worker says nothing")
        assert runtime.check(worker.process, worker.spec) == ()
        frozen = worker.freeze(tmp_path / "image")
        held = there.restore(tmp_path / "image")
        frozen.release()
        copy = held.resume()
        there.runs_on()
        root = Path(f"/proc/{copy.pid}/root")
        assert (root / "gpu-b/about").read_text() == "gpu-b"
        assert not (root / "gpu-a/about").exists()
