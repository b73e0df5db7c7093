"""Whether CRIU works on this kernel, found by doing it: two tiny processes with a pipe between them, a connected socket, a thread and a
locked file are dumped, ended and restored."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem, ShunterError

from shunter_agent.runtime import process as processes
from shunter_agent.runtime.namespaces import inside, make_network
from shunter_agent.runtime.port import Process, Runtime, WorkerSpec

_PROGRAM: Final = """
import fcntl, os, signal, socket, sys, threading
signal.alarm(60)  # should the agent die meanwhile
os.chdir(os.path.dirname(sys.argv[1]))  # where CRIU mounts a /proc: two that are dumped at once in one folder would fail
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
served, _ = listener.accept()
out, into = os.pipe()
if os.fork() == 0:
    os.close(into)
    while os.read(out, 1):  # until the other one ends
        pass
    os._exit(0)
threading.Thread(target=threading.Event().wait, daemon=True).start()
lock = open(sys.argv[1] + ".lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
open(sys.argv[1], "w").close()
while True:
    served.sendall(b"x")
    os.write(into, client.recv(1))
"""
_READY_S: Final = 10.0


class _Cage:
    """A network with nothing in it but loopback."""

    own = True

    def __init__(self) -> None:
        self.netns: int | None = make_network()
        inside(self.netns, lambda: subprocess.run(["ip", "link", "set", "lo", "up"], check=True, capture_output=True))

    def connect(self) -> None:
        """Nothing to join."""

    def disconnect(self) -> None:
        """Nothing to leave."""

    def elsewhere(self) -> bool:
        """Nobody to ask."""
        return False

    def destroy(self) -> None:
        """Let it go."""
        if self.netns is not None:
            os.close(self.netns)
            self.netns = None


def canary(runtime: Runtime, folder: Path) -> tuple[Problem, ...]:
    """See `CriuRuntime.canary`."""
    folder.mkdir(mode=0o700, parents=True)
    try:
        with contextlib.closing(_Closing()) as kept:
            _fly(runtime, folder, kept)
    except ShunterError as error:
        return (_sick(str(error.problem)),)
    except (OSError, subprocess.CalledProcessError) as error:
        return (_sick(str(error)),)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ()


class _Closing:
    """The canary's process, as long as there is one, and its network."""

    def __init__(self) -> None:
        self.network = _Cage()
        self.process: Process | None = None

    def close(self) -> None:
        """End both."""
        if self.process is not None:
            processes.end(self.process)
        self.network.destroy()


def _fly(runtime: Runtime, folder: Path, kept: _Closing) -> None:
    ready = folder / "ready"
    spec = WorkerSpec(worker="canary", role="", graph="", engine="", address="", command=(sys.executable, "-c", _PROGRAM, str(ready)))
    kept.process = runtime.start(spec, kept.network).resume()
    _wait_for(ready, kept.process)
    images = folder / "images"
    images.mkdir()
    runtime.freeze(kept.process, spec, kept.network, images, lambda _at: None).release()
    kept.process = runtime.restore(spec, kept.network, images).resume()


def _wait_for(ready: Path, process: Process) -> None:
    until = time.monotonic() + _READY_S
    while not ready.exists():
        if time.monotonic() > until or not processes.find(process):
            raise OSError("the test process didn't come up")
        time.sleep(0.005)


def _sick(why: str) -> Problem:
    return Problem(
        code="SH704",
        what=f"a trial checkpoint of a small process failed on this node: {why}",
        remedy="Install a newer CRIU with scripts/install-criu; no worker should be frozen here until this passes",
    )
