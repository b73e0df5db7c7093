"""Policy files in one form: two blanks a level, one after a colon and a dash, none at a line's end, single empty lines, few markers.

Comments, the order of keys, quotes, line breaks and everything inside values stay as they are. Only white space and needless document
markers change, and that is checked on the result, as is that it means the same.
"""

import re
from typing import Final

import msgspec

from shunter.lang.diagnostics import SourceText
from shunter.lang.yaml import Mapping, Node, Scalar, Sequence, decode, parse, plain
from shunter.model.errors import Problem, Rejected

STEP: Final = 2
_COLON: Final = re.compile(r"[ \t]*:[ \t]+")
_DASHES: Final = re.compile(r"(?:-[ \t]+)*(?:-$)?")
_MARKER: Final = re.compile(r"^(?:---|\.\.\.)[ \t]*$", re.MULTILINE)


def formatted(path: str, data: bytes) -> bytes:
    """The file's bytes in that form: UTF-8, lines ending in LF. Formatting them again changes nothing.

    Raises Rejected with the first problem of a file that isn't sound YAML, and SH151 rather than return anything that says something else.
    """
    before = _read(path, data)
    text = re.sub(r"\r\n?", "\n", before.text)
    text = _Lines(path, _colons(path, text)).formatted()
    _assert_same(before, text)
    return text.encode()


def _read(path: str, data: bytes) -> SourceText:
    source, problems = decode(path, data)
    problems = problems or parse(source)[1]
    if problems:
        raise Rejected(problems[0])
    return source


def _assert_same(before: SourceText, text: str) -> None:
    after = SourceText(before.path, text)
    if _meaning(before) != _meaning(after) or _ink(before.text) != _ink(text):
        what = "the file can't be formatted without changing what it says; it is left as it is"
        remedy = "Write it more plainly (no `? key`, for instance), or leave its form alone"
        raise Rejected(Problem(code="SH151", what=what, remedy=remedy, subject=before.path))


def _meaning(source: SourceText) -> tuple[list[object], bool]:
    nodes, problems = parse(source)
    return [plain(node) for node in nodes if not (isinstance(node, Scalar) and node.value is None)], bool(problems)


def _ink(text: str) -> str:
    """All characters but white space and document markers."""
    return "".join(_MARKER.sub("", re.sub(r"\r\n?", "\n", text)).split())


def _colons(path: str, text: str) -> str:
    """One blank between a key and its value on the same line."""
    source = SourceText(path, text)
    pieces: list[str] = []
    done = 0
    for key, value in sorted(_pairs(parse(source)[0]), key=lambda pair: pair[0].start):
        gap = text[key.end : value.start]
        if _COLON.fullmatch(gap):
            pieces += [text[done : key.end], ": "]
            done = value.start
    return "".join([*pieces, text[done:]])


def _pairs(nodes: list[Node]) -> list[tuple[Scalar, Node]]:
    found: list[tuple[Scalar, Node]] = []
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            found += node.entries.values()
            waiting += [value for _, value in node.entries.values()]
        elif isinstance(node, Sequence):
            waiting += node.items
    return found


class _Move(msgspec.Struct):
    """What becomes of a line's indentation: from column `old` to `new` (both from 0). `value`: the line begins inside a value, and what
    stands at its end may belong to that.
    """

    old: int
    new: int
    value: bool = False


