"""Values over steps in a short notation: `0 0 40x10`, `0+5x10`, `missing`, `stale`.

One word is one step or, with `x<count>`, several. `<start>+<by>x<count>` and `<start>-<by>x<count>` rise and fall by `by` each step.
`missing` is a query without data, `failed` one that couldn't be asked, `stale` a value that is too old. The last word holds for ever.
"""

import re
from typing import Final, Literal, TypeAlias

import msgspec

Marker: TypeAlias = Literal["missing", "failed", "stale"]
Entry: TypeAlias = float | Marker

MOST: Final = 100_000
"""Entries of one series."""
_NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_WORD: Final = re.compile(rf"({_NUMBER}|missing|failed|stale)(?:([+-])({_NUMBER}))?(?:x([1-9][0-9]*))?", re.ASCII)
_MARKERS: Final[dict[str, Marker]] = {"missing": "missing", "failed": "failed", "stale": "stale"}


class SeriesError(ValueError):
    """A text isn't a series. The message says which word, and what would be."""


class Series(msgspec.Struct, frozen=True):
    """Entries by step, at least one."""

    entries: tuple[Entry, ...]

    def at(self, step: int) -> Entry:
        """The entry of a step, from 0; the last one beyond the end."""
        return self.entries[min(step, len(self.entries) - 1)]

    def number(self, step: int) -> float | None:
        """The newest number up to a step, or None when there was none."""
        seen = self.entries[: step + 1]
        return next((entry for entry in reversed(seen) if isinstance(entry, float)), None)


def series(given: float | str | tuple[float | str, ...]) -> Series:
    """Read a number, a text, or a list of both. Raises SeriesError."""
    parts = given if isinstance(given, tuple) else (given,)
    entries: list[Entry] = []
    for part in parts:
        if isinstance(part, int | float):
            entries.append(float(part))
            continue
        for word in part.split():
            entries += _word(word)
            if len(entries) > MOST:
                raise SeriesError(f"it has more than {MOST:,} entries: write fewer, the last one holds for ever")
    if not entries:
        raise SeriesError("it is empty: write a number, or missing")
    return Series(tuple(entries))


def _word(word: str) -> list[Entry]:
    found = _WORD.fullmatch(word)
    if found is None:
        raise SeriesError(f"{word!r} is no value: write a number, missing, failed or stale, with x and a count for several, as in 40x10")
    first, sign, by, times = found.groups()
    count = min(int(times[:6]), MOST + 1) if times else 1
    if first in _MARKERS:
        if sign:
            raise SeriesError(f"{word!r} is no value: {first} doesn't rise or fall")
        return [_MARKERS[first]] * count
    if sign and not times:
        raise SeriesError(f"{word!r} has no count: write how many steps it goes on for, as in {word}x10")
    rise = float(by) * (1 if sign == "+" else -1) if sign else 0.0
    return [round(float(first) + rise * k, 9) for k in range(count)]
