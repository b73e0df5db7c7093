"""Periodic images of running workers: due by age, a few at a time, backing off where they fail."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from shunter.decide.budget import effective
from shunter.decide.cadence import Pause, interval_for, pause_of
from shunter.decide.deciding import Deciding
from shunter.decide.gates import ask, missing, passed
from shunter.decide.hints import condemned
from shunter.decide.history import HOUR, said
from shunter.decide.plan import round_of
from shunter.decide.said import UNCOVERED, Part, Said
from shunter.decide.words import clock
from shunter.model.expression import Undecided
from shunter.model.finding import Brief, Evidence, Input, Verdict
from shunter.model.ids import PoolId, WorkerId
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import CheckpointPolicy, CheckpointSpec, Policy
from shunter.model.sample import Known, Missing
from shunter.model.snapshot import Worker, WorkerState
from shunter.model.units import Duration

MOST_BACKOFF = 10.0
"""A checkpoint that keeps failing is tried at least every so many periods."""

_RUNNING: Final = WorkerState.RUNNING

Refusal: TypeAlias = tuple[Verdict, str, str]
"""A verdict other than `act`, its reason and its gate."""

_RECENT: Final = {gate: Said(Verdict.PASS, "its newest image is recent enough", gate) for gate in ("every", "cadence")}
_UNWANTED: Final = Said(Verdict.PASS, "`when` is false", "when")


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that wants a checkpoint, or may come to want one. `taken` is when its newest image was, None when it has none; `age` says
    how old that is, and may be.
    """

    worker: Worker
    spec: CheckpointSpec
    taken: float | None
    pause: Pause
    interval: float
    age: str
    gates: list[Part]


class Round:
    """The checkpoints of one policy: whose turn it is beside all others under way or planned, and what each node is given to hold."""

    def __init__(self, d: Deciding, policy: Policy) -> None:
        spec = spec_of(policy)
        self._d, self._share = d, spec.pause.share
        self.period: Final = None if spec.every is None else f"every:{spec.every}:{int(d.now // max(spec.every, 0.001))}"
        """What names its checkpoints while they are due; None where they aren't due in periods that can be counted."""
        self._allowed: dict[PoolId, int] = {}
        self.holding = d.holding()

    def taken(self, worker: Worker) -> str | None:
        """Why the worker must wait for its turn, or None. At most a share of its pool stands still at once, but one always may."""
        turns, pool = self._d.turns, worker.pool
        if pool not in self._allowed:
            self._allowed[pool] = max(1, effective(self._share, len(self._d.world.running(pool)))[0])
        if worker.node is not None and turns.nodes.get(worker.node):
            return f"it waits for its turn: one checkpoint at a time on {worker.node}"
        if turns.pools.get(pool, 0) >= self._allowed[pool]:
            return f"it waits for its turn: {self._allowed[pool]} at a time in {pool}"
        return None


def checkpoint(d: Deciding, policy: Policy) -> None:
    """Find and plan for every covered worker; the one whose image is oldest comes first."""
    due = [one for worker in _wanting(d, policy) if (one := _due(d, policy, worker)) is not None]
    if not due:
        return
    turns = Round(d, policy)
    for one in sorted(due, key=lambda o: (o.taken is not None, o.taken or 0.0, o.worker.id)):
        if (why := turns.taken(one.worker)) is not None:
            d.find(policy, one.worker.id, Verdict.HOLD, why, gate="turn", evidence=one.gates)
            continue
        allowed = d.budgets.ask(policy, OperationKind.CHECKPOINT, one.worker)
        one.gates.extend(allowed.evidence)
        if allowed.refusal is not None:
            d.find(policy, one.worker.id, Verdict.HOLD, allowed.refusal, gate="budget", evidence=one.gates)
        else:
            _plan(d, policy, one, turns)


def spec_of(policy: Policy) -> CheckpointSpec:
    """The spec of a CheckpointPolicy. Raises TypeError for another kind."""
    if not isinstance(policy.document, CheckpointPolicy):
        raise TypeError(f"{policy.name} is a {policy.kind}")
    return policy.document.spec


def _wanting(d: Deciding, policy: Policy) -> list[Worker]:
    """The workers that want a checkpoint, by what doesn't change while a plan is made. What is said of the others is left for later."""
    spec, subjects = spec_of(policy), d.subjects(policy)
    old = _old(d, spec, subjects)
    wanting = [w for w in old if w.state is _RUNNING and w.slot is not None]
    if wanting:
        covered = d.covered(policy)
        wanting = [w for w in wanting if covered[w.id]]
    true: Mapping[WorkerId, bool | None] = {}
    if wanting and spec.when is not None:
        true = d.truths_of(policy, spec.when, wanting)
        wanting = [w for w in wanting if true[w.id]]
    d.leave(policy, subjects, partial(_against, d, policy), gists=partial(_gists, d, policy, old, true), but={w.id for w in wanting})
    return wanting


