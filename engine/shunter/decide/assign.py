"""The least-cost assignment of rows to columns, in whole numbers, so that it is exact and the same everywhere."""

from collections.abc import Sequence


def assign(costs: Sequence[Sequence[int | None]]) -> list[int] | None:
    """A column for each row, all different, of the least sum of costs, or None if there is none. A cost of None: it may not be.

    The Hungarian method with potentials (Kuhn 1955; Munkres 1957), O(rows^2 * columns). Of the columns, as many of the cheapest of each row
    as there are rows are enough: the other rows can't take all of them.
    """
    rows = len(costs)
    if not rows:
        return []
    columns = len(costs[0])
    if columns < rows:
        return None
    never = (sum(max((c for c in row if c is not None), default=0) for row in costs) + 1) * 2
    u, v = [0] * (rows + 1), [0] * (columns + 1)
    owner = [0] * (columns + 1)
    for row in range(1, rows + 1):
        _augment(costs, row, owner, u, v, never)
    chosen = [0] * rows
    for column in range(1, columns + 1):
        if owner[column]:
            chosen[owner[column] - 1] = column - 1
    return None if any(costs[row][column] is None for row, column in enumerate(chosen)) else chosen


def _augment(costs: Sequence[Sequence[int | None]], row: int, owner: list[int], u: list[int], v: list[int], never: int) -> None:
    """Give `row` a column along the cheapest augmenting path. Rows and columns count from 1; column 0 is where the path begins."""
    columns = len(owner) - 1
    infinite = never * (len(u) + 1) * 4
    least, back, seen = [infinite] * (columns + 1), [0] * (columns + 1), [False] * (columns + 1)
    owner[0], at = row, 0
    while owner[at]:
        seen[at] = True
        delta, nearest, line = infinite, 0, costs[owner[at] - 1]
        for column in range(1, columns + 1):
            if seen[column]:
                continue
            cost = line[column - 1]
            reduced = (never if cost is None else cost) - u[owner[at]] - v[column]
            if reduced < least[column]:
                least[column], back[column] = reduced, at
            if least[column] < delta:
                delta, nearest = least[column], column
        for column in range(columns + 1):
            if seen[column]:
                u[owner[column]] += delta
                v[column] -= delta
            else:
                least[column] -= delta
        at = nearest
    while at:
        owner[at], at = owner[back[at]], back[at]
