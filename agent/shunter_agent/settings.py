"""The agent's settings: a TOML file. Paths in it are relative to the file's own folder.

node = "node-a"
listen = "10.0.0.11:7443"            # orders from the engine
image_listen = "10.0.0.11:7444"      # images from other agents, which must reach it at this address
state = "/var/lib/shunter-agent"     # journal and images; made 0700
runtime = "criu"                     # or "pretend": nothing really moves, and every record says so
criu = "/opt/shunter/criu/bin/criu"
bridge = "br0"                       # what the workers' own networks are connected to
prefix = 24                          # length of the workers' network prefix
notices = "/run/shunter/notices"     # optional: folder of notices, one JSON file each
clouds = [{name = "aws"}]            # optional: metadata services to ask for notices: aws, gcp, azure, alibaba
kernel_log = "/dev/kmsg"             # optional: GPU errors (XIDs) in it become notices about the slots that name the GPU
dcgm = "http://127.0.0.1:9400"       # optional: DCGM's exporter, for GPU errors that it counts
http = [{name = "slurm", url = "http://127.0.0.1:8080/notices"}]  # optional: asked for notices, in the form of the files
discovery = "/var/lib/dynamo-kv"     # optional: Dynamo's file discovery ($DYN_FILE_KV), to fence and verify by
taints = [{key = "team", value = "search"}]  # optional: what keeps workers off this node that don't tolerate it
canaries = 3600.0                    # how often each source's code is tried out with a notice that is none; 0: never
[kubernetes]                         # optional: what Kubernetes says of this node; without keys, as a pod of it
node = "ip-10-0-0-11"                # its name there
[containers]                         # optional: workers in this node's pods, which others have started, are found and moved
socket = "/run/containerd/containerd.sock"
control = 9090                       # the port of the workers' control API
[tls]
ca = "ca.pem"
cert = "agent.pem"
key = "agent.key"
[images]
unsigned = "refuse"                  # or "accept": images that no agent has signed, as releases before this one made them
keys = ["image.key"]                 # optional: images are encrypted on the disk. The first key encrypts, all decrypt
work = "/run/shunter-images"         # with keys: where images are plain while they are made, received or restored; best a tmpfs
bandwidth = 1_250_000_000            # optional: bytes per second, of all images that are sent from here, and that come from the archive
[archive]                            # optional: images that are sent to "archive" are kept there, and restored from when no node has them
url = "s3://bucket/fleet"            # or a folder that all nodes share
keys = ["archive.key"]               # of all nodes: it is encrypted before it leaves the node
[labels]
capacity = "spot"
[[slots]]
index = 0
roles = ["prefill", "decode"]
gpu_model = ""                       # empty: as the GPUs' driver says
gpus = 0                             # 0: as the driver says
pci = []                             # the GPUs' addresses, such as "0000:4f:00"
uuids = []                           # or their UUIDs, as `nvidia-smi -L` shows them
[[workers]]                          # started once; after that it lives wherever operations put it
worker = "decode-0"
role = "decode"
graph = "chat"
engine = "vllm"
address = "10.0.0.111:9000"
mac = "02:53:48:4e:54:6f"
control = "http://10.0.0.111:9000"
slot = 0
command = ["python3", "-m", "dynamo.vllm"]
tolerations = [{key = "team", operator = "Exists"}]  # optional: taints that it doesn't mind; else those of the node that it is on
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from shunter.model.errors import Problem, Rejected
from shunter.model.ids import NodeId, slot_id
from shunter.model.snapshot import Effect, Taint, Toleration

from shunter_agent.notices.clouds import Cloud
from shunter_agent.runtime.port import WorkerSpec

Role = Literal["prefill", "decode"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: a key that isn't known is an error."""


S = TypeVar("S", bound=_Section)


class TlsSettings(_Section, frozen=True, kw_only=True):
    """The agent's identity, as `shunter certs` makes it (PEM files)."""

    ca: Path
    cert: Path
    key: Path


