"""Giving a slot to the other pool: a free one if there is one, else that of a worker which makes way with its sessions."""

from collections.abc import Sequence
from typing import Final

import msgspec

from shunter.decide.deciding import Deciding
from shunter.decide.gates import missing
from shunter.decide.golden import Start, start
from shunter.decide.jobs import Job
from shunter.decide.numbers import number
from shunter.decide.pick import candidates, fits
from shunter.decide.place import place
from shunter.decide.shift import Condition, Stop, spec_of
from shunter.decide.words import holds
from shunter.decide.world import AWAY, STANDING
from shunter.decide.worth import weigh_move
from shunter.model.finding import Evidence, Verdict
from shunter.model.ids import OperationId, SlotId, WorkerId, pool_id
from shunter.model.plan import Estimate, OperationKind, PlannedOperation, Preconditions
from shunter.model.policy import Policy
from shunter.model.snapshot import Image, Worker

_KINDS: Final = {"move": OperationKind.MOVE, "park": OperationKind.PARK, "drain": OperationKind.DRAIN}
"""How a worker leaves, by `sessions`."""


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """What every step of one shift knows."""

    policy: Policy
    graph: str
    cause: str
    why: str
    make_way: bool = True


def give(
    d: Deciding, policy: Policy, graph: str, cause: str, trigger: Condition, *, make_way: bool = True
) -> tuple[Stop, tuple[Evidence, ...]]:
    """Plan up to `limits.step` shifts. The answer says what was planned, or why nothing was.

    Without `make_way` only free slots are given: nobody leaves his.
    """
    shift = Shift(policy=policy, graph=graph, cause=cause, why=trigger.evidence[0].detail, make_way=make_way)
    done: list[str] = []
    evidence: list[Evidence] = []
    last: Stop | None = None
    for _ in range(max(1, spec_of(policy).limits.step)):
        outcome, gates = _one(d, shift, len(done))
        evidence += gates
        if isinstance(outcome, Stop):
            last = outcome
            break
        done.append(outcome)
    if done:
        return Stop(verdict=Verdict.ACT, reason="; ".join(done), gate="when"), tuple(evidence)
    assert last is not None, "the first step either does something or says why not"
    return last, tuple(evidence)


def _one(d: Deciding, shift: Shift, done: int) -> tuple[Stop | str, list[Evidence]]:
    """One worker for the other pool: what was planned in words, or why not."""
    limits, to = spec_of(shift.policy).limits, spec_of(shift.policy).to
    serving = _standing(d, shift.graph, to) + done
    if limits.to is not None:
        within = Evidence(gate="limits.to.max", result=serving < limits.to.max, detail=f"{serving} {to} workers, at most {limits.to.max}")
        if not within.result:
            return Stop(verdict=Verdict.HOLD, reason=f"there are {serving} {to} workers, as many as may be", gate="limits.to.max"), [within]
    waiting = _waiting(d, shift.graph, to)
    if not waiting and shift.make_way and (kept := number(d, shift.graph, to)) is not None:
        return _start_natively(d, shift, kept, serving)
    if not waiting:
        reason = f"no parked {to} worker of {shift.graph} has an image that can be restored, and native starts aren't done here"
        return Stop(verdict=Verdict.HOLD, reason=reason, gate="to"), [Evidence(gate="to", result=False, detail=reason)]
    if (direct := _into_free(d, shift, waiting)) is not None:
        return direct, [Evidence(gate="to", result=True, detail=direct)]
    if not shift.make_way:
        reason = f"there is no free slot for a {to} worker, and no pool has a worker too many"
        return Stop(verdict=Verdict.HOLD, reason=reason, gate="to"), [Evidence(gate="to", result=False, detail=reason)]
    return _make_way(d, shift, waiting)


def _start_natively(d: Deciding, shift: Shift, kept: int, serving: int) -> tuple[Stop | str, list[Evidence]]:
    """One worker leaves, and whoever keeps the other pool at a number starts one for it: nobody waits in an image."""
    to, sessions = spec_of(shift.policy).to, spec_of(shift.policy).sessions
    if kept > serving:
        reason = f"{kept} {to} workers are asked for and {serving} serve: who was asked for last is still to come"
    elif sessions == "move":
        reason = f"no parked {to} worker has an image, and one that is started natively needs what a worker leaves by `park` or `drain`"
    else:
        return _make_way(d, shift, ())
    return Stop(verdict=Verdict.HOLD, reason=reason, gate="to"), [Evidence(gate="to", result=False, detail=reason)]


