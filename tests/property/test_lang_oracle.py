"""Evaluation against two judges: Kleene's three-valued logic written out here, and cel-python where it keeps to the specification."""

import importlib
import sys
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.lang.cel import CelRules, check
from shunter.model.expression import Expression, Undecided
from shunter.model.sample import Known, Missing, Stale

RULES = CelRules()
METRICS = ("worker.kvUsage", "worker.waiting", "worker.running")
VALUES = (-1.0, 0.0, 0.25, 1.0, 3.5)
SIGNS = ("<", "<=", ">", ">=", "==", "!=")

numbers = st.sampled_from([("variable", name) for name in METRICS]) | st.sampled_from([("constant", v) for v in VALUES])
numbers = st.recursive(numbers, lambda n: st.tuples(st.sampled_from(["+", "-", "*"]), n, n), max_leaves=3)
atoms = st.tuples(st.sampled_from(SIGNS), numbers, numbers) | st.sampled_from(
    [("label", "a"), ("label", "b"), ("role", "decode"), ("role", "x")]
)
booleans = st.recursive(
    atoms,
    lambda b: st.tuples(st.sampled_from(["&&", "||"]), b, b) | st.tuples(st.just("!"), b) | st.tuples(st.just("?"), b, b, b),
    max_leaves=8,
)
scopes = st.fixed_dictionaries(
    {name: st.sampled_from([*VALUES, None]) for name in (*METRICS,)} | {"worker.labels": st.sampled_from([{}, {"a": "1"}, None])}
)


def written(tree: Any) -> str:
    match tree:
        case ("variable", name):
            return name
        case ("constant", value):
            return f"({value})"
        case ("label", key):
            return f"has(worker.labels.{key})"
        case ("role", role):
            return f'worker.role == "{role}"'
        case ("!", inner):
            return f"!({written(inner)})"
        case ("?", a, b, c):
            return f"(({written(a)}) ? ({written(b)}) : ({written(c)}))"
        case (sign, a, b):
            return f"({written(a)} {sign} {written(b)})"
    raise AssertionError(tree)


def number(tree: Any, scope: dict[str, Any]) -> float | None:
    match tree:
        case ("variable", name):
            return scope[name]
        case ("constant", value):
            return value
    a, b = number(tree[1], scope), number(tree[2], scope)
    return None if a is None or b is None else {"+": a + b, "-": a - b, "*": a * b}[tree[0]]


def kleene(tree: Any, scope: dict[str, Any]) -> bool | None:
    """What the expression must give: None when the unknown inputs leave it open."""
    match tree:
        case ("label", key):
            return None if scope["worker.labels"] is None else key in scope["worker.labels"]
        case ("role", role):
            return role == "decode"
        case ("!", inner):
            truth = kleene(inner, scope)
            return None if truth is None else not truth
        case ("?", a, b, c):
            condition = kleene(a, scope)
            return None if condition is None else kleene(b if condition else c, scope)
        case ("&&" | "||" as sign, a, b):
            decisive = sign == "||"
            both = kleene(a, scope), kleene(b, scope)
            return decisive if decisive in both else None if None in both else not decisive
    a, b = number(tree[1], scope), number(tree[2], scope)
    if a is None or b is None:
        return None
    return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}[tree[0]]


def bound(value: Any, how: int) -> Any:
    if value is not None:
        return value if isinstance(value, dict) or how % 2 else Known(value=value, unit="", at=0.0, query="q")
    return Missing(reason="NaN") if how % 2 else Stale(value=1.0, age=60.0, max_age=30.0, query="q")


def variables(tree: Any) -> set[str]:
    if tree[0] in ("variable", "label", "role"):
        return {"variable": {tree[1]}, "label": {"worker.labels"}, "role": {"worker.role"}}[tree[0]]
    return set().union(*(variables(part) for part in tree[1:] if isinstance(part, tuple)))


@given(booleans, scopes, st.integers(0, 2))
@settings(max_examples=300)
def test_truth_is_kleenes(tree, scope, how):
    expression = Expression(text=written(tree))
    faults = check(expression.text, "bool", frozenset({"worker"}), frozenset())
    assert {fault.code for fault in faults} <= {"SH136"}  # nested too deeply is the one thing that the generator can get wrong
    if faults:
        return
    given_scope = {name: bound(v, how) for name, v in scope.items() if v is not None or how < 2} | {"worker.role": "decode"}
    answer = RULES.test(expression, given_scope)
    expected = kleene(tree, scope)
    read = variables(tree)
    assert set(RULES.inputs(expression)) == read
    if expected is None:
        assert isinstance(answer, Undecided), (expression.text, scope)
        assert {name for name, _ in answer.inputs} == {name for name in read if name != "worker.role" and scope[name] is None}
        assert answer.error == ""
    else:
        assert answer is expected, (expression.text, scope)


@pytest.fixture(scope="module")
def celpy():
    """cel-python, the second implementation. It raises the recursion limit of the whole process: put back afterwards."""
    limit = sys.getrecursionlimit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("celpy", reason="cel-python is not installed: the second implementation isn't compared with")
        module.Environment()
    yield module
    sys.setrecursionlimit(limit)


@given(booleans, scopes)
@settings(max_examples=60, deadline=None)
def test_cel_python_agrees(celpy, tree, scope):
    """Only doubles are compared: its whole numbers against doubles fail, and `has` on a missing key differs from the specification."""
    text = written(tree)
    if check(text, "bool", frozenset({"worker"}), frozenset()) or "has(" in text:
        return
    ours = RULES.test(Expression(text=text), {name: v for name, v in scope.items() if v is not None} | {"worker.role": "decode"})
    types = importlib.import_module("celpy.celtypes")
    fields: dict[Any, Any] = {types.StringType("role"): types.StringType("decode")}
    for name in METRICS:
        if scope[name] is not None:
            fields[types.StringType(name.partition(".")[2])] = types.DoubleType(scope[name])
    environment = celpy.Environment()
    program = environment.program(environment.compile(text))
    try:
        theirs: Any = bool(program.evaluate({"worker": types.MapType(fields)}))
    except celpy.CELEvalError:
        theirs = None
    assert theirs == (None if isinstance(ours, Undecided) else ours), (text, scope)
