"""What a dead agent's helpers left: a worker that is still held by one that hangs, a copy that nobody will ever let run.

Most of them put things back by themselves when their agent dies. One that hangs, is stopped, or died together with its agent doesn't, and
the next agent has nothing but the kernel to tell it so.
"""

import contextlib
import itertools
import os
import re
import select
import signal
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem, Retry, Unknown

from shunter_agent.runtime import process as processes
from shunter_agent.runtime import swrk
from shunter_agent.runtime.port import Process

HELPER: Final = b"shunter_agent.runtime.cuda.helper"
_CRIU: Final = b"criu"
_SWRK: Final = b"swrk"
"""Both are among its words, whatever loads it: it may be run by a dynamic linker of its own."""
_DUMPED: Final = re.compile(r"\bDumping processes \(pid: (\d+)")
_HEAD_LINES: Final = 200
_NO_SIGNALS: Final = ~(1 << signal.SIGKILL - 1 | 1 << signal.SIGSTOP - 1) & (1 << 64) - 1
"""Every signal is blocked that can be. CRIU restores a task so; no program can ask its C library for that, which keeps two for itself."""


def tracers(process: Process) -> frozenset[int]:
    """The pids of whoever traces any thread of its tree."""
    found = set()
    for pid in processes.tree(process.pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                found.add(int(_status(pid, thread)["TracerPid"]))
    return frozenset(found - {0})


def free(process: Process, waited_s: float) -> None:
    """Nobody traces the worker any more. `waited_s`: for how long that has been waited for already.

    A helper that an agent left behind gets as long as it would have had from its agent, and is ended then. Raises Retry SH713 while it has
    time, SH714 while it is somebody else's tool; Unknown SH712 when it can't be ended.
    """
    patience_s = swrk.patience_s(processes.memory(process) or 0)
    for tracer in sorted(tracers(process)):
        if not _ours(tracer):
            raise Retry(_foreign(tracer, process))
        if waited_s < patience_s:
            raise Retry(_busy(tracer, process, patience_s - waited_s))
        _end(tracer, process)


def dumped(log: Path) -> int | None:
    """The pid that a dump with this log was of, as the agent's namespace has it. None when it doesn't say."""
    try:
        with log.open(errors="replace") as lines:
            found = (_DUMPED.search(line) for line in itertools.islice(lines, _HEAD_LINES))
            return next((int(match[1]) for match in found if match), None)
    except OSError:
        return None


def stillborn(process: Process) -> bool:
    """It is a copy that was never let run, and never will be: whoever was to do that is dead."""
    if not processes.find(process) or tracers(process):
        return False
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        threads = os.listdir(f"/proc/{process.pid}/task")
        return all(int(_status(process.pid, thread)["SigBlk"], 16) == _NO_SIGNALS for thread in threads)
    return False


def _status(pid: int, thread: str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines()
    return {name: value.strip() for name, mark, value in (line.partition(":") for line in lines) if mark}


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "gone"


def _ours(pid: int) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return HELPER in words or (_SWRK in words and any(word.rpartition(b"/")[2].startswith(_CRIU) for word in words))
    return False


def _end(tracer: int, process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(tracer)
        try:
            if not _ours(tracer):  # another one has its pid by now
                return
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            if not select.select([descriptor], [], [], swrk.DEATH_S)[0]:
                raise Unknown(undying(tracer, process))
        finally:
            os.close(descriptor)


def undying(tracer: int, process: Process) -> Problem:
    """SH712."""
    return Problem(
        code="SH712",
        what=f"CRIU (process {tracer}) hangs in the dump and can't be ended, and the worker may stand still until it is",
        remedy="Look for what CRIU waits for in the kernel (state D in ps), such as a disk, and mend that; the worker then runs on",
        subject=f"pid {process.pid}",
    )


def _busy(tracer: int, process: Process, left_s: float) -> Problem:
    return Problem(
        code="SH713",
        what=f"a helper (process {tracer}, {_name(tracer)}) of an agent that died still has the worker",
        remedy=f"Nothing to do: it puts the worker back by itself, or is ended in {left_s:.0f} s",
        subject=f"pid {process.pid}",
    )


def _foreign(tracer: int, process: Process) -> Problem:
    return Problem(
        code="SH714",
        what=f"process {tracer} ({_name(tracer)}) traces the worker, and may keep it from running",
        remedy="End that tool, a debugger perhaps; the worker is then shown to the router again",
        subject=f"pid {process.pid}",
    )
