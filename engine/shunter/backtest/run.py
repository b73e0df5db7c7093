"""Step through the past: at each step a snapshot, the engine's own decision on it, and a fleet in which that has happened."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from shunter.backtest.outcome import UNDONE_S, opposite, settled
from shunter.backtest.price import Prices
from shunter.backtest.tally import Tallies
from shunter.backtest.world import Simulated
from shunter.decide.evaluate import evaluate
from shunter.decide.hold import horizon
from shunter.decide.memory import Memory
from shunter.decide.profile import Profile
from shunter.model.backtest import Act, Backtest, Lost, Point
from shunter.model.expression import Rules
from shunter.model.finding import Verdict
from shunter.model.ids import Digest, NodeId, OperationId, PolicyName, PoolId, WorkerId, pool_id
from shunter.model.operation import EngineState
from shunter.model.plan import Evaluation, OperationKind, Plan, PlannedOperation
from shunter.model.policy import PolicySet, ReassignmentPolicy
from shunter.model.sample import Known, Sample
from shunter.model.snapshot import Fleet, Notice, NoticeKind, Role, Samples, Snapshot, Worker, WorkerState
from shunter.model.table import SampleTable

MARGIN_S = 15.0
"""Snapshots are kept so much longer than the longest `for`, as the engine does."""
POINTS = 300
"""Steps at which it is looked what policies say, and that are kept for the picture: working out every finding of every step would take
several times as long as deciding. What is done is counted at every step.
"""
_REMEMBERED = 32
"""So many of a worker's changes of place are compared with what undoes them."""
_MOVING = (OperationKind.MOVE, OperationKind.PARK, OperationKind.RESTORE)
_LIVE = (WorkerState.RUNNING, WorkerState.FENCED)
_TAKES = (NoticeKind.PREEMPTION, NoticeKind.GONE)
"""Notices after whose deadline the node is away."""
OPEN_S = 600.0
"""How long a notice without a deadline is taken to be open, in seconds: nothing recorded when it was withdrawn."""


class Simulation(Snapshot, frozen=True, kw_only=True, dict=True):
    """A snapshot that nothing refers to: a digest of it would take as long as deciding on it."""

    @cached_property
    def id(self) -> Digest:
        """Its time."""
        return Digest(f"simulated:{self.at}")


class Decided(NamedTuple):
    """A step: what was decided on what. `looked`: what policies say was looked at."""

    snapshot: Snapshot
    state: EngineState
    evaluation: Evaluation
    looked: bool


def horizon_of(policies: PolicySet) -> float:
    """For how long snapshots are kept, in seconds."""
    return horizon(policies) + MARGIN_S


