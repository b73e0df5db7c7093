"""A driver for trying Shunter out without root and without CRIU. It says `pretend` wherever it is named.

A worker is stopped (SIGSTOP) where a real driver dumps it, and its "image" is a note of which stopped process is meant. What it leaves out:

- nothing is copied: an image is of use only on the machine that it was made on, and only as long as the stopped process lives;
- a move changes nothing but who looks after the process: no PID or network namespace, no address that goes along (`mac` is ignored);
- a checkpoint of a worker that runs on gives an image that can't be restored (there is one process), and says so;
- if the agent dies between freeze and thaw, the process stays stopped until a new agent of that node calls `thaw_left_behind`.

What is true to the port: the order of the steps, who may do what when, at most one running copy, and that a held copy can't run before its
source has released it.
"""

import contextlib
import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec
from shunter.model.errors import Problem, Rejected, Unknown

from shunter_agent.runtime import hostfacts
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.network import NoNetwork
from shunter_agent.runtime.port import Dump, Gpus, Live, Network, Process, Uses, WorkerSpec
from shunter_agent.runtime.shelf import Shelf, Standing
from shunter_agent.runtime.starting import Starting

NOTE: Final = "pretend.json"
_STOP_S: Final = 10.0


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a pretended image holds: which stopped process is meant, and the token of the dump."""

    pid: int
    started: int
    token: str
    pretend: bool = True

    @property
    def process(self) -> Process:
        """The process that it is about."""
        return Process(pid=self.pid, started=self.started)


def shared_shelf() -> Path:
    """Where all pretend agents of this machine and user keep their shelf: beside the temporary files."""
    return Path(tempfile.gettempdir()) / f"shunter-pretend-{os.getuid()}"


def _read(folder: Path) -> Note:
    try:
        note = msgspec.json.decode((folder / NOTE).read_bytes(), type=Note)
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

    def __init__(self, note: Note, shelf: Shelf, node: str, dump: Dump) -> None:
        self.dump = dump
        self._note = note
        self._shelf = shelf
        self._node = node

    def _mine(self) -> Standing | None:
        standing = self._shelf.get(self._note.process)
        mine = standing and standing.token == self._note.token and standing.owner == self._node and not standing.over
        return standing if mine else None

    def alive(self) -> bool:
        """See `port.Frozen`."""
        return self._mine() is not None and processes.find(self._note.process)

    def thaw(self) -> None:
        """See `port.Frozen`. The image can't be restored after it. Does nothing when the hold is over. Raises Unknown SH711."""
        with self._shelf.locked():
            standing = self._mine()
            if standing is None:
                return
            self._shelf.put(self._note.process, msgspec.structs.replace(standing, over=True))
        _let_go(self._note.process)

    def release(self) -> None:
        """Give the stopped process to whoever restores the image. It isn't ended: it is the image. Raises Rejected SH708."""
        with self._shelf.locked():
            standing = self._mine()
            if standing is None or not processes.find(self._note.process):
                raise Rejected(_problem("SH708", "the hold is over", "Freeze the worker again if it runs", f"pid {self._note.pid}"))
            self._shelf.put(self._note.process, msgspec.structs.replace(standing, owner=""))


