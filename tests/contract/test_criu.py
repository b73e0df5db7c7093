"""The CRIU driver against real CRIU: moves, holds, refusals, and the deaths that a two-phase commit must survive."""

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from shunter.model.errors import Rejected
from shunter_agent.orders.streams import Streams, judged
from shunter_agent.runtime import filling, holds, locktables, preflight, process, swrk
from shunter_agent.runtime.criu import CriuRuntime
from shunter_agent.runtime.namespaces import inside, make_network
from shunter_agent.runtime.network import Uplink, WorkerNetwork
from shunter_agent.runtime.port import Network, Process, WorkerSpec

pytestmark = pytest.mark.lab

HOST = "10.77.0.10"
SERVER = """
import socket, sys, threading, time
def serve(link):
    number = 0
    while True:
        link.sendall(b"%d\\n" % number)
        number += 1
        time.sleep(0.002)
listener = socket.create_server((sys.argv[1], 9000))
ballast = bytearray(b"k" * 4096) * 4096
open(sys.argv[2], "w").close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def until(condition: Callable[[], object], what: str, deadline_s: float = 10) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s} s in vain: {what}"
        time.sleep(0.002)


class Node:
    """A network namespace with a bridge, and a runtime whose calls are made from inside it."""

    def __init__(self, name: str, criu: Path) -> None:
        self.netns = make_network()
        self.call(lambda: _ip("link", "set", "lo", "up"))
        self.call(lambda: _ip("link", "add", "br-shunt", "type", "bridge"))
        self.call(lambda: _ip("link", "set", "br-shunt", "up"))
        self.runtime = self.call(lambda: CriuRuntime(criu, Uplink(bridge="br-shunt")))
        self.name = name

    def call(self, function):
        return inside(self.netns, function)

    def address(self, cidr: str) -> None:
        self.call(lambda: _ip("address", "add", cidr, "dev", "br-shunt"))

    def cable(self, other: "Node") -> None:
        here, there = f"/proc/{os.getpid()}/fd/{self.netns}", f"/proc/{os.getpid()}/fd/{other.netns}"
        _ip("link", "add", "c0", "netns", here, "type", "veth", "peer", "name", "c1", "netns", there)
        self.call(lambda: _ip("link", "set", "c0", "master", "br-shunt", "up"))
        other.call(lambda: _ip("link", "set", "c1", "master", "br-shunt", "up"))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Client:
    """Reads numbers from the server on one connection, and notes what isn't the next one."""

    def __init__(self, node: Node) -> None:
        self.link = node.call(lambda: socket.create_connection((HOST, 9000), 5))
        self.link.settimeout(10)
        self._lines = self.link.makefile()
        self.next = 0
        self.wrong: list[int] = []
        self.longest_s = 0.0
        self.error = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        last = time.monotonic()
        try:
            for line in self._lines:
                now = time.monotonic()
                self.longest_s, last = max(self.longest_s, now - last), now
                if int(line) != self.next:
                    self.wrong.append(int(line))
                self.next = int(line) + 1
        except OSError as error:
            self.error = str(error)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._lines.close()
        self.link.close()

    def hears_of_its_end(self) -> None:
        """It isn't left to wait for a worker that is dead."""
        self._thread.join(10)
        assert not self._thread.is_alive(), "it waits for ever"

    def goes_on(self, by: int = 50) -> None:
        goal = self.next + by
        until(lambda: self.next >= goal or self.error, f"the stream goes on from {self.next}")
        assert (self.wrong, self.error) == ([], "")


def spec_of(tmp_path: Path, program: str = SERVER, *arguments: str) -> WorkerSpec:
    return WorkerSpec(
        worker="w1",
        role="decode",
        graph="g",
        engine="test",
        address=f"{HOST}:9000",
        mac="02:00:00:00:00:10",
        command=(sys.executable, "-c", program, HOST, str(tmp_path / "ready"), *arguments),
    )


