"""A process that was killed and doesn't die, as one that waits in the kernel: nobody may take it for gone, nor for running on."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shunter.model.errors import Rejected, Unknown
from shunter_agent.runtime import holds
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.cuda.held import CudaHeld
from shunter_agent.runtime.cuda.session import Died
from shunter_agent.runtime.port import Held, Process, WorkerSpec
from shunter_agent.runtime.starting import Starting

SPEC = WorkerSpec(worker="w", role="decode", graph="g", engine="e", address="10.0.0.1:9000")


class Broken:
    """CRIU, or a helper for GPUs, that dies while it lets a copy go."""

    alive = True

    def answer(self, _yes: bool) -> object:
        raise ConnectionResetError("it ended")

    def about(self, *_arguments: object, **_more: object) -> None:
        raise Died("it ended")

    def kill(self) -> None:
        pass

    def close(self) -> None:
        self.alive = False


def of_criu(copy: Process) -> Held:
    return holds.CriuHeld(Broken(), copy, SPEC, Path("/nowhere"))  # type: ignore[arg-type]


def of_cuda(copy: Process) -> Held:
    return CudaHeld(Broken(), copy, ())  # type: ignore[arg-type]


@pytest.fixture
def copy() -> Iterator[Process]:
    started = Starting((sys.executable, "-Sc", "import time\nwhile True: time.sleep(0.01)"), {}, None, own_pids=False).resume()
    yield started
    processes.end(started)


@pytest.mark.parametrize("made", [of_criu, of_cuda])
@pytest.mark.parametrize("calls", ["resume resume abort", "resume abort resume", "abort abort resume", "abort resume abort"])
def test_a_copy_that_cannot_be_killed_is_unknown_however_often_it_is_asked_about(
    copy: Process, monkeypatch: pytest.MonkeyPatch, made: Callable[[Process], Held], calls: str
) -> None:
    held = made(copy)
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda *_arguments: None)
        patched.setattr(processes, "wait_dead", lambda _process: False)
        for call in calls.split():
            with pytest.raises(Unknown, match="SH707"):
                getattr(held, call)()
    held.abort()
    assert not processes.find(copy)
    with pytest.raises(Rejected, match="SH708"):
        held.resume()


@pytest.mark.parametrize("name", ["SigPnd", "ShdPnd"])
def test_a_worker_that_was_killed_and_is_not_dead_does_not_run_on(copy: Process, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    holds.confirm_running(copy)
    status = processes.status
    monkeypatch.setattr(processes, "status", lambda pid: {**status(pid), name: "0000000000000100"})
    with pytest.raises(Unknown, match="SH711"):
        holds.confirm_running(copy)
