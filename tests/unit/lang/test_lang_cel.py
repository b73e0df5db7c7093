"""Expressions in use: truth with unknowns, the inputs that are named, and the library's traps."""

import math

import msgspec.inspect as mi
import pytest
from shunter.lang.cel import CelRules, check
from shunter.lang.check import FIELDS
from shunter.lang.reflect import struct_type
from shunter.lang.schema import KINDS
from shunter.model.expression import Expression, Undecided
from shunter.model.sample import Known, Missing, Stale
from shunter.model.vocabulary import VARIABLES, Kind

RULES = CelRules()
ALL = frozenset({name.partition(".")[0] for name in VARIABLES} | {"metrics"})
T, F, U = True, False, None


def test(text, **scope):
    return RULES.test(Expression(text=text), {k.replace("__", "."): v for k, v in scope.items()})


test.__test__ = False


def known(value):
    return Known(value=value, unit="", at=0, query="q")


TRUTH = [
    # a, b, a && b, a || b
    (T, T, T, T), (T, F, F, T), (T, U, U, T),
    (F, T, F, T), (F, F, F, F), (F, U, F, U),
    (U, T, U, T), (U, F, F, U), (U, U, U, U),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "both", "either"), TRUTH)
@pytest.mark.parametrize("unknown", [Missing(reason="NaN"), Stale(value=1, age=90, max_age=30, query="q"), None])
def test_three_valued_truth(a, b, both, either, unknown):
    scope = {}
    for name, value in (("worker.kvUsage", a), ("worker.waiting", b)):
        if value is not None:
            scope[name] = known(1.0 if value else 0.0)
        elif unknown is not None:
            scope[name] = unknown
    for sign, expected in (("&&", both), ("||", either)):
        answer = RULES.test(Expression(text=f"worker.kvUsage > 0.5 {sign} worker.waiting > 0.5"), scope)
        if expected is None:
            assert isinstance(answer, Undecided)
            assert answer.error == ""
            assert [name for name, _ in answer.inputs] == [n for n, v in (("worker.kvUsage", a), ("worker.waiting", b)) if v is None]
        else:
            assert answer is expected


def test_each_unknown_says_why():
    stale = Stale(value=0.5, age=90, max_age=30, query="q")
    answer = test(
        "worker.kvUsage > 0.5 && worker.waiting > 1 && worker.imageAge > 1", worker__kvUsage=Missing(reason="NaN"), worker__waiting=stale
    )
    assert answer.inputs == (
        ("worker.imageAge", "has no value here"),
        ("worker.kvUsage", "NaN"),
        ("worker.waiting", "stale (0.5, 90 s old, at most 30 s allowed)"),
    )


def test_unknowns_that_are_not_read_are_not_named():
    assert test("worker.waiting > 1", worker__waiting=2.0, worker__kvUsage=Missing(reason="x")) is True
    answer = test("worker.waiting > 1", worker__kvUsage=Missing(reason="x"))
    assert [name for name, _ in answer.inputs] == ["worker.waiting"]


@pytest.mark.parametrize(("condition", "expected"), [(True, True), (False, Undecided)])
def test_a_branch_not_taken_may_be_unknown(condition, expected):
    answer = test("node.noticed ? worker.waiting > 1 : worker.kvUsage > 0.5", node__noticed=condition, worker__waiting=2.0)
    assert answer is True if expected is True else isinstance(answer, Undecided)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "0.1", True, {}])
def test_what_is_not_a_number_is_unknown_and_never_satisfies_anything(bad):
    for text in ("worker.kvUsage < 0.2", "worker.kvUsage > 0.2", "worker.kvUsage != 1", "!(worker.kvUsage < 0.2)"):
        answer = test(text, worker__kvUsage=bad)
        assert isinstance(answer, Undecided)
        assert answer.inputs[0][0] == "worker.kvUsage"


@pytest.mark.parametrize("bad", [2.5, 2**63, -(2**63) - 1, "1", None])
def test_what_is_not_a_whole_number_is_unknown(bad):
    assert isinstance(test("worker.images >= 0", worker__images=bad), Undecided)


def test_whole_numbers_and_doubles_compare_freely():
    scope = {"worker__kvTokens": 60, "worker__images": known(3.0)}
    for text in (
        "worker.kvTokens > 50",
        "worker.images < 3.5",
        "worker.kvTokens == 60",
        "60 != worker.images",
        "worker.images <= worker.kvTokens",
    ):
        assert test(text, **scope) is True, text
        assert check(text, "bool", ALL, frozenset()) == ()
    assert test("worker.images == 3.5", **scope) is False


