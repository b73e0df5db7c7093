"""What preflight refuses of a worker's uses, CRIU refuses at the restore: seen on real processes."""

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import pytest
from shunter.model.errors import Rejected
from shunter_agent.runtime import holds, locktables, uses
from shunter_agent.runtime import process as processes
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
        self.worker = self.runtime.start(self.spec, NoNetwork()).resume()
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


COUNTS = """
import socket, sys, threading, time
number = 0
def count():
    global number
    while True:
        time.sleep(0.002)
        number += 1
def serve(link):
    try:
        while True:
            link.sendall(b"%d\\n" % number)
            time.sleep(0.002)
    except OSError:
        link.close()
threading.Thread(target=count, daemon=True).start()
listener = socket.create_server(("127.0.0.1", 0))
with open(sys.argv[2] + ".port", "w") as port:
    port.write(str(listener.getsockname()[1]))
open(sys.argv[2], "w").close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def numbers(port: int) -> tuple[socket.socket, IO[str]]:
    link = socket.create_connection(("127.0.0.1", port), 5)
    return link, link.makefile()


def test_connections_that_are_to_close_survive_a_way_back_and_end_with_the_copy_that_is_left(bench: Bench) -> None:
    """Their clients hear of it at once, and connect anew to the worker as it was."""
    processes.end(bench.worker)
    bench.ready.unlink()
    spec = msgspec.structs.replace(
        bench.spec, connections="close", command=(sys.executable, "-c", COUNTS, str(bench.held), str(bench.ready))
    )
    bench.spec, bench.worker = spec, bench.runtime.start(spec, NoNetwork()).resume()
    bench.ended.append(bench.worker)
    bench.until(bench.ready)
    port = int(Path(f"{bench.ready}.port").read_text())
    link, lines = numbers(port)
    with link, lines:
        assert int(lines.readline()) >= 0
        first = bench.tmp_path / "first"
        first.mkdir(mode=0o700)
        bench.runtime.freeze(bench.worker, spec, NoNetwork(), first, lambda _at: None).thaw()
        told = [int(lines.readline()) for _ in range(200)]
        assert told == sorted(told), "on the way back nothing was closed"
        folder = bench.image()
        with contextlib.suppress(ConnectionResetError):
            while line := lines.readline():
                told.append(int(line))
    assert locktables.closes(folder)
    running = bench.restore(folder)
    again, more = numbers(port)
    with again, more:
        assert int(more.readline()) >= told[-1], "it goes on counting where it was"
    assert processes.find(running)


def test_an_image_with_its_connections_is_not_restored_without_them(bench: Bench) -> None:
    """Its clients would wait for ever: what it is restored like is said by the image, and by nobody else."""
    folder = bench.image()
    assert not locktables.closes(folder)
    bench.spec = msgspec.structs.replace(bench.spec, connections="close")
    assert processes.find(bench.restore(folder))
    assert "--tcp-close" not in (folder / holds.RESTORE_LOG).read_text()
