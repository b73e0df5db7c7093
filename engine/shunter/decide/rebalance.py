"""Workers whose best place has changed: moved to a better slot, or off a node that is to be emptied, and not back and forth."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from shunter.decide.deciding import Deciding
from shunter.decide.gates import ask, missing, weigh
from shunter.decide.hints import condemned
from shunter.decide.history import FAILURES, HOUR, failed_nodes, said
from shunter.decide.hold import Held, held
from shunter.decide.jobs import Job
from shunter.decide.numbers import moving
from shunter.decide.place import place
from shunter.decide.said import UNCOVERED, Part, Said
from shunter.decide.stay import FREE_SLOTS, Leaving, as_planned, places, spec_of
from shunter.decide.words import clock
from shunter.decide.worth import Worth, weigh_move
from shunter.model.expression import Scope, Undecided
from shunter.model.finding import Brief, Evidence, Verdict
from shunter.model.ids import NodeId, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Status
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import Policy, RebalanceSpec
from shunter.model.snapshot import Slot, Worker, WorkerState

MOST_PER_HOUR = 3
"""Voluntary moves of a worker within an hour, done or failed, by whatever policies; after that a person is asked what they are good for."""

Refusal: TypeAlias = tuple[Verdict, str, str]
"""A verdict other than `act`, its reason and its gate."""

_UNWANTED: Final = Said(Verdict.PASS, "`when` is false", "when")


class Leaver(msgspec.Struct, frozen=True, kw_only=True):
    """A covered worker on its way through the gates. `here` is what `to.prefer` says of its own node, None where no gain is asked for."""

    worker: Worker
    scope: Scope
    gates: list[Part]
    since: float | None = None
    named: str = ""
    here: float | None = None


def rebalance(d: Deciding, policy: Policy) -> None:
    """Find for every covered worker, and plan up to `step` moves: of those that have wanted to go for the longest, as far as is seen."""
    leavers = [one for worker in _wanting(d, policy) if (one := _leaver(d, policy, worker)) is not None]
    free, done = d.free_slots(), 0
    for one in sorted(leavers, key=lambda o: (o.since or 0.0, o.worker.id)):
        if done >= max(1, spec_of(policy).step):
            _say(d, policy, one, (Verdict.HOLD, f"{done} in one plan, as many as may be, go before it", "step"))
        elif (refused := _go(d, policy, one, free)) is not None:
            _say(d, policy, one, refused)
        else:
            free, done = d.free_slots(), done + 1


def _say(d: Deciding, policy: Policy, one: Leaver, refused: Refusal) -> None:
    d.find(policy, one.worker.id, refused[0], refused[1], gate=refused[2], evidence=one.gates, since=one.since)


def _wanting(d: Deciding, policy: Policy) -> list[Worker]:
    """The covered workers for which `when` is true. What is said of the others is left for later."""
    subjects = d.subjects(policy)
    running = [w for w in subjects if w.state is WorkerState.RUNNING and w.slot is not None and w.node is not None]
    wanting: list[Worker] = []
    if running:
        covered = d.covered(policy)
        wanting = [w for w in running if covered[w.id]]
    true = d.truths_of(policy, spec_of(policy).when, wanting)
    wanting = [w for w in wanting if true[w.id]]
    d.leave(policy, subjects, partial(_content, d, policy), gists=partial(_gists, d, policy, true), but={w.id for w in wanting})
    return wanting


def _gists(d: Deciding, policy: Policy, true: Mapping[WorkerId, bool | None], workers: Sequence[Worker]) -> list[Brief | None]:
    """What `_content` says, without evidence. `true` says of whom `when` is, as far as it was asked."""
    covered = d.covered(policy)

    def gist(worker: Worker) -> Brief | None:
        if covered[worker.id] is False:
            return UNCOVERED
        return _content(d, policy, worker) if covered[worker.id] is None or true.get(worker.id) is None else _UNWANTED

    return [gist(worker) for worker in workers]


def _content(d: Deciding, policy: Policy, worker: Worker) -> Said | None:
    """Why the worker isn't to be moved, asked about it alone."""
    covered, evidence = d.covers(policy, worker)
    if covered is False and not evidence:
        return None
    if isinstance(covered, Undecided):
        return Said(Verdict.INCONCLUSIVE, missing(covered), "workers.where", evidence)
    if not covered:
        return UNCOVERED._replace(evidence=evidence)
    if worker.state is not WorkerState.RUNNING or worker.slot is None or worker.node is None:
        return Said(Verdict.PASS, worker.pinned or f"it is {worker.state.value}", "worker.state", evidence)
    answer, asked = ask(d.rules, "when", spec_of(policy).when, d.scopes.worker(policy, worker))
    if isinstance(answer, Undecided):
        return Said(Verdict.INCONCLUSIVE, missing(answer), "when", (*evidence, asked))
    return _UNWANTED._replace(evidence=(*evidence, asked))


