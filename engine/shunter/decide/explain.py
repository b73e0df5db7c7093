"""Why a worker is, or isn't, acted on: for each policy the first gate that decided. The same for all that a policy says, and for a node."""

from collections.abc import Sequence

import msgspec

from shunter.decide.needed import needed
from shunter.decide.usage import subject as group_of
from shunter.model.finding import Chapter, Evidence, Finding, Verdict, chapters
from shunter.model.ids import NodeId, PolicyName, WorkerId, node_of
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
    needed: str = ""
    """What would have to be otherwise for the policy to act, in a sentence; empty where it acts, or where nothing can be said."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Subjects of which a policy says the same: `number` of them, the first few by name, and one explained in full. `since` is the earliest
    of those that are named, seconds since the epoch, or None.
    """

    number: int
    subjects: tuple[str, ...]
    since: float | None
    example: Explanation


class PolicyAccount(msgspec.Struct, frozen=True, kw_only=True):
    """All that a policy says now, what it does first, then what it holds back; by verdict and gate."""

    policy: PolicyName
    kind: str
    mode: str
    groups: tuple[Group, ...]
    operations: tuple[PlannedOperation, ...]


class NodeAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A node, what is said of each worker on it, and what the plan brings to it and takes from it. `free` are its slots that no worker
    occupies or is on its way to, `against` why nothing goes there, or who alone does (empty: nothing is against it).
    """

    node: NodeId
    free: int
    against: str
    workers: tuple[tuple[WorkerId, tuple[Explanation, ...]], ...]
    arriving: tuple[PlannedOperation, ...]
    leaving: tuple[PlannedOperation, ...]


_NAMED = 5
"""So many subjects of a group are named."""
_ORDER = (Verdict.ACT, Verdict.HOLD, Verdict.INCONCLUSIVE, Verdict.PASS)


def explain_policy(evaluation: Evaluation, policies: PolicySet, name: PolicyName) -> PolicyAccount:
    """What the policy says of all its subjects. Raises KeyError for a policy that the set doesn't have."""
    policy = next((p for p in policies.policies if p.name == name), None)
    if policy is None:
        raise KeyError(name)
    own = next((c for c in chapters(evaluation.findings) if c.policy == name), None)
    operations = tuple(o for o in evaluation.plan.operations if o.policy == name)
    groups = _groups(policy, own, operations) if own is not None else ()
    return PolicyAccount(policy=name, kind=policy.kind, mode=policy.mode, groups=tuple(groups), operations=operations)


def _groups(policy: Policy, own: Chapter, operations: Sequence[PlannedOperation]) -> list[Group]:
    alike: dict[tuple[Verdict, str], list[int]] = {}
    for place, brief in enumerate(own.briefs):
        alike.setdefault((brief.verdict, brief.gate), []).append(place)
    found: list[Group] = []
    for places in alike.values():
        named = [own.tell(place) for place in places[:_NAMED]]
        example = _told(policy, named[0], tuple(o for o in operations if o.worker == named[0].subject))
        since = min((f.since for f in named if f.since is not None), default=None)
        found.append(Group(number=len(places), subjects=tuple(f.subject for f in named), since=since, example=example))
    return sorted(found, key=lambda g: (_ORDER.index(g.example.verdict), -g.number, g.example.gate))


def explain_node(evaluation: Evaluation, policies: PolicySet, snapshot: Snapshot, name: NodeId) -> NodeAccount:
    """The node and what is said of its workers. Raises KeyError for a node that the snapshot doesn't have."""
    node = next((n for n in snapshot.fleet.nodes if n.id == name), None)
    if node is None:
        raise KeyError(name)
    open_for = [n for n in snapshot.notices if n.node == name and n.slot is None]
    against = "it doesn't answer" if not node.reachable else f"{open_for[0].kind.value}: a notice is open for it" if open_for else ""
    taints = ", ".join(str(taint) for taint in node.taints if taint.hard)
    on_it = sorted(w.id for w in snapshot.fleet.workers if w.node == name and w.slot is not None)
    operations = evaluation.plan.operations
    return NodeAccount(
        node=name,
        free=sum(s.worker is None and s.reserved_by is None for s in node.slots),
        against=against or (f"only workers come here that tolerate {taints}" if taints else ""),
        workers=tuple((worker, explain(evaluation, policies, snapshot, worker)) for worker in on_it),
        arriving=tuple(o for o in operations if o.to_slot is not None and node_of(o.to_slot) == name),
        leaving=tuple(o for o in operations if o.from_slot is not None and node_of(o.from_slot) == name),
    )


def explain(evaluation: Evaluation, policies: PolicySet, snapshot: Snapshot, worker: WorkerId) -> tuple[Explanation, ...]:
    """One explanation for each policy, in the order of their names. Raises KeyError for a worker that the snapshot doesn't have."""
    known = next((w for w in snapshot.fleet.workers if w.id == worker), None)
    if known is None:
        raise KeyError(worker)
    node = next((n for n in snapshot.fleet.nodes if n.id == known.node), None)
    said = {chapter.policy: chapter for chapter in chapters(evaluation.findings)}
    own = tuple(o for o in evaluation.plan.operations if o.worker == worker)
    return tuple(_one(said.get(policy.name), own, policy, known, node) for policy in sorted(policies.policies, key=lambda p: p.name))


def _one(said: Chapter | None, own: tuple[PlannedOperation, ...], policy: Policy, worker: Worker, node: Node | None) -> Explanation:
    static, finding = _static(policy, worker), None
    if said is not None:
        places = {subject: place for place, subject in enumerate(said.subjects)}
        finding = next((said.tell(places[s]) for s in _subjects(policy, worker, node) if s in places), None)
    if static is not None or finding is None:
        gate, reason = static or ("workers", "the policy has nothing to say of it")
        told = needed(Verdict.PASS, gate, None)
        return Explanation(
            policy=policy.name, kind=policy.kind, subject=worker.id, verdict=Verdict.PASS, gate=gate, reason=reason, needed=told
        )
    return _told(policy, finding, tuple(o for o in own if o.policy == policy.name))


def _told(policy: Policy, finding: Finding, operations: tuple[PlannedOperation, ...]) -> Explanation:
    evidence = _decisive(finding)
    gate = finding.gate or (evidence.gate if evidence else "")
    return Explanation(
        policy=policy.name,
        kind=policy.kind,
        subject=finding.subject,
        verdict=finding.verdict,
        gate=gate,
        reason=finding.reason,
        expression=evidence.expression if evidence else "",
        value=evidence.detail if evidence else "",
        since=finding.since,
        finding=finding,
        operations=operations,
        needed=needed(finding.verdict, gate, evidence),
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
