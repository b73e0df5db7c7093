"""Periodic images of running workers: due by age, a few at a time, backing off where they fail."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from shunter.decide.budget import effective
from shunter.decide.cadence import Pause, interval_of, pause_of
from shunter.decide.deciding import Deciding
from shunter.decide.gates import ask, missing
from shunter.decide.history import HOUR, said
from shunter.decide.plan import round_of
from shunter.decide.words import clock
from shunter.model.expression import Undecided
from shunter.model.finding import Evidence, Input, Verdict
from shunter.model.ids import NodeId, PoolId
from shunter.model.operation import Status
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import CheckpointPolicy, CheckpointSpec, Policy
from shunter.model.sample import Known, Missing
from shunter.model.snapshot import Worker, WorkerState
from shunter.model.units import Duration, Share

MOST_BACKOFF = 10.0
"""A checkpoint that keeps failing is tried at least every so many periods."""


Refusal: TypeAlias = tuple[Verdict, str, str]
"""A verdict other than `act`, its reason and its gate."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that wants a checkpoint, or may come to want one. `taken` is when its newest image was, None when it has none."""

    worker: Worker
    taken: float | None
    pause: Pause
    interval: float
    gates: list[Evidence]


class Turns:
    """How many checkpoints are under way or planned, by node and by pool, and what each node is given to hold."""

    def __init__(self, d: Deciding) -> None:
        self.nodes: Counter[NodeId] = Counter()
        self.pools: Counter[PoolId] = Counter()
        self.holding = d.holding()
        operations = [r.planned for r in d.history.active] + [one.operation for one in d.ranked]
        for o in operations:
            worker = d.world.workers.get(o.worker)
            if o.kind is OperationKind.CHECKPOINT and worker is not None:
                self.took(worker, o.copies, 0)

    def taken(self, d: Deciding, worker: Worker, share: Share) -> str | None:
        """Why the worker must wait for its turn, or None. At most `share` of its pool stands still at once, but one always may."""
        running = sum(w.state is WorkerState.RUNNING for w in d.world.pools[worker.pool])
        allowed = max(1, effective(share, running)[0])
        if worker.node is not None and self.nodes[worker.node]:
            return f"it waits for its turn: one checkpoint at a time on {worker.node}"
        if self.pools[worker.pool] >= allowed:
            return f"it waits for its turn: {allowed} at a time in {worker.pool}"
        return None

    def took(self, worker: Worker, copies: Sequence[NodeId], size: int) -> None:
        """Count one."""
        if worker.node is not None:
            self.nodes[worker.node] += 1
        self.pools[worker.pool] += 1
        for node in copies:
            self.holding.add(node, size)


def checkpoint(d: Deciding, policy: Policy) -> None:
    """Find and plan for every covered worker; the one whose image is oldest comes first."""
    due = [one for worker in d.subjects(policy) if (one := _due(d, policy, worker)) is not None]
    turns, share = Turns(d), spec_of(policy).pause.share
    for one in sorted(due, key=lambda o: (o.taken is not None, o.taken or 0.0, o.worker.id)):
        if (why := turns.taken(d, one.worker, share)) is not None:
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


def _due(d: Deciding, policy: Policy, worker: Worker) -> Due | None:
    """The worker if it wants a checkpoint now and nothing is against it; otherwise None, with the finding that says why."""
    covered, evidence = d.covers(policy, worker)
    if covered is False and not evidence:
        return None
    refused = _subject(covered, worker)
    if refused is not None:
        d.find(policy, worker.id, refused[0], refused[1], gate=refused[2], evidence=evidence)
        return None
    spec = spec_of(policy)
    pause = pause_of(d, spec, worker)
    interval = interval_of(spec, pause)
    gates = [*evidence, *interval.evidence]
    one = Due(worker=worker, taken=_taken(d, worker), pause=pause, interval=interval.seconds, gates=gates)
    refused = _young(d, policy, one) or _when(d, policy, one) or _held(d, policy, one)
    if refused is None:
        return one
    d.find(policy, worker.id, refused[0], refused[1], gate=refused[2], evidence=gates)
    return None


def _subject(covered: bool | Undecided, worker: Worker) -> Refusal | None:
    if isinstance(covered, Undecided):
        return Verdict.INCONCLUSIVE, missing(covered), "workers.where"
    if not covered:
        return Verdict.PASS, "the policy doesn't cover it", "workers.where"
    if worker.state is not WorkerState.RUNNING or worker.slot is None:
        return Verdict.PASS, f"it is {worker.state.value}", "worker.state"
    return None


def _young(d: Deciding, policy: Policy, one: Due) -> Refusal | None:
    old = one.taken is None or d.now - one.taken >= one.interval
    gate = "every" if spec_of(policy).every is not None else "cadence"
    one.gates.append(Evidence(gate=gate, result=old, detail=_age(d, one)))
    return None if old else (Verdict.PASS, "its newest image is recent enough", gate)


def _taken(d: Deciding, worker: Worker) -> float | None:
    """When the newest image was taken, also by a checkpoint that the snapshot doesn't show yet."""
    images = [i.taken_at for i in d.world.images.get(worker.id, ())]
    just = [
        r.created_at
        for r in d.history.of_worker(worker.id)
        if r.planned.kind is OperationKind.CHECKPOINT
        and r.status is Status.SUCCEEDED
        and r.planned.expect.incarnation == worker.incarnation
    ]
    return max([*images, *just], default=None)


