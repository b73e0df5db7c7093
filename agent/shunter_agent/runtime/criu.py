"""The driver that freezes, dumps and restores workers with CRIU.

Both directions are a two-phase commit (see docs/decisions/0005): a dump stops at CRIU's `post-dump`, whole and undoable; a restore stops at
`post-restore`, complete and not yet running. If the agent dies there, CRIU puts things back by itself.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem, Rejected, Retry, Unknown

from shunter_agent.runtime import (
    canary,
    connections,
    filling,
    holds,
    hostfacts,
    leftbehind,
    live,
    locktables,
    preflight,
    privileges,
    swrk,
    uses,
)
from shunter_agent.runtime import criu_rpc_pb2 as rpc
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.cuda.held import CudaFrozen, Taken
from shunter_agent.runtime.cuda.node import CudaNode
from shunter_agent.runtime.namespaces import become_subreaper
from shunter_agent.runtime.network import NoNetwork, Uplink, WorkerNetwork
from shunter_agent.runtime.port import Dump, Frozen, Gpus, Held, Network, Privileges, Process, Uses, WorkerSpec
from shunter_agent.runtime.starting import Starting

OLDEST: Final = (4, 2)
"""Older releases can't dump sockets on kernels from 6.16 on, though their own check says that all is well."""
GHOST_LIMIT: Final = 1 << 30
"""Bytes of an unlinked but open file that go into an image."""
FREEZE_LIMIT_S: Final = 30
"""Seconds that CRIU may take to bring all tasks to a stop."""


@dataclass(frozen=True)
class Way:
    """How CRIU gets to where a worker lives. Without anything else said: it is started in the worker's network namespace."""

    place: int | swrk.Place | None
    options: Mapping[str, object] = field(default_factory=dict)
    """What it is told besides."""
    descriptors: Sequence[int] = ()
    """What it is given besides its socket."""
    known: Callable[[int], int] = lambda pid: pid
    """The agent's pid for one that CRIU names. Raises Rejected SH710 when it is gone."""
    contained: bool = False
    """It lives in a container, which is dumped with its mounts."""


