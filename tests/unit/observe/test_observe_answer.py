"""Answers are read no further than they are looked at, and say the same as if they were read whole."""

import json
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.model.errors import Retry
from shunter.observe import answer
from shunter.observe.answer import LabelSets, Points, series_of

VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["0", "-0", "1e308", "4.9e-324", "NaN", "+Inf", "-Inf", "123456789012345678901234567890"]),
)
POINT = st.tuples(st.floats(min_value=0, max_value=2e9).map(lambda t: round(t, 3)), VALUES)
LABELS = st.dictionaries(st.sampled_from(["__name__", "worker", "zone", "ü"]), st.text(max_size=4), max_size=4)
ELEMENT = st.one_of(
    st.fixed_dictionaries({"metric": LABELS, "values": st.lists(POINT, min_size=1, max_size=4)}),
    st.fixed_dictionaries({"metric": LABELS, "value": POINT}),
    st.fixed_dictionaries({"metric": LABELS, "histograms": st.lists(st.tuples(st.just(5.0), st.just({"count": "1"})), min_size=1)}),
    st.fixed_dictionaries(
        {"metric": LABELS, "values": st.lists(POINT, max_size=2), "histograms": st.just([(3.0, {"count": "1"})])},
    ),
)


def read(elements: object, sets: LabelSets | None = None) -> tuple[tuple[dict[str, str], tuple[tuple[float, float | None], ...]], ...]:
    known = sets or LabelSets()
    found = series_of(msgspec.Raw(json.dumps(elements).encode()), lambda texts: known.read("q", texts))
    return tuple((s.labels, tuple(s.points)) for s in found)


def plainly(element: dict[str, object]) -> tuple[dict[str, str], tuple[tuple[float, float | None], ...]]:
    """As the format is described, without any short cut."""
    given = [*element.get("values", []), *([element["value"]] if "value" in element else [])]  # type: ignore[misc]
    points = [(at, value if math.isfinite(value := float(text)) else None) for at, text in given]
    points += [(at, None) for at, _ in element.get("histograms", [])]  # type: ignore[attr-defined]
    return element["metric"], tuple(sorted(points, key=lambda p: p[0]) if "histograms" in element else points)  # type: ignore[return-value]


@given(st.lists(ELEMENT, max_size=5), st.sampled_from([1, 2, 2000]))
@settings(max_examples=150)
def test_what_is_read_late_and_in_portions_is_what_was_there(elements: list[dict[str, object]], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "_AT_ONCE", at_once)
        assert repr(read(elements)) == repr(tuple(map(plainly, elements))), "to the bit, -0.0 too"


def test_reading_a_long_answer_can_stand_still_again_and_again() -> None:
    asked: list[None] = []
    elements = [{"metric": {"worker": f"w{n}"}, "values": [[1, "2"]]} for n in range(10_000)]
    found = series_of(msgspec.Raw(json.dumps(elements).encode()), lambda texts: LabelSets().read("q", texts), lambda: asked.append(None))
    assert len(found) == 10_000
    assert len(asked) >= 5


@given(st.lists(st.fixed_dictionaries({"metric": LABELS, "values": st.lists(POINT, min_size=1, max_size=4)}), min_size=1, max_size=4))
def test_the_newest_point_needs_no_other(elements: list[dict[str, object]]) -> None:
    found = series_of(msgspec.Raw(json.dumps(elements).encode()), lambda texts: LabelSets().read("q", texts))
    assert [repr(s.points[-1]) for s in found] == [repr(plainly(e)[1][-1]) for e in elements]


def test_an_old_point_that_is_none_is_an_error_when_it_is_read() -> None:
    points = Points((2.0, 1.0), b'[[1,"x"],[2,"1"]]')
    assert points[-1] == (2.0, 1.0)
    with pytest.raises(Retry) as caught:
        len(points)
    assert caught.value.problem.code == "SH304"


def test_a_series_without_a_value_is_refused() -> None:
    for element in ({"metric": {}}, {"metric": {}, "values": []}):
        with pytest.raises(ValueError, match="without a value"):
            read([element])


def test_labels_are_kept_while_the_query_gives_them_and_no_longer() -> None:
    sets = LabelSets(most=3)
    one, two = (json.dumps({"worker": name}).encode() for name in ("a", "b"))
    first = sets.read("q", [one, two])
    again = sets.read("q", [one])
    assert again[0] is first[0], "read once"
    assert sets.read("q", [two])[0] is not first[1], "it was gone for a tick: nothing is kept for series that may never come back"
    with pytest.raises(msgspec.DecodeError):
        sets.read("q", [b'{"worker": 1}'])


def test_no_more_labels_are_kept_than_may_be() -> None:
    sets = LabelSets(most=3)
    texts = [json.dumps({"worker": f"w{n}"}).encode() for n in range(3)]
    first = sets.read("old", texts)
    sets.read("new", texts[:1])
    assert sets.read("old", texts)[0] is not first[0], "the query that was asked longest ago made way"