def _old(d: Deciding, spec: CheckpointSpec, workers: Sequence[Worker]) -> list[Worker]:
    """Those whose newest image is old enough, or who have none."""
    taken, now = d.taken.get, d.now
    if spec.every is not None and spec.overhead is None:
        every = float(spec.every)
        return [w for w in workers if (at := taken(w.id)) is None or now - at >= every]
    return [w for w in workers if _is_old(d, spec, w)]


def _is_old(d: Deciding, spec: CheckpointSpec, worker: Worker) -> bool:
    taken = d.taken.get(worker.id)
    return taken is None or d.now - taken >= interval_for(d, spec, worker, pause_of(d, spec, worker)).seconds


def _gists(
    d: Deciding, policy: Policy, old: Sequence[Worker], true: Mapping[WorkerId, bool | None], workers: Sequence[Worker]
) -> list[Brief | None]:
    """What `_against` says, without evidence. `old` are those whose image is, `true` says of whom `when` is, as far as it was asked."""
    covered, recent, due = d.covered(policy), _RECENT[_gate(spec_of(policy))], {w.id for w in old}
    found: list[Brief | None] = []
    for worker in workers:
        name = worker.id
        if covered[name] is False:
            found.append(UNCOVERED)
        elif covered[name] is None or worker.state is not _RUNNING or worker.slot is None:
            found.append(_against(d, policy, worker))
        elif name not in due:
            found.append(recent)
        else:
            found.append(_against(d, policy, worker) if true.get(name) is None else _UNWANTED)
    return found


def _against(d: Deciding, policy: Policy, worker: Worker) -> Said | None:
    """Why the worker doesn't want a checkpoint, asked about it alone."""
    covered, evidence = d.coverage(policy, worker)
    if covered is False and not evidence:
        return None
    refused, gates = _subject(covered, worker), list[Part](evidence)
    if refused is None:
        one = _begin(d, policy, worker, gates)
        refused = _young(d, one) or _when(d, policy, one)
    assert refused is not None, "alone and among all it is answered alike"
    return Said(verdict=refused[0], reason=refused[1], gate=refused[2], evidence=gates)


def _begin(d: Deciding, policy: Policy, worker: Worker, gates: list[Part]) -> Due:
    spec = spec_of(policy)
    pause = pause_of(d, spec, worker)
    chosen = interval_for(d, spec, worker, pause)
    gates.extend(chosen.evidence)
    taken = d.taken.get(worker.id)
    return Due(
        worker=worker, spec=spec, taken=taken, pause=pause, interval=chosen.seconds, age=_age(d.now, taken, chosen.seconds), gates=gates
    )


def _due(d: Deciding, policy: Policy, worker: Worker) -> Due | None:
    """The worker, which wants a checkpoint, if nothing is against it now; otherwise None, with the finding that says why."""
    spec = spec_of(policy)
    one = _begin(d, policy, worker, [*d.asked(policy, worker, "workers.where", spec.workers.where)])
    one.gates.append(Evidence(gate=_gate(spec), result=True, detail=one.age))
    one.gates.extend(d.asked(policy, worker, "when", spec.when))
    refused = _held(d, policy, one)
    if refused is None:
        return one
    d.find(policy, worker.id, refused[0], refused[1], gate=refused[2], evidence=one.gates)
    return None


def _subject(covered: bool | Undecided, worker: Worker) -> Refusal | None:
    if isinstance(covered, Undecided):
        return Verdict.INCONCLUSIVE, missing(covered), "workers.where"
    if not covered:
        return UNCOVERED[:3]
    if worker.state is not WorkerState.RUNNING or worker.slot is None:
        return Verdict.PASS, worker.pinned or f"it is {worker.state.value}", "worker.state"
    return None


def _young(d: Deciding, one: Due) -> Refusal | None:
    old = one.taken is None or d.now - one.taken >= one.interval
    one.gates.append(Evidence(gate=_gate(one.spec), result=old, detail=one.age))
    return None if old else _RECENT[_gate(one.spec)][:3]


def _gate(spec: CheckpointSpec) -> str:
    return "every" if spec.every is not None else "cadence"


def _age(now: float, taken: float | None, interval: float) -> str:
    if taken is None:
        return "it has no image"
    every = Duration(interval if interval < 60 else round(interval)) if math.isfinite(interval) else "so long as never"
    return f"its newest image is {now - taken:.0f} s old, every {every}"


def _when(d: Deciding, policy: Policy, one: Due) -> Refusal | None:
    when = one.spec.when
    if when is None:
        return None
    answer, evidence = ask(d.rules, "when", when, d.scopes.worker(policy, one.worker))
    one.gates.append(evidence)
    if isinstance(answer, Undecided):
        return Verdict.INCONCLUSIVE, missing(answer), "when"
    return None if answer else _UNWANTED[:3]