class Bench:
    """A worker on node a, with node b beside it; what lives at the end is ended."""

    def __init__(self, criu: Path, tmp_path: Path) -> None:
        self.a, self.b = Node("a", criu), Node("b", criu)
        self.a.cable(self.b)
        self.b.address("10.77.0.2/24")
        self.tmp_path = tmp_path
        self.spec = spec_of(tmp_path)
        self.networks: list[tuple[Node, Network]] = []
        self.network = self.network_on(self.a)
        self.processes: list[Process] = []
        self.clients: list[Client] = []
        self.worker = self.launch(self.spec)
        self.a.call(self.network.connect)

    def network_on(self, node: Node) -> Network:
        network = node.call(lambda: node.runtime.network(self.spec))
        self.networks.append((node, network))
        return network

    def launch(self, spec: WorkerSpec) -> Process:
        started = self.a.call(lambda: self.a.runtime.start(spec, self.network).resume())
        self.processes.append(started)
        until((self.tmp_path / "ready").exists, "the worker comes up")
        return started

    def client(self) -> Client:
        self.clients.append(Client(self.b))
        return self.clients[-1]

    def folder(self, name: str = "image") -> Path:
        made = self.tmp_path / name
        made.mkdir(mode=0o700)
        return made

    def freeze(self, folder: Path, worker: Process | None = None):
        at: list[float] = []
        frozen = self.a.runtime.freeze(worker or self.worker, self.spec, self.network, folder, at.append)
        assert at == [frozen.dump.frozen_at]
        return frozen

    def restore(self, folder: Path, node: Node, network: Network):
        held = node.call(lambda: node.runtime.restore(self.spec, network, folder))
        self.processes.append(held.process)
        return held

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for one in self.processes:
            process.end(one)
        for node, network in self.networks:
            node.call(network.destroy)
        os.close(self.a.netns)
        os.close(self.b.netns)


