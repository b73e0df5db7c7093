import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from shunter.model.errors import Rejected
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.port import Process
from shunter_agent.runtime.starting import Starting

SLEEP = "import time\nwhile True: time.sleep(0.01)"


@pytest.fixture
def sleeper() -> Iterator[Process]:
    started = Starting((sys.executable, "-Sc", SLEEP), {"FLEET": "yes"}, None, own_pids=False).resume()
    yield started
    processes.end(started)


def environment(process: Process) -> bytes:
    """Empty for a moment after the start: the descriptors are closed before the kernel shows the new program's environment."""
    until = time.monotonic() + 10
    while not (found := Path(f"/proc/{process.pid}/environ").read_bytes()) and time.monotonic() < until:
        time.sleep(0.001)
    return found


def test_a_worker_gets_its_environment_a_session_and_nothing_else(sleeper: Process, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        other = Starting((sys.executable, "-Sc", SLEEP), {"FLEET": "yes"}, None, own_pids=False).resume()
    try:
        links = {os.readlink(f"/proc/{other.pid}/fd/{name}") for name in os.listdir(f"/proc/{other.pid}/fd")}
        assert str(tmp_path / "open") not in links
        assert "/dev/null" in links
        assert b"FLEET=yes" in environment(other).split(b"\0")
        assert os.getsid(other.pid) == other.pid
    finally:
        processes.end(other)


def test_another_process_of_the_same_pid_is_not_taken_for_it(sleeper: Process) -> None:
    assert processes.find(sleeper)
    imposter = Process(pid=sleeper.pid, started=sleeper.started + 1)
    assert not processes.find(imposter)
    processes.end(imposter)
    assert processes.memory(imposter) is None
    assert processes.find(sleeper), "ending the imposter must not have touched it"


def test_end_waits_until_it_is_dead_and_reaped(sleeper: Process) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)
    processes.end(sleeper)
    assert processes.stat(sleeper.pid) is None
    processes.end(sleeper)


def test_it_lives_until_its_last_thread_has_ended() -> None:
    """Its first one may end before the others: then it looks like a zombie, runs on, and can't be reaped."""
    leave = 60 if os.uname().machine == "x86_64" else 93  # the system call that ends one thread; Python has none for it
    program = f"import ctypes, threading\nthreading.Thread(target=exec, args=({SLEEP!r},)).start()\nctypes.CDLL(None).syscall({leave}, 0)"
    process = Starting((sys.executable, "-Sc", program), {}, None, own_pids=False).resume()
    until = time.monotonic() + 10
    while (seen := processes.stat(process.pid)) is not None and seen.state != "Z":
        assert time.monotonic() < until
    assert processes.find(process)
    processes.end(process)
    assert processes.stat(process.pid) is None, "dead, but not reaped"


def test_a_dead_child_is_reaped_when_it_is_looked_for(sleeper: Process) -> None:
    os.kill(sleeper.pid, signal.SIGKILL)
    until = time.monotonic() + 5
    while processes.find(sleeper):
        assert time.monotonic() < until
    assert processes.stat(sleeper.pid) is None
    with pytest.raises(Rejected, match="SH710"):
        processes.note(sleeper.pid)


def test_waiting_for_the_living_ends(sleeper: Process) -> None:
    assert not processes.wait_dead(sleeper, 0.02)
    assert not processes.wait_reaped(sleeper, 0.02)
    assert processes.find(sleeper)


def test_memory_is_that_of_the_whole_tree() -> None:
    program = "import os, time\nos.fork()\nkept = bytearray(b'k' * 4096) * 2048\nwhile True: time.sleep(0.01)"
    parent = Starting((sys.executable, "-Sc", program), {}, None, own_pids=False).resume()
    try:
        until = time.monotonic() + 5
        while (processes.memory(parent) or 0) < 2 * 2048 * 4096:
            assert time.monotonic() < until, "two processes with 8 MiB each"
        assert processes.tree(parent.pid)[0] == parent.pid
        assert len(processes.tree(parent.pid)) == 2
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        processes.end(parent)


def test_a_name_with_blanks_and_brackets_is_read_over(tmp_path: Path) -> None:
    odd = tmp_path / "a ) R 1 (b"
    odd.symlink_to("/bin/sleep")
    started = Starting((str(odd), "100"), {}, None, own_pids=False).resume()
    try:
        seen = processes.stat(started.pid)
        assert seen is not None
        assert (seen.parent, seen.session) == (os.getpid(), started.pid)
        assert seen.state in "SRD"
    finally:
        processes.end(started)
