"""What is to be done for each worker, by its own node alone, if that gets a notice while no engine can be reached. Pure."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from shunter.decide.cases import spec_of
from shunter.decide.deciding import Deciding
from shunter.decide.profile import Profile
from shunter.model.expression import Rules
from shunter.model.ids import Incarnation, NodeId, PolicyName, SlotId, WorkerId
from shunter.model.operation import EngineState
from shunter.model.policy import Policy, PolicySet, PreemptionPolicy
from shunter.model.snapshot import Notice, NoticeKind, Snapshot, Worker, WorkerState
from shunter.model.standing import let_be

COPIES = 2
"""Nodes that are named to hold each image: the second one if the first doesn't take it."""
_DEFAULT = Profile()
_LIVE = (WorkerState.RUNNING, WorkerState.FENCED)


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's. `holders`: where its image goes, the first that takes it; none: it is only taken out of the router's sight."""

    worker: WorkerId
    incarnation: Incarnation
    slot: SlotId
    policy: PolicyName
    kinds: tuple[NoticeKind, ...]
    holders: tuple[NodeId, ...] = ()


def fallbacks(
    policies: PolicySet,
    snapshot: Snapshot,
    state: EngineState,
    now: float,
    rules: Rules,
    profile: Profile = _DEFAULT,
    breathe: Callable[[], None] = lambda: None,
) -> Mapping[NodeId, Sequence[Fallback]]:
    """By node, decode workers first, as they hold what can't be computed anew.

    The policy of the highest priority that covers a worker says what: the first thing in its `otherwise`. Moves and parks aren't among it:
    they give a slot away, and end a copy, and only one may do so. A worker that somebody wants to leave alone (`otherwise: []`) is.

    `breathe` is called for each worker: a large fleet takes most of a second, and can stand still there for a moment.
    """
    d = Deciding(policies, [snapshot], state, now, rules, profile)
    holding = d.holding()
    found: dict[NodeId, list[Fallback]] = defaultdict(list)
    seen: set[WorkerId] = set()
    for policy in sorted((p for p in policies.policies if _answers(p)), key=lambda p: (-p.priority, p.name)):
        covered = d.covered(policy)
        for worker in d.subjects(policy):
            breathe()
            if worker.id in seen or worker.node is None or worker.slot is None or worker.state not in _LIVE or covered[worker.id] is False:
                continue
            seen.add(worker.id)
            otherwise = spec_of(policy).otherwise
            if not otherwise:
                continue
            holders = d.keepers(worker, COPIES, holding) if otherwise[0] == "checkpoint" else ()
            if holders:
                holding.add(holders[0], d.phases(worker).bytes or 0)
            found[worker.node].append(_fallback(policy, worker, worker.slot, holders))
    roles = {w.id: w.role for w in snapshot.fleet.workers}
    return {node: sorted(own, key=lambda f: (roles[f.worker] != "decode", f.worker)) for node, own in found.items()}


def alone(notice: Notice, snapshot: Snapshot, found: Mapping[NodeId, Sequence[Fallback]]) -> Mapping[WorkerId, str]:
    """What the notice's node would do by itself for each live worker that it is about, were no engine there, in words. `found` is what
    nodes are to do (see `fallbacks`).
    """
    own = {fallback.worker: fallback for fallback in found.get(notice.node, ())}
    spoilt = {n.slot for n in snapshot.notices if n.node == notice.node and not n.dumpable}
    return {
        w.id: _alone(notice, w, own.get(w.id), dumpable=not spoilt & {None, w.slot}, now=snapshot.at)
        for w in snapshot.fleet.workers
        if w.node == notice.node and notice.slot in (None, w.slot) and w.state in _LIVE
    }


def _alone(notice: Notice, worker: Worker, fallback: Fallback | None, *, dumpable: bool, now: float) -> str:
    if fallback is None or notice.kind not in fallback.kinds:
        return "nothing, as no policy that is in force says what"
    act: Literal["checkpoint", "fence"] = "checkpoint" if fallback.holders else "fence"
    why = let_be(notice.kind, notice.deadline, dumpable=dumpable, act=act, now=now)
    if not why and notice.deadline is None and worker.doubt:
        why = "an image of it isn't to be trusted"
    if why:
        return f"nothing, as {why}"
    hidden, imaged = "it is taken out of the router's sight", f"an image of it goes to {' or '.join(fallback.holders)}"
    if notice.deadline is None:
        return f"{imaged}, and it serves on"
    return hidden if not fallback.holders or worker.doubt else f"{hidden}, and {imaged}"


def _answers(policy: Policy) -> bool:
    return isinstance(policy.document, PreemptionPolicy) and policy.acts and policy.mode == "enforce"


def _fallback(policy: Policy, worker: Worker, slot: SlotId, holders: tuple[NodeId, ...]) -> Fallback:
    return Fallback(
        worker=worker.id,
        incarnation=worker.incarnation,
        slot=slot,
        policy=policy.name,
        kinds=spec_of(policy).notices,
        holders=holders,
    )
