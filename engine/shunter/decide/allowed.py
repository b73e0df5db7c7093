"""What the budgets say of a plan that was made before: things may have begun since, and windows closed. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from shunter.decide.deciding import Deciding
from shunter.decide.plan import Ranked
from shunter.decide.profile import Profile
from shunter.model.expression import Rules
from shunter.model.ids import OperationId
from shunter.model.operation import EngineState
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Snapshot

_UNASKED: Final = (OperationKind.RESTORE, OperationKind.DISCARD)
"""They disrupt nobody, so no plan asks for them."""
_DEFAULT: Final = Profile()


def not_allowed(
    operations: Sequence[PlannedOperation],
    policies: PolicySet,
    snapshots: Sequence[Snapshot],
    state: EngineState,
    now: float,
    rules: Rules,
    profile: Profile = _DEFAULT,
) -> Mapping[OperationId, str]:
    """Why each of them would go beyond a budget as things are at `now` (seconds since the epoch); those that wouldn't are left out.

    They count as begun one after the other, in the order in which they are given. What is involuntary counts and is never asked for, as in
    `evaluate`, which takes the same inputs; nor is an operation whose policy or worker isn't there any more: others have to say that.
    """
    d = Deciding(policies, snapshots, state, now, rules, profile)
    by_name = {policy.name: policy for policy in policies.policies}
    found: dict[OperationId, str] = {}
    for operation in operations:
        policy, worker = by_name.get(operation.policy), d.world.workers.get(operation.worker)
        if policy is not None and worker is not None and operation.lane == "voluntary" and operation.kind not in _UNASKED:
            answer = d.budgets.ask(policy, operation.kind, worker)
            if answer.refusal is not None:
                found[operation.id] = answer.refusal
        d.ranked.append(Ranked(operation=operation, value=0.0, priority=0))
    return found