def _age(d: Deciding, one: Due) -> str:
    if one.taken is None:
        return "it has no image"
    every = Duration(one.interval if one.interval < 60 else round(one.interval)) if math.isfinite(one.interval) else "so long as never"
    return f"its newest image is {d.now - one.taken:.0f} s old, every {every}"


def _when(d: Deciding, policy: Policy, one: Due) -> Refusal | None:
    when = spec_of(policy).when
    if when is None:
        return None
    answer, evidence = ask(d.rules, "when", when, d.scopes.worker(policy, one.worker))
    one.gates.append(evidence)
    if isinstance(answer, Undecided):
        return Verdict.INCONCLUSIVE, missing(answer), "when"
    return None if answer else (Verdict.PASS, "`when` is false", "when")


def _held(d: Deciding, policy: Policy, one: Due) -> Refusal | None:
    """The first thing that keeps a due checkpoint from being taken."""
    worker = one.worker
    assert worker.node is not None, "it occupies a slot"
    reasons = (
        ("node.noticed", None if d.world.stays(worker.node) else f"{worker.node} is going, or doesn't answer"),
        ("snapshot", d.outdated()),
        ("lane", d.involuntary(worker.graph, preview=policy.mode == "preview")),
        ("worker", d.ledger.blocked(worker.id) or (d.ledger.claimed(worker.slot) if worker.slot else None)),
        ("backoff", _backoff(d, one)),
    )
    for gate, why in reasons:
        one.gates.append(Evidence(gate=gate, result=why is None, detail=why or ""))
        if why is not None:
            return Verdict.HOLD, why, gate
    return _too_long(policy, one) or _busy(d, policy, one)


def _backoff(d: Deciding, one: Due) -> str | None:
    """A failed checkpoint stopped the worker for nothing: each further one waits twice as long, up to 10 periods."""
    failed = d.history.failed_in_a_row(OperationKind.CHECKPOINT, one.worker.id)
    if not failed or (last := failed[-1].outcome) is None:
        return None
    again = last.at + one.interval * min(MOST_BACKOFF, 2.0 ** min(len(failed) - 1, 10))
    return f"{len(failed)} failed in a row ({said(failed[-1])}); again at {clock(again)}" if d.now < again else None


def _too_long(policy: Policy, one: Due) -> Refusal | None:
    """A checkpoint that would stop the worker for longer than it may be stopped, or for nobody knows how long, isn't taken."""
    most, gate = spec_of(policy).pause.at_most, "pause.atMost"
    if most is None:
        return None
    if one.pause.seconds is None:
        one.gates.append(Evidence(gate=gate, result=None, detail=f"{one.pause}, at most {most}"))
        return Verdict.INCONCLUSIVE, f"how long it would stand still isn't known, and it may for {most} at most", gate
    short = one.pause.seconds <= most
    one.gates.append(Evidence(gate=gate, result=short, detail=f"{one.pause}, at most {most}"))
    return None if short else (Verdict.HOLD, f"it would stand still for {Duration(one.pause.seconds)}, and may for {most} at most", gate)


def _busy(d: Deciding, policy: Policy, one: Due) -> Refusal | None:
    """`prefer: idle`: it waits for the worker to serve nothing, for one more interval. A worker without any image doesn't wait."""
    if spec_of(policy).prefer != "idle" or one.taken is None:
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


def _cause(d: Deciding, policy: Policy, one: Due) -> str:
    """What names this checkpoint, so that it is the same one while it is due.

    With `every` the number of the period. An optimal interval moves with what is measured, so that its periods can't be counted: there it
    is the image that this one follows.
    """
    every = spec_of(policy).every
    if every is not None:
        return f"every:{every}:{int(d.now // max(every, 0.001))}"
    if one.taken is None:
        return f"optimal:first:{int(d.now // HOUR)}"
    return round_of(f"optimal:{one.taken:.3f}", one.taken, d.now)


def _plan(d: Deciding, policy: Policy, one: Due, turns: Turns) -> None:
    worker, spec = one.worker, spec_of(policy)
    assert worker.node is not None, "it occupies a slot"
    others = d.keepers(worker, max(0, spec.copies - 1), turns.holding)
    copies = (worker.node, *others)
    short = f"; {len(copies)} of {spec.copies} copies: no other node stays" if len(copies) < spec.copies else ""
    phases = d.phases(worker)
    d.plan(
        policy,
        OperationKind.CHECKPOINT,
        worker,
        Preconditions(incarnation=worker.incarnation, at=worker.slot),
        cause=_cause(d, policy, one),
        reason=f"{worker.id}: {_age(d, one)}{short}",
        estimate=phases.dumping(copies=bool(others)),
        from_slot=None,
        copies=copies,
    )
    turns.took(worker, copies, phases.bytes or 0)
    gate = "every" if spec.every is not None else "cadence"
    d.find(policy, worker.id, Verdict.ACT, f"an image is due{short}", gate=gate, evidence=one.gates)
