"""Every code of this room with its title, and how a problem gets its place, its source line and its "did you mean"."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import partial
from itertools import accumulate
from typing import Final

from shunter.model.errors import Place, Problem, Severity

CODES: Final[dict[str, str]] = {
    "SH101": "the file isn't readable text",
    "SH102": "the YAML can't be parsed",
    "SH103": "a key stands twice",
    "SH104": "an anchor or an alias",
    "SH105": "a tag",
    "SH106": "a key isn't text",
    "SH107": "a value that YAML versions read differently",
    "SH108": "too large or too deep",
    "SH109": "the file has no policy",
    "SH110": "not a policy document",
    "SH111": "an unknown key",
    "SH112": "a missing key",
    "SH113": "a value of the wrong type",
    "SH114": "a value that isn't one of those allowed",
    "SH115": "a number or a list outside its bounds",
    "SH116": "a quantity without a proper unit",
    "SH117": "a name that can't be used",
    "SH120": "a selector that selects by nothing",
    "SH121": "`all: true` beside other conditions",
    "SH122": "keys that contradict each other",
    "SH123": "an entry stands twice in a list",
    "SH124": "two policies of one name",
    "SH125": "a declared metric that nothing reads",
    "SH126": "more problems than are shown",
    "SH127": "not a time zone",
    "SH128": "a policy that says nothing",
    "SH129": "a budget that can't be read and counts as zero",
    "SH130": "an expression's syntax is wrong",
    "SH131": "an unknown variable",
    "SH132": "a variable that can't be used in this field",
    "SH133": "an operator or function that doesn't fit its operands",
    "SH134": "an expression's result has the wrong type",
    "SH135": "`has()` on a variable that always exists",
    "SH136": "an expression that is empty, too long or too deep",
    "SH137": "an unknown function",
    "SH140": "two policies of equal rank for the same workers",
    "SH141": "a shift that is to be undone while it is wanted",
    "SH142": "two policies that shift opposite ways at once",
    "SH143": "a selector that matches nothing in the fleet",
    "SH144": "more copies than the fleet has nodes",
    "SH145": "a reserve as long as the whole notice",
    "SH146": "a budget under which nothing would ever begin",
    "SH147": "a budget for zones on nodes without one",
    "SH148": "two profiles that give one figure",
    "SH149": "two policies that decide the split of one graph",
    "SH150": "no such kind or field",
    "SH151": "a file that can't be formatted",
    "SH152": "a policy that never moves anything",
    "SH153": "a preview that shows or limits nothing",
    "SH154": "a native start without what context costs",
    "SH155": "two policies that move workers to and fro",
    "SH156": "a budget that counts only what is never done",
    "SH157": "an archive that no node of the fleet knows",
    "SH199": "the checker itself failed on a file",
}
"""Code to title. A code is never given another meaning."""


MAX_PROBLEMS: Final = 100
"""Per file: a file of another kind altogether shouldn't fill a terminal, nor the engine's memory."""

MAX_EXCERPT: Final = 8192
"""Characters: a file of one endless line would otherwise be repeated with each of its problems."""

_LINE_END: Final = re.compile(r"\r\n|\r|\n")


class SourceText:
    """A file's text, for turning an offset (in characters) into a place and a source line. Lines end at LF, CR LF or CR."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        # Most files have no CR, and then there is a quicker way.
        self._starts = [0, *(found.end() for found in _LINE_END.finditer(text))] if "\r" in text else _starts(text)

    def place(self, offset: int) -> Place:
        """The place of the character at `offset`; offsets beyond the end mean the end."""
        offset = min(max(offset, 0), len(self.text))
        row = bisect_right(self._starts, offset) - 1
        return Place(file=self.path, line=row + 1, column=offset - self._starts[row] + 1)

    def line(self, number: int) -> str:
        """Line `number` (from 1) without its end; empty beyond the last."""
        if not 1 <= number <= len(self._starts):
            return ""
        return self.text[self._starts[number - 1] : (*self._starts, len(self.text))[number]].rstrip("\r\n")

    def problem(self, code: str, offset: int, what: str, remedy: str, *, severity: Severity = Severity.ERROR) -> Problem:
        """A problem at `offset`, with its source line unless that is longer than MAX_EXCERPT."""
        place = self.place(offset)
        line = self.line(place.line)
        excerpt = line if len(line) <= MAX_EXCERPT else None
        return Problem(code=code, what=what, remedy=remedy, place=place, severity=severity, excerpt=excerpt)


def _starts(text: str) -> list[int]:
    """Where lines begin that end at LF alone."""
    return list(accumulate((len(line) + 1 for line in text.split("\n")[:-1]), initial=0))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most probably was meant to be, or None: of those that look alike the one with the fewest slips."""
    import difflib

    choices = sorted(known)
    for written, words in ((word, {c: c for c in choices}), (word.lower(), {c.lower(): c for c in choices})):
        found = difflib.get_close_matches(written, list(words), n=5, cutoff=0.6)
        if found:
            return words[min(found, key=partial(_unlikeness, written))]
    return None


def _unlikeness(one: str, other: str) -> tuple[int, int]:
    """Letters to add, leave out, change, or swap with their neighbour, to make one word the other; and how they differ in length."""
    before, above = list(range(len(other) + 1)), list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        here = [i]
        for j, b in enumerate(other, 1):
            least = min(above[j] + 1, here[j - 1] + 1, above[j - 1] + (a != b))
            swapped = i > 1 and j > 1 and (a, one[i - 2]) == (other[j - 2], b)
            here.append(min(least, before[j - 2] + 1) if swapped else least)
        before, above = above, here
    return above[-1], abs(len(one) - len(other))


def suggest(word: str, known: Iterable[str], otherwise: str) -> str:
    """A remedy: `Did you mean "x"?` when some known word is near, else `otherwise`."""
    found = nearest(word, known)
    return f'Did you mean "{found}"?' if found else otherwise


def one_of(words: Iterable[str]) -> str:
    """Words for a sentence: `a, b or c`."""
    items = list(words)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"


def shown(text: str, limit: int = 60) -> str:
    """`text` on one line, shortened, for use inside a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."
