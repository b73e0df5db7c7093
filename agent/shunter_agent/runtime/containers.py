"""Workers in containers that others have started: dumped from outside, restored into the container of a placeholder.

The dump takes the container's PID and mount namespaces; its mounts are named, and not taken. The restore happens within the placeholder:
its network, host name, IPC, cgroup and, for a PID namespace of the worker's own within it, PID namespace; each mount that the image names
is the placeholder's own of that name. So the kubelet's container is the worker's: its limits hold, its log is the worker's, and its end
ends it. See docs/decisions for why, and for what is left behind.
"""

import contextlib
import errno
import os
import stat
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.pod import CONTAINER, OPERATION, Pod, engine_of, resident

from shunter_agent.runtime import containers_check as checks
from shunter_agent.runtime import containers_files as files
from shunter_agent.runtime import containers_gpus, hostmemory, preflight, swrk
from shunter_agent.runtime import containers_links as links
from shunter_agent.runtime import containers_volumes as volumes
from shunter_agent.runtime import criu_rpc_pb2 as rpc
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.containers_holds import PodFrozen, PodHeld, PodNetwork, tell
from shunter_agent.runtime.containers_mounts import Namespaces, Root, beside, carry_over, within
from shunter_agent.runtime.containers_mounts import of as mounts_of
from shunter_agent.runtime.containers_note import NOTE, Note, differences, label_of, misfit, read
from shunter_agent.runtime.criu import GHOST_LIMIT, CriuRuntime, Way
from shunter_agent.runtime.cuda.node import CudaNode
from shunter_agent.runtime.namespaces import network_of
from shunter_agent.runtime.network import Uplink
from shunter_agent.runtime.pods import Container, Pods, inner_pids, pids_in
from shunter_agent.runtime.port import Contained, Found, Frozen, Held, MemoryLimit, Network, Process, Uses, WorkerSpec

CARRY: Final = 1 << 30
"""Bytes of files that go along with a worker, if nothing else is set."""


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """Where workers can be reached in their pods. 0: not known, or there is none. `node`: the host of those that share their node's
    network."""

    serving: int = 0
    control: int = 0
    node: str = "127.0.0.1"


@dataclass(frozen=True)
class PodWay(Way):
    """`home`: the container that is entered."""

    home: Container | None = None