class Run:
    """One backtest in the making. Call `step` for each instant in order, then `result`."""

    def __init__(
        self,
        policies: PolicySet,
        fleet: Fleet,
        notices: Sequence[Notice],
        rules: Rules,
        profile: Profile,
        *,
        begin: float,
        end: float,
        step: float,
    ) -> None:
        """`fleet` is the one at the beginning, `notices` all that came within the time."""
        self._policies, self._rules, self._profile = policies, rules, profile
        self._begin, self._end, self._step = begin, end, step
        self.world = Simulated(fleet, EngineState())
        self._notices = sorted(notices, key=lambda n: (n.node, n.id))
        self._kept: deque[Snapshot] = deque()
        self._memory = Memory()
        self._window = horizon_of(policies)
        self._tallies = Tallies(policies)
        self._acts: list[Act] = []
        self._of_worker: defaultdict[WorkerId, deque[tuple[float, PlannedOperation]]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._shown: set[OperationId] = set()
        self._lost: list[Lost] = []
        self._live: tuple[tuple[Worker, ...], frozenset[WorkerId]] = (), frozenset()
        self._away: set[NodeId] = set()
        self._points: list[Point] = []
        self._every = max(1, -(-int((end - begin) / step + 1) // POINTS))
        self._steps = 0

    def step(self, at: float, samples: Samples) -> Decided:
        """Decide on what was known at `at`, and let it happen. Samples of workers that don't run by now are left out."""
        self.world.advance(at)
        self._take_away(at, samples)
        fleet = self.world.fleet
        live = self._alive(fleet)
        seen = msgspec.structs.replace(samples, workers=_only(samples.workers, live))
        snapshot = Simulation(at=at, fleet=fleet, samples=seen, notices=self._open(at))
        self._kept.append(snapshot)
        while at - self._kept[0].at > self._window:
            self._kept.popleft()
        state = self.world.state(at)
        evaluation = evaluate(self._policies, list(self._kept), state, at, self._rules, self._profile, self._memory)
        begun = [self._act(operation, at, seen) for operation in (*self.world.begin(evaluation.plan, at), *self._previews(evaluation.plan))]
        self._note(begun)
        looked = self._steps % self._every == 0
        if looked:
            self._points.append(_point(at, [w for w in fleet.workers if w.id in live], seen, self._tallies.said(evaluation.findings)))
        self._steps += 1
        return Decided(snapshot, state, evaluation, looked)

    def _alive(self, fleet: Fleet) -> frozenset[WorkerId]:
        if fleet.workers is not self._live[0]:
            self._live = fleet.workers, frozenset(w.id for w in fleet.workers if w.state in _LIVE)
        return self._live[1]

    def result(self, remarks: Sequence[str] = ()) -> Backtest:
        """What came of it. `remarks` are put before the run's own."""
        prices = Prices(self._policies.policies, self._profile)
        shifts = {p.name for p in self._policies.policies if isinstance(p.document, ReassignmentPolicy)}
        acts = settled(self._acts, self._end, shifts)
        has_gpus = any(s.gpus for n in self.world.fleet.nodes for s in n.slots)
        return Backtest(
            begin=self._begin,
            end=self._end,
            step=self._step,
            steps=self._steps,
            looked=len(self._points),
            commit=self._policies.commit,
            policy_set=self._policies.digest,
            acts=acts,
            prices=prices.of(acts),
            tallies=self._tallies.result(),
            budgets=self._tallies.budgets(),
            lost=tuple(self._lost),
            points=tuple(self._points),
            unit="GPU-seconds" if has_gpus else "worker-seconds",
            remarks=(*remarks, *self._sampled(), *prices.assumed()),
        )

    def _sampled(self) -> list[str]:
        if self._every == 1:
            return []
        return [f"What policies and budgets say was looked at in one step of {self._every:,}; operations are counted at all of them"]

    def _open(self, at: float) -> tuple[Notice, ...]:
        """Notices that are open: until the deadline, and as long as their node is there."""
        return tuple(n for n in self._notices if n.seen_at <= at and (n.node in self._away or at <= _ends(n)))

    def _take_away(self, at: float, samples: Samples) -> None:
        for notice in self._notices:
            if notice.kind in _TAKES and notice.node not in self._away and notice.seen_at <= at and _ends(notice) < at:
                self._away.add(notice.node)
                for worker in self.world.take_away(notice.node, at):
                    sessions = _value(samples, worker.id, "sessions")
                    self._lost.append(Lost(at=at, worker=worker.id, node=notice.node, sessions=sessions))

    def _previews(self, plan: Plan) -> Iterator[PlannedOperation]:
        """What is only shown is told once, however often it is planned again."""
        for operation in plan.operations:
            if operation.preview and operation.id not in self._shown:
                self._shown.add(operation.id)
                yield operation

    def _act(self, operation: PlannedOperation, at: float, samples: Samples) -> Act:
        slot = self.world.slot(operation.from_slot or operation.expect.at or operation.to_slot)
        worker = self.world.workers.get(operation.worker)
        holds = worker is not None and worker.role == "decode"
        return Act(
            at=at,
            operation=operation,
            sessions=_value(samples, operation.worker, "sessions") if holds else 0.0,
            tokens=_value(samples, operation.worker, "kvTokens") if holds else 0.0,
            gpus=slot.gpus if slot else 0,
            gpu_model=slot.gpu_model if slot else "",
            undoes=self._undoes(operation, at),
        )

    def _note(self, begun: Sequence[Act]) -> None:
        self._acts += begun
        self._tallies.begun(begun)
        for act in begun:
            if not act.operation.preview and act.operation.kind in _MOVING:
                self._of_worker[act.operation.worker].append((act.at, act.operation))

    def _undoes(self, operation: PlannedOperation, at: float) -> bool:
        """It takes a worker back to a slot that it left less than an hour ago, or changes its mind on whether the worker runs at all."""
        if operation.lane == "involuntary" or operation.preview:
            return False
        return any(at - before <= UNDONE_S and opposite(other, operation) for before, other in self._of_worker[operation.worker])


def _only(samples: Mapping[str, Mapping[str, Sample]], workers: frozenset[WorkerId]) -> Mapping[str, Mapping[str, Sample]]:
    if isinstance(samples, SampleTable):
        return samples.only(workers)
    return {worker: own for worker, own in samples.items() if worker in workers}


def _ends(notice: Notice) -> float:
    return notice.deadline if notice.deadline is not None else notice.seen_at + (0.0 if notice.kind is NoticeKind.GONE else OPEN_S)


def _value(samples: Samples, worker: WorkerId, field: str) -> float | None:
    found = samples.workers.get(worker, {}).get(field)
    return found.value if isinstance(found, Known) else None


def _point(at: float, live: Sequence[Worker], samples: Samples, verdicts: Mapping[PolicyName, Counter[Verdict]]) -> Point:
    members: dict[tuple[str, Role], list[WorkerId]] = defaultdict(list)
    for worker in live:
        members[worker.graph, worker.role].append(worker.id)
    pools: dict[PoolId, tuple[int, float | None, float | None]] = {}
    for pool, own in sorted((pool_id(*of), own) for of, own in members.items()):
        waiting, usage = _values(samples, own, "waiting"), _values(samples, own, "kvUsage")
        pools[pool] = (len(own), sum(waiting) if waiting is not None else None, sum(usage) / len(own) if usage is not None else None)
    return Point(at=at, pools=pools, verdicts={policy: dict(counts) for policy, counts in verdicts.items()})


def _values(samples: Samples, workers: Sequence[WorkerId], field: str) -> list[float] | None:
    """What the workers have of the field; None where it isn't known of one of them."""
    if isinstance(samples.workers, SampleTable):
        column = samples.workers.column(field, workers)
        return column.values.tolist() if column.known.all() else None
    found = [value for worker in workers if (value := _value(samples, worker, field)) is not None]
    return found if len(found) == len(workers) else None
