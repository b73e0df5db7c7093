"""`ColumnRules`: an expression over a whole table at once, with the answers that `CelRules` gives row by row."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from shunter.lang.cel import CelRules, compiled, syntax
from shunter.lang.columns.compile import NotColumnar, Number, Part, Truth, compile_tree
from shunter.lang.columns.fallback import answers
from shunter.lang.columns.tables import Table
from shunter.lang.columns.vectors import Frame, Mask
from shunter.model.expression import Expression, Undecided

Answers: TypeAlias = NDArray[np.int8]
"""For each row 1 (true), 0 (false) or -1 (undecided)."""

_UNDECIDED: Final = np.int8(-1)


class Plan(msgspec.Struct, frozen=True):
    """How an expression is answered: by `part`, or row by row when that is None. `inputs` are the variables that it reads."""

    part: Part | None
    inputs: tuple[str, ...]


@lru_cache(maxsize=8192)
def plan(text: str) -> Plan | None:
    """The way for an expression; None for one that doesn't compile."""
    try:
        checked = compiled(text)
    except RuntimeError:
        return None
    try:
        part = compile_tree(syntax(text))
    except NotColumnar:
        part = None
    return Plan(part, tuple(name for name, _ in checked.inputs))


class ColumnRules:
    """Evaluates expressions over tables. Compiled expressions are kept. An expression that doesn't compile is undecided everywhere."""

    def __init__(self) -> None:
        self._rules = CelRules()

    def test_all(self, expression: Expression, table: Table) -> Answers:
        """The truth of a boolean expression for every row; undecided where it depends on an unknown, fails, or isn't boolean."""
        found = plan(expression.text)
        result = np.full(table.size, _UNDECIDED)
        if found is None:
            return result
        if found.part is None:
            rows: Sequence[int] = range(table.size)
        elif isinstance(found.part, Truth):
            frame = Frame()
            with np.errstate(all="ignore"):
                truth = found.part.run(table, frame)
            np.subtract(truth.true, ~(truth.true | truth.false), out=result, dtype=np.int8, casting="unsafe")
            rows = _doubtful(frame, table.size)
        else:
            return result
        if len(rows):
            given = answers(lambda scope: self._rules.test(expression, scope), found.inputs, table, rows)
            result[rows] = [-1 if isinstance(answer, Undecided) else int(answer) for answer in given]
        return result

    def measure_all(self, expression: Expression, table: Table) -> tuple[NDArray[np.float64], Mask]:
        """The value of a number expression for every row, and where it has one (elsewhere it is 0): finite numbers only."""
        found = plan(expression.text)
        values, known = np.zeros(table.size), np.zeros(table.size, dtype=np.bool_)
        if found is None:
            return values, known
        if found.part is None:
            rows: Sequence[int] = range(table.size)
        elif isinstance(found.part, Number):
            frame = Frame()
            with np.errstate(all="ignore"):
                numbers = found.part.run(table, frame)
            np.isfinite(numbers.values, out=known)
            if numbers.known is not None:
                known &= numbers.known
            np.copyto(values, numbers.values, where=known)
            rows = _doubtful(frame, table.size)
        else:
            return values, known
        if len(rows):
            given = answers(lambda scope: self._rules.measure(expression, scope), found.inputs, table, rows)
            known[rows] = [not isinstance(answer, Undecided) for answer in given]
            values[rows] = [0.0 if isinstance(answer, Undecided) else answer for answer in given]
        return values, known

    def explain(self, expression: Expression, table: Table, row: int) -> bool | Undecided:
        """One row's truth as `CelRules` gives it, with the reasons of what is unknown. Raises IndexError for a row outside the table."""
        return self._rules.test(expression, table.scope(row, self._rules.inputs(expression)))

    def explain_measure(self, expression: Expression, table: Table, row: int) -> float | Undecided:
        """One row's number, likewise."""
        return self._rules.measure(expression, table.scope(row, self._rules.inputs(expression)))

    def columnar(self, expression: Expression) -> bool:
        """Whether it is answered over whole columns; otherwise CEL is asked for each row, some thousand times slower."""
        found = plan(expression.text)
        return found is not None and found.part is not None


def _doubtful(frame: Frame, size: int) -> Sequence[int]:
    if not frame.doubtful:
        return ()
    rows = np.zeros(size, dtype=np.bool_)
    for mask in frame.doubtful:
        rows |= mask
    found: list[int] = np.flatnonzero(rows).tolist()
    return found
