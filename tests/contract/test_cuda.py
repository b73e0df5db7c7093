"""Workers with GPU memory, moved with real CRIU: by a stand-in for the CUDA driver, and by a real one where there is a GPU."""

import contextlib
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import pytest
from shunter.model.errors import Rejected, Unknown
from shunter_agent.runtime import locktables, preflight, process
from shunter_agent.runtime.criu import CriuRuntime
from shunter_agent.runtime.cuda import image, ptrace
from shunter_agent.runtime.cuda.held import CudaHeld
from shunter_agent.runtime.cuda.node import LOCK_S, CudaNode, Restoring
from shunter_agent.runtime.cuda.session import Session
from shunter_agent.runtime.network import Uplink
from shunter_agent.runtime.port import Process, WorkerSpec
from stub_gpus import WORKER, StubNode, build, private_dev
from test_criu import HOST, Bench, _in_a_child, until

pytestmark = pytest.mark.lab
MEGABYTES = 8
GIGABYTES = 2
"""What a worker holds on a real GPU."""
WHOLE = MEGABYTES << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with private_dev(tmp_path_factory.mktemp("dev") / "dev") as made:
        yield made


class Sessions:
    """Makes helpers that see one node's driver, and keeps them, so that a test can end one."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment, self.patience = environment, 1.0
        self.made: list[Session] = []

    def __call__(self, warm: bool) -> Session:
        self.made.append(Session(warm, self.environment, self.patience))
        return self.made[-1]


class GpuBench(Bench):
    """A worker with GPUs on node a, with node b beside it, each with a driver of its own. Without stubs: the same GPUs on both."""

    def __init__(
        self,
        criu: Path,
        tmp_path: Path,
        stubs: dict[str, StubNode],
        environment: Callable[[str], dict[str, str]],
        megabytes: int = MEGABYTES,
    ) -> None:
        self.stubs, self.environment = stubs, environment
        self.command = (sys.executable, str(WORKER), HOST, "9000", str(tmp_path / "ready"), str(megabytes))
        self.sessions: dict[str, Sessions] = {}
        self.cudas: list[CudaNode] = []
        super().__init__(criu, tmp_path)
        for node in (self.a, self.b):
            node.runtime = self.runtime_on(node, criu)

    def runtime_on(self, node, criu: Path) -> CriuRuntime:
        sessions = self.sessions[node.name] = Sessions(self.environment(node.name))
        cuda = CudaNode(there=True, session=sessions, lock_s=0.3 if self.stubs else LOCK_S)
        self.cudas.append(cuda)
        return node.call(lambda: CriuRuntime(criu, Uplink(bridge="br-shunt"), cuda=cuda))

    def launch(self, spec: WorkerSpec) -> Process:
        return super().launch(msgspec.structs.replace(spec, command=self.command, env=self.environment("a")))

    def move(self) -> Process:
        """The whole way to node b."""
        there, folder = self.network_on(self.b), self.folder("moving")
        self.freeze(folder).release()
        self.a.call(self.network.disconnect)
        held = self.restore(folder, self.b, there)
        self.b.call(there.connect)
        return held.resume()

    def whole(self) -> bool:
        """Every byte of the worker's GPU memory is what it was."""
        with self.b.call(lambda: socket.create_connection((HOST, 9000), 30)) as link, link.makefile() as answer:
            link.sendall(b"all\n")
            return answer.readline() == "whole\n"

    def close(self) -> None:
        super().close()
        for cuda in self.cudas:
            cuda.close()


class Stubbed(GpuBench):
    """With the stand-in, of which `a` and `b` are the nodes."""

    def __init__(self, criu: Path, tmp_path: Path, library: Path, device: Path, gpus: int = 1, children: int = 0) -> None:
        self.on_a, self.on_b = (StubNode(tmp_path, name, gpus) for name in "ab")
        stubs = {"a": self.on_a, "b": self.on_b}
        super().__init__(criu, tmp_path, stubs, lambda name: stubs[name].environment(library, device))
        self.children = children

    def launch(self, spec: WorkerSpec) -> Process:
        if self.tmp_path.name.startswith("test_a_tree"):
            self.command = (*self.command, "1")
        return super().launch(spec)

    def thawed_and_whole(self) -> None:
        """The worker runs at the source, with its memory on its GPU, and nothing of what was tried is left."""
        assert process.stat(self.worker.pid).state not in ("T", "t")
        assert not preflight.traced(self.worker.pid)
        assert self.on_a.taken() > WHOLE
        assert self.a.runtime.find(self.worker)
        assert locktables.tables(self.network.netns) == []


