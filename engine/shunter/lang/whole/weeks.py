"""Windows over the weeks of a year: whether two of them are ever open together."""

from collections.abc import Iterator
from typing import Final

from shunter.model.policy import Window

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = 24 * 60
_WEEK: Final = 7 * _DAY
_YEAR: Final = 2026
"""Whose clock changes count. Those of other years fall in other weeks, but leave the zones as far apart."""


def meet(one: Window, other: Window) -> bool:
    """Whether both windows are open at some moment of the year, whichever side of a clock change the two zones are on."""
    offsets = {(_ahead(one.zone, day), _ahead(other.zone, day)) for day in range(0, 364, 7)}
    return any(
        (second - there - first + here) % _WEEK < length or (first - here - second + there) % _WEEK < width
        for here, there in offsets
        for first, length in _stretches(one)
        for second, width in _stretches(other)
    )


def _ahead(zone: str, day: int) -> int:
    """Minutes that the zone's clock is ahead of UTC, on a day of the year counted from 0."""
    import datetime
    from zoneinfo import ZoneInfo

    at = datetime.datetime(_YEAR, 1, 1, 12, tzinfo=datetime.UTC) + datetime.timedelta(days=day)
    offset = at.astimezone(ZoneInfo(zone)).utcoffset()
    assert offset is not None, "a zone has an offset at any time"
    return int(offset.total_seconds() // 60)


def _stretches(window: Window) -> Iterator[tuple[int, int]]:
    """Each time that it opens in a week: minutes since Monday on its own clock, and for how many minutes it stays open."""
    begins, ends = _minutes(window.from_), _minutes(window.to)
    length = ends - begins if ends > begins else ends + _DAY - begins
    for day in window.days:
        yield _DAYS.index(day) * _DAY + begins, length


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)
