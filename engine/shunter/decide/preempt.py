"""Nodes that are going: move what can be moved, park or drain what can't, and ask a person for the rest. Waits for no metric."""

from collections.abc import Sequence

from shunter.decide.ahead import Leave
from shunter.decide.cases import Case, cases_of, found, job_of, lanes, plan_move, spec_of, values_of
from shunter.decide.deciding import Deciding
from shunter.decide.history import failed_nodes, said
from shunter.decide.place import beside, place
from shunter.decide.recover import recover
from shunter.decide.room import make_room
from shunter.decide.words import happens, holds
from shunter.model.finding import Evidence, Verdict
from shunter.model.ids import WorkerId
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import Policy


def preempt(d: Deciding, policy: Policy) -> None:
    """Find and plan for every covered worker on a node with a notice that the policy answers to."""
    cases = cases_of(d, policy)
    decode, against = _move(d, policy, [c for c in cases if c.worker.role == "decode"])
    decode = make_room(d, policy, decode)
    recover(d, policy, "decode")
    prefill, more = _move(d, policy, [c for c in cases if c.worker.role == "prefill"])
    for case in (*decode, *prefill):
        _fall_back(d, policy, case, (against | more).get(case.worker.id, ""))
    recover(d, policy, "prefill")


def _move(d: Deciding, policy: Policy, cases: Sequence[Case]) -> tuple[list[Case], dict[WorkerId, str]]:
    """Plan the moves that fit. Returns the cases that are left, and why each couldn't be moved."""
    if not cases:
        return [], {}
    able = [c for c in cases if c.movable]
    against = {c.worker.id: f"{said(c.failed(OperationKind.MOVE)[-1])}" for c in cases if not c.movable}
    values = values_of(d, policy, able)
    free, options = d.free_slots(), {}
    for case in able:
        found = d.finder.find(
            d.needs(case.worker),
            free,
            scope=case.scope,
            to=spec_of(policy).move.to,
            avoid=failed_nodes(case.failed(OperationKind.MOVE)),
            leaving=case.worker.node,
            size=d.size(case.worker),
        )
        options[case.worker.id] = found.options
        if not found.options:
            against[case.worker.id] = f"no slot ({found.why()})"
    placed = place([job_of(d, c, values[c.worker.id]) for c in able], options, lanes(d, able), d.now, d.rooms)
    for case in able:
        if case.worker.id in placed.slots:
            plan_move(d, policy, case, placed, values[case.worker.id])
    for worker in (c.worker for c in able if c.worker.id not in placed.slots):
        if worker.id in placed.late:
            against[worker.id] = "no time: the move wouldn't end before the reserve"
        elif own := options[worker.id]:
            against[worker.id] = f"no slot: others are saved first{beside(d.rooms, d.size(worker).bytes, own, placed)}"
    return [c for c in cases if c.worker.id not in placed.slots], against


def _fall_back(d: Deciding, policy: Policy, case: Case, against: str) -> None:
    """The first of `otherwise` that is left, or a call for a person with all the reasons."""
    if case.worker.doubt:
        against = f"{against}; {case.worker.doubt}"
    reasons = [f"move: {against}"]
    for fallback in spec_of(policy).otherwise:
        why = _park(d, policy, case, against) if fallback == "checkpoint" else _drain(d, policy, case, against)
        if why is None:
            return
        reasons.append(f"{fallback}: {why}")
    evidence = (*case.evidence, Evidence(gate="otherwise", result=False, detail="; ".join(reasons)))
    reason = f"{happens(case.notice)}, and it needs a person: {'; '.join(reasons)}"
    d.find(policy, case.worker.id, Verdict.HOLD, reason, gate="otherwise", evidence=evidence, since=case.notice.seen_at)


def _park(d: Deciding, policy: Policy, case: Case, against: str) -> str | None:
    """Plan to park the worker with its image on a node that stays, or say why not."""
    worker = case.worker
    if worker.doubt:
        return "an image of it would be good for nothing"
    if failed := case.failed(OperationKind.PARK):
        return said(failed[-1])
    keepers = d.keepers(worker, 1)
    if not keepers:
        return "no other node stays that has room for the image"
    assert worker.node is not None, "a case stands on a node"
    phases = d.phases(worker)
    wait = lanes(d, [case])[worker.node]
    if case.limit is not None and d.now + wait + phases.freeze > case.limit:
        return "no time: the dump wouldn't end before the reserve"
    planned = d.plan(
        policy,
        OperationKind.PARK,
        worker,
        Preconditions(incarnation=worker.incarnation, at=worker.slot),
        cause=case.cause,
        reason=f"{happens(case.notice, d.now)}; {holds(worker, case.scope)}; it can't be moved: {against}",
        estimate=phases.dumping(wait),
        deadline=case.notice.deadline,
        from_slot=worker.slot,
        copies=keepers,
        notice=case.notice.id,
    )
    d.leaves[planned.id] = Leave(occupy=phases.freeze, tail=0.0, limit=case.limit, sized=phases.bytes is not None)
    found(d, policy, case, f"{happens(case.notice)}: it is parked, its image goes to {keepers[0]} ({against})", gate="otherwise")
    return None


def _drain(d: Deciding, policy: Policy, case: Case, against: str) -> str | None:
    """Plan to drain the worker until the deadline, or say why not."""
    worker = case.worker
    if failed := case.failed(OperationKind.DRAIN):
        return said(failed[-1])
    d.plan(
        policy,
        OperationKind.DRAIN,
        worker,
        Preconditions(incarnation=worker.incarnation, at=worker.slot),
        cause=case.cause,
        reason=f"{happens(case.notice, d.now)}; {holds(worker, case.scope)}; it can be neither moved nor parked: {against}",
        deadline=case.notice.deadline,
        from_slot=worker.slot,
        notice=case.notice.id,
    )
    found(d, policy, case, f"{happens(case.notice)}: it finishes what it can ({against})", gate="otherwise")
    return None
