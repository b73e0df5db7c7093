import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from shunter.model.errors import Rejected, Stalled
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.port import Process, WorkerSpec
from shunter_agent.runtime.pretend import NOTE, PretendRuntime
from shunter_agent.runtime.shelf import Shelf

SPEC = WorkerSpec(
    worker="w1",
    role="decode",
    graph="g",
    engine="test",
    address="127.0.0.1:9000",
    mac="02:00:00:00:00:01",
    command=(sys.executable, "-Sc", "import time\nwhile True: time.sleep(0.001)"),
)


@pytest.fixture
def runtime(tmp_path: Path) -> PretendRuntime:
    return PretendRuntime("a", tmp_path / "shelf", clock=lambda: 123.0)


@pytest.fixture
def worker(runtime: PretendRuntime) -> Iterator[Process]:
    started = runtime.start(SPEC, runtime.network(SPEC)).resume()
    yield started
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    processes.end(started)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "image"
    made.mkdir()
    return made


def freeze(runtime: PretendRuntime, worker: Process, folder: Path):
    return runtime.freeze(worker, SPEC, runtime.network(SPEC), folder, lambda _at: None)


def restore(runtime: PretendRuntime, folder: Path):
    return runtime.restore(SPEC, runtime.network(SPEC), folder)


def stopped(worker: Process) -> bool:
    seen = processes.stat(worker.pid)
    assert seen is not None
    return seen.state == "T"


def test_it_says_what_it_is_everywhere(runtime: PretendRuntime, worker: Process, folder: Path) -> None:
    assert runtime.name == "pretend"
    assert runtime.facts()["runtime"] == "pretend"
    assert runtime.facts()["boot"].startswith("pretend:")
    freeze(runtime, worker, folder).thaw()
    note = msgspec.json.decode((folder / NOTE).read_bytes())
    assert note["pretend"] is True
    assert note["pid"] == worker.pid


def test_a_frozen_worker_stands_still_and_a_thawed_one_runs(runtime: PretendRuntime, worker: Process, folder: Path) -> None:
    at: list[float] = []
    frozen = runtime.freeze(worker, SPEC, runtime.network(SPEC), folder, at.append)
    assert at == [123.0] == [frozen.dump.frozen_at]
    assert stopped(worker)
    assert frozen.alive()
    frozen.thaw()
    assert not stopped(worker)
    assert not frozen.alive()
    frozen.thaw()
    with pytest.raises(Rejected, match="SH708"):
        frozen.release()


@pytest.fixture
def other(tmp_path: Path) -> PretendRuntime:
    """The runtime of a second node of the same machine."""
    return PretendRuntime("b", tmp_path / "shelf")


def test_a_move_restores_held_before_the_release_and_resumes_after_it(
    runtime: PretendRuntime, other: PretendRuntime, worker: Process, folder: Path, tmp_path: Path
) -> None:
    frozen = freeze(runtime, worker, folder)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / NOTE).write_bytes((folder / NOTE).read_bytes())
    held = restore(other, copy)
    assert held.process == worker
    assert frozen.alive()
    frozen.release()
    assert stopped(worker)
    assert (runtime.find(worker), other.find(worker)) == (False, True)
    assert held.resume() == worker
    assert not stopped(worker)
    assert (runtime.find(worker), other.find(worker)) == (False, True)
    held.abort()
    assert not stopped(worker)
    with pytest.raises(Rejected, match="SH708"):
        held.resume()
    with pytest.raises(Rejected, match=r"SH709 .*ran on"):
        restore(runtime, folder)
    with pytest.raises(Rejected, match="SH708"):
        frozen.release()
    freeze(other, worker, copy).thaw()  # it is a worker like any other there
    other.end(worker)


def test_a_copy_never_runs_before_its_source_released_it(
    runtime: PretendRuntime, other: PretendRuntime, worker: Process, folder: Path
) -> None:
    frozen = freeze(runtime, worker, folder)
    held = restore(other, folder)
    with pytest.raises(Rejected, match=r"SH708 .*a has not released"):
        held.resume()
    assert stopped(worker)
    assert frozen.alive()
    frozen.release()
    with pytest.raises(Rejected, match="SH708"):
        held.resume()  # that copy was aborted
    restore(other, folder).resume()
    assert not stopped(worker)


def test_the_source_goes_on_after_an_abort_or_instead_of_the_copy(
    runtime: PretendRuntime, other: PretendRuntime, worker: Process, folder: Path, tmp_path: Path
) -> None:
    frozen = freeze(runtime, worker, folder)
    held = restore(other, folder)
    held.abort()
    frozen.thaw()
    assert not stopped(worker)
    again = tmp_path / "again"
    again.mkdir()
    frozen = freeze(runtime, worker, again)
    held = restore(other, again)
    frozen.thaw()
    assert not stopped(worker)
    with pytest.raises(Rejected, match="SH708"):
        held.resume()
    assert runtime.find(worker)


