"""The engine's settings: a TOML file. Paths in it are relative to the file's own folder.

state = "state"                      # operation store, audit, lock; made 0700
tick = "1s"                          # how often it looks and decides
[policies]
git = "https://example.com/policies.git"   # or: directory = "policies"
branch = "main"
folder = "policies"
poll = "15s"
ssh_key = "keys/deploy"              # for ssh; for https: token = "keys/token"
known_hosts = "known_hosts"          # for ssh: the forge's host keys
[policies.trust]                     # optional: whose signatures a commit needs (docs/how-to/trust-your-policies.md)
mode = "first-parent"
signers = "allowed_signers"
[limits]                             # optional: operations under way at a time
voluntary = 16
[standing]                           # optional: what nodes do by themselves while no engine can be reached
silence = "10s"
[health]                             # optional: ages from which the engine is not ready
policies = "10m"
[cluster]                            # optional: one of several engines in Kubernetes leads (docs/how-to/run-in-kubernetes.md)
lasts = "15s"
[cluster.pods]                       # optional: workers in pods, and agents that are found
namespace = "dynamo"
[cluster.dynamo]                     # optional: reassignments act on Dynamo's graphs (docs/how-to/move-a-dynamo-worker.md)
[prometheus]
url = "http://prometheus:9090"
[tls]
ca = "certs/ca.pem"
cert = "certs/engine.pem"
key = "certs/engine.key"
[[agents]]
node = "node-a"
address = "10.0.0.11:7443"
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from shunter.decide.profile import Profile
from shunter.model.errors import Problem, Rejected
from shunter.model.pod import PLACEHOLDER
from shunter.model.units import Bytes, Duration, UnitError
from shunter.observe.catalog import Catalog
from shunter.source.command import Access
from shunter.source.keys import Signers
from shunter.source.trust import Mode, Trust

LEAST_LEASE_S: Final = 3.0


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: a key that isn't known is an error."""


class TrustSettings(_Section, frozen=True, kw_only=True):
    """Whose signatures a commit of the policies needs. Without it any commit of the branch is followed. Keys are read anew at each look."""

    mode: Mode = Mode.OFF
    """`head`: the newest commit; `first-parent`: each that the branch went through; `every`: each, also those that came by merges."""
    signers: Path | None = None
    """The authors' SSH keys, in ssh-keygen's format of allowed_signers."""
    openpgp: Path | None = None
    """The authors' OpenPGP public keys: a file, or a folder of files."""
    forge_signers: Path | None = None
    """SSH keys that the forge signs merges with. They answer for merges of trusted commits, and for nothing else."""
    forge_openpgp: Path | None = None
    """The same, OpenPGP."""
    since: str | None = None
    """The full id of a commit that you looked at: it and all before it are trusted, whoever signed them."""

    def trust(self) -> Trust:
        """As the source takes it."""
        return Trust(
            mode=self.mode,
            authors=Signers(ssh=self.signers, openpgp=self.openpgp),
            forge=Signers(ssh=self.forge_signers, openpgp=self.forge_openpgp),
            since=self.since,
        )


class ClusterSettings(_Section, frozen=True, kw_only=True):
    """Policies as custom resources of Kubernetes, and their status."""

    namespace: str = ""
    """Where they are: `shunter-policies`, as deploy/kubernetes has it. Empty: the pod's own namespace, or the kubeconfig's."""
    kubeconfig: Path | None = None
    """None: the pod's service account."""
    context: str | None = None
    """Of the kubeconfig. None: its current one."""
    settle: Duration = Duration(20)
    """While resources state different commits, what was read before stays for this long at most: a sync isn't taken by halves."""


