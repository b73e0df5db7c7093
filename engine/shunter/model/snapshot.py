"""Everything a decision is made on, at one instant: the fleet, samples and notices. Immutable and content-addressed.

What is as it is by default isn't written: a large fleet's digest takes a sixth less, and stays the same when parts get further fields. So a
default, once there, never changes.
"""

import enum
from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from typing import Final, Literal

import msgspec

from shunter.model.canon import InOrder, digest
from shunter.model.errors import Problem
from shunter.model.ids import Digest, ImageId, Incarnation, NodeId, NoticeId, PoolId, SlotId, WorkerId, pool_id
from shunter.model.pod import Pod
from shunter.model.sample import Sample

Role = Literal["prefill", "decode"]


class WorkerState(enum.StrEnum):
    """Where a worker is in its life, as its node's agent reports it."""

    RUNNING = "running"
    FENCED = "fenced"
    """Out of the router's discovery; its in-flight streams go on."""
    FROZEN = "frozen"
    """Stopped in the middle of an operation."""
    PARKED = "parked"
    """No live process; at least one image. It holds no slot."""
    LOST = "lost"
    """Its process is gone, or its node is, and no operation did it."""


Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
"""What a taint does to workers that don't tolerate it, in Kubernetes' words: none comes; none comes where there is another place; none
comes and none stays."""