@pytest.fixture
def bench(criu: Path, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(criu, tmp_path)
    with contextlib.closing(made):
        yield made


def stopped(worker: Process) -> bool:
    seen = process.stat(worker.pid)
    return seen is not None and seen.state == "t"


def test_a_move_keeps_the_connection_and_every_number(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    there = bench.network_on(bench.b)
    folder = bench.folder()

    began = time.time()
    frozen = bench.freeze(folder)
    assert began <= frozen.dump.frozen_at <= time.time()
    assert frozen.alive()
    assert stopped(bench.worker)
    assert sum(file.stat().st_size for file in folder.iterdir()) > 4096 * 4096
    assert all(file.stat().st_mode & 0o077 == 0 for file in folder.iterdir())
    frozen.release()
    assert not frozen.alive()
    assert process.stat(bench.worker.pid) is None, "its pid is free, not a zombie's"
    bench.a.call(bench.network.disconnect)

    held = bench.restore(folder, bench.b, there)
    at = client.next
    assert preflight.traced(held.process.pid), "it doesn't run before it is let go"
    bench.b.call(there.connect)
    assert client.next == at
    running = held.resume()

    client.goes_on()
    assert client.next > at
    assert bench.b.runtime.find(running)
    assert not preflight.traced(running.pid)
    assert "delete table" not in (folder / holds.RESTORE_LOG).read_text(), "in a new network there is no lock to look for"
    assert client.longest_s < 2
    assert (bench.b.runtime.memory(running) or 0) > 4096 * 4096
    if os.environ.get("SHUNTER_FIGURES"):
        print(f"dump {frozen.dump.dump_s:.3f} s, longest pause of the client {client.longest_s:.3f} s")


def test_connections_that_go_on_and_one_whose_client_is_gone_are_told_apart(bench: Bench) -> None:
    """By what the kernel has counted before a copy runs, and after."""
    stays, leaves = bench.client(), bench.client()
    stays.goes_on()
    leaves.goes_on()
    there, folder = bench.network_on(bench.b), bench.folder()
    bench.freeze(folder).release()
    bench.a.call(bench.network.disconnect)
    leaves.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    leaves.close()
    held = bench.restore(folder, bench.b, there)
    before = bench.b.runtime.connections(held.process)
    assert len(before) == 2
    bench.b.call(there.connect)
    running = held.resume()
    stays.goes_on()
    until(lambda: len(bench.b.runtime.connections(running)) == 1, "the other end to say that it knows the connection no more")
    now = bench.b.runtime.connections(running)
    most = {inode: max(count, now.get(inode, 0)) for inode, count in before.items()}
    assert judged(before, most, now.keys()) == Streams(had=2, moved=1, ended=1)
    bench.clients.remove(leaves)


def test_a_disk_that_is_full_at_the_last_moment_costs_the_dump_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    client = bench.client()
    client.goes_on()
    monkeypatch.setattr(locktables, "leave_out", full)
    with pytest.raises(Rejected, match=r"SH701 .*runs on: .*No space left"):
        bench.freeze(bench.folder())
    client.goes_on()


def test_a_copy_is_our_child_and_its_locks_are_kept(bench: Bench) -> None:
    """So its end is heard of, whoever its parent was; and what it has locked stays locked for others."""
    process.end(bench.worker)
    (bench.tmp_path / "ready").unlink()
    (bench.tmp_path / "lock").touch()
    program = f"import fcntl\nheld = open({str(bench.tmp_path / 'lock')!r})\nfcntl.flock(held, fcntl.LOCK_EX)\n{SERVER}"
    bench.worker = bench.launch(spec_of(bench.tmp_path, program))
    folder = bench.folder()
    bench.freeze(folder).release()
    copy = bench.restore(folder, bench.b, bench.network_on(bench.b)).resume()
    assert f"\nPPid:\t{os.getpid()}\n" in Path(f"/proc/{copy.pid}/status").read_text()
    with (bench.tmp_path / "lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_moved_worker_can_be_moved_back(bench: Bench) -> None:
    client = bench.client()
    there = bench.network_on(bench.b)
    first = bench.folder("first")
    bench.freeze(first).release()
    bench.a.call(bench.network.destroy)
    moved = bench.restore(first, bench.b, there)
    bench.b.call(there.connect)
    copy = moved.resume()
    client.goes_on()

    second = bench.folder("second")
    back = bench.network_on(bench.a)
    bench.b.call(lambda: bench.b.runtime.freeze(copy, bench.spec, there, second, lambda _at: None)).release()
    bench.b.call(there.disconnect)
    held = bench.restore(second, bench.a, back)
    bench.a.call(back.connect)
    held.resume()
    client.goes_on()


def test_a_thawed_worker_runs_on_and_its_image_is_good_for_later(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    folder = bench.folder()
    frozen = bench.freeze(folder)
    assert stopped(bench.worker)
    frozen.thaw()
    assert not frozen.alive()
    assert locktables.tables(bench.network.netns) == []
    client.goes_on()
    with pytest.raises(Rejected, match="SH708"):
        frozen.release()
    client.goes_on()

    process.end(bench.worker)
    bench.a.call(bench.network.destroy)
    later = bench.network_on(bench.b)
    held = bench.restore(folder, bench.b, later)
    bench.b.call(later.connect)
    held.resume()
    bench.client().goes_on()


def test_an_aborted_copy_is_dead_and_its_image_still_restores(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    folder = bench.folder()
    bench.freeze(folder).release()
    bench.a.call(bench.network.disconnect)
    there = bench.network_on(bench.b)
    held = bench.restore(folder, bench.b, there)
    held.abort()
    assert process.stat(held.process.pid) is None
    with pytest.raises(Rejected, match="SH708"):
        held.resume()

    home = bench.restore(folder, bench.a, bench.network)
    bench.a.call(bench.network.connect)
    home.resume()
    client.goes_on()
    with pytest.raises(Rejected, match="SH708"):
        home.abort()
    client.goes_on()


def _in_a_child(work: Callable[[], object]) -> tuple[int, int]:
    """Run `work` in a fork that keeps what it made and waits; give its pid and a descriptor that is readable once it has begun to wait."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kept = work()
            os.write(write, b"k" if kept else b"?")
            signal.pause()
        except BaseException:
            traceback.print_exc()  # nobody else would ever see it
        finally:
            os._exit(1)
    os.close(write)
    return pid, read


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_worker_runs_on_when_the_agent_is_killed_while_it_holds_the_dump(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    folder = bench.folder()
    agent, ready = _in_a_child(lambda: bench.a.runtime.freeze(bench.worker, bench.spec, bench.network, folder, lambda _at: None))
    assert os.read(ready, 1) == b"k"
    os.close(ready)
    assert stopped(bench.worker)

    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)

    until(lambda: not preflight.traced(bench.worker.pid), "CRIU lets the worker go")
    client.goes_on()
    assert bench.a.runtime.find(bench.worker)
    assert locktables.tables(bench.network.netns) == []


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_held_copy_dies_with_its_agent(bench: Bench) -> None:
    folder = bench.folder()
    bench.freeze(folder).release()
    there = bench.network_on(bench.b)
    read, write = os.pipe()

    def hold() -> object:
        held = bench.b.runtime.restore(bench.spec, there, folder)
        os.write(write, b"%d\n" % held.process.pid)
        return held

    agent, ready = _in_a_child(hold)
    copy = process.note(int(os.read(read, 20)))
    assert os.read(ready, 1) == b"k"
    for descriptor in (read, write, ready):
        os.close(descriptor)
    assert process.find(copy)

    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)

    assert process.wait_dead(copy, 10)
    held = bench.restore(folder, bench.b, there)
    assert held.resume()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_agent_that_is_killed_while_it_loads_leaves_no_copy_and_a_good_image(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bench.client()
    client.goes_on()
    folder = bench.folder()
    bench.freeze(folder).release()
    bench.a.call(bench.network.disconnect)
    there = bench.network_on(bench.b)
    read, write = os.pipe()
    load, loaded = filling._Copy.load, []

    def dies(copy, part, buffer):
        load(copy, part, buffer)
        loaded.append(part)
        if len(loaded) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    def born(made: Process) -> None:
        os.write(write, b"%d\n" % made.pid)

    def restore() -> object:
        monkeypatch.setattr(filling._Copy, "load", dies)
        return bench.b.call(lambda: bench.b.runtime.restore(bench.spec, there, folder, born))

    agent, ready = _in_a_child(restore)
    _pid, status = os.waitpid(agent, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    copy = int(os.read(read, 20))
    for descriptor in (read, write, ready):
        os.close(descriptor)
    until(lambda: (seen := process.stat(copy)) is None or seen.state == "Z", "the copy is dead, with a part of its memory")

    held = bench.restore(folder, bench.b, there)  # over what the other agent has left in the folder
    bench.b.call(there.connect)
    held.resume()
    client.goes_on()


def test_a_worker_runs_on_when_criu_is_killed_and_its_network_is_unlocked(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    frozen = bench.freeze(bench.folder())
    tracer = _tracer(bench.worker)
    assert locktables.tables(bench.network.netns), "the lock is what this is about"
    descriptor = os.pidfd_open(tracer)
    os.kill(tracer, signal.SIGKILL)
    select.select([descriptor], [], [], 10)
    os.close(descriptor)
    assert locktables.tables(bench.network.netns), "nobody has unlocked it yet"

    until(lambda: not frozen.alive(), "the hold is seen to be over")

    with pytest.raises(Rejected, match="SH708"):
        frozen.release()
    frozen.thaw()
    assert locktables.tables(bench.network.netns) == []
    client.goes_on()
    process.end(bench.worker)
    client.hears_of_its_end()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_worker_runs_on_when_the_agent_is_killed_in_the_middle_of_the_dump(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    folder = bench.folder()
    read, write = os.pipe()

    def die(_frozen_at: float) -> None:
        os.write(write, b"locked" if locktables.tables(bench.network.netns) and stopped(bench.worker) else b"too early")
        os.kill(os.getpid(), signal.SIGKILL)

    agent, ready = _in_a_child(lambda: bench.a.runtime.freeze(bench.worker, bench.spec, bench.network, folder, die))
    os.waitpid(agent, 0)
    assert os.read(read, 20) == b"locked"
    for descriptor in (read, write, ready):
        os.close(descriptor)

    until(lambda: not preflight.traced(bench.worker.pid), "CRIU lets the worker go")
    client.goes_on()
    assert locktables.tables(bench.network.netns) == []


def test_a_worker_runs_on_when_the_agent_fails_in_the_middle_of_the_dump(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()

    def fail(_frozen_at: float) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        bench.a.runtime.freeze(bench.worker, bench.spec, bench.network, bench.folder(), fail)
    client.goes_on()
    assert not preflight.traced(bench.worker.pid)
    assert locktables.tables(bench.network.netns) == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEAST_S", "LET_GO_S", "CLEAN_S"):
        monkeypatch.setattr(swrk, name, 2.0)


@pytest.mark.usefixtures("impatient")
def test_a_worker_runs_on_when_criu_hangs_in_the_middle_of_the_dump(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()

    def hang(_frozen_at: float) -> None:
        assert stopped(bench.worker)
        os.kill(_tracer(bench.worker), signal.SIGSTOP)

    with pytest.raises(Rejected, match=r"SH701 .*CRIU said nothing for"):
        bench.a.runtime.freeze(bench.worker, bench.spec, bench.network, bench.folder(), hang)
    client.goes_on()
    assert not preflight.traced(bench.worker.pid)
    assert locktables.tables(bench.network.netns) == []
    bench.freeze(bench.folder("again")).thaw()
    client.goes_on()


@pytest.mark.usefixtures("impatient")
def test_a_worker_runs_on_when_criu_hangs_while_it_holds_the_dump(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    frozen = bench.freeze(bench.folder())
    os.kill(_tracer(bench.worker), signal.SIGSTOP)
    frozen.thaw()
    client.goes_on()
    assert locktables.tables(bench.network.netns) == []


@pytest.mark.parametrize("dies", [False, True], ids=["waits", "died while it waited"])
def test_criu_waits_where_a_worker_is_expected(bench: Bench, dies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    client, folder = bench.client(), bench.folder()
    client.goes_on()
    assert _waiting(bench.network) is None, "nothing is restored where a worker was started"
    network = bench.network_on(bench.b)
    waiting = _waiting(network)
    assert waiting is not None
    frozen = bench.freeze(folder)
    if dies:
        os.kill(waiting.pid, signal.SIGKILL)
        until(lambda: not waiting.alive, "CRIU dies")
    begun: list[swrk.Session] = []
    begin = swrk.Session.__init__
    monkeypatch.setattr(swrk.Session, "__init__", lambda session, *given: (begun.append(session), begin(session, *given))[1])
    held = bench.restore(folder, bench.b, network)
    assert len(begun) == dies
    bench.a.call(bench.network.disconnect)
    frozen.release()
    bench.b.call(network.connect)
    held.resume()
    client.goes_on()
    assert not waiting.alive


def test_the_criu_that_waits_ends_with_the_network(bench: Bench) -> None:
    network = bench.network_on(bench.b)
    waiting = _waiting(network)
    assert waiting is not None
    assert waiting.alive
    bench.b.call(network.destroy)
    assert not waiting.alive


def _waiting(network: Network) -> swrk.Session | None:
    assert isinstance(network, WorkerNetwork)
    assert network.waiting is None or isinstance(network.waiting, swrk.Session)
    return network.waiting


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("last", [1, 2], ids=["before it makes a task", "after"])
def test_no_copy_is_left_when_criu_hangs_in_the_middle_of_a_restore(bench: Bench, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    folder = bench.folder()
    bench.freeze(folder).release()
    network = bench.network_on(bench.b)
    reply, said = swrk.Session._reply, []

    def hang(self: swrk.Session, success: bool) -> None:
        said.append(success)
        if len(said) == last:
            os.kill(self.pid, signal.SIGSTOP)
        reply(self, success)

    monkeypatch.setattr(swrk.Session, "_reply", hang)
    with pytest.raises(Rejected, match=r"SH702 .*CRIU said nothing for"):
        bench.restore(folder, bench.b, network)
    assert len(said) == last
    monkeypatch.undo()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert [pid for pid in children if (seen := process.stat(int(pid))) and seen.state != "Z"] == []
    assert bench.restore(folder, bench.b, network).resume()


def test_in_a_shared_network_only_the_lost_workers_own_lock_is_swept(bench: Bench) -> None:
    shared = msgspec.structs.replace(bench.spec, mac="")
    network = bench.a.call(lambda: bench.a.runtime.network(shared))
    assert not network.own
    sleeper = msgspec.structs.replace(shared, command=(sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)"))

    def freeze(name: str):
        worker, folder = bench.a.runtime.start(sleeper, network).resume(), bench.folder(name)
        bench.processes.append(worker)
        return worker, bench.a.runtime.freeze(worker, sleeper, network, folder, lambda _at: None)

    (first, lost), (_second, kept) = bench.a.call(lambda: freeze("one")), bench.a.call(lambda: freeze("two"))
    both = bench.a.call(lambda: locktables.tables(None))
    assert len(both) == 2

    os.kill(_tracer(first), signal.SIGKILL)
    until(lambda: not preflight.traced(first.pid), "the kernel lets the worker go")
    bench.a.call(lambda: until(lambda: not lost.alive(), "the hold is seen to be over"))

    left = bench.a.call(lambda: locktables.tables(None))
    assert len(left) == 1
    assert kept.alive()
    bench.a.call(kept.thaw)
    assert bench.a.call(lambda: locktables.tables(None)) == [], "what was left was the other worker's"


def _tracer(worker: Process) -> int:
    return int(Path(f"/proc/{worker.pid}/status").read_text().split("TracerPid:")[1].split()[0])


def test_preflight_sees_tracers_foreign_sessions_and_foreign_mounts(bench: Bench, tmp_path: Path) -> None:
    frozen = bench.freeze(bench.folder())
    assert [problem.code for problem in bench.a.runtime.check(bench.worker, bench.spec)] == ["SH733"]
    frozen.thaw()
    assert bench.a.runtime.check(bench.worker, bench.spec) == ()

    with (tmp_path / "outside").open("w+") as outside:
        command = [
            "unshare",
            "--mount",
            sys.executable,
            "-Sc",
            f"open({str(tmp_path / 'up')!r}, 'w').close()\nimport time\ntime.sleep(100)",
        ]
        odd = inside(
            None,
            lambda: subprocess.Popen(command, stdin=outside, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
            new_pids=True,
        )
        until((tmp_path / "up").exists, "it is up")
        found = {(problem.code, problem.subject) for problem in bench.a.runtime.check(process.note(odd.pid), bench.spec)}
        odd.kill()
        odd.wait()
    assert {("SH731", f"pid {odd.pid}"), ("SH735", f"pid {odd.pid}"), ("SH727", f"pid {odd.pid} fd 0")} <= found


def cgroup_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cgroup").read_text().splitlines()


def own_cgroup(name: str) -> Path:
    """A new one in the unified hierarchy, beside ours."""
    base = next(path for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if (path / "cgroup.procs").exists())
    made = base / next(line for line in cgroup_of(os.getpid()) if line.startswith("0::")).removeprefix("0::/") / name
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made on this machine: {error}")
    return made


def test_a_copy_is_in_the_cgroup_of_its_agent_and_the_workers_is_not_made_again(bench: Bench) -> None:
    """Else it would be outside of the limits that its agent goes by."""
    here = own_cgroup(f"shunter-test-{uuid.uuid4().hex}")
    try:
        (here / "cgroup.procs").write_text(str(bench.worker.pid))
        assert cgroup_of(bench.worker.pid) != cgroup_of(os.getpid())
        folder = bench.folder()
        bench.freeze(folder).release()
    finally:
        until(lambda: not (here / "cgroup.procs").read_text(), "nobody is left in it")
        here.rmdir()
    copy = bench.restore(folder, bench.b, bench.network_on(bench.b)).resume()
    bench.processes.append(copy)
    assert cgroup_of(copy.pid) == cgroup_of(os.getpid())
    assert not here.exists()


def test_a_tree_that_comes_into_a_namespace_of_its_own_after_preflight_is_not_taken_for_dumped(bench: Bench, tmp_path: Path) -> None:
    """CRIU dumps it without a word, and can't restore it: released, it would be lost."""
    (tmp_path / "ready").unlink()
    sandbox = """
import ctypes, os, signal, sys
up, told = os.pipe()
if os.fork() == 0:
    assert ctypes.CDLL(None).unshare(0x40000000) == 0
    os.write(told, b".")
    signal.pause()
os.read(up, 1)
open(sys.argv[2], "w").close()
signal.pause()
"""
    other = bench.launch(spec_of(tmp_path, sandbox))
    assert [problem.code for problem in bench.a.runtime.check(other, bench.spec)] == ["SH736"]
    with pytest.raises(Rejected, match=r"SH736 .*net:\[\d+\] instead of net:\[\d+\]"):
        bench.freeze(bench.folder(), other)
    until(lambda: not preflight.traced(other.pid), "it runs on")
    assert (bench.a.runtime.find(other), stopped(other)) == (True, False)
    assert locktables.tables(bench.network.netns) == []


def test_a_named_semaphore_and_a_file_with_another_name_are_refused_before_the_dump(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "ready").unlink()
    named = """
import _multiprocessing, os, signal, sys, time
kept = _multiprocessing.SemLock(1, 1, 1, f"/shunter-test-{os.getpid()}-{time.time_ns()}", False)
name = f"{sys.argv[2]}.one"
file = open(name, "w")
os.link(name, f"{sys.argv[2]}.two")
os.unlink(name)
open(sys.argv[2], "w").close()
signal.pause()
"""
    other = bench.launch(spec_of(tmp_path, named))
    found = [(problem.code, problem.subject.split()[2]) for problem in bench.a.runtime.check(other, bench.spec)]
    assert sorted(found) == [("SH737", "fd"), ("SH737", "map")]
    with pytest.raises(Rejected, match=r"SH701 .*link remap"):  # CRIU's own words for both
        bench.freeze(bench.folder(), other)
    for left in Path("/dev/shm").glob("sem.shunter-test-*"):
        left.unlink()


def test_a_refused_dump_names_its_reason_and_leaves_the_worker_running(bench: Bench, tmp_path: Path) -> None:
    client = bench.client()
    client.goes_on()
    (tmp_path / "ready").unlink()
    uring = """
import ctypes, sys, time
params = ctypes.create_string_buffer(120)
assert ctypes.CDLL(None).syscall(425, 4, params) >= 0
open(sys.argv[2], "w").close()
while True: time.sleep(0.01)
"""
    other = bench.launch(spec_of(tmp_path, uring))
    problems = bench.a.runtime.check(other, bench.spec)
    assert "SH720" in {problem.code for problem in problems}
    assert any(f"pid {other.pid} fd " in problem.subject for problem in problems)

    with pytest.raises(Rejected, match=r"SH701 the dump failed, and the worker runs on: .*[a-z]{4}") as caught:
        bench.freeze(bench.folder(), other)

    assert "RLIMIT" not in str(caught.value)
    assert "no reason" not in str(caught.value)
    assert bench.a.runtime.find(other)
    assert not preflight.traced(other.pid)
    assert locktables.tables(bench.network.netns) == []
    client.goes_on()


def test_a_leftover_lock_is_swept_when_the_worker_is_found_again(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    frozen = bench.freeze(bench.folder())
    tracer = _tracer(bench.worker)
    os.kill(tracer, signal.SIGKILL)
    until(lambda: not preflight.traced(bench.worker.pid), "the kernel lets the worker go")
    assert locktables.tables(bench.network.netns)

    found = bench.a.call(lambda: bench.a.runtime.network(bench.spec, bench.worker))
    bench.networks.append((bench.a, found))

    assert locktables.tables(bench.network.netns) == []
    client.goes_on()
    assert not frozen.alive()
    frozen.thaw()
    bench.a.call(found.disconnect)
    at = client.next
    with pytest.raises(OSError):
        bench.b.call(lambda: socket.create_connection((HOST, 9000), 0.3))
    bench.a.call(found.connect)
    client.goes_on()
    assert client.next > at


def test_a_damaged_image_leaves_no_copy_and_says_why(bench: Bench) -> None:
    folder = bench.folder()
    bench.freeze(folder).release()
    (folder / "core-1.img").write_bytes(b"not an image")
    with pytest.raises(Rejected, match=r"SH702 the restore failed, and no copy is left: .*[a-z]{4}") as caught:
        bench.restore(folder, bench.a, bench.network)
    assert "no reason" not in str(caught.value)


def test_a_gone_worker_is_refused_at_once(bench: Bench) -> None:
    process.end(bench.worker)
    with pytest.raises(Rejected, match="SH710"):
        bench.a.runtime.freeze(bench.worker, bench.spec, bench.network, bench.folder(), lambda _at: None)
    assert [problem.code for problem in bench.a.runtime.check(bench.worker, bench.spec)] == ["SH710"]


def test_a_healthy_worker_has_nothing_against_it(bench: Bench) -> None:
    assert bench.a.runtime.check(bench.worker, bench.spec) == ()
    opened = {os.readlink(link) for link in Path(f"/proc/{bench.worker.pid}/fd").iterdir()}
    assert {target for target in opened if not target.startswith("socket:")} == {"/dev/null"}
    inner = Path(f"/proc/{bench.worker.pid}/status").read_text()
    assert inner.split("NSpid:")[1].split()[:2] == [str(bench.worker.pid), "1"]


def test_the_canary_passes_here_and_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    assert bench.a.runtime.canary(tmp_path / "canary") == ()
    assert not (tmp_path / "canary").exists()


def test_the_canary_tells_a_criu_that_does_not_work(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, said = tmp_path / "criu", tmp_path / "said"
    broken.write_text(f'#!/bin/sh\n[ -e {said} ] && exit 1\n: > {said}\nexec {bench.a.runtime._criu} "$@"\n')  # it says its version
    broken.chmod(0o755)
    monkeypatch.setattr(bench.a.runtime, "_criu", broken)
    (problem,) = bench.a.runtime.canary(tmp_path / "canary")
    assert problem.code == "SH704"
    assert "CRIU died" in problem.what
    (problem,) = bench.a.runtime.canary(tmp_path / "canary")
    assert (problem.code, "CRIU doesn't answer" in problem.what) == ("SH703", True)


def test_connecting_tells_the_whole_network_where_the_address_is(bench: Bench) -> None:
    bench.a.call(bench.network.disconnect)
    mac, ip = bytes.fromhex("020000000010"), socket.inet_aton(HOST)
    with bench.a.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) as wire:
        wire.bind(("br-shunt", 0x0806))
        wire.settimeout(5)
        bench.a.call(bench.network.connect)
        frame = wire.recv(100)
        while (frame[:6], frame[28:32], frame[38:42]) != (b"\xff" * 6, ip, ip):
            frame = wire.recv(100)
    assert frame[6:12] == frame[22:28] == mac


def test_a_node_keeps_its_address_when_a_worker_comes_and_goes(bench: Bench) -> None:
    """A bridge without a MAC of its own has its lowest port's: neighbours that know another one would speak to nobody for seconds."""
    bench.a.call(bench.network.disconnect)
    bench.a.call(lambda: _ip("link", "set", "c0", "address", "fe:fe:ff:ff:ff:ff"))
    bench.a.call(bench.network.connect)
    told = bench.a.call(lambda: subprocess.run(["ip", "-o", "link", "show", "br-shunt"], check=True, capture_output=True, text=True).stdout)
    assert "link/ether fe:fe:ff:ff:ff:ff " in told


def test_facts_name_the_driver(bench: Bench) -> None:
    facts = bench.a.runtime.facts()
    assert facts["runtime"] == "criu"
    assert facts["criu"].startswith("4.")
    assert facts["kernel"] == os.uname().release
    assert facts["cpu_features"].startswith("sha256:")
