import pytest
from hypothesis import given
from hypothesis import strategies as st
from shunter.cases.series import MOST, SeriesError, series


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (7.0, (7.0,)),
        ("0 0 40", (0.0, 0.0, 40.0)),
        ("40x3", (40.0,) * 3),
        ("0x2 1.5 -2e3", (0.0, 0.0, 1.5, -2000.0)),
        ("1+0.1x4", (1.0, 1.1, 1.2, 1.3)),
        ("10-5x4", (10.0, 5.0, 0.0, -5.0)),
        ("1 missing stalex2 failed", (1.0, "missing", "stale", "stale", "failed")),
        ((1.0, "2x2", "missing"), (1.0, 2.0, 2.0, "missing")),
    ],
)
def test_the_notation(text, entries):
    assert series(text).entries == entries


def test_the_last_entry_holds_for_ever():
    assert [series("1 2 missing").at(step) for step in (0, 1, 2, 3, 999)] == [1.0, 2.0, "missing", "missing", "missing"]


def test_the_newest_number_up_to_a_step():
    found = series("missing 3 stale 4")
    assert [found.number(step) for step in range(5)] == [None, 3.0, 3.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("forty", "'forty' is no value"),
        ("40*3", "'40*3' is no value"),
        ("nan", "'nan' is no value"),
        ("0+5", "write how many steps it goes on for, as in 0+5x10"),
        ("missing+1x3", "missing doesn't rise or fall"),
        ("3x0", "'3x0' is no value"),
        ("3x99999999999", "more than 100,000 entries"),
        ((), "it is empty"),
    ],
)
def test_what_is_no_series(text, said):
    with pytest.raises(SeriesError, match=said.replace("+", r"\+").replace("*", r"\*")):
        series(text)


@given(st.text(alphabet="0123456789.+-x e_missingtalfd", max_size=24))
def test_any_text_is_a_series_or_an_error_that_says_what_to_do(text):
    try:
        found = series(text)
    except SeriesError as error:
        found, said = None, str(error)
    else:
        said = ""
    if found is None:
        assert ": " in said
    else:
        assert 1 <= len(found.entries) <= MOST
        assert all(entry in ("missing", "failed", "stale") or isinstance(entry, float) for entry in found.entries)