class ContainerRuntime(CriuRuntime):
    """Implements `port.Runtime` for workers in pods, and is a `CriuRuntime` for all others."""

    def __init__(
        self,
        criu: Path,
        uplink: Uplink,
        pods: Pods,
        stage: Path,
        *,
        carry: int = CARRY,
        keep_streams: bool = False,
        namespaces: Sequence[str] = (),
        ports: Ports = Ports(),  # noqa: B008  (frozen)
        clock: Callable[[], float] = time.time,
        cuda: CudaNode | None = None,
        tell: Callable[[Problem], None] = lambda _problem: None,
    ) -> None:
        """`stage`: a folder of this agent's alone, made if it is missing, for what a restore needs while it lasts. `carry`: bytes of files
        that may go along with a worker. `keep_streams`: refuse to move one that has connections with others. `namespaces`: of which pods
        workers are found; empty: of all. Raises as `CriuRuntime`."""
        super().__init__(criu, uplink, clock, cuda, tell)
        self.pods = pods
        self._stage = stage
        self._carry, self._keep_streams = carry, keep_streams
        self._namespaces, self._ports = namespaces, ports
        _tidy(stage)

    def residents(self, but: Collection[str] = ()) -> Sequence[Found]:
        """See `port.Housing`. A pod whose worker can't be found now is left out: it may just be starting."""
        found = []
        assert self.pods.runtime is not None
        for one in self.pods.runtime.sandboxes():
            who = resident(one.pod.name, one.labels, {})  # other names are for pods that operations make: nobody else is to take one
            if (
                one.pod.uid in but
                or who is None
                or OPERATION in one.labels
                or (self._namespaces and one.pod.namespace not in self._namespaces)
            ):
                continue
            with contextlib.suppress(Rejected):
                home = self.pods.find(msgspec.structs.replace(one.pod, container=one.annotations.get(CONTAINER, "")))
                spec = WorkerSpec(worker=who.id, role=who.role, graph=who.graph, engine=who.engine or _engine(home), address="")
                found.append(Found(spec=self._at(spec, home, one.id), process=home.init))
        return found

    def remarks(self, process: Process, spec: WorkerSpec) -> Sequence[str]:
        """See `port.Housing`."""
        count = links.count_outside(processes.tree(process.pid)) if spec.pod is not None else 0
        return (f"{count} of its connections are with others, and would be reset when the move is committed",) if count else ()

    def housed(self, spec: WorkerSpec, pod: Pod) -> WorkerSpec:
        """See `port.Housing`."""
        assert self.pods.runtime is not None
        home = self.pods.find(pod)
        sandbox = next((one.id for one in self.pods.runtime.sandboxes() if one.pod.uid == pod.uid), "")
        return self._at(spec, home, sandbox)

    def memory_limits(self, pod: Pod) -> Sequence[MemoryLimit]:
        """See `port.Housing`."""
        return hostmemory.limits_at(self.pods.find(pod).cgroup)

    def _at(self, spec: WorkerSpec, home: Container, sandbox: str) -> WorkerSpec:
        assert self.pods.runtime is not None
        host = (self.pods.runtime.address(sandbox) if sandbox else "") or self._ports.node
        serving = spec.address.rpartition(":")[2] or str(self._ports.serving)
        control = urlsplit(spec.control)
        at = control.port or self._ports.control
        return msgspec.structs.replace(
            spec,
            pod=home.pod,
            mac="",
            address=_join(host, serving),
            control=urlunsplit((control.scheme or "http", _join(host, str(at)), control.path, "", "")) if at else "",
            gpus=containers_gpus.of(home, self.gpus().gpus),
        )

    def network(self, spec: WorkerSpec, process: Process | None = None) -> Network:
        """See `port.Runtime`. Of a worker that comes to a pod: its placeholder's. Raises Rejected SH750, SH751; Retry SH706, SH760."""
        if spec.pod is None:
            return super().network(spec, process)
        home = process or self.pods.find(spec.pod).init
        if process is not None:
            with contextlib.suppress(Rejected, Retry):
                placeholder = self.pods.find(spec.pod).init
                if placeholder != process:
                    tell(placeholder)  # the agent before this one may have died before it came to that
        try:
            return PodNetwork(network_of(home.pid))
        except OSError as error:
            raise Rejected(processes.gone(home.pid)) from error

    def check(self, process: Process, spec: WorkerSpec) -> tuple[Problem, ...]:
        """See `port.Runtime`. Codes besides a `CriuRuntime`'s: SH752 to SH756, SH761."""
        if spec.pod is None:
            return super().check(process, spec)
        return (
            *preflight.check(process, ghost_limit=GHOST_LIMIT, contained=True),
            *checks.check(process, spec.pod.uid, carry=self._carry, keep_streams=self._keep_streams),
            *self._cuda.check(process, spec, self._limits(spec.pod)),
        )

    def uses(self, process: Process, spec: WorkerSpec) -> Uses | None:
        """See `port.Runtime`. Its files are its container's, its connections are those of its pod's address."""
        if spec.pod is None:
            return super().uses(process, spec)
        try:
            image, points = self.pods.find(spec.pod).image, volumes.points(volumes.of(process.pid, spec.pod.uid))
        except (Rejected, Retry):  # its own node's runtime doesn't answer: what differs is found at the restore
            return None
        own = tuple(point for point in points if not volumes.of_hardware(point))
        return Uses(container=Contained(image=image, label=label_of(process.pid), points=own))

    def unfit(self, spec: WorkerSpec, container: Contained, pod: Pod) -> Problem | None:
        """See `port.Housing`. Raises Rejected SH750, SH751; Retry SH760."""
        against = differences(container, self.pods.find(pod))
        return _unfit(spec, "; ".join(against)) if against else None

    def _limits(self, pod: Pod) -> Sequence[MemoryLimit] | None:
        with contextlib.suppress(Rejected, Retry):  # its processes may tell as well
            return self.memory_limits(pod)
        return None

    # -- at the source

    def freeze(self, process: Process, spec: WorkerSpec, network: Network, folder: Path, on_frozen: Callable[[float], None]) -> Frozen:
        """See `port.Runtime`. Raises besides Rejected SH754, SH755."""
        if isinstance(network, PodNetwork) and spec.pod is not None:
            self._note(process, spec.pod, network, folder)
        return super().freeze(process, spec, network, folder, on_frozen)

    def _note(self, process: Process, pod: Pod, network: PodNetwork, folder: Path) -> None:
        """What of the container doesn't change while it runs, and the pipes that lead out of it."""
        try:
            opened = [file for pid in processes.tree(process.pid) for file in preflight.open_files(pid)]
            image = self.pods.find(pod).image
            points = volumes.points(volumes.of(process.pid, pod.uid))
            note = Note(
                pod=pod,
                image=image,
                points=tuple(point for point in points if not volumes.of_hardware(point)),
                left_out=tuple(dict.fromkeys(point for point in points if volumes.of_hardware(point))),
                standard=checks.standard(process, opened),
                addresses=links.addresses(network.netns) if network.own else (),
                label=label_of(process.pid),
            )
            (folder / NOTE).write_bytes(msgspec.json.encode(note))
        except OSError as error:
            raise Rejected(_unseen(process, str(error))) from error

    def _way_out(self, process: Process, network: Network, folder: Path) -> Way:
        if not isinstance(network, PodNetwork):
            return super()._way_out(process, network, folder)
        note = read(folder)
        assert note is not None  # `freeze` has just written it

        def place(spawn: Callable[[], "subprocess.Popen[bytes]"]) -> "subprocess.Popen[bytes]":
            spaces = Namespaces(process.pid)
            try:
                if not processes.find(process):
                    raise ProcessLookupError(f"process {process.pid} is gone")
                return beside(spaces, spawn)
            finally:
                spaces.close()

        external = [f"mnt[{point}]:{point}" for point in dict.fromkeys(note.points)]
        options = {**_MOUNTED, "external": external, "skip_mnt": list(note.left_out), "tcp_skip_in_flight": True}
        return Way(place, options, contained=True)

    def _dump(self, process: Process, network: Network, folder: Path, on_frozen: Callable[[float], None], *, closes: bool) -> Frozen:
        frozen = super()._dump(process, network, folder, on_frozen, closes=closes)
        if not isinstance(network, PodNetwork):
            return frozen
        with contextlib.ExitStack() as undo:
            undo.callback(frozen.thaw)
            try:
                self._take_along(process, folder)
                outside = links.Outside(processes.tree(process.pid))
            except (OSError, tarfile.TarError) as error:
                raise Rejected(_unseen(process, str(error))) from error
            undo.pop_all()
        return PodFrozen(frozen, outside, network)

    def _take_along(self, process: Process, folder: Path) -> None:
        note = read(folder)
        assert note is not None  # `freeze` has written it
        found = volumes.of(process.pid, note.pod.uid)
        if found[0].mount.writable and volumes.upper(found) is None:
            raise Rejected(_unseen(process, f"its root is {found[0].mount.kind}, not an overlay that this node's runtime has mounted"))
        with volumes.trees(found, process.pid) as trees:
            over = {*note.points, *note.left_out}
            size = files.size(trees, over)
            if size > self._carry:
                raise Rejected(checks.too_much(size, self._carry, process))
            gone = files.pack(trees, over, folder / files.ARCHIVE)
        (folder / NOTE).write_bytes(msgspec.json.encode(msgspec.structs.replace(note, gone=gone)))

    # -- at the destination

    def restore(self, spec: WorkerSpec, network: Network, folder: Path, born: Callable[[Process], None] = lambda _process: None) -> Held:
        """See `port.Runtime`. Raises besides Rejected SH750, SH757, Retry SH760."""
        if spec.pod is None:
            return super().restore(spec, network, folder, born)
        home = self.pods.find(spec.pod)
        return PodHeld(super().restore(spec, network, folder, born), home.init)

    @contextlib.contextmanager
    def _way_in(self, spec: WorkerSpec, network: Network, folder: Path) -> Iterator[Way]:
        note = read(folder)
        if note is None and not isinstance(network, PodNetwork):
            with super()._way_in(spec, network, folder) as way:
                yield way
            return
        if note is None or spec.pod is None or not isinstance(network, PodNetwork):
            of = "a container" if note else "a worker without a container"
            raise Rejected(_unfit(spec, f"the image is of {of}, and is to go {'into a pod' if spec.pod else 'without one'}"))
        home = self.pods.find(spec.pod)
        against = differences(note, home)
        if against:
            raise Rejected(_unfit(spec, "; ".join(against)))
        with contextlib.ExitStack() as stack:
            try:
                way = self._moved_in(spec, note, home, network, folder, stack)
            except (OSError, ValueError, tarfile.TarError) as error:
                raise Rejected(_unfit(spec, f"its files or its connections can't be put there: {error}")) from error
            yield way

    def _moved_in(
        self, spec: WorkerSpec, note: Note, home: Container, network: PodNetwork, folder: Path, stack: contextlib.ExitStack
    ) -> Way:
        self._stage.mkdir(mode=0o700, parents=True, exist_ok=True)
        top = Path(tempfile.mkdtemp(prefix="root-", dir=self._stage))
        stack.callback(top.rmdir)
        sockets = self._stage / f"{top.name}.img"
        stack.callback(sockets.unlink, missing_ok=True)
        there = links.addresses(network.netns) if network.own else ()
        _closed, unmovable = links.rewrite(folder, sockets, links.moves(note.addresses, there) if network.own else {})
        if unmovable:
            bound = ", ".join(f"{one.address}:{one.port}" for one in unmovable)
            raise Rejected(_unfit(spec, f"it has sockets bound to {bound}, and the placeholder has {', '.join(there) or 'no address'}"))
        _unpack(note, home, folder)
        streams = {target: _stream(home, number) for target, number in note.standard.items() if number >= 0}
        for descriptor in streams.values():
            stack.callback(os.close, descriptor)
        return PodWay(
            _inside(home, top, (folder / links.FILES, sockets)),
            {
                **_MOUNTED,
                "images_dir_fd": -1,  # CRIU, in another PID namespace, couldn't tell whose it is
                "images_dir": str(folder.absolute()),
                "root": str(top),
                "external": [f"mnt[{point}]:{top}{point}" for point in dict.fromkeys(note.points)],
                "inherit_fd": [rpc.InheritFd(key=target, fd=descriptor) for target, descriptor in streams.items()],
                "network_lock": rpc.SKIP,
            },
            tuple(streams.values()),
            lambda pid: outer_pid(home, pid),
            home=home,
        )

    def _complete(self, spec: WorkerSpec, way: Way, copy: Process) -> None:
        if isinstance(way, PodWay) and way.home is not None:
            try:
                _show_hardware(way.home, copy)
            except OSError as error:
                raise Rejected(_unfit(spec, f"what the placeholder shows of its devices can't be shown to the worker: {error}")) from error


