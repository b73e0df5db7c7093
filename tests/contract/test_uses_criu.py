"""What preflight refuses of a worker's uses, CRIU refuses at the restore: seen on real processes."""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from shunter.model.errors import Rejected
from shunter_agent.runtime import process as processes
from shunter_agent.runtime import uses
from shunter_agent.runtime.criu import CriuRuntime
from shunter_agent.runtime.network import NoNetwork, Uplink
from shunter_agent.runtime.port import Process, WorkerSpec

pytestmark = pytest.mark.lab

HOLDS = """
import sys, time
held = open(sys.argv[1])
open(sys.argv[2], "w").close()
while True:
    time.sleep(0.01)
"""


class Bench:
    """A worker without a network of its own, and images of it."""

    def __init__(self, criu: Path, tmp_path: Path) -> None:
        self.criu, self.tmp_path = criu, tmp_path
        self.runtime = CriuRuntime(criu, Uplink(bridge="none"))
        self.held, self.ready = tmp_path / "held", tmp_path / "ready"
        self.held.write_text("weights")
        command = (sys.executable, "-c", HOLDS, str(self.held), str(self.ready))
        self.spec = WorkerSpec(worker="w", role="decode", graph="g", engine="e", address="127.0.0.1:1", command=command)
        self.ended: list[Process] = []
        self.worker = self.runtime.start(self.spec, NoNetwork())
        self.ended.append(self.worker)
        self.until(self.ready)

    def until(self, path: Path) -> None:
        end = time.monotonic() + 10
        while not path.exists():
            assert time.monotonic() < end, f"{path} never came"
            time.sleep(0.002)

    def image(self) -> Path:
        folder = self.tmp_path / "image"
        folder.mkdir(mode=0o700)
        self.runtime.freeze(self.worker, self.spec, NoNetwork(), folder, lambda _at: None).release()
        return folder

    def uses(self) -> uses.Uses:
        found = self.runtime.uses(self.worker, self.spec)
        assert self.runtime.lacking(found, "n") == []
        return found

    def restore(self, folder: Path) -> Process:
        running = self.runtime.restore(self.spec, NoNetwork(), folder).resume()
        self.ended.append(running)
        return running

    def close(self) -> None:
        for one in self.ended:
            processes.end(one)


@pytest.fixture
def bench(criu: Path, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(criu, tmp_path)
    with contextlib.closing(made):
        yield made


@pytest.mark.parametrize("content", [None, "other weights"], ids=["missing", "another size"])
def test_a_file_that_is_another_one_where_the_worker_goes(bench: Bench, content: str | None) -> None:
    used = bench.uses()
    folder = bench.image()
    bench.held.unlink() if content is None else bench.held.write_text(content)
    (lacks,) = bench.runtime.lacking(used, "node-b")
    assert (lacks.code, str(bench.held) in lacks.what) == ("SH767", True)
    with pytest.raises(Rejected, match="SH702"):
        bench.restore(folder)
    bench.held.write_text("weights")
    assert bench.runtime.lacking(used, "node-b") == []
    assert processes.find(bench.restore(folder))
