"""The two points at which CRIU stands and waits: a worker that is dumped but not yet ended, a copy that is restored but doesn't run yet."""

import contextlib
import time
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem, Rejected, Unknown

from shunter_agent.runtime import connections, leftbehind, locktables, preflight, swrk
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.port import Dump, Network, Process, WorkerSpec

DUMP_LOG: Final = "dump.log"
RESTORE_LOG: Final = "restore.log"
_THAW_S: Final = 10.0


def refused(process: Process, folder: Path, seen: str = "") -> Problem:
    """SH701, with the reason from CRIU's log in `folder`, after what was `seen` of CRIU itself."""
    why = _why(seen, folder / DUMP_LOG)
    return Problem(
        code="SH701",
        what=f"the dump failed, and the worker runs on: {why}",
        remedy=f"See {DUMP_LOG} in the image's folder, and what preflight says of the worker",
        subject=f"pid {process.pid}",
    )


def failed(spec: WorkerSpec, folder: Path, seen: str = "") -> Problem:
    """SH702, with the reason from CRIU's log in `folder`, after what was `seen` of CRIU itself."""
    why = _why(seen, folder / RESTORE_LOG)
    return Problem(
        code="SH702",
        what=f"the restore failed, and no copy is left: {why}",
        remedy=f"The image is as it was. See {RESTORE_LOG} in its folder, or restore it on a node like the one that it came from",
        subject=spec.worker,
    )


def _why(seen: str, log: Path) -> str:
    return "; ".join(part for part in (seen, swrk.reasons(log)) if part) or "CRIU gave no reason"


def run_on(session: swrk.Session, process: Process, network: Network, run_id: str | None, but: frozenset[int]) -> None:
    """After a dump that failed and whose `session` is closed: nothing of it may keep the worker. `but` were stopped before it began.

    Raises Unknown SH712 when CRIU can't be ended: the worker may stand still for as long as that lasts.
    """
    put_back(process, network, run_id, but)
    if session.alive:
        raise Unknown(leftbehind.undying(session.pid, process))


def confirm_running(process: Process) -> None:
    """Wait until nobody traces a worker that was let go. Raises Unknown SH711 when it isn't free in time, or is dead or about to be."""
    until = time.monotonic() + _THAW_S
    while preflight.traced(process.pid) and time.monotonic() < until:
        time.sleep(0.001)
    if not processes.find(process) or preflight.traced(process.pid) or processes.doomed(process):
        raise Unknown(
            Problem(
                code="SH711",
                what=f"the worker was let go after its dump, but process {process.pid} doesn't run",
                remedy="Look at it with ps; if it is dead, restore it from the image just taken",
                subject=f"pid {process.pid}",
            )
        )


def put_back(process: Process, network: Network, run_id: str | None, but: frozenset[int]) -> None:
    """Undo what a CRIU that couldn't do so itself has done to a worker: to its network, its connections, and to all of it that was not
    stopped before (`but`). As `sweep_lock`."""
    sweep_lock(network, run_id)
    connections.wake(processes.tree(process.pid))
    processes.go_on(process, but)


def sweep_lock(network: Network, run_id: str | None) -> None:
    """Delete the network lock that a dump may have left behind. `run_id` is CRIU's of that dump, None when its log doesn't say.

    In a worker's own network any lock is its own; in a shared one only the lock with this run id is touched.
    """
    if network.own or run_id:
        with contextlib.suppress(OSError):  # no nftables in this kernel: then there was no lock either
            locktables.sweep(network.netns, None if network.own else run_id)


def _over(process: Process, what: str, remedy: str) -> Rejected:
    return Rejected(Problem(code="SH708", what=what, remedy=remedy, subject=f"pid {process.pid}"))


class CriuFrozen:
    """Implements `port.Frozen`: CRIU waits for an answer to `post-dump`."""

    def __init__(
        self, session: swrk.Session, process: Process, network: Network, folder: Path, dump: Dump, but: frozenset[int] = frozenset()
    ) -> None:
        """`but` were stopped by a signal before the dump, and stay so."""
        self.dump = dump
        self._session = session
        self._process = process
        self._network = network
        self._but = but
        self._run_id = swrk.run_id(folder / DUMP_LOG)  # now, since the folder may get another name while the hold lasts
        self._open = True

    def alive(self) -> bool:
        """See `port.Frozen`. A hold that is found lost because CRIU died is cleaned up: the worker runs then, but its network is locked."""
        if self._open and not self._session.alive:
            self._end(None)
        return self._open and processes.find(self._process)

    def _end(self, answer: bool | None) -> None:
        self._open = False
        if answer is not None:
            with contextlib.suppress(OSError):  # CRIU is dead: what became of the worker is seen at the worker
                self._session.answer(answer)
        self._session.close()
        if answer is not True:
            put_back(self._process, self._network, self._run_id, self._but)

    def thaw(self) -> None:
        """See `port.Frozen`. Does nothing after a thaw. Raises Unknown SH711."""
        if self._open:
            self._end(False)
        confirm_running(self._process)

    def release(self) -> None:
        """See `port.Frozen`. Raises Rejected SH708 when the hold is over, so that the worker runs; Unknown SH707."""
        if not self.alive():
            raise _over(
                self._process,
                "the hold is over: the worker was thawed or died, and its image is not the newest of it",
                "Freeze it again if it runs",
            )
        self._end(True)
        if not processes.wait_reaped(self._process):
            put_back(self._process, self._network, self._run_id, self._but)  # it lives, and must be neither cut off nor stopped
            raise Unknown(processes.undead(self._process))


class CriuHeld:
    """Implements `port.Held`: CRIU waits for an answer to `post-restore`."""

    def __init__(self, session: swrk.Session, process: Process, spec: WorkerSpec, folder: Path) -> None:
        self.process = process
        self._session = session
        self._spec = spec
        self._folder = folder
        self._open = True
        self._runs = False

    def resume(self) -> Process:
        """See `port.Held`. Raises Rejected SH708 when the copy is dead or was aborted, SH702 when its last steps fail: in both cases it is
        dead. Unknown SH707, however often it is called, for as long as it isn't.
        """
        if not (self._open and self._session.alive and processes.find(self.process)):
            self.abort()
            raise _over(self.process, "the held copy is gone: its hold has ended", "Restore the image again")
        self._open = False
        try:
            success, said = self._session.answer(True).success, ""
        except OSError as error:
            success, said = False, f"{error}; it was letting the copy go, which was ended"
        self._session.close()
        if success and processes.find(self.process):
            self._runs = True
            return self.process
        # neither a yes nor a death: CRIU ended on the way, and the copy may have started
        processes.end(self.process)
        raise Rejected(failed(self._spec, self._folder, said))

    def abort(self) -> None:
        """See `port.Held`. Does nothing once the copy is dead. Raises Rejected SH708 after a resume, Unknown SH707."""
        if self._runs and processes.find(self.process):
            raise _over(self.process, "the copy runs: it was resumed", "End it as a running worker")
        if self._open:
            self._open = False
            with contextlib.suppress(OSError):
                self._session.answer(False)
            self._session.close()
        processes.end(self.process)