class CriuRuntime:
    """Implements `port.Runtime`. One per agent; may be used from several threads."""

    name = "criu"

    def __init__(
        self,
        criu: Path,
        uplink: Uplink,
        clock: Callable[[], float] = time.time,
        cuda: CudaNode | None = None,
        tell: Callable[[Problem], None] = lambda _problem: None,
    ) -> None:
        """Make this process the reaper of its workers' orphans. `clock` gives seconds since the epoch; `cuda` is for the node's GPUs;
        `tell` hears of what is slower than it has to be.

        Raises Retry or Rejected SH703 when CRIU is missing, doesn't answer, or is older than 4.2.
        """
        self._criu = criu
        self._uplink = uplink
        self._clock = clock
        self._cuda = cuda or CudaNode(clock=clock)
        self._tell = tell
        self._fills = True
        self._left: dict[int, list[str]] = {}
        self._version = _version(criu)
        become_subreaper()

    def facts(self) -> dict[str, str]:
        """See `port.Runtime`; `criu` is `major.minor`. With GPUs also `driver`, `cuda` and `gpu`."""
        return {**hostfacts.host_facts(), **self._cuda.facts(), "runtime": self.name, "criu": ".".join(map(str, self._version))}

    def gpus(self) -> Gpus:
        """See `port.Runtime`."""
        return self._cuda.gpus()

    def needs(self, process: Process, spec: WorkerSpec) -> dict[str, str]:
        """See `port.Runtime`."""
        return self._cuda.needs(process, spec)

    def privileges(self, process: Process) -> Privileges | None:
        """See `port.Runtime`."""
        return privileges.of_tree(processes.tree(process.pid))

    def canary(self, folder: Path) -> tuple[Problem, ...]:
        """Dump and restore a tiny process with a connected socket, with its image in `folder` (made, and removed after): about 0.3 s.

        Empty: CRIU works on this kernel. `criu check` can't tell that: it says yes where no socket can be dumped. Else SH704, or SH703 when
        there is another one by now that is none or too old.
        """
        try:
            self._version = _version(self._criu)
        except (Rejected, Retry) as error:
            return (error.problem,)
        return canary.canary(self, folder)

    def tool(self) -> object:
        """What tells the CRIU of now from another one in its place; None where there is none."""
        try:
            found = self._criu.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def gpu_problems(self) -> tuple[Problem, ...]:
        """What is wrong with the node's GPUs or their driver: SH743, SH748. Empty where there are none."""
        found = tuple(self._cuda.problems())
        self._cuda.close()
        return found

    def network(self, spec: WorkerSpec, process: Process | None = None) -> Network:
        """See `port.Runtime`. Raises Retry SH706."""
        if not spec.mac:
            return NoNetwork()
        if process is None:
            made = WorkerNetwork.make(spec, self._uplink)
            with contextlib.suppress(Retry):  # else a worker would stand still until it has been started
                made.waiting = swrk.Session(self._criu, made.netns, swrk.LEAST_S)
            return made
        network = WorkerNetwork.adopt(spec, self._uplink, process)
        if not preflight.traced(process.pid):  # else a dump of the agent before this one is still being undone, by CRIU itself
            with contextlib.suppress(OSError):  # a kernel without nftables has no lock left behind either
                locktables.sweep(network.netns)
        return network

    def settle(self, process: Process, network: Network, stopped: Collection[int] | None, waited_s: float) -> None:
        """See `port.Runtime`. Raises Rejected SH710; Retry SH713, SH714; Unknown SH711, SH712, of GPUs SH742."""
        if not processes.find(process):
            raise Rejected(processes.gone(process.pid))
        if stopped is None and not self._cuda.processes(process):
            return  # nobody was at it, and whoever traces or has stopped it may have a reason
        leftbehind.free(process, waited_s)
        for run_id in [None] if network.own else self._left.pop(process.pid, []):
            holds.sweep_lock(network, run_id)
        self._cuda.settle(process, stopped or ())
        if not leftbehind.stillborn(process):  # the end of such a copy must be told to nobody
            connections.wake(processes.tree(process.pid))
        if stopped is not None:
            processes.go_on(process, stopped)
        holds.confirm_running(process)

    def thaw_left_behind(self, folder: Path) -> None:
        """Note whose dump an agent before this one left in `folder`. In a network shared with its node, the lock of a CRIU that died is
        known by nothing else (see `settle`)."""
        pid, run_id = leftbehind.dumped(folder / holds.DUMP_LOG), swrk.run_id(folder / holds.DUMP_LOG)
        if pid is not None and run_id is not None:
            self._left.setdefault(pid, []).append(run_id)

    def stillborn(self, process: Process) -> bool:
        """See `port.Runtime`."""
        return leftbehind.stillborn(process)

    def start(self, spec: WorkerSpec, network: Network) -> Held:
        """See `port.Runtime`. Raises Stalled SH705, as its `resume` does."""
        if isinstance(network, WorkerNetwork):
            network.dismiss()  # nothing is restored into it
        return Starting(spec.command, spec.env, network.netns)

    def check(self, process: Process, spec: WorkerSpec) -> tuple[Problem, ...]:
        """See `port.Runtime`. Codes SH710, SH720 to SH735, SH762, and of GPUs SH743 to SH748, SH763."""
        return (*preflight.check(process, ghost_limit=GHOST_LIMIT), *self._cuda.check(process, spec))

    def uses(self, process: Process, spec: WorkerSpec) -> Uses | None:
        """See `port.Runtime`. Raises OSError."""
        return uses.of_tree(process, own_network=bool(spec.mac), closes=spec.connections == "close")

    def lacking(self, needed: Uses, node: str) -> Sequence[Problem]:
        """See `port.Runtime`. Raises OSError."""
        return uses.lacking(needed, node)

    def freeze(self, process: Process, spec: WorkerSpec, network: Network, folder: Path, on_frozen: Callable[[float], None]) -> Frozen:
        """See `port.Runtime`. Raises Rejected SH701, SH710, of GPUs SH740, SH743, SH748; Retry SH703; Unknown SH712 when CRIU hangs and
        can't be ended, SH742 when the worker can't have its GPU back."""
        if not processes.find(process):
            raise Rejected(processes.gone(process.pid))
        needs = self._cuda.needs(process, spec)
        closes = spec.connections == "close" and not network.own
        taken = self._cuda.take(process, spec, folder)
        if taken is None:
            return self._dump(process, network, folder, on_frozen, closes=closes)
        try:
            inner = self._dump(process, network, folder, lambda _at: on_frozen(taken.frozen_at), closes=closes)
        except BaseException as error:
            self._give_back(taken, process, error)
            raise
        stood_s = max(0.0, inner.dump.frozen_at - taken.frozen_at)
        dump = Dump(frozen_at=taken.frozen_at, dump_s=inner.dump.dump_s + stood_s, needs=needs, privileges=inner.dump.privileges)
        return CudaFrozen(inner, taken, process, dump)

    def _give_back(self, taken: Taken, process: Process, error: BaseException) -> None:
        if isinstance(error, Unknown):  # CRIU hangs, and has it: once it lets go, the helper puts it right
            taken.leave()
        else:
            self._cuda.give_back(taken, process)

    def _dump(self, process: Process, network: Network, folder: Path, on_frozen: Callable[[float], None], *, closes: bool) -> Frozen:
        """`closes`: its connections are left out of the image, and end with it. An image says so itself, and is restored like that."""
        began = time.monotonic()
        frozen_at = self._clock()

        def answer(notify: rpc.Notify) -> bool | None:
            nonlocal frozen_at
            if notify.script == "pre-dump":
                frozen_at = self._clock()  # the last moment at which it certainly runs: a pause is never told shorter than it is
            elif notify.script == "query-ext-files":
                on_frozen(frozen_at)  # the first thing that CRIU says once all tasks stand still
            return None if notify.script == "post-dump" else True

        allowed, stopped = self.privileges(process), processes.stopped(process)
        way = self._way_out(process, network, folder)
        options = {"pid": process.pid, "ghost_limit": GHOST_LIMIT, "timeout": FREEZE_LIMIT_S, "tcp_close": closes, **way.options}
        session = swrk.Session(self._criu, way.place, swrk.patience_s(processes.memory(process) or 0), way.descriptors)
        with _undoing(session, lambda: holds.run_on(session, process, network, swrk.run_id(folder / holds.DUMP_LOG), stopped)):
            try:
                response = _ask(session, rpc.DUMP, folder, holds.DUMP_LOG, options, answer)
            except ConnectionError as error:
                raise Rejected(holds.refused(process, folder, str(error))) from error
            if response.type != rpc.NOTIFY:
                raise Rejected(holds.refused(process, folder))
            for problem in preflight.nested(process, contained=way.contained):  # it stands still: now nothing of that can change any more
                raise Rejected(problem)
            try:
                if isinstance(network, WorkerNetwork):
                    locktables.leave_out(folder)
            except OSError as error:
                raise Rejected(holds.refused(process, folder, str(error))) from error
        dump = Dump(frozen_at=frozen_at, dump_s=time.monotonic() - began, privileges=allowed)
        return holds.CriuFrozen(session, process, network, folder, dump, stopped)

    def _way_out(self, process: Process, network: Network, folder: Path) -> Way:
        """To a worker that is to be dumped into `folder`, where it may leave a note."""
        return Way(network.netns)

    @contextlib.contextmanager
    def _way_in(self, spec: WorkerSpec, network: Network, folder: Path) -> Iterator[Way]:
        """To where the image in `folder` is to live; it lasts until the copy is complete."""
        yield Way(network.netns)

    def restore(self, spec: WorkerSpec, network: Network, folder: Path, born: Callable[[Process], None] = lambda _process: None) -> Held:
        """See `port.Runtime`. Raises Rejected SH702, of GPUs SH741, SH743, SH747; Retry SH703; Unknown SH707 when part of a copy may be
        left."""
        restoring = self._cuda.expect(spec, folder)
        if restoring is None:
            return self._remake(spec, network, folder, born)
        try:
            copy = self._remake(spec, network, folder, born, restoring.guard).resume()  # stopped still, as it was when it was dumped
        except BaseException:
            restoring.close()
            raise
        return restoring.revive(copy)

    def _remake(
        self,
        spec: WorkerSpec,
        network: Network,
        folder: Path,
        born: Callable[[Process], None],
        guard: Callable[[Process], None] = lambda _process: None,
    ) -> holds.CriuHeld:
        with contextlib.ExitStack() as undo:
            with self._way_in(spec, network, folder) as way:
                held = self._made(spec, network, folder, way, born, guard)
                undo.callback(held.abort)
                self._complete(spec, way, held.process)
            undo.pop_all()
        return held

    def _complete(self, spec: WorkerSpec, way: Way, copy: Process) -> None:
        """Do what is left to do once CRIU has made a copy. Raises Rejected SH757."""

    def _made(
        self,
        spec: WorkerSpec,
        network: Network,
        folder: Path,
        way: Way,
        born: Callable[[Process], None],
        guard: Callable[[Process], None],
    ) -> holds.CriuHeld:
        if isinstance(network, WorkerNetwork):  # its image doesn't say that there was a lock; one is left only where the worker came from
            holds.sweep_lock(network, None)
        make = partial(self._made_once, spec, network, folder, way, born, guard)
        loader = filling.begin(folder) if self._fills else None
        if loader is None:
            return make(filling.ByCriu())
        try:
            return make(loader)
        except _Unmade as error:
            held = make(filling.ByCriu())  # where that fails, too, it wasn't for how the memory was loaded
            self._fills = False
            self._tell(filling.given_up(error.problem))
            return held

    def _made_once(
        self,
        spec: WorkerSpec,
        network: Network,
        folder: Path,
        way: Way,
        born: Callable[[Process], None],
        guard: Callable[[Process], None],
        loader: filling.Loader,
    ) -> holds.CriuHeld:
        """Raises _Unmade when CRIU or the loader says no, with nothing left of the copy."""
        made: list[Process] = []

        def answer(notify: rpc.Notify) -> bool | None:
            if notify.pid and not made:
                with contextlib.suppress(Rejected):  # gone again
                    made.append(processes.note(way.known(notify.pid)))  # should CRIU be killed, nobody else ends what it has made
                    born(made[0])
            return None if notify.script == "post-restore" else True

        try:
            patience_s = swrk.patience_s(sum(path.stat().st_size for path in folder.rglob("*")))  # also what was copied ahead
            session = self._restorer(network, way, patience_s)
        except BaseException:
            loader.close()
            raise
        session.closing(loader.close)
        with _undoing(session, lambda: _end_all(made)):
            options = {"rst_sibling": True, "tcp_close": locktables.closes(folder), **loader.options, **way.options}
            try:
                response = _ask(session, rpc.RESTORE, folder, holds.RESTORE_LOG, options, answer)
            except ConnectionError as error:
                raise Rejected(holds.failed(spec, folder, str(error))) from error
            if response.type != rpc.NOTIFY:
                raise _Unmade(holds.failed(spec, folder))
            try:
                loader.finish(patience_s)
            except TimeoutError as error:  # CRIU would wait for the same disk
                raise Rejected(holds.failed(spec, folder, f"its memory can't be loaded: {error}")) from error
            except OSError as error:
                raise _Unmade(holds.failed(spec, folder, f"its memory can't be loaded: {error}")) from error
            copy = processes.note(way.known(response.notify.pid))
            guard(copy)
            return holds.CriuHeld(session, copy, spec, folder)

    def _restorer(self, network: Network, way: Way, silent_s: float) -> swrk.Session:
        """A CRIU in the worker's network: the one that was started with it, if it still waits there."""
        if isinstance(network, WorkerNetwork):
            waiting, there = network.waiting, way.place == network.netns and not way.descriptors
            if there and isinstance(waiting, swrk.Session) and waiting.alive:
                network.waiting = None
                waiting.be_patient(silent_s)
                return waiting
            network.dismiss()
        return swrk.Session(self._criu, way.place, silent_s, way.descriptors)

    def find(self, process: Process) -> bool:
        """See `port.Runtime`."""
        return processes.find(process)

    def end(self, process: Process) -> None:
        """See `port.Runtime`. Raises Unknown SH707."""
        processes.end(process)

    def connections(self, process: Process) -> Mapping[int, int]:
        """See `port.Runtime`. Raises OSError."""
        return connections.moved(processes.tree(process.pid))

    def memory(self, process: Process) -> int | None:
        """See `port.Runtime`. On the host and on GPUs."""
        resident = processes.memory(process)
        return resident + self._cuda.memory(process) if resident is not None else None

    def dumped_at_least(self, process: Process) -> int:
        """See `port.Runtime`. What processes have of their own is all dumped, and GPU memory has become that by then."""
        return processes.own_memory(process) + self._cuda.copied_at_least(process)

    def live(self, process: Process) -> Sequence[live.LiveMemory]:
        """See `port.Runtime`."""
        return live.memories(process)


