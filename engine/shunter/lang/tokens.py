"""A light lexer for CEL: enough to know which names an expression uses, and where. What is valid is the checker's business."""

import re
from functools import lru_cache
from typing import Final

import msgspec

_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|//[^\n]*)
    |(?P<string>(?:[bB]?[rR]|[rR][bB])(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')
      |[bB]?(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<number>\.?[0-9](?:[0-9A-Za-z_]|\.[0-9]|(?<=[eE])[-+])*)
    |(?P<name>[A-Za-z_][0-9A-Za-z_]*|`[^`\n]*`)
    |(?P<sign>&&|\|\||[<>=!]=|.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class Token(msgspec.Struct, frozen=True):
    """A piece of an expression: `kind` is `string`, `number`, `name` or `sign`; `start` an offset in characters."""

    kind: str
    text: str
    start: int


class Chain(msgspec.Struct, frozen=True):
    """Names joined by dots, such as `worker.labels.tier`. `called` is True when an argument list follows: its last name is a method."""

    name: str
    starts: tuple[int, ...]
    called: bool

    @property
    def start(self) -> int:
        """Offset of its first character."""
        return self.starts[0]

    @property
    def end(self) -> int:
        """Offset after its last name."""
        return self.starts[-1] + len(self.name.rpartition(".")[2])


@lru_cache(maxsize=4096)
def tokens(text: str) -> tuple[Token, ...]:
    """The tokens of an expression, without spaces and comments. Never fails: an unknown character is a sign."""
    return tuple(
        Token(kind=str(found.lastgroup), text=found[0], start=found.start()) for found in _TOKEN.finditer(text) if found.lastgroup != "skip"
    )


def chains(parts: tuple[Token, ...]) -> tuple[Chain, ...]:
    """All maximal dotted names that begin with a name of their own (not a field of a call's or a bracket's result)."""
    found = []
    position = 0
    while position < len(parts):
        if parts[position].kind != "name" or _is_field(parts, position):
            position += 1
            continue
        names = [parts[position]]
        position += 1
        while position + 1 < len(parts) and parts[position].text == "." and parts[position + 1].kind == "name":
            names.append(parts[position + 1])
            position += 2
        called = position < len(parts) and parts[position].text == "("
        found.append(Chain(".".join(n.text.strip("`") for n in names), tuple(n.start for n in names), called))
    return tuple(found)


def _is_field(parts: tuple[Token, ...], position: int) -> bool:
    """True when the name at `position` is selected from something that isn't a plain name."""
    if position == 0 or parts[position - 1].text != ".":
        return False
    return position > 1 and (parts[position - 2].text in (")", "]", "}") or parts[position - 2].kind in ("string", "name"))


def tests_of_presence(parts: tuple[Token, ...]) -> tuple[tuple[int, str], ...]:
    """Each `has(...)`: its offset, and the dotted name in it with parentheses and spaces left out."""
    found = []
    for position, token in enumerate(parts):
        after = parts[position + 1] if position + 1 < len(parts) else None
        if token.text != "has" or token.kind != "name" or after is None or after.text != "(":
            continue
        depth, inner = 0, []
        for part in parts[position + 1 :]:
            depth += (part.text == "(") - (part.text == ")")
            if depth == 0:
                break
            if part.text not in ("(", ")"):
                inner.append(part.text.strip("`") if part.kind == "name" else part.text)
        found.append((token.start, "".join(inner).removeprefix(".")))
    return tuple(found)
