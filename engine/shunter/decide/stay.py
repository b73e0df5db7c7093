"""Places at which a worker would be better off, and would stay: the state after the move must not call for the next one."""

from collections.abc import Mapping

import msgspec

from shunter.decide.deciding import Deciding
from shunter.decide.fit import Found
from shunter.decide.place import Option
from shunter.model.expression import Scope, Undecided, Value
from shunter.model.ids import SlotId, node_of
from shunter.model.policy import Policy, RebalancePolicy, RebalanceSpec
from shunter.model.snapshot import Node, Worker

Against = tuple[str, str]
"""Why a place won't do, and the gate that says so."""


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
    judged: dict[str, Against | None] = {}
    for slot, option in sorted(found.options.items()):
        key = slot if by_slot else node_of(slot)
        if key not in judged:
            judged[key] = _unwanted(d, policy, one, slot, option)
        why = judged[key]
        if why is None:
            good[slot] = option
        else:
            against = why
    return good, against


def _unwanted(d: Deciding, policy: Policy, one: Leaving, slot: SlotId, option: Option) -> Against | None:
    """Why it isn't moved to this slot, or None. What isn't known of its node is no reason to go there."""
    gain, node = spec_of(policy).gain, d.world.nodes[node_of(slot)]
    if option.doubtful:
        return f"whether {node.id} will do isn't known, or a move to it failed within the hour", "to"
    if gain is not None and one.here is not None:
        if option.prefer is None:
            return f"what {node.id} is worth isn't known", "gain"
        if option.prefer - one.here < gain.at_least:
            return f"no place is better by {gain.at_least:g}: {node.id} by {option.prefer - one.here:g}", "gain"
    return None if _stays(d, policy, one, slot, node) else (f"once on {node.id}, it would be moved again", "after")


def _stays(d: Deciding, policy: Policy, one: Leaving, slot: SlotId, node: Node) -> bool:
    """Whether the policy would leave it where it was put: `when` is false there, or its old place isn't better by the gain.

    Only what the move itself changes is different afterwards: where the worker is, and the free slots of the two nodes.
    """
    spec = spec_of(policy)
    moved: dict[str, Value] = {"worker.node": node.id, "worker.slot": slot, "worker.incarnation": one.worker.incarnation + 1}
    after: Scope = {**d.scopes.at(one.scope, node), **moved, **_freed(d, node, -1)}
    if d.rules.test(spec.when, after) is False:
        return True
    old = d.world.nodes.get(one.worker.node) if one.worker.node else None
    if spec.gain is None or spec.to.prefer is None or old is None:
        return False
    there = d.rules.measure(spec.to.prefer, after)
    back = d.rules.measure(spec.to.prefer, {**d.scopes.at(after, old), **_freed(d, old, 1)})
    if isinstance(there, Undecided) or isinstance(back, Undecided):
        return False
    return back - there < spec.gain.at_least


def _freed(d: Deciding, node: Node, by: int) -> Mapping[str, Value]:
    """The node's free slots, changed by so many."""
    return {"node.freeSlots": sum(s.worker is None and s.reserved_by is None for s in node.slots) + by}
