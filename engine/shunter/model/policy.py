"""Policies as they stand in YAML: these structs mirror the documents key by key (camelCase there), and the JSON Schemas come from them.

Nothing here has a silent default for what a policy *does*; defaults are only for how carefully it does it, and each is stated.
`docs/reference/policies.md` is generated from these docstrings.
"""

from typing import Literal, TypeAlias

import msgspec

from shunter.model.errors import Place, Problem
from shunter.model.expression import Expression
from shunter.model.ids import Commit, Digest, PolicyName
from shunter.model.snapshot import NoticeKind, Role
from shunter.model.units import Duration

API_VERSION: Literal["shunter.dev/v1alpha1"] = "shunter.dev/v1alpha1"

Mode = Literal["enforce", "preview", "off"]
Fallback = Literal["checkpoint", "drain"]


class _Yaml(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of everything that stands in a YAML document."""


class Metadata(_Yaml, frozen=True, kw_only=True):
    """Name (lower-case letters, digits and dashes, unique in the policy set) and labels."""

    name: str
    labels: dict[str, str] = {}
    """For people and their tools: Shunter doesn't read them."""


class WorkerSelector(_Yaml, frozen=True, kw_only=True):
    """Which workers a policy covers: all conditions hold. At least one must be given; `all: true` is the way to say every worker."""

    role: Role | None = None
    """Workers of this role."""
    graph: str | None = None
    """Workers of this Dynamo graph, or local fleet."""
    where: Expression | None = None
    """Boolean expression over `worker`, `node` and `pool`."""
    all: bool = False
    """Every worker: stands alone."""


class MetricInput(_Yaml, frozen=True, kw_only=True):
    """An extra input, read as `metrics.<name>`. The query gives one series per worker (label `worker`), or a single one for all."""

    query: str
    """PromQL."""
    unit: Literal["seconds", "bytes", "1", "requests", "tokens", "sessions"]
    """What the value is in; `1` for shares and plain numbers. Shown with it, never converted."""
    max_age: Duration = Duration(30)
    """An older value is stale: it has no answer."""
    on_missing: Literal["inconclusive"] | float = "inconclusive"
    """A number here is the author's own declaration of what no data means; without it nothing voluntary happens."""


class Destination(_Yaml, frozen=True, kw_only=True):
    """Where a moved worker may go. `where`: boolean over the candidate `node` and the `worker`; `prefer`: number, the highest wins."""

    where: Expression | None = None
    prefer: Expression | None = None


class Move(_Yaml, frozen=True, kw_only=True):
    """How workers leave a node that is going."""

    to: Destination = Destination()
    order: Expression | None = None
    """Number over `worker`: the highest is saved first when not all fit. Without it: the most tokens of context first."""
    make_room: Literal["none", "prefill"] = "none"
    """`prefill`: a stateless prefill worker may be parked or drained to free a slot for a decode worker."""


class _Spec(_Yaml, frozen=True, kw_only=True):
    """What every kind has."""

    workers: WorkerSelector
    mode: Mode = "enforce"
    """`enforce`; `preview` decides, logs and audits but never acts; `off` isn't evaluated."""
    priority: int = 100
    """Wins conflicts; ties go to the involuntary lane, then to the name."""
    metrics: dict[str, MetricInput] = {}


class PreemptionSpec(_Spec, frozen=True, kw_only=True):
    """What to do for workers on a node that is going. Involuntary: it never waits for a metric."""

    notices: tuple[NoticeKind, ...]
    """The kinds that it answers to; at least one."""
    move: Move = Move()
    reserve: Duration = Duration(10)
    """Slack kept before the deadline: a move that wouldn't end this long before it isn't begun."""
    otherwise: tuple[Fallback, ...] = ("checkpoint", "drain")
    """For workers that can't be moved, in this order, each tried if the one before it failed.

    `checkpoint`: an image goes to a node that stays and the worker is parked, to be restored when there is room.
    `drain`: it leaves the router, finishes what it has until the deadline, and stops."""


class Trigger(_Yaml, frozen=True, kw_only=True):
    """A condition that has to hold without a break for some time. Unknown breaks it."""

    when: Expression
    for_: Duration = msgspec.field(name="for", default=Duration(0))
    """How long `when` must hold."""


class Pick(_Yaml, frozen=True, kw_only=True):
    """Which worker is taken: `where` boolean, `prefer` number (the highest wins), both over `worker` and `node`."""

    where: Expression | None = None
    prefer: Expression | None = None


class Floor(_Yaml, frozen=True, kw_only=True):
    """The least number of workers that must stay."""

    min: int
    """Workers."""


class Ceiling(_Yaml, frozen=True, kw_only=True):
    """The greatest number of workers that there may be."""

    max: int
    """Workers."""


class Limits(_Yaml, frozen=True, kw_only=True):
    """Bounds of a reassignment: workers left in the pool it takes from, workers in the pool it gives to, and changes in one plan."""

    from_: Floor = msgspec.field(name="from", default=Floor(min=1))
    to: Ceiling | None = None
    step: int = 1
    """Workers that change sides in one plan, at most."""


class ReassignmentSpec(_Spec, frozen=True, kw_only=True):
    """Shift hardware between the pools of a graph. Voluntary: an unknown input means that nothing happens."""

    from_: Role = msgspec.field(name="from")
    """The role that gives up hardware."""
    to: Role
    """The role that gets it: the other one."""
    when: Expression
    """Boolean over `pools`, `metrics` and `now`."""
    for_: Duration = msgspec.field(name="for")
    """How long `when` must hold without a break."""
    revert: Trigger | None = None
    """When to give the hardware back."""
    pick: Pick = Pick()
    sessions: Literal["move", "park", "drain"] = "move"
    """What happens to the sessions of the worker that gives up its slot: it moves to a free slot, is parked, or is drained."""
    limits: Limits = Limits()
    cooldown: Duration = Duration(300)
    """No further reassignment by this policy for this long after one began."""


class Keep(_Yaml, frozen=True, kw_only=True):
    """Retention of periodic images: the newest `last` of each worker."""

    last: int = 1
    """Images."""


class CheckpointSpec(_Spec, frozen=True, kw_only=True):
    """Take images of running workers often enough that losing one is cheap. Voluntary."""

    every: Duration
    """How long after a worker's newest image the next one is taken."""
    when: Expression | None = None
    """Boolean over `worker`, `node`, `pool`; a checkpoint is taken only while it holds. Unknown means not now."""
    keep: Keep = Keep()
    copies: int = 1
    """Nodes that hold each image, the worker's own included: with 1 it dies with its node."""


class _Document(_Yaml, frozen=True, kw_only=True):
    metadata: Metadata
    api_version: Literal["shunter.dev/v1alpha1"] = API_VERSION


class PreemptionPolicy(_Document, frozen=True, kw_only=True, tag_field="kind", tag="PreemptionPolicy"):
    """Move workers away from a node that is going."""

    spec: PreemptionSpec


class ReassignmentPolicy(_Document, frozen=True, kw_only=True, tag_field="kind", tag="ReassignmentPolicy"):
    """Shift hardware between prefill and decode."""

    spec: ReassignmentSpec


class CheckpointPolicy(_Document, frozen=True, kw_only=True, tag_field="kind", tag="CheckpointPolicy"):
    """Take periodic images of workers."""

    spec: CheckpointSpec


Document: TypeAlias = PreemptionPolicy | ReassignmentPolicy | CheckpointPolicy


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A checked document with its provenance: where it stands, and the blob that it came from.

    `commit` is the commit that this version was read at: older than the set's own when a later version of the file was refused.
    """

    document: Document
    place: Place
    blob: str
    commit: Commit

    @property
    def name(self) -> PolicyName:
        """Its name, unique in the set."""
        return PolicyName(self.document.metadata.name)

    @property
    def kind(self) -> str:
        """`PreemptionPolicy` and so on."""
        return type(self.document).__name__


class PolicySet(msgspec.Struct, frozen=True, kw_only=True):
    """All policies at one commit, sorted by name. `problems` are those of files that were refused: their last good version is in
    `policies`, if there was one.
    """

    commit: Commit
    digest: Digest
    policies: tuple[Policy, ...] = ()
    problems: tuple[Problem, ...] = ()
