"""CEL over columns: one expression, ten thousand subjects, one pass of numpy."""

from shunter.lang.columns.rules import Answers, ColumnRules
from shunter.lang.columns.tables import Column, Table

__all__ = ["Answers", "Column", "ColumnRules", "Table"]