def _standing(d: Deciding, graph: str, role: str) -> int:
    return sum(w.state in STANDING for w in d.world.pools.get(pool_id(graph, role), ()))


def _waiting(d: Deciding, graph: str, role: str) -> list[tuple[Worker, Image]]:
    """Workers of the pool that can be restored, the newest image first."""
    pool = d.world.pools.get(pool_id(graph, role), ())
    away = [w for w in pool if w.state in AWAY and d.ledger.blocked(w.id) is None]
    found = [(w, image) for w in away if (image := d.world.restorable(w.id)) is not None]
    return sorted(found, key=lambda pair: (-pair[1].taken_at, pair[0].id))


def _into_free(d: Deciding, shift: Shift, waiting: Sequence[tuple[Worker, Image]]) -> str | None:
    """Restore one of the waiting into a free slot: nobody has to make way. None when there is no such slot."""
    free = d.free_slots()
    for worker, image in waiting:
        found = d.finder.find(d.needs(image), free, scope={}, size=d.size(worker, image.id))
        placed = place([Job(worker=worker.id)], {worker.id: found.options}, {}, d.now)
        if (slot := placed.slots.get(worker.id)) is not None:
            restore(d, shift, worker, image, slot, f"{slot} is free: no {spec_of(shift.policy).from_} worker has to make way")
            return f"{worker.id} is restored into {slot}, which is free"
    return None


def _make_way(d: Deciding, shift: Shift, waiting: Sequence[tuple[Worker, Image]]) -> tuple[Stop | str, list[Evidence]]:
    """Have one worker leave its slot for one of the waiting."""
    spec = spec_of(shift.policy)
    evidence: list[Evidence] = []
    serving = _standing(d, shift.graph, spec.from_) - _leaving(d, shift.graph, spec.from_)
    if spec.sessions != "move":
        within = Evidence(
            gate="limits.from.min",
            result=serving - 1 >= spec.limits.from_.min,
            detail=f"{serving} {spec.from_} workers, one fewer after it, at least {spec.limits.from_.min}",
        )
        evidence.append(within)
        if not within.result:
            reason = f"{serving} {spec.from_} workers are left: no fewer than {spec.limits.from_.min} may be"
            return Stop(verdict=Verdict.HOLD, reason=reason, gate="limits.from.min"), evidence
    able, undecided = candidates(d, shift.policy, shift.graph)
    stop = Stop(verdict=Verdict.HOLD, reason=f"no {spec.from_} worker may be taken", gate="pick")
    for candidate in able:
        outcome = _swap(d, shift, candidate.worker, waiting)
        if isinstance(outcome, str):
            return outcome, evidence
        stop, gates = outcome
        evidence += gates
    if not able and undecided is not None:
        return Stop(verdict=Verdict.INCONCLUSIVE, reason=missing(undecided), gate="pick.where"), evidence
    evidence.append(Evidence(gate=stop.gate, result=False, detail=stop.reason))
    return stop, evidence


def _swap(d: Deciding, shift: Shift, leaver: Worker, waiting: Sequence[tuple[Worker, Image]]) -> str | tuple[Stop, tuple[Evidence, ...]]:
    """Have this worker make way for one of the waiting: what was planned in words, or why nothing was. The whole chain or none of it."""
    spec = spec_of(shift.policy)
    pair = next((p for p in waiting if fits(d, d.needs(p[1]), leaver, d.size(p[0], p[1].id))), None)
    if pair is None and waiting:
        why = f"no waiting {spec.to} worker fits into the slot of a {spec.from_} worker that may be taken"
        return Stop(verdict=Verdict.HOLD, reason=why, gate="pick"), ()
    kind = _KINDS[spec.sessions]
    # the one that leaves is disrupted; the one that comes serves nobody yet
    allowed = d.budgets.ask(shift.policy, kind, leaver)
    if allowed.refusal is not None:
        d.find(shift.policy, leaver.id, Verdict.HOLD, allowed.refusal, gate="budget", evidence=allowed.evidence)
        return Stop(verdict=Verdict.HOLD, reason=f"{leaver.id}: {allowed.refusal}", gate="budget"), allowed.evidence
    worth = weigh_move(d, leaver, d.phases(leaver).moving()) if kind is OperationKind.MOVE else None
    gates = (*allowed.evidence, *([worth.evidence] if worth else []))
    if worth is not None and worth.refusal is not None:
        d.find(shift.policy, leaver.id, worth.verdict, worth.refusal, gate="cost", evidence=gates)
        return Stop(verdict=worth.verdict, reason=f"{leaver.id}: {worth.refusal}", gate="cost"), gates
    started = start(d, spec, pool_id(shift.graph, spec.to)) if pair is None else None
    left, reason = _leave(d, shift, leaver, worth.estimate if worth else None, started)
    if left is None:
        return Stop(verdict=Verdict.HOLD, reason=reason, gate="pick"), ()
    if pair is None:
        assert started is not None, "nobody waits, so that one is started"
        told = f"makes way for a {spec.to} worker that is started {started.how}: {reason}"
        d.find(shift.policy, leaver.id, Verdict.ACT, f"it {told}", gate="pick.prefer", evidence=gates)
        return f"{leaver.id} {told}"
    worker, image = pair
    assert leaver.slot is not None, "a candidate occupies a slot"
    restore(d, shift, worker, image, leaver.slot, f"{leaver.id} makes way ({spec.sessions})", after=(left.id,))
    told = f"it makes way for {worker.id}: {reason}"
    d.find(shift.policy, leaver.id, Verdict.ACT, told, gate="pick.prefer", evidence=gates)
    return f"{leaver.id} makes way for {worker.id} in {leaver.slot}: {reason}"


