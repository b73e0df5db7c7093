"""CUDA on this node, for the runtime: what is there, what speaks against a worker, and its GPU memory out of the way and back."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from shunter.model.errors import Problem, Rejected, Unknown

from shunter_agent.runtime import hostmemory
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.cuda import exclusions, image, problems, seen
from shunter_agent.runtime.cuda.held import CudaHeld, Taken, end_copy
from shunter_agent.runtime.cuda.looking import Looker, present
from shunter_agent.runtime.cuda.preloads import asked, stem
from shunter_agent.runtime.cuda.preloads import of_process as of_preloads
from shunter_agent.runtime.cuda.session import Died, Failed, Session
from shunter_agent.runtime.port import Gpu, Gpus, MemoryLimit, Process, WorkerSpec

LOCK_S: Final = 10.0
"""Seconds that all locks of a worker may take: so long its GPU work may need to end, while the worker still serves."""
HOST_MARGIN: Final = 1.1
CONTEXT: Final = 2 << 30
"""Bytes that the driver may count as a process' own without copying them: its contexts, with their code. Usually several hundred MiB for
each GPU; not measured, so more is allowed for."""


class CudaNode:
    """One per runtime; may be used from several threads."""

    def __init__(
        self,
        *,
        there: bool | None = None,
        session: Callable[[bool], Session] = Session,
        lock_s: float = LOCK_S,
        clock: Callable[[], float] = time.time,
        preloads: Collection[str] = (),
    ) -> None:
        """`there`: whether to look for GPUs at all (None: by the signs of a driver). `lock_s`: see `LOCK_S`. `clock` gives seconds since
        the epoch. `preloads`: libraries that processes with GPUs may have preloaded (see `preloads.stem`)."""
        self._there = present() if there is None else there
        self._session, self._lock_s, self._clock = session, lock_s, clock
        self._looker = Looker(session)
        self._preloads = frozenset(map(stem, preloads))

    def gpus(self) -> Gpus:
        """What there is now. Nothing, without trouble, where there is no driver."""
        return self._looker.gpus() if self._there else Gpus()

    def facts(self) -> dict[str, str]:
        """`driver`, `cuda`, `gpu`, `gpus_all`; empty without GPUs."""
        found = self.gpus()
        if not found.gpus:
            return {}
        models = ", ".join(sorted({gpu.model for gpu in found.gpus}))
        return {"driver": found.driver, "cuda": found.cuda, "gpu": models, "gpus_all": str(len(found.gpus))}

    def processes(self, process: Process) -> list[int]:
        """The tree's processes that have the driver's library loaded."""
        return seen.cuda_processes(processes.tree(process.pid)) if self._there else []

    def memory(self, process: Process) -> int:
        """Bytes that the tree has on GPUs, as far as the driver tells; 0 when it doesn't."""
        pids = self.processes(process)
        used = self._looker.used() if pids else {}
        return sum(used.get(pid, 0) for pid in pids)

    def copied_at_least(self, process: Process) -> int:
        """Bytes of its GPU memory that come into host memory for a dump, at the least; 0 when it can't be told."""
        pids = self.processes(process)
        used = self._looker.used() if pids else {}
        return sum(max(0, used.get(pid, 0) - CONTEXT) for pid in pids)

    def needs(self, process: Process, spec: WorkerSpec) -> dict[str, str]:
        """What a destination must have for this worker; empty when it uses no GPU."""
        pids = self.processes(process)
        if not pids:
            return {}
        found = self.gpus()
        slot = image.own(found.gpus, spec.gpus)
        return {
            "driver": found.driver,
            "cuda": found.cuda,
            "gpu": ", ".join(sorted({gpu.model for gpu in slot})),
            "gpus": str(len(slot)),
            "gpus_all": str(len(found.gpus)),
            "gpu_memory": str(max((_on(gpu, pids) for gpu in slot), default=0)),
        }

    # -- before anything is touched

    def problems(self) -> list[Problem]:
        """SH743 and SH748: what is wrong with the node itself, whatever worker comes. Nothing on one without GPUs."""
        found = self.gpus()
        driver = exclusions.of_driver(found.driver, os.uname().machine) if found.gpus else ()
        return [*([found.trouble] if found.trouble else []), *driver, *(problems.lost(each) for each in found.lost)]

    def check(self, process: Process, spec: WorkerSpec, limits: Sequence[MemoryLimit] | None = None) -> list[Problem]:
        """SH743 to SH746, SH748 and SH763, for a worker that uses a GPU. `limits`: those of its memory; None: by its processes' cgroups."""
        tree = processes.tree(process.pid)
        if not any(seen.devices(pid) for pid in tree) and not self.processes(process):
            return []
        if not self._there:
            return [problems.unusable("no NVIDIA driver is loaded", f"pid {process.pid}")]
        found = self.gpus()
        if found.trouble is not None:
            return [found.trouble] if _uses(tree) else []
        lost = _lost(found, spec)
        if lost:
            return lost
        against = list(exclusions.of_driver(found.driver, os.uname().machine))
        return against or self._of_processes(tree, found, spec, limits)

    def _of_processes(self, tree: Sequence[int], found: Gpus, spec: WorkerSpec, limits: Sequence[MemoryLimit] | None) -> list[Problem]:
        states, failed = self._states(seen.cuda_processes(tree))
        if failed is not None:
            return [failed]
        against = [problems.wrong_state(pid, state) for pid, state in states.items() if state not in ("", "RUNNING")]
        every = [_seen(pid, cuda=bool(states.get(pid)), gpus=sum(pid in gpu.used for gpu in found.gpus)) for pid in tree]
        against += exclusions.of_tree([one for one in every if one.cuda or one.devices], found.driver)
        for one in every:
            if one.cuda and one.devices:
                against += of_preloads(one.pid, asked(one.pid, one.environment), one.maps, self._preloads)
        mig = [gpu for gpu in image.own(found.gpus, spec.gpus) if gpu.mig]
        against += [problems.excluded(f"{gpu.pci} is partitioned (MIG)", "Give it whole GPUs, or drain it", tree[0]) for gpu in mig]
        needed = {pid: size for pid in tree if (size := sum(_on(gpu, [pid]) for gpu in found.gpus))}
        return [*against, *_no_room(tree[0], needed, {pid: hostmemory.limits_of(pid) if limits is None else limits for pid in needed})]

    def _states(self, pids: Sequence[int]) -> tuple[dict[int, str], Problem | None]:
        """What the driver says of each; empty: no CUDA process."""
        session = None
        try:
            session = self._session(True)
            answer = session.ask("states", pids=list(pids))
        except (Failed, Died) as failed:
            return {}, problems.unusable(failed, ", ".join(f"pid {pid}" for pid in pids))
        finally:
            if session is not None:
                session.close()
        return {int(pid): state for pid, state in answer.items()}, None

    # -- at the source

    def take(self, process: Process, spec: WorkerSpec, folder: Path) -> Taken | None:
        """Stop the worker with its GPU memory in host memory, and note in `folder` what that was. None: it has none, and runs.

        Raises Rejected SH740, SH743, SH748: it runs on; Unknown SH742: it doesn't.
        """
        pids = self.processes(process)
        if not pids:
            return None
        found = self.gpus()
        if found.trouble is not None and not _uses(processes.tree(process.pid)):
            return None  # it has the library loaded, and no GPU: nobody needs to be asked
        against = [found.trouble] if found.trouble is not None else _lost(found, spec)
        if against:
            raise Rejected(against[0])
        but = [pid for pid in processes.tree(process.pid) if _is_stopped(pid)]
        size = sum(_on(gpu, pids) for gpu in found.gpus)
        inside = tuple(_inner(pid) for pid in but)
        session = self._open(process)
        taken = Taken(session, process, but, size, self._session, self._clock())
        try:
            frozen = session.about("freeze", process, but=but, lock_s=self._lock_s, size=size)
        except (Failed, Died) as failed:
            self._undone(failed, taken, process)
            raise Rejected(problems.refused(failed, process.pid)) from failed
        if not frozen:  # it has the library loaded, and doesn't use it
            session.close()
            return None
        own = set(image.own(found.gpus, spec.gpus))
        was = tuple(image.Was(uuid=gpu.uuid, model=gpu.model, used=_on(gpu, pids), own=gpu in own) for gpu in found.gpus)
        try:
            image.write(folder, image.GpuImage(driver=found.driver, gpus=was, processes=len(frozen), stopped=inside))
        except OSError:
            self.give_back(taken, process)
            raise
        return taken

    def give_back(self, taken: Taken, process: Process) -> None:
        """After a dump that failed: its GPU memory where it was, and it runs. Raises Unknown SH742 when it doesn't."""
        why = taken.put_back()
        if why:
            raise Unknown(problems.stuck(why, process.pid, ended=False))

    def _undone(self, failed: Failed | Died, taken: Taken, process: Process) -> None:
        """Make sure that what failed has left the worker running. The helper has undone it itself, unless it says otherwise or has died."""
        if isinstance(failed, Failed) and not failed.stuck:
            taken.forget()
            return
        self.give_back(taken, process)

    def _open(self, process: Process) -> Session:
        try:
            session = self._session(True)
            session.ask("ready")
        except (Failed, Died) as failed:
            raise Rejected(problems.refused(failed, process.pid)) from failed
        return session

    def settle(self, process: Process, but: Collection[int]) -> None:
        """Of a worker that an agent before this one left: what is missing of its GPU memory is given back, and it runs; but for `but`,
        which were stopped before. Nobody may trace it. Raises Unknown SH742: it doesn't run, and may later."""
        if not self.processes(process):
            return
        session = None
        try:
            session = self._session(True)
            session.about("thaw", process, but=list(but), size=processes.memory(process) or 0)  # where its GPU memory is now
        except (Failed, Died) as failed:
            raise Unknown(problems.stuck(str(failed), process.pid, ended=False)) from failed
        finally:
            if session is not None:
                session.close()

    # -- at the destination

    def expect(self, spec: WorkerSpec, folder: Path) -> "Restoring | None":
        """Be ready for a copy whose image is in `folder`. None: it has no GPU memory. Raises Rejected SH741, SH743, SH747."""
        try:
            of = image.read(folder)
        except (OSError, msgspec.DecodeError) as error:
            raise Rejected(problems.unfit(f"the image's {image.GPUS} can't be read: {error}", spec.worker)) from error
        if of is None:
            return None
        found = self.gpus()
        if found.trouble is not None or not self._there:
            raise Rejected(found.trouble or problems.unusable("no NVIDIA driver is loaded", spec.worker))
        if found.driver != of.driver:
            raise Rejected(problems.unfit(f"the image needs GPU driver {of.driver!r}, this node has {found.driver!r}", spec.worker))
        try:
            pairs = image.pairs(of, found.gpus, spec.gpus)
        except image.Unfit as unfit:
            raise Rejected(problems.unfit(str(unfit), spec.worker)) from unfit
        try:
            return Restoring(self._session(True), of, pairs, spec)
        except Died as died:
            raise Rejected(problems.not_restored(died, spec.worker)) from died

    def close(self) -> None:
        """End what looks at the GPUs."""
        self._looker.close()