class ImageSettings(_Section, frozen=True, kw_only=True):
    """What images are taken, and how they are kept."""

    unsigned: Literal["refuse", "accept"] = "refuse"
    """Images without the signature of the agent that made them, which releases before this one didn't make: whether they are received
    and restored."""
    keys: tuple[Path, ...] = ()
    """Files of 32 random bytes. With any, images are encrypted on the disk: by the first one; the others only decrypt what they encrypted
    when they were first. Without a copy of its key elsewhere an image is lost with its node."""
    work: Path | None = None
    """With `keys`: the folder in which images are plain while they are made, received or restored; made 0700. None: one in /dev/shm, in
    memory, which has to have room for an image beside its worker."""
    bandwidth: Annotated[int, msgspec.Meta(gt=0)] | None = None
    """Bytes per second, of all images together that are sent to other agents and to the archive, and of those that come from there. None:
    as fast as it goes. Workers that have to leave by some moment go first, then others that are moved or restored, then copies, and what
    goes to the archive last."""


class ArchiveSettings(_Section, frozen=True, kw_only=True):
    """Where images are kept away from the nodes. Equal for all nodes of a fleet."""

    url: str = ""
    """`s3://bucket/prefix`, or the path of a folder that all nodes share. Empty: there is no archive. Credentials for a bucket come from
    where boto3 looks for them (environment, files, the machine's role)."""
    endpoint: str | None = None
    """The URL of an object store that isn't Amazon's."""
    region: str | None = None
    keys: tuple[Path, ...] = ()
    """Files of 32 random bytes, the same on all nodes: images are encrypted by the first before they leave the node; all decrypt. Without
    any they lie there as they are, which is refused where `[images]` has keys."""


class TaintSettings(_Section, frozen=True, kw_only=True):
    """Something about this node that keeps workers off it that don't tolerate it, as Kubernetes' taints do. Those of its Node object count
    by themselves where that is followed."""

    key: str
    value: str = ""
    effect: Effect = "NoSchedule"
    """`NoSchedule` and `NoExecute`: no worker comes that doesn't tolerate it. `PreferNoSchedule`: none while there is another place."""

    @property
    def taint(self) -> Taint:
        """As the model knows it."""
        return Taint(key=self.key, value=self.value, effect=self.effect)


class TolerationSettings(_Section, frozen=True, kw_only=True):
    """Taints that a worker doesn't mind, as in a pod's `tolerations`."""

    key: str = ""
    """Empty: any, with `Exists`."""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Empty: any."""

    @property
    def toleration(self) -> Toleration:
        """As the model knows it."""
        return Toleration(key=self.key, operator=self.operator, value=self.value, effect=self.effect)


class SlotSettings(_Section, frozen=True, kw_only=True):
    """A slot of this node. `roles` are what a worker in it may be; `gpus` is how many GPUs it has. Where `gpus` and `gpu_model` aren't set,
    the driver is asked at the agent's start: a slot has the GPUs that `pci` or `uuids` name, else the next `gpus` of the others, and a
    node's only slot has all."""

    index: int
    roles: tuple[Role, ...] = ("prefill", "decode")
    gpu_model: str = ""
    gpus: int = 0
    pci: tuple[str, ...] = ()
    """PCI addresses of its GPUs, as `nvidia-smi` shows them: which slot an error in the kernel log is about."""
    uuids: tuple[str, ...] = ()
    """UUIDs of its GPUs, as `nvidia-smi -L` shows them: for sources that name GPUs so."""
    domain: str = ""
    """The NVLink domain that all its GPUs are in. Empty: the driver is asked, as far as it tells."""


