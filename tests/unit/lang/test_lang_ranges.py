"""Where conditions are surely true: boxes promise, so every witness is put to CEL itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.lang.cel import CelRules, syntax
from shunter.lang.ranges import boxes, meeting
from shunter.lang.tree import Call, Constant, Listed, Name
from shunter.model.expression import Expression

RULES = CelRules()


def together(first, second):
    return meeting(boxes(first), boxes(second))


@pytest.mark.parametrize(
    ("first", "second", "example"),
    [
        ("pools.prefill.waiting > 30", "pools.prefill.waiting < 32", {"pools.prefill.waiting": 31}),
        ("30 < pools.prefill.waiting", "pools.prefill.waiting <= 31", {"pools.prefill.waiting": 31}),
        ("pools.prefill.kvUsage > 0.3", "pools.prefill.kvUsage < 0.31", {"pools.prefill.kvUsage": 0.301}),
        ("pools.prefill.waiting >= 3 && pools.decode.kvUsage < 0.6", "pools.prefill.waiting == 3.0", {"pools.decode.kvUsage": 0, "pools.prefill.waiting": 3}),  # noqa: E501
        ("!(pools.prefill.waiting > 30 || pools.decode.waiting > 3)", "pools.prefill.waiting > 10", {"pools.decode.waiting": 0, "pools.prefill.waiting": 11}),  # noqa: E501
        ("pools.prefill.waiting > pools.decode.waiting || pools.prefill.waiting > 9", "pools.prefill.waiting > 5", {"pools.prefill.waiting": 10}),  # noqa: E501
        ("pools.prefill.waiting > 9 ? pools.decode.workers > 1 : false", "pools.decode.workers < 3", {"pools.decode.workers": 2, "pools.prefill.waiting": 10}),  # noqa: E501
        ('worker.labels["tier"] == "gold"', 'worker.labels.tier != "silver" && node.noticed', {"node.noticed": True, 'worker.labels["tier"]': "gold"}),  # noqa: E501
        ('worker.role in ["prefill", "decode"]', 'worker.role != "prefill"', {"worker.role": "decode"}),
        ('!(worker.engine in ["vllm"])', 'worker.engine != "other"', {"worker.engine": "other-0"}),
        ("metrics.wait > 2.0 && pools.decode.kvUsage < 0.6", "metrics.wait < 5.0", {"metrics.wait": 3, "pools.decode.kvUsage": 0}),
        ("now > -5.0", "now < 2.0", {"now": -4}),
        ("pools.decode.workers == 0", "pools.prefill.waiting > 3", {"pools.decode.workers": 0, "pools.prefill.waiting": 4}),
    ],
)  # fmt: skip
def test_conditions_that_meet_do_so_at_the_witness(first, second, example):
    found = together(first, second)
    assert found == example
    scope = {name: value for name, value in found.items() if "[" not in name}
    scope |= {"worker.labels": {"tier": found['worker.labels["tier"]']}} if 'worker.labels["tier"]' in found else {}
    assert RULES.test(Expression(text=first), {"pools.decode.waiting": 99.0, **scope}) is True
    assert RULES.test(Expression(text=second), scope) is True


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("pools.prefill.waiting > 30", "pools.prefill.waiting < 5"),
        ("pools.prefill.waiting > 30", "pools.prefill.waiting < 31"),  # waiting requests are whole
        ("pools.prefill.waiting > 30", "!(pools.prefill.waiting > 30)"),
        ("pools.decode.kvUsage > 0.9", "pools.decode.kvUsage > 1.0"),  # a share
        ("pools.decode.waiting > 3", "pools.decode.waiting < 0"),
        ("worker.incarnation > 2", "worker.incarnation < 4 && worker.incarnation != 3"),
        ('worker.role == "decode"', 'worker.role in ["prefill"]'),
        ('worker.role != "decode"', 'worker.role != "prefill"'),
        ('worker.labels["tier"] == "gold"', 'worker.labels["tier"] == "silver"'),
        ("node.noticed", "!node.noticed"),
        ("pools.prefill.waiting > 30", "pools.prefill.workers == 0"),  # nobody is there to have requests waiting
        ("metrics.p95 > 2.0", "metrics.p50 < 1.0"),  # nobody knows what ties them
        ("worker.waiting > 10", "pool.waiting < 5"),  # a pool's figure is at least its worker's
        ("pools.prefill.waiting > pools.decode.waiting", "pools.prefill.waiting > 1"),
        ("pools.prefill.waiting * 2.0 > 5.0", "pools.prefill.waiting > 1"),
        ('worker.id.startsWith("a")', 'worker.id == "ab"'),
        ("has(worker.labels.tier)", 'worker.labels["tier"] == "gold"'),
        ("nonsense >", "pools.prefill.waiting > 1"),
    ],
)
def test_nothing_is_claimed_of_conditions_that_exclude_each_other_or_are_not_understood(first, second):
    assert together(first, second) is None
    assert together(second, first) is None


def test_a_condition_with_too_many_cases_is_left_alone():
    pair = "(pools.prefill.waiting > {0} || pools.decode.waiting > {0})"
    assert len(boxes(" && ".join(pair.format(n) for n in range(6)))) == 64
    assert boxes(" && ".join(pair.format(n) for n in range(7))) == ()


NUMBERS = st.sampled_from(["0", "1", "2", "3.0", "-1", "0.5"])
ATOMS = st.one_of(
    st.builds(lambda v, o, n: f"{v} {o} {n}", st.sampled_from(["pools.prefill.waiting", "pools.decode.kvUsage"]), st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), NUMBERS),  # noqa: E501
    st.builds(lambda v, o, n: f"{n} {o} {v}", st.sampled_from(["pools.prefill.workers"]), st.sampled_from(["<", ">=", "!="]), st.sampled_from(["0", "2"])),  # noqa: E501
    st.sampled_from(["true", "false", "pools.prefill.waiting > pools.decode.waiting"]),
)  # fmt: skip
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(CONDITIONS, CONDITIONS)
def test_every_witness_makes_both_conditions_true(first, second):
    found = together(first, second)
    if found is not None:
        free = {"pools.prefill.waiting": 0.0, "pools.decode.waiting": 0.0, "pools.decode.kvUsage": 0.0, "pools.prefill.workers": 0}
        for text in (first, second):
            assert RULES.test(Expression(text=text), free | found) is True, (text, found)


def test_the_tree_of_an_expression():
    assert syntax('-1 < worker.incarnation || worker.id in ["a"]') == Call(
        "_||_",
        (
            Call("_<_", (Constant(-1), Name("worker.incarnation"))),
            Call("@in", (Name("worker.id"), Listed((Constant("a"),)))),
        ),
    )
    assert syntax("pools.decode.kvUsage > 0.5") == Call("_>_", (Name("pools.decode.kvUsage"), Constant(0.5)))
