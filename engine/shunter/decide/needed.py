"""What would have to be otherwise for a policy to act: told from the gate that decided, and from the values that it read."""

import operator
import re
from collections.abc import Callable, Iterator
from typing import Final

from shunter.model.finding import Evidence, Input, Verdict
from shunter.model.sample import Known, Missing, Sample, Stale

_COMPARISON: Final = re.compile(r"([A-Za-z_][\w.]*)\s*(<=|>=|==|!=|<|>)\s*(-?\d+(?:\.\d+)?)(?![\w.])")
"""A variable against a number: what most conditions are made of."""
_HOLDS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_ARITHMETIC: Final = frozenset("+-*/%")

_TIME: Final = "nothing but time has to pass, while all else stays as it is"
_TRUE: Final = "the condition would have to be true"
_BY_GATE: Final = {
    "mode": "the policy's mode would have to be `enforce`, or `preview` to see what it would do",
    "kind": "nothing: policies of this kind aren't about single workers",
    "workers.graph": "the selector would have to cover its graph",
    "workers.role": "the selector would have to cover its role",
    "worker.state": "it would have to run in a slot",
    "notices": "a notice of one of these kinds would have to come for its node, or for a GPU of its slot",
    "every": "its newest image would have to be older",
    "cadence": "its newest image would have to be older",
    "when": _TRUE,
    "workers.where": _TRUE,
    "pick.where": _TRUE,
    "revert.when": "`revert.when` would have to be false: the shift would be undone at once",
    "active": "what the policy has under way would have to be over",
    "follow": "the planner would have to want other numbers of workers than there are",
    "for": _TIME,
    "cooldown": _TIME,
    "backoff": f"{_TIME}; better, what made it fail is mended",
    "repeats": "a person would have to end what makes it go back and forth or fail; within the hour nothing more is done by choice",
    "turn": "those that go before it would have to be done",
    "step": "those that go before it would have to be done",
    "budget": "what the budget counts would have to end, its window to open, or its limit to be raised",
    "lane": "the work for nodes that are going would have to be over",
    "snapshot": "the engine would have to see the fleet again: its newest snapshot is too old",
    "node.noticed": "the notice would have to be withdrawn, or the node to answer",
    "gpu": "its process would have to end, so that it can come back from its last image",
    "worker": "what is under way with it, or with its slot, would have to be over",
    "move.to": "a slot that fits it would have to become free",
    "to": "a slot that fits, and that the policy allows, would have to become free",
    "gain": "another place would have to be better by what `gain` asks for",
    "after": "the other place would have to be one at which nothing would move it again",
    "undo": "an hour would have to pass since it was moved away from there",
    "opposite": "the policy that wants the opposite would have to stop wanting it",
    "method": "its engine would have to be able to change its role in place, or `method` to be `auto`",
    "cost": "the move would have to be quicker than starting it anew, by the figures of its profile",
    "pause.atMost": "it would have to stand still for a shorter time, or be allowed to for longer",
    "prefer": "it would have to have nothing to do for a moment",
    "limits.from.min": "the pool that gives would have to have more workers, or `limits.from.min` to be lower",
    "limits.to.max": "the pool that gets would have to have fewer workers, or `limits.to.max` to be higher",
    "desired": "there would have to be slots for as many workers as the planner wants",
    "otherwise": "a person would have to say where it is to go: nothing of what the policy allows is left",
    "image": "an image of it would have to be on a node that answers",
    "restore": "a person would have to look why it can't be restored",
    "revert": "there would have to be a shift that can be taken back",
    "pick": "a worker would have to be there that may make way and fits",
    "pick.prefer": "nothing: it makes way when one must",
}


def needed(verdict: Verdict, gate: str, evidence: Evidence | None) -> str:
    """In a sentence without a full stop; empty where the policy acts, or where nothing can be said."""
    if verdict is Verdict.ACT:
        return ""
    if evidence is not None and (verdict is Verdict.INCONCLUSIVE or evidence.result is None):
        lacking = [f"{i.name} ({_why(i.sample)})" for i in evidence.inputs if i.sample is not None and not isinstance(i.sample, Known)]
        lacking += [i.name for i in evidence.inputs if i.sample is None and i.value is None]
        if lacking:
            return f"there would have to be a value for {', '.join(lacking)}"
    if evidence is not None and evidence.expression and evidence.result is False:
        return _condition(evidence)
    return _BY_GATE.get(gate, "")


def _condition(evidence: Evidence) -> str:
    against = list(_unmet(evidence))
    told = f"`{evidence.expression}` would have to be true"
    return f"{told}: {', and '.join(against)}" if against else told


def _unmet(evidence: Evidence) -> Iterator[str]:
    """The comparisons that are false by themselves, with the value and the threshold. Where something is negated, none: which way a
    comparison counts can't be told from its words alone.
    """
    text = evidence.expression
    if re.search(r"!(?!=)|\?", text):
        return
    values = {i.name: value for i in evidence.inputs if (value := _number(i)) is not None}
    for found in _COMPARISON.finditer(text):
        name, sign, threshold = found.groups()
        before, after = text[: found.start()].rstrip()[-1:], text[found.end() :].lstrip()[:1]
        alone = before not in _ARITHMETIC and after not in _ARITHMETIC
        if alone and name in values and not _HOLDS[sign](values[name], float(threshold)):
            yield f"{name} is {values[name]:g}, and would have to be {sign} {threshold}"


def _number(given: Input) -> float | None:
    if isinstance(given.sample, Known):
        return given.sample.value
    return float(given.value) if isinstance(given.value, int | float) and not isinstance(given.value, bool) else None


def _why(sample: Sample) -> str:
    match sample:
        case Missing(reason=reason):
            return reason
        case Stale(age=age, max_age=most):
            return f"{age:.0f} s old, at most {most:.0f} s allowed"
        case Known():
            return "known"
