"""Where a condition is surely true: a union of boxes, each giving some variables a range or a set of values.

Only comparisons of one variable with constants are understood, joined by `&&`, `||`, `!` and `? :`. What isn't understood never makes a
box, so a box is a promise: every point in it makes the condition true. Two conditions with boxes that meet can be true together.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from shunter.lang.cel import syntax
from shunter.lang.tree import Call, Constant, Listed, Name, Tree
from shunter.model.expression import Scalar
from shunter.model.vocabulary import VARIABLES, Kind

MOST_BOXES: Final = 64
"""A condition with more isn't looked at: nobody could read it either."""


class Span(msgspec.Struct, frozen=True):
    """Numbers between two ends, which belong to it unless open, without the excluded ones."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    without: frozenset[float] = frozenset()

    def meet(self, other: "Span") -> "Span":
        """What both hold."""
        low, low_open = max((self.low, self.low_open), (other.low, other.low_open))
        high, closed = min((self.high, not self.high_open), (other.high, not other.high_open))
        return Span(low, high, low_open, not closed, self.without | other.without)

    def holds(self, number: float) -> bool:
        """The number is in it."""
        above = number > self.low or (number == self.low and not self.low_open)
        below = number < self.high or (number == self.high and not self.high_open)
        return above and below and number not in self.without

    def some(self, *, whole: bool) -> float | None:
        """A number in it, as round as can be, or None when it has none (that is found)."""
        if self.low > self.high:
            return None
        low = self.low if math.isfinite(self.low) else min(self.high, 0.0) - 1.0
        gap = self.high - low
        step = 1.0 if whole or gap == 0 or not math.isfinite(gap) else min(10.0 ** math.floor(math.log10(gap / 2)), 1.0)
        first = math.floor(low / step) + 1
        candidates = [low, *(round((first + n) * step, 12) for n in range(len(self.without) + 2)), self.high]
        if not whole and math.isfinite(gap):
            candidates.append(low + gap / 2)
        return next((c for c in candidates if self.holds(c) and (not whole or c.is_integer())), None)


class Words(msgspec.Struct, frozen=True):
    """Texts or truth values: those listed, or with `other` all but those listed."""

    listed: frozenset[str | bool]
    other: bool = False

    def meet(self, more: "Words") -> "Words":
        """What both hold."""
        if self.other and more.other:
            return Words(self.listed | more.listed, other=True)
        if self.other or more.other:
            some, none = (more, self) if self.other else (self, more)
            return Words(some.listed - none.listed)
        return Words(self.listed & more.listed)

    def some(self) -> str | bool | None:
        """A value in it, or None when it has none."""
        if self.other:
            return next(name for name in ("other", *(f"other-{n}" for n in range(len(self.listed) + 1))) if name not in self.listed)
        return min(self.listed, key=str, default=None)


Range: TypeAlias = Span | Words
Box: TypeAlias = Mapping[str, Range]

_ROLES: Final = Words(frozenset(("prefill", "decode")))
_DOMAINS: Final[dict[str, Range]] = {
    "worker.role": _ROLES,
    "worker.state": Words(frozenset(("running", "fenced", "frozen", "parked", "lost"))),
}
_FLIPPED: Final = {"_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_", "_==_": "_==_", "_!=_": "_!=_"}
_NEGATED: Final = {"_<_": "_>=_", "_<=_": "_>_", "_>_": "_<=_", "_>=_": "_<_", "_==_": "_!=_", "_!=_": "_==_"}


@lru_cache(maxsize=4096)
def boxes(text: str) -> tuple[Box, ...]:
    """Boxes in which an expression is surely true. None where it never is, isn't understood, or takes more than MOST_BOXES."""
    return tuple(_true(syntax(text), wanted=True))


def meeting(first: Iterable[Box], second: Iterable[Box]) -> dict[str, Scalar] | None:
    """Values of variables, by name, that lie in a box of each, or None when no such values are sure to exist."""
    others = tuple(second)
    for one in first:
        for other in others:
            if _independent(one, other) and (found := witness(_meet(one, other))) is not None:
                return found
    return None


def witness(box: Box | None) -> dict[str, Scalar] | None:
    """Values in the box that the variables can have, sorted by name, or None when there are none."""
    if box is None:
        return None
    found: dict[str, Scalar] = {}
    for name in sorted(box):
        limited = _meet({name: box[name]}, {name: _domain(name, box)})
        if limited is None:
            return None
        value = _value(name, limited[name])
        if value is None:
            return None
        found[name] = value
    return found


def renamed(parts: Iterable[Box], name: Callable[[str], str]) -> tuple[Box, ...]:
    """The same boxes with the variables called otherwise."""
    return tuple({name(key): value for key, value in box.items()} for box in parts)


