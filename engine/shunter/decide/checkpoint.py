"""Periodic images of running workers: due by age, a few at a time, backing off where they fail."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from shunter.decide.deciding import Deciding
from shunter.decide.gates import ask, missing
from shunter.decide.history import said
from shunter.decide.words import clock
from shunter.model.expression import Undecided
from shunter.model.finding import Evidence, Verdict
from shunter.model.ids import NodeId, PoolId
from shunter.model.operation import Status
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import CheckpointPolicy, CheckpointSpec, Policy
from shunter.model.snapshot import Worker, WorkerState
from shunter.model.units import Duration

SHARE = 0.2
"""At most this share of a pool stands still for checkpoints at once, and at least one worker."""
MOST_BACKOFF = 10.0
"""A checkpoint that keeps failing is tried at least every so many periods."""


Refusal: TypeAlias = tuple[Verdict, str, str]
"""A verdict other than `act`, its reason and its gate."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that wants a checkpoint now. `taken` is when its newest image was, None when it has none."""

    worker: Worker
    taken: float | None
    evidence: tuple[Evidence, ...]


class Turns:
    """How many checkpoints are under way or planned, by node and by pool, and what each node is given to hold."""

    def __init__(self, d: Deciding) -> None:
        self.nodes: Counter[NodeId] = Counter()
        self.pools: Counter[PoolId] = Counter()
        self.holding: defaultdict[NodeId, int] = defaultdict(int)
        for image in d.world.snapshot.fleet.images:
            for node in image.nodes:
                self.holding[node] += image.bytes
        operations = [r.planned for r in d.history.active] + [one.operation for one in d.ranked]
        for o in operations:
            worker = d.world.workers.get(o.worker)
            if o.kind is OperationKind.CHECKPOINT and worker is not None:
                self.took(worker, o.copies, 0)

    def taken(self, d: Deciding, worker: Worker) -> str | None:
        """Why the worker must wait for its turn, or None."""
        allowed = max(1, int(SHARE * sum(w.state is WorkerState.RUNNING for w in d.world.pools[worker.pool])))
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
            self.holding[node] += size


def checkpoint(d: Deciding, policy: Policy) -> None:
    """Find and plan for every covered worker; the one whose image is oldest comes first."""
    due = [one for worker in d.world.workers.values() if (one := _due(d, policy, worker)) is not None]
    turns = Turns(d)
    for one in sorted(due, key=lambda o: (o.taken is not None, o.taken or 0.0, o.worker.id)):
        if (why := turns.taken(d, one.worker)) is not None:
            d.find(policy, one.worker.id, Verdict.HOLD, why, gate="turn", evidence=one.evidence)
        else:
            _plan(d, policy, one, turns)


def spec_of(policy: Policy) -> CheckpointSpec:
    """The spec of a CheckpointPolicy. Raises TypeError for another kind."""
    if not isinstance(policy.document, CheckpointPolicy):
        raise TypeError(f"{policy.name} is a {policy.kind}")
    return policy.document.spec


def interval(policy: Policy) -> Duration:
    """How long after a worker's newest image the next one is due."""
    spec = spec_of(policy)
    if spec.every is not None:
        return spec.every
    assert spec.cadence is not None, "one of the two is required"
    return spec.cadence.optimal.max


def _due(d: Deciding, policy: Policy, worker: Worker) -> Due | None:
    """The worker if it wants a checkpoint now and nothing is against it; otherwise None, with the finding that says why."""
    covered, evidence = d.covers(policy, worker)
    if covered is False and not evidence:
        return None
    gates, taken = [*evidence], _taken(d, worker)
    refused = (
        _subject(covered, worker) or _young(d, policy, taken, gates) or _when(d, policy, worker, gates) or _held(d, policy, worker, gates)
    )
    if refused is None:
        return Due(worker=worker, taken=taken, evidence=tuple(gates))
    verdict, reason, gate = refused
    d.find(policy, worker.id, verdict, reason, gate=gate, evidence=gates)
    return None


def _subject(covered: bool | Undecided, worker: Worker) -> Refusal | None:
    if isinstance(covered, Undecided):
        return Verdict.INCONCLUSIVE, missing(covered), "workers.where"
    if not covered:
        return Verdict.PASS, "the policy doesn't cover it", "workers.where"
    if worker.state is not WorkerState.RUNNING or worker.slot is None:
        return Verdict.PASS, f"it is {worker.state.value}", "worker.state"
    return None


def _young(d: Deciding, policy: Policy, taken: float | None, gates: list[Evidence]) -> Refusal | None:
    old = taken is None or d.now - taken >= interval(policy)
    gates.append(Evidence(gate="every", result=old, detail=_age(d, policy, taken)))
    return None if old else (Verdict.PASS, "its newest image is recent enough", "every")


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


def _age(d: Deciding, policy: Policy, taken: float | None) -> str:
    every = spec_of(policy).every
    return "it has no image" if taken is None else f"its newest image is {d.now - taken:.0f} s old, every {every}"


def _when(d: Deciding, policy: Policy, worker: Worker, gates: list[Evidence]) -> Refusal | None:
    when = spec_of(policy).when
    if when is None:
        return None
    answer, evidence = ask(d.rules, "when", when, d.scopes.worker(policy, worker))
    gates.append(evidence)
    if isinstance(answer, Undecided):
        return Verdict.INCONCLUSIVE, missing(answer), "when"
    return None if answer else (Verdict.PASS, "`when` is false", "when")


def _held(d: Deciding, policy: Policy, worker: Worker, gates: list[Evidence]) -> Refusal | None:
    """The first thing that keeps a due checkpoint from being taken."""
    assert worker.node is not None, "it occupies a slot"
    reasons = (
        ("node.noticed", None if d.world.stays(worker.node) else f"{worker.node} is going, or doesn't answer"),
        ("snapshot", d.outdated()),
        ("lane", d.involuntary(worker.graph, preview=policy.mode == "preview")),
        ("worker", d.ledger.blocked(worker.id) or (d.ledger.claimed(worker.slot) if worker.slot else None)),
        ("backoff", _backoff(d, policy, worker)),
    )
    for gate, why in reasons:
        gates.append(Evidence(gate=gate, result=why is None, detail=why or ""))
        if why is not None:
            return Verdict.HOLD, why, gate
    return None


def _backoff(d: Deciding, policy: Policy, worker: Worker) -> str | None:
    """A failed checkpoint stopped the worker for nothing: each further one waits twice as long, up to 10 periods."""
    failed = d.history.failed_in_a_row(OperationKind.CHECKPOINT, worker.id)
    if not failed or (last := failed[-1].outcome) is None:
        return None
    again = last.at + interval(policy) * min(MOST_BACKOFF, 2.0 ** min(len(failed) - 1, 10))
    return f"{len(failed)} failed in a row ({said(failed[-1])}); again at {clock(again)}" if d.now < again else None


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
        cause=f"every:{interval(policy)}:{int(d.now // max(interval(policy), 0.001))}",
        reason=f"{worker.id}: {_age(d, policy, one.taken)}{short}",
        estimate=phases.dumping(copies=bool(others)),
        from_slot=None,
        copies=copies,
    )
    turns.took(worker, copies, phases.bytes or 0)
    d.find(policy, worker.id, Verdict.ACT, f"an image is due{short}", gate="every", evidence=one.evidence)