def test_labels_are_the_one_thing_that_has_works_on():
    assert test("has(worker.labels.tier) && worker.labels.tier == 'gold'", worker__labels={"tier": "gold"}) is True
    assert test("has(worker.labels.tier)", worker__labels={}) is False
    answer = test("worker.labels['tier'] == 'gold'", worker__labels={})
    assert isinstance(answer, Undecided)
    assert "tier" in answer.error
    assert [n for n, _ in test("has(worker.labels.tier)").inputs] == ["worker.labels"]


@pytest.mark.parametrize(
    "text", ["true // has(worker.role)", "worker.id == 'has(worker.role)'", 'worker.id != r"\\d" || worker.id == "has(worker.role)"']
)
def test_has_in_a_comment_or_a_text_is_nothing(text):
    assert check(text, "bool", ALL, frozenset()) == ()


@pytest.mark.parametrize("text", ["1 / 0 > 0", "worker.id.matches('[')", "int(worker.id) > 0", "9223372036854775807 + worker.images > 0"])
def test_an_error_is_never_false_and_never_true(text):
    for expression in (text, f"!({text})"):
        answer = test(expression, worker__id="w", worker__images=1)
        assert isinstance(answer, Undecided)
        assert answer.error
        assert answer.inputs == ()


def test_numbers():
    def measure(text, **scope):
        return RULES.measure(Expression(text=text), {k.replace("__", "."): v for k, v in scope.items()})

    assert measure("-worker.kvTokens", worker__kvTokens=known(5.0)) == -5.0
    assert measure("worker.images + 1", worker__images=2) == 3.0
    assert isinstance(measure("worker.images", worker__images=2), float)
    assert "not a finite number" in measure("1e308 * 10.0").error
    for text in ("worker.kvTokens / 0.0", "0.0 / 0.0", "1.0 / (0.0 / 2.0)", "worker.images / (worker.images - 2)"):
        assert measure(text, worker__kvTokens=1.0, worker__images=2).error == "it divides by zero"
    assert "bool" in measure("true").error
    assert measure("worker.kvTokens").inputs == (("worker.kvTokens", "has no value here"),)


def test_a_result_of_another_type_is_undecided():
    assert "str" in test("worker.id", worker__id="false").error
    assert "float" in test("worker.kvUsage", worker__kvUsage=1.0).error


def test_what_does_not_compile_is_undecided_too():
    answer = test("worker.kvUsge > 1")
    assert isinstance(answer, Undecided)
    assert answer.error
    assert RULES.inputs(Expression(text="worker.kvUsge > 1")) == ()


def test_inputs_are_the_variables_that_are_read():
    text = (
        "'worker.id' == worker.role // worker.node\n && metrics.w > 1 && worker.labels.exists(k, k == 'a') && has(node.labels.x) && now > 0"
    )
    assert RULES.inputs(Expression(text=text)) == ("metrics.w", "node.labels", "now", "worker.labels", "worker.role")


def test_every_variable_can_be_bound_and_unbound():
    values = {Kind.STRING: "x", Kind.INT: 1, Kind.DOUBLE: 1.0, Kind.BOOL: True, Kind.LABELS: {"a": "b"}}
    for name, variable in VARIABLES.items():
        expression = Expression(text=f"{name} == {name}")
        assert check(expression.text, "bool", ALL, frozenset()) == ()
        assert RULES.test(expression, {name: values[variable.kind]}) is True
        assert RULES.inputs(expression) == (name,)
        assert [n for n, _ in RULES.test(expression, {}).inputs] == [name]
        assert check(f"has({name})", "bool", ALL, frozenset())[0].code == "SH135"


def test_every_expression_of_every_kind_has_a_scope():
    """A new Expression field in the model must be given its scope here, or policies that use it would fail."""

    def paths(struct, path=()):
        for field in struct.fields:
            for part in field.type.types if isinstance(field.type, mi.UnionType) else (field.type,):
                if isinstance(part, mi.StructType) and part.cls is Expression:
                    yield ".".join((*path, field.encode_name))
                elif isinstance(part, mi.StructType):
                    yield from paths(part, (*path, field.encode_name))

    specs = {kind: next(f.type for f in struct_type(cls).fields if f.name == "spec") for kind, cls in KINDS.items()}
    expected = {(kind, path) for kind, spec in specs.items() for path in paths(spec)}
    assert set(FIELDS) == expected
    assert ("RebalancePolicy", "to.prefer") in expected
