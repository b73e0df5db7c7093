"""Quantities with units. A bare number is never a duration, a size or a share.

Grammar (no spaces, no sign): `<decimal><unit>`, for durations also a sum in falling units, such as `1h30m`; `<size>/s` for a bandwidth and
`<decimal>/<duration>` for a rate.
"""

import re
from functools import lru_cache
from typing import Final, Self

_DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTE_UNITS: Final = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+", re.ASCII)
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
_BYTES: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]+)", re.ASCII)
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)/(.+)", re.ASCII)
_PERCENT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)%", re.ASCII)


class UnitError(ValueError):
    """A text isn't a quantity of the kind asked for. The message says what would be."""


@lru_cache(maxsize=4096)
def _spelt(milliseconds: int) -> str:
    left, parts = milliseconds, []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    if left:
        parts.append(f"{left // 1000}s" if left % 1000 == 0 else f"{left / 1000:g}s")
    return "".join(parts) or "0s"


class Duration(float):
    """A span of time in seconds, finite and not negative."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `90s`, `2m`, `1h30m`, `250ms`. Raises UnitError, also for units that don't fall or that repeat."""
        if not _DURATION.fullmatch(text):
            raise UnitError(f"{text!r} is not a duration: write a number with a unit, such as 30s, 5m, 1h30m or 250ms")
        total = 0.0
        last = float("inf")
        for number, unit in _DURATION_PART.findall(text):
            if _DURATION_UNITS[unit] >= last:
                raise UnitError(f"{text!r} is not a duration: units must fall, as in 1h30m")
            last = _DURATION_UNITS[unit]
            total += float(number) * last
        return cls(total)

    def __str__(self) -> str:
        """The shortest form that `parse` reads back to the same value at millisecond precision."""
        return _spelt(round(float(self) * 1000))

    def __repr__(self) -> str:
        return f"Duration({float(self)!r})"


class Bytes(int):
    """A size in bytes, not negative."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `80GB`, `512MiB`, `1.5TB`. Raises UnitError, also for Kubernetes' `256m`, which is a quarter of a byte."""
        found = _BYTES.fullmatch(text)
        if not found or found[2] not in _BYTE_UNITS:
            raise UnitError(f"{text!r} is not a size: write a number with one of {', '.join(_BYTE_UNITS)}")
        return cls(round(float(found[1]) * _BYTE_UNITS[found[2]]))

    def __str__(self) -> str:
        """Decimal units with three significant figures, for people."""
        value = float(self)
        for unit in ("B", "kB", "MB", "GB"):
            if value < 999.5:
                return f"{value:.3g}{unit}"
            value /= 1000
        return f"{value:.3g}TB"

    def __repr__(self) -> str:
        return f"Bytes({int(self)!r})"


class Share(float):
    """A part of a whole, 0 to 1. Written in percent."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `3%`. Raises UnitError, also above 100 %."""
        found = _PERCENT.fullmatch(text)
        if not found or float(found[1]) > 100:
            raise UnitError(f"{text!r} is not a share: write a percentage from 0% to 100%")
        return cls(float(found[1]) / 100)

    def __str__(self) -> str:
        return f"{float(self) * 100:g}%"

    def __repr__(self) -> str:
        return f"Share({float(self)!r})"


class Bandwidth(float):
    """Bytes per second, more than zero."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `40GB/s`. Raises UnitError, also for bits (`400Gbit/s`) and for nothing at all (`0B/s`)."""
        size, slash, per = text.partition("/")
        try:
            value = Bytes.parse(size) if slash and per == "s" else 0
        except UnitError:
            value = 0
        if value <= 0:
            raise UnitError(f"{text!r} is not a bandwidth: write a size per second, such as 40GB/s or 500MiB/s")
        return cls(value)

    def __str__(self) -> str:
        return f"{Bytes(self)}/s"

    def __repr__(self) -> str:
        return f"Bandwidth({float(self)!r})"


class Rate(float):
    """Events per second, more than zero. Written as a number in a stretch of time."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `1/1000h`, `0.5/30d`. Raises UnitError, also for none at all."""
        found = _RATE.fullmatch(text)
        try:
            seconds = float(Duration.parse(found[2])) if found else 0.0
        except UnitError:
            seconds = 0.0
        if found is None or seconds <= 0 or float(found[1]) <= 0:
            raise UnitError(f"{text!r} is not a rate: write how many in which time, such as 1/1000h")
        return cls(float(found[1]) / seconds)

    def __str__(self) -> str:
        return f"1/{Duration(1 / self)}"

    def __repr__(self) -> str:
        return f"Rate({float(self)!r})"
