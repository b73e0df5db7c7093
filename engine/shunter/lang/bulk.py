"""`CelRules` that answers about many subjects at once, over columns where that is the faster way."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from shunter.lang.cel import CelRules
from shunter.model.expression import Expression, OneByOne, Sheet

if TYPE_CHECKING:
    from shunter.lang.columns.rules import ColumnRules
    from shunter.lang.columns.tables import Table

FEW: Final = 8
"""Up to so many subjects are asked about one by one: arrays would cost more than they save, and numpy isn't even loaded."""
_SAID: Final = {1: True, 0: False, -1: None}


class BulkCelRules(CelRules):
    """`model.expression.BulkRules` by CEL: the same answers, row for row. What is read from a sheet is kept for as long as the sheet is.
    Not for several threads at once.
    """

    def __init__(self) -> None:
        self._one_by_one = OneByOne(CelRules())
        self._tables: WeakKeyDictionary[Sheet, Table] = WeakKeyDictionary()
        self._over_columns: ColumnRules | None = None

    def test_all(self, expression: Expression, sheet: Sheet) -> Sequence[bool | None]:
        """The truth of a boolean expression for each subject; None where `test` is Undecided."""
        if sheet.size <= FEW:
            return self._one_by_one.test_all(expression, sheet)
        return list(map(_SAID.__getitem__, self._columns.test_all(expression, self._table(sheet)).tolist()))

    def measure_all(self, expression: Expression, sheet: Sheet) -> Sequence[float | None]:
        """The value of a number expression for each subject; None where `measure` is Undecided."""
        if sheet.size <= FEW:
            return self._one_by_one.measure_all(expression, sheet)
        values, known = self._columns.measure_all(expression, self._table(sheet))
        return [value if has else None for value, has in zip(values.tolist(), known.tolist(), strict=True)]

    @property
    def _columns(self) -> "ColumnRules":
        if self._over_columns is None:
            from shunter.lang.columns.rules import ColumnRules

            self._over_columns = ColumnRules()
        return self._over_columns

    def _table(self, sheet: Sheet) -> "Table":
        found = self._tables.get(sheet)
        if found is None:
            from shunter.lang.columns.tables import Table

            found = self._tables[sheet] = Table.of_sheet(sheet)
        return found
