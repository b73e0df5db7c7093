"""Running out of descriptors says nothing of a worker: only a process that isn't there has ended."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from agent_fakes import PROCESS, Bench, QuietExits
from shunter_agent import exits
from shunter_agent.exits import Exits
from shunter_agent.runtime.port import Process


async def test_a_live_process_that_cannot_be_watched_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, tries = os.pidfd_open, []

    def scarce(pid: int) -> int:
        tries.append(pid)
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(pid)

    monkeypatch.setattr(os, "pidfd_open", scarce)
    monkeypatch.setattr(exits, "AGAIN_S", 0.0)
    ended: list[str] = []
    watching = Exits(lambda worker, _status: ended.append(worker))
    watching.watch("decode-0", Process(pid=os.getpid(), started=0))
    async with asyncio.timeout(5):
        while len(tries) < 2:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    watching.close()
    assert ended == []


class Watching(QuietExits):
    def __init__(self) -> None:
        super().__init__(lambda _worker, _status: None)
        self.again: list[tuple[str, Process]] = []

    def watch_again(self, worker: str, process: Process) -> None:
        self.again.append((worker, process))


def starve() -> None:
    raise OSError(errno.EMFILE, "Too many open files")


class TestWorkerEnded:
    async def test_a_worker_that_the_runtime_finds_stays_and_is_watched_again(self, tmp_path: Path) -> None:
        bench = Bench(tmp_path)
        bench.node.exits = watching = Watching()
        bench.node.worker_ended("w", -1)
        assert (bench.state(), watching.again) == ("running", [("w", PROCESS)])
        assert bench.network.exists

    async def test_a_worker_of_which_nothing_can_be_told_stays_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = Bench(tmp_path)
        bench.node.exits = watching = Watching()
        monkeypatch.setattr(bench.runtime, "find", lambda _process: starve())
        bench.node.worker_ended("w", -1)
        assert (bench.state(), watching.again) == ("running", [("w", PROCESS)])

    @pytest.mark.parametrize("call", ["disconnect", "destroy"])
    async def test_nothing_keeps_a_worker_that_is_dead_or_what_can_go_of_its_network(self, tmp_path: Path, call: str) -> None:
        bench = Bench(tmp_path)
        bench.runtime.alive.clear()
        network = bench.network
        bench.faults.at[call] = RuntimeError("broken")
        bench.node.worker_ended("w", -9)
        assert (bench.state(), network.connected) == ("none", False)
        assert "RuntimeError: broken" in bench.said()

    async def test_a_worker_that_is_dead_leaves(self, tmp_path: Path) -> None:
        bench = Bench(tmp_path)
        bench.runtime.alive.clear()
        bench.node.worker_ended("w", -9)
        assert bench.state() == "none"

    async def test_it_is_watched_again_in_a_moment_and_its_end_is_then_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exits, "AGAIN_S", 0.0)
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        watching = Exits(lambda worker, _status: told.set_result(worker))
        watching.watch_again("w", PROCESS)
        assert await asyncio.wait_for(told, 10) == "w"
