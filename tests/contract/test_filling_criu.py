"""Copies made by a real CRIU whose memory the agent loads: it is all there before they run, and nothing is lost where that fails."""

import errno
import os
import re
import sys
from pathlib import Path

import pytest
from shunter.model.errors import Problem, Rejected
from shunter_agent.images.lazy import LazyMemory
from shunter_agent.runtime import filling, holds, process
from shunter_agent.runtime.criu import CriuRuntime
from shunter_agent.runtime.network import Uplink
from shunter_agent.runtime.port import Process, WorkerSpec
from test_criu import until

pytestmark = pytest.mark.lab

# 40 MB in two mappings beside each other, some pages of them never touched; threads that go on all the while; a child with its own
WORKER = """
import ctypes, hashlib, mmap, os, random, subprocess, sys, threading, time
if sys.argv[2] == "root":
    child = subprocess.Popen([sys.executable, "-c", open("/proc/self/cmdline").read().split("\\0")[2], sys.argv[1], "child"])
memory = mmap.mmap(-1, 40 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[: 39 << 20] = random.Random(os.getpid()).randbytes(39 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + (20 << 20)), ctypes.c_size_t(20 << 20), 1) == 0
known = hashlib.blake2b(memory).hexdigest()
counts = [0] * 4
def count(n):
    local = bytearray(1 << 20)
    while True:
        counts[n] += 1
        local[counts[n] * 4096 % len(local)] = counts[n] % 251
        time.sleep(0.001)
for n in range(4):
    threading.Thread(target=count, args=(n,), daemon=True).start()
file = open(os.path.join(sys.argv[1], sys.argv[2]), "wb", buffering=0)
while True:
    before = list(counts)
    if hashlib.blake2b(memory).hexdigest() != known or any(memory[39 << 20 :]):
        os._exit(9)
    time.sleep(0.02)
    if all(a < b for a, b in zip(before, counts)):
        os.pwrite(file.fileno(), b"%012d" % min(counts), 0)
"""


class Worker:
    """One that tells how far it is, as long as its memory is what it was."""

    def __init__(self, criu: Path, folder: Path) -> None:
        self.told: list[Problem] = []
        self.runtime = CriuRuntime(criu, Uplink(bridge="none"), tell=self.told.append)
        self.says = folder / "says"
        self.says.mkdir()
        self.image = folder / "image"
        self.image.mkdir()
        command = (sys.executable, "-c", WORKER, str(self.says), "root")
        self.spec = WorkerSpec(worker="w1", role="decode", graph="g", engine="test", address="127.0.0.1:9", command=command)
        self.network = self.runtime.network(self.spec)
        self.process = self.runtime.start(self.spec, self.network).resume()
        self.goes_on()

    def at(self) -> dict[str, int]:
        return {path.name: int(path.read_text() or 0) for path in self.says.iterdir()}

    def goes_on(self) -> None:
        was = self.at()
        until(lambda: len(self.at()) == 2 and all(at > was.get(name, 0) + 20 for name, at in self.at().items()), "both go on", 30)

    def dumped(self) -> None:
        self.runtime.freeze(self.process, self.spec, self.network, self.image, lambda _at: None).release()

    def back(self) -> None:
        self.process = self.runtime.restore(self.spec, self.network, self.image).resume()


@pytest.fixture
def worker(criu: Path, tmp_path: Path):
    made = Worker(criu, tmp_path)
    yield made
    process.end(made.process)


def left_out(image: Path) -> int:
    """Pages that CRIU has left to the agent, by its log."""
    return sum(map(int, re.findall(r"nr_lazy: +(\d+)", (image / holds.RESTORE_LOG).read_text())))


def registered(root: Process) -> list[str]:
    """Mappings that are still somebody else's to fill."""
    smaps = "".join(Path(f"/proc/{pid}/smaps").read_text() for pid in process.tree(root.pid))
    return [line for line in smaps.splitlines() if line.startswith("VmFlags:") and " um" in line]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_tree_of_processes_has_all_of_its_memory_before_it_runs(worker: Worker) -> None:
    worker.dumped()
    with LazyMemory(worker.image) as memory:
        assert len(memory.processes) == 2
        expected = memory.bytes
    assert expected > 2 * (39 << 20)
    before, files = open_files(), {path.name for path in worker.image.iterdir()}
    held = worker.runtime.restore(worker.spec, worker.network, worker.image)
    try:
        assert left_out(worker.image) * 4096 == expected
        assert registered(held.process) == [], "nobody fills it any more"
        resident = sum(process.memory(process.note(pid)) or 0 for pid in process.tree(held.process.pid)[:1])
        assert resident > expected
        # whoever holds it for long needs nothing of the image
        assert not [name for name in map(os.readlink, _opened()) if name.startswith(str(worker.image))]
    finally:
        worker.process = held.resume()
    worker.goes_on()
    assert (open_files(), worker.told) == (before, [])
    assert {path.name for path in worker.image.iterdir()} - files <= {holds.RESTORE_LOG, "stats-restore"}
    worker.dumped()  # and can be dumped again
    worker.back()
    worker.goes_on()


def _opened() -> list[str]:
    return [path for name in os.listdir("/proc/self/fd") if os.path.lexists(path := f"/proc/self/fd/{name}")]


def test_where_it_cant_be_loaded_criu_does_it_and_that_is_told_once(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.dumped()
    load, tried = filling._Copy.load, []

    def fails(copy, part, buffer):
        tried.append(part)
        if len(tried) > 30:
            raise OSError(errno.EIO, "the disk is bad")
        load(copy, part, buffer)

    monkeypatch.setattr(filling._Copy, "load", fails)
    before = open_files()
    worker.back()
    worker.goes_on()
    assert left_out(worker.image) == 0
    assert [(one.code, "the disk is bad" in one.what) for one in worker.told] == [("SH715", True)]
    assert open_files() == before
    tried.clear()
    worker.dumped()
    worker.back()
    worker.goes_on()
    assert (tried, len(worker.told)) == ([], 1)


def test_an_image_that_nobody_can_restore_says_nothing_of_how(worker: Worker) -> None:
    worker.dumped()
    core = worker.image / "core-1.img"
    whole = core.read_bytes()
    core.write_bytes(whole[:100])
    with pytest.raises(Rejected, match="SH702"):
        worker.back()
    core.write_bytes(whole)
    assert worker.told == []
    worker.back()
    assert left_out(worker.image) > 0, "it is still loaded by the agent"
    worker.goes_on()