@pytest.fixture
def bench(criu: Path, tmp_path: Path, library: Path, device: Path) -> Iterator[Stubbed]:
    made = Stubbed(criu, tmp_path, library, device)
    with contextlib.closing(made):
        yield made


def test_gpu_memory_moves_to_another_gpu_and_back(bench: Stubbed) -> None:
    client = bench.client()
    client.goes_on()
    assert bench.on_a.taken() > WHOLE
    assert bench.a.runtime.check(bench.worker, bench.spec) == ()
    assert (bench.a.runtime.memory(bench.worker) or 0) > WHOLE
    needs = bench.a.runtime.needs(bench.worker, bench.spec)
    assert needs == {
        "driver": "580.95.05",
        "cuda": "13.0",
        "gpu": "NVIDIA B200",
        "gpus": "1",
        "gpus_all": "1",
        "gpu_memory": str(WHOLE + 8),
    }
    there, folder = bench.network_on(bench.b), bench.folder()

    frozen = bench.freeze(folder)
    assert frozen.dump.needs == needs
    assert bench.on_a.taken() == 0, "its GPU is free of it"
    frozen.release()
    assert process.stat(bench.worker.pid) is None
    bench.a.call(bench.network.disconnect)
    held = bench.restore(folder, bench.b, there)
    assert bench.on_b.taken() > WHOLE
    at = client.next
    assert process.stat(held.process.pid).state in "Tt", "it doesn't run before it is let go"
    bench.b.call(there.connect)
    assert client.next == at
    running = held.resume()
    client.goes_on(200)
    assert bench.whole()
    assert bench.b.runtime.find(running)
    assert not preflight.traced(running.pid)
    assert (bench.on_a.calls(), bench.on_b.calls()) == (["lock 0", "checkpoint 0"], ["restore 0", "unlock 0"])
    assert bench.b.runtime.check(running, bench.spec) == ()

    back, second = bench.network_on(bench.a), bench.folder("second")
    bench.b.call(lambda: bench.b.runtime.freeze(running, bench.spec, there, second, lambda _at: None)).release()
    bench.b.call(there.disconnect)
    home = bench.restore(second, bench.a, back)
    bench.a.call(back.connect)
    home.resume()
    client.goes_on()
    assert (bench.on_a.taken() > WHOLE, bench.on_b.taken()) == (True, 0)


def _moving(root: int) -> list[str]:
    """The threads of a tree that aren't stopped, with the letters of their states."""
    found = []
    for pid in process.tree(root):
        for thread in os.listdir(f"/proc/{pid}/task"):
            letter = ptrace.state_of(pid, int(thread))
            if letter not in ("t", "T", ""):
                found.append(f"{pid}/{thread} {letter}")
    return found


def _stands_still(root: int) -> None:
    """All of it. The driver's thread, let go, stops with the others without a step, but is `R` until it has a processor for that."""
    until(lambda: not _moving(root), "all threads to be stopped")
    for _ in range(20):
        assert _moving(root) == []


def _copies(bench: GpuBench) -> list[int]:
    """What runs the worker's program besides the worker."""
    return [pid for pid in process.tree(os.getpid()) if pid != bench.worker.pid and str(WORKER) in _command(pid)]


def _stands_still_but_for_one_thread(node: StubNode, call: str, root: Callable[[], int]) -> None:
    """While the driver is in this call."""
    until(node.within(call).exists, call)
    try:
        for _ in range(20):
            moving = _moving(root())  # the one may be stopped for a moment, too, and told to go on
            assert len(moving) <= 1, f"only the driver's own thread may move in {call}, but there are {moving}"
    finally:
        node.within(call).unlink()


