"""Places at which a worker would be better off, and would stay: the state after the move must not call for the next one."""

from collections.abc import Sequence
from typing import Final

import msgspec

from shunter.decide.deciding import Deciding
from shunter.decide.fit import Found
from shunter.decide.gates import missing
from shunter.decide.history import HOUR
from shunter.decide.jobs import Option
from shunter.decide.scope import Bound
from shunter.decide.words import clock
from shunter.model.expression import Scope, Undecided, Value
from shunter.model.ids import NodeId, SlotId, node_of
from shunter.model.operation import Status
from shunter.model.plan import OperationKind
from shunter.model.policy import Policy, RebalancePolicy, RebalanceSpec
from shunter.model.snapshot import Node, Worker
from shunter.model.vocabulary import CHANGED_BY_A_MOVE

Against = tuple[str, str]
"""Why a place won't do, and the gate that says so."""

FREE_SLOTS: Final = "node.freeSlots"


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that looks for a place. `here` is what `to.prefer` says of its own node, None where no gain is asked for."""

    worker: Worker
    scope: Scope
    here: float | None = None


def spec_of(policy: Policy) -> RebalanceSpec:
    """The spec of a RebalancePolicy. Raises TypeError for another kind."""
    if not isinstance(policy.document, RebalancePolicy):
        raise TypeError(f"{policy.name} is a {policy.kind}")
    return policy.document.spec


def places(d: Deciding, policy: Policy, one: Leaving, found: Found) -> tuple[dict[SlotId, Option], Against]:
    """The slots that will do, and what is against the last of the others."""
    good: dict[SlotId, Option] = {}
    against: Against = (f"there is no place for it ({found.why()})", "to")
    spec = spec_of(policy)
    # slots of one node differ only for a policy that reads which one the worker is in
    by_slot = any("worker.slot" in d.rules.inputs(e) for e in (spec.when, spec.to.prefer) if e is not None)
    crowding = any(FREE_SLOTS in d.rules.inputs(e) for e in (spec.to.where, spec.to.prefer) if e is not None)
    others = _others(d, policy, one.worker)
    judged: dict[str, tuple[Option, Against | None]] = {}
    for slot, option in sorted(found.options.items()):
        key = slot if by_slot else node_of(slot)
        if key not in judged:
            fresh = _as_planned(d, spec, one, node_of(slot), option) if crowding else option
            judged[key] = fresh, _unwanted(d, policy, one, slot, fresh) or _undone(d, others, one, slot)
        fresh, why = judged[key]
        if why is None:
            good[slot] = msgspec.structs.replace(fresh, load=option.load) if crowding else option
        else:
            against = why
    return good, against


def as_planned(d: Deciding, scope: Scope, node: Node, by: int = 0) -> Bound:
    """The scope at the node with the slots that it will have free once what is planned so far is done, and `by` more."""
    parts: dict[str, Value] = {**d.scopes.of_node(node), FREE_SLOTS: d.ledger.vacancies_after(node.id) + by}
    return d.scopes.at(scope, node).having("node", parts)


def _as_planned(d: Deciding, spec: RebalanceSpec, one: Leaving, at: NodeId, option: Option) -> Option:
    """The option as what is planned so far leaves it."""
    scope = as_planned(d, one.scope, d.world.nodes[at])
    doubtful, prefer = option.doubtful, option.prefer
    if spec.to.where is not None and d.rules.test(spec.to.where, scope) is not True:
        doubtful = max(doubtful, 1)
    if spec.to.prefer is not None:
        measured = d.rules.measure(spec.to.prefer, scope)
        prefer = None if isinstance(measured, Undecided) else measured
    return msgspec.structs.replace(option, doubtful=doubtful, prefer=prefer)


def _unwanted(d: Deciding, policy: Policy, one: Leaving, slot: SlotId, option: Option) -> Against | None:
    """Why it isn't moved to this slot, or None. What isn't known of its node is no reason to go there."""
    gain, node = spec_of(policy).gain, d.world.nodes[node_of(slot)]
    if option.doubtful:
        return f"whether {node.id} will do isn't known, or a move to it failed within the hour", "to"
    if (left := _left(d, one.worker, node)) is not None:
        return left, "undo"
    if gain is not None and one.here is not None:
        if option.prefer is None:
            return f"what {node.id} is worth isn't known", "gain"
        if option.prefer - one.here < gain.at_least:
            return f"no place is better by {gain.at_least:g}: {node.id} by {option.prefer - one.here:g}", "gain"
    again = _again(d, policy, one, slot, node)
    return None if again is None else (f"once on {node.id}, {again}", "after")


def _left(d: Deciding, worker: Worker, node: Node) -> str | None:
    """Whether going to the node would take back a move that somebody chose to make of late."""
    for record in reversed(d.history.of_worker(worker.id)):
        planned = record.planned
        chosen = planned.kind is OperationKind.MOVE and planned.lane == "voluntary" and record.status is Status.SUCCEEDED
        if chosen and planned.from_slot is not None and node_of(planned.from_slot) == node.id and record.created_at > d.now - HOUR:
            return f"{planned.policy} moved it away from {node.id} at {clock(record.created_at)}: it doesn't go back within the hour"
    return None


def _again(d: Deciding, policy: Policy, one: Leaving, slot: SlotId, node: Node) -> str | None:
    """Why the policy might not leave it where it was put; None: `when` is false there, or its old place isn't better by the gain.

    Only what the plan itself changes is different afterwards: where the worker is, and the free slots of the two nodes.
    """
    spec = spec_of(policy)
    after = _after(d, one.scope, one.worker, slot, node)
    wanted = d.rules.test(spec.when, after)
    if wanted is False or _returns(d, spec, one.worker, after) is False:
        return None
    if isinstance(wanted, Undecided):
        return f"it can't be said whether it would be moved again: {missing(wanted)}"
    return "it would be moved again"


def _returns(d: Deciding, spec: RebalanceSpec, worker: Worker, after: Scope) -> bool | None:
    """Whether, once it is elsewhere, its old place is better by the gain; None where none is asked for, or that can't be said."""
    old = d.world.nodes.get(worker.node) if worker.node else None
    if spec.gain is None or spec.to.prefer is None or old is None:
        return None
    there = d.rules.measure(spec.to.prefer, after)
    back = d.rules.measure(spec.to.prefer, {**after, **as_planned(d, {}, old, 1)})
    if isinstance(there, Undecided) or isinstance(back, Undecided):
        return None
    return back - there >= spec.gain.at_least


