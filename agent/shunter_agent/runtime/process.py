"""Worker processes as the kernel shows them: find, measure, end and reap them. Nothing here knows a checkpoint driver."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec
from shunter.model.errors import Problem, Rejected, Unknown

from shunter_agent.runtime.port import Process

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_STAT: Final = 4096
"""Bytes; the kernel writes a few hundred at once."""
DEATH_S: Final = 30.0
"""Seconds that a killed process may take to be gone: the kernel frees its memory first."""


class Stat(msgspec.Struct, frozen=True):
    """What /proc/PID/stat says: state letter (`Z` zombie, `T` stopped, `t` traced) and parent, session, start in clock ticks since boot,
    and number of threads."""

    pid: int
    state: str
    parent: int
    session: int
    started: int
    threads: int = 1

    @property
    def dead(self) -> bool:
        """All of its threads have ended. The letter is its first thread's alone, which may have ended before the others; until the last
        has, the process can't be reaped either."""
        return self.state in "ZX" and self.threads <= 1


def stat(pid: int) -> Stat | None:
    """None when there is no such process.

    By system calls alone: a tree is found by looking at all processes of a node, before a move and while its worker stands still.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        text = os.read(descriptor, _STAT)
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
    fields = text.rpartition(b")")[2].split()  # the name before it may hold blanks and brackets
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]), int(fields[17]))


def note(pid: int) -> Process:
    """The process `pid` as a journal can keep it. Raises Rejected SH710 when it is gone."""
    seen = stat(pid)
    if seen is None:
        raise Rejected(gone(pid))
    return Process(pid=pid, started=seen.started)


def gone(pid: int) -> Problem:
    """SH710."""
    return Problem(
        code="SH710",
        what="the worker's process is gone",
        remedy="Restore the worker from its newest image, or start it again",
        subject=f"pid {pid}",
    )


def reap(pid: int) -> None:
    """Take the exit status of a dead child, so that its pid becomes free. Does nothing for what isn't a dead child of this process."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def find(process: Process) -> bool:
    """It is alive and the same as when it was noted. A dead child is reaped on the way."""
    seen = stat(process.pid)
    if seen is None or seen.started != process.started:
        return False
    if seen.dead:
        reap(process.pid)
        return False
    return True


def wait_dead(process: Process, deadline_s: float = DEATH_S) -> bool:
    """Wait until it is dead, and reap it. False when it lives on after `deadline_s` seconds."""
    if not find(process):
        return True
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(deadline_s * 1000)
    finally:
        os.close(descriptor)
    return not find(process)


def wait_reaped(process: Process, deadline_s: float = DEATH_S) -> bool:
    """Wait until even its pid is free. False after `deadline_s` seconds: whoever its parent is hasn't reaped it.

    A dead process can't be waited for by anything but its parent, hence the looking again.
    """
    until = time.monotonic() + deadline_s
    if not wait_dead(process, deadline_s):
        return False
    while (seen := stat(process.pid)) is not None and seen.started == process.started:
        reap(process.pid)
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def end(process: Process) -> None:
    """Kill the root of a worker's PID namespace, and with it all in it; wait until it is dead. Raises Unknown SH707."""
    if find(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    if not wait_dead(process):
        raise Unknown(undead(process))


def undead(process: Process) -> Problem:
    """SH707."""
    return Problem(
        code="SH707",
        what=f"process {process.pid} was killed, but it is not dead after {DEATH_S:.0f} s",
        remedy="Look for what it waits for in the kernel (state D in ps); don't run its image anywhere until it is gone",
        subject=f"pid {process.pid}",
    )


def status(pid: int | str, proc: Path = Path("/proc")) -> dict[str, str]:
    """What the kernel says of a process in words, by the names that it has for it. Empty when it is gone."""
    try:
        text = (proc / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: value.strip() for name, _mark, value in (line.partition(":") for line in text.splitlines())}


def tree(root: int) -> list[int]:
    """The pids of a process and all its descendants, root first. Those that end meanwhile are left out."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (seen := stat(int(name))) is not None:
            children.setdefault(seen.parent, []).append(seen.pid)
    found = [root]
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, ()))
    return found


def doomed(process: Process) -> bool:
    """It was killed, and is dead as soon as what it waits for in the kernel lets go of it."""
    told = status(process.pid)
    pending = (int(told.get(name, "0"), 16) for name in ("SigPnd", "ShdPnd"))
    return any(signals & 1 << signal.SIGKILL - 1 for signals in pending)


def stopped(process: Process) -> frozenset[int]:
    """The pids of its tree that are stopped by a signal."""
    found = (stat(pid) for pid in tree(process.pid))
    return frozenset(seen.pid for seen in found if seen is not None and seen.state == "T")


def go_on(process: Process, but: Collection[int]) -> None:
    """Let all of its tree run on that is stopped by a signal, but for these pids."""
    for pid in stopped(process) - frozenset(but):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def memory(process: Process) -> int | None:
    """Resident bytes of its tree, shared pages counted once per process. None when it is gone."""
    if not find(process):
        return None
    total = 0
    for pid in tree(process.pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return total


def own_memory(process: Process) -> int:
    """Bytes that its tree has written, in memory or swapped out, and that are no file's: by the kernel's own counters, which may be behind
    by some MiB. 0 when it is gone."""
    if not find(process):
        return 0
    total = 0
    for pid in tree(process.pid):
        told = status(pid)
        total += sum(int(told[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap") if name in told)
    return total
