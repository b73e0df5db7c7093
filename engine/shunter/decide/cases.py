"""A worker that must leave its node: when there is such a case, what it is worth, and how its move is entered."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec

from shunter.decide.ahead import Leave
from shunter.decide.deciding import Deciding
from shunter.decide.gates import ask, weigh
from shunter.decide.history import FAILURES, HOUR, stays
from shunter.decide.jobs import Job
from shunter.decide.place import Placement
from shunter.decide.plan import round_of
from shunter.decide.recompute import beginnings
from shunter.decide.said import UNCOVERED, Part, Said
from shunter.decide.words import clock, happens, holds
from shunter.decide.world import STANDING
from shunter.model.expression import Scope, Undecided
from shunter.model.finding import Brief, Evidence, Verdict
from shunter.model.ids import NodeId, OperationId, WorkerId
from shunter.model.operation import OperationRecord, Status
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import Policy, PreemptionPolicy, PreemptionSpec
from shunter.model.sample import Known
from shunter.model.snapshot import Node, Notice, Worker, WorkerState

HINTED_PER_HOUR = 2
"""After so many moves of a worker within an hour, for whatever, no hint moves it."""
TRIES = 3
"""A move is tried so often in all, unless its worker is what it fails by (see `history.stays`)."""
_LIVE = (*STANDING, WorkerState.FROZEN)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that must leave its node. `limit` is the notice's deadline, or the one that a profile's `lead` lets expect, less the
    reserve; None: there is none.
    """

    worker: Worker
    notice: Notice
    cause: str
    scope: Scope
    limit: float | None
    evidence: tuple[Part, ...]
    tried: tuple[OperationRecord, ...]

    def failed(self, kind: OperationKind) -> list[OperationRecord]:
        """Its failed attempts of this kind for this notice."""
        return [r for r in self.tried if r.planned.kind is kind]

    @property
    def movable(self) -> bool:
        """A move may be tried (again)."""
        moves = self.failed(OperationKind.MOVE)
        return len(moves) < TRIES and not any(map(stays, moves))


def spec_of(policy: Policy) -> PreemptionSpec:
    """The spec of a PreemptionPolicy. Raises TypeError for another kind."""
    if not isinstance(policy.document, PreemptionPolicy):
        raise TypeError(f"{policy.name} is a {policy.kind}")
    return policy.document.spec


def cases_of(d: Deciding, policy: Policy) -> list[Case]:
    """All cases, in the order of the workers, with findings for those of whom nothing can be ordered now. What is said of the workers that
    the policy has nothing to do for is left for later.
    """
    spec = spec_of(policy)
    there = [w for w in d.world.noticed if d.reaches(policy, w) and w.state in _LIVE and _notice(d, spec, w) is not None]
    concerned = [w for w in there if d.covered(policy)[w.id] is not False]
    gists = partial(_gists, d, policy)
    d.leave(policy, d.subjects(policy), partial(_against, d, policy), gists=gists, but={w.id for w in concerned})
    return [case for worker in concerned if (case := _case(d, policy, worker)) is not None]


def _gists(d: Deciding, policy: Policy, workers: Sequence[Worker]) -> list[Brief | None]:
    """What `_against` says, without evidence."""
    covered, found = d.covered(policy), list[Brief | None]()
    calm = {node: Said(Verdict.PASS, f"no notice for {node}", "notices") for node in {w.node for w in workers}}
    for worker in workers:
        if covered[worker.id] is False:
            found.append(UNCOVERED)
        elif covered[worker.id] is None or worker.state not in _LIVE:
            found.append(_against(d, policy, worker))
        else:
            found.append(calm[worker.node])
    return found


def _against(d: Deciding, policy: Policy, worker: Worker) -> Said | None:
    """Why there is nothing to do for the worker; None where the policy isn't about it."""
    covered, evidence = d.coverage(policy, worker)
    if covered is False:
        return UNCOVERED._replace(evidence=evidence) if evidence else None
    if worker.state not in _LIVE:
        return Said(Verdict.PASS, f"it is {worker.state.value}: nothing to move", "worker.state", evidence)
    spec = spec_of(policy)
    assert _notice(d, spec, worker) is None, "alone and among all it is answered alike"
    kinds = ", ".join(k.value for k in spec.notices)
    seen = Evidence(gate="notices", result=False, detail=f"none of {kinds} is open for {worker.node}")
    return Said(Verdict.PASS, f"no notice for {worker.node}", "notices", (*evidence, seen))


