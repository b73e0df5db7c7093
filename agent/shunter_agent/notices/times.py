"""Instants as clouds write them."""

import email.utils
from datetime import UTC, datetime
from typing import Final

_WORDED: Final = "%d %b %Y %H:%M:%S GMT"


def instant(text: str) -> float:
    """Seconds since the epoch, from RFC 3339 (`2026-01-02T03:04:05Z`), RFC 1123 (`Fri, 02 Jan 2026 03:04:05 GMT`) or AWS's own
    `2 Jan 2026 03:04:05 GMT`. Raises ValueError, also for a time without a zone: a guess could be hours off.
    """
    given = text.strip()
    if given[:1].isdigit() and "T" in given[:11]:
        when = datetime.fromisoformat(given)
        if when.tzinfo is None:
            raise ValueError(f"{given!r} has no time zone")
        return when.timestamp()
    if given[:1].isdigit():
        return datetime.strptime(given, _WORDED).replace(tzinfo=UTC).timestamp()
    when = email.utils.parsedate_to_datetime(given)
    if when.tzinfo is None:
        raise ValueError(f"{given!r} has no time zone")
    return when.timestamp()


def maybe(text: str | None) -> float | None:
    """As `instant`; None where there is none, also for what isn't a time: whatever else is said still counts."""
    try:
        return instant(text) if text else None
    except ValueError:
        return None
