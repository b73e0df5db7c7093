"""Who looks on while `at_every_step` breaks things: one for copies that run at once, and a client that checks each token."""

import asyncio
import contextlib
import sys
import threading
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "local-fleet"))
from clients import Stream, stream
from shunter.model.ids import WorkerId
from tokens import weights

WORKER: Final = WorkerId("decode-0")
ADDRESS: Final = "10.77.0.111:9000"
WEIGHTS_MB: Final = 8
PARKED_S: Final = 600.0
"""How long the client waits for a token: while the worker is in an image there is none."""
_SIGKILL: Final = 1 << 8
"""In the masks of pending signals."""


class Watcher(threading.Thread):
    """Looks for two copies of the worker that aren't stopped, all the time."""

    def __init__(self) -> None:
        super().__init__(name="watcher", daemon=True)
        self.worst, self.looks = 0, 0
        self._end = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        while not self._end.wait(0.03):
            self.worst, self.looks = max(self.worst, len(running())), self.looks + 1

    def stop(self) -> None:
        """End it."""
        self._end.set()
        self.join()


def copies() -> list[int]:
    """Processes of the worker on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"--id" in words and WORKER.encode() in words:
                found.append(int(path.parent.name))
    return found


def running() -> list[int]:
    """Those of them that run free: not stopped, not held by CRIU (which traces a process until it lets it go), not being killed."""
    found = []
    for pid in copies():
        with contextlib.suppress(OSError, KeyError):
            says = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
            killed = (int(says["SigPnd"], 16) | int(says["ShdPnd"], 16)) & _SIGKILL
            if says["State"].split()[0] not in "tTZX" and int(says["TracerPid"]) == 0 and not killed and not _exiting(pid):
                found.append(pid)
    return found


def _exiting(pid: int) -> bool:
    """Its own code won't run any more (PF_EXITING in the kernel's flags)."""
    return bool(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]) & 0x4)


class Client(threading.Thread):
    """One client that streams for as long as it is there."""

    def __init__(self) -> None:
        super().__init__(name="client", daemon=True)
        self.seen = Stream("session-0", ADDRESS, 10**9)

    def run(self) -> None:
        """See `clients.stream`."""
        asyncio.run(stream(self.seen, weights(WEIGHTS_MB << 20), PARKED_S))

    def wrong(self) -> str:
        """What no client may see; empty when all is well."""
        seen = self.seen
        lost, more, bad = seen.lost, seen.duplicated, seen.corrupt
        return seen.error or ("" if not lost + more + bad else f"{lost} tokens lost, {more} twice, {bad} wrong")
