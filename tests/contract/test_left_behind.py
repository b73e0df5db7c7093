"""Agents that die together with whoever could have put things back, and helpers that hang without an agent: the next agent does it."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from shunter.model.errors import Rejected, Retry
from shunter_agent.runtime import leftbehind, locktables, preflight, process, swrk
from shunter_agent.runtime.cuda.held import CudaFrozen
from shunter_agent.runtime.cuda.node import Restoring
from shunter_agent.runtime.holds import CriuFrozen, CriuHeld
from shunter_agent.runtime.port import Process
from stub_gpus import build, private_dev
from test_criu import HOST, Bench, _in_a_child, _tracer, until
from test_cuda import Stubbed, _traced_or_stopped

pytestmark = [pytest.mark.lab, pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")]
FOR_EVER = 1e9
"""Seconds: longer than anybody's patience."""


@pytest.fixture
def bench(criu: Path, tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(criu, tmp_path)) as made:
        yield made


@pytest.fixture
def gpus(criu: Path, tmp_path: Path) -> Iterator[Stubbed]:
    with private_dev(tmp_path / "dev") as device, closing(Stubbed(criu, tmp_path, build(tmp_path), device)) as made:
        yield made


def agent(bench: Bench, work: Callable[[], object]) -> int:
    """A child that has done it, and keeps what came of it."""
    pid, ready = _in_a_child(work)
    assert os.read(ready, 1) == b"k"
    os.close(ready)
    return pid