def _case(d: Deciding, policy: Policy, worker: Worker) -> Case | None:
    """The case of a live worker on a node that is going, or None with a finding that says why nothing can be ordered for it now."""
    spec = spec_of(policy)
    notice = _notice(d, spec, worker)
    assert notice is not None, "its node is going"
    evidence = d.asked(policy, worker, "workers.where", spec.workers.where)
    seen = Evidence(gate="notices", result=True, detail=f"{notice.kind.value} {notice.id} from {notice.source or 'an unnamed source'}")
    reason, gate = _unable(d, worker), "worker"
    if reason is None and not _dumpable(d, worker):
        reason, gate = "its GPU is gone: nothing is dumped through it; once its process has ended it comes back from its last image", "gpu"
    if reason is None and (reason := _chased(d, spec, worker)) is not None:
        gate = "repeats"
    if reason is not None:
        d.find(policy, worker.id, Verdict.HOLD, reason, gate=gate, evidence=(*evidence, seen), since=notice.seen_at)
        return None
    cause = round_of(f"notice:{notice.id}", notice.seen_at, d.now)
    limit, assumed = _limit(d, spec, worker, notice)
    return Case(
        worker=worker,
        notice=notice,
        cause=cause,
        scope=d.scopes.worker(policy, worker, notice=notice, now=d.now),
        limit=limit,
        evidence=(*evidence, seen, *assumed),
        tried=tuple(r for r in d.history.of_worker(worker.id) if r.planned.cause == cause and r.status in FAILURES),
    )


def _notice(d: Deciding, spec: PreemptionSpec, worker: Worker) -> Notice | None:
    return next(_asking(d, spec, worker), None)


def _asking(d: Deciding, spec: PreemptionSpec, worker: Worker) -> Iterator[Notice]:
    """What is open for the worker and of a kind that the policy answers to."""
    open_for = d.world.notices.get(worker.node, ()) if worker.node else ()
    return (n for n in open_for if n.kind in spec.notices and n.slot in (None, worker.slot))


def _chased(d: Deciding, spec: PreemptionSpec, worker: Worker) -> str | None:
    """Why no hint moves it any more: hints come wherever it goes, and moving costs each time. A decision still does."""
    if not all(n.hint(d.now) for n in _asking(d, spec, worker)):
        return None
    moves = [
        r
        for r in d.history.of_worker(worker.id)
        if r.planned.kind is OperationKind.MOVE and r.status is Status.SUCCEEDED and r.created_at > d.now - HOUR
    ]
    if len(moves) < HINTED_PER_HOUR:
        return None
    return f"{len(moves)} moves of it within the hour: a hint moves it no more, and a notice that its node goes still does"


def _dumpable(d: Deciding, worker: Worker) -> bool:
    """Whatever else is said of it, no open notice says that its GPU can't be dumped through."""
    open_for = d.world.notices.get(worker.node, ()) if worker.node else ()
    return all(n.dumpable for n in open_for if n.slot in (None, worker.slot))


def _limit(d: Deciding, spec: PreemptionSpec, worker: Worker, notice: Notice) -> tuple[float | None, tuple[Evidence, ...]]:
    """When a move must have ended. A lead is an expectation: what is begun isn't given up for it, and once it is over it was wrong."""
    if notice.deadline is not None:
        return notice.deadline - spec.reserve, ()
    figures = d.figures(worker)
    lead = figures.lead.get(notice.kind)
    if lead is None:
        return None, ()
    expected = notice.seen_at + lead
    over = expected - spec.reserve <= d.now
    told = f"no deadline is given; {notice.kind.value} leaves {lead} by {', '.join(figures.names)}: until {clock(expected)}"
    return (None if over else expected - spec.reserve), (Evidence(gate="lead", result=not over, detail=told),)


def _unable(d: Deciding, worker: Worker) -> str | None:
    """Why nothing can be ordered for the worker now, or None."""
    if (blocked := d.ledger.blocked(worker.id)) is not None:
        return blocked
    if worker.state not in STANDING:
        return f"it is {worker.state.value}, and no operation is known that did it"
    node = d.world.nodes.get(worker.node) if worker.node else None
    if node is None or not node.reachable:
        return f"{worker.node} doesn't answer, and the worker isn't known to be dead"
    if worker.slot is None:
        return "it runs in no slot that is known"
    if (claimed := d.ledger.claimed(worker.slot)) is not None:
        return f"{worker.slot}: {claimed}"
    return None


