"""Problems of a test file that its schema can't see, collected with their places."""

from collections.abc import Iterable
from typing import TypeAlias

from shunter.cases.read import Read
from shunter.cases.series import Series, SeriesError, series
from shunter.lang.diagnostics import one_of, shown, suggest
from shunter.lang.yaml import Mapping, look_up
from shunter.model.errors import Place, Problem
from shunter.model.units import Bytes, UnitError

Path: TypeAlias = tuple[str | int, ...]
_LISTED = 8
"""So many known names are listed in a remedy."""


class Marks:
    """Where things stand in one file, and what is wrong there. `problems` are in the order in which they were found."""

    def __init__(self, read: Read) -> None:
        self._source, self._root = read.source, read.root
        self.problems: list[Problem] = []

    def place(self, path: Path) -> Place:
        """Where the value at `path` stands, or the nearest one above it."""
        return self._source.place(look_up(self._root, path).start)

    def add(self, code: str, path: Path, what: str, remedy: str, *, key: bool = False) -> None:
        """Enter a problem at the value at `path`, or at its key."""
        offset = look_up(self._root, path).start
        if key and path:
            parent = look_up(self._root, path[:-1])
            if isinstance(parent, Mapping) and str(path[-1]) in parent.entries:
                offset = parent.entries[str(path[-1])][0].start
        problem = self._source.problem(code, offset, what, remedy)
        if problem not in self.problems:
            self.problems.append(problem)

    def known(self, path: Path, name: str, names: Iterable[str], noun: str, *, key: bool = False) -> bool:
        """Whether `name` is one of `names`; otherwise a problem with the nearest of them."""
        choices = sorted(set(names))
        if name in choices:
            return True
        listed = f"Write {one_of(choices[:_LISTED])}" if choices else f"There is no {noun} at all"
        self.add("SH162", path, f'there is no {noun} "{shown(name)}"', suggest(name, choices, listed), key=key)
        return False

    def series(self, path: Path, given: float | str | tuple[float | str, ...]) -> Series | None:
        """Values over steps, or None with a problem."""
        try:
            return series(given)
        except SeriesError as error:
            what, _, remedy = str(error).partition(": ")
            self.add("SH163", path, f"these values can't be read: {what}", remedy[:1].upper() + remedy[1:])
            return None

    def size(self, path: Path, text: str) -> int | None:
        """A size in bytes, or None with a problem."""
        try:
            return int(Bytes.parse(text))
        except UnitError as error:
            what, _, remedy = str(error).partition(": ")
            self.add("SH169", path, f"this size can't be read: {what}", remedy[:1].upper() + remedy[1:])
            return None
