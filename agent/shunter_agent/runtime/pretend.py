"""A driver for trying Shunter out without root and without CRIU. It says `pretend` wherever it is named.

A worker is stopped (SIGSTOP) where a real driver dumps it, and its "image" is a note of which stopped process is meant. What it leaves out:

- nothing is copied: an image is of use only on the machine that it was made on, and only as long as the stopped process lives;
- a move changes nothing but who looks after the process: no PID or network namespace, no address that goes along (`mac` is ignored);
- a checkpoint of a worker that runs on gives an image that can't be restored (there is one process), and says so;
- if the agent dies between freeze and thaw, the process stays stopped: it takes a SIGCONT by hand, or a new agent and `thaw_left_behind`.

What is true to the port: the order of the steps, who may do what when, at most one running copy, and one restore for each released image.
"""

import contextlib
import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec
from shunter.model.errors import Problem, Rejected, Unknown

from shunter_agent.runtime import hostfacts
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.network import NoNetwork
from shunter_agent.runtime.port import Dump, Network, Process, WorkerSpec

NOTE: Final = "pretend.json"
_STOP_S: Final = 10.0
State = Literal["frozen", "released", "thawed", "restored"]
_STATES: Final[tuple[State, ...]] = ("frozen", "released", "thawed", "restored")


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a pretended image holds: which stopped process is meant, and the token under which its state is kept."""

    pid: int
    started: int
    token: str
    pretend: bool = True

    @property
    def process(self) -> Process:
        """The process that it is about."""
        return Process(pid=self.pid, started=self.started)


class Shelf:
    """The state of each pretended dump of this machine, as the suffix of an empty file, so that a rename decides who has it.

    It is beside the images because they are copied, and the one process isn't.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root

    def put(self, token: str) -> None:
        """A new one, `frozen`."""
        (self._root / f"{token}.frozen").touch(mode=0o600)

    def move(self, token: str, before: State, after: State) -> bool:
        """Change its state. False when it isn't in `before`: somebody else was first."""
        try:
            (self._root / f"{token}.{before}").rename(self._root / f"{token}.{after}")
        except FileNotFoundError:
            return False
        return True

    def state(self, token: str) -> State | None:
        """None for a token of another machine."""
        return next((state for state in _STATES if (self._root / f"{token}.{state}").exists()), None)


def _read(folder: Path) -> Note:
    try:
        note = msgspec.json.decode((folder / NOTE).read_bytes(), type=Note)
        uuid.UUID(note.token)  # it becomes a file's name
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise Rejected(
            _problem(
                "SH709", f"the image isn't one of the pretend runtime: {error}", "Restore it on a node whose runtime made it", folder.name
            )
        ) from error
    return note


def _problem(code: str, what: str, remedy: str, subject: str) -> Problem:
    return Problem(code=code, what=f"pretend: {what}", remedy=remedy, subject=subject)


def _signal(process: Process, number: signal.Signals) -> None:
    if not processes.find(process):
        raise Rejected(processes.gone(process.pid))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)  # its own group: `start` made it a session leader


def _stopped(process: Process) -> bool:
    seen = processes.stat(process.pid)
    return seen is not None and seen.state == "T"


def _await_stopped(process: Process, stopped: bool) -> bool:
    until = time.monotonic() + _STOP_S
    while _stopped(process) != stopped:
        if time.monotonic() > until or not processes.find(process):
            return False
        time.sleep(0.001)
    return True


class PretendFrozen:
    """Implements `port.Frozen` for a stopped process."""

    def __init__(self, note: Note, shelf: Shelf, dump: Dump) -> None:
        self.dump = dump
        self._note = note
        self._shelf = shelf

    def alive(self) -> bool:
        """See `port.Frozen`."""
        return self._shelf.state(self._note.token) == "frozen" and processes.find(self._note.process)

    def thaw(self) -> None:
        """See `port.Frozen`. The image can't be restored after it. Does nothing when the hold is over. Raises Unknown SH711."""
        if self._shelf.move(self._note.token, "frozen", "thawed"):
            _let_go(self._note.process)

    def release(self) -> None:
        """Give the stopped process to whoever restores the image. It isn't ended: it is the image. Raises Rejected SH708."""
        if not processes.find(self._note.process) or not self._shelf.move(self._note.token, "frozen", "released"):
            raise Rejected(_problem("SH708", "the hold is over", "Freeze the worker again if it runs", f"pid {self._note.pid}"))