class PodsSettings(_Section, frozen=True, kw_only=True):
    """Workers in pods, and agents that are found by theirs. A section without keys finds Dynamo's workers in the engine's own namespace."""

    namespace: str = ""
    """Where the workers' pods are. Empty: the namespace of `[cluster]`."""
    selector: str = "nvidia.com/dynamo-graph-deployment-name"
    """Which pods there may be workers', as Kubernetes selects by labels. Empty: all. What of those has a role and a graph is one."""
    agents_namespace: str = "shunter-agents"
    agents_selector: str = "app.kubernetes.io/name=shunter-agent"
    port: int = 7443
    """Where agents take orders whose pods name no port `agent`."""
    idle: tuple[str, ...] = PLACEHOLDER
    """What the container of a new pod runs until its worker comes, and beside it: see `shunter.model.pod`. Another command must be one that
    the image has and that doesn't end; then a SIGTERM doesn't reach the worker, and the container doesn't end with it."""


class DynamoSettings(_Section, frozen=True, kw_only=True):
    """Dynamo's graphs: how many workers they are to have is read there, and changed there when hardware changes sides. A section without
    keys is enough.
    """

    namespace: str = ""
    """Where the graphs are. Empty: where `[cluster.pods]` has the workers' pods, else the namespace of `[cluster]`."""


class LeaseSettings(_Section, frozen=True, kw_only=True):
    """The engine as one of several in a Kubernetes cluster: a Lease says which of them leads, operations are custom resources, and another
    goes on with what one began. A section without keys is enough in a pod.
    """

    namespace: str = ""
    """Where the Lease and the operations are. Empty: the pod's own namespace, or the kubeconfig's."""
    kubeconfig: Path | None = None
    """None: the pod's service account."""
    context: str | None = None
    """Of the kubeconfig. None: its current one."""
    name: str = "shunter-leader"
    """Of the Lease. Engines with the same are of one fleet."""
    lasts: Duration = Duration(15)
    """After so long without a sign of the leader another takes over. A leader that can't renew the Lease stops after two thirds of it: the
    longer it is, the longer an outage of the API server may last until what is under way has to wait for its end."""
    pods: PodsSettings | None = None
    """None: workers live in no pods, and `[[agents]]` names all agents."""
    dynamo: DynamoSettings | None = None
    """None: nobody keeps pools at a number, or not Dynamo's operator."""


class PoliciesSettings(_Section, frozen=True, kw_only=True):
    """Where policies come from: `git` (a URL), `directory` or `cluster`, one of them. `folder` is in the repository, `""` for its root."""

    git: str | None = None
    branch: str = "main"
    folder: str = ""
    poll: Duration = Duration(15)
    allow_rewind: bool = False
    """Follow a branch whose history was rewritten. Without it the engine stays on the last good commit and says so."""
    directory: Path | None = None
    cluster: ClusterSettings | None = None
    token: Path | None = None
    """For https: a file with `user:token`, or a token alone. This and the next three are read anew at each look."""
    ca: Path | None = None
    """For https: the certificates (PEM) that the server is checked by. None: the system's."""
    ssh_key: Path | None = None
    """For ssh: the private key. None: the user's own keys and agent."""
    known_hosts: Path | None = None
    """For ssh: the host keys that are accepted. None: the user's own. A host is never accepted unseen."""
    trust: TrustSettings = TrustSettings()

    def access(self) -> Access:
        """As the source takes it."""
        return Access(token=self.token, ca=self.ca, ssh_key=self.ssh_key, known_hosts=self.known_hosts)


class HealthSettings(_Section, frozen=True, kw_only=True):
    """Ages from which /readyz answers 503, with the reasons."""

    policies: Duration = Duration(300)
    """Those in force, since they were last known to be the source's newest. While a newer commit is refused, it grows as well."""
    inventory: Duration = Duration(30)
    """Since any agent answered. With `[cluster.pods]` also since the API server confirmed nodes and pods, once that is more than three
    minutes ago."""
    metrics: Duration = Duration(30)
    """Since a worker had a fresh value of any metric."""
    lease: Duration = Duration(60)
    """Of an engine that stands by: since the API server last said who leads. One that can't know takes over from nobody."""