class WorkerSettings(_Section, frozen=True, kw_only=True):
    """A worker that this agent starts when its journal has never heard of it. See `runtime.port.WorkerSpec` for the fields."""

    worker: str
    role: Role
    graph: str
    engine: str
    address: str
    slot: int
    command: tuple[str, ...]
    mac: str = ""
    control: str = ""
    labels: dict[str, str] = {}
    env: dict[str, str] = {}
    start: bool = True
    connections: Literal["keep", "close"] = "keep"
    """What becomes of its TCP connections when it leaves its node: they go along, or (`close`) end, and its clients connect anew. Without a
    `mac` they can only go along to a node that has their address."""
    tolerations: tuple[TolerationSettings, ...] | None = None
    """Taints of nodes that it doesn't mind. None: nobody says, and it is taken to tolerate those of the node that it is on."""

    @property
    def spec(self) -> WorkerSpec:
        """As the runtime knows it."""
        return WorkerSpec(
            worker=self.worker,
            role=self.role,
            graph=self.graph,
            engine=self.engine,
            address=self.address,
            mac=self.mac,
            control=self.control,
            labels=self.labels,
            command=self.command,
            env=self.env,
            connections=self.connections,
            tolerations=None if self.tolerations is None else tuple(one.toleration for one in self.tolerations),
        )


class CloudSettings(_Section, frozen=True, kw_only=True):
    """A cloud's metadata service that is asked for notices about this node."""

    name: Cloud
    url: str = ""
    """Where it is, without a path. Empty: the cloud's own link-local address."""
    lead: float | None = None
    """GCP: seconds from `preempted` to the end, where the VM has more than the usual 30 (of which 20 are counted on)."""
    host_lead: float | None = None
    """GCP: seconds from a `maintenance-event` to the VM's stop, where it has more than the usual 60, as VMs with GPUs may."""
    acknowledge: bool = False
    """Azure: let an event about this machine alone go ahead once no worker is left here, nor an image that may be all there is of one."""


class KubernetesSettings(_Section, frozen=True, kw_only=True):
    """What Kubernetes says of this node: its Node object is followed at the API server."""

    node: str = ""
    """Its name in Kubernetes. Empty: the name that it has here."""
    server: str = ""
    """The API server's URL. Empty: as a pod reaches it, with the pod's service account."""
    ca: Path | None = None
    """Its certificate authority (PEM). None: a pod's own, or the system's."""
    token: Path | None = None
    """A file with a token, read anew at each request. None: a pod's own, or none."""
    cert: Path | None = None
    """A client's certificate (PEM), in place of a token."""
    key: Path | None = None
    """Its key."""
    pods: bool = False
    """Follow the pods on the node as well: a worker's eviction is its drain, and so is the end of one with the label `shunter.dev/slot`."""


class ContainerSettings(_Section, frozen=True, kw_only=True):
    """Workers in containers: pods of this node that say by their labels that a worker is in them. Needs `runtime = "criu"`."""

    socket: Path = Path("/run/containerd/containerd.sock")
    """The container runtime's (CRI)."""
    cgroups: Path = Path("/sys/fs/cgroup")
    """Where the node's cgroups (v2) are mounted."""
    namespaces: tuple[str, ...] = ()
    """Of which namespaces. Empty: of all."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """The port that workers serve at in their pods. 0: not known; then one without a control API can't be probed after a move."""
    control: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """The port of their control API in their pods. 0: they have none, and can't be fenced."""
    carry: Annotated[int, msgspec.Meta(ge=0)] = 1 << 30
    """Bytes of files that may go along with a worker: what its container has changed of its image, /dev/shm and emptyDir volumes."""
    streams: Literal["reset", "refuse"] = "reset"
    """What becomes of a worker's connections with others, whose peers know its old pod's address: they are reset when the move is
    committed, or a worker that has any isn't moved."""
    every: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """Seconds between looks for pods that have come."""


class HttpSettings(_Section, frozen=True, kw_only=True):
    """Something that answers with notices about this node when it is asked, in the form of the files in `notices`."""

    name: str
    """As it is shown to people: the provider's, or the scheduler's."""
    url: str
    """Answers 200 with one JSON object or a list of them, or 204 with nothing to say."""
    every: float = 5.0
    """Seconds between looks."""
    token: Path | None = None
    """A file with a bearer token, read anew at each look."""
    ca: Path | None = None
    """For https: the certificate authority (PEM). None: the system's."""


