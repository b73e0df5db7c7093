"""The journal's disk is full from any write on, for one write or for long: no worker is lost, run twice, hidden or left standing still."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from agent_fakes import PROCESS, Bench, problem
from shunter.model.errors import ShunterError, Stalled
from shunter.wire import agent_pb2 as pb
from shunter_agent.recovery import recover
from shunter_agent.runtime.port import Process

COPY = Process(pid=PROCESS.pid + 1, started=9)
Flow = Callable[[Bench], list[Callable[[], Awaitable[object]]]]


class Disk:
    """Takes all writes but those from number `first` on, `count` of them."""

    def __init__(self, bench: Bench, first: int = 0, count: int = 0) -> None:
        self.writes, self.refused, self.first, self.count = 0, 0, first, count
        self._real = bench.journal.batch
        self._journal = bench.journal
        bench.journal.batch = self.batch  # type: ignore[method-assign]

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """In place of the journal's own."""
        outermost = self._journal._depth == 0
        with self._real():
            yield
            if outermost:
                self.writes += 1
                if self.first and self.first <= self.writes < self.first + self.count:
                    self.refused += 1
                    raise Stalled(problem("SH610"))

    def mend(self) -> None:
        """It takes writes again."""
        self.count = 0


def leaves(bench: Bench) -> list[Callable[[], Awaitable[object]]]:
    source = bench.source
    return [lambda: source.fence(bench.step()), lambda: source.freeze(bench.freeze()), lambda: source.release(bench.step())]


def goes_back(bench: Bench) -> list[Callable[[], Awaitable[object]]]:
    source = bench.source
    back = [lambda: source.thaw(bench.step()), lambda: source.unfence(bench.step())]
    return [lambda: source.fence(bench.step()), lambda: source.freeze(bench.freeze()), *back]


def is_saved(bench: Bench) -> list[Callable[[], Awaitable[object]]]:
    return [lambda: bench.source.checkpoint(pb.CheckpointOrder(order=bench.order(), image="image-op"))]


def drains(bench: Bench) -> list[Callable[[], Awaitable[object]]]:
    return [lambda: bench.source.fence(bench.step()), lambda: bench.source.drain(bench.step(), 5)]


def arrives(bench: Bench) -> list[Callable[[], Awaitable[object]]]:
    there = bench.destination
    made = [lambda: there.prepare(bench.prepare()), lambda: there.restore(bench.restore())]
    return [*made, lambda: there.resume(bench.step()), lambda: bench.source.unfence(bench.step())]


def is_aborted(bench: Bench) -> list[Callable[[], Awaitable[object]]]:
    there = bench.destination
    return [lambda: there.prepare(bench.prepare()), lambda: there.restore(bench.restore()), lambda: there.abort(bench.step())]


def made(folder: Path, flow: Flow) -> Bench:
    folder.mkdir()
    bench = Bench(folder, worker=flow not in (arrives, is_aborted))
    bench.journal._db.execute("PRAGMA synchronous=OFF")  # hundreds of runs: it isn't the disk that is tried here
    if flow in (arrives, is_aborted):
        bench.runtime.alive.clear()
        bench.runtime.running.clear()
        bench.give_image()
    return bench


async def until_refused(bench: Bench, flow: Flow) -> None:
    with contextlib.suppress(ShunterError):
        for order in flow(bench):
            await order()


async def time_passes(bench: Bench) -> None:
    """No engine comes any more."""
    for _ in range(4):
        bench.clock.now += bench.settings.reservation
        await bench.holds.expire()


async def agent_dies(bench: Bench) -> None:
    for copy in bench.node.frozen.values():
        if copy.frozen.alive():
            copy.frozen.thaw()
    for kept in bench.node.held.values():
        bench.runtime.alive.discard(kept.held.process)
    bench.journal.close()
    bench.boot()
    await recover(bench.node, bench.destination, lambda _seconds: None)


def is_whole(bench: Bench, flow: Flow) -> None:
    node, runtime = bench.node, bench.runtime
    assert (node.frozen, node.held, node.hidden, node.unsettled, node.leaving) == ({}, {}, {}, {}, {})
    assert bench.journal.reservations() == {}
    row = bench.journal.worker("w")
    if row is None:
        assert runtime.alive == set(), "a copy that nobody knows of"
        ended = bench.faults.done["release"] + bench.faults.done["end"] + bench.faults.done["abort"]
        assert ended or flow in (arrives, is_aborted), "nobody has ended it"
        return
    assert runtime.alive == runtime.running == {row.process}
    assert (row.state, bench.serving.registered, bench.network.connected) == ("running", True, True)


FLOWS: list[Flow] = [leaves, goes_back, is_saved, drains, arrives, is_aborted]


@pytest.mark.parametrize("dies", [False, True], ids=["the agent goes on", "the agent dies then"])
@pytest.mark.parametrize("flow", FLOWS, ids=lambda f: f.__name__)
async def test_at_each_write(tmp_path: Path, flow: Flow, dies: bool) -> None:
    calm = made(tmp_path / "calm", flow)
    disk = Disk(calm)
    await until_refused(calm, flow)
    writes = disk.writes
    assert writes >= 2
    for first in range(1, writes + 1):
        for count in (1, 1000):
            bench = made(tmp_path / f"{first}-{count}", flow)
            disk = Disk(bench, first, count)
            await until_refused(bench, flow)
            assert disk.refused, first
            with contextlib.suppress(ShunterError):
                await bench.holds.expire()  # while the disk is full
            disk.mend()
            if dies:
                await agent_dies(bench)
            await time_passes(bench)
            is_whole(bench, flow)
            bench.journal.close()
