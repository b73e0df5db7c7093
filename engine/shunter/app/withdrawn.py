"""What a newer commit takes back: voluntary operations under way whose policy isn't in force any more."""

from collections.abc import Iterable

from shunter.model.ids import OperationId
from shunter.model.operation import OperationRecord
from shunter.model.policy import Mode, PolicySet


def withdrawn(active: Iterable[OperationRecord], before: PolicySet | None, after: PolicySet) -> list[tuple[OperationId, str]]:
    """Each operation to give up, and why in words. `before` is the set that was in force; None: this engine has just begun.

    A policy that was only changed lets what it began come to its end, since half a change of a pool helps nobody. What was applied from a
    saved plan of a policy that only previews goes on as long as the policy is there. What is involuntary always goes on: the node goes.
    """
    was, now = _modes(before) if before else {}, _modes(after)
    found = []
    for record in active:
        policy = record.planned.policy
        if record.planned.lane == "involuntary" or record.cancelled is not None or record.outcome is not None:
            continue
        if policy not in now:
            found.append((record.id, f"commit {after.commit[:12]} has no policy {policy}"))
        elif was.get(policy) == "enforce" and now[policy] != "enforce":
            found.append((record.id, f"commit {after.commit[:12]} has {policy} in mode {now[policy]}"))
    return found


def _modes(policies: PolicySet) -> dict[str, Mode]:
    return {policy.name: policy.mode for policy in policies.policies}