def lanes(d: Deciding, cases: Iterable[Case]) -> dict[NodeId, float]:
    """Seconds for which each case's node is still dumping: what is under way, and what this plan has it do before."""
    nodes = {c.worker.node for c in cases if c.worker.node}
    busy = {n: d.history.lane_busy(n, d.now) for n in nodes}
    for node in nodes:
        for worker in d.dumped.get(node, ()):
            busy[node] += d.phases(worker).freeze
    return busy


def job_of(d: Deciding, case: Case, value: float) -> Job:
    """The case as something to place: its node dumps one worker at a time, the restore follows elsewhere."""
    phases = d.phases(case.worker)
    return Job(
        worker=case.worker.id,
        value=value,
        lane=case.worker.node,
        occupy=phases.freeze,
        tail=phases.restore,
        limit=case.limit,
        bytes=d.size(case.worker).bytes,
    )


def values_of(d: Deciding, policy: Policy, cases: Sequence[Case]) -> dict[WorkerId, float]:
    """What saving each is worth: `move.order`, or tokens of context if that has no answer for one of them, so that all are on one scale.
    Tokens that aren't known count as none, since the number of workers decides then.
    """
    order = spec_of(policy).move.order
    if order is not None:
        measured = {c.worker.id: weigh(d.rules, "move.order", order, c.scope)[0] for c in cases}
        known = {w: v for w, v in measured.items() if not isinstance(v, Undecided)}
        if len(known) == len(measured):
            least = min(0.0, min(known.values(), default=0.0))
            return {w: v - least for w, v in known.items()}
    return {c.worker.id: _lost(d, c) for c in cases}


def _lost(d: Deciding, case: Case) -> float:
    """The tokens of context that would have to be computed again, late ones for as much as they cost; 0 where they aren't known."""
    tokens, sessions = case.scope.get("worker.kvTokens"), case.scope.get("worker.sessions")
    if not isinstance(tokens, Known):
        return 0.0
    return beginnings(d.figures(case.worker), tokens.value, sessions if isinstance(sessions, Known) else None)


def plan_move(d: Deciding, policy: Policy, case: Case, placed: Placement, value: float, after: tuple[OperationId, ...] = ()) -> None:
    """Enter the move, and the finding that it is done."""
    worker, slot = case.worker, placed.slots[case.worker.id]
    assert worker.slot is not None, "a case occupies a slot"
    phases = d.phases(worker)
    wait = max(0.0, placed.ends[worker.id] - d.now - phases.freeze - phases.restore)
    planned = d.plan(
        policy,
        OperationKind.MOVE,
        worker,
        Preconditions(incarnation=worker.incarnation, at=worker.slot, free=slot),
        cause=case.cause,
        reason=f"{happens(case.notice, d.now)}; {holds(worker, case.scope)}",
        value=value,
        estimate=phases.moving(wait),
        deadline=case.notice.deadline,
        from_slot=worker.slot,
        to_slot=slot,
        notice=case.notice.id,
        after=after,
    )
    sized, begins = phases.bytes is not None, d.now + wait if after else 0.0
    d.leaves[planned.id] = Leave(occupy=phases.freeze, tail=phases.restore, limit=case.limit, sized=sized, begins=begins)
    found(d, policy, case, f"{happens(case.notice)}: it moves to {slot}", gate="move.to", at=d.world.node_of_slot(slot))


def found(d: Deciding, policy: Policy, case: Case, reason: str, *, gate: str, at: Node | None = None) -> None:
    """The finding that something is done, with the evidence of where it goes (`at`: the destination)."""
    move, evidence = spec_of(policy).move, list(case.evidence)
    if (order := move.order) is not None:
        evidence.append(lambda: weigh(d.rules, "move.order", order, case.scope)[1])
    if at is not None and (where := move.to.where) is not None:
        evidence.append(lambda: ask(d.rules, "move.to.where", where, d.scopes.at(case.scope, at))[1])
    if at is not None and (prefer := move.to.prefer) is not None:
        evidence.append(lambda: weigh(d.rules, "move.to.prefer", prefer, d.scopes.at(case.scope, at))[1])
    d.find(policy, case.worker.id, Verdict.ACT, reason, gate=gate, evidence=evidence, since=case.notice.seen_at)