def kill(*pids: int) -> None:
    """The first ones may be somebody else's children."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pids[-1], 0)


def freezes(bench: Bench, name: str = "image") -> int:
    return agent(bench, lambda: bench.a.runtime.freeze(bench.worker, bench.spec, bench.network, bench.folder(name), lambda _at: None))


def settle(bench: Bench, waited_s: float = 0.0, worker: Process | None = None) -> None:
    bench.a.call(lambda: bench.a.runtime.settle(worker or bench.worker, bench.network, (), waited_s))


def test_a_worker_whose_agent_and_criu_died_together_has_its_network_again(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    holder = freezes(bench)
    kill(_tracer(bench.worker), holder)
    until(lambda: not preflight.traced(bench.worker.pid), "the kernel lets the worker go")
    assert locktables.tables(bench.network.netns), "and nobody has given it its network back"
    bench.a.call(bench.network.disconnect)  # what an agent does right before it ends the worker

    settle(bench)
    bench.a.call(bench.network.connect)

    assert locktables.tables(bench.network.netns) == []
    client.goes_on()
    settle(bench)  # once more does no harm
    client.goes_on()
    process.end(bench.worker)
    client.hears_of_its_end()


def test_in_a_shared_network_the_lock_of_a_criu_that_died_with_its_agent_is_known_by_its_log(bench: Bench) -> None:
    shared = msgspec.structs.replace(bench.spec, mac="", command=(sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)"))
    network = bench.a.call(lambda: bench.a.runtime.network(shared))
    assert not network.own
    folders = {name: bench.folder(name) for name in ("one", "two")}
    workers = {name: bench.a.call(lambda: bench.a.runtime.start(shared, network).resume()) for name in folders}
    bench.processes += workers.values()

    def freeze(name: str) -> Callable[[], object]:
        return lambda: bench.a.call(lambda: bench.a.runtime.freeze(workers[name], shared, network, folders[name], lambda _at: None))

    holder = agent(bench, freeze("one"))
    kept = freeze("two")()
    assert len(bench.a.call(lambda: locktables.tables(None))) == 2
    kill(_tracer(workers["one"]), holder)
    until(lambda: not preflight.traced(workers["one"].pid), "the kernel lets it go")
    for folder in folders.values():
        bench.a.runtime.thaw_left_behind(folder)

    bench.a.call(lambda: bench.a.runtime.settle(workers["one"], network, (), 0))

    assert len(bench.a.call(lambda: locktables.tables(None))) == 1, "the other one's stays"
    assert isinstance(kept, CriuFrozen)
    assert kept.alive()
    bench.a.call(kept.thaw)
    assert bench.a.call(lambda: locktables.tables(None)) == []


def test_a_criu_that_hangs_without_an_agent_is_ended_when_its_time_is_over(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    holder = freezes(bench)
    criu = _tracer(bench.worker)
    os.kill(criu, signal.SIGSTOP)
    kill(holder)

    with pytest.raises(Retry, match=rf"SH713 .*\(process {criu}, .*\) of an agent that died"):
        settle(bench, swrk.LEAST_S - 1)
    assert preflight.traced(bench.worker.pid)
    settle(bench, FOR_EVER)

    client.goes_on()
    assert not process.find(Process(pid=criu, started=0))
    assert not preflight.traced(bench.worker.pid)
    assert locktables.tables(bench.network.netns) == []


def test_whoever_else_traces_a_worker_is_left_alone(bench: Bench) -> None:
    code = "import ctypes, sys, signal\nassert ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0\nsignal.pause()"
    debugger = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", code, str(bench.worker.pid)])
    until(lambda: preflight.traced(bench.worker.pid), "it is traced")
    with pytest.raises(Retry, match=rf"SH714 process {debugger} \(python3.*\) traces the worker"):
        settle(bench, FOR_EVER)
    assert preflight.traced(bench.worker.pid)
    bench.a.runtime.settle(bench.worker, bench.network, None, 0)  # of one that no order had nothing else is expected
    kill(debugger)
    settle(bench)


def test_what_is_stopped_goes_on_unless_somebody_else_had_stopped_it(bench: Bench) -> None:
    client = bench.client()
    os.kill(bench.worker.pid, signal.SIGSTOP)
    until(lambda: bench.worker.pid in process.stopped(bench.worker), "it stops")
    for stopped in (None, (bench.worker.pid,)):
        bench.a.runtime.settle(bench.worker, bench.network, stopped, 0)
        assert process.stopped(bench.worker) == {bench.worker.pid}
    bench.a.runtime.settle(bench.worker, bench.network, (), 0)
    client.goes_on()


def test_a_copy_whose_agent_and_criu_died_together_is_told_from_one_that_runs(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    folder = bench.folder()
    bench.freeze(folder).release()
    assert not bench.a.runtime.stillborn(bench.worker), "dead is dead"
    there = bench.network_on(bench.b)
    read, write = os.pipe()
    born: list[Process] = []

    def hold() -> object:
        held = bench.b.runtime.restore(bench.spec, there, folder, born.append)
        assert isinstance(held, CriuHeld)
        assert born == [held.process], "told once, and before it was whole"
        os.write(write, f"{held.process.pid} {held.process.started} {held._session.pid}".encode())
        return held

    holder = agent(bench, hold)
    pid, started, criu = map(int, os.read(read, 60).split())
    for descriptor in (read, write):
        os.close(descriptor)
    copy = Process(pid=pid, started=started)
    assert not bench.b.runtime.stillborn(copy), "CRIU may still let it run"
    kill(criu, holder)

    until(lambda: bench.b.runtime.stillborn(copy), "nobody is left who would")
    assert bench.b.runtime.find(copy), "and it is there all the same, for ever"
    bench.b.call(lambda: bench.b.runtime.settle(copy, there, (), FOR_EVER))
    assert bench.b.runtime.stillborn(copy), "a signal doesn't help it either"
    bench.b.runtime.end(copy)

    bench.a.call(bench.network.disconnect)
    held = bench.restore(folder, bench.b, there)
    bench.b.call(there.connect)
    running = held.resume()
    assert not bench.b.runtime.stillborn(running)
    client.goes_on()
    assert not bench.b.runtime.stillborn(running)


@pytest.mark.parametrize("hung", [False, True], ids=["dead", "hung"])
def test_a_gpu_worker_whose_agent_criu_and_helper_are_of_no_help_has_its_gpu_again(gpus: Stubbed, hung: bool) -> None:
    client = gpus.client()
    client.goes_on()
    read, write = os.pipe()

    def freeze() -> object:
        frozen = gpus.a.runtime.freeze(gpus.worker, gpus.spec, gpus.network, gpus.folder("held"), lambda _at: None)
        assert isinstance(frozen, CudaFrozen)
        assert isinstance(frozen._inner, CriuFrozen)
        os.write(write, f"{frozen._inner._session.pid} {frozen._taken._session._helper.pid}".encode())
        return frozen

    holder = agent(gpus, freeze)
    others = [int(pid) for pid in os.read(read, 60).split()]
    for descriptor in (read, write):
        os.close(descriptor)
    if hung:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        kill(holder)
        with pytest.raises(Retry, match="SH713"):
            settle(gpus, 0)
        settle(gpus, FOR_EVER)
        os.kill(others[1], signal.SIGCONT)  # it wakes up, and finds everything done
    else:
        kill(*others, holder)
        until(lambda: gpus.worker.pid in process.stopped(gpus.worker), "the kernel lets it go, stopped")
        assert gpus.on_a.taken() == 0
        settle(gpus)
    until(lambda: not _traced_or_stopped(gpus.worker.pid), "it runs")
    gpus.thawed_and_whole()
    client.goes_on()


def test_a_helper_that_hangs_in_a_call_without_an_agent_is_ended(gpus: Stubbed) -> None:
    """It traces the driver's thread, and its own alarm doesn't reach it: it is stopped."""
    client = gpus.client()
    client.goes_on()
    gpus.on_a.fail("checkpoint", "wait")
    holder, ready = _in_a_child(lambda: gpus.a.runtime.freeze(gpus.worker, gpus.spec, gpus.network, gpus.folder("held"), lambda _at: None))
    until(gpus.on_a.within("checkpoint").exists, "it is in the call")
    (helper,) = leftbehind.tracers(gpus.worker)
    os.kill(helper, signal.SIGSTOP)
    kill(holder)
    os.close(ready)
    gpus.on_a.within("checkpoint").unlink()
    with pytest.raises(Retry, match=rf"SH713 .*\(process {helper}, .*\) of an agent that died"):
        settle(gpus)
    settle(gpus, FOR_EVER)
    gpus.thawed_and_whole()
    client.goes_on()


@pytest.mark.parametrize("call", ["restore", "unlock"])
def test_a_driver_that_hangs_when_a_worker_is_to_run_on_is_asked_by_another_helper(gpus: Stubbed, call: str) -> None:
    client = gpus.client()
    client.goes_on()
    frozen = gpus.freeze(gpus.folder())
    gpus.on_a.fail(call, "hang")
    gpus.sessions["a"].made[-1]._patience = 0.03
    frozen.thaw()
    gpus.thawed_and_whole()
    client.goes_on()


def test_a_copy_with_a_gpu_that_nobody_guards_is_known_from_its_birth(gpus: Stubbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRIU has let it go, stopped; helper and agent die before it is seized: then only what was noted at its birth tells of it."""
    folder = gpus.folder()
    gpus.freeze(folder).release()
    there = gpus.network_on(gpus.b)
    read, write = os.pipe()

    def die(self: Restoring, _copy: Process) -> None:
        self._session._helper.kill()
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(Restoring, "revive", die)
    born: Callable[[Process], None] = lambda copy: void(os.write(write, f"{copy.pid} {copy.started}".encode()))  # noqa: E731
    holder, ready = _in_a_child(lambda: gpus.b.call(lambda: gpus.b.runtime.restore(gpus.spec, there, folder, born)))
    os.waitpid(holder, 0)
    pid, started = map(int, os.read(read, 60).split())
    for descriptor in (read, write, ready):
        os.close(descriptor)
    copy = Process(pid=pid, started=started)
    assert gpus.b.runtime.find(copy)
    until(lambda: copy.pid in process.stopped(copy), "it stands there")
    gpus.b.runtime.end(copy)
    with pytest.raises(Rejected, match="SH710"):
        settle(gpus, worker=copy)
    monkeypatch.undo()
    gpus.a.call(gpus.network.disconnect)
    held = gpus.restore(folder, gpus.b, there)
    gpus.b.call(there.connect)
    assert held.resume()
    assert gpus.whole()


def test_a_copy_that_runs_elsewhere_is_heard_of_and_who_only_has_its_address_is_not_taken_for_it(bench: Bench) -> None:
    client = bench.client()
    client.goes_on()
    folder = bench.folder()
    frozen, there = bench.freeze(folder), bench.network_on(bench.b)
    bench.a.call(bench.network.disconnect)
    held = bench.restore(folder, bench.b, there)
    assert not bench.a.call(bench.network.elsewhere), "it stands still there, and isn't connected"
    frozen.release()
    bench.b.call(there.connect)
    held.resume()
    client.goes_on()
    assert bench.a.call(bench.network.elsewhere)

    bench.b.call(there.disconnect)
    assert not bench.a.call(bench.network.elsewhere)
    bench.b.address(f"{HOST}/32")
    assert not bench.a.call(bench.network.elsewhere), "that is another machine with its address, or a router that answers for it"


def void(_value: object) -> None:
    pass
