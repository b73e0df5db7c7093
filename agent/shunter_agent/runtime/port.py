"""The port that every checkpoint driver implements. The agent knows this file, never a driver's own names.

All calls block and are made from worker threads. A driver keeps no state that a restart of the agent would need: what must be known
after one is
in the `Process` (which the agent's journal stores) or in the image's folder.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol, runtime_checkable

import msgspec
from shunter.model.errors import Problem
from shunter.model.pod import Pod
from shunter.model.snapshot import Toleration

GPU_FACTS: Final = frozenset({"driver", "cuda", "gpu", "gpus", "gpus_all", "gpu_memory"})
"""Facts that matter to workers with GPUs alone: versions of the driver and of CUDA, the model and number of the slot's GPUs, the number of
all the node's, and the most bytes that the worker has on one of them."""


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as the agent's configuration, journal and image manifests know it.

    `mac` is empty for a worker that shares its node's network; otherwise the worker has a network namespace of its own, with the host
    part of
    `address` and this MAC, and takes both along. `control` is the base URL of its control API, or empty.
    `command` is how it is started natively; empty for a worker that arrived by an image.
    """

    worker: str
    role: str
    graph: str
    engine: str
    address: str
    mac: str = ""
    control: str = ""
    labels: dict[str, str] = {}
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    gpus: tuple[str, ...] = ()
    """PCI addresses (see `notices.xid.address`) of its slot's GPUs on the node that it is on, in order. Empty: all of the node's."""
    linked: bool | None = None
    """Its GPUs, more than one, are in one NVLink domain, and have to be wherever it goes. None: it has one or none, or nobody knows."""
    pod: Pod | None = None
    """The pod that it lives in, and its container there. None: in none."""
    connections: Literal["keep", "close"] = "keep"
    """What becomes of its TCP connections when it leaves its node: they go along, or end once its copy there does, and its clients connect
    anew. Closed are only those of a worker that shares its node's network, whose address stays behind."""
    tolerations: tuple[Toleration, ...] | None = None
    """Taints of nodes that it doesn't mind. None: nobody said."""


class FileUse(msgspec.Struct, frozen=True, kw_only=True):
    """A file, folder or pipe that a worker uses by its path. `mode` is its type and rights, 0 if that isn't known; `bytes` is None where
    its size doesn't last; `build` is the id of what it runs of it, empty where there is none.
    """

    path: str
    mode: int = 0
    bytes: int | None = None
    build: str = ""


class Contained(msgspec.Struct, frozen=True, kw_only=True):
    """What of a worker's container doesn't change while it runs: its `image`, what the kernel's security module calls it (`label`, empty
    without one), and the `points` where something is mounted, but for what is about hardware.
    """

    image: str
    label: str
    points: tuple[str, ...]


