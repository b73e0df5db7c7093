"""Why a worker is, or isn't, acted on: for each policy the first gate that decided."""

import msgspec

from shunter.decide.usage import subject as group_of
from shunter.model.finding import Evidence, Finding, Verdict
from shunter.model.ids import PolicyName, WorkerId
from shunter.model.plan import Evaluation, PlannedOperation
from shunter.model.policy import BudgetSpec, Policy, PolicySet
from shunter.model.snapshot import Node, Snapshot, Worker


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy means for one worker.

    `gate` is the first that stood in the way, or that decided to act; `expression`, `value` and `since` (seconds since the epoch) are
    its own, empty or None where it has none. `finding` is None when role, graph or mode alone keep the policy from it. `subject` is the
    worker, its graph when the policy decides on pools, or its group of a budget (`pool:<graph>/<role>`, `node:<id>`, `zone:<name>`, `all`).
    """

    policy: PolicyName
    kind: str
    subject: str
    verdict: Verdict
    gate: str
    reason: str
    expression: str = ""
    value: str = ""
    since: float | None = None
    finding: Finding | None = None
    operations: tuple[PlannedOperation, ...] = ()


def explain(evaluation: Evaluation, policies: PolicySet, snapshot: Snapshot, worker: WorkerId) -> tuple[Explanation, ...]:
    """One explanation for each policy, in the order of their names. Raises KeyError for a worker that the snapshot doesn't have."""
    known = next((w for w in snapshot.fleet.workers if w.id == worker), None)
    if known is None:
        raise KeyError(worker)
    node = next((n for n in snapshot.fleet.nodes if n.id == known.node), None)
    return tuple(_one(evaluation, policy, known, node) for policy in sorted(policies.policies, key=lambda p: p.name))


def _one(evaluation: Evaluation, policy: Policy, worker: Worker, node: Node | None) -> Explanation:
    static = _static(policy, worker)
    subjects = _subjects(policy, worker, node)
    own = {f.subject: f for f in evaluation.findings if f.policy == policy.name and f.subject in subjects}
    finding = next((own[s] for s in subjects if s in own), None)
    if static is not None or finding is None:
        gate, reason = static or ("workers", "the policy has nothing to say of it")
        return Explanation(policy=policy.name, kind=policy.kind, subject=worker.id, verdict=Verdict.PASS, gate=gate, reason=reason)
    evidence = _decisive(finding)
    return Explanation(
        policy=policy.name,
        kind=policy.kind,
        subject=finding.subject,
        verdict=finding.verdict,
        gate=finding.gate or (evidence.gate if evidence else ""),
        reason=finding.reason,
        expression=evidence.expression if evidence else "",
        value=evidence.detail if evidence else "",
        since=finding.since,
        finding=finding,
        operations=tuple(o for o in evaluation.plan.operations if o.policy == policy.name and o.worker == worker.id),
    )


def _subjects(policy: Policy, worker: Worker, node: Node | None) -> tuple[str, ...]:
    """What a finding of the policy that is about the worker can have as its subject, the closest first."""
    spec = policy.document.spec
    if not isinstance(spec, BudgetSpec):
        return worker.id, worker.graph
    group = group_of(spec, worker.pool, worker.node, node)
    return () if group is None else (group,)


def _static(policy: Policy, worker: Worker) -> tuple[str, str] | None:
    """Why the policy can't be about the worker, by what stands in the file alone."""
    select = policy.selector
    if policy.mode == "off":
        return "mode", "the policy is off"
    if select is None:
        return "kind", f"a {policy.kind} isn't about single workers"
    if select.graph not in (None, worker.graph):
        return "workers.graph", f"it covers {select.graph}, and the worker serves {worker.graph}"
    if select.role not in (None, worker.role):
        return "workers.role", f"it covers {select.role} workers, and this is a {worker.role} worker"
    return None


def _decisive(finding: Finding) -> Evidence | None:
    """The evidence that decided: that of the finding's gate, else the first that wasn't met, else the last."""
    named = [e for e in finding.evidence if e.gate == finding.gate]
    unmet = [e for e in finding.evidence if e.result is not True]
    return next(iter([*named, *unmet, *finding.evidence[-1:]]), None)
