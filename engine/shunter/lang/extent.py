"""How far what a problem is about reaches: for tools that underline it."""

from collections.abc import Iterable, Iterator
from typing import Final

from shunter.lang import tokens as lexer
from shunter.lang.diagnostics import SourceText
from shunter.lang.yaml import Mapping, Node, Scalar, decode, parse
from shunter.model.errors import Place, Problem

_PLAIN: Final = ("", "'", '"')
_WITHIN: Final = frozenset(("SH130", "SH131", "SH132", "SH133", "SH135", "SH137"))
"""Codes that are about a word of an expression; the others are about a key or a value as a whole."""


def end_columns(path: str, data: bytes, problems: Iterable[Problem]) -> dict[Problem, int]:
    """For each problem of the file: the column after the end of the key, value, or word of an expression that begins at its place.

    Left out where nothing begins there, or it goes on beyond its line. Columns count characters from 1.
    """
    source, unreadable = decode(path, data)
    wanted = [p for p in problems if p.place is not None and p.place.file == path]
    if unreadable or not wanted:
        return {}
    scalars = [scalar for node in parse(source)[0] for scalar in _scalars(node)]
    places = {p.place for p in wanted}
    wholes = _reached(source, places, ((s.start, s.end) for s in scalars))
    words = _reached(source, places, (word for s in scalars for word in _words(source, s)))
    found = ((p, (words if p.code in _WITHIN else wholes).get(p.place)) for p in wanted)
    return {problem: end for problem, end in found if end is not None}


def _reached(source: SourceText, places: set[Place | None], spans: Iterable[tuple[int, int]]) -> dict[Place | None, int]:
    """Of several spans that begin at one place, the last counts."""
    found: dict[Place | None, int] = {}
    for start, end in spans:
        first, last = source.place(start), source.place(end)
        if first in places and last.line == first.line and last.column > first.column:
            found[first] = last.column
    return found


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


def _words(source: SourceText, scalar: Scalar) -> Iterator[tuple[int, int]]:
    """Tokens and then dotted names of what may be an expression, where its text stands in the file letter by letter."""
    start = scalar.opening(source.text)
    if scalar.style not in _PLAIN or not source.text.startswith(scalar.text, start):
        return
    parts = lexer.tokens(scalar.text)
    for token in parts:
        yield start + token.start, start + token.start + len(token.text)
    for chain in lexer.chains(parts):
        yield start + chain.start, start + chain.end