class PretendHeld:
    """Implements `port.Held` for a process that is stopped still."""

    def __init__(self, note: Note, shelf: Shelf, node: str) -> None:
        self.process = note.process
        self._note = note
        self._shelf = shelf
        self._node = node

    def _mine(self) -> Standing | None:
        standing = self._shelf.get(self.process)
        mine = standing and standing.token == self._note.token and standing.holder == self._node
        return standing if mine else None

    def resume(self) -> Process:
        """See `port.Held`. A copy whose source hasn't released it is aborted. Raises Rejected SH708; Unknown SH711."""
        with self._shelf.locked():
            standing = self._mine()
            if standing is None or standing.over or not processes.find(self.process):
                raise Rejected(self._over("the held copy is gone, resumed or aborted", "Restore the image again"))
            if standing.owner:
                self._shelf.put(self.process, msgspec.structs.replace(standing, holder=""))
                raise Rejected(self._over(f"{standing.owner} has not released the worker", "Release it there, then restore again"))
            self._shelf.put(self.process, msgspec.structs.replace(standing, owner=self._node, holder="", over=True))
        _let_go(self.process)
        return self.process

    def _over(self, what: str, remedy: str) -> Problem:
        return _problem("SH708", what, remedy, f"pid {self._note.pid}")

    def abort(self) -> None:
        """Give it back: the image can be restored again, the process stays stopped. Does nothing after a resume or an abort."""
        with self._shelf.locked():
            standing = self._mine()
            if standing is not None:
                self._shelf.put(self.process, msgspec.structs.replace(standing, holder=""))


def _let_go(process: Process) -> None:
    with contextlib.suppress(Rejected):
        _signal(process, signal.SIGCONT)
    if not _await_stopped(process, False):
        raise Unknown(_problem("SH711", "the process doesn't run on after SIGCONT", "Look at it with ps", f"pid {process.pid}"))


