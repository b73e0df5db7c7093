"""Shifts of hardware between pools, as the engine did them: when, how often, and what can still be undone."""

from collections.abc import Sequence

import msgspec

from shunter.decide.deciding import Deciding
from shunter.decide.gates import ask
from shunter.decide.history import FAILURES, HOUR
from shunter.decide.hold import Held, held
from shunter.decide.numbers import fixed
from shunter.decide.words import clock
from shunter.model.expression import Expression, Undecided
from shunter.model.finding import Evidence, Verdict
from shunter.model.operation import OperationRecord
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.policy import Policy, ReassignmentPolicy, ReassignmentSpec

MOST_PER_HOUR = 3
"""Shifts of a graph by one policy within an hour. Where they went back and forth, or failed, a person is asked whether it does any good."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on a graph: its answer now, and how long it has held."""

    answer: bool | Undecided
    held: Held
    evidence: tuple[Evidence, ...]

    def since(self, now: float) -> str:
        """What names this stretch of the condition being true: when it began, if the snapshots show that, else the hour."""
        return f"{self.held.since:.3f}" if self.held.begun and self.held.since is not None else f"h{int(now // HOUR)}"


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing is done for a graph."""

    verdict: Verdict
    reason: str
    gate: str


def spec_of(policy: Policy) -> ReassignmentSpec:
    """The spec of a ReassignmentPolicy. Raises TypeError for another kind."""
    if not isinstance(policy.document, ReassignmentPolicy):
        raise TypeError(f"{policy.name} is a {policy.kind}")
    return policy.document.spec


def condition(d: Deciding, policy: Policy, graph: str, when: Expression, needed: float, prefix: str = "") -> Condition:
    """Test a condition in every snapshot, and its `for`. `prefix` goes before the gates' names."""
    answer, evidence = ask(d.rules, f"{prefix}when", when, d.scopes.graph(policy, graph))
    if answer is not True:
        return Condition(answer=answer, held=Held(since=None, remaining=needed, why="it doesn't hold now"), evidence=(evidence,))
    stretch = held([*d.earlier(policy, graph, when), (d.world.at, True)], d.now, needed)
    since = f"since {clock(stretch.since)}" if stretch.since is not None else "not at all"
    lasted = Evidence(
        gate=f"{prefix}for", result=stretch.remaining <= 0, detail=f"{since}, {needed:g} s wanted{'; ' if stretch.why else ''}{stretch.why}"
    )
    return Condition(answer=True, held=stretch, evidence=(evidence, lasted))


def records(d: Deciding, policy: Policy, graph: str) -> list[OperationRecord]:
    """Operations of the policy on workers of the graph that began within the hour or are under way, oldest first."""
    recent = [r for r in d.history.of_policy(policy.name) if r.created_at > d.now - HOUR or d.history.under_way(r)]
    return [r for r in recent if _graph_of(d, r.planned) == graph]


def _graph_of(d: Deciding, planned: PlannedOperation) -> str | None:
    """Of one that was drained only its operation knows."""
    worker = d.world.workers.get(planned.worker)
    if worker is not None:
        return worker.graph
    return planned.pool.rpartition("/")[0] if planned.pool is not None else None


def restraints(d: Deciding, policy: Policy, graph: str) -> tuple[Stop | None, tuple[Evidence, ...]]:
    """What keeps any shift of the graph from being done now, whichever way: the first of the gates that is shut."""
    own = records(d, policy, graph)
    preview = policy.mode == "preview"
    busy = next((r for r in own if d.history.under_way(r)), None)
    gates = (
        ("snapshot", d.outdated()),
        ("lane", d.involuntary(graph, preview=preview)),
        ("active", f"busy with {busy.planned.kind.value} {busy.id}" if busy else None),
        *(("replicas", why) for why in (fixed(d, graph),) if why is not None),
        ("cooldown", _cooling(d, policy, own)),
        ("repeats", _repeats(own)),
    )
    evidence: list[Evidence] = []
    for gate, why in gates:
        evidence.append(Evidence(gate=gate, result=why is None, detail=why or ""))
        if why is not None:
            return Stop(verdict=Verdict.HOLD, reason=why, gate=gate), tuple(evidence)
    return None, tuple(evidence)


def _cooling(d: Deciding, policy: Policy, own: Sequence[OperationRecord]) -> str | None:
    over = own[-1].created_at + spec_of(policy).cooldown if own else d.now
    return f"the last change began at {clock(own[-1].created_at)}; the next may at {clock(over)}" if d.now < over else None


def _repeats(own: Sequence[OperationRecord]) -> str | None:
    """Whether there were as many changes within the hour as are made, and what became of them."""
    began: dict[tuple[str, int], float] = {}
    for record in own:
        began[record.planned.cause, record.planned.attempt] = record.created_at
    if len(began) < MOST_PER_HOUR:
        return None
    failed = len({(r.planned.cause, r.planned.attempt) for r in own if r.status in FAILURES})
    brought = {r.planned.pool for r in own if r.planned.kind is OperationKind.RESTORE and r.planned.pool}
    to_and_fro = len(brought) > 1 or any(cause.startswith("revert:") for cause, _ in began)
    told = (
        f"{len(began)} changes within the hour{', back and forth' if to_and_fro else ''}{f', {failed} of them in vain' if failed else ''}"
    )
    if failed or to_and_fro:
        return f"{told}: it needs a person"
    over = sorted(began.values())[len(began) - MOST_PER_HOUR] + HOUR
    return f"{told}, as many as are made: the next may begin at {clock(over)}"


def flipping(policy: Policy) -> Stop | None:
    """Why hardware can't change its role the way that the policy asks for, or None."""
    if spec_of(policy).method != "in-place":
        return None
    reason = "no agent reports an engine that can change its role where it stands; `method: auto` does it by checkpoint"
    return Stop(verdict=Verdict.HOLD, reason=reason, gate="method")


def opposed(d: Deciding, policy: Policy, graph: str) -> Stop | None:
    """Who would undo a shift at once: another policy of the other direction whose condition is true now, or None."""
    spec = spec_of(policy)
    for other in sorted(d.policies.policies, key=lambda p: p.name):
        if other.name == policy.name or not isinstance(other.document, ReassignmentPolicy):
            continue
        its = other.document.spec
        covers = its.mode != "off" and its.workers.graph in (None, graph) and (its.from_, its.to) == (spec.to, spec.from_)
        if covers and its.when is not None and d.rules.test(its.when, d.scopes.graph(other, graph)) is True:
            return Stop(verdict=Verdict.HOLD, reason=f"{other.name} wants the opposite now", gate="opposite")
    return None
