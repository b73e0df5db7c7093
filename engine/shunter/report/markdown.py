"""Markdown for a pull request's one comment: what matters first, within a limit, and nothing that a name could turn into markup."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from shunter.report.words import safe

LIMIT: Final = 60_000
"""Bytes of a comment: forges take 65,536 characters, and whoever posts it may put a line before it."""
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]#|~!$])")


def escaped(text: str) -> str:
    """Text from elsewhere, so that it shows as it is: no markup, no HTML, nobody mentioned, on one line."""
    plain = safe(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain).replace("@", "@\N{WORD JOINER}")


def code(text: str) -> str:
    """A name or an expression in a code span that it can't leave."""
    plain = safe(text).replace("\N{GRAVE ACCENT}", "'")
    return f"`{plain}`" if plain.strip() else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table's lines; cells are Markdown already. A bar within a code span would end its cell, so it is escaped there too."""
    made = [f"| {' | '.join(_cell(c) for c in row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'|'.join(' --- ' for _ in head)}|", *made]


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def folded(title: str, lines: Sequence[str]) -> list[str]:
    """Lines that a reader opens."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>"]


def page(before: Sequence[str], middle: Sequence[str], after: Sequence[str], *, title: str, limit: int = LIMIT) -> str:
    """One page of at most `limit` bytes: `before` and `after` whole, `middle` (list items, one a line) folded, and cut in its middle.

    What is left out is counted. Raises ValueError when `before` and `after` alone are too long: they are the caller's to bound.
    """

    def text(lines: Sequence[str]) -> str:
        shown = folded(title, lines) if lines else []
        return "\n".join([*before, "", *shown, "", *after]).strip() + "\n"

    whole = text(middle)
    if _size(whole) <= limit:
        return whole
    mark = f"- … {len(middle):,} more lines are left out here, from the middle; the JSON form has all of them"
    room = limit - _size(text([mark]))
    if room < 0:
        raise ValueError(f"what may not be cut has {limit - room:,} bytes, more than the {limit:,} of a page")
    head, tail = _ends(middle, room)
    left_out = len(middle) - len(head) - len(tail)
    said = f"- … {left_out:,} more line{'' if left_out == 1 else 's'} left out here, from the middle; the JSON form has all of them"
    return text([*head, said, *tail])


def _ends(lines: Sequence[str], room: int) -> tuple[list[str], list[str]]:
    """As many of the first and the last lines as have room, in turns."""
    head: list[str] = []
    tail: list[str] = []
    first, last = 0, len(lines) - 1
    while first <= last:
        from_head = len(head) <= len(tail)
        line = lines[first if from_head else last]
        room -= _size(line) + 1
        if room < 0:
            break
        if from_head:
            head.append(line)
            first += 1
        else:
            tail.insert(0, line)
            last -= 1
    return head, tail


def _size(text: str) -> int:
    return len(text.encode())