class _Lines:
    """A file line by line, with where each line goes."""

    def __init__(self, path: str, text: str) -> None:
        self.source = SourceText(path, text)
        self.lines = text.split("\n")
        self.moves: dict[int, _Move] = {}
        nodes, _ = parse(self.source)
        for node in nodes:
            if not (isinstance(node, Scalar) and node.value is None):
                self._place(node, 0, self._row(node.start))

    def formatted(self) -> str:
        """The text, with a line end at its end, unless a value at its end has none."""
        rows = self._without_markers()
        kept: list[int] = []
        for row in rows:
            empty = self._is_blank(row)
            if not (empty and (not kept or self._is_blank(kept[-1]))):
                kept.append(row)
        while kept and self._is_blank(kept[-1]):
            kept.pop()
        text = "\n".join(self._line(row) for row in kept)
        ends_in_value = bool(kept) and self._in_value(kept[-1])
        missing = ends_in_value and kept[-1] == len(self.lines) - 1
        return text if missing else f"{text}\n" if text else ""

    def _row(self, offset: int) -> int:
        return self.source.place(offset).line - 1

    def _column(self, offset: int) -> int:
        return self.source.place(offset).column - 1

    def _in_value(self, row: int) -> bool:
        return row in self.moves and self.moves[row].value

    def _is_blank(self, row: int) -> bool:
        return not self.lines[row].strip() and not self._in_value(row)

    # -- where lines go

    def _place(self, node: Node, new: int, parent: int) -> None:
        """`new` is the column of what stands on a line of its own; `parent` the row that the key or dash before it is on."""
        if isinstance(node, Scalar) or self.source.text[node.start] in "{[":
            self._place_value(node, new, parent)
        elif isinstance(node, Mapping):
            self._place_mapping(node, new)
        else:
            self._place_sequence(node, new)

    def _begin(self, offset: int, new: int) -> None:
        """What begins at `offset` goes to column `new` if it is the first of its line."""
        row, column = self._row(offset), self._column(offset)
        if not self.lines[row][:column].strip(" "):
            self.moves.setdefault(row, _Move(column, new))

    def _place_mapping(self, node: Mapping, new: int) -> None:
        for key, value in node.entries.values():
            self._begin(key.start, new)
            self._place(value, new + STEP, self._row(key.start))

    def _place_sequence(self, node: Sequence, new: int) -> None:
        column = self._column(node.start)
        for item in node.items:
            row = self._row(item.start)
            while self.lines[row][column : column + 1] != "-" or self.lines[row][:column].strip(" -"):
                row -= 1
            if not self.lines[row][:column].strip(" "):
                self.moves.setdefault(row, _Move(column, new))
            self._place(item, new + STEP, row)

    def _place_value(self, node: Node, new: int, parent: int) -> None:
        """A scalar or a flow collection: its further lines keep their distance to its first."""
        first, last = self._row(node.start), self._row(max(node.start, node.end - 1))
        if first != parent:
            self._begin(node.start, new)
        move = self.moves.get(first)
        shift = move.new - move.old if move else 0
        if isinstance(node, Scalar) and node.style in ("|", ">") and "+" not in self.lines[first]:
            while last > first and not self.lines[last].strip():  # blank lines at its end aren't part of it
                last -= 1
        for row in range(first + 1, last + 1):
            indent = len(self.lines[row]) - len(self.lines[row].lstrip(" "))
            self.moves[row] = _Move(indent, max(indent + shift, 0), value=True)

    # -- lines as they become

    def _line(self, row: int) -> str:
        line, move = self.lines[row], self.moves.get(row)
        if self._in_value(row):
            assert move is not None
            return " " * move.new + line[move.old :] if line else line
        if move is None:
            return self._comment(row).rstrip(" \t")
        rest = line[move.old :]
        dashes = _DASHES.match(rest)
        if dashes and dashes[0]:
            rest = "- " * dashes[0].count("-") + rest[dashes.end() :]
        return (" " * move.new + rest).rstrip(" \t") if not self._in_value(row + 1) else " " * move.new + rest

    def _comment(self, row: int) -> str:
        """A comment line goes with the line below or above that it is aligned with, else with the one below."""
        text = self.lines[row].strip(" \t")
        if not text.startswith("#"):
            return self.lines[row]
        column = len(self.lines[row]) - len(self.lines[row].lstrip(" \t"))
        below, above = self._next(range(row + 1, len(self.lines))), self._next(range(row - 1, -1, -1))
        near = [move for move in (below, above) if move is not None]
        aligned = next((move.new for move in near if move.old == column), None)
        if aligned is None and near:
            # No deeper than those two, or it would become part of a block of text above it.
            aligned = min(max(column + near[0].new - near[0].old, 0), max(move.new for move in near))
        return " " * (aligned or 0) + text

    def _next(self, rows: range) -> _Move | None:
        for row in rows:
            if _MARKER.fullmatch(self.lines[row]):
                return None
            if row in self.moves and not self.moves[row].value:
                return self.moves[row]
        return None

    # -- documents

    def _without_markers(self) -> list[int]:
        """Rows without `---` before the first document, without `...`, and without markers after the last."""
        rows = list(range(len(self.lines)))
        if any(line.startswith("%") for line in self.lines):
            return rows  # a directive needs its marker
        return [row for row in rows if not (self._is_marker(row) and self._marks_nothing(row))]

    def _is_marker(self, row: int) -> bool:
        return not self._in_value(row) and bool(_MARKER.fullmatch(self.lines[row]))

    def _marks_nothing(self, row: int) -> bool:
        before = any(self.lines[r].strip() and not self._is_marker(r) for r in range(row))
        after = next((r for r in range(row + 1, len(self.lines)) if self.lines[r].strip()), None)
        return not before or after is None or self._is_marker(after)
