"""A test's time: at every step a snapshot, the engine's own decision on it, and what carrying it out has come to.

What this doesn't do, and an engine does: operations fail only with their worker, take exactly the time that was estimated, and leave the
worker where it was until they are over. Agents, networks and requests aren't there at all.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from shunter.cases.document import Change
from shunter.cases.effects import away, carried_out, reachable
from shunter.cases.scenario import ALL, Scenario
from shunter.cases.series import Series
from shunter.decide.evaluate import evaluate
from shunter.decide.hold import horizon
from shunter.model.expression import Rules
from shunter.model.ids import Epoch, NodeId, OperationId, WorkerId
from shunter.model.operation import EngineState, Measured, OperationRecord, Outcome, Status
from shunter.model.plan import Evaluation, PlannedOperation
from shunter.model.policy import MetricInput, Policy
from shunter.model.sample import Known, Missing, Sample, Stale
from shunter.model.snapshot import Fleet, Samples, Snapshot, WorkerState
from shunter.model.vocabulary import POOL_METRICS, WORKER_METRICS, Variable

MARGIN_S: Final = 15.0
"""Snapshots are kept so much longer than the longest `for`, as the engine does."""
_HOUR: Final = 3600.0
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
        evaluation = evaluate(scenario.policies, kept, run.state(now), now, rules, scenario.profile)
        yield Moment(step=step, snapshot=snapshot, evaluation=evaluation)
        if scenario.carry_out:
            run.begin(evaluation, now)


class _Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """An operation under way. `ends` is None while it waits for its turn in a chain."""

    record: OperationRecord
    ends: float | None


class _Run:
    """The simulated world, and the engine's memory of what it did in it."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.fleet: Fleet = scenario.fleet
        self.changes = sorted(scenario.changes, key=lambda c: c[0])
        self.active: dict[OperationId, _Waiting] = {}
        self.ended: dict[OperationId, OperationRecord] = {}

    def advance(self, step: int, now: float) -> None:
        """Let happen what has happened by now: operations end in the order of their times, then the step's changes come."""
        while (due := self._next(now)) is not None:
            self._end(due)
        while self.changes and self.changes[0][0] <= step:
            self._change(self.changes.pop(0)[1], now)

    def _next(self, now: float) -> _Waiting | None:
        ready = [w for w in self.active.values() if w.ends is not None and w.ends <= now]
        return min(ready, key=lambda w: (w.ends or 0.0, w.record.id), default=None)

    def _end(self, due: _Waiting) -> None:
        assert due.ends is not None, "it is over"
        planned = due.record.planned
        self.fleet = carried_out(self.fleet, planned, due.ends)
        measured = Measured(stopped=planned.estimate.stopped)
        outcome = Outcome(status=Status.SUCCEEDED, at=due.ends, measured=measured)
        del self.active[planned.id]
        self.ended[planned.id] = msgspec.structs.replace(due.record, outcome=outcome)
        for other in list(self.active.values()):
            if other.ends is None:
                self.active[other.record.id] = self._timed(other.record, due.ends)

    def _timed(self, record: OperationRecord, now: float) -> _Waiting:
        planned = record.planned
        waits = any(one not in self.ended for one in planned.after)
        # the total of a move in a chain is from the plan on, with what comes before it; its own work is what it stands still for
        work = planned.estimate.stopped if planned.after else None
        ends = None if waits else now + (planned.estimate.total or 0.0 if work is None else work)
        return _Waiting(record=msgspec.structs.replace(record, waits=waits), ends=ends)

    def _change(self, change: Change, now: float) -> None:
        if change.node is not None and change.reachable is not None:
            self.fleet = reachable(self.fleet, NodeId(change.node), change.reachable)
        if change.worker is not None and change.state is not None:
            self.fleet = away(self.fleet, WorkerId(change.worker), change.state)
            if change.state is WorkerState.LOST:
                self._fail(WorkerId(change.worker), now)

    def _fail(self, worker: WorkerId, now: float) -> None:
        """What is under way on a worker that is lost fails, and what waits for that is dropped."""
        failed = {w.record.id for w in self.active.values() if w.record.planned.worker == worker}
        for one in failed:
            outcome = Outcome(status=Status.FAILED, at=now, reason="its worker was lost")
            self.ended[one] = msgspec.structs.replace(self.active.pop(one).record, outcome=outcome)
        for waiting in [w.record for w in self.active.values() if failed.intersection(w.record.planned.after)]:
            del self.active[waiting.id]

    def begin(self, evaluation: Evaluation, now: float) -> None:
        """Begin what was planned, but for what is only shown."""
        for operation in evaluation.plan.operations:
            if not operation.preview and operation.id not in self.active and operation.id not in self.ended:
                self.active[operation.id] = self._timed(self._record(operation, evaluation, now), now)

    def _record(self, operation: PlannedOperation, evaluation: Evaluation, now: float) -> OperationRecord:
        return OperationRecord(planned=operation, plan=evaluation.plan.digest, epoch=Epoch(1), created_at=now)

    def state(self, now: float) -> EngineState:
        """What the engine would know of its own doing."""
        recent = [r for r in self.ended.values() if r.outcome is not None and now - r.outcome.at <= _HOUR]
        return EngineState(active=tuple(w.record for w in self.active.values()), recent=tuple(recent))

    def snapshot(self, step: int, now: float) -> Snapshot:
        """The world at a step."""
        told = [t.notice for t in self.scenario.notices if t.first <= step and (t.last is None or step < t.last)]
        serving = [w for w in self.fleet.workers if w.state in _SERVING]
        return Snapshot(
            at=now,
            fleet=self.fleet,
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