class LimitsSettings(_Section, frozen=True, kw_only=True):
    """What may be under way at a time. What is involuntary has no limit: its node goes."""

    voluntary: int = 16
    """Voluntary operations, in the whole fleet; those of a chain count as one. Further ones wait for their turn. Budgets, shares of pools
    and one dump at a time on each node apply besides, whatever this is."""


class StandingSettings(_Section, frozen=True, kw_only=True):
    """What nodes do by themselves when they get a notice while no engine can be reached."""

    silence: Duration = Duration(10)
    """For so long a node must have heard of no engine. At least five ticks are waited for, whatever this is."""
    valid: Duration = Duration(600)
    """For so long after the engine's last word a standing order holds; it is renewed when a third of that is over."""


class PrometheusSettings(_Section, frozen=True, kw_only=True):
    """Where metrics come from. `deadline` is for a query as a whole; `label` names the worker on every series, `graph` the Dynamo graph on
    the planner's.
    """

    url: str
    deadline: Duration = Duration(2)
    label: str = "worker"
    graph: str = "dynamo_namespace"

    def catalog(self) -> Catalog:
        """Where each field is read. Raises Rejected SH307 for a label that can't be one."""
        return Catalog(label=self.label, graph=self.graph)


class TlsSettings(_Section, frozen=True, kw_only=True):
    """The engine's identity, as `shunter certs` makes it."""

    ca: Path
    cert: Path
    key: Path


class AgentSettings(_Section, frozen=True, kw_only=True):
    """One node's agent."""

    node: str
    address: str


class ProfileSettings(_Section, frozen=True, kw_only=True):
    """Rates to plan with until agents have measured their own. None: the documented defaults of `decide.profile`."""

    dump: Bytes | None = None
    """Bytes per second."""
    restore: Bytes | None = None
    network: Bytes | None = None


class AuditSettings(_Section, frozen=True, kw_only=True):
    """What is kept of what was decided and done, and how it is signed."""

    key: Path | None = None
    """The Ed25519 key in PEM, mode 0600, that the audit is signed with. None: `audit.key` in the state folder, made with the audit."""
    database: str | None = None
    """The URL of a PostgreSQL database for the records, such as `postgresql://shunter@db.example.com/audit`. None: `audit.db` in the state
    folder. A password is better in a passfile (`?passfile=...`) than in here."""
    keep: Duration | None = None
    """How long records are kept. None: for ever. What is dropped is told by a record, and the rest can be verified all the same."""
    archive: Path | None = None
    """A folder where dropped records are put, compressed. None: they are gone."""
    labels: tuple[str, ...] | None = None
    """Names of labels whose values may be recorded. None: all, but what looks like a credential is masked in any case."""
    otlp: str | None = None
    """Where an OpenTelemetry collector takes logs over HTTP, such as `http://collector:4318/v1/logs`. None: nothing is sent."""
    inputs: Duration = Duration(7 * 86400)
    """How long what decisions were made on is kept, for `shunter audit replay`. `0s`: it isn't kept."""
    inputs_size: Bytes = Bytes(10**9)
    """Bytes that it may take; the oldest goes first."""