def _held(d: Deciding, policy: Policy, one: Due) -> Refusal | None:
    """The first thing that keeps a due checkpoint from being taken."""
    worker = one.worker
    assert worker.node is not None, "it occupies a slot"
    reasons = (
        ("node.noticed", condemned(d.world, worker)),
        *((("worker.doubt", f"an image of it now would be good for nothing: {worker.doubt}"),) if worker.doubt else ()),
        ("snapshot", d.outdated()),
        ("lane", d.involuntary(worker.graph, preview=policy.mode == "preview")),
        ("worker", d.ledger.blocked(worker.id) or (d.ledger.claimed(worker.slot) if worker.slot else None)),
        ("backoff", _backoff(d, one)),
    )
    for gate, why in reasons:
        one.gates.append(passed(gate) if why is None else Evidence(gate=gate, result=False, detail=why))
        if why is not None:
            return Verdict.HOLD, why, gate
    return _too_long(one) or _busy(d, one)


def _backoff(d: Deciding, one: Due) -> str | None:
    """A failed checkpoint stopped the worker for nothing: each further one waits twice as long, up to 10 periods."""
    failed = d.history.failed_in_a_row(OperationKind.CHECKPOINT, one.worker.id)
    if not failed or (last := failed[-1].outcome) is None:
        return None
    again = last.at + one.interval * min(MOST_BACKOFF, 2.0 ** min(len(failed) - 1, 10))
    return f"{len(failed)} failed in a row ({said(failed[-1])}); again at {clock(again)}" if d.now < again else None


def _too_long(one: Due) -> Refusal | None:
    """A checkpoint that would stop the worker for longer than it may be stopped, or for nobody knows how long, isn't taken."""
    most, gate = one.spec.pause.at_most, "pause.atMost"
    if most is None:
        return None
    if one.pause.seconds is None:
        one.gates.append(Evidence(gate=gate, result=None, detail=f"{one.pause}, at most {most}"))
        return Verdict.INCONCLUSIVE, f"how long it would stand still isn't known, and it may for {most} at most", gate
    short = one.pause.seconds <= most
    one.gates.append(Evidence(gate=gate, result=short, detail=f"{one.pause}, at most {most}"))
    return None if short else (Verdict.HOLD, f"it would stand still for {Duration(one.pause.seconds)}, and may for {most} at most", gate)


def _busy(d: Deciding, one: Due) -> Refusal | None:
    """`prefer: idle`: it waits for the worker to serve nothing, for one more interval. A worker without any image doesn't wait."""
    if one.spec.prefer != "idle" or one.taken is None:
        return None
    given, until = d.world.snapshot.samples.workers.get(one.worker.id, {}), one.taken + 2 * one.interval
    inputs = tuple(Input(name=f"worker.{name}", sample=given.get(name, Missing(reason="not collected"))) for name in ("running", "waiting"))
    loads = [i.sample.value if isinstance(i.sample, Known) else None for i in inputs]
    idle = None if None in loads else not any(loads)
    detail = f"{'not known' if idle is None else 'idle' if idle else 'busy'}; it waits until {clock(until)} at most"
    one.gates.append(Evidence(gate="prefer", result=idle, detail=detail, inputs=inputs))
    if idle or d.now >= until:
        return None
    return Verdict.HOLD, f"an image is due, and waits for a gap until {clock(until)} at most", "prefer"


def _cause(d: Deciding, one: Due, turns: Round) -> str:
    """What names this checkpoint, so that it is the same one while it is due.

    With `every` the number of the period. An optimal interval moves with what is measured, so that its periods can't be counted: there it
    is the image that this one follows.
    """
    if turns.period is not None:
        return turns.period
    if one.taken is None:
        return f"optimal:first:{int(d.now // HOUR)}"
    return round_of(f"optimal:{one.taken:.3f}", one.taken, d.now)


def _plan(d: Deciding, policy: Policy, one: Due, turns: Round) -> None:
    worker, spec = one.worker, one.spec
    assert worker.node is not None, "it occupies a slot"
    others = d.keepers(worker, max(0, spec.copies - 1), turns.holding, apart=True)
    copies = (worker.node, *others)
    short = f"; {len(copies)} of {spec.copies} copies: no other node stays that has room" if len(copies) < spec.copies else ""
    archive = spec.archive and (home := d.world.nodes.get(worker.node)) is not None and home.archive
    if spec.archive and not archive:
        short += f"; not in the archive, of which {worker.node} doesn't know"
    phases = d.phases(worker)
    d.plan(
        policy,
        OperationKind.CHECKPOINT,
        worker,
        Preconditions(incarnation=worker.incarnation, at=worker.slot),
        cause=_cause(d, one, turns),
        reason=f"{worker.id}: {one.age}{short}",
        estimate=phases.dumping(copies=bool(others)),
        from_slot=None,
        copies=copies,
        archive=archive,
    )
    for node in copies:
        turns.holding.add(node, phases.bytes or 0)
    d.find(policy, worker.id, Verdict.ACT, f"an image is due{short}", gate=_gate(spec), evidence=one.gates)
