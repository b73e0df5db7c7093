"""A worker that is started natively: there as a process, and not run before somebody has noted it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from shunter.model.errors import Problem, Stalled

from shunter_agent.runtime import gate
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.namespaces import inside
from shunter_agent.runtime.port import Process

_GATE: Final = (sys.executable, "-I", "-S", gate.__file__)


class Starting:
    """Implements `port.Held` for a worker that comes from no image. Exactly one of the two ends it; if this process dies, so does it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], netns: int | None, *, own_pids: bool = True) -> None:
        """Make its process: leader of a session of its own, with /dev/null for its streams and no other descriptor.

        With `own_pids` it is process 1 of its own PID namespace, so that its pids are free wherever it is restored; otherwise it is an
        ordinary child. Its output goes nowhere on purpose: a log that has grown since a dump makes the restore fail. Raises Stalled SH705.
        """
        if not command:
            raise Stalled(_unstartable("it has no command: it came by an image", "Restore it from an image"))
        self._command = tuple(command)
        self._parts = _parts(command, {**os.environ, **environment})
        orders, ours = os.pipe()
        self._orders = open(ours, "wb")  # noqa: SIM115  (open until it is let run, or ended)
        theirs, answers = os.pipe()
        self._answers = open(theirs, "rb")  # noqa: SIM115
        try:
            self.process = _spawn(orders, answers, netns, own_pids=own_pids)
        except OSError as error:
            self._close()
            raise Stalled(self._failed(str(error))) from error
        finally:
            os.close(orders)
            os.close(answers)

    def resume(self) -> Process:
        """See `port.Held`. Raises Stalled SH705: then nothing of it is left, unless Unknown SH707 says otherwise."""
        with self._answers as answers:
            with contextlib.suppress(BrokenPipeError), self._orders as pipe:  # where it has died, it doesn't answer
                pipe.write(len(self._parts).to_bytes(gate.LENGTH, "big") + self._parts)
            said = answers.read()
        if said == gate.GOING:
            return self.process
        processes.end(self.process)
        number = said.removeprefix(gate.GOING)
        raise Stalled(self._failed(os.strerror(int(number)) if number else "its process ended before it could be let run"))

    def abort(self) -> None:
        """See `port.Held`: it never ran. Does nothing after an abort. Raises Unknown SH707."""
        self._close()
        processes.end(self.process)

    def _close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        self._answers.close()

    def _failed(self, why: str) -> Problem:
        return _unstartable(f"{self._command[0]}: {why}", "Check its command, and that the agent runs as root")


def _parts(command: Sequence[str], environment: Mapping[str, str]) -> bytes:
    parts = [str(len(command)), *command, *(f"{name}={value}" for name, value in environment.items())]
    if any("\0" in part for part in parts):
        raise Stalled(_unstartable("its command or environment has a byte 0 in it", "Mend the agent's settings"))
    return b"\0".join(os.fsencode(part) for part in parts)


def _spawn(orders: int, answers: int, netns: int | None, *, own_pids: bool) -> Process:
    """A process at the gate. Raises OSError."""

    def spawn() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*_GATE, str(orders), str(answers)],
            pass_fds=(orders, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    child = inside(netns, spawn, new_pids=own_pids)
    seen = processes.stat(child.pid)  # a child that isn't reaped yet is always there
    child.returncode = 0  # from here on it is known by its Process alone; subprocess must neither warn of it nor reap it
    return Process(pid=child.pid, started=seen.started if seen else 0)


def _unstartable(what: str, remedy: str) -> Problem:
    return Problem(code="SH705", what=f"the worker can't be started: {what}", remedy=remedy)
