"""How times, sizes and names are written for people, and lines that wrap with a hanging indent."""

import datetime
import textwrap
from typing import Final

from rich.console import Console
from rich.text import Text

from shunter.model.units import Bytes, Duration

LABEL: Final = 9
"""Width of the labels before a field's text."""


def moment(at: float | None) -> str:
    """A date and time in UTC, to the second; `never` for None."""
    return "never" if at is None else f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(at: float) -> str:
    """The time of day in UTC, to the millisecond: for steps that follow each other."""
    return f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%H:%M:%S.%f}"[:-3]


def span(seconds: float | None) -> str:
    """A duration: two decimals below 10 s, whole seconds above; `unknown` for None; negative ones with a minus."""
    if seconds is None:
        return "unknown"
    if seconds < 0:
        return f"-{span(-seconds)}"
    return f"{seconds:.2f} s" if seconds < 10 else str(Duration(round(seconds)))


def size(number: int | None) -> str:
    """Bytes with three significant figures; `unknown` for None."""
    return "unknown" if number is None else str(Bytes(number))


def count(number: int, noun: str) -> str:
    """`1 move`, `2 moves`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(commit: str | None) -> str:
    """A commit as people write it: 12 digits of a Git one; `unknown` for None."""
    if commit is None:
        return "unknown"
    return f"{commit[:17]}..." if commit.startswith("directory:") and len(commit) > 20 else commit[:12]


def safe(text: str) -> str:
    """Text from elsewhere (names, reasons) on one line, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" if c not in "\n\t" else " " for c in text)


class Page:
    """Writes lines to a console. Wraps words itself, so that no line has trailing blanks and long names stay whole."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def blank(self) -> None:
        """An empty line."""
        self._console.print()

    def title(self, text: str) -> None:
        """A heading."""
        self.line(text, style="bold")

    def line(self, text: str, *, indent: int = 0, hang: int = 0, style: str = "") -> None:
        """One line; what doesn't fit goes on further ones, `hang` deeper."""
        width = max(40, self._console.width)
        first, further = " " * indent, " " * (indent + hang)
        wrapped = textwrap.wrap(
            safe(text), width, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
        )
        for piece in wrapped or [""]:
            self._console.print(Text(piece, style=style), soft_wrap=True, highlight=False)

    def field(self, label: str, text: str, *, indent: int = 0, style: str = "") -> None:
        """A label and its text, which hangs behind the label."""
        self.line(f"{label:<{LABEL}} {text}" if len(label) <= LABEL else f"{label} {text}", indent=indent, hang=LABEL + 1, style=style)