class Settings(_Section, frozen=True, kw_only=True):
    """The whole file."""

    state: Path
    policies: PoliciesSettings
    prometheus: PrometheusSettings
    tls: TlsSettings
    agents: tuple[AgentSettings, ...] = ()
    """With `[cluster.pods]` agents are found besides."""
    tick: Duration = Duration(1)
    hold: Duration = Duration(60)
    """How long a frozen or held copy waits for the engine before it goes back by itself."""
    listen: str = "127.0.0.1:9464"
    """Where the engine serves /metrics, /healthz and /readyz; empty: nowhere."""
    profile: ProfileSettings = ProfileSettings()
    health: HealthSettings = HealthSettings()
    limits: LimitsSettings = LimitsSettings()
    standing: StandingSettings = StandingSettings()
    audit: AuditSettings = AuditSettings()
    cluster: LeaseSettings | None = None
    """None: this engine alone leads on its state folder."""

    def spans(self) -> dict[str, Duration]:
        """The times by their keys."""
        return {
            "tick": self.tick,
            "hold": self.hold,
            "policies.poll": self.policies.poll,
            "prometheus.deadline": self.prometheus.deadline,
            "health.policies": self.health.policies,
            "health.inventory": self.health.inventory,
            "health.metrics": self.health.metrics,
            "health.lease": self.health.lease,
            "standing.silence": self.standing.silence,
            "standing.valid": self.standing.valid,
            **({} if self.audit.keep is None else {"audit.keep": self.audit.keep}),
        }

    def rates(self) -> Profile:
        """The planning profile with the overrides of this file."""
        given = {
            name: float(value)
            for name, value in (
                ("dump_bytes_per_s", self.profile.dump),
                ("restore_bytes_per_s", self.profile.restore),
                ("network_bytes_per_s", self.profile.network),
            )
            if value is not None
        }
        return msgspec.structs.replace(Profile(), **given)


def _decode(kind: type[Any], value: Any) -> Any:  # noqa: ANN401  (msgspec's own signature)
    if kind in (Duration, Bytes):
        if not isinstance(value, str):
            raise ValueError(f"{value!r} needs a unit, such as {'30s' if kind is Duration else '10GB'}")
        try:
            return kind.parse(value)
        except UnitError as error:
            raise ValueError(str(error)) from error
    if kind is Path or issubclass(kind, Path):
        return Path(value)
    raise NotImplementedError(kind.__name__)


def _absolute(section: _Section, base: Path) -> Any:  # noqa: ANN401  (a section of the same type)
    changed: dict[str, Any] = {}
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, Path):
            changed[name] = value if value.is_absolute() else base / value
        elif isinstance(value, _Section):
            changed[name] = _absolute(value, base)
    return msgspec.structs.replace(section, **changed)


def _wrong(settings: Settings) -> Iterator[str]:
    """What each section by itself can't say."""
    places = (settings.policies.git, settings.policies.directory, settings.policies.cluster)
    if sum(place is not None for place in places) != 1:
        yield "policies needs one of `git`, `directory` and `cluster`"
    if settings.policies.git is None and settings.policies.trust.mode is not Mode.OFF:
        yield "policies.trust needs `git`: nobody signs a directory or a custom resource"
    for key, span in settings.spans().items():
        if span <= 0:
            yield f"{key} must be more than 0"
    if settings.cluster is not None and settings.cluster.lasts < LEAST_LEASE_S:
        yield f"cluster.lasts must be at least {LEAST_LEASE_S:g}s: a Lease is renewed several times in it"
    if settings.limits.voluntary < 1:
        yield "limits.voluntary must be at least 1"
    nodes = [agent.node for agent in settings.agents]
    finds = settings.cluster is not None and settings.cluster.pods is not None
    if len(set(nodes)) != len(nodes) or not (nodes or finds):
        yield "agents must name each node once, and at least one"
    if settings.cluster is not None and settings.cluster.pods is not None and not settings.cluster.pods.idle:
        yield "cluster.pods.idle must name a command"


def load(path: Path) -> Settings:
    """Read the file. Raises Rejected SH910 with what is wrong and where."""

    def refuse(what: str) -> Rejected:
        return Rejected(
            Problem(code="SH910", what=what, remedy="Mend the settings file; its keys are in docs/reference/settings.md", subject=str(path))
        )

    try:
        raw = tomllib.loads(path.read_text())
        settings = msgspec.convert(raw, Settings, dec_hook=_decode)
    except OSError as error:
        raise Rejected(
            Problem(
                code="SH910",
                what=f"the settings can't be read: {error.strerror}",
                remedy="Name the engine's settings with --config, or run this where its engine.toml is",
                subject=str(path),
            )
        ) from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise refuse(f"the settings are not valid: {error}") from error
    for wrong in _wrong(settings):
        raise refuse(wrong)
    resolved: Settings = _absolute(settings, path.parent.resolve())
    return resolved