def _after(d: Deciding, scope: Scope, worker: Worker, slot: SlotId, node: Node) -> Scope:
    moved: dict[str, Value] = {"worker.node": node.id, "worker.slot": slot, "worker.incarnation": worker.incarnation + 1}
    return {**as_planned(d, scope, node, -1), **moved}


def _others(d: Deciding, policy: Policy, worker: Worker) -> list[tuple[Policy, RebalanceSpec]]:
    """The other policies in force that could move the worker again because it was moved."""
    found = [(p, p.document.spec) for p in d.concerning(worker) if p.mode == "enforce" and isinstance(p.document, RebalancePolicy)]
    return [
        (other, spec)
        for other, spec in found
        if other.name != policy.name and (spec.gain is not None or any(n.startswith(CHANGED_BY_A_MOVE) for n in d.rules.inputs(spec.when)))
    ]


def _undone(d: Deciding, others: Sequence[tuple[Policy, RebalanceSpec]], one: Leaving, slot: SlotId) -> Against | None:
    """Which of the other policies would move it on from this slot, and didn't want to move it from where it is."""
    node = d.world.nodes[node_of(slot)]
    for other, spec in others:
        here = d.scopes.worker(other, one.worker)
        after = _after(d, here, one.worker, slot, node)
        if spec.workers.where is not None and d.rules.test(spec.workers.where, after) is not True:
            continue
        if d.rules.test(spec.when, after) is not True:
            continue
        if _returns(d, spec, one.worker, after) if spec.gain is not None else d.rules.test(spec.when, here) is not True:
            return f"once on {node.id}, {other.name} would move it again", "after"
    return None