class Settings(_Section, frozen=True, kw_only=True):
    """The whole file. Times in seconds."""

    node: str
    listen: str
    image_listen: str
    state: Path
    tls: TlsSettings
    slots: tuple[SlotSettings, ...]
    workers: tuple[WorkerSettings, ...] = ()
    runtime: Literal["criu", "pretend"] = "criu"
    criu: Path = Path("/opt/shunter/criu/bin/criu")
    bridge: str = ""
    prefix: int = 24
    images: ImageSettings = ImageSettings()
    archive: ArchiveSettings = ArchiveSettings()
    labels: dict[str, str] = {}
    taints: tuple[TaintSettings, ...] = ()
    notices: Path | None = None
    clouds: tuple[CloudSettings, ...] = ()
    kernel_log: Path | None = None
    """`/dev/kmsg`: GPU errors in it become notices. None: they aren't looked for."""
    dcgm: str | None = None
    """URL of DCGM's exporter, without `/metrics`. None: it isn't asked."""
    http: tuple[HttpSettings, ...] = ()
    kubernetes: KubernetesSettings | None = None
    containers: ContainerSettings | None = None
    """None: only workers that this agent starts itself are its business."""
    canaries: float = 3600.0
    """How often each source's code is tried out with a notice that is none. 0: never."""
    discovery: Path | None = None
    hold: float = 300.0
    """The longest hold that an order may ask for: no copy stands still longer without a word from the engine."""
    reservation: float = 900.0
    """How long a reserved slot waits for its worker before it is freed."""
    probe: float = 5.0
    """How long a resumed worker may take to be healthy."""
    preloads: tuple[str, ...] = ()
    """Libraries that a worker with GPUs may have been started with by LD_PRELOAD and still be moved, besides allocators: by the name of
    their file, up to `.so`."""
    gpu_gone: float = 60.0
    """How long a worker on a GPU that is gone may take to end by itself. One that hangs for longer is ended, so that its image can be
    restored elsewhere."""

    def slot_ids(self) -> dict[str, SlotSettings]:
        """The slots by `<node>/<index>`."""
        return {slot_id(NodeId(self.node), slot.index): slot for slot in self.slots}