def test_one_copy_is_held_at_a_time(runtime: PretendRuntime, other: PretendRuntime, worker: Process, folder: Path) -> None:
    freeze(runtime, worker, folder).release()
    held = restore(other, folder)
    with pytest.raises(Rejected, match=r"SH709 .*held on b already"):
        restore(runtime, folder)
    held.abort()
    held.abort()
    assert stopped(worker)
    with pytest.raises(Rejected, match="SH708"):
        held.resume()
    assert stopped(worker)
    restore(runtime, folder).resume()
    assert not stopped(worker)


def test_an_older_image_of_it_is_none(runtime: PretendRuntime, worker: Process, folder: Path, tmp_path: Path) -> None:
    freeze(runtime, worker, folder).thaw()
    newer = tmp_path / "newer"
    newer.mkdir()
    freeze(runtime, worker, newer).release()
    with pytest.raises(Rejected, match=r"SH709 .*ran on"):
        restore(runtime, folder)
    restore(runtime, newer).resume()


def test_ending_a_held_copy_leaves_the_frozen_worker(runtime: PretendRuntime, other: PretendRuntime, worker: Process, folder: Path) -> None:
    frozen = freeze(runtime, worker, folder)
    restore(other, folder)
    other.end(worker)  # as an agent does that finds a held copy after a restart
    assert frozen.alive()
    assert not other.find(worker)
    other.end(worker)
    frozen.thaw()
    assert not stopped(worker)


def test_an_image_of_a_worker_that_ran_on_says_that_it_is_none(runtime: PretendRuntime, worker: Process, folder: Path) -> None:
    freeze(runtime, worker, folder).thaw()
    with pytest.raises(Rejected, match=r"SH709 .*ran on after it was made"):
        restore(runtime, folder)


def test_an_image_from_elsewhere_is_refused(runtime: PretendRuntime, worker: Process, folder: Path, tmp_path: Path) -> None:
    freeze(runtime, worker, folder).release()
    with pytest.raises(Rejected, match=r"SH709 .*another machine"):
        restore(PretendRuntime("b", tmp_path / "elsewhere"), folder)
    processes.end(worker)
    with pytest.raises(Rejected, match=r"SH709 .*gone"):
        restore(runtime, folder)


@pytest.mark.parametrize("note", [None, "{}", "not json", '{"pid": 1, "started": "../../etc", "token": ""}'])
def test_what_is_no_image_is_refused(runtime: PretendRuntime, folder: Path, note: str | None) -> None:
    if note is not None:
        (folder / NOTE).write_text(note)
    with pytest.raises(Rejected, match="SH709"):
        restore(runtime, folder)


def test_what_a_dead_agent_left_is_put_back(
    runtime: PretendRuntime, other: PretendRuntime, worker: Process, folder: Path, tmp_path: Path
) -> None:
    frozen = freeze(runtime, worker, folder)
    held = restore(other, folder)
    assert PretendRuntime("b", tmp_path / "shelf").thaw_left_behind(folder)  # its copy is given back
    assert stopped(worker)
    assert frozen.alive()
    with pytest.raises(Rejected, match="SH708"):
        held.resume()
    again = PretendRuntime("a", tmp_path / "shelf")
    assert again.thaw_left_behind(folder)  # the worker runs on
    assert not stopped(worker)
    assert not frozen.alive()
    assert not again.thaw_left_behind(folder)
    assert not other.thaw_left_behind(folder)


def test_a_released_worker_stays_an_image_when_its_agent_comes_back(
    runtime: PretendRuntime, other: PretendRuntime, worker: Process, folder: Path
) -> None:
    freeze(runtime, worker, folder).release()
    assert not runtime.thaw_left_behind(folder)
    assert stopped(worker)
    restore(other, folder).resume()
    assert not runtime.thaw_left_behind(folder)


@pytest.mark.parametrize(("where", "call"), [(Path, "write_bytes"), (Shelf, "put")])
def test_a_freeze_that_cannot_be_noted_leaves_the_worker_running(
    runtime: PretendRuntime, worker: Process, folder: Path, monkeypatch: pytest.MonkeyPatch, where: type, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(where, call, full)
    with pytest.raises(OSError, match="No space"):
        freeze(runtime, worker, folder)
    assert not stopped(worker)
    monkeypatch.undo()
    freeze(runtime, worker, folder).thaw()
    assert not stopped(worker)


def test_a_gone_worker_is_told(runtime: PretendRuntime, worker: Process, folder: Path) -> None:
    assert runtime.check(worker, SPEC) == ()
    runtime.end(worker)
    runtime.end(worker)
    assert not runtime.find(worker)
    assert runtime.memory(worker) is None
    assert [problem.code for problem in runtime.check(worker, SPEC)] == ["SH710"]
    with pytest.raises(Rejected, match="SH710"):
        freeze(runtime, worker, folder)


def test_a_worker_that_came_by_an_image_has_no_command(runtime: PretendRuntime) -> None:
    for command in ((), ("/no/such/program",)):
        with pytest.raises(Stalled, match="SH705"):
            runtime.start(msgspec.structs.replace(SPEC, command=command), runtime.network(SPEC)).resume()
