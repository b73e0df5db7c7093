"""Instants as clouds write them."""

import email.utils
from datetime import UTC, datetime
from typing import Final

_WORDED: Final = "%d %b %Y %H:%M:%S GMT"


def instant(text: str) -> float:
    """Seconds since the epoch, from RFC 3339 (`2026-01-02T03:04:05Z`), RFC 1123 (`Fri, 02 Jan 2026 03:04:05 GMT`) or AWS's own
    `2 Jan 2026 03:04:05 GMT`. Raises ValueError, also for a time without a zone: a guess could be hours off. It repeats nothing
    of the text.
    """
    try:
        when = _read(text.strip())
    except ValueError as error:  # it quotes what it was given, which may be anything, and of any length
        raise ValueError("it has a time that can't be read") from error
    if when.tzinfo is None:
        raise ValueError("it has a time without a zone")
    return when.timestamp()


def _read(given: str) -> datetime:
    if given[:1].isdigit() and "T" in given[:11]:
        return datetime.fromisoformat(given)
    if given[:1].isdigit():
        return datetime.strptime(given, _WORDED).replace(tzinfo=UTC)
    return email.utils.parsedate_to_datetime(given)


def maybe(text: str | None) -> float | None:
    """As `instant`; None where there is none, also for what isn't a time: whatever else is said still counts."""
    try:
        return instant(text) if text else None
    except ValueError:
        return None
