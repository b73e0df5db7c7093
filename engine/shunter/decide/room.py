"""Making room: a prefill worker elsewhere holds nothing that is lost with it, so it can give its slot to a decode worker."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from shunter.decide.cases import Case, job_of, lanes, plan_move, spec_of, values_of
from shunter.decide.deciding import Deciding
from shunter.decide.history import FAILURES, failed_nodes
from shunter.decide.jobs import Option
from shunter.decide.place import place
from shunter.decide.rooms import Size, host_of
from shunter.decide.words import happens
from shunter.model.ids import NodeId, OperationId, PoolId, SlotId, WorkerId
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import Policy
from shunter.model.sample import Known
from shunter.model.snapshot import Slot, Worker, WorkerState

_KEEP = 1
"""Prefill workers that a graph keeps: without any, no new prompt is served at all."""


def make_room(d: Deciding, policy: Policy, cases: Sequence[Case]) -> list[Case]:
    """Park prefill workers for decode workers that found no slot, if the policy says so. Returns the cases that are still left."""
    able = [c for c in cases if c.movable]
    if spec_of(policy).move.make_room != "prefill" or not able:
        return list(cases)
    givers = _givers(d, {c.worker.graph for c in able})
    options: dict[WorkerId, Mapping[SlotId, Option]] = {}
    for case in able:
        options[case.worker.id] = d.finder.find(
            d.needs(case.worker),
            _slots(d, [w for w in givers.values() if w.graph == case.worker.graph]),
            scope=case.scope,
            to=spec_of(policy).move.to,
            avoid=failed_nodes(case.failed(OperationKind.MOVE)),
            leaving=case.worker.node,
            size=Size(gpu=d.size(case.worker).gpu),
        ).options
    options = {w: {slot: _emptied(d, givers[slot], option) for slot, option in own.items()} for w, own in options.items()}
    # A move can't begin before the slot is empty: every lane starts when the slowest of the givers is parked.
    wait = max((d.phases(w).freeze for w in givers.values()), default=0.0)
    busy = {node: max(seconds, wait) for node, seconds in lanes(d, able).items()}
    values = values_of(d, policy, able)
    placed = place([job_of(d, c, values[c.worker.id]) for c in able], options, busy, d.now, d.rooms)
    for case in able:
        if (slot := placed.slots.get(case.worker.id)) is not None:
            parked = _park(d, policy, case, givers[slot], values[case.worker.id])
            plan_move(d, policy, case, placed, values[case.worker.id], after=(parked,))
    return [c for c in cases if c.worker.id not in placed.slots]


def _emptied(d: Deciding, giver: Worker, option: Option) -> Option:
    """The slot once its worker is parked: its memory is free then, and its image lies on the node."""
    assert giver.node is not None, "it was seen to run on a node that stays"
    image, slot = giver.memory or 0, d.world.slots.get(giver.slot) if giver.slot else None
    return msgspec.structs.replace(option, freed=d.rooms.freed(giver.node, host_of(giver, slot), image), kept=image)


def _givers(d: Deciding, graphs: set[str]) -> dict[SlotId, Worker]:
    """Running prefill workers of the graphs on nodes that stay, by slot: the least busy first as far as that is known, and in each graph
    all but the last that runs.
    """
    ready: dict[PoolId, list[Worker]] = defaultdict(list)
    for worker in d.world.workers.values():
        if worker.graph in graphs and worker.role == "prefill" and _can_give(d, worker):
            ready[worker.pool].append(worker)
    chosen = [w for own in ready.values() for w in sorted(own, key=lambda w: _load(d, w))[: max(0, len(own) - _KEEP)]]
    return {w.slot: w for w in chosen if w.slot is not None}


def _can_give(d: Deciding, worker: Worker) -> bool:
    if worker.state is not WorkerState.RUNNING or worker.slot is None or worker.node is None or d.world.leaving(worker) is not None:
        return False
    tried_in_vain = any(r.planned.kind is OperationKind.PARK and r.status in FAILURES for r in d.history.of_worker(worker.id))
    return not tried_in_vain and d.ledger.blocked(worker.id) is None and d.ledger.claimed(worker.slot) is None


def _load(d: Deciding, worker: Worker) -> tuple[bool, float, str]:
    given = d.world.snapshot.samples.workers.get(worker.id, {})
    samples = [given.get("running"), given.get("waiting")]
    known = [s.value for s in samples if isinstance(s, Known)]
    return len(known) < len(samples), sum(known), worker.id


def _slots(d: Deciding, givers: Sequence[Worker]) -> dict[NodeId, list[Slot]]:
    slots: dict[NodeId, list[Slot]] = defaultdict(list)
    for worker in givers:
        if worker.node is not None and worker.slot is not None:
            slots[worker.node].append(d.world.slots[worker.slot])
    return slots


def _park(d: Deciding, policy: Policy, case: Case, giver: Worker, value: float) -> OperationId:
    assert giver.node is not None, "it was seen to run on a node that stays"
    return d.plan(
        policy,
        OperationKind.PARK,
        giver,
        Preconditions(incarnation=giver.incarnation, at=giver.slot),
        cause=f"room:{case.worker.id}:{case.cause}",
        reason=f"{happens(case.notice, d.now)}; {giver.id} makes room for {case.worker.id}, whose sessions would be lost",
        value=value,
        estimate=d.phases(giver).dumping(copies=False),
        deadline=case.notice.deadline,
        from_slot=giver.slot,
        copies=(giver.node,),
        notice=case.notice.id,
    ).id