class Uses(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker uses of the node that it is on, and has to find where it is restored: `files` by their paths, `addresses` that its
    sockets are bound to. What it takes along isn't in it. `container` is the one that it lives in; None: in none.
    """

    files: tuple[FileUse, ...] = ()
    addresses: tuple[str, ...] = ()
    container: Contained | None = None


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """The root of a worker's process tree as this node sees it. `started` is field 22 of /proc/PID/stat, so that a reused pid isn't
    taken for it.
    """

    pid: int
    started: int


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as its driver shows it. Sizes in bytes; `used` is by process; `pci` as `notices.xid.address` writes it."""

    uuid: str
    model: str
    pci: str
    memory: int
    free: int
    mig: bool = False
    used: dict[int, int] = {}
    domain: str = ""
    """The NVLink domain that it is in: of a fabric of several nodes its name, else the lowest PCI address in it. Empty: not known."""

    def __hash__(self) -> int:
        return hash(self.uuid)


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """A node's GPUs, sorted by PCI address, and its driver's versions (empty without one). `trouble`: why no GPU memory can be taken into
    images here, None where it can, or where there is no driver at all; `lost`: what is said of each GPU that doesn't answer.
    """

    driver: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    trouble: Problem | None = None
    lost: tuple[str, ...] = ()


class MemoryLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that a cgroup sets, by the `path` of its file: the `most` bytes of memory in it, and how many are `left`."""

    path: str
    most: int
    left: int


class Privileges(msgspec.Struct, frozen=True, kw_only=True):
    """What processes are allowed: `capabilities` as bits by their number (capabilities(7)), and whether they are kept from gaining more."""

    capabilities: int
    no_new_privs: bool = False


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """What a dump measured: wall clock of the freeze (seconds since the epoch), seconds of the dump itself."""

    frozen_at: float
    dump_s: float
    needs: dict[str, str] = {}
    """See `Runtime.needs`."""
    privileges: Privileges | None = None
    """See `Runtime.privileges`."""


class Live(Protocol):
    """The memory of one process of a worker that runs. What is read of it may be of any moment, and of different ones."""

    pid: int
    """As an image names it: the process' own idea of its pid."""

    def runs(self) -> "Sequence[tuple[int, int]]":
        """Where a dump would find pages of its own, about: address and number of pages, ascending. Also once it is closed.

        Raises OSError."""
        ...

    def read(self, address: int, into: memoryview) -> bool:
        """Fill `into` from `address` on. False when not all of it is there any more. Raises OSError when the process is gone."""
        ...

    def close(self) -> None:
        """Let go of it. Idempotent."""
        ...


class Frozen(Protocol):
    """A worker that stands still with a complete dump in its image folder. Exactly one of the three ends it; if this process dies, the
    worker runs on.
    """

    dump: Dump

    def thaw(self) -> None:
        """Run on in place. The image folder stays; whether it may be used is the caller's business. Raises Unknown if the worker
        doesn't run after it. Of a hold that was lost it makes sure of that, and does what is missing.
        """
        ...

    def release(self) -> None:
        """End the worker and wait until it is dead. Raises Unknown if that can't be confirmed."""
        ...

    def alive(self) -> bool:
        """The hold still stands: neither thawed, released nor lost."""
        ...


class Held(Protocol):
    """A worker that was restored, or is to be started, before its first instruction. If this process dies before `resume`, it dies too."""

    process: Process

    def resume(self) -> Process:
        """Let it run. Raises Rejected if the copy is dead already, Unknown if it can't be told."""
        ...

    def abort(self) -> None:
        """End it and wait until it is dead. Raises Unknown if that can't be confirmed."""
        ...


class Network(Protocol):
    """A worker's network identity on this node. Made disconnected; the same address must never be connected in two places.

    `own` is False for a worker that shares its node's network; then nothing is done by any of it. `netns` is a descriptor of the network
    namespace that the worker lives in, None for the agent's own. A driver's network and its other calls belong together.
    """

    @property
    def own(self) -> bool:
        """The worker has a network namespace of its own."""
        ...

    @property
    def netns(self) -> int | None:
        """The worker's network namespace as a descriptor that keeps it; None for the agent's own."""
        ...

    def connect(self) -> None:
        """Join the node's network and announce the address. Idempotent. Raises Retry.

        Of a restored worker: right before `Held.resume`, as its first packet tells its peers to go on."""
        ...

    def disconnect(self) -> None:
        """Leave the node's network; the worker's own side stays as it is. Idempotent."""
        ...

    def elsewhere(self) -> bool:
        """While it isn't connected here: another copy of the worker is, to the same network. False when it can't be told. Takes half a
        second."""
        ...

    def destroy(self) -> None:
        """Remove it. Idempotent."""
        ...


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A worker in a container that somebody else has started, where none but its pod knows of it."""

    spec: WorkerSpec
    process: Process


@runtime_checkable
class Housing(Protocol):
    """What a driver can besides that finds workers in pods."""

    def residents(self, but: Collection[str] = ()) -> Sequence[Found]:
        """The workers in this node's pods, but none that was brought there by an order, nor of pods with the uids `but`: to find one
        takes a look at all of the node's cgroups. Raises Retry SH760, Rejected SH751."""
        ...

    def remarks(self, process: Process, spec: WorkerSpec) -> Sequence[str]:
        """What a move would cost the worker that lives in a pod, though it wouldn't fail by it. Empty for others. Raises OSError."""
        ...

    def housed(self, spec: WorkerSpec, pod: Pod) -> WorkerSpec:
        """The worker as it will be in this pod of this node: with the pod's address and GPUs. Raises Rejected SH750, SH751; Retry SH760."""
        ...

    def unfit(self, spec: WorkerSpec, container: Contained, pod: Pod) -> Problem | None:
        """SH757 when a worker of this container can't live in this pod of this node, with the values that differ. Raises as `housed`."""
        ...

    def memory_limits(self, pod: Pod) -> Sequence[MemoryLimit]:
        """Those that hold for who lives in this pod of this node, its container's own first. Raises as `housed`."""
        ...


@runtime_checkable
class Provable(Protocol):
    """What a driver can besides whose work can be tried on a process of no importance."""

    def canary(self, folder: Path) -> tuple[Problem, ...]:
        """Checkpoint and restore a tiny process in `folder`, made and removed. Empty: that works here."""
        ...

    def tool(self) -> object:
        """What tells that by which it is done from another one in its place. None: there is none."""
        ...


class Runtime(Protocol):
    """A way to start, freeze, dump and restore workers."""

    name: str
    """`criu` or `pretend`; goes into every report and record."""

    def facts(self) -> dict[str, str]:
        """What restores on this node must match: kernel, arch, cpu, criu version, driver."""
        ...

    def gpus(self) -> Gpus:
        """The node's GPUs, looked at now."""
        ...

    def needs(self, process: Process, spec: WorkerSpec) -> dict[str, str]:
        """What a node must have for this worker besides `facts`: of its GPUs (see `GPU_FACTS`). Empty for a worker without."""
        ...

    def privileges(self, process: Process) -> Privileges | None:
        """What its tree has or may gain, and a restore has to give back. None: it can't be told, or nothing is given back here."""
        ...

    def network(self, spec: WorkerSpec, process: Process | None = None) -> Network:
        """Make the worker's network identity here, disconnected; or, given the process of a worker that is here already (after a restart of
        the agent), find the one that it lives in, connected or not as it is. Raises Retry, Rejected."""
        ...

    def start(self, spec: WorkerSpec, network: Network) -> Held:
        """Make its process, process 1 of its own PID namespace. Nothing of the worker runs before `resume`: so it can be noted first.

        Raises Retry or Stalled, as that `resume` does where its command can't be run."""
        ...

    def check(self, process: Process, spec: WorkerSpec) -> tuple[Problem, ...]:
        """What would make a dump of this worker fail, in words, without touching it. Empty: nothing is known against it."""
        ...

    def uses(self, process: Process, spec: WorkerSpec) -> Uses | None:
        """What it uses of this node. None: nothing that its restore needs. Raises OSError when it is gone."""
        ...

    def lacking(self, needed: Uses, node: str) -> Sequence[Problem]:
        """What of it this node, of that name, lacks: SH767, SH768. Raises OSError."""
        ...

    def freeze(self, process: Process, spec: WorkerSpec, network: Network, folder: Path, on_frozen: Callable[[float], None]) -> Frozen:
        """Stop and dump it into `folder` (empty, exists); files there grow while it runs. `on_frozen(wall clock)` is called when it
        stands still.

        Raises Rejected (SH7xx) when the dump is refused or fails: the worker then runs on as before."""
        ...

    def restore(self, spec: WorkerSpec, network: Network, folder: Path, born: Callable[[Process], None] = ...) -> Held:
        """Restore the image in `folder`, held. `born` is told the copy's process as soon as there is one, long before it is whole: should
        everybody die who could end it, the next agent has to. It must return at once. Raises Rejected (SH7xx): no copy is left."""
        ...

    def settle(self, process: Process, network: Network, stopped: Collection[int] | None, waited_s: float) -> None:
        """What agents before this one have left of a worker that lives here is put right: it runs, as it did before they touched it.

        `stopped`: pids that somebody else had stopped, and which stay so; None: no dump of it is known to have been under way, and nothing
        that is stopped is continued. `waited_s`: for how many seconds this has been tried in vain. Idempotent.

        Raises Rejected SH710 when it is gone; Retry or Unknown (SH7xx) while it doesn't run, or may not: try again.
        """
        ...

    def stillborn(self, process: Process) -> bool:
        """It is a copy that was never let run, and that nobody is left to let run."""
        ...

    def find(self, process: Process) -> bool:
        """The process is alive and the same as when it was noted."""
        ...

    def end(self, process: Process) -> None:
        """End it and all its children, and wait until they are dead. Idempotent. Raises Unknown if that can't be confirmed."""
        ...

    def connections(self, process: Process) -> Mapping[int, int]:
        """Bytes that each open connection of its tree has moved so far, by some number that it keeps. Empty: none, or nobody can tell.

        Raises OSError when it is gone."""
        ...

    def memory(self, process: Process) -> int | None:
        """Resident bytes of its tree; None if it can't be told."""
        ...

    def dumped_at_least(self, process: Process) -> int:
        """Bytes that a dump of its tree has at the least, whatever else it has; 0 if it can't be told."""
        ...

    def live(self, process: Process) -> Sequence[Live]:
        """The processes of its tree, to copy memory from while they run; close each. Empty: this driver's images aren't made of memory.

        Raises OSError."""
        ...
