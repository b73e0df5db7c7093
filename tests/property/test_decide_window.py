"""Windows against a look at the wall clock, minute by minute, over changes of the clock in several zones."""

import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.decide.window import Unreadable, is_open, opens_at, said
from shunter.model.policy import Window

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CHANGES = (
    ("Europe/Berlin", "2026-03-29T01:00", "an hour is skipped"),
    ("Europe/Berlin", "2026-10-25T01:00", "an hour is repeated"),
    ("America/New_York", "2026-03-08T07:00", "an hour is skipped"),
    ("America/New_York", "2026-11-01T06:00", "an hour is repeated"),
    ("Australia/Lord_Howe", "2026-10-03T15:30", "half an hour is skipped"),
    ("Australia/Lord_Howe", "2026-04-04T15:00", "half an hour is repeated"),
    ("Asia/Beirut", "2026-03-28T22:00", "midnight is skipped"),
    ("America/Havana", "2026-11-01T05:00", "midnight is repeated"),
    ("Pacific/Apia", "2011-12-30T10:00", "a day is skipped"),
    ("Asia/Kathmandu", "2026-06-01T00:00", "nothing happens"),
)


def utc(text):
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()


def shown(window, at):
    """By the letter of the documentation: is there a day of `days` on whose clock face this minute is between the two times?"""
    local = datetime.datetime.fromtimestamp(at, ZoneInfo(window.zone)).replace(tzinfo=None)

    def on(day, text):
        hours, minutes = text.split(":")
        return datetime.datetime.combine(day, datetime.time()) + datetime.timedelta(hours=int(hours), minutes=int(minutes))

    for back in (0, 1):
        day = local.date() - datetime.timedelta(days=back)
        begins, ends = on(day, window.from_), on(day, window.to)
        if ends <= begins:
            ends += datetime.timedelta(days=1)
        if DAYS[day.weekday()] in window.days and begins <= local < ends:
            return True
    return False


def time_of(minutes):
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


@st.composite
def cases(draw):
    zone, at, _ = draw(st.sampled_from(CHANGES))
    minutes = st.one_of(st.integers(0, 4 * 60), st.integers(22 * 60, 24 * 60 - 1), st.integers(0, 24 * 60 - 1))
    to = draw(st.one_of(minutes, st.just(24 * 60)))
    days = draw(st.sets(st.sampled_from(DAYS), min_size=1))
    window = Window(zone=zone, from_=time_of(draw(minutes)), to=time_of(to), days=tuple(d for d in DAYS if d in days))
    return window, utc(at) + 60 * draw(st.integers(-30 * 60, 6 * 60))


@given(cases())
@settings(max_examples=60, deadline=None)
def test_a_window_is_open_when_the_clock_shows_it_and_opens_at_the_first_such_minute(case):
    window, begin = case
    first = None
    for minute in range(30 * 60):
        at = begin + 60 * minute
        assert is_open(window, at) is shown(window, at)
        if first is None and shown(window, at):
            first = at
    opening = opens_at(window, begin)
    if first is not None:
        assert opening == first
    else:
        assert opening is None or opening >= begin + 30 * 3600
    if opening is not None:
        assert shown(window, opening)


@pytest.mark.parametrize(
    ("window", "now", "opening"),
    [
        # the clock jumps from 02:00 to 03:00
        (Window(zone="Europe/Berlin", from_="02:30", to="04:00"), "2026-03-29T00:00", "2026-03-29T01:00"),
        # a window in the skipped hour doesn't open that day
        (Window(zone="Europe/Berlin", from_="02:00", to="03:00", days=("sun",)), "2026-03-29T00:00", "2026-04-05T00:00"),
        # the clock is put back from 03:00 to 02:00, into the window that had ended
        (Window(zone="Europe/Berlin", from_="01:00", to="02:30", days=("sun",)), "2026-10-25T00:45", "2026-10-25T01:00"),
        (Window(zone="Europe/Berlin", from_="02:30", to="02:45", days=("sun",)), "2026-10-25T00:50", "2026-10-25T01:30"),
        # `days` is when it begins: Friday's night goes on into Saturday
        (Window(zone="UTC", from_="22:00", to="06:00", days=("fri",)), "2026-11-28T03:00", "2026-11-28T03:00"),
        (Window(zone="UTC", from_="22:00", to="06:00", days=("fri",)), "2026-11-28T06:00", "2026-12-04T22:00"),
        # a whole day
        (Window(zone="UTC", from_="00:00", to="24:00", days=("sun",)), "2026-11-28T12:00", "2026-11-29T00:00"),
    ],
)
def test_openings_by_hand(window, now, opening):
    assert opens_at(window, utc(now)) == utc(opening)


def test_a_moment_is_said_on_the_windows_own_clock():
    window = Window(zone="Europe/Berlin", from_="22:00", to="23:00")
    assert said(window, utc("2026-11-30T21:00")) == "mon 2026-11-30 22:00 Europe/Berlin"


@pytest.mark.parametrize(
    "window",
    [
        Window(zone="Mars/Olympus", from_="01:00", to="02:00"),
        Window(zone="", from_="01:00", to="02:00"),
        Window(zone="../etc/passwd", from_="01:00", to="02:00"),
        Window(zone="UTC", from_="25:00", to="02:00"),
        Window(zone="UTC", from_="noon", to="02:00"),
    ],
)
def test_what_cannot_be_read_is_said_and_never_open(window):
    with pytest.raises(Unreadable):
        is_open(window, 0.0)
