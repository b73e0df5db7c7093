"""The one function that decides: production, preview, backtest and replay all call it."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from shunter.decide.ahead import with_ahead
from shunter.decide.checkpoint import checkpoint
from shunter.decide.deciding import Deciding, lane_of
from shunter.decide.memory import Memory
from shunter.decide.plan import ordered
from shunter.decide.preempt import preempt
from shunter.decide.profile import Profile
from shunter.decide.reassign import reassign
from shunter.decide.rebalance import rebalance
from shunter.decide.retention import retain
from shunter.model.expression import Rules
from shunter.model.finding import Findings
from shunter.model.ids import node_of
from shunter.model.operation import EngineState
from shunter.model.plan import Evaluation, Plan, PlannedOperation
from shunter.model.policy import CheckpointPolicy, Policy, PolicySet, PreemptionPolicy, RebalancePolicy
from shunter.model.snapshot import Snapshot

_DEFAULT = Profile()


def evaluate(
    policies: PolicySet,
    snapshots: Sequence[Snapshot],
    state: EngineState,
    now: float,
    rules: Rules,
    profile: Profile = _DEFAULT,
    memory: Memory | None = None,
    breathe: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Say what each policy says of each subject, and what is to be done.

    `snapshots` are oldest first; the last is the current one, the others are the history for `for`. Raises ValueError when there is none
    or they aren't in order. `now` is seconds since the epoch. The same inputs give the same bytes, whatever order the parts of a
    snapshot, the policies or the operations are listed in (but for the snapshot's own digest).

    What is carried out goes before what is only shown, and work for a node that is going before voluntary work; then the policies of
    higher priority go first, and those whose names come first. Whoever goes first takes its workers and slots. Voluntary work that waits
    for its turn in a plan that was accepted keeps its own from other voluntary work alone.

    `memory`, given to one evaluation after the other, spares work where the next is given the same objects; no answer depends on it.
    `breathe` is called where this can stand still for a moment.
    """
    if not snapshots:
        raise ValueError("there is no snapshot to decide on")
    if any(a.at > b.at for a, b in pairwise(snapshots)):
        raise ValueError("the snapshots aren't in the order of their times")
    d = Deciding(policies, snapshots, state, now, rules, profile, memory, breathe)
    in_force = sorted((p for p in policies.policies if p.acts and p.mode != "off"), key=_precedence)
    for policy in in_force:
        breathe()
        if lane_of(policy) == "voluntary":
            d.keep_promises()
        _rule(policy)(d, policy)
    for policy in in_force:
        if isinstance(policy.document, CheckpointPolicy):
            breathe()
            retain(d, policy)
    breathe()
    d.budgets.report(d.find)
    plan = Plan(at=now, commit=policies.commit, policy_set=policies.digest, snapshot=snapshots[-1].id, operations=_operations(d))
    breathe()
    return Evaluation(findings=Findings(d.close()), plan=plan)


def _operations(d: Deciding) -> tuple[PlannedOperation, ...]:
    operations = ordered(d.ranked)
    if not d.leaves:
        return operations
    nodes = {node_of(o.from_slot) for o in operations if o.id in d.leaves and o.from_slot}
    return with_ahead(operations, d.leaves, {node: d.history.lane_busy(node, d.now) for node in nodes}, d.now)


def _precedence(policy: Policy) -> tuple[bool, bool, int, str]:
    return policy.mode == "preview", lane_of(policy) == "voluntary", -policy.priority, policy.name


def _rule(policy: Policy) -> Callable[[Deciding, Policy], None]:
    if isinstance(policy.document, PreemptionPolicy):
        return preempt
    if isinstance(policy.document, CheckpointPolicy):
        return checkpoint
    return rebalance if isinstance(policy.document, RebalancePolicy) else reassign
