"""Asking an expression, with the evidence of what it read."""

from shunter.model.expression import Expression, Rules, Scope, Undecided, Value, scalar
from shunter.model.finding import Evidence, Input
from shunter.model.sample import Known, Missing, Sample, Stale, say


def ask(rules: Rules, gate: str, expression: Expression, scope: Scope) -> tuple[bool | Undecided, Evidence]:
    """Test a condition. The evidence's result is None when it has no answer."""
    answer = rules.test(expression, scope)
    inputs = _inputs(rules, expression, scope)
    result = None if isinstance(answer, Undecided) else answer
    detail = str(answer) if result is None else ", ".join(_said(i) for i in inputs)
    return answer, Evidence(gate=gate, result=result, detail=detail, expression=expression.text, inputs=inputs)


def weigh(rules: Rules, gate: str, expression: Expression, scope: Scope) -> tuple[float | Undecided, Evidence]:
    """Measure a preference. The evidence's result is True when it has a value."""
    value = rules.measure(expression, scope)
    inputs = _inputs(rules, expression, scope)
    known = not isinstance(value, Undecided)
    detail = f"{value:g}" if not isinstance(value, Undecided) else str(value)
    return value, Evidence(gate=gate, result=True if known else None, detail=detail, expression=expression.text, inputs=inputs)


def missing(answer: Undecided) -> str:
    """What an undecided answer lacks, without figures that change from tick to tick: the names alone."""
    if answer.inputs:
        return f"no value for {', '.join(name for name, _ in answer.inputs)}"
    return answer.error or "the expression has no answer"


def _inputs(rules: Rules, expression: Expression, scope: Scope) -> tuple[Input, ...]:
    return tuple(_input(name, scope.get(name)) for name in sorted(rules.inputs(expression)))


def _input(name: str, value: Value | None) -> Input:
    if value is None:
        return Input(name=name, sample=Missing(reason="not collected") if name.startswith("metrics.") else None)
    sample: Sample | None = value if isinstance(value, Known | Missing | Stale) else None
    return Input(name=name, value=scalar(value), sample=sample)


def _said(given: Input) -> str:
    if given.sample is not None:
        return f"{given.name} = {say(given.sample)}"
    return f"{given.name} = {'unknown' if given.value is None else given.value}"
