"""When a test begins: a moment as ISO 8601 has it, or a time on the clocks of a place."""

import datetime
import zoneinfo

from shunter.lang import zones


class NoMoment(ValueError):
    """A text is no moment. `said` is what is wrong, and what to write."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.said = (what, remedy)


def moment(text: str) -> float:
    """Seconds since the epoch of `2026-01-01T03:00:00Z`, `2026-01-01T04:00+01:00` or `2026-01-01 04:00 Europe/Berlin`. Raises NoMoment."""
    parts = text.rsplit(" ", 1)
    named = len(parts) == 2 and not parts[1][:1].isdigit()
    time, zone = (parts[0], parts[1]) if named else (text, "")
    try:
        local = datetime.datetime.fromisoformat(time)
    except ValueError:
        raise NoMoment(f"{text!r} is no moment", "Write one in UTC, as in 2026-01-01T03:00:00Z, or with a place") from None
    if zone:
        return _on_clocks(local, zone, text)
    if local.tzinfo is None:
        raise NoMoment(f"{text} has no time zone", f"Write {text}Z for UTC, or a place behind it, as in {time} Europe/Berlin")
    return local.timestamp()


def _on_clocks(local: datetime.datetime, zone: str, text: str) -> float:
    if local.tzinfo is not None:
        raise NoMoment(f"{text} has two time zones", "Keep one of them")
    if (wrong := zones.fault(zone)) is not None:
        raise NoMoment(*wrong)
    first, second = (local.replace(tzinfo=zoneinfo.ZoneInfo(zone), fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return first.timestamp()
    if datetime.datetime.fromtimestamp(first.timestamp(), first.tzinfo).replace(tzinfo=None, fold=0) != local:
        raise NoMoment(f"the clocks in {zone} never show {local:%H:%M} on that day", "Write a time before or after they are put forward")
    either = " or ".join(one.isoformat(timespec="minutes") for one in (first, second))
    raise NoMoment(f"the clocks in {zone} show {local:%H:%M} twice on that day", f"Write {either}")
