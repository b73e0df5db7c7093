"""How large a dump is, against what was said before it that it has at the least: a real CRIU's."""

import sys
from pathlib import Path

import pytest
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.criu import CriuRuntime
from shunter_agent.runtime.network import Uplink
from shunter_agent.runtime.port import WorkerSpec
from test_transfer import until

pytestmark = pytest.mark.lab

TREE = """
import mmap, os, sys, time
shared = bytearray(os.urandom(24 << 20))  # which the children have in common with the root, but for a little
zeros = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
sum(zeros[at] for at in range(0, len(zeros), 4096))  # only read: the kernel's page of zeros
file = mmap.mmap(os.open(sys.executable, os.O_RDONLY), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
sum(file[at] for at in range(0, len(file), 4096))
free = bytearray(os.urandom(8 << 20))
del free
if os.fork() and os.fork():
    open(sys.argv[1], "w").write("ready")
else:
    shared[:1 << 20] = bytes(1 << 20)
while True:
    time.sleep(1)
"""


def test_a_dump_is_no_smaller_than_was_said(criu: Path, tmp_path: Path) -> None:
    """Else one would be refused that has room."""
    runtime, ready, folder = CriuRuntime(criu, Uplink(bridge="none")), tmp_path / "ready", tmp_path / "image"
    folder.mkdir()
    command = (sys.executable, "-c", TREE, str(ready))
    spec = WorkerSpec(worker="w1", role="decode", graph="g", engine="test", address="127.0.0.1:9", command=command)
    network = runtime.network(spec)
    worker = runtime.start(spec, network).resume()
    try:
        until(lambda: ready.exists() and len(processes.tree(worker.pid)) == 3, "all three are there", 30)
        least, resident = runtime.dumped_at_least(worker), runtime.memory(worker)
        runtime.freeze(worker, spec, network, folder, lambda _at: None).thaw()
        dumped = sum(path.stat().st_size for path in folder.glob("*.img"))
        assert resident is not None
        assert 0.9 * dumped < least <= dumped < resident
    finally:
        runtime.end(worker)
