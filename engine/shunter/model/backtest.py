"""What policies would have done over a stretch of the past, as figures for people and programs."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from shunter.model.difference import Change, Flip
from shunter.model.finding import Verdict
from shunter.model.ids import Commit, Digest, NodeId, PolicyName, PoolId, WorkerId
from shunter.model.plan import PlannedOperation

Instead = Literal["loss", "teardown", "nothing"]
"""What would have been without an act: its worker lost with its node (`loss`: whatever is involuntary), torn down so that another could
have its place (`teardown`: a change of roles that wasn't taken back within the hour), or nothing at all."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that would have been begun at `at`. `sessions` and `tokens` are what its worker held then; None: not known.

    `gpus` is the number of GPUs of the worker's slot; 0: none, or not known.
    """

    at: float
    operation: PlannedOperation
    sessions: float | None
    tokens: float | None
    gpus: int = 0
    gpu_model: str = ""
    undoes: bool = False
    """It takes back what another did less than an hour before: a flap."""
    instead: Instead = "nothing"
    still: float | None = None
    """Seconds for which its worker stood still for it: one that was parked until it was brought back, or to the end. None: not known."""
    idle: float | None = None
    """Seconds for which GPUs of its worker's size did nothing for it: as long as it stood still, but for a parked one, whose slot may serve
    another before it is back, or is gone with its node. None: not known."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What acts cost, and what the same would have cost by another way; GPU-seconds. `unpriced` acts have a figure that isn't known, and
    count nowhere.
    """

    baseline: str
    formula: str
    spent: float = 0.0
    instead: float = 0.0
    acts: int = 0
    unpriced: int = 0

    @property
    def saved(self) -> float:
        """GPU-seconds; negative where the other way would have been cheaper."""
        return self.instead - self.spent


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. `steps` counts the steps looked at in which it said so of at least one subject; `flips` how often a subject's verdict
    changed from one of those to the next, and `acted` how often to `act`. `operations` and `undone` count all steps: what it began, and
    what of that took back what was less than an hour old.
    """

    policy: PolicyName
    steps: dict[Verdict, int] = {}
    acted: int = 0
    flips: int = 0
    operations: int = 0
    undone: int = 0
    inputs_missing: tuple[str, ...] = ()
    """Gates that were inconclusive, the most frequent first."""


class BudgetUse(msgspec.Struct, frozen=True, kw_only=True):
    """One budget in one group: in how many of the steps looked at it held something, and its own words when it was used the most."""

    policy: PolicyName
    group: str
    held: int
    told: str


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was still on a node when that was taken away."""

    at: float
    worker: WorkerId
    node: NodeId
    sessions: float | None


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One of the steps looked at, for the picture: figures of each pool (workers that run, requests that wait, mean KV usage; None: not
    known), and how many subjects each policy said what of.
    """

    at: float
    pools: Mapping[PoolId, tuple[int, float | None, float | None]]
    verdicts: Mapping[PolicyName, Mapping[Verdict, int]]


class Turned(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that came out otherwise by other policies, on the same snapshots: at how many of the steps compared, the first and the
    last of them (seconds since the epoch), and what did it at the first.
    """

    flip: Flip
    first: float
    last: float
    steps: int


class Altered(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that would have been begun by both, each in its way."""

    before: Act
    after: Act
    fields: tuple[Change, ...]


class Contrast(msgspec.Struct, frozen=True, kw_only=True):
    """What other policies would have done otherwise over the same stretch of the past.

    Operations are those of two simulated fleets, one for each side, which differ more and more; findings are both sides' on the snapshots
    of the base's fleet, so that nothing but the policies makes them differ.
    """

    base: Commit
    head: Commit
    added: tuple[Act, ...] = ()
    removed: tuple[Act, ...] = ()
    altered: tuple[Altered, ...] = ()
    turned: tuple[Turned, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many of each."""
        return {"added": len(self.added), "removed": len(self.removed), "changed": len(self.altered), "flipped": len(self.turned)}

    def __bool__(self) -> bool:
        """There is a difference."""
        return any(self.counts.values())

    def cause(self, act: Act) -> Turned | None:
        """What of the findings explains an operation that only one side began: that of its policy and its worker or graph, the nearest in
        time. None: nothing that was seen does; it follows from what the fleets had become by then.
        """
        about = {act.operation.worker, (act.operation.pool or "").rpartition("/")[0]}
        found = [t for t in self.turned if t.flip.policy == act.operation.policy and t.flip.subject in about and t.first <= act.at]
        return min(found, key=lambda t: (max(0.0, act.at - t.last), -t.first), default=None)


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Times in seconds since the epoch; `remarks` is what isn't known or was assumed, in sentences."""

    begin: float
    end: float
    step: float
    steps: int
    looked: int
    """Steps at which it was looked what policies say."""
    commit: Commit
    policy_set: Digest
    acts: tuple[Act, ...]
    prices: tuple[Price, ...]
    tallies: tuple[Tally, ...]
    budgets: tuple[BudgetUse, ...] = ()
    lost: tuple[Lost, ...] = ()
    points: tuple[Point, ...] = ()
    unit: str = "GPU-seconds"
    remarks: tuple[str, ...] = ()

    @property
    def carried(self) -> tuple[Act, ...]:
        """Acts that took a worker elsewhere."""
        return tuple(a for a in self.acts if a.operation.kind.value in ("move", "park") and not a.operation.preview)

    @property
    def kept(self) -> tuple[float, float, int]:
        """Sessions and tokens that would have been lost without an act that carried their worker elsewhere, as far as they are known, and
        of how many of those acts one or the other isn't. What nobody would have touched isn't kept by carrying it about.
        """
        carried = [a for a in self.carried if a.instead != "nothing"]
        sessions = sum(a.sessions for a in carried if a.sessions is not None)
        tokens = sum(a.tokens for a in carried if a.tokens is not None)
        return sessions, tokens, sum(a.sessions is None or a.tokens is None for a in carried)
