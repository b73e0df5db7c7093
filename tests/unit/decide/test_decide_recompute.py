"""What computing context again takes as contexts grow, and what that changes: images, moves, and who is saved first."""

import pytest
from decide_world import NOW, checkpoints, decide, figures, finding, image, kinds, known, node, notice, preemption, snap, worker
from hypothesis import given
from hypothesis import strategies as st
from shunter.decide.figures import Figures
from shunter.decide.profile import Profile
from shunter.decide.recompute import beginnings, dearness
from shunter.model.policy import Cadence, Optimal
from shunter.model.sample import Missing
from shunter.model.units import Duration, Rate

LOST = Missing(reason="the scrape failed")


def doubling(at: float | None) -> Figures:
    return Figures(rates=Profile(), prefill_doubling=at)


def token_by_token(length: int, at: float) -> float:
    """The cost of a context as the sum of its tokens' costs, each taken in its middle."""
    return sum(1 + (place + 0.5) / at for place in range(length))


@given(st.integers(0, 3000), st.floats(10, 1e6))
def test_a_context_costs_the_sum_of_its_tokens(length, at):
    assert beginnings(doubling(at), length, known(1)) == pytest.approx(token_by_token(length, at))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9), st.floats(1, 1e6))
def test_however_contexts_share_the_tokens_it_takes_no_less(lengths, at):
    apart = sum(beginnings(doubling(at), length, known(1)) for length in lengths)
    assert beginnings(doubling(at), sum(lengths), known(len(lengths))) <= apart * (1 + 1e-9)


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.integers(2, 50))
def test_it_is_convex_and_few_long_contexts_cost_more_than_many_short_ones(tokens, at, sessions):
    once, twice = (beginnings(doubling(at), n * tokens, known(1)) for n in (1, 2))
    assert twice > 2 * once
    assert beginnings(doubling(at), tokens, known(1)) > beginnings(doubling(at), tokens, known(sessions)) > tokens


@pytest.mark.parametrize(("at", "sessions"), [(None, known(3)), (100.0, None), (100.0, LOST)])
def test_what_nobody_gave_or_measured_changes_nothing(at, sessions):
    assert beginnings(doubling(at), 1234.5, sessions) == 1234.5
    assert dearness(doubling(at), known(1000), sessions)[0] == 1.0
    assert dearness(doubling(100.0), LOST, known(3))[0] == 1.0


def test_fewer_than_one_session_is_one():
    assert beginnings(doubling(100.0), 100, known(0)) == beginnings(doubling(100.0), 100, known(1)) == 150.0


D0, A, B = worker("decode-0", "a/0"), node("a", ("decode-0",)), node("b")
OPTIMAL = checkpoints(every=None, cadence=Cadence(optimal=Optimal(hazard=Rate.parse("1/24h"), min=Duration(1), max=Duration(36000))))


def aged(age, samples):
    return snap([A, B], [D0], [image("i", D0, "a", at=NOW - age, pause=5.0)], samples={"decode-0": samples})


@pytest.mark.parametrize(
    ("tokens", "sessions", "due", "told"),
    [
        # 926 s by Daly's formula; four times as dear at 300,000 tokens: half of it, 461 s
        (300_000, 1, 462, "contexts of 300,000 tokens taken to be 4 times as dear as at their beginning; at least 1s"),
        (300_000, 3, 653, "contexts of 100,000 tokens taken to be 2 times"),
        (0, 3, 926, "alike; what is lost at the end of contexts of 0 tokens; at least"),
        (LOST, 3, 926, "alike; how long its contexts are isn't known, so they count as short; at least"),
    ],
)
def test_images_of_long_contexts_are_due_more_often_and_it_is_said_why(tokens, sessions, due, told):
    policies = [OPTIMAL, figures(prefill_doubling=100_000.0)]
    for age, is_due in ((due - 3, False), (due + 3, True)):
        result = decide(policies, aged(age, {"kvTokens": tokens, "sessions": sessions}))
        assert bool(kinds(result)) is is_due, age
    detail = next(e for e in finding(result, "decode-0").evidence if e.gate == "cadence.optimal").detail
    assert told in detail
    plain = decide([OPTIMAL], aged(930, {"kvTokens": tokens, "sessions": sessions}))
    detail = next(e for e in finding(plain, "decode-0").evidence if e.gate == "cadence.optimal").detail
    assert "taken to come at any time alike; at least" in detail


@pytest.mark.parametrize(("sessions", "first"), [((1, 40), "decode-0"), ((40, 1), "decode-1"), ((4, 4), "decode-1")])
def test_of_two_with_the_same_tokens_the_one_with_the_longer_contexts_is_saved(sessions, first):
    """There is one slot. Where contexts are alike, the tokens decide."""
    workers = [worker("decode-0", "a/0"), worker("decode-1", "a/1")]
    samples = {w.id: {"kvTokens": 100_000.0 + n, "sessions": s} for n, (w, s) in enumerate(zip(workers, sessions, strict=True))}
    world = snap([node("a", ("decode-0", "decode-1")), B], workers, notices=[notice("a")], samples=samples)
    moved = [o.worker for o in decide([preemption(), figures(prefill_doubling=10_000.0)], world).plan.operations if o.to_slot]
    assert moved == [first]
    assert [o.worker for o in decide([preemption()], world).plan.operations if o.to_slot] == ["decode-1"], (
        "without a figure the tokens alone"
    )
