"""From an offset in a scalar's text to the offset in the file: through quotes, escapes, folded lines and block indentation."""

import re
from typing import Final

from shunter.lang.yaml import Scalar

_SPACE: Final = " \t\r\n"
_ESCAPE: Final = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|\r\n[ \t]*|[\r\n][ \t]*|.)", re.DOTALL)


def in_file(source: str, node: Scalar, offset: int) -> int:
    """The offset in `source` of character `offset` of the node's text; the end of the text for offsets at or beyond it.

    The two are walked side by side: equal characters match, runs of white space match each other whatever they were folded into, and quoted
    escapes match one character. Where that fails the last sure offset is given, never one outside the node.
    """
    position = node.opening(source)
    index = 0
    while index < min(offset, len(node.text)) and position < node.end:
        index, position = _step(source, node, index, position)
    if index < len(node.text) and node.text[index] not in _SPACE:
        position = _after_space(source, node, position)
    return min(position, node.end)


def _step(source: str, node: Scalar, index: int, position: int) -> tuple[int, int]:
    """One character further, or one run of white space."""
    here, there = node.text[index], source[position]
    if node.style == '"' and there == "\\":
        found = _ESCAPE.match(source, position)
        folded = found is not None and found[0][1] in "\r\n"
        return index + (not folded), found.end() if found else position + 1
    if node.style == "'" and source.startswith("''", position):
        return index + 1, position + 2
    if there in "\r\n":
        while index < len(node.text) and node.text[index] in _SPACE:
            index += 1
        return index, _after_space(source, node, position)
    if here == there:
        return index + 1, position + 1
    if there in _SPACE:
        return index, position + 1
    return index + 1, position


def _after_space(source: str, node: Scalar, position: int) -> int:
    while position < node.end and source[position] in _SPACE:
        position += 1
    return position
