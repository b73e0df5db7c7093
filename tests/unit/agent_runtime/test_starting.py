"""Workers that are started natively: nothing of them runs before they are let run, nor without an agent."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from shunter.model.errors import Stalled
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.port import Process
from shunter_agent.runtime.starting import Starting

SLEEP = "import time\nwhile True: time.sleep(0.01)"


def touching(path: Path) -> tuple[str, ...]:
    """The command of a worker that is seen to have run."""
    return (sys.executable, "-Sc", f"open({str(path)!r}, 'w').close()\n{SLEEP}")


def until(found: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not found():
        assert time.monotonic() < end
        time.sleep(0.001)


def opened(proc: Path) -> set[str]:
    found = set()
    for name in os.listdir(proc / "fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(proc / "fd" / name))
    return found


def test_nothing_of_it_runs_before_it_is_let_run(tmp_path: Path) -> None:
    held = Starting(touching(tmp_path / "ran"), {}, None, own_pids=False)
    try:
        assert processes.find(held.process)
        assert str(tmp_path / "ran") not in Path(f"/proc/{held.process.pid}/cmdline").read_text()
        assert held.resume() == held.process
        until((tmp_path / "ran").exists)
        assert processes.find(held.process), "the process that was noted is the worker"
    finally:
        processes.end(held.process)


def test_one_that_is_not_let_run_is_ended(tmp_path: Path) -> None:
    held = Starting(touching(tmp_path / "ran"), {}, None, own_pids=False)
    held.abort()
    held.abort()
    assert (processes.stat(held.process.pid), (tmp_path / "ran").exists()) == (None, False)


def test_it_dies_with_an_agent_that_has_not_let_it_run(tmp_path: Path) -> None:
    agent = (
        "import sys, time\nfrom shunter_agent.runtime.starting import Starting\n"
        f"held = Starting({touching(tmp_path / 'ran')!r}, {{}}, None, own_pids=False)\nprint(held.process.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", agent], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        worker = os.pidfd_open(int(started.stdout.readline()))
        started.kill()
    poll = select.poll()
    poll.register(worker, select.POLLIN)
    assert poll.poll(10_000), "it waits on, for nobody"
    os.close(worker)
    assert not (tmp_path / "ran").exists()


def test_it_is_given_what_it_was_ordered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD", "a=b\udcff\n")
    for name in ("LC_ALL", "LC_CTYPE", "LANG", "LC_NUMERIC"):
        monkeypatch.delenv(name, raising=False)
    command = ("sleep", "100")
    process = Starting(command, {"FLEET": "yes", "EMPTY": ""}, None, own_pids=False).resume()
    try:
        proc = Path(f"/proc/{process.pid}")
        until(lambda: (proc / "environ").read_bytes())
        assert (proc / "cmdline").read_bytes() == b"sleep\x00100\x00"
        expected = {os.fsencode(f"{name}={value}") for name, value in {**os.environ, "FLEET": "yes", "EMPTY": ""}.items()}
        assert set((proc / "environ").read_bytes().split(b"\0")[:-1]) == expected
        until(lambda: opened(proc) == {"/dev/null"})  # what it loads at its beginning it has open for a moment
        assert int(processes.status(process.pid)["SigIgn"], 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0
    finally:
        processes.end(process)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("/no/such/program",), "No such file"),
        (("/etc/passwd",), "Permission denied"),
        (("no-such-program", "x"), "No such file"),
        (("",), "Invalid argument"),
    ],
)
def test_what_cannot_be_run_is_told_and_leaves_nothing(command: tuple[str, ...], why: str) -> None:
    held = Starting(command, {}, None, own_pids=False)
    with pytest.raises(Stalled, match=f"SH705.*{command[0]}: {why}"):
        held.resume()
    assert processes.stat(held.process.pid) is None


@pytest.mark.parametrize(("command", "environment"), [(("sleep", "1\0"), {}), (("sleep", "1"), {"A": "\0"})])
def test_a_byte_0_is_refused(command: tuple[str, ...], environment: dict[str, str]) -> None:
    with pytest.raises(Stalled, match=r"SH705.*byte 0"):
        Starting(command, environment, None, own_pids=False)


def test_one_that_was_killed_at_the_gate_was_not_let_run() -> None:
    held = Starting(("sleep", "100"), {}, None, own_pids=False)
    os.kill(held.process.pid, signal.SIGKILL)
    until(lambda: not processes.find(held.process))
    with pytest.raises(Stalled, match=r"SH705.*ended before"):
        held.resume()


def test_a_command_larger_than_a_pipe_arrives_whole() -> None:
    process: Process = Starting(("sleep", "100"), {f"V{n}": "x" * 1000 for n in range(200)}, None, own_pids=False).resume()
    try:
        until(lambda: b"V199=" in Path(f"/proc/{process.pid}/environ").read_bytes())
    finally:
        processes.end(process)