class _Unmade(Rejected):
    """A restore that was refused, or whose memory couldn't be loaded."""


def _end_all(made: list[Process]) -> None:
    for one in made:
        processes.end(one)


@contextlib.contextmanager
def _undoing(session: swrk.Session, also: Callable[[], None]) -> Iterator[None]:
    """Whatever fails: CRIU ends first, then `also` is called. Where that raises, as it couldn't be undone, that is what there is to say."""
    try:
        yield
    except BaseException:
        session.close()
        also()
        raise


def _ask(
    session: swrk.Session, kind: rpc.RequestType, folder: Path, log: str, values: Mapping[str, object], answer: swrk.Answer
) -> rpc.Response:
    (folder / log).unlink(missing_ok=True)  # an earlier attempt's reasons are not this one's
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return session.ask(rpc.Request(type=kind, opts=swrk.options(descriptor, log, values)), answer)
    finally:
        os.close(descriptor)


def _version(criu: Path) -> tuple[int, int]:
    """Major and minor. Raises Retry or Rejected SH703."""
    found = swrk.version(criu)
    if found < OLDEST:
        this, least = (".".join(map(str, version)) for version in (found, OLDEST))
        raise Rejected(
            Problem(
                code="SH703",
                what=f"CRIU {this} is older than {least}, and can't dump sockets on newer kernels",
                remedy="Install a newer one with scripts/install-criu",
                subject=str(criu),
            )
        )
    return found
