"""Points and stretches of time on the command line."""

import datetime
import time

from shunter.model.errors import Problem, Rejected
from shunter.model.units import Duration, UnitError


def moment(option: str, text: str | None, now: float | None = None) -> float | None:
    """`10m` is ten minutes before `now` (None: by the clock); else an ISO 8601 date or time, in UTC unless it says otherwise.

    Seconds since the epoch; None for None. Raises Rejected SH909.
    """
    if text is None:
        return None
    try:
        return (time.time() if now is None else now) - Duration.parse(text)
    except UnitError:
        pass
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise Rejected(
            Problem(
                code="SH909",
                what=f"{text!r} is not a point in time",
                remedy="Write how long ago, such as 10m, or a date, such as 2026-01-31 or 2026-01-31T12:00:00",
                subject=option,
            )
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()


def stretch(option: str, text: str) -> float:
    """A length of time, such as `10m`, in seconds; more than none. Raises Rejected SH909."""
    try:
        found = Duration.parse(text)
    except UnitError as error:
        raise Rejected(Problem(code="SH909", what=str(error), remedy="Write a length of time, such as 10m", subject=option)) from None
    if found <= 0:
        raise Rejected(
            Problem(code="SH909", what="it must be more than none", remedy="Write a length of time, such as 10m", subject=option)
        )
    return float(found)