def _leaver(d: Deciding, policy: Policy, worker: Worker) -> Leaver | None:
    """The worker, which ought to be elsewhere, if nothing is against its moving now; otherwise None, with the finding that says why."""
    spec = spec_of(policy)
    gates = [*d.asked(policy, worker, "workers.where", spec.workers.where), *d.asked(policy, worker, "when", spec.when)]
    one = Leaver(worker=worker, scope=d.scopes.worker(policy, worker), gates=gates)
    stretch = held(_answers(d, policy, worker), d.now, float(spec.for_))
    one = msgspec.structs.replace(one, since=stretch.since, named=_named(stretch, d.now))
    refused = _lasting(spec, one, stretch) or _held(d, policy, one)
    if refused is None:
        refused, here = _here(d, policy, one)
        one = msgspec.structs.replace(one, here=here)
    if refused is None:
        return one
    _say(d, policy, one, refused)
    return None


def _answers(d: Deciding, policy: Policy, worker: Worker) -> list[tuple[float, bool | Undecided | None]]:
    """What `when` was in each snapshot, oldest first, true now; no further back than to where it last wasn't true."""
    when = spec_of(policy).when
    found: deque[tuple[float, bool | Undecided | None]] = deque([(d.world.at, True)])
    for at, scope in d.earlier_scopes(policy, worker.id):
        answer = d.rules.test(when, scope) if scope is not None else None
        found.appendleft((at, answer))
        if answer is not True:
            break
    return list(found)


def _lasting(spec: RebalanceSpec, one: Leaver, stretch: Held) -> Refusal | None:
    """Whether it has had to go for long enough."""
    since = f"since {clock(stretch.since)}" if stretch.since is not None else "not at all"
    detail = f"{since}, {float(spec.for_):g} s wanted{'; ' if stretch.why else ''}{stretch.why}"
    one.gates.append(Evidence(gate="for", result=stretch.remaining <= 0, detail=detail))
    if stretch.remaining <= 0:
        return None
    told = f"`when` has held {since}" if stretch.since is not None else f"`when` is true, but {stretch.why}"
    return Verdict.HOLD, f"{told}: not long enough", "for"


def _named(stretch: Held, now: float) -> str:
    return f"{stretch.since:.3f}" if stretch.begun and stretch.since is not None else f"h{int(now // HOUR)}"


def _held(d: Deciding, policy: Policy, one: Leaver) -> Refusal | None:
    """The first thing that keeps it from being moved now, wherever to."""
    worker, node, slot = one.worker, one.worker.node, one.worker.slot
    assert node is not None, "it was seen to occupy a slot"
    assert slot is not None, "it was seen to occupy a slot"
    moves = [r for r in d.history.of_worker(worker.id) if r.planned.kind is OperationKind.MOVE and r.status is not Status.SUPERSEDED]
    reasons: tuple[tuple[str, Callable[[], str | None]], ...] = (
        ("node.noticed", lambda: condemned(d.world, worker)),
        ("snapshot", d.outdated),
        ("lane", lambda: d.involuntary(worker.graph, preview=policy.mode == "preview")),
        ("worker", lambda: d.ledger.blocked(worker.id) or d.ledger.claimed(slot)),
        ("cooldown", partial(_cooling, d, policy, moves)),
        ("repeats", partial(_repeats, [r for r in moves if r.created_at > d.now - HOUR])),
    )
    for gate, reason in reasons:
        why = reason()
        one.gates.append(Evidence(gate=gate, result=why is None, detail=why or ""))
        if why is not None:
            return Verdict.HOLD, why, gate
    return None


def _cooling(d: Deciding, policy: Policy, moves: Sequence[OperationRecord]) -> str | None:
    """It was moved of late, by whomever; where moves of it fail, each further one waits twice as long."""
    if not moves:
        return None
    failed = len(d.history.failed_in_a_row(OperationKind.MOVE, moves[-1].planned.worker))
    over = moves[-1].created_at + spec_of(policy).cooldown * 2.0 ** max(0, min(failed, 10) - 1)
    if d.now >= over:
        return None
    told = f"{failed} moves of it failed in a row ({said(moves[-1])})" if failed else f"it was moved at {clock(moves[-1].created_at)}"
    return f"{told}; it may be again at {clock(over)}"


def _repeats(moves: Sequence[OperationRecord]) -> str | None:
    chosen = [r for r in moves if r.planned.lane == "voluntary"]
    if len(chosen) < MOST_PER_HOUR:
        return None
    failed = sum(r.status in FAILURES for r in chosen)
    return f"{len(chosen)} moves of it within the hour{f', {failed} of them in vain' if failed else ''}: it needs a person"