def both(first: Iterable[Box], second: Iterable[Box]) -> tuple[Box, ...]:
    """Boxes of the points that lie in a box of each."""
    others = tuple(second)
    found = [met for one in first for other in others if (met := _meet(one, other)) is not None]
    return tuple(found) if len(found) <= MOST_BOXES else ()


def _independent(one: Box, other: Box) -> bool:
    """Nothing is known to tie the variables that only one of them reads to the rest. A metric that a policy declares may be anything."""
    apart = one.keys() ^ other.keys()
    nested = one.keys() <= other.keys() or other.keys() <= one.keys()
    if not nested and any("metrics." in name for name in apart):
        return False
    roots = {name.partition(".")[0] for name in one.keys() | other.keys() if _is_metric(name)}
    return len(roots & {"worker", "pool", "pools"}) <= 1  # a pool's figure is a sum over its workers


def _is_metric(name: str) -> bool:
    return name in VARIABLES and VARIABLES[name].metric


def _domain(name: str, box: Box) -> Range:
    """What the variable can be at all. A pool of which a figure is wanted has a worker."""
    variable = VARIABLES.get(name)
    if name in _DOMAINS:
        return _DOMAINS[name]
    if isinstance(box[name], Words):
        return Words(frozenset(), other=True)
    if variable is None:
        return Span(0.0)
    if name.endswith(".workers") and any(_is_metric(other) and other.startswith(name.removesuffix("workers")) for other in box):
        return Span(1.0)
    if name.endswith(".kvUsage"):
        return Span(0.0, 1.0)
    return Span() if name in ("now", "notice.lead") else Span(0.0)


def _value(name: str, given: Range) -> Scalar | None:
    if isinstance(given, Words):
        return given.some()
    variable = VARIABLES.get(name)
    whole = variable is not None and (variable.kind is Kind.INT or variable.unit in ("requests", "tokens", "sessions"))
    number = given.some(whole=whole)
    return int(number) if whole and number is not None else number


def _meet(one: Box, other: Box) -> Box | None:
    """The points in both, or None when a variable would have to be of two kinds, or one of no values."""
    met: dict[str, Range] = {**one, **other}
    for name in one.keys() & other.keys():
        match one[name], other[name]:
            case Span() as a, Span() as b:
                met[name] = a.meet(b)
            case Words() as a, Words() as b:
                met[name] = a.meet(b)
            case _:
                return None
    return met


def _true(tree: Tree, *, wanted: bool) -> tuple[Box, ...]:
    """Boxes in which the tree has the wanted truth value."""
    match tree:
        case Constant(value=bool() as value):
            return ({},) if value is wanted else ()
        case Name(name=name):
            return ({name: Words(frozenset((wanted,)))},)
        case Call(function="!_", arguments=(one,)):
            return _true(one, wanted=not wanted)
        case Call(function="_&&_" | "_||_" as function, arguments=(one, other)):
            first, second = _true(one, wanted=wanted), _true(other, wanted=wanted)
            return both(first, second) if (function == "_&&_") is wanted else _either(first, second)
        case Call(function="_?_:_", arguments=(condition, one, other)):
            first = both(_true(condition, wanted=True), _true(one, wanted=wanted))
            return _either(first, both(_true(condition, wanted=False), _true(other, wanted=wanted)))
        case Call(function="@in", arguments=(Name(name=name), Listed(items=items))):
            return _among(name, items, wanted=wanted)
        case Call(function=function, arguments=(one, other)) if function in _FLIPPED:
            return _compared(function if wanted else _NEGATED[function], one, other)
    return ()


def _either(first: tuple[Box, ...], second: tuple[Box, ...]) -> tuple[Box, ...]:
    return (*first, *second) if len(first) + len(second) <= MOST_BOXES else ()


def _among(name: str, items: tuple[Tree, ...], *, wanted: bool) -> tuple[Box, ...]:
    values = [item.value for item in items if isinstance(item, Constant) and isinstance(item.value, str)]
    return ({name: Words(frozenset(values), other=not wanted)},) if len(values) == len(items) else ()


def _compared(operator: str, one: Tree, other: Tree) -> tuple[Box, ...]:
    match one, other:
        case Constant(), Name():
            return _compared(_FLIPPED[operator], other, one)
        case Name(name=name), Constant(value=str() | bool() as value) if operator in ("_==_", "_!=_"):
            return ({name: Words(frozenset((value,)), other=operator == "_!=_")},)
        case Name(name=name), Constant(value=int() | float() as value) if not isinstance(value, bool):
            return ({name: _span(operator, float(value))},)
    return ()


def _span(operator: str, value: float) -> Span:
    match operator:
        case "_<_":
            return Span(high=value, high_open=True)
        case "_<=_":
            return Span(high=value)
        case "_>_":
            return Span(low=value, low_open=True)
        case "_>=_":
            return Span(low=value)
        case "_==_":
            return Span(value, value)
    return Span(without=frozenset((value,)))
