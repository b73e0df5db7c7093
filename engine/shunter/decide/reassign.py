"""Shifting hardware between the pools of a graph, both ways."""

from collections.abc import Sequence

from shunter.decide.deciding import Deciding
from shunter.decide.follow import follow
from shunter.decide.gates import missing
from shunter.decide.give import give
from shunter.decide.revert import undo
from shunter.decide.shift import Condition, Stop, condition, flipping, opposed, restraints, spec_of
from shunter.decide.words import clock
from shunter.model.expression import Undecided
from shunter.model.finding import Evidence, Verdict
from shunter.model.policy import Policy


def reassign(d: Deciding, policy: Policy) -> None:
    """Find and plan for every graph that the policy covers."""
    wanted = spec_of(policy).workers.graph
    for graph in d.world.graphs:
        if wanted in (None, graph):
            _graph(d, policy, graph)


def _graph(d: Deciding, policy: Policy, graph: str) -> None:
    spec = spec_of(policy)
    if spec.follow == "planner":
        follow(d, policy, graph)
        return
    assert spec.when is not None, "it is required where the planner isn't followed"
    shift = condition(d, policy, graph, spec.when, spec.for_)
    back = condition(d, policy, graph, spec.revert.when, spec.revert.for_, "revert.") if spec.revert else None
    if shift.answer is False and back is not None and back.answer is not False:
        _act(d, policy, graph, back, back=True, before=shift.evidence)
        return
    if shift.answer is False:
        evidence = (*shift.evidence, *(back.evidence if back else ()))
        d.find(policy, graph, Verdict.PASS, "`when` is false", gate="when", evidence=evidence)
        return
    evidence = back.evidence[:1] if back else ()
    against = _against(back) if shift.answer is True else None
    _act(d, policy, graph, shift, back=False, after=evidence, against=against)


def _against(back: Condition | None) -> Stop | None:
    """Whether the shift would be undone at once."""
    if back is None or back.answer is False:
        return None
    if isinstance(back.answer, Undecided):
        return Stop(verdict=Verdict.INCONCLUSIVE, reason=missing(back.answer), gate="revert.when")
    return Stop(verdict=Verdict.HOLD, reason="`revert.when` is true as well: the shift would be undone at once", gate="revert.when")


def _act(
    d: Deciding,
    policy: Policy,
    graph: str,
    trigger: Condition,
    *,
    back: bool,
    before: Sequence[Evidence] = (),
    after: Sequence[Evidence] = (),
    against: Stop | None = None,
) -> None:
    """Take the trigger through all gates, then shift, or shift back; and say how it ended."""
    prefix = "revert." if back else ""
    stop, evidence = _timed(trigger, prefix), [*before, *trigger.evidence]
    if stop is None:
        evidence += after
        stop = against or flipping(policy) or (opposed(d, policy, graph) if not back else None)
    if stop is None:
        stop, gates = restraints(d, policy, graph)
        evidence += gates
    if stop is None:
        name = f"{'revert' if back else 'shift'}:{policy.name}:{trigger.since(d.now)}"
        stop, gates = undo(d, policy, graph, name) if back else give(d, policy, graph, name, trigger)
        evidence += gates
    assert stop is not None, "giving and undoing say how they ended"
    d.find(policy, graph, stop.verdict, stop.reason, gate=stop.gate, evidence=evidence, since=trigger.held.since)


def _timed(trigger: Condition, prefix: str) -> Stop | None:
    """Whether the trigger is true, and has been for long enough."""
    if isinstance(trigger.answer, Undecided):
        return Stop(verdict=Verdict.INCONCLUSIVE, reason=missing(trigger.answer), gate=f"{prefix}when")
    if trigger.held.remaining > 0:
        since = trigger.held.since
        told = f"`{prefix}when` has held since {clock(since)}" if since is not None else f"`{prefix}when` is true, but {trigger.held.why}"
        return Stop(verdict=Verdict.HOLD, reason=f"{told}: not long enough", gate=f"{prefix}for")
    return None