class Taint(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Something about a node that keeps workers off it. `value` may be empty."""

    key: str
    value: str = ""
    effect: Effect = "NoSchedule"

    @property
    def hard(self) -> bool:
        """It keeps workers off that don't tolerate it, whatever else there is."""
        return self.effect != "PreferNoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class Toleration(msgspec.Struct, metaclass=InOrder, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Taints that a worker doesn't mind, in Kubernetes' words. `key`: empty means any, which only `Exists` can mean. `effect`: empty means
    any. `seconds`: how long it may stay beside a `NoExecute` taint; None: for ever.
    """

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: float | None = None

    def __str__(self) -> str:
        what = f"{self.key}={self.value}" if self.operator != "Exists" and self.value else self.key or "everything"
        return f"{what}{':' if self.effect else ''}{self.effect}"

    def tolerates(self, taint: Taint) -> bool:
        """Whether a worker with it can come to a node with the taint, and stay there. An operator that isn't known tolerates nothing."""
        if self.effect not in ("", taint.effect) or (self.seconds is not None and taint.effect == "NoExecute"):
            return False
        if self.operator == "Exists":
            return self.key in ("", taint.key)
        return self.operator in ("", "Equal") and bool(self.key) and (self.key, self.value) == (taint.key, taint.value)


ZONE_LABEL: Final = "topology.kubernetes.io/zone"
"""The label in which a node's zone stands."""


class Slot(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A group of GPUs that one worker can occupy. `roles` lists what it can serve; `worker` is None when free."""

    id: SlotId
    roles: tuple[Role, ...] = ("prefill", "decode")
    gpu_model: str = ""
    gpus: int = 0
    worker: WorkerId | None = None
    reserved_by: str | None = None
    """The operation that holds it for a worker on its way here, or None."""
    gpu_memory: int | None = None
    """Bytes that a worker could have on each of its GPUs: what is free there while the slot is, else all there are. None: not known."""
    domains: tuple[str, ...] = ()
    """The NVLink domains of its GPUs, sorted: one for all of them, or several, between which there is no NVLink. Empty: not known."""


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A machine. `reachable` is False when its agent didn't answer; its slots and workers are then the last ones known."""

    id: NodeId
    slots: tuple[Slot, ...]
    labels: dict[str, str] = {}
    reachable: bool = True
    seen_at: float = 0.0
    """When its agent last answered; seconds since the epoch."""
    runtime: str = "criu"
    """What checkpoints here: `criu`, or `pretend` (nothing really moves; every record says so)."""
    facts: dict[str, str] = {}
    """What restores must match: `kernel`, `arch`, `cpu`, `criu`, `driver`, `cuda`, as far as they exist here."""
    sources: tuple[str, ...] = ()
    """Where its agent looks for notices: `file`, `aws`, ... Empty: it would never hear that the node is going."""
    problems: tuple[Problem, ...] = ()
    """What is wrong with those sources now: one that is blind may miss a notice."""
    troubles: tuple[Problem, ...] = ()
    """What else is wrong there now, and is tried again by its agent until it isn't: its disk doesn't take an image, say."""
    canaries: dict[str, float] = {}
    """By source, when its agent last heard a notice that was said to try it out; seconds since the epoch."""
    taints: tuple[Taint, ...] = ()
    """What keeps workers off it that don't tolerate it."""
    memory: int | None = None
    """Bytes of its memory that workers could have who come here now. None: not known."""
    disk: int | None = None
    """Bytes that images could have who come here now. None: not known."""
    images_in_memory: bool = False
    """An image that comes here lies in memory too, beside its worker."""
    archive: bool = False
    """Images are sent to the archive from here, and restored from it."""


class Worker(msgspec.Struct, metaclass=InOrder, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One serving-engine instance. `slot` is None while parked or lost."""

    id: WorkerId
    role: Role
    graph: str
    engine: str
    state: WorkerState
    node: NodeId | None
    slot: SlotId | None
    incarnation: Incarnation
    labels: dict[str, str] = {}
    address: str = ""
    """`host:port` of its serving API; it moves with the worker."""
    memory: int | None = None
    """Resident bytes, host and GPU, as the agent last measured; None when it couldn't."""
    gpu_memory: int | None = None
    """The most bytes that it has on one GPU; None: none, or not known."""
    tolerations: tuple[Toleration, ...] | None = None
    """Taints that it doesn't mind. None: nobody said."""
    pod: Pod | None = None
    """The pod that it lives in, or was in when it was lost; None: in none, as on plain hosts, or while it is parked."""
    pinned: str = ""
    """Why nothing can be done with it where it is, whatever policies want, as a sentence; empty: nothing is known against it."""
    doubt: str = ""
    """Why nothing that it computed is to be trusted, nor an image that is taken of it; empty: nothing is known against it."""
    left_at: int | None = None
    """When it was first seen lost with a pod that went for its controller's sake, so that nobody brings it back; whole seconds since the
    epoch. None: it isn't."""

    @property
    def pool(self) -> PoolId:
        """The pool that it serves in."""
        return pool_id(self.graph, self.role)


class Image(msgspec.Struct, metaclass=InOrder, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A checkpoint of one worker, and the nodes that hold a whole, verified copy. There may be none, when the archive has it."""

    id: ImageId
    worker: WorkerId
    incarnation: Incarnation
    taken_at: float
    bytes: int
    nodes: tuple[NodeId, ...]
    role: Role
    graph: str
    engine: str
    facts: dict[str, str] = {}
    pause: float | None = None
    """Seconds the worker stood still for it; None when unknown."""
    tolerations: tuple[Toleration, ...] | None = None
    """As the worker's, when it was taken."""
    linked: bool | None = None
    """Its worker's GPUs, more than one, were in one NVLink domain. None: it had one or none, or nobody knows."""
    archived: bool = False
    """The archive had it when an agent last looked."""
    doubt: str = ""
    """Why what is in it isn't to be trusted, so that nobody is restored from it; empty: nothing is known against it."""

    @property
    def holders(self) -> str:
        """All who have it, for people."""
        return ", ".join((*self.nodes, *(("the archive",) if self.archived else ())))


class NoticeKind(enum.StrEnum):
    """What is going to happen to a node or GPU."""

    PREEMPTION = "preemption"
    MAINTENANCE = "maintenance"
    REBALANCE = "rebalance"
    DRAIN = "drain"
    GPU_FAILING = "gpu-failing"
    GONE = "gone"


FAR_S: Final = 3600.0
"""Maintenance whose window is further away than this, in seconds, is a hint for now."""


class Notice(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A signal that a node or GPU is going. `deadline` is None when there is none (a hint, or no end known); seconds since the epoch."""

    id: NoticeId
    kind: NoticeKind
    node: NodeId
    seen_at: float
    deadline: float | None = None
    source: str = ""
    detail: str = ""
    slot: SlotId | None = None
    """The slot whose GPU it is about; None: the whole node."""
    dumpable: bool = True
    """False: the GPU is gone, and no dump through it may be tried."""

    def hint(self, at: float) -> bool:
        """At `at` (seconds since the epoch) it only makes a loss likelier: it may come to nothing, or is planned for a time far away."""
        if self.kind is NoticeKind.MAINTENANCE:
            return self.deadline is not None and self.deadline - at > FAR_S
        return self.kind is NoticeKind.REBALANCE


_SEEN: Final = attrgetter("seen_at")
_TAKEN: Final = attrgetter("taken_at")


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes, workers and images, each sorted by id so that equal fleets have equal bytes."""

    nodes: tuple[Node, ...] = ()
    workers: tuple[Worker, ...] = ()
    images: tuple[Image, ...] = ()
    archive_looked: float = 0.0
    """When an agent looked what the archive has, as the images say; seconds since the epoch. 0: none has yet, or there is none."""

    @property
    def doubles(self) -> tuple[object, ...]:
        """Everything in it that is a double, and so may not be finite."""
        of_nodes = list(map(_SEEN, self.nodes)), [n.canaries for n in self.nodes if n.canaries]
        of_images = list(map(_TAKEN, self.images)), [i.pause for i in self.images if i.pause is not None]
        tolerations = [one.tolerations for some in (self.workers, self.images) for one in some if one.tolerations]
        return of_nodes, of_images, tolerations, self.archive_looked


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Metric samples by subject. A field that isn't there was never asked for; one that was and has no value is Missing."""

    workers: Mapping[str, Mapping[str, Sample]] = {}
    """worker id -> catalog field (`kvUsage`, `waiting`, ...) -> sample. It may be a `model.table.SampleTable`."""
    policies: Mapping[str, Mapping[str, Mapping[str, Sample]]] = {}
    """policy name -> metric name declared in its `metrics` -> worker id, or `""` for one value for all -> sample."""
    pools: Mapping[str, Mapping[str, Sample]] = {}
    """pool id -> field that is the pool's own (`desired`) -> sample."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The world at `at` (seconds since the epoch, UTC). Its id is a digest of all of it: see `identity`."""

    at: float
    fleet: Fleet
    samples: Samples = Samples()
    notices: tuple[Notice, ...] = ()

    @cached_property
    def id(self) -> Digest:
        """`sha256:...`. Raises NotCanonical for NaN and infinities."""
        # samples are finite (see `model.sample`)
        return identity(self.at, digest(self.fleet, doubtful=self.fleet.doubles), self.notices, digest(self.samples, doubtful=()))


def as_one(snapshot: Snapshot) -> Digest:
    """The id that it would have had in a record of an earlier version: over all of its bytes at once. Raises NotCanonical."""
    return digest(snapshot, doubtful=(snapshot.at, snapshot.fleet.doubles, snapshot.notices))


def identity(at: float, fleet: Digest, notices: tuple[Notice, ...], samples: Digest) -> Digest:
    """A snapshot's id, from the digests of its large parts: `sha256:...` over the canonical bytes of `{at, fleet, notices, samples}`. So
    whoever knows them needn't hash ten megabytes anew for a notice, which changes neither. Raises NotCanonical as `digest` does.
    """
    return digest({"at": at, "fleet": fleet, "notices": notices, "samples": samples})
