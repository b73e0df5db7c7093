"""Whole columns against row by row: 200 generated expressions over 1,000 subjects must not differ in a single answer."""

import struct

import numpy as np
import pytest
from column_expressions import Expressions, subjects
from shunter.lang.cel import CelRules, compiled
from shunter.lang.columns import ColumnRules, Table
from shunter.model.expression import Expression, Undecided

RULES = CelRules()
COLUMNS = ColumnRules()
SUBJECTS = subjects(1, 1000)
TABLE = Table.of_scopes(SUBJECTS)


def one_by_one(expression, scopes):
    answers = (RULES.test(expression, scope) for scope in scopes)
    return np.array([-1 if isinstance(answer, Undecided) else int(answer) for answer in answers], dtype=np.int8)


def bits(value):
    return struct.pack("<d", value)


def numbers_one_by_one(expression, scopes):
    answers = [RULES.measure(expression, scope) for scope in scopes]
    return [None if isinstance(answer, Undecided) else bits(answer) for answer in answers]


def expressions(count, kind, seed):
    grown = Expressions(seed)
    return [Expression(text=getattr(grown, kind)(1 + n % 4)) for n in range(count)]


@pytest.mark.parametrize("seed", range(10))
def test_truth_is_the_same_as_row_by_row(seed):
    asked = expressions(20, "truth", seed)
    for expression in asked:
        compiled(expression.text)  # raises for what isn't an expression: that would be undecided on both sides
        together, alone = COLUMNS.test_all(expression, TABLE), one_by_one(expression, SUBJECTS)
        differing = np.flatnonzero(together != alone)
        assert not len(differing), (expression.text, SUBJECTS[differing[0]], together[differing[0]], alone[differing[0]])
    assert sum(map(COLUMNS.columnar, asked)) >= 0.8 * len(asked)


@pytest.mark.parametrize("kind", ["double", "whole"])
def test_numbers_are_the_same_to_the_bit(kind):
    for expression in expressions(20, kind, 77):
        values, known = COLUMNS.measure_all(expression, TABLE)
        together = [bits(v) if k else None for v, k in zip(values.tolist(), known.tolist(), strict=True)]
        assert together == numbers_one_by_one(expression, SUBJECTS), expression.text
        assert not values[~known].any()
