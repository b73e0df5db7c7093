"""Real processes that do nothing."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shunter_agent.runtime import process


@contextmanager
def sleeper(*before: str, program: str = "sleep") -> Iterator[int]:
    """The pid of a process that sleeps, started by the command `before` if there is one, once it does."""
    child = subprocess.Popen([*before, program, "600"])
    try:
        until = time.monotonic() + 20
        while not _sleeps(child.pid) and time.monotonic() < until:
            os.sched_yield()
        yield child.pid
    finally:
        child.kill()
        child.wait()


def _sleeps(pid: int) -> bool:
    seen = process.stat(pid)
    return Path(f"/proc/{pid}/comm").read_text() == "sleep\n" and seen is not None and seen.state == "S"