_MOUNTED: Final = {"ext_sharing": True, "ext_masters": True}
"""What both directions are told: mounts are whoever's they are."""


def outer_pid(home: Container, pid: int) -> int:
    """The agent's pid for the first process of what CRIU restores in a container, which it calls `pid` there. Raises Rejected SH710."""
    depth = len(inner_pids(home.init.pid)) + 1
    for outer in pids_in(home.cgroup):
        inside = inner_pids(outer)
        if len(inside) == depth and inside[-2:] == [pid, 1]:
            return outer
    raise Rejected(processes.gone(pid))


def _tidy(stage: Path) -> None:
    """Remove what an agent that died in the middle of a restore has left: empty folders, and copies of lists of sockets."""
    if stage.is_dir():
        for entry in os.scandir(stage):
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    os.rmdir(entry)
                else:
                    os.unlink(entry)


def _join(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _engine(home: Container) -> str:
    """By what runs in it."""
    try:
        command = Path(f"/proc/{home.init.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return engine_of(command)


def _inside(home: Container, top: Path, instead: tuple[Path, Path]) -> swrk.Place:
    def place(spawn: Callable[[], "subprocess.Popen[bytes]"]) -> "subprocess.Popen[bytes]":
        spaces = Namespaces(home.init.pid)
        try:
            if not processes.find(home.init):
                raise ProcessLookupError(f"process {home.init.pid} is gone")
            criu = within(spaces, top, instead, spawn)
            try:
                (home.cgroup / "cgroup.procs").write_text(str(criu.pid))  # it has been asked for nothing yet, and has no children
            except OSError:
                criu.kill()
                criu.wait()
                raise
            return criu
        finally:
            spaces.close()

    return place


def _show_hardware(home: Container, copy: Process) -> None:
    """What the placeholder's runtime has mounted for its own devices is mounted for the worker, too. Raises OSError."""
    points = [one.point for one in mounts_of(home.init.pid) if volumes.of_hardware(one.point)]
    if points:
        carry_over(home.init.pid, copy.pid, points)


def _unpack(note: Note, home: Container, folder: Path) -> None:
    points: Sequence[str] = [one.point for one in mounts_of(home.init.pid)]
    root = Root(home.init.pid)
    try:
        files.unpack(folder / files.ARCHIVE, note.gone, root, set(points), (*note.points, *note.left_out))
    finally:
        root.close()


def _stream(home: Container, number: int) -> int:
    """One of a placeholder's standard streams, opened anew, for the worker. Raises OSError: also for a pipe that nobody reads, which a
    container may have put there, and at which an agent would wait for ever; and for what is no pipe: an agent may open devices that the
    container may not.
    """
    way = os.O_RDONLY if number == 0 else os.O_WRONLY
    seen = os.open(f"/proc/{home.init.pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISFIFO(os.fstat(seen).st_mode):
            raise OSError(errno.EINVAL, "the placeholder's standard stream is no pipe", f"/proc/{home.init.pid}/fd/{number}")
        stream = os.open(f"/proc/self/fd/{seen}", way | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(seen)
    os.set_blocking(stream, True)  # the worker's own it was
    return stream


def _unseen(process: Process, what: str) -> Problem:
    return Problem(
        code="SH755",
        what=f"what its container has changed can't be taken along, and the worker runs on: {what}",
        remedy="See what preflight says of the worker; the agent needs hostPID and the rights of deploy/kubernetes",
        subject=f"pid {process.pid}",
    )


def _unfit(spec: WorkerSpec, what: str) -> Problem:
    return misfit(spec.worker, what)