class Restoring:
    """A helper that waits for a copy, watches over it, and gives it its GPU memory."""

    def __init__(self, session: Session, of: image.GpuImage, pairs: Sequence[tuple[str, str]], spec: WorkerSpec) -> None:
        self._session, self._image, self._pairs, self._spec = session, of, pairs, spec

    def guard(self, process: Process) -> None:
        """From here on the copy dies if the agent does, also once CRIU has let it go. Raises Rejected SH741."""
        try:
            self._session.about("guard", process)
        except (Failed, Died) as failed:
            raise Rejected(problems.not_restored(failed, self._spec.worker)) from failed

    def revive(self, process: Process) -> CudaHeld:
        """The copy, stopped, with its GPU memory in place. Raises Rejected SH741: it is ended; Unknown SH707."""
        try:
            pairs = [list(pair) for pair in self._pairs]
            self._session.about("revive", process, count=self._image.processes, pairs=pairs, size=self._image.used)
        except (Failed, Died) as failed:
            end_copy(self._session, process)
            raise Rejected(problems.not_restored(failed, self._spec.worker)) from failed
        stay = set(self._image.stopped)
        return CudaHeld(self._session, process, [pid for pid in processes.tree(process.pid) if _inner(pid) in stay])

    def close(self) -> None:
        """No copy came, or it is dead."""
        self._session.kill()


