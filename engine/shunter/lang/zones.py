"""Time zones by their IANA names. Nothing is guessed: what isn't one is refused, with the name that was probably meant.

The names are those of the `tzdata` package, so that a policy is valid on every machine or on none.
"""

import re
from functools import cache
from typing import Final

from shunter.lang.diagnostics import nearest

_OFFSET: Final = re.compile(r"(?:UTC|GMT|Z)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?", re.ASCII | re.IGNORECASE)
_PLACES: Final = {
    -10.0: "Pacific/Honolulu",
    -9.0: "America/Anchorage",
    -8.0: "America/Los_Angeles",
    -7.0: "America/Denver",
    -6.0: "America/Chicago",
    -5.0: "America/New_York",
    -4.0: "America/Halifax",
    -3.0: "America/Sao_Paulo",
    0.0: "Europe/London",
    1.0: "Europe/Berlin",
    2.0: "Europe/Athens",
    3.0: "Europe/Istanbul",
    4.0: "Asia/Dubai",
    5.0: "Asia/Karachi",
    5.5: "Asia/Kolkata",
    7.0: "Asia/Bangkok",
    8.0: "Asia/Shanghai",
    9.0: "Asia/Tokyo",
    10.0: "Australia/Sydney",
    12.0: "Pacific/Auckland",
}
"""Hours ahead of UTC in winter, and a place of which people may think."""
_SHORT: Final = {
    "CET": "Europe/Berlin or Europe/Paris",
    "CEST": "Europe/Berlin or Europe/Paris",
    "MET": "Europe/Berlin",
    "EET": "Europe/Athens or Europe/Helsinki",
    "EEST": "Europe/Athens or Europe/Helsinki",
    "WET": "Europe/Lisbon",
    "WEST": "Europe/Lisbon",
    "BST": "Europe/London",
    "MSK": "Europe/Moscow",
    "EST": "America/New_York, or America/Panama without summer time",
    "EDT": "America/New_York",
    "EST5EDT": "America/New_York",
    "CST": "America/Chicago, or Asia/Shanghai",
    "CDT": "America/Chicago",
    "CST6CDT": "America/Chicago",
    "MST": "America/Denver, or America/Phoenix without summer time",
    "MDT": "America/Denver",
    "MST7MDT": "America/Denver",
    "PST": "America/Los_Angeles",
    "PDT": "America/Los_Angeles",
    "PST8PDT": "America/Los_Angeles",
    "HST": "Pacific/Honolulu",
    "IST": "Asia/Kolkata, Asia/Jerusalem or Europe/Dublin",
    "JST": "Asia/Tokyo",
    "KST": "Asia/Seoul",
    "SGT": "Asia/Singapore",
    "AEST": "Australia/Sydney, or Australia/Brisbane without summer time",
    "AEDT": "Australia/Sydney",
}
"""Abbreviations, some of which were zones of IANA's once, and what to write in their stead."""
_NO_PLACE: Final = ("Factory", "localtime", "posixrules")


def fault(name: str) -> tuple[str, str] | None:
    """What is wrong with a zone's name and what to write; None for an IANA zone that says which place it is."""
    if name.upper() in _SHORT:
        return f"{name} is an abbreviation, which doesn't say when summer time begins", f"Write {_SHORT[name.upper()]}"
    if (offset := _OFFSET.fullmatch(name)) is not None:
        return _fixed(name, offset)
    if name in _known() and name not in _NO_PLACE:
        return None
    near = _nearest(name)
    remedy = f'Did you mean "{near}"?' if near else "Write an IANA name, such as Europe/Berlin, or UTC"
    return f'"{name}" is not a time zone', remedy


def _fixed(name: str, found: re.Match[str]) -> tuple[str, str]:
    sign, hours, minutes = found[1], int(found[2]), int(found[3] or 0)
    ahead = (hours + minutes / 60) * (1 if sign == "+" else -1)
    parts = [f"Write the place whose clocks are meant, such as {_PLACES.get(ahead, 'Europe/Berlin')}"]
    exact = f"Etc/GMT{'-' if sign == '+' else '+'}{hours}" if ahead else "UTC"
    if exact in _known() and not minutes:
        parts.append(f"or {exact} for this offset all year{' (its sign is the other way round)' if ahead else ''}")
    return f"{name} is an offset, not a time zone: it doesn't follow summer time", ", ".join(parts)


def _nearest(name: str) -> str | None:
    """A zone of the same city, or one that is spelt much the same."""
    folded = name.strip().replace(" ", "_").casefold()
    cities = sorted(zone for zone in _known() if folded and folded in (zone.casefold(), zone.rpartition("/")[2].casefold()))
    if cities:
        return min(cities, key=lambda zone: (zone.count("/") != 1, zone))
    return nearest(name, _known()) if len(folded) > 3 else None


@cache
def _known() -> frozenset[str]:
    from importlib.resources import files

    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split())
