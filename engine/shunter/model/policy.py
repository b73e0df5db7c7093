"""Policies as they stand in YAML: these structs mirror the documents key by key (camelCase there), and the JSON Schemas come from them.

Nothing here has a silent default for what a policy *does*; defaults are only for how carefully it does it, and each is stated.
`docs/reference/policies.md` is generated from these docstrings.
"""

from functools import cached_property
from typing import Literal, TypeAlias

import msgspec

from shunter.model.errors import Place, Problem
from shunter.model.expression import Expression
from shunter.model.ids import Commit, Digest, PolicyName
from shunter.model.snapshot import NoticeKind, Role
from shunter.model.units import Bandwidth, Duration, Rate, Share

API_VERSION: Literal["shunter.dev/v1alpha1"] = "shunter.dev/v1alpha1"

Mode = Literal["enforce", "preview", "off"]
Fallback = Literal["checkpoint", "drain"]
Disruption = Literal["move", "park", "drain", "reassign", "checkpoint"]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class _Yaml(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of everything that stands in a YAML document."""


class Metadata(_Yaml, frozen=True, kw_only=True):
    """Name (lower-case letters, digits and dashes, unique in the policy set), and what is for others."""

    name: str
    labels: dict[str, str] = {}
    """For people and their tools: Shunter doesn't read them."""
    annotations: dict[str, str] = {}
    """For tools, such as Argo CD and Kustomize. Of a file Shunter reads none."""
    namespace: str | None = None
    """Where the policy is in a cluster, as Kustomize writes it. An engine reads one namespace, so that this changes nothing."""


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


class _Scoped(_Yaml, frozen=True, kw_only=True):
    """What every kind has that is about workers."""

    workers: WorkerSelector
    mode: Mode = "enforce"
    """`enforce`; `preview` decides, logs and audits but never acts; `off` isn't evaluated."""


class _Spec(_Scoped, frozen=True, kw_only=True):
    """What every kind has that makes something happen."""

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
    when: Expression | None = None
    """Boolean over `pools`, `metrics` and `now`. Required unless the policy follows the planner, refused if it does."""
    for_: Duration = msgspec.field(name="for")
    """How long `when` must hold without a break; for a policy that follows the planner: how long the planner must want the change."""
    revert: Trigger | None = None
    """When to give the hardware back. Refused where the planner is followed: it says itself when."""
    pick: Pick = Pick()
    sessions: Literal["move", "park", "drain"] = "move"
    """What happens to the sessions of the worker that gives up its slot: it moves to a free slot, is parked, or is drained. Where Dynamo's
    operator keeps the other pool at a number and none of it waits in an image, one is started natively for what is parked or drained."""
    golden_images: Literal["ignore", "use"] = "ignore"
    """`use`: a prefill worker that is started natively for what a worker leaves starts from the newest ready `PodSnapshot` of Dynamo
    Snapshot that fits its pool, where there is one, and natively where there is none or it fails."""
    follow: Literal["thresholds", "planner"] = "thresholds"
    """`planner`: carry out what the Dynamo planner wants (`pools.<role>.desired`), whichever way it goes between the two pools, instead of
    own thresholds. Never below `limits.from.min` of either pool, nor above `limits.to.max` of the one that is named in `to`. Where only one
    pool lacks workers, parked ones are restored into free slots; workers that are too many stay while nobody needs their slots; and more
    than there are slots for is said, and not tried."""
    method: Literal["auto", "checkpoint", "in-place"] = "auto"
    """How hardware changes its role. `checkpoint`: one worker leaves the slot and another is restored into it. `in-place`: the engine flips
    its role where it stands; held where the worker's engine can't, which today is everywhere, as no agent reports an engine that can.
    `auto`: in place where the engine can and nobody has to leave, else by checkpoint; so today always by checkpoint."""
    limits: Limits = Limits()
    cooldown: Duration = Duration(300)
    """No further reassignment by this policy for this long after one began. Nor are there more than three of a graph within an hour, giving
    back included; if those went back and forth, or failed, a person is asked."""


class Keep(_Yaml, frozen=True, kw_only=True):
    """Retention of periodic images: the newest `last` of each worker, and any that was taken `within` the time given."""

    last: int = 1
    """Images."""
    within: Duration | None = None
    """Images younger than this are kept too, however many. None: only `last` counts. Of several policies the one that keeps the most
    decides."""


class Optimal(_Yaml, frozen=True, kw_only=True):
    """An interval from the worker's own costs: Young's and Daly's formula on the hazard that no notice announces."""

    hazard: Rate
    """Losses of a worker that come without a usable notice: `1/1000h` is one in a thousand hours."""
    min: Duration = Duration(60)
    """No shorter interval, whatever the formula says."""
    max: Duration = Duration(3600)
    """No longer interval, and the one taken where the pause can be neither measured nor planned, as the worker's size isn't known."""
    hinted: Rate = Rate(1 / 14_400)
    """The hazard while a hint is open for the worker's node or GPU (a rebalance recommendation, a cordon, maintenance that is far away, a
    GPU with errors), where it is more than `hazard`."""


class Cadence(_Yaml, frozen=True, kw_only=True):
    """How often images are taken when it isn't a fixed `every`."""

    optimal: Optimal


class Pause(_Yaml, frozen=True, kw_only=True):
    """Bounds on standing still for a checkpoint."""

    at_most: Duration | None = None
    """A checkpoint that is expected to stop its worker for longer isn't taken: by the median of what the worker's images cost it so far, or
    else by its size. None: no bound."""
    share: Share = Share(0.2)
    """At most this share of a pool stands still for checkpoints at once; rounded down, but one worker always may."""


class Overhead(_Yaml, frozen=True, kw_only=True):
    """A bound on the share of its time that a worker stands still for checkpoints."""

    at_most: Share
    """Where the interval would cost more than this, it is lengthened until it doesn't, also beyond the cadence's `max`."""


class CheckpointSpec(_Spec, frozen=True, kw_only=True):
    """Take images of running workers often enough that losing one is cheap. Voluntary."""

    every: Duration | None = None
    """How long after a worker's newest image the next one is taken. This or `cadence`, one of them."""
    cadence: Cadence | None = None
    """An interval that is computed for each worker. This or `every`, one of them."""
    when: Expression | None = None
    """Boolean over `worker`, `node`, `pool`; a checkpoint is taken only while it holds. Unknown means not now."""
    pause: Pause = Pause()
    overhead: Overhead | None = None
    prefer: Literal["idle"] | None = None
    """`idle`: from when an image is due, wait for the worker to serve nothing, up to one more interval, then take it anyway.
    A load that isn't known isn't idle; a worker without any image doesn't wait. None: take it when it is due."""
    keep: Keep = Keep()
    copies: int = 1
    """Nodes that hold each image, the worker's own included: with 1 it dies with its node."""
    archive: bool = False
    """Send each image to the archive of the agents' settings as well, once its copies are whole. One that can't be sent is kept on its
    nodes all the same; the next checkpoint tries again. What `keep` doesn't keep goes from there, too."""


class Gain(_Yaml, frozen=True, kw_only=True):
    """What a new place must be better by."""

    at_least: float
    """In the unit of `to.prefer`: its value at the new node less its value at the worker's own."""


class RebalanceSpec(_Spec, frozen=True, kw_only=True):
    """Move workers whose best place has changed: to a better slot, or away from a node that is to be emptied. Voluntary."""

    when: Expression
    """Boolean over `worker`, `node`, `pool`, `pools`, `metrics` and `now`: which of the covered workers ought to be elsewhere."""
    for_: Duration = msgspec.field(name="for", default=Duration(60))
    """How long `when` must hold without a break."""
    to: Destination = Destination()
    gain: Gain | None = None
    """Without it any place that fits will do, once `when` says that the worker must go. With it `to.prefer` is required. Either way it
    goes only to where it would stay: where `when` is false, or from where going back would be no such gain."""
    cooldown: Duration = Duration(1800)
    """A worker that was moved, by whatever policy, isn't moved by this one again for this long; each further move of it that fails in a row
    doubles the time. After three voluntary moves within an hour a person is asked. Within the hour it doesn't go back to a node that such a
    move took it from; and it never goes to where another policy in force would move it again."""
    step: int = 1
    """Workers that move in one plan, at most."""


class Window(_Yaml, frozen=True, kw_only=True):
    """A part of the week. The times are wall-clock times: a skipped hour isn't in it, a repeated one is in it twice."""

    zone: str
    """IANA time zone, such as Europe/Berlin. There is no default."""
    from_: str = msgspec.field(name="from")
    """`HH:MM`, included."""
    to: str
    """`HH:MM`, excluded; `24:00` is the end of the day. Not later than `from`: the window ends on the next day."""
    days: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    """Days on which it begins."""


class PerWindow(_Yaml, frozen=True, kw_only=True):
    """How many disruptions may begin within any stretch of time."""

    max: int | Share
    """A number, or a share of the group's workers (rounded down)."""
    window: Duration
    """The stretch; at most an hour, which is how far the engine looks back."""


class BudgetSpec(_Scoped, frozen=True, kw_only=True):
    """How much voluntary disruption is allowed at once. Where several budgets cover a worker, the most restrictive one counts.

    A worker that no budget in force covers, or none that counts the operation at hand, has one disruption at a time in its pool. A budget
    of which it can't be said whether it covers a worker counts as zero for that worker, and so does one by zone for a worker whose node has
    no zone, and one whose windows can't be read. One that is refused for an error, and of which no earlier version is in force, counts as
    zero for its workers where its selector can be read, and else for all: a typo frees nobody. A chain counts once for each worker that it
    disrupts: a restore disrupts nobody.
    """

    operations: tuple[Disruption, ...] = ("move", "park", "drain", "reassign")
    """What counts as a disruption, and is held when the budget is spent."""
    per: Literal["pool", "node", "zone", "all"] = "pool"
    """Each pool, node or zone (node label `topology.kubernetes.io/zone`) has one for itself; `all`: the covered workers share one."""
    max_concurrent: int | Share | None = None
    """Disruptions at once: a number, or a share of the group's workers (rounded down: 3% of 20 is none). Involuntary ones count too."""
    max_per_window: PerWindow | None = None
    windows: tuple[Window, ...] = ()
    """Voluntary work of the kinds in `operations` begins only within one of these. Empty: at any time."""


class FleetProfileSpec(_Yaml, frozen=True, kw_only=True):
    """Figures that operations are planned with until agents have measured like ones. What isn't given stays as it is built in.

    With a GPU model they count for workers on slots of that model, and come before those of a profile without one.
    """

    mode: Mode = "enforce"
    """`off` and `preview`: the figures aren't used."""
    gpu_model: str | None = None
    """As the node's inventory names it. None: for all workers."""
    dump: Bandwidth | None = None
    """Device and host memory into an image."""
    restore: Bandwidth | None = None
    """An image into a running worker. Where it is given, the built-in least time of a restore with GPUs doesn't count any longer."""
    network: Bandwidth | None = None
    """Between two nodes."""
    fixed_dump: Duration | None = None
    """Fence, freeze and bookkeeping of a dump, whatever the size."""
    fixed_restore: Duration | None = None
    """Network identity, probe and commit of a restore, whatever the size."""
    native_start: Duration | None = None
    """From nothing to serving, without an image: what a voluntary move is compared with. It isn't made where a native start, and computing
    the context again at `prefillRate`, would be quicker; nor where it would be slower than the native start alone and the worker's tokens
    or its size aren't known. None, as built in: nothing is compared."""
    prefill_rate: float | None = None
    """Tokens of context that a worker recomputes in a second: what losing sessions is weighed with. None: that it takes any time doesn't
    count, and a move may take no longer than `nativeStart`."""
    prefill_doubling: float | None = None
    """Tokens of a context at which one more takes twice as long to compute as the first: long contexts cost more to lose, so that their
    workers' images are due more often, and a move is worth more. None: every token counts alike."""
    lead: dict[NoticeKind, Duration] = {}
    """Time from a notice to the node's end, by the notice's kind, for notices that give no deadline: what has to fit into it, less the
    reserve, is begun, and nothing is given up when it is over. A node that outlives it has no deadline again."""


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


class RebalancePolicy(_Document, frozen=True, kw_only=True, tag_field="kind", tag="RebalancePolicy"):
    """Move workers whose best place has changed."""

    spec: RebalanceSpec


class DisruptionBudget(_Document, frozen=True, kw_only=True, tag_field="kind", tag="DisruptionBudget"):
    """Limit how much voluntary work disrupts at once, and when."""

    spec: BudgetSpec


class FleetProfile(_Document, frozen=True, kw_only=True, tag_field="kind", tag="FleetProfile"):
    """Cost figures for planning."""

    spec: FleetProfileSpec


Document: TypeAlias = PreemptionPolicy | ReassignmentPolicy | CheckpointPolicy | RebalancePolicy | DisruptionBudget | FleetProfile


class Policy(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A checked document with its provenance: where it stands, and the blob that it came from.

    `commit` is the commit that this version was read at: older than the set's own when a later version of the file was refused. `refused`
    is what is wrong with a budget that was refused and of which no earlier version is known: `document` stands in for it then, and allows
    nothing. None for every other policy.
    """

    document: Document
    place: Place
    blob: str
    commit: Commit
    refused: Problem | None = None

    @cached_property
    def name(self) -> PolicyName:
        """Its name, unique in the set."""
        return PolicyName(self.document.metadata.name)

    @property
    def kind(self) -> str:
        """`PreemptionPolicy` and so on."""
        return type(self.document).__name__

    @property
    def mode(self) -> Mode:
        """Whether it is evaluated, and whether what it decides is done."""
        return self.document.spec.mode

    @property
    def selector(self) -> WorkerSelector | None:
        """The workers that it covers; None for a kind that isn't about workers."""
        spec = self.document.spec
        return spec.workers if isinstance(spec, _Scoped) else None

    @property
    def priority(self) -> int:
        """What it wins conflicts with; 0 for the kinds that make nothing happen."""
        spec = self.document.spec
        return spec.priority if isinstance(spec, _Spec) else 0

    @property
    def metrics(self) -> dict[str, MetricInput]:
        """Extra inputs that it declares; empty for the kinds that can't."""
        spec = self.document.spec
        return spec.metrics if isinstance(spec, _Spec) else {}

    @property
    def acts(self) -> bool:
        """It can make something happen: it is neither a budget nor a profile."""
        return isinstance(self.document.spec, _Spec)


class PolicySet(msgspec.Struct, frozen=True, kw_only=True):
    """All policies at one commit, sorted by name. `problems` are those of files that were refused: their last good version is in
    `policies`, if there was one, and a budget of zero for each budget without one.
    """

    commit: Commit
    digest: Digest
    policies: tuple[Policy, ...] = ()
    problems: tuple[Problem, ...] = ()
