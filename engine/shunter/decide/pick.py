"""Which worker makes way for one of the other pool."""

import msgspec

from shunter.decide.deciding import Deciding
from shunter.decide.fit import UNSIZED, Needs, unfit_node, unfit_slot
from shunter.decide.gates import ask, missing, weigh
from shunter.decide.rooms import Size, host_of
from shunter.decide.shift import spec_of
from shunter.model.expression import Undecided
from shunter.model.finding import Evidence, Verdict
from shunter.model.ids import pool_id
from shunter.model.policy import Policy
from shunter.model.snapshot import Worker, WorkerState


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that may make way. `prefer` is None when the preference has no answer."""

    worker: Worker
    prefer: float | None


def candidates(d: Deciding, policy: Policy, graph: str) -> tuple[list[Candidate], Undecided | None]:
    """Workers that may make way, the most preferred first, and the first condition that had no answer. A finding for each that may not."""
    chosen: list[Candidate] = []
    undecided: Undecided | None = None
    for worker in d.world.pools.get(pool_id(graph, spec_of(policy).from_), ()):
        result = _candidate(d, policy, worker)
        if isinstance(result, Candidate):
            chosen.append(result)
        elif isinstance(result, Undecided):
            undecided = undecided or result
    return sorted(chosen, key=lambda c: (c.prefer is None, -(c.prefer or 0.0), c.worker.id)), undecided


def _candidate(d: Deciding, policy: Policy, worker: Worker) -> Candidate | Undecided | None:
    pick = spec_of(policy).pick
    covered, evidence = d.covers(policy, worker)
    earlier = d.said(policy, worker)
    if (covered is False and not evidence) or (earlier is not None and earlier.verdict is Verdict.ACT):
        return None
    scope = d.scopes.worker(policy, worker)
    gates = [*evidence]
    answers = [("workers.where", covered)]
    if pick.where is not None:
        answer, asked = ask(d.rules, "pick.where", pick.where, scope)
        gates.append(asked)
        answers.append(("pick.where", answer))
    for gate, answer in answers:
        if isinstance(answer, Undecided):
            d.find(policy, worker.id, Verdict.INCONCLUSIVE, missing(answer), gate=gate, evidence=gates)
            return answer
        if answer is False:
            d.find(policy, worker.id, Verdict.PASS, f"`{gate}` is false", gate=gate, evidence=gates)
            return None
    if (why := kept(d, worker)) is not None:
        gates.append(Evidence(gate="worker", result=False, detail=why))
        d.find(policy, worker.id, Verdict.HOLD, why, gate="worker", evidence=gates)
        return None
    prefer: float | Undecided | None = None
    if pick.prefer is not None:
        prefer, weighed = weigh(d.rules, "pick.prefer", pick.prefer, scope)
        gates.append(weighed)
    d.find(policy, worker.id, Verdict.PASS, "it may make way if one must", gate="pick.prefer", evidence=gates)
    return Candidate(worker=worker, prefer=None if isinstance(prefer, Undecided) else prefer)


def kept(d: Deciding, worker: Worker) -> str | None:
    """Why the worker can't be taken, whatever the policy prefers."""
    if worker.state is not WorkerState.RUNNING or worker.slot is None or worker.node is None:
        return worker.pinned or f"it is {worker.state.value}"
    return d.world.leaving(worker) or d.ledger.blocked(worker.id) or d.ledger.claimed(worker.slot)


def fits(d: Deciding, needs: Needs, worker: Worker, size: Size = UNSIZED) -> bool:
    """Whether something with these needs, and of this size, could have the slot that the worker occupies now, once it has left."""
    assert worker.slot is not None, "a candidate occupies a slot"
    slot, node = d.world.slots.get(worker.slot), d.world.node_of_slot(worker.slot)
    if slot is None or node is None or unfit_slot(needs, slot) is not None or unfit_node(d.world, needs, node) is not None:
        return False
    room = d.rooms.left(node.id).bytes + d.rooms.freed(node.id, host_of(worker, slot), 0)
    return (not size.bytes or size.bytes <= room) and size.gpu <= (slot.gpu_memory or size.gpu)
