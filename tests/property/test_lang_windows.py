"""Whether two windows are ever open together: by the language's arithmetic, and by asking the engine at every quarter of an hour."""

import datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shunter.decide.window import is_open
from shunter.lang.whole.weeks import meet
from shunter.model.policy import Window

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ZONES = ("UTC", "Europe/Berlin", "Europe/London", "America/New_York", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Sydney")
WEEKS = ("01-12", "03-16", "07-06", "10-12")
"""Mondays in 2026: in their weeks the zones are as far apart as they ever get, each way, and no clock is changed."""
QUARTERS = 4 * 24 * 7
MOMENTS = tuple(
    datetime.datetime.fromisoformat(f"2026-{week}T00:00+00:00").timestamp() + quarter * 900 for week in WEEKS for quarter in range(QUARTERS)
)

times = st.integers(0, 95).map(lambda q: f"{q // 4:02}:{q % 4 * 15:02}")
ends = times | st.just("24:00")


@st.composite
def windows(draw: st.DrawFn) -> Window:
    begins, until = draw(times), draw(ends)
    days = draw(st.lists(st.sampled_from(DAYS), min_size=1, max_size=3, unique=True))
    return Window(zone=draw(st.sampled_from(ZONES)), from_=begins, to=until if until != begins else "24:00", days=tuple(days))


def short(zone: str, begins: str, ends: str, *days: str) -> Window:
    return Window(zone=zone, from_=begins, to=ends, days=days)  # type: ignore[arg-type]


@given(windows(), windows())
@settings(max_examples=200)
@example(short("Europe/London", "04:00", "04:15", "tue"), short("America/New_York", "00:00", "00:15", "tue"))  # in spring and autumn alone
@example(short("UTC", "23:45", "24:00", "sun"), short("Asia/Kathmandu", "05:30", "05:45", "mon"))  # over the end of the week
@example(short("UTC", "22:00", "06:00", "tue"), short("UTC", "05:45", "06:00", "wed"))
@example(short("UTC", "22:00", "06:00", "tue"), short("UTC", "06:00", "06:15", "wed"))
def test_two_windows_meet_where_the_engine_finds_both_open(one: Window, other: Window) -> None:
    together = any(is_open(one, at) and is_open(other, at) for at in MOMENTS)
    assert meet(one, other) is together
    assert meet(other, one) is together


@pytest.mark.parametrize("week", WEEKS)
def test_no_clock_is_changed_in_the_weeks_that_are_looked_at(week: str) -> None:
    """The oracle is only as good as its weeks."""
    from zoneinfo import ZoneInfo

    monday = datetime.datetime.fromisoformat(f"2026-{week}T00:00+00:00")
    assert monday.weekday() == 0
    for zone in ZONES:
        first, last = (monday + datetime.timedelta(hours=h) for h in (0, 7 * 24))
        assert first.astimezone(ZoneInfo(zone)).utcoffset() == last.astimezone(ZoneInfo(zone)).utcoffset(), zone