def test_only_the_drivers_own_thread_moves_from_the_first_checkpoint_until_the_copy_is_let_go(bench: Stubbed) -> None:
    """A thread of the worker that touches GPU memory which is not there ends it, and a copy must not move while the source may yet run."""
    client = bench.client()
    client.goes_on()
    there, folder = bench.network_on(bench.b), bench.folder()
    for node, call in ((bench.on_a, "checkpoint"), (bench.on_b, "restore"), (bench.on_b, "unlock")):
        node.fail(call, "wait")
    with ThreadPoolExecutor(1) as other:
        freezing = other.submit(bench.freeze, folder)
        _stands_still_but_for_one_thread(bench.on_a, "checkpoint", lambda: bench.worker.pid)
        frozen = freezing.result(30)
        _stands_still(bench.worker.pid)
        restoring = other.submit(bench.restore, folder, bench.b, there)
        for call in ("restore", "unlock"):
            _stands_still_but_for_one_thread(bench.on_b, call, lambda: _copies(bench)[0])
        held = restoring.result(30)
    _stands_still(held.process.pid)
    frozen.release()
    bench.a.call(bench.network.disconnect)
    bench.b.call(there.connect)
    _stands_still(held.process.pid)
    held.abort()
    bench.b.call(there.disconnect)
    again = bench.restore(folder, bench.b, there)
    bench.b.call(there.connect)
    again.resume()
    client.goes_on()  # its peers haven't heard that a copy of it died


