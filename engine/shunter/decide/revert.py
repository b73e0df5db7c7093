"""Giving the hardware back: the worker that a shift brought is parked, and the one that it parked comes back."""

from shunter.decide.deciding import Deciding
from shunter.decide.give import Shift, restore, waiting_worker
from shunter.decide.golden import start
from shunter.decide.numbers import number
from shunter.decide.pick import fits, kept
from shunter.decide.shift import Stop, records, spec_of
from shunter.model.finding import Evidence, Verdict
from shunter.model.ids import WorkerId, pool_id
from shunter.model.operation import OperationRecord, Status
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import Policy
from shunter.model.snapshot import Image, Worker, WorkerState

_LEAVING = (OperationKind.PARK, OperationKind.DRAIN)
_KEEP = 1
"""Workers that the pool which gives back keeps: without any its role isn't served at all."""


def undo(d: Deciding, policy: Policy, graph: str, cause: str) -> tuple[Stop, tuple[Evidence, ...]]:
    """Plan to undo one shift, the last first. The answer says what was planned, or why nothing was."""
    spec = spec_of(policy)
    own = records(d, policy, graph)
    standing = [w for w in d.world.pools.get(pool_id(graph, spec.to), ()) if w.state is WorkerState.RUNNING]
    brought = _brought(d, standing, own) or (_likely(standing) if _parked(d, policy, graph, own) else None) or _started(standing, own)
    if brought is None:
        return _stop(Verdict.PASS, "there is no shift to undo", "revert")
    if len(standing) <= _KEEP:
        return _stop(Verdict.HOLD, f"{brought.id} is the last {spec.to} worker", "revert")
    if (why := kept(d, brought)) is not None:
        return _stop(Verdict.HOLD, f"{brought.id}: {why}", "revert")
    allowed = d.budgets.ask(policy, OperationKind.PARK, brought)
    if allowed.refusal is not None:
        return Stop(verdict=Verdict.HOLD, reason=f"{brought.id}: {allowed.refusal}", gate="budget"), allowed.evidence
    shift = Shift(policy=policy, graph=graph, cause=cause, why=f"`revert.when` has held: {spec.revert.when.text if spec.revert else ''}")
    assert brought.node is not None, "it was seen to run on a node that stays"
    pair = _parked(d, policy, graph, own)
    fitting = pair is not None and brought.slot is not None and fits(d, d.needs(pair[1]), brought, d.size(pair[0], pair[1].id))
    native = not fitting and number(d, graph, spec.from_) is not None
    started = start(d, spec, pool_id(graph, spec.from_)) if native else None
    park = d.plan(
        policy,
        OperationKind.PARK,
        brought,
        Preconditions(incarnation=brought.incarnation, at=brought.slot),
        cause=cause,
        reason=f"{shift.why}; {brought.id} gives its slot back",
        estimate=d.phases(brought).dumping(copies=False),
        from_slot=brought.slot,
        copies=(brought.node,),
        hands_to=pool_id(graph, spec.from_) if started else None,
        golden=started.golden if started else "",
    )
    told = f"{brought.id} is parked" + (f", and a {spec.from_} worker is started {started.how}" if started else "")
    if fitting and pair is not None and brought.slot is not None:
        restore(d, shift, pair[0], pair[1], brought.slot, f"{pair[0].id} comes back", after=(park.id,))
        told = f"{told}, {pair[0].id} comes back into {brought.slot}"
    stop, evidence = _stop(Verdict.ACT, told, "revert.when")
    return stop, (*allowed.evidence, *evidence)


def _stop(verdict: Verdict, reason: str, gate: str) -> tuple[Stop, tuple[Evidence, ...]]:
    result = verdict is Verdict.ACT
    return Stop(verdict=verdict, reason=reason, gate=gate), (Evidence(gate="revert", result=result, detail=reason),)


def _brought(d: Deciding, standing: list[Worker], own: list[OperationRecord]) -> Worker | None:
    """The worker that the last shift restored, if it still runs and wasn't parked since."""
    running = {w.id: w for w in standing}
    last: dict[WorkerId, OperationRecord] = {r.planned.worker: r for r in own if r.status is Status.SUCCEEDED}
    shifts = [r for r in reversed(own) if last.get(r.planned.worker) is r and r.planned.kind is OperationKind.RESTORE]
    return next((running[r.planned.worker] for r in shifts if r.planned.worker in running and _is_shift(r)), None)


def _started(standing: list[Worker], own: list[OperationRecord]) -> Worker | None:
    """Where the last shift had a worker started natively, which of the pool that is can't be said: one that was never restored."""
    last = next((r for r in reversed(own) if r.planned.kind in _LEAVING and _is_shift(r)), None)
    if last is None or last.planned.hands_to is None or last.status is not Status.SUCCEEDED:
        return None
    return min(standing, key=lambda w: (bool(w.pinned), w.incarnation, w.id), default=None)


def _is_shift(record: OperationRecord) -> bool:
    return record.planned.cause.startswith("shift:")


def _likely(standing: list[Worker]) -> Worker | None:
    """When the engine no longer remembers the shift: the worker that was restored most often, since a native one never was."""
    restored = [w for w in standing if w.incarnation > 0]
    return min(restored, key=lambda w: (-w.incarnation, w.id), default=None)


def _parked(d: Deciding, policy: Policy, graph: str, own: list[OperationRecord]) -> tuple[Worker, Image] | None:
    """The worker that a shift parked and that waits still: the last one remembered, else any of its pool, by the facts."""
    remembered = [r.planned.worker for r in reversed(own) if r.planned.kind is OperationKind.PARK and _is_shift(r)]
    pool = [w.id for w in d.world.pools.get(pool_id(graph, spec_of(policy).from_), ()) if w.state is WorkerState.PARKED]
    pairs = (waiting_worker(d, w) for w in [*(w for w in remembered if w in pool), *pool])
    return next((pair for pair in pairs if pair is not None), None)
