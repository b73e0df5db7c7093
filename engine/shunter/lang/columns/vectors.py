"""What compiled expressions hand each other: arrays with a row for each subject, or one row that stands for all of them.

A row is unknown when its input is, and when it failed: CEL treats both as an error, which `&&`, `||` and `? :` absorb.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.intp]
Figures: TypeAlias = NDArray[np.float64 | np.int64]


class Bools(msgspec.Struct, frozen=True):
    """Three-valued truth: a row that is in neither mask is unknown, none is in both."""

    true: Mask
    false: Mask


class Numbers(msgspec.Struct, frozen=True):
    """Doubles or whole numbers by the array's type. `known` is None when every row is; an unknown row's value means nothing."""

    values: Figures
    known: Mask | None = None


class Dictionary:
    """Distinct texts, at least one."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words) or ("",)

    @cached_property
    def index(self) -> dict[str, int]:
        """The position of each text."""
        return {word: code for code, word in enumerate(self.words)}


class Words(msgspec.Struct, frozen=True):
    """Texts as positions in a dictionary. `known` is None when every row is; an unknown row's code is a valid one without a meaning.

    `name` is the qualified name of the variable or label that the texts are the values of, empty for others: what is worked out for
    a named one can be kept with its table.
    """

    codes: Codes
    dictionary: Dictionary
    known: Mask | None = None
    name: str = ""


class Frame(msgspec.Struct, frozen=True):
    """One evaluation. `doubtful` collects the rows whose arithmetic here may differ from CEL's (overflow): they are answered by CEL."""

    doubtful: list[Mask] = []

    def doubt(self, rows: Mask) -> None:
        """Leave these rows to CEL."""
        if rows.any():
            self.doubtful.append(rows)


def both(a: Mask | None, b: Mask | None) -> Mask | None:
    """The rows that are known in both."""
    if a is None:
        return b
    return a if b is None else a & b


def decided(true: Mask, known: Mask | None) -> Bools:
    """Truth from a fresh mask, which is written to, and the rows in which it counts."""
    if known is None:
        return Bools(true, ~true)
    true &= known
    return Bools(true, known ^ true)
