"""A number that isn't finite has no answer, and everything else keeps the one that it has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shunter.lang.bulk import BulkCelRules
from shunter.lang.cel import CelRules, check, compiled
from shunter.lang.divisors import guarded
from shunter.lang.finite import _AFTER, SAID, finite
from shunter.model.expression import Expression, Undecided
from shunter.model.sample import Known

RULES = CelRules()
HUGE = "(worker.kvTokens * 1e300)"


def asked(text: str, tokens: float = 1e10, tier: str = "NaN") -> bool | Undecided:
    known = Known(value=tokens, unit="tokens", at=0.0, query="q")
    return RULES.test(Expression(text=text), {"worker.kvTokens": known, "worker.labels": {"tier": tier}, "worker.images": 3})


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        ("a.b > 1.0", "a.b > 1.0"),
        ("-a > b", "-a > b"),
        ("a * b > c", "[a * b]! > c"),
        ("a - -b == c", "[a - -b]! == c"),
        ("a.b > 1.0 && !(x - 1.0 > y)", "a.b > 1.0 && !([x - 1.0]! > y)"),
        ("((a + b) * c) > (d)", "[((a + b) * c)]! > (d)"),
        ("(a * b > c ? d * e : f) + g > h", "[([a * b]! > c ? d * e : f) + g]! > h"),
        ("x > 1 ? a * b : c", "x > 1 ? [a * b]! : c"),
        ("int(a * b) > 3", "int([a * b]!) > 3"),
        ("a / b > 2.0", "[a / [b].filter(_divisor, _divisor != 0.0)[0]]! > 2.0"),
        ("f(a)[b + c].d in [a * b, c]", "f(a)[[b + c]!].d in [[a * b]!, c]"),
        ("l.exists(v, v + 1.0 > y)", "l.exists(v, [v + 1.0]! > y)"),
        ("double(a) < 1e999", "[double(a)]! < [1e999]!"),
        ("a + b // c\n > d", "[a + b // c\n]!\n > d"),
        ('"a * b" == c // a * b', '"a * b" == c // a * b'),
    ],
)
def test_what_is_wrapped(text: str, wrapped: str) -> None:
    assert finite(guarded(text)) == wrapped.replace("]!", _AFTER)


SHAPES = ("X < 1.0", "X > 1.0", "!(X < 1.0)", "X != 1.0", "X == X", "X - X == 0.0", "1.0 / X >= 0.0", "X in [1.0, 2.0]", "string(X) != 'x'")


@pytest.mark.parametrize("shape", [*SHAPES, "(X > 1.0 ? 1.0 : 0.0) > 0.5", "(true ? X : 1.0) > 0.5", "[X].exists(v, v > 1.0)", "-X < 1.0"])
@pytest.mark.parametrize("huge", [HUGE, "(worker.kvTokens * 1e300 - worker.kvTokens * 1e300)", "double(worker.labels['tier'])", "1e999"])
def test_what_is_not_finite_decides_nothing_and_says_why(shape: str, huge: str) -> None:
    text = shape.replace("X", huge)
    assert not check(text, "bool", frozenset({"worker"}), frozenset())
    answer = asked(text)
    assert isinstance(answer, Undecided), answer
    assert str(answer) == SAID


@pytest.mark.parametrize("tier", ["NaN", "inf", "-inf", "1e999"])
def test_neither_does_a_label_that_reads_as_one(tier: str) -> None:
    assert isinstance(asked("double(worker.labels.tier) != 5.0", tier=tier), Undecided)


def test_who_asks_first_keeps_an_answer() -> None:
    assert asked(f"worker.kvTokens > 5.0 || {HUGE} > 1.0") is True
    assert asked(f"worker.kvTokens < 5.0 && {HUGE} > 1.0") is False
    assert asked(f"(worker.kvTokens > 5.0 ? 2.0 : {HUGE}) > 1.0") is True


KEPT = {
    "worker.kvTokens * 2.0 + 1.0 > 7.5": lambda t: t * 2.0 + 1.0 > 7.5,
    "(worker.kvTokens - 3.0) * -2.5 <= worker.kvTokens / 3.0": lambda t: (t - 3.0) * -2.5 <= t / 3.0,
    "(worker.kvTokens > 10.0 ? worker.kvTokens + 1.0 : worker.kvTokens * 2.0) < 30.0": lambda t: (t + 1.0 if t > 10.0 else t * 2.0) < 30.0,
    "worker.images + 4 > 6 && worker.images * 2 == 6": lambda t: True,
}


@given(tokens=st.floats(-1e6, 1e6), shape=st.sampled_from(sorted(KEPT)))
def test_everything_finite_is_what_it_is(tokens: float, shape: str) -> None:
    assert asked(shape, tokens) == KEPT[shape](tokens)


def test_texts_and_times_go_through() -> None:
    assert asked("worker.labels.tier + 'x' == 'NaNx'") is True
    assert asked("timestamp(60) - timestamp(30) > duration('10s')") is True
    assert asked("[1] + [2] == [1, 2]") is True


def test_columns_say_the_same() -> None:
    class Rows:
        size = 12

        def values(self, name: str) -> list[object]:
            return [Known(value=10.0**n, unit="", at=0.0, query="q") for n in range(12)] if name == "worker.kvTokens" else [None]

    answers = BulkCelRules().test_all(Expression(text=f"{HUGE} < 1e307"), Rows())  # type: ignore[arg-type]
    assert answers == [True] * 7 + [False] * 2 + [None] * 3


def test_what_becomes_too_deep_by_it_is_refused_when_it_is_loaded() -> None:
    text, codes = "worker.kvUsage", []
    for _ in range(20):
        text = f"double(int({text} + 1.0))"
        faults = check(f"{text} > 1.0", "bool", frozenset({"worker"}), frozenset())
        codes.append([f.code for f in faults])
        if not faults:
            compiled(f"{text} > 1.0")
    assert [] in codes
    assert ["SH136"] in codes
