"""A division by zero has no answer, and everything else keeps the one that it has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shunter.lang.cel import CelRules
from shunter.lang.divisors import guarded
from shunter.model.expression import Expression, Undecided
from shunter.model.sample import Known

RULES = CelRules()


def asked(text: str, **values: float | int) -> bool | Undecided:
    scope = {
        f"worker.{name}": value if isinstance(value, int) else Known(value=value, unit="1", at=0.0, query="q")
        for name, value in values.items()
    }
    return RULES.test(Expression(text=text), scope)


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        ("a.b > 1.0", "a.b > 1.0"),
        ("a / 2.0", "a / 2.0"),
        ("a / 0.0", "a / [0.0].filter(_divisor, _divisor != 0.0)[0]"),
        ("a / 0e5", "a / [0e5].filter(_divisor, _divisor != 0.0)[0]"),
        ("a / 0.0E12", "a / [0.0E12].filter(_divisor, _divisor != 0.0)[0]"),
        ("a / 1e-999", "a / [1e-999].filter(_divisor, _divisor != 0.0)[0]"),
        ("a / 0.25", "a / 0.25"),
        ("a / 20", "a / 20"),
        ("a / b", "a / [b].filter(_divisor, _divisor != 0.0)[0]"),
        ("a / -b.c * d", "a / [-b.c].filter(_divisor, _divisor != 0.0)[0] * d"),
        ("a / f(b / c)[0].d", "a / [f(b / [c].filter(_divisor, _divisor != 0.0)[0])[0].d].filter(_divisor, _divisor != 0.0)[0]"),
        ('"a / b" == "/" // c / d', '"a / b" == "/" // c / d'),
    ],
)
def test_what_is_wrapped(text: str, wrapped: str) -> None:
    assert guarded(text) == wrapped


@pytest.mark.parametrize("text", ["X < 1.0", "!(X < 1.0)", "X != 1.0", "X == X", "1.0 / X > 0.0", "X > 0.0 || false"])
def test_nothing_by_nothing_decides_nothing(text: str) -> None:
    answer = asked(text.replace("X", "(worker.sessions / worker.running)"), sessions=0.0, running=0.0)
    assert isinstance(answer, Undecided)
    assert str(answer) == "it divides by zero"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("worker.running != 0.0 && worker.sessions / worker.running > 1.0", False),
        ("worker.running == 0.0 || worker.sessions / worker.running > 1.0", True),
        ("(worker.running == 0.0 ? 0.0 : worker.sessions / worker.running) < 1.0", True),
    ],
)
def test_who_asks_first_keeps_an_answer(text: str, answer: bool) -> None:
    assert asked(text, sessions=0.0, running=0.0) is answer


SHAPES = (
    "worker.sessions / worker.running > 2.0",
    "worker.sessions / (worker.running / 3.0) > 2.0",
    "worker.images / worker.incarnation >= 2",
    "double(worker.images) / double(worker.incarnation) / worker.running < 7.5",
    "-worker.sessions / -worker.running > 2.0",
)


@given(a=st.floats(0.1, 1e6), b=st.floats(0.1, 1e6), c=st.integers(1, 1000), d=st.integers(1, 1000), shape=st.sampled_from(SHAPES))
def test_other_divisions_are_what_they_are(a: float, b: float, c: int, d: int, shape: str) -> None:
    python = shape.replace("worker.", "").replace("double", "float").replace("images / incarnation", "images // incarnation")
    expected = eval(python, {"sessions": a, "running": b, "images": c, "incarnation": d, "float": float})
    assert asked(shape, sessions=a, running=b, images=c, incarnation=d) == expected


@pytest.mark.parametrize("zero", ["0e5", "0.0e-3", "1e-400"])
def test_a_zero_with_an_exponent_is_a_zero(zero):
    answer = asked(f"worker.sessions / {zero} > 1.0", sessions=1.0, running=1.0)
    assert isinstance(answer, Undecided)
