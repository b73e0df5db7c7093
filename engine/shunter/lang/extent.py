"""How far the thing at a place reaches: for tools that underline it."""

from collections.abc import Iterable, Iterator
from typing import Final

from shunter.lang import tokens as lexer
from shunter.lang.diagnostics import SourceText
from shunter.lang.yaml import Mapping, Node, Scalar, decode, parse
from shunter.model.errors import Place

_PLAIN: Final = ("", "'", '"')


def end_columns(path: str, data: bytes, places: Iterable[Place]) -> dict[Place, int]:
    """For each place at which a key, a value, or a name inside an expression begins: the column after its end, if that is on its line.

    Other places are left out. Columns count characters from 1.
    """
    wanted = frozenset(places)
    source, problems = decode(path, data)
    if problems or not wanted:
        return {}
    nodes, _ = parse(source)
    scalars = [scalar for node in nodes for scalar in _scalars(node)]
    found: dict[Place, int] = {}
    for scalar in scalars:
        for start, end in _inside(source, scalar):
            _note(found, source, wanted, start, end)
    for scalar in scalars:
        _note(found, source, wanted, scalar.start, scalar.end)
    return found


def _note(found: dict[Place, int], source: SourceText, wanted: frozenset[Place], start: int, end: int) -> None:
    first, last = source.place(start), source.place(end)
    if first in wanted and last.line == first.line and last.column > first.column:
        found[first] = last.column


def _scalars(node: Node) -> Iterator[Scalar]:
    if isinstance(node, Scalar):
        yield node
    elif isinstance(node, Mapping):
        for key, value in node.entries.values():
            yield key
            yield from _scalars(value)
    else:
        for item in node.items:
            yield from _scalars(item)


def _inside(source: SourceText, scalar: Scalar) -> Iterator[tuple[int, int]]:
    """Dotted names and single tokens of what may be an expression, where its text stands in the file letter by letter."""
    start = scalar.opening(source.text)
    if scalar.style not in _PLAIN or not source.text.startswith(scalar.text, start):
        return
    parts = lexer.tokens(scalar.text)
    for token in parts:
        yield start + token.start, start + token.start + len(token.text)
    for chain in lexer.chains(parts):
        yield start + chain.start, start + chain.end