def _here(d: Deciding, policy: Policy, one: Leaver) -> tuple[Refusal | None, float | None]:
    """What its own place is worth, where a gain over it is asked for."""
    spec = spec_of(policy)
    if spec.gain is None:
        return None, None
    if spec.to.prefer is None:
        return (Verdict.INCONCLUSIVE, "`gain` needs `to.prefer`, and there is none", "gain"), None
    here, evidence = weigh(d.rules, "gain", spec.to.prefer, one.scope)
    one.gates.append(evidence)
    if isinstance(here, Undecided):
        return (Verdict.INCONCLUSIVE, f"what its own place is worth can't be said: {missing(here)}", "gain"), None
    return None, here


def _go(d: Deciding, policy: Policy, one: Leaver, free: Mapping[NodeId, Sequence[Slot]]) -> Refusal | None:
    """Plan its move to the best place that it would stay at, or say why not."""
    worker, spec = one.worker, spec_of(policy)
    if (refused := _relieved(d, policy, one)) is not None:
        return refused
    if (changing := moving(d, worker.graph)) is not None:
        return Verdict.HOLD, changing, "replicas"
    allowed = d.budgets.ask(policy, OperationKind.MOVE, worker)
    one.gates.extend(allowed.evidence)
    if allowed.refusal is not None:
        return Verdict.HOLD, allowed.refusal, "budget"
    worth = weigh_move(d, worker, d.phases(worker).moving())
    one.gates.append(worth.evidence)
    if worth.refusal is not None:
        return worth.verdict, worth.refusal, "cost"
    avoid = failed_nodes(r for r in d.history.of_worker(worker.id) if r.planned.kind is OperationKind.MOVE and r.status in FAILURES)
    found = d.finder.find(d.needs(worker), free, scope=one.scope, to=spec.to, avoid=avoid, leaving=worker.node, size=d.size(worker))
    one = msgspec.structs.replace(one, here=_worth_here(d, spec, one))
    options, against = places(d, policy, Leaving(worker=worker, scope=one.scope, here=one.here), found)
    slot = place([Job(worker=worker.id)], {worker.id: options}, {}, d.now).slots.get(worker.id)
    if slot is None:
        one.gates.append(Evidence(gate=against[1], result=False, detail=against[0]))
        return Verdict.HOLD, against[0], against[1]
    _plan(d, policy, one, slot, worth)
    return None


def _relieved(d: Deciding, policy: Policy, one: Leaver) -> Refusal | None:
    """Whether those of this plan that go before it leave it reason to go, where that is about free slots."""
    when, node = spec_of(policy).when, d.scopes.node_of(one.worker)
    if node is None or not d.ranked or FREE_SLOTS not in d.rules.inputs(when):
        return None
    answer, evidence = ask(d.rules, "when", when, as_planned(d, one.scope, node))
    if answer is True:
        return None
    one.gates.append(evidence)
    return Verdict.HOLD, "once those that go before it have gone, `when` isn't true for it any more", "when"


def _worth_here(d: Deciding, spec: RebalanceSpec, one: Leaver) -> float | None:
    """What its own place is worth once those that go before it have gone."""
    node = d.scopes.node_of(one.worker)
    if one.here is None or spec.to.prefer is None or node is None or FREE_SLOTS not in d.rules.inputs(spec.to.prefer):
        return one.here
    here = d.rules.measure(spec.to.prefer, as_planned(d, one.scope, node))
    return one.here if isinstance(here, Undecided) else here


def _plan(d: Deciding, policy: Policy, one: Leaver, slot: SlotId, worth: Worth) -> None:
    worker, spec, node = one.worker, spec_of(policy), d.world.node_of_slot(slot)
    assert node is not None, "the slot is one of its"
    there = as_planned(d, one.scope, node)
    if spec.to.where is not None:
        one.gates.append(ask(d.rules, "to.where", spec.to.where, there)[1])
    better = ""
    if spec.to.prefer is not None:
        value, evidence = weigh(d.rules, "to.prefer", spec.to.prefer, there)
        one.gates.append(evidence)
        if one.here is not None and not isinstance(value, Undecided):
            better = f", better by {value - one.here:g}"
    d.plan(
        policy,
        OperationKind.MOVE,
        worker,
        Preconditions(incarnation=worker.incarnation, at=worker.slot, free=slot),
        cause=f"rebalance:{policy.name}:{one.named}",
        reason=f"{worker.id} ought to be elsewhere: {spec.when.text}; {node.id} will do{better}",
        estimate=worth.estimate,
        from_slot=worker.slot,
        to_slot=slot,
    )
    _say(d, policy, one, (Verdict.ACT, f"it moves to {slot}{better}", "when"))