class PretendHeld:
    """Implements `port.Held` for a process that is stopped still."""

    def __init__(self, note: Note, shelf: Shelf) -> None:
        self.process = note.process
        self._note = note
        self._shelf = shelf
        self._open = True

    def resume(self) -> Process:
        """See `port.Held`. Raises Rejected SH708; Unknown SH711."""
        if not self._open or not processes.find(self.process):
            raise Rejected(
                _problem("SH708", "the held copy is gone, resumed or aborted", "Restore the image again", f"pid {self._note.pid}")
            )
        self._open = False
        _let_go(self.process)
        return self.process

    def abort(self) -> None:
        """Give it back: the image can be restored again, the process stays stopped. Does nothing after a resume or an abort."""
        if self._open:
            self._open = False
            self._shelf.move(self._note.token, "restored", "released")


def _let_go(process: Process) -> None:
    with contextlib.suppress(Rejected):
        _signal(process, signal.SIGCONT)
    if not _await_stopped(process, False):
        raise Unknown(_problem("SH711", "the process doesn't run on after SIGCONT", "Look at it with ps", f"pid {process.pid}"))


class PretendRuntime:
    """Implements `port.Runtime` with signals."""

    name = "pretend"

    def __init__(self, shelf: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """`shelf` is a folder that all pretend agents of this machine share (None: one per user beside the temporary files)."""
        self._shelf = Shelf(shelf or Path(tempfile.gettempdir()) / f"shunter-pretend-{os.getuid()}")
        self._clock = clock

    def facts(self) -> dict[str, str]:
        """See `port.Runtime`; `boot` is this boot of this machine, outside of which no pretended image is of use."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {**hostfacts.host_facts(), "runtime": self.name, "boot": f"pretend:{boot}"}

    def network(self, spec: WorkerSpec, process: Process | None = None) -> Network:
        """One that does nothing."""
        return NoNetwork()

    def start(self, spec: WorkerSpec, network: Network) -> Process:
        """An ordinary child, leader of a session and a process group of its own. Raises Stalled SH705."""
        return processes.start(spec.command, spec.env, None, own_pids=False)

    def check(self, process: Process, spec: WorkerSpec) -> tuple[Problem, ...]:
        """Nothing but that it lives: any process can be stopped."""
        return () if processes.find(process) else (processes.gone(process.pid),)

    def freeze(
        self, process: Process, spec: WorkerSpec, network: Network, folder: Path, on_frozen: Callable[[float], None]
    ) -> PretendFrozen:
        """See `port.Runtime`. Raises Rejected SH701, SH710."""
        began = time.monotonic()
        _signal(process, signal.SIGSTOP)
        if not _await_stopped(process, True):
            with contextlib.suppress(Rejected):
                _signal(process, signal.SIGCONT)
            raise Rejected(
                _problem("SH701", "the process doesn't stop", "Look at it with ps; it may wait in the kernel", f"pid {process.pid}")
            )
        frozen_at = self._clock()
        on_frozen(frozen_at)
        note = Note(pid=process.pid, started=process.started, token=str(uuid.uuid4()))
        self._shelf.put(note.token)
        (folder / NOTE).write_bytes(msgspec.json.encode(note))
        return PretendFrozen(note, self._shelf, Dump(frozen_at=frozen_at, dump_s=time.monotonic() - began))

    def restore(self, spec: WorkerSpec, network: Network, folder: Path) -> PretendHeld:
        """See `port.Runtime`. Raises Rejected SH709."""
        note = _read(folder)
        if not processes.find(note.process):
            raise Rejected(self._unrestorable(f"its process {note.pid} is not on this machine, or gone", folder))
        if not self._shelf.move(note.token, "released", "restored"):
            why = {
                "thawed": "its worker ran on after the checkpoint, and there is no second copy",
                "frozen": "its worker is frozen, not released",
                "restored": "it has been restored already",
            }.get(self._shelf.state(note.token) or "", "it was made on another machine")
            raise Rejected(self._unrestorable(why, folder))
        return PretendHeld(note, self._shelf)

    @staticmethod
    def _unrestorable(why: str, folder: Path) -> Problem:
        return _problem("SH709", f"the image can't be restored: {why}", "Use the criu runtime for real images", folder.name)

    def thaw_left_behind(self, folder: Path) -> bool:
        """After a death of the agent: let the process of an image in state `frozen` run on. False when there was nothing to do."""
        note = _read(folder)
        if not processes.find(note.process) or not self._shelf.move(note.token, "frozen", "thawed"):
            return False
        _let_go(note.process)
        return True

    def find(self, process: Process) -> bool:
        """See `port.Runtime`."""
        return processes.find(process)

    def end(self, process: Process) -> None:
        """See `port.Runtime`. Its process group dies with it. Raises Unknown SH707."""
        if processes.find(process):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        processes.end(process)

    def memory(self, process: Process) -> int | None:
        """See `port.Runtime`."""
        return processes.memory(process)
