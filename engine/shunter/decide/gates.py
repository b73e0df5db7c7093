"""Asking an expression, with the evidence of what it read."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from shunter.model.expression import Expression, Rules, Scope, Undecided, Value, scalar
from shunter.model.finding import Evidence, Input
from shunter.model.sample import Known, Missing, Sample, Stale, say


def ask(rules: Rules, gate: str, expression: Expression, scope: Scope) -> tuple[bool | Undecided, Evidence]:
    """Test a condition. The evidence's result is None when it has no answer."""
    answer = rules.test(expression, scope)
    inputs = _inputs(rules, expression, scope)
    if not isinstance(answer, Undecided):
        return answer, _told(gate, expression, answer, inputs)
    return answer, Evidence(gate=gate, result=None, detail=str(answer), expression=expression.text, inputs=inputs)


_UNSHARED: Final = frozenset({Known, Missing, Stale, type(None)})
"""Samples are told with all that they are, and there are too many of them to be alike."""


@lru_cache(maxsize=256)
def passed(gate: str) -> Evidence:
    """A gate that is open, of which there is nothing to say."""
    return Evidence(gate=gate, result=True)


class Teller:
    """Evidence of conditions whose answer is known. What read the same and came out the same is told once."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._names: dict[str, tuple[str, ...]] = {}
        self._told: dict[tuple[object, ...], Evidence] = {}

    def tell(self, gate: str, expression: Expression, scope: Scope, answer: bool) -> Evidence:
        """The evidence that `ask` gives where the answer is this one."""
        names = self._reads(expression)
        values = [scope.get(name) for name in names]
        key = None
        if _UNSHARED.isdisjoint(map(type, values)):
            known = zip(names, values, strict=True)
            key = (gate, expression.text, answer, *[_alike(name, value, expression) for name, value in known if value is not None])
            if (found := self._told.get(key)) is not None:
                return found
        inputs = tuple(i for name, value in zip(names, values, strict=True) for i in _read(name, value, expression))
        told = _told(gate, expression, answer, inputs)
        if key is not None:
            self._told[key] = told
        return told

    def of_worker_alone(self, expression: Expression) -> bool:
        """It reads nothing but `worker`."""
        return all(name.startswith("worker.") for name in self._reads(expression))

    def _reads(self, expression: Expression) -> tuple[str, ...]:
        names = self._names.get(expression.text)
        if names is None:
            names = self._names[expression.text] = tuple(sorted(self._rules.inputs(expression)))
        return names


def _told(gate: str, expression: Expression, answer: bool, inputs: tuple[Input, ...]) -> Evidence:
    return Evidence(gate=gate, result=answer, detail=", ".join(_said(i) for i in inputs), expression=expression.text, inputs=inputs)


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
    return tuple(i for name in sorted(rules.inputs(expression)) for i in _read(name, scope.get(name), expression))


def _read(name: str, value: Value | None, expression: Expression) -> list[Input]:
    """What of a variable was read: of labels those that the expression names, as `node.labels["tier"]`."""
    if not isinstance(value, Mapping):
        return [_input(name, value)]
    keys = _labels(expression.text, name)
    return [Input(name=f'{name}["{key}"]', value=value.get(key)) for key in keys] or [Input(name=name, value=f"{len(value)} labels")]


def _alike(name: str, value: Value, expression: Expression) -> object:
    """What is the same for two values of a variable of which the same is told."""
    if not isinstance(value, Mapping):
        return repr(scalar(value))
    return tuple(value.get(key) for key in _labels(expression.text, name))


@lru_cache(maxsize=4096)
def _labels(text: str, name: str) -> tuple[str, ...]:
    """The labels that an expression names, sorted."""
    whole = re.escape(name)
    indexed = re.findall(rf"""\b{whole}\s*\[\s*(["'])(.*?)\1\s*\]""", text)
    looked_up = re.findall(rf"""(["'])([^"']*)\1\s+in\s+{whole}\b""", text)
    return tuple(sorted({key for _, key in (*indexed, *looked_up)} | set(re.findall(rf"\b{whole}\.(\w+)\b(?!\s*\()", text))))


def _input(name: str, value: Value | None) -> Input:
    if value is None:
        return Input(name=name, sample=Missing(reason="not collected") if name.startswith("metrics.") else None)
    sample: Sample | None = value if isinstance(value, Known | Missing | Stale) else None
    return Input(name=name, value=scalar(value), sample=sample)


def _said(given: Input) -> str:
    if given.sample is not None:
        return f"{given.name} = {say(given.sample)}"
    if given.value is None:
        return f"{given.name} = {'absent' if given.name.endswith(']') else 'unknown'}"
    return f"{given.name} = {given.value}"