def _no_room(root: int, needed: Mapping[int, int], limits: Mapping[int, Sequence[MemoryLimit]]) -> Iterator[Problem]:
    """What the driver takes out of GPUs is the process' own memory from then on, and counts in its cgroups."""
    size, free = sum(needed.values()), hostmemory.available()
    if free is not None and free < size * HOST_MARGIN:
        yield problems.no_host_memory(size, free, root)
    short = hostmemory.shortest(needed, limits, HOST_MARGIN)
    if short is not None:
        size, limit = short
        yield problems.no_host_memory(size, limit.left, root, limit.path)


def _uses(pids: Sequence[int]) -> bool:
    return any(seen.devices(pid) for pid in pids)


def _on(gpu: Gpu, pids: Sequence[int]) -> int:
    return sum(gpu.used.get(pid, 0) for pid in pids)


def _lost(found: Gpus, spec: WorkerSpec) -> list[Problem]:
    """SH748 when a GPU of the worker doesn't answer."""
    missing = [address for address in spec.gpus if address not in {gpu.pci for gpu in found.gpus}]
    if missing:
        return [problems.lost(f"{', '.join(missing)}: {'; '.join(found.lost) or 'the driver does not show it'}", spec.worker)]
    return [problems.lost("; ".join(found.lost), spec.worker)] if found.lost and not spec.gpus else []


def _seen(pid: int, *, cuda: bool, gpus: int) -> exclusions.Seen:
    files, mapped = seen.open_files(pid), seen.maps(pid)
    return exclusions.Seen(
        pid=pid,
        cuda=cuda,
        devices=seen.devices(pid),
        files=files,
        maps=mapped,
        environment=seen.environment(pid) if cuda else {},
        gpus=gpus,
    )


def _is_stopped(pid: int) -> bool:
    found = processes.stat(pid)
    return found is not None and found.state == "T"


def _inner(pid: int) -> int:
    """What a process calls itself in its own PID namespace."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(text.partition("NSpid:")[2].split("\n", 1)[0].split()[-1])
