"""CEL's numbers on arrays. Whole numbers have 64 bits: where a sum, a product or a conversion may not fit, the row is left to CEL."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shunter.lang.columns.vectors import Bools, Figures, Frame, Mask, Numbers, both, decided

Comparison: TypeAlias = Callable[[Any, Any], Mask]

_LEAST: Final = np.int64(-(2**63))
_EXACT: Final = 2**53
"""Whole numbers up to this are doubles too."""
_SAFE: Final = float(2**62)

COMPARISONS: Final[dict[str, Comparison]] = {
    "_==_": np.equal,
    "_!=_": np.not_equal,
    "_<_": np.less,
    "_<=_": np.less_equal,
    "_>_": np.greater,
    "_>=_": np.greater_equal,
}


def compare(operator: Comparison, a: Numbers, b: Numbers, frame: Frame) -> Bools:
    """A comparison of two numbers, whole or not."""
    x, y = a.values, b.values
    if x.dtype != y.dtype:
        x, y = as_double(x, frame), as_double(y, frame)
    return decided(operator(x, y), both(a.known, b.known))


def as_double(values: Figures, frame: Frame) -> NDArray[np.float64]:
    """Whole numbers as doubles, where that is exact."""
    if values.dtype == np.float64:
        return values.view(np.float64)
    if values.size and (values.max() > _EXACT or values.min() < -_EXACT):
        frame.doubt((values > _EXACT) | (values < -_EXACT))
    return values.astype(np.float64)


def to_int(a: Numbers, frame: Frame) -> Numbers:
    """`int(a)` of doubles: towards zero."""
    outside = ~(np.abs(a.values) < _SAFE)
    frame.doubt(outside)
    return Numbers(np.where(outside, 0.0, a.values).astype(np.int64), a.known)


def is_member(a: Numbers, items: Figures) -> Bools:
    """Whether a number is one of some literals of its type."""
    return decided(np.isin(a.values, items), a.known)


def negative_double(a: Numbers, frame: Frame) -> Numbers:
    """`-a`, doubles."""
    return Numbers(-a.values, a.known)


def negative_int(a: Numbers, frame: Frame) -> Numbers:
    """`-a`, whole."""
    frame.doubt(a.values == _LEAST)
    return Numbers(-a.values, a.known)


def on_doubles(operator: Callable[[Any, Any], NDArray[np.float64]]) -> Callable[[Numbers, Numbers, Frame], Numbers]:
    """An operator of IEEE 754; unknown where that isn't finite (see `lang.finite`)."""

    def run(a: Numbers, b: Numbers, frame: Frame) -> Numbers:
        return finite(operator(a.values, b.values), both(a.known, b.known))

    return run


def finite(values: NDArray[np.float64], known: Mask | None) -> Numbers:
    """The numbers among them."""
    fit = np.isfinite(values)
    return Numbers(values, known) if fit.all() else Numbers(np.where(fit, values, 0.0), both(known, fit))


def divide_doubles(a: Numbers, b: Numbers, frame: Frame) -> Numbers:
    """`a / b`, doubles; unknown where b is 0, unlike IEEE 754 (see `lang.divisors`)."""
    zero = b.values == 0.0
    known = both(both(a.known, b.known), ~zero) if zero.any() else both(a.known, b.known)
    return finite(np.divide(a.values, np.where(zero, 1.0, b.values)), known)


def add(a: Numbers, b: Numbers, frame: Frame) -> Numbers:
    """`a + b`, whole."""
    x, y = whole(a), whole(b)
    total = x + y
    frame.doubt(((x ^ total) & (y ^ total)) < 0)
    return Numbers(total, both(a.known, b.known))


def subtract(a: Numbers, b: Numbers, frame: Frame) -> Numbers:
    """`a - b`, whole."""
    x, y = whole(a), whole(b)
    rest = x - y
    frame.doubt(((x ^ y) & (x ^ rest)) < 0)
    return Numbers(rest, both(a.known, b.known))


def multiply(a: Numbers, b: Numbers, frame: Frame) -> Numbers:
    """`a * b`, whole."""
    x, y = whole(a), whole(b)
    frame.doubt(np.abs(x.astype(np.float64) * y) >= _SAFE)
    return Numbers(x * y, both(a.known, b.known))


def divide(a: Numbers, b: Numbers, frame: Frame) -> Numbers:
    """`a / b`, whole, towards zero; unknown where b is 0."""
    x, y, known = _division(a, b, frame)
    return Numbers((x - np.fmod(x, y)) // y, known)


def remainder(a: Numbers, b: Numbers, frame: Frame) -> Numbers:
    """`a % b`, whole, with the sign of a; unknown where b is 0."""
    x, y, known = _division(a, b, frame)
    return Numbers(np.fmod(x, y), known)


def _division(a: Numbers, b: Numbers, frame: Frame) -> tuple[NDArray[np.int64], NDArray[np.int64], Mask | None]:
    x, y = whole(a), whole(b)
    zero, overflow = y == 0, (x == _LEAST) & (y == -1)
    frame.doubt(overflow)
    known = both(both(a.known, b.known), ~zero) if zero.any() else both(a.known, b.known)
    return x, np.where(zero | overflow, 1, y), known


def whole(a: Numbers) -> NDArray[np.int64]:
    """Its values, which the checker has proven to be whole."""
    return a.values.view(np.int64)


DOUBLES: Final = {
    "_+_": on_doubles(np.add),
    "_-_": on_doubles(np.subtract),
    "_*_": on_doubles(np.multiply),
    "_/_": divide_doubles,
}
INTS: Final = {"_+_": add, "_-_": subtract, "_*_": multiply, "_/_": divide, "_%_": remainder}