class PretendRuntime:
    """Implements `port.Runtime` with signals."""

    name = "pretend"

    def __init__(self, node: str, shelf: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """`node` tells the pretend agents of this machine apart; `shelf` is a folder that they share (None: `shared_shelf`)."""
        self._node = node
        self._shelf = Shelf(shelf or shared_shelf())
        self._clock = clock

    def facts(self) -> dict[str, str]:
        """See `port.Runtime`; `boot` is this boot of this machine, outside of which no pretended image is of use."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {**hostfacts.host_facts(), "runtime": self.name, "boot": f"pretend:{boot}"}

    def gpus(self) -> Gpus:
        """See `port.Runtime`: none, since no GPU is ever touched."""
        return Gpus()

    def needs(self, process: Process, spec: WorkerSpec) -> dict[str, str]:
        """See `port.Runtime`: nothing."""
        return {}

    def uses(self, process: Process, spec: WorkerSpec) -> None:
        """See `port.Runtime`: it stays where it is."""

    def lacking(self, needed: Uses, node: str) -> Sequence[Problem]:
        """See `port.Runtime`: nothing."""
        return ()

    def privileges(self, process: Process) -> None:
        """See `port.Runtime`: what it makes is started anew, by its agent."""
        return

    def network(self, spec: WorkerSpec, process: Process | None = None) -> Network:
        """One that does nothing."""
        return NoNetwork()

    def start(self, spec: WorkerSpec, network: Network) -> Starting:
        """An ordinary child, leader of a session and a process group of its own. Raises Stalled SH705, as its `resume` does."""
        return Starting(spec.command, spec.env, None, own_pids=False)

    def check(self, process: Process, spec: WorkerSpec) -> tuple[Problem, ...]:
        """Nothing but that it lives: any process can be stopped."""
        return () if processes.find(process) else (processes.gone(process.pid),)

    def freeze(
        self, process: Process, spec: WorkerSpec, network: Network, folder: Path, on_frozen: Callable[[float], None]
    ) -> PretendFrozen:
        """See `port.Runtime`. Raises Rejected SH701, SH710."""
        began = time.monotonic()
        note = Note(pid=process.pid, started=process.started, token=str(uuid.uuid4()))
        (folder / NOTE).write_bytes(msgspec.json.encode(note))
        _signal(process, signal.SIGSTOP)
        try:
            if not _await_stopped(process, True):
                raise Rejected(
                    _problem("SH701", "the process doesn't stop", "Look at it with ps; it may wait in the kernel", f"pid {process.pid}")
                )
            frozen_at = self._clock()
            on_frozen(frozen_at)
            with self._shelf.locked():
                self._shelf.put(process, Standing(token=note.token, owner=self._node))
        except BaseException:  # a full disk, say: what nobody knows to be stopped nobody would let run again
            with contextlib.suppress(Rejected):
                _signal(process, signal.SIGCONT)
            raise
        return PretendFrozen(note, self._shelf, self._node, Dump(frozen_at=frozen_at, dump_s=time.monotonic() - began))

    def settle(self, process: Process, network: Network, stopped: Collection[int] | None, waited_s: float) -> None:
        """See `port.Runtime`. `thaw_left_behind` has let it run already; a process that isn't this node's any more is gone from it.

        Raises Rejected SH710."""
        if not self.find(process):
            raise Rejected(processes.gone(process.pid))

    def stillborn(self, process: Process) -> bool:
        """See `port.Runtime`: never, since nothing is ever made anew."""
        return False

    def restore(
        self, spec: WorkerSpec, network: Network, folder: Path, born: Callable[[Process], None] = lambda _process: None
    ) -> PretendHeld:
        """See `port.Runtime`; nothing is born, as the process is there already. Raises Rejected SH709."""
        note = _read(folder)
        if not processes.find(note.process):
            raise Rejected(self._unrestorable(f"its process {note.pid} is not on this machine, or gone", folder))
        with self._shelf.locked():
            standing = self._shelf.get(note.process)
            if standing is None:
                raise Rejected(self._unrestorable("it was made on another machine", folder))
            if standing.over or standing.token != note.token:
                raise Rejected(self._unrestorable("its worker ran on after it was made, and there is no second copy", folder))
            if standing.holder:
                raise Rejected(self._unrestorable(f"a copy of it is held on {standing.holder} already", folder))
            self._shelf.put(note.process, msgspec.structs.replace(standing, holder=self._node))
        return PretendHeld(note, self._shelf, self._node)

    @staticmethod
    def _unrestorable(why: str, folder: Path) -> Problem:
        return _problem("SH709", f"the image can't be restored: {why}", "Use the criu runtime for real images", folder.name)

    def thaw_left_behind(self, folder: Path) -> bool:
        """After a death of this node's agent: what it held of the image in `folder` is given back, and a worker that it had frozen, or was
        about to let run, runs on. False when there was nothing to do. Raises Rejected SH709, Unknown SH711."""
        note = _read(folder)
        with self._shelf.locked():
            standing = self._shelf.get(note.process)
            if standing is None or standing.token != note.token or not processes.find(note.process):
                return False
            mine, held = standing.owner == self._node, standing.holder == self._node
            if not mine and not held:
                return False
            holder = "" if held else standing.holder
            self._shelf.put(note.process, msgspec.structs.replace(standing, holder=holder, over=standing.over or mine))
        if not mine or not _stopped(note.process):
            return held
        _let_go(note.process)
        return True

    def find(self, process: Process) -> bool:
        """See `port.Runtime`. False also for one that another node has, or that was released: for this node it is gone."""
        if not processes.find(process):
            return False
        standing = self._shelf.get(process)
        return standing is None or self._node in (standing.owner, standing.holder)

    def end(self, process: Process) -> None:
        """See `port.Runtime`. Its process group dies with it; a copy that this node only holds is given back. Raises Unknown SH707."""
        with self._shelf.locked():
            standing = self._shelf.get(process)
            if standing is not None and standing.owner != self._node:
                if standing.holder == self._node:
                    self._shelf.put(process, msgspec.structs.replace(standing, holder=""))
                return
        if processes.find(process):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        processes.end(process)
        self._shelf.forget(process)

    def connections(self, process: Process) -> dict[int, int]:
        """See `port.Runtime`: it keeps them, as it stays where it is."""
        return {}

    def memory(self, process: Process) -> int | None:
        """See `port.Runtime`."""
        return processes.memory(process)

    def dumped_at_least(self, process: Process) -> int:
        """See `port.Runtime`."""
        return 0

    def live(self, process: Process) -> Sequence[Live]:
        """See `port.Runtime`."""
        return ()
