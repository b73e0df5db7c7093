"""Expressions as values, and the port through which they are evaluated.

The language (CEL) is known to `lang` alone. `decide` holds expressions, asks a `Rules` about them, and gets three-valued answers.
"""

import math
from collections.abc import Mapping
from typing import Protocol, TypeAlias

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


def scalar(value: Value) -> Scalar | None:
    """The plain value of a binding for evidence: None for Missing, Stale and maps."""
    if isinstance(value, Known):
        return value.value
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None
