"""A test's time: at every step a snapshot, the engine's own decision on it, and what carrying it out has come to.

What the world that they play in does and doesn't do is said in `backtest.world`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from shunter.backtest.world import Simulated
from shunter.cases.document import Change
from shunter.cases.scenario import ALL, Scenario
from shunter.cases.series import Series
from shunter.decide.evaluate import evaluate
from shunter.decide.hold import horizon
from shunter.model.expression import Rules
from shunter.model.ids import NodeId, WorkerId
from shunter.model.operation import EngineState
from shunter.model.plan import Evaluation
from shunter.model.policy import MetricInput, Policy
from shunter.model.sample import Known, Missing, Sample, Stale
from shunter.model.snapshot import Samples, Snapshot, WorkerState
from shunter.model.vocabulary import POOL_METRICS, WORKER_METRICS, Variable

MARGIN_S: Final = 15.0
"""Snapshots are kept so much longer than the longest `for`, as the engine does."""
_STALE_AFTER: Final = 30.0
"""Age in seconds from which a catalog sample counts as stale here."""
_SERVING: Final = (WorkerState.RUNNING, WorkerState.FENCED)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One step: what was seen, and what was decided on it."""

    step: int
    snapshot: Snapshot
    evaluation: Evaluation


def simulate(scenario: Scenario, rules: Rules) -> Iterator[Moment]:
    """Each step of the test, from the first to the last expectation's. Deterministic."""
    run = _Run(scenario)
    window = horizon(scenario.policies) + MARGIN_S
    kept: list[Snapshot] = []
    for step in range(scenario.steps + 1):
        now = scenario.begins + step * scenario.step
        run.advance(step, now)
        snapshot = run.snapshot(step, now)
        kept = [*(s for s in kept if now - s.at <= window), snapshot]
        evaluation = evaluate(scenario.policies, kept, run.world.state(now), now, rules, scenario.profile)
        yield Moment(step=step, snapshot=snapshot, evaluation=evaluation)
        if scenario.carry_out:
            run.world.begin(evaluation.plan, now)


class _Run:
    """The simulated world, and what changes in it by itself."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = Simulated(scenario.fleet, EngineState())
        self.changes = sorted(scenario.changes, key=lambda c: c[0])

    def advance(self, step: int, now: float) -> None:
        """Let happen what has happened by now: operations end in the order of their times, then the step's changes come."""
        self.world.advance(now)
        while self.changes and self.changes[0][0] <= step:
            self._change(self.changes.pop(0)[1], now)

    def _change(self, change: Change, now: float) -> None:
        if change.node is not None and change.reachable is not None:
            self.world.set_reachable(NodeId(change.node), change.reachable)
        if change.worker is not None and change.state is not None:
            self.world.set_state(WorkerId(change.worker), change.state, now)

    def snapshot(self, step: int, now: float) -> Snapshot:
        """The world at a step."""
        told = [t.notice for t in self.scenario.notices if t.first <= step and (t.last is None or step < t.last)]
        serving = [w for w in self.world.fleet.workers if w.state in _SERVING]
        return Snapshot(
            at=now,
            fleet=self.world.fleet,
            samples=Samples(
                workers={w.id: _all_of(WORKER_METRICS, self.scenario.samples.get(w.id, {}), step, now) for w in serving},
                pools={pool: _all_of(POOL_METRICS, given, step, now) for pool, given in self.scenario.pools.items()},
                policies={
                    p.name: m for p in self.scenario.policies.policies if (m := self._declared(p, [w.id for w in serving], step, now))
                },
            ),
            notices=tuple(sorted(told, key=lambda n: (n.node, n.id))),
        )

    def _declared(self, policy: Policy, workers: Sequence[WorkerId], step: int, now: float) -> dict[str, dict[str, Sample]]:
        given = self.scenario.metrics.get(policy.name, {})
        declared = policy.metrics
        return {name: _metric_samples(declared[name], values, workers, step, now) for name, values in given.items() if name in declared}


def _all_of(fields: Sequence[Variable], given: dict[str, Series], step: int, now: float) -> dict[str, Sample]:
    return {v.name: _catalog_sample(v.name, v.unit, given.get(v.name), step, now) for v in fields}


def _catalog_sample(name: str, unit: str, given: Series | None, step: int, now: float) -> Sample:
    if given is None:
        return Missing(reason="the test gives it no value", query=name)
    return _sample(given, step, now, query=name, unit=unit, max_age=_STALE_AFTER)


def _metric_samples(
    declared: MetricInput, given: dict[str, Series], workers: Sequence[WorkerId], step: int, now: float
) -> dict[str, Sample]:
    def one(series: Series | None) -> Sample:
        entry = "missing" if series is None else series.at(step)
        if entry == "missing" and not isinstance(declared.on_missing, str):
            said = f"{declared.query} (no data; onMissing declares {float(declared.on_missing):g})"
            return Known(value=float(declared.on_missing), unit=declared.unit, at=now, query=said)
        if series is None:
            return Missing(reason="the test gives it no value", query=declared.query)
        return _sample(series, step, now, query=declared.query, unit=declared.unit, max_age=float(declared.max_age))

    if ALL in given:
        return {ALL: one(given[ALL])}
    return {worker: one(given.get(worker)) for worker in workers}


def _sample(given: Series, step: int, now: float, *, query: str, unit: str, max_age: float) -> Sample:
    entry = given.at(step)
    if isinstance(entry, float):
        return Known(value=entry, unit=unit, at=now, query=query)
    if entry == "stale":
        return Stale(value=given.number(step) or 0.0, age=max_age + 1, max_age=max_age, query=query)
    return Missing(reason="no data" if entry == "missing" else "the query failed", query=query)
