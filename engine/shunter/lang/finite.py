"""A number that isn't finite is no answer, whatever it came from.

CEL follows IEEE 754: `1e308 * 10.0` is infinite, the difference of two such is NaN, and `double("NaN")` reads a label as one. A comparison
with them is an answer, and would decide. So what is computed with doubles is wrapped where it leaves arithmetic (to be compared, to be an
argument or an element), before an expression is compiled for evaluation: `a * b > c` becomes
`[a * b].map(v, finite(v) ? v : [v][..])[0] > c`, which is the same value with the same type, and an error where it isn't finite. Within
arithmetic nothing needs to be wrapped: what is infinite or NaN stays so, but for a divisor, which `divisors` has made an element of a list
by then.

Which type a part has isn't known here: texts, whole numbers and times go through as they are.
"""

import re
from functools import lru_cache
from math import isinf
from typing import Final

import msgspec

from shunter.lang.tokens import Token, tokens

_OPENING: Final = {"(": ")", "[": "]", "{": "}"}
_COMPARING: Final = ("<", "<=", ">", ">=", "==", "!=")
_PARTING: Final = (*_COMPARING, "&&", "||", "?", ":", ",")
_ARITHMETIC: Final = "+-*/"
_BEFORE: Final = "["
_AFTER: Final = "].map(_value, type(_value) != double || dyn(_value) - dyn(_value) == 0.0 ? _value : [_value][1000000007])[0]"
ERROR: Final = "index=1000000007"
"""What CEL says of the index that isn't there: no other expression that is written here comes to it."""
SAID: Final = "it comes to what is not a finite number"


class _Part(msgspec.Struct, frozen=True):
    """A piece of an expression, rewritten; `open` when it may be a number that isn't finite and wasn't wrapped yet."""

    text: str
    open: bool


_LONG: Final = 300
"""A number of so many digits may be more than a double can be."""
_MAY: Final = re.compile(r"[-+*/%]|double|[0-9][eE]")
"""Without one of these nothing in a shorter text can come to what is not finite: most conditions only compare."""


@lru_cache(maxsize=4096)
def finite(text: str) -> str:
    """The expression with its arithmetic wrapped; the same text when it has none."""
    if len(text) < _LONG and not _MAY.search(text):
        return text
    parts = tokens(text)
    return _Rewriting(text, parts).region(0, len(parts), 0, len(text), within=False).text


class _Rewriting:
    """One expression on its way."""

    def __init__(self, text: str, parts: tuple[Token, ...]) -> None:
        self._text, self._parts = text, parts

    def region(self, first: int, last: int, start: int, end: int, *, within: bool) -> _Part:
        """`text[start:end]`, made of the tokens `first` to `last`: runs, parted by signs that aren't arithmetic. `within`: it stands in
        parentheses of its own, so that what isn't compared in them goes on being computed with outside.
        """
        pieces: list[str] = []
        still_open = False
        before = ""
        while True:
            after = self._run_end(first, last)
            parted = self._parts[after].text if after < last else ""
            ends = self._parts[after].start if after < last else end
            run = self._run(first, after, start, ends)
            compared = before in _COMPARING or parted in _COMPARING or "in" in (before, parted)
            if run.open and (compared or not within):
                run = _Part(self._wrapped(run.text), False)
            still_open = still_open or run.open
            pieces.append(run.text)
            if after >= last:
                return _Part("".join(pieces), still_open)
            pieces.append(parted)
            before, first, start = parted, after + 1, ends + len(parted)

    @staticmethod
    def _wrapped(run: str) -> str:
        core = run.strip()
        if not core or "//" in run:  # a comment would swallow what comes after
            core = f"{core}\n"
        return f"{run[: len(run) - len(run.lstrip())]}{_BEFORE}{core}{_AFTER}{run[len(run.rstrip()) :]}"

    def _run_end(self, position: int, last: int) -> int:
        while position < last:
            part = self._parts[position]
            if part.kind == "sign" and part.text in _OPENING:
                position = self._closing(position, last)
            elif (part.kind == "sign" and part.text in _PARTING) or self._is_in(position):
                return position
            position += 1
        return last

    def _is_in(self, position: int) -> bool:
        part = self._parts[position]
        return part.kind == "name" and part.text == "in" and self._follows_operand(position)

    def _follows_operand(self, position: int) -> bool:
        if position == 0:
            return False
        before = self._parts[position - 1]
        return before.text in _OPENING.values() if before.kind == "sign" else True

    def _closing(self, position: int, last: int) -> int:
        """The bracket that closes the one at `position`; the last token when none does."""
        depth = 0
        while position < last:
            sign = self._parts[position].text if self._parts[position].kind == "sign" else ""
            depth += (sign in _OPENING) - (sign in _OPENING.values())
            if depth == 0:
                return position
            position += 1
        return last - 1

    def _run(self, first: int, last: int, start: int, end: int) -> _Part:
        """What is computed without a comparison: a sum, or a single operand."""
        pieces: list[str] = []
        computed = False
        position = first
        while position < last:
            part = self._parts[position]
            if part.kind == "sign" and part.text in _OPENING:
                closing = self._closing(position, last)
                inside = self._inside(position, closing, first)
                pieces += [self._text[start : part.start + 1], inside.text]
                start, computed, position = self._parts[closing].start, computed or inside.open, closing
            else:
                computed = computed or self._may_overflow(position, first, last)
            position += 1
        return _Part("".join((*pieces, self._text[start:end])), computed)

    def _inside(self, opening: int, closing: int, first: int) -> _Part:
        sign = self._parts[opening]
        grouping = sign.text == "(" and (opening == first or not self._follows_operand(opening))
        return self.region(opening + 1, closing, sign.start + 1, self._parts[closing].start, within=grouping)

    def _may_overflow(self, position: int, first: int, last: int) -> bool:
        part = self._parts[position]
        if part.kind == "sign":
            return part.text in _ARITHMETIC and position > first and self._follows_operand(position)
        if part.kind == "name":
            return part.text == "double" and position + 1 < last and self._parts[position + 1].text == "("
        return part.kind == "number" and _is_infinite(part.text)


def _is_infinite(literal: str) -> bool:
    try:
        return isinf(float(literal))
    except ValueError:  # a whole number of some kind: `0x10`, `5u`
        return False