def _leaving(d: Deciding, graph: str, role: str) -> int:
    """Workers of the pool that operations of this plan, or under way, take out of it."""
    operations = [one.operation for one in d.ranked] + [r.planned for r in d.history.active]
    gone = {o.worker for o in operations if o.kind in (OperationKind.PARK, OperationKind.DRAIN)}
    return sum(w.id in gone and w.state in STANDING for w in d.world.pools.get(pool_id(graph, role), ()))


def _leave(
    d: Deciding, shift: Shift, worker: Worker, estimate: Estimate | None, started: Start | None
) -> tuple[PlannedOperation | None, str]:
    """Plan how the worker leaves its slot, and say it; or say why it can't. `estimate` is that of a move. `started`: how one is started for
    what it leaves; None: none is.
    """
    sessions = spec_of(shift.policy).sessions
    told = holds(worker, d.scopes.worker(shift.policy, worker))
    slot: SlotId | None = None
    if sessions == "move":
        # agents don't move a worker between slots of their own node: its address would be there twice
        found = d.finder.find(d.needs(worker), d.free_slots(), scope={}, leaving=worker.node, size=d.size(worker))
        slot = place([Job(worker=worker.id)], {worker.id: found.options}, {}, d.now).slots.get(worker.id)
        if slot is None:
            return None, f"there is no slot on another node to move a {worker.role} worker to ({found.why()})"
    if sessions == "park":
        estimate = d.phases(worker).dumping(copies=False)
    operation = d.plan(
        shift.policy,
        _KINDS[sessions],
        worker,
        Preconditions(incarnation=worker.incarnation, at=worker.slot, free=slot),
        cause=shift.cause,
        reason=f"{shift.why}; {told}" + (f"; a {spec_of(shift.policy).to} worker is started {started.for_it}" if started else ""),
        estimate=estimate,
        from_slot=worker.slot,
        to_slot=slot,
        copies=(worker.node,) if sessions == "park" and worker.node else (),
        hands_to=pool_id(shift.graph, spec_of(shift.policy).to) if started else None,
        golden=started.golden if started else "",
    )
    return operation, {"move": f"it moves to {slot}", "park": "it is parked", "drain": "it finishes its streams and ends"}[sessions]


def restore(
    d: Deciding, shift: Shift, worker: Worker, image: Image, slot: SlotId, how: str, *, after: tuple[OperationId, ...] = ()
) -> PlannedOperation:
    """Plan to bring a waiting worker back into a slot that is free or, `after` another operation, will be."""
    return d.plan(
        shift.policy,
        OperationKind.RESTORE,
        worker,
        Preconditions(incarnation=worker.incarnation, absent=True, free=slot, image=image.id),
        cause=shift.cause,
        reason=f"{shift.why}; {how}",
        estimate=d.phases(worker, image.bytes).restoring(archived=d.world.away_from_nodes(image)),
        to_slot=slot,
        image=image.id,
        after=after,
    )


def waiting_worker(d: Deciding, worker: WorkerId) -> tuple[Worker, Image] | None:
    """The worker and its image, if it waits for a slot and nothing is planned for it."""
    known = d.world.workers.get(worker)
    image = d.world.restorable(worker)
    if known is None or image is None or known.state not in AWAY or d.ledger.blocked(worker) is not None:
        return None
    return known, image