def load(path: Path) -> Settings:
    """Read and check a settings file. Raises Rejected SH671 (can't be read), SH672 (wrong content)."""
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text())
    except OSError as error:
        raise _wrong(
            "SH671", f"the settings can't be read: {error}", "Name the file with --config, and check its permissions", path
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong("SH672", f"the settings aren't TOML: {error}", "Mend the line that is named", path) from error
    try:
        found = msgspec.convert(raw, Settings, strict=True, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise _wrong("SH672", str(error), "Mend that key; all keys are in docs/reference/settings.md", path) from error
    _check(found, path)
    return _absolute(found, path.resolve().parent)


def _decode(kind: type[Any], value: Any) -> Any:  # noqa: ANN401  (msgspec's own signature)
    if issubclass(kind, Path) and isinstance(value, str):
        return kind(value)
    raise NotImplementedError(f"{kind.__name__} can't be read")


def _check(settings: Settings, path: Path) -> None:
    indices = [slot.index for slot in settings.slots]
    workers = [worker.worker for worker in settings.workers]
    if len(set(indices)) != len(indices) or any(index < 0 for index in indices):
        raise _wrong("SH672", "each slot needs an index of its own, from 0", "Number the slots", path)
    if len(set(workers)) != len(workers):
        raise _wrong("SH672", "two workers have the same name", "Name each worker once", path)
    if len({cloud.name for cloud in settings.clouds}) != len(settings.clouds):
        raise _wrong("SH672", "a cloud is named twice", "Name each once", path)
    _check_http(settings, path)
    _check_taints(settings, path)
    taken: dict[int, str] = {}
    for worker in settings.workers:
        _check_worker(worker, {slot.index: slot for slot in settings.slots}, taken, path)
    if settings.archive.url and settings.images.keys and not settings.archive.keys:
        raise _wrong("SH672", "images are encrypted here, and would lie plain in the archive", "Give `[archive]` keys, too", path)
    for field in ("listen", "image_listen"):
        host, _, port = str(getattr(settings, field)).rpartition(":")
        if not host or not port.isdigit():
            raise _wrong("SH672", f"{field} is not host:port", 'Write it as in "10.0.0.11:7443"', path)
    if settings.runtime == "criu" and not settings.bridge and any(worker.mac for worker in settings.workers):
        raise _wrong("SH672", "workers with a mac need a bridge to be connected to", 'Set bridge = "..." to the node\'s bridge', path)


def _check_taints(settings: Settings, path: Path) -> None:
    if any(not taint.key for taint in settings.taints):
        raise _wrong("SH672", "a taint has no key", "Give each of `taints` a key", path)
    for worker in settings.workers:
        for one in worker.tolerations or ():
            if not one.key and one.operator != "Exists":
                what = f"a toleration of {worker.worker} has no key, which only `Exists` may lack"
                raise _wrong("SH672", what, 'Name the key, or write operator = "Exists" to tolerate all', path)


def _check_http(settings: Settings, path: Path) -> None:
    names = [one.name for one in settings.http]
    taken = {"file", "gpu", "dcgm", "kubernetes", *(cloud.name for cloud in settings.clouds)}
    if len(set(names)) != len(names) or taken & set(names):
        raise _wrong("SH672", "two sources of notices have the same name", "Name each source under [[http]] once", path)
    urls = [one.url for one in settings.http] + [settings.dcgm or "http://"]
    if wrong := next((url for url in urls if not url.startswith(("http://", "https://"))), None):
        raise _wrong("SH672", f"{wrong!r} is no URL of a source of notices", "Begin it with http:// or https://", path)
    if any(one.every <= 0 for one in settings.http):
        raise _wrong("SH672", "`every` of a source of notices must be more than 0 s", "Write the seconds between two looks", path)


def _check_worker(worker: WorkerSettings, slots: dict[int, SlotSettings], taken: dict[int, str], path: Path) -> None:
    slot = slots.get(worker.slot)
    if slot is None:
        raise _wrong("SH672", f"{worker.worker} is for slot {worker.slot}, which isn't there", "Add the slot, or change the worker's", path)
    if worker.mac and worker.connections == "close":
        what = f"{worker.worker} has a mac, and so takes its address and its connections along: they can't be closed"
        raise _wrong("SH672", what, "Leave out one of the two", path)
    if worker.role not in slot.roles:
        raise _wrong("SH672", f"slot {worker.slot} doesn't take {worker.role} workers", f"Change the slot of {worker.worker}", path)
    if worker.slot in taken:
        raise _wrong("SH672", f"{worker.worker} and {taken[worker.slot]} are for the same slot", "Give one of them another slot", path)
    taken[worker.slot] = worker.worker


def _at(settings: Settings, base: Path) -> str:
    url = settings.archive.url
    return url if not url or url.startswith("s3://") else str(base / url)


def _absolute(settings: Settings, base: Path) -> Settings:
    tls, images = settings.tls, settings.images
    return msgspec.structs.replace(
        settings,
        state=base / settings.state,
        criu=base / settings.criu,
        notices=base / settings.notices if settings.notices else None,
        discovery=base / settings.discovery if settings.discovery else None,
        kubernetes=_beside(settings.kubernetes, base) if settings.kubernetes else None,
        http=tuple(_beside(one, base) for one in settings.http),
        tls=TlsSettings(ca=base / tls.ca, cert=base / tls.cert, key=base / tls.key),
        archive=msgspec.structs.replace(settings.archive, keys=tuple(base / key for key in settings.archive.keys), url=_at(settings, base)),
        images=msgspec.structs.replace(
            images, keys=tuple(base / key for key in images.keys), work=base / images.work if images.work else None
        ),
    )


def _beside(section: S, base: Path) -> S:
    """The section with its paths, which are relative to `base`, absolute."""
    paths = {field: base / value for field in section.__struct_fields__ if isinstance(value := getattr(section, field), Path)}
    return msgspec.structs.replace(section, **paths)


def _wrong(code: str, what: str, remedy: str, path: Path) -> Rejected:
    return Rejected(Problem(code=code, what=what, remedy=remedy, subject=str(path)))
