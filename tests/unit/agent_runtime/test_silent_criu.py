"""A CRIU that hangs: the agent gives it up, ends it, and leaves no worker standing and no copy behind. The real one hangs in the lab."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shunter.model.errors import Rejected, Unknown
from shunter_agent.runtime import criu as driver
from shunter_agent.runtime import criu_rpc_pb2 as rpc
from shunter_agent.runtime import holds, process, swrk
from shunter_agent.runtime.criu import CriuRuntime
from shunter_agent.runtime.network import NoNetwork, Uplink
from shunter_agent.runtime.port import Process, WorkerSpec
from shunter_agent.runtime.starting import Starting

SPEC = WorkerSpec(worker="w1", role="decode", graph="g", engine="test", address="127.0.0.1:9", command=("sleep", "60"))
VERSION = rpc.Response(type=rpc.VERSION, success=True, version=rpc.Version(major_number=4, minor_number=2)).SerializeToString()
SHORT_S = 0.3


class StandIn:
    """A program that is started as CRIU is, and notes its pid. Each test says what it does with a request before it falls silent."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "criu"
        self._pid = folder / "pid"
        self.does(f"link.send({VERSION!r})\nsys.exit()")

    def does(self, what: str) -> None:
        head = "import os, signal, socket, sys, time\nlink = socket.socket(fileno=int(sys.argv[2]))\nlink.recv(1 << 16)\n"
        note = f"open({str(self._pid)!r}, 'w').write(str(os.getpid()))\n"
        self.path.write_text(f"#!{sys.executable} -SE\n{head}{note}{what}\ntime.sleep(60)\n")
        self.path.chmod(0o755)

    def says(self, script: str, pid: str) -> str:
        """Python for it to send a notification with; `pid` is an expression. (A length, then the message's fields, are protobuf's.)"""
        head = rpc.Response(type=rpc.NOTIFY, success=True).SerializeToString()
        name = rpc.Notify(script=script).SerializeToString()
        varint = f"b'\\x10' + (lambda n: bytes([n & 127 | 128, n >> 7 & 127 | 128, n >> 14 & 127 | 128, n >> 21 & 127]))({pid})"
        return f"body = {name!r} + {varint}\nlink.send({head!r} + bytes([0x2A, len(body)]) + body)"

    @property
    def pid(self) -> int:
        return int(self._pid.read_text())


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    for name in ("LET_GO_S", "CLEAN_S"):
        monkeypatch.setattr(swrk, name, SHORT_S)
    monkeypatch.setattr(swrk, "LEAST_S", 5.0)
    monkeypatch.setattr(driver, "become_subreaper", lambda: None)
    return StandIn(tmp_path)