def test_a_tree_of_cuda_processes_is_locked_all_before_any_is_checkpointed(bench: Stubbed) -> None:
    client = bench.client()
    client.goes_on()
    bench.on_a.fail("lock", "304", spare=1)
    with pytest.raises(Rejected, match=r"SH740 .*cuCheckpointProcessLock of process \d+: CUDA_ERROR_OPERATING_SYSTEM \(304\)"):
        bench.freeze(bench.folder("first"))
    assert bench.on_a.calls() == ["lock 0", "lock 304", "unlock 0"]
    bench.thawed_and_whole()
    client.goes_on()

    bench.on_a.fail("checkpoint", "2", spare=1)
    with pytest.raises(Rejected, match=r"SH740 .*CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        bench.freeze(bench.folder("second"))
    assert bench.on_a.calls()[3:] == ["lock 0", "lock 0", "checkpoint 0", "checkpoint 2", "restore 0", "unlock 0", "unlock 0"]
    bench.thawed_and_whole()
    client.goes_on()

    assert bench.move()
    assert bench.on_a.calls()[10:] == ["lock 0", "lock 0", "checkpoint 0", "checkpoint 0"]
    assert bench.on_b.calls() == ["restore 0", "restore 0", "unlock 0", "unlock 0"]
    client.goes_on()


def test_a_thawed_worker_has_its_gpu_back_or_is_ended_and_restored_elsewhere_from_its_image(bench: Stubbed) -> None:
    client = bench.client()
    client.goes_on()
    frozen = bench.freeze(bench.folder())
    frozen.thaw()
    frozen.thaw()
    assert not frozen.alive()
    assert bench.on_a.calls() == ["lock 0", "checkpoint 0", "restore 0", "unlock 0"]
    bench.thawed_and_whole()
    client.goes_on()

    folder = bench.folder("second")
    frozen = bench.freeze(folder)
    bench.on_a.fail("restore", "2", times=9)
    with pytest.raises(Unknown, match=r"SH742 .*it was ended, and its image is whole"):
        frozen.thaw()
    assert not bench.a.runtime.find(bench.worker)
    bench.a.call(bench.network.disconnect)
    there = bench.network_on(bench.b)
    held = bench.restore(folder, bench.b, there)
    bench.b.call(there.connect)
    held.resume()
    until(lambda: bench.on_b.calls() == ["restore 0", "unlock 0"], "it has a GPU")
    bench.client().link.settimeout(10)
    until(lambda: bench.clients[-1].next > 0, "a stream from the image")


AT_SOURCE = [
    ("thread", "304", r"cuCheckpointProcessGetRestoreThreadId.*\(304\)"),
    ("thread", "crash", r"died \(signal 11\)"),
    ("thread", "hang", "was ended: in cuCheckpointProcessGetRestoreThreadId"),
    ("lock", "busy", r"CUDA_ERROR_NOT_READY \(600\)"),
    ("lock", "crash", r"died \(signal 11\)"),
    ("checkpoint", "801", r"CUDA_ERROR_NOT_SUPPORTED \(801\)"),
    ("checkpoint", "crash", r"died \(signal 11\)"),
    ("lock", "hang", "was ended: in cuCheckpointProcessLock"),
    ("checkpoint", "hang", "was ended: in cuCheckpointProcessCheckpoint"),
]


def test_a_failure_of_any_call_at_the_source_or_of_criu_leaves_the_worker_running(bench: Stubbed) -> None:
    client = bench.client()
    client.goes_on()
    for call, what, said in AT_SOURCE:
        bench.on_a.fail(call, what)
        bench.sessions["a"].patience = 0.03 if what == "hang" else 1.0
        with pytest.raises(Rejected, match=f"SH740 the GPU part of the dump failed, and the worker runs on: .*{said}"):
            bench.freeze(bench.folder(f"{call}-{what}"))
        bench.thawed_and_whole()
        client.goes_on(20)
    bench.sessions["a"].patience = 1.0

    def fail(_frozen_at: float) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        bench.a.runtime.freeze(bench.worker, bench.spec, bench.network, bench.folder(), fail)
    bench.thawed_and_whole()
    client.goes_on()


AT_DESTINATION = [
    ("thread", "304", r"cuCheckpointProcessGetRestoreThreadId.*\(304\)"),
    ("thread", "hang", "was ended: in cuCheckpointProcessGetRestoreThreadId"),
    ("restore", "2", r"CUDA_ERROR_OUT_OF_MEMORY \(2\)"),
    ("restore", "crash", r"died \(signal 11\)"),
    ("restore", "hang", "was ended: in cuCheckpointProcessRestore"),
    ("unlock", "304", r"CUDA_ERROR_OPERATING_SYSTEM \(304\)"),
    ("unlock", "hang", "was ended: in cuCheckpointProcessUnlock"),
]


def test_a_failure_of_any_call_at_the_destination_leaves_no_copy_and_the_source_runs_on(bench: Stubbed) -> None:
    client = bench.client()
    there = bench.network_on(bench.b)
    client.goes_on()
    for call, what, said in AT_DESTINATION:
        folder = bench.folder(f"{call}-{what}")
        frozen = bench.freeze(folder)
        bench.on_b.fail(call, what)
        bench.sessions["b"].patience = 0.03 if what == "hang" else 1.0
        with pytest.raises(Rejected, match=f"SH741 its GPU memory couldn't be restored, and no copy is left: .*{said}"):
            bench.restore(folder, bench.b, there)
        assert _copies(bench) == []
        assert frozen.alive()
        frozen.thaw()
        bench.thawed_and_whole()
        client.goes_on(20)


def _traced_or_stopped(pid: int) -> bool:
    return process.stat(pid).state in "Tt"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_worker_gets_its_gpu_back_when_the_agent_is_killed_from_the_helper_or_from_the_next_agent(bench: Stubbed, criu: Path) -> None:
    client = bench.client()
    client.goes_on()
    agent, ready = _in_a_child(lambda: bench.a.runtime.freeze(bench.worker, bench.spec, bench.network, bench.folder(), lambda _at: None))
    assert os.read(ready, 1) == b"k"
    os.close(ready)
    assert bench.on_a.taken() == 0

    bench.on_a.fail("restore", "304")
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)

    until(lambda: bench.on_a.calls()[-1:] == ["unlock 0"] and not _traced_or_stopped(bench.worker.pid), "the helper gives it back")
    bench.thawed_and_whole()
    client.goes_on()

    def freeze() -> object:
        frozen = bench.a.runtime.freeze(bench.worker, bench.spec, bench.network, bench.folder("second"), lambda _at: None)
        for made in bench.sessions["a"].made:
            made.kill()
        return frozen

    agent, ready = _in_a_child(freeze)
    assert os.read(ready, 1) == b"k"
    os.close(ready)
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    until(lambda: process.stat(bench.worker.pid).state == "T", "CRIU lets it go, and nobody gives it its GPU back")
    assert bench.on_a.taken() == 0

    again = bench.runtime_on(bench.a, criu)
    network = bench.a.call(lambda: again.network(bench.spec, bench.worker))
    assert network.own
    bench.a.call(lambda: again.settle(bench.worker, network, None, 0))
    bench.thawed_and_whole()
    client.goes_on()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_copy_with_a_gpu_dies_with_its_agent(bench: Stubbed, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bench.folder()
    bench.freeze(folder).release()
    there = bench.network_on(bench.b)
    read, write = os.pipe()

    def hold() -> object:
        held = bench.b.call(lambda: bench.b.runtime.restore(bench.spec, there, folder))
        os.write(write, b"%d\n" % held.process.pid)
        return held

    for calls in (["restore 0", "unlock 0"], []):
        if not calls:  # CRIU has let it go, and its GPU memory isn't there
            monkeypatch.setattr(Restoring, "revive", lambda _self, copy: CudaHeld(_self._session, copy, []))
        before = len(bench.on_b.calls())
        agent, ready = _in_a_child(hold)
        copy = process.note(int(os.read(read, 20)))
        assert os.read(ready, 1) == b"k"
        os.close(ready)
        assert process.find(copy)
        assert bench.on_b.calls()[before:] == calls
        os.kill(agent, signal.SIGKILL)
        os.waitpid(agent, 0)
        assert process.wait_dead(copy, 10)
    monkeypatch.undo()
    os.close(read)
    os.close(write)
    assert bench.restore(folder, bench.b, there).resume()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_agent_that_dies_in_the_midst_of_any_call_leaves_one_worker_that_runs_and_no_copy(bench: Stubbed) -> None:
    client = bench.client()
    client.goes_on()
    there = bench.network_on(bench.b)

    def dies_in(node: StubNode, call: str, work: Callable[[], object]) -> None:
        node.fail(call, "wait")
        agent, ready = _in_a_child(work)
        until(node.within(call).exists, call)
        os.kill(agent, signal.SIGKILL)
        os.waitpid(agent, 0)
        os.close(ready)
        node.within(call).unlink()

    for call in ("lock", "checkpoint"):
        folder = bench.folder(call)
        dies_in(bench.on_a, call, partial(bench.freeze, folder))
        until(lambda: bench.on_a.calls()[-1:] == ["unlock 0"] and not _traced_or_stopped(bench.worker.pid), f"it runs on after {call}")
        bench.thawed_and_whole()
        client.goes_on(20)

    folder = bench.folder()
    frozen = bench.freeze(folder)
    for call in ("restore", "unlock"):
        dies_in(bench.on_b, call, partial(bench.restore, folder, bench.b, there))
        until(lambda: _copies(bench) == [], f"the copy dies after {call}")
    frozen.thaw()
    bench.thawed_and_whole()
    client.goes_on(20)


def test_helpers_that_are_killed_end_a_held_copy_and_keep_no_frozen_worker(bench: Stubbed) -> None:
    client = bench.client()
    client.goes_on()
    there, folder = bench.network_on(bench.b), bench.folder()
    frozen = bench.freeze(folder)
    held = bench.restore(folder, bench.b, there)
    descriptor = os.pidfd_open(held.process.pid)
    for sessions in bench.sessions.values():
        for made in sessions.made:
            made.kill()
    assert select.select([descriptor], [], [], 10)[0], "the copy dies with its helper"
    os.close(descriptor)
    with pytest.raises(Rejected, match="SH708"):
        held.resume()
    frozen.thaw()
    bench.thawed_and_whole()
    client.goes_on()

    lost = bench.freeze(bench.folder("second"))
    bench.sessions["a"].made[-1].kill()
    os.kill(lost._inner._session.pid, signal.SIGKILL)
    until(lambda: not lost.alive(), "the hold is lost")
    assert bench.on_a.taken() == 0, "CRIU and the helper are dead: nobody has given it back"
    lost.thaw()
    bench.thawed_and_whole()
    client.goes_on()


def _lost(node: StubNode) -> None:
    node.write("lost", "0")


CHECKS: list[tuple[str, Callable[[StubNode], None], str]] = [
    ("SH743", lambda node: node.fail("version", "999", times=9), r"cuDriverGetVersion.*\(999\)"),
    ("SH743", lambda node: node.write("old", "1"), "has no checkpoints"),
    ("SH743", lambda node: node.write("driver", "550.54.15"), "driver 550.54.15 is older than 570"),
    ("SH743", lambda node: node.write("nvml-fault", "9"), "management library doesn't answer"),
    ("SH745", lambda node: node.show(mig=1), r"0000:10:00 is partitioned \(MIG\)"),
    ("SH748", _lost, "GPU 0 doesn't answer: "),
]


def test_what_speaks_against_a_worker_is_told_before_it_is_touched(bench: Stubbed, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bench.client()
    spec = msgspec.structs.replace(bench.spec, gpus=tuple(bench.on_a.pci))
    for code, change, said in CHECKS:
        kept = {path.name: path.read_text() for path in bench.on_a.folder.iterdir() if path.is_file()}
        change(bench.on_a)
        cuda = CudaNode(there=True, session=bench.sessions["a"])
        found = cuda.check(bench.worker, spec)
        assert [problem.code for problem in found] == [code], (said, found)
        assert re.search(said, found[0].what), found[0].what
        assert [problem.code for problem in cuda.problems()] == ([] if code == "SH745" else [code]), "what `shunter-agent check` says"
        if code == "SH748":
            with pytest.raises(Rejected, match="SH748"):
                cuda.take(bench.worker, spec, bench.folder())
        cuda.close()
        for path in bench.on_a.folder.iterdir():
            if path.is_file() and path.name not in kept:
                path.unlink()
        for name, text in kept.items():
            bench.on_a.write(name, text)
    assert [p.code for p in CudaNode(there=False).check(bench.worker, spec)] == ["SH743"]
    assert bench.on_a.calls() == []
    client.goes_on()


def _image(*gpus: tuple[str, int]) -> image.GpuImage:
    was = tuple(image.Was(uuid=f"GPU-{n:032x}", model=model, used=used, own=True) for n, (model, used) in enumerate(gpus))
    return image.GpuImage(driver="580.95.05", gpus=was, processes=1)


UNFIT: list[tuple[image.GpuImage, str]] = [
    (_image(("NVIDIA H200", 1)), "the image needs a GPU of model 'NVIDIA H200', 0000:10:00 is 'NVIDIA B200'"),
    (_image(("NVIDIA B200", 2 << 30)), f"the image needs {2 << 30} bytes on a GPU, 0000:10:00 has {1 << 30} free"),
    (_image(("NVIDIA B200", 1), ("NVIDIA B200", 1)), "the image needs 2 GPUs, the slot has 1"),
    (msgspec.structs.replace(_image(("NVIDIA B200", 1)), driver="590.1"), "the image needs GPU driver '590.1', this node has '580.95.05'"),
]


def test_an_image_that_the_gpus_here_cant_take_is_refused_before_anything_is_restored(bench: Stubbed) -> None:
    there = bench.network_on(bench.b)
    for number, (of, said) in enumerate(UNFIT):
        folder = bench.folder(f"image-{number}")
        image.write(folder, of)
        with pytest.raises(Rejected, match="SH747 " + re.escape(said)):
            bench.restore(folder, bench.b, there)
        assert list(folder.iterdir()) == [folder / image.GPUS], "CRIU was never asked"
    assert bench.on_b.calls() == []


def _real(criu: Path, tmp_path: Path) -> GpuBench:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("there is no NVIDIA GPU on this machine")
    return GpuBench(criu, tmp_path, {}, lambda _name: {}, GIGABYTES << 10)


def test_a_real_gpu_keeps_its_values(criu: Path, tmp_path: Path) -> None:
    bench = _real(criu, tmp_path)
    with contextlib.closing(bench):
        client = bench.client()
        client.goes_on()
        assert bench.a.runtime.check(bench.worker, bench.spec) == ()
        frozen = bench.freeze(bench.folder())
        frozen.thaw()
        client.goes_on()
        assert bench.whole()
        assert bench.move()
        client.goes_on()
        assert bench.whole()
