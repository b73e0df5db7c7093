"""Row by row: `CelRules` itself, for expressions that have no counterpart on columns and for rows whose arithmetic may overflow."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from shunter.lang.columns.tables import Column, Table
from shunter.model.expression import Scope

A = TypeVar("A")


def answers(ask: Callable[[Scope], A], inputs: Sequence[str], table: Table, rows: Sequence[int]) -> list[A]:
    """`ask` for the scope of each row, once for rows with the same inputs."""
    found: dict[tuple[int | None, ...], A] = {}
    given = []
    for row, key in zip(rows, _keys([table.column(name) for name in inputs], rows), strict=True):
        if key not in found:
            found[key] = ask(table.scope(row, inputs))
        given.append(found[key])
    return given


def _keys(columns: Sequence[Column], rows: Sequence[int]) -> list[tuple[int | None, ...]]:
    """What tells rows apart, one tuple each; None stands for an unknown value, whatever the reason."""
    if not columns:
        return [()] * len(rows)
    return list(zip(*(_identities(column, rows) for column in columns), strict=True))


def _identities(column: Column, rows: Sequence[int]) -> list[int | None]:
    if column.size == 1:
        return _known(column, np.zeros(len(rows), dtype=np.intp))
    return _known(column, np.asarray(rows, dtype=np.intp))


def _known(column: Column, places: "np.ndarray[tuple[int], np.dtype[np.intp]]") -> list[int | None]:
    numbers: list[int | None] = column.identity()[places].tolist()
    if column.known is None:
        return numbers
    return [number if known else None for number, known in zip(numbers, column.known[places].tolist(), strict=True)]