@pytest.fixture
def impatient(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stand_in
    monkeypatch.setattr(swrk, "LEAST_S", 1.0)


@pytest.fixture
def runtime(stand_in: StandIn) -> CriuRuntime:
    return CriuRuntime(stand_in.path, Uplink(bridge="none"), lambda: 1000.0)


@pytest.fixture
def worker() -> Iterator[Process]:
    started = Starting(SPEC.command, {}, None, own_pids=False).resume()
    yield started
    process.end(started)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "image"
    made.mkdir()
    return made


def runs(worker: Process) -> bool:
    seen = process.stat(worker.pid)
    return seen is not None and seen.state in "RS"


def ended(pid: int) -> bool:
    return process.stat(pid) is None


def freeze(runtime: CriuRuntime, worker: Process, folder: Path) -> holds.CriuFrozen:
    return runtime.freeze(worker, SPEC, NoNetwork(), folder, lambda _at: None)


@pytest.mark.usefixtures("impatient")
def test_one_that_is_silent_in_the_dump_is_ended_and_the_worker_runs(
    stand_in: StandIn, runtime: CriuRuntime, worker: Process, folder: Path
) -> None:
    stand_in.does(f"os.kill({worker.pid}, signal.SIGSTOP)")
    with pytest.raises(Rejected, match=r"SH701 .*runs on: CRIU said nothing for 1 s, and was ended"):
        freeze(runtime, worker, folder)
    assert (runs(worker), ended(stand_in.pid)) == (True, True)


@pytest.mark.usefixtures("impatient")
def test_what_was_stopped_before_the_dump_stays_stopped(stand_in: StandIn, runtime: CriuRuntime, worker: Process, folder: Path) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
    stand_in.does("")
    with pytest.raises(Rejected, match="SH701"):
        freeze(runtime, worker, folder)
    seen = process.stat(worker.pid)
    assert seen is not None
    assert seen.state == "T"


@pytest.mark.parametrize("last", ["", "link.recv(1 << 16)", "link.close()"], ids=["deaf", "hears", "hangs up"])
def test_one_that_is_silent_when_the_worker_is_let_go_is_ended(
    stand_in: StandIn, runtime: CriuRuntime, worker: Process, folder: Path, last: str
) -> None:
    stand_in.does(f"os.kill({worker.pid}, signal.SIGSTOP)\n{stand_in.says('post-dump', str(worker.pid))}\n{last}")
    frozen = freeze(runtime, worker, folder)
    frozen.thaw()
    assert (runs(worker), ended(stand_in.pid), frozen.alive()) == (True, True, False)


def test_one_that_is_silent_in_the_release_leaves_it_open_and_the_worker_running(
    stand_in: StandIn, runtime: CriuRuntime, worker: Process, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "wait_reaped", lambda _process: False)
    stand_in.does(f"os.kill({worker.pid}, signal.SIGSTOP)\n{stand_in.says('post-dump', str(worker.pid))}")
    frozen = freeze(runtime, worker, folder)
    with pytest.raises(Unknown, match="SH707"):
        frozen.release()
    assert (runs(worker), ended(stand_in.pid), frozen.alive()) == (True, True, False)


@pytest.mark.usefixtures("impatient")
def test_one_that_cannot_be_ended_is_no_undone_dump(
    stand_in: StandIn, runtime: CriuRuntime, worker: Process, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swrk, "DEATH_S", 0.05)
    monkeypatch.setattr(swrk.subprocess.Popen, "kill", lambda _self: None)  # as if it waited in the kernel
    sessions: list[swrk.Session] = []
    begin = swrk.Session.__init__

    def note(self: swrk.Session, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        sessions.append(self)

    monkeypatch.setattr(swrk.Session, "__init__", note)
    stand_in.does("")
    with pytest.raises(Unknown, match="SH712"):
        freeze(runtime, worker, folder)
    os.kill(stand_in.pid, signal.SIGKILL)
    sessions[0]._criu.wait()


def test_one_that_is_silent_in_a_restore_leaves_no_copy(
    stand_in: StandIn, runtime: CriuRuntime, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    born = tmp_path / "born"
    copy = f"copy = os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '60')\nopen({str(born)!r}, 'w').write(str(copy))"
    monkeypatch.setattr(swrk, "LEAST_S", 1.0)
    stand_in.does(f"{copy}\n{stand_in.says('setup-namespaces', 'copy')}")
    with pytest.raises(Rejected, match=r"SH702 .*CRIU said nothing for"):
        runtime.restore(SPEC, NoNetwork(), folder)
    left = process.stat(int(born.read_text()))
    assert left is None or left.state == "Z"
    assert ended(stand_in.pid)


@pytest.mark.parametrize("call", ["resume", "abort"])
def test_one_that_is_silent_when_a_copy_is_let_go_leaves_no_copy(
    stand_in: StandIn, runtime: CriuRuntime, worker: Process, folder: Path, call: str
) -> None:
    stand_in.does(stand_in.says("post-restore", str(worker.pid)))
    held = runtime.restore(SPEC, NoNetwork(), folder)
    assert held.process == worker
    if call == "resume":
        with pytest.raises(Rejected, match=r"SH702 .*CRIU said nothing for"):
            held.resume()
    else:
        held.abort()
    assert (process.find(worker), ended(stand_in.pid)) == (False, True)


@pytest.mark.parametrize("fails", ["_complete", "_way_in"])
def test_a_copy_that_cannot_be_completed_is_ended(
    stand_in: StandIn, runtime: CriuRuntime, worker: Process, folder: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Or for whom what was made on the way in can't be removed again."""

    def fail(*_arguments: object) -> None:
        raise RuntimeError("broken")

    @contextlib.contextmanager
    def way_in(*arguments: object) -> Iterator[driver.Way]:
        yield driver.Way(None)
        fail()

    monkeypatch.setattr(runtime, fails, {"_complete": fail, "_way_in": way_in}[fails], raising=False)
    stand_in.does(stand_in.says("post-restore", str(worker.pid)))
    with pytest.raises(RuntimeError):
        runtime.restore(SPEC, NoNetwork(), folder)
    assert (process.find(worker), ended(stand_in.pid)) == (False, True)


def test_one_that_does_not_say_its_version_is_no_usable_one(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swrk, "VERSION_S", SHORT_S)
    stand_in.does("")
    with pytest.raises(Rejected, match=r"SH703 .*said nothing for"):
        CriuRuntime(stand_in.path, Uplink(bridge="none"))
    assert ended(stand_in.pid)


def test_another_one_in_its_place_is_noticed_and_judged_anew(stand_in: StandIn, runtime: CriuRuntime, tmp_path: Path) -> None:
    before = runtime.tool()
    assert (runtime.tool(), runtime.facts()["criu"]) == (before, "4.2")
    older = rpc.Response(type=rpc.VERSION, success=True, version=rpc.Version(major_number=4, minor_number=1)).SerializeToString()
    stand_in.does(f"link.send({older!r})\nsys.exit()")
    assert runtime.tool() != before
    (problem,) = runtime.canary(tmp_path / "canary")
    assert (problem.code, "CRIU 4.1 is older than 4.2" in problem.what) == ("SH703", True)
    stand_in.path.unlink()
    (problem,) = runtime.canary(tmp_path / "canary")
    assert (problem.code, runtime.tool()) == ("SH703", None)


def test_the_patience_grows_with_what_is_dumped_and_has_an_end() -> None:
    assert swrk.patience_s(0) == swrk.LEAST_S
    assert swrk.patience_s(20 * 10**9) == pytest.approx(260)
    assert swrk.patience_s(10**13) == swrk.MOST_S == 600
