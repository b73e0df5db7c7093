"""Expressions as values, and the port through which they are evaluated.

The language (CEL) is known to `lang` alone. `decide` holds expressions, asks a `Rules` about them, and gets three-valued answers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from shunter.model.errors import Place
from shunter.model.sample import Known, Missing, Stale

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | Mapping[str, str] | Known | Missing | Stale
"""What a variable can be bound to. Missing and Stale make every result that depends on them Undecided."""

Scope: TypeAlias = Mapping[str, Value]
"""Qualified variable name (`worker.kvUsage`, `pools.prefill.waiting`, `metrics.prefillWait`, `now`) to its value.

A declared variable that isn't in the scope at all is unknown, like a Missing. `now` is seconds since the epoch."""


class Expression(msgspec.Struct, frozen=True, kw_only=True):
    """A checked expression's source, and where it stands in its policy file."""

    text: str
    place: Place | None = None

    def __str__(self) -> str:
        return self.text


class Undecided(msgspec.Struct, frozen=True, kw_only=True):
    """An expression has no answer. `inputs` names the variables without a value, with each one's reason; `error` is set for others
    (division by zero).
    """

    inputs: tuple[tuple[str, str], ...] = ()
    error: str = ""

    def __str__(self) -> str:
        return "; ".join([f"{name}: {reason}" for name, reason in self.inputs] + ([self.error] if self.error else []))


class Rules(Protocol):
    """Evaluates expressions. Deterministic: the same expression and scope give the same answer."""

    def test(self, expression: Expression, scope: Scope) -> "bool | Undecided":
        """The truth of a boolean expression. An error is never False."""
        ...

    def measure(self, expression: Expression, scope: Scope) -> "float | Undecided":
        """The value of a number expression, finite."""
        ...

    def inputs(self, expression: Expression) -> tuple[str, ...]:
        """Qualified names of the variables that it reads, sorted: what evidence must show."""
        ...


class Sheet(Protocol):
    """The scopes of many subjects, by variable: what bulk questions are asked about. It doesn't change."""

    @property
    def size(self) -> int:
        """How many subjects."""
        ...

    def values(self, name: str) -> "Sequence[Value | None]":
        """The variable's value for each subject, in order, or a single one that holds for all. None: it isn't in the scope."""
        ...


@runtime_checkable
class BulkRules(Rules, Protocol):
    """Answers a question about many subjects at once, each as `test` and `measure` would; None where those are Undecided."""

    def test_all(self, expression: Expression, sheet: Sheet) -> "Sequence[bool | None]":
        """The truth of a boolean expression for each subject."""
        ...

    def measure_all(self, expression: Expression, sheet: Sheet) -> "Sequence[float | None]":
        """The value of a number expression for each subject."""
        ...


class OneByOne:
    """The plain way to answer in bulk: any `Rules`, asked about one subject after the other."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.test, self.measure, self.inputs = rules.test, rules.measure, rules.inputs

    def test_all(self, expression: Expression, sheet: Sheet) -> "Sequence[bool | None]":
        """The truth for each subject."""
        answers = [self._rules.test(expression, scope) for scope in scopes_of(sheet, self._rules.inputs(expression))]
        return [None if isinstance(answer, Undecided) else answer for answer in answers]

    def measure_all(self, expression: Expression, sheet: Sheet) -> "Sequence[float | None]":
        """The value for each subject."""
        answers = [self._rules.measure(expression, scope) for scope in scopes_of(sheet, self._rules.inputs(expression))]
        return [None if isinstance(answer, Undecided) else answer for answer in answers]


def in_bulk(rules: Rules) -> BulkRules:
    """The same rules, able to answer about many subjects at once."""
    return rules if isinstance(rules, BulkRules) else OneByOne(rules)


def scopes_of(sheet: Sheet, names: Sequence[str]) -> list[dict[str, Value]]:
    """Each subject's scope, with the named variables only."""
    columns = [(name, sheet.values(name)) for name in names]
    whole = [(name, held if len(held) == sheet.size else [held[0]] * sheet.size) for name, held in columns]
    return [{name: value for name, held in whole if (value := held[row]) is not None} for row in range(sheet.size)]


def scalar(value: Value) -> Scalar | None:
    """The plain value of a binding for evidence: None for Missing, Stale and maps."""
    if isinstance(value, Known):
        return value.value
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None
