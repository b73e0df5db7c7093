"""Division by zero is no answer, for doubles as for whole numbers.

CEL follows IEEE 754: 0.0 / 0.0 is NaN, and a comparison with NaN is an answer, true for `!=`. A rate of nothing by nothing would decide. So
each divisor is wrapped before an expression is compiled for evaluation: `a / b` becomes `a / [b].filter(d, d != 0.0)[0]`, which is the same
number with the same type, and an error where there is none. `b != 0.0 && a / b > 1.0` keeps its answer, since the guard decides first.

What overflows is the business of `finite`, which comes after.
"""

import re
from typing import Final

from shunter.lang.tokens import Token, tokens

_OPENING: Final = {"(": ")", "[": "]", "{": "}"}
_NAME: Final = "_divisor"
_PLAIN: Final = re.compile(r"(?=[0.]*[1-9])[0-9.]{1,100}u?", re.IGNORECASE)
SAID: Final = "it divides by zero"


def guarded(text: str) -> str:
    """The expression with its divisors wrapped; the same text when it divides by nothing but literals."""
    if "/" not in text:
        return text
    parts = tokens(text)
    return _wrapped(text, parts, 0, len(parts), 0, len(text)) if any(part.text == "/" for part in parts) else text


def _wrapped(text: str, parts: tuple[Token, ...], first: int, last: int, start: int, end: int) -> str:
    """`text[start:end]`, which is made of the tokens `first` to `last`."""
    pieces: list[str] = []
    position = first
    while position < last:
        if parts[position].text != "/" or parts[position].kind != "sign":
            position += 1
            continue
        after = _operand(parts, position + 1, last)
        begins = parts[position + 1].start if position + 1 < last else end
        ends = parts[after - 1].start + len(parts[after - 1].text) if after > position + 1 else begins
        pieces.append(text[start:begins])
        divisor = _wrapped(text, parts, position + 1, after, begins, ends)
        pieces.append(divisor if _is_literal(parts[position + 1 : after]) else f"[{divisor}].filter({_NAME}, {_NAME} != 0.0)[0]")
        start, position = ends, after
    return "".join((*pieces, text[start:end]))


def _operand(parts: tuple[Token, ...], position: int, last: int) -> int:
    """Where the operand that begins at `position` ends: signs, a name, literal or bracket, and whatever is selected or called on it."""
    while position < last and parts[position].text in ("-", "!"):
        position += 1
    if position >= last:
        return position
    position = _bracket(parts, position, last) if parts[position].text in _OPENING else position + 1
    while position < last:
        if parts[position].text == "." and position + 1 < last:
            position += 2
        elif parts[position].text in _OPENING:
            position = _bracket(parts, position, last)
        else:
            break
    return position


def _bracket(parts: tuple[Token, ...], position: int, last: int) -> int:
    depth = 0
    while position < last:
        sign = parts[position].text if parts[position].kind == "sign" else ""
        depth += (sign in _OPENING) - (sign in _OPENING.values())
        position += 1
        if depth == 0:
            break
    return position


def _is_literal(parts: tuple[Token, ...]) -> bool:
    """A number that isn't zero: nothing to guard against. `0e5` is zero, and so is `1e-999`: an exponent doesn't tell, and is guarded."""
    return len(parts) == 1 and parts[0].kind == "number" and parts[0].text.isascii() and _PLAIN.fullmatch(parts[0].text) is not None
