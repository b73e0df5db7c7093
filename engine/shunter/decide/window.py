"""Windows of the week, on the wall clock of an IANA zone: whether one is open, and when it opens.

What the wall clock doesn't show isn't in a window, and what it shows twice is in it twice. So a window can open without its `from` ever
being shown (the clock jumps into it), and can open a second time (the clock is put back into it).
"""

import datetime
import functools
import zoneinfo
from collections.abc import Iterator
from typing import Final

from shunter.model.policy import Window

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_AHEAD: Final = 16
"""Days that are searched for an opening: a window of one day a week, and the week after it in case that day's hour was skipped."""
_DAY: Final = 86_400


class Unreadable(ValueError):
    """A window's zone isn't known here, or a time of it isn't one. The message says which."""


def is_open(window: Window, at: float) -> bool:
    """Whether the window is open at `at` (seconds since the epoch). Raises Unreadable."""
    local = datetime.datetime.fromtimestamp(at, _zone(window.zone))
    begins, ends = _minutes(window.from_), _minutes(window.to)
    minute, today = local.hour * 60 + local.minute, local.weekday()
    if begins < ends:
        return _DAYS[today] in window.days and begins <= minute < ends
    return (_DAYS[today] in window.days and minute >= begins) or (_DAYS[today - 1] in window.days and minute < ends)


def opens_at(window: Window, now: float) -> float | None:
    """The first moment, from `now` on, at which the window is open: `now` itself if it is. None: not within 16 days. Raises Unreadable.

    A window opens at its `from`, or where the zone's clock is changed, and nowhere else: those moments are tried.
    """
    if is_open(window, now):
        return now
    tried = (*_beginnings(window, now), *_changes(_zone(window.zone), now))
    return min((moment for moment in tried if moment > now and is_open(window, moment)), default=None)


def said(window: Window, at: float) -> str:
    """A moment on the window's own clock: `mon 2026-11-30 22:00 Europe/Berlin`. Raises Unreadable."""
    local = datetime.datetime.fromtimestamp(at, _zone(window.zone))
    return f"{_DAYS[local.weekday()]} {local:%Y-%m-%d %H:%M} {window.zone}"


def _beginnings(window: Window, now: float) -> Iterator[float]:
    """When its `from` is shown on the days around and after `now`, each time that it is. Where it is skipped, some moment near it."""
    zone, minutes = _zone(window.zone), _minutes(window.from_)
    at = datetime.time(minutes // 60, minutes % 60)
    today = datetime.datetime.fromtimestamp(now, zone).date()
    for days in range(-1, _AHEAD):
        for fold in (0, 1):
            day = today + datetime.timedelta(days=days)
            yield datetime.datetime.combine(day, at, tzinfo=zone).replace(fold=fold).timestamp()


def _changes(zone: zoneinfo.ZoneInfo, now: float) -> Iterator[float]:
    """When the zone's clock is changed in the days after `now`, to the second."""
    for day in range(_AHEAD):
        low, high = int(now) + day * _DAY, int(now) + (day + 1) * _DAY
        if _offset(zone, low) == _offset(zone, high):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _offset(zone, middle) == _offset(zone, low) else (low, middle)
        yield float(high)


def _offset(zone: zoneinfo.ZoneInfo, at: float) -> datetime.timedelta | None:
    return datetime.datetime.fromtimestamp(at, zone).utcoffset()


@functools.cache
def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Unreadable(f"the time zone {name!r} isn't known here") from error


@functools.cache
def _minutes(text: str) -> int:
    """Minutes since midnight of `HH:MM`, to 24:00."""
    hours, colon, minutes = text.partition(":")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and int(minutes) < 60 and int(hours) * 60 + int(minutes) <= 24 * 60):
        raise Unreadable(f"{text!r} is not a time of day")
    return int(hours) * 60 + int(minutes)
