"""Tables and columns, and the places where arrays and CEL could part: overflow, division, NaN, patterns, unknowns."""

import math

import numpy as np
import pytest
from shunter.lang.cel import CelRules
from shunter.lang.columns import Column, ColumnRules, Table, tables
from shunter.lang.columns import text as texts
from shunter.model.expression import Expression, Undecided
from shunter.model.sample import Known, Missing, Stale
from shunter.model.vocabulary import Kind

COLUMNS, RULES = ColumnRules(), CelRules()


def test(text, table):
    answers = COLUMNS.test_all(Expression(text=text), table)
    assert answers.dtype == np.int8
    alone = [COLUMNS.explain(Expression(text=text), table, row) for row in range(table.size)]
    assert answers.tolist() == [-1 if isinstance(a, Undecided) else int(a) for a in alone], alone
    return "".join("?FT"[answer + 1] for answer in answers.tolist())


test.__test__ = False


def ints(*values, **more):
    return Table.of({"worker.images": Column.ints(values)} | more, len(values))


def doubles(*values):
    return Table.of({"worker.kvUsage": Column.doubles(values)}, len(values))


def strings(*values):
    return Table.of({"worker.id": Column.strings(values)}, len(values))


MOST, LEAST = 2**63 - 1, -(2**63)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("worker.images + 1 > 0", (MOST, MOST - 1, -1, 0), "?TFT"),
        ("worker.images - 1 < 0", (LEAST, LEAST + 1, 0, 1), "?TTF"),
        ("-worker.images > 0", (LEAST, -MOST, 0, -1), "?TFT"),
        ("worker.images * 2 > 0", (2**62, 2**62 - 1, -(2**62), -(2**62) - 1), "?TF?"),
        ("worker.images * worker.images == 1", (3037000500, 3037000499, -1, LEAST), "?FT?"),
        ("worker.images / 2 == -3", (-7, -6, -5, 7), "TTFF"),
        ("worker.images % 3 == -1", (-7, 7, -1, 2), "TFTF"),
        ("6 / worker.images == 3", (0, 2, 3, -2), "?TFF"),
        ("6 % worker.images == 0", (0, 2, 4, -3), "?TFT"),
        ("worker.images / -1 > 0", (LEAST, -MOST, 1, 0), "?TFF"),
        ("worker.images % -1 == 0", (LEAST, 5, 0, -5), "?TTT"),
        ("worker.images > 9007199254740992.0", (2**53, 2**53 + 1, 2**53 + 2, 1), "FFTF"),
        ("worker.images == 9007199254740992.0", (2**53, 2**53 + 1, 2**53 + 2, 1), "TTFF"),
        ("worker.images == 9007199254740993", (2**53, 2**53 + 1, 2**53 + 2, 1), "FTFF"),
        ("worker.images in [9007199254740993, -1]", (2**53, 2**53 + 1, -1, 1), "FTTF"),
        ("double(worker.images) == 3.0", (3, 2, LEAST, MOST), "TFFF"),
        ("true || worker.images + 1 > 0", (MOST, 1), "TT"),
        ("worker.images + 1 > 0 && false", (MOST, 1), "FF"),
        ("(worker.images > 5 ? worker.images + 1 : 0) == 0", (MOST, 1, 7), "?TF"),
    ],
)
def test_whole_numbers(text, values, expected):
    assert test(text, ints(*values)) == expected
    assert COLUMNS.columnar(Expression(text=text))


NAN = "(worker.kvUsage * 1.0e308 * 10.0 - worker.kvUsage * 1.0e308 * 10.0)"


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        (f"{NAN} == {NAN}", (0.0, 10.0), "T?"),
        (f"{NAN} != {NAN}", (0.0, 10.0), "F?"),
        (f"{NAN} <= 1 || {NAN} > 1", (0.0, 10.0), "T?"),
        (f"{NAN} <= 1 || true", (0.0, 10.0), "TT"),
        ("worker.kvUsage * 1e308 > 1.0", (1.0, 10.0, -10.0), "T??"),
        ("1.0 / (worker.kvUsage * 1e308) >= 0.0", (1.0, 10.0), "T?"),
        ("(worker.kvUsage > 1.0 ? worker.kvUsage * 1e308 : 0.5) < 1.0", (1.0, 10.0), "T?"),
        ("worker.kvUsage < 1e999", (1.0,), "?"),
        (f"int({NAN}) == 0", (0.0, 10.0), "T?"),
        ("1.0 / worker.kvUsage > 0.0", (0.0, -0.0, 2.0), "??T"),
        ("worker.kvUsage / 0.0 > 1.0", (0.0, -1.0, 2.0), "???"),
        ("worker.kvUsage != 0.0 && 1.0 / worker.kvUsage > 1.0", (0.0, 0.5, 2.0), "FTF"),
        ("worker.kvUsage == 0.0 || 1.0 / worker.kvUsage > 1.0", (0.0, 0.5, 2.0), "TTF"),
        ("int(worker.kvUsage) == -2", (-2.9, -2.0, -3.0, 1e300), "TTF?"),
        ("int(worker.kvUsage) > 9223372036854770000", (9.223372036854775e18, 9.3e18, -9.3e18), "T??"),
        ("worker.kvUsage in [0.5, 0.0]", (0.5, -0.0, 1.0), "TTF"),
        ("worker.kvUsage < 1", (0.5, 1.0, math.nan, math.inf), "TF??"),
        ("worker.kvUsage < 1 || true", (0.5, math.nan), "TT"),
    ],
)
def test_doubles(text, values, expected):
    assert test(text, doubles(*values)) == expected
    assert COLUMNS.columnar(Expression(text=text))


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ('worker.id.matches("^a+$")', ("aa", "b", "a\n", None), "TFF?"),
        (r'worker.id.matches("\\d")', ("1", "\u0661"), "TF"),
        ('worker.id.matches("(?<=a)b")', ("ab", "b"), "??"),
        ('worker.id == "x" || worker.id.matches("(")', ("x", "y"), "T?"),
        ("size(worker.id) == 2", ("éé", "😀😀", "e\u0301e\u0301", "ab"), "TTFT"),
        ('worker.id < "\uff5a"', ("😀", "a", "\uff5a", ""), "FTFT"),
        ('"\uff5a" > worker.id', ("😀", "a", "\uff5a", ""), "FTFT"),
        ('worker.id + "x" == "ax"', ("a", "b", None), "TF?"),
        ('worker.id in ["a", "", "q"]', ("a", "b", "", None), "TFT?"),
        ("worker.id in []", ("a", None), "F?"),
        ('worker.id.contains("")', ("a", ""), "TT"),
        ('"abc".endsWith(worker.id)', ("c", "bc", "b", ""), "TTFT"),
        ("double(worker.id) > 1.0", ("2.5", "x", "1", ""), "T?F?"),
        ("int(worker.id) > 1", ("2", "2.5", "-7", "99999999999999999999"), "T?F?"),
        ("bool(worker.id)", ("true", "false", "x", None), "TF??"),
        ('string(worker.id) != "a"', ("a", "b"), "FT"),
    ],
)
def test_texts(text, values, expected):
    assert test(text, strings(*values)) == expected
    assert COLUMNS.columnar(Expression(text=text))


def test_lists_of_mixed_types_are_left_to_cel():
    table = Table.of(
        {"worker.id": Column.strings(["1", "a"]), "worker.images": Column.ints([3, 2]), "worker.kvUsage": Column.doubles([1, 2])}, 2
    )
    for text, expected in (
        ('worker.id in ["a", 1]', "FT"),
        ('worker.images in [3.5, 3.0, "x"]', "TF"),
        ("worker.images in [2.5, 9007199254740993]", "FF"),
        ('worker.kvUsage in [1, "x"]', "TF"),
        ("worker.images in [worker.images, 2]", "TT"),
    ):
        assert test(text, table) == expected
        assert not COLUMNS.columnar(Expression(text=text))


def test_two_texts():
    table = Table.of({"worker.node": Column.strings(["a", "b", None, "é"]), "node.id": Column.strings(["a", "c", "a", "e"])}, 4)
    assert test("worker.node == node.id", table) == "TF?F"
    assert test("worker.node <= node.id", table) == "TT?F"
    assert test('(worker.node == "a" ? "c" : node.id) == "c"', table) == "TT?F"
    assert test("worker.node.startsWith(node.id)", table) == "TF?F"


def test_labels():
    maps = [{"tier": "1"}, {}, None, {"tier": "x", "gpu-count": "8"}]
    table = Table.of({"worker.labels": Column.labels(maps)}, 4)
    assert test("has(worker.labels.tier)", table) == "TF?T"
    assert test('worker.labels["tier"] == "1"', table) == "T??F"
    assert test('"gpu-count" in worker.labels && worker.labels["gpu-count"] == "8"', table) == "FF?T"
    assert test("has(worker.labels.tier) ? int(worker.labels.tier) == 1 : true", table) == "TT??"
    assert test("size(worker.labels) == 1", table) == "TF?F"
    assert test('worker.labels == {"tier": "1"}', table) == "TF?F"
    assert not COLUMNS.columnar(Expression(text='worker.labels == {"tier": "1"}'))


def test_a_single_row_stands_for_all():
    table = Table.of({"pool.waiting": Column.doubles([7.0]), "worker.kvUsage": Column.doubles([0.1, 0.9])}, 2)
    assert test("pool.waiting > 5", table) == "TT"
    assert test("pool.waiting > 5 && worker.kvUsage > 0.5", table) == "FT"
    assert test("[pool.waiting].exists(x, x > 5.0)", table) == "TT"
    values, known = COLUMNS.measure_all(Expression(text="pool.waiting"), table)
    assert (values.tolist(), known.tolist()) == ([7.0, 7.0], [True, True])


def test_what_gives_no_answer_anywhere():
    table = doubles(0.5, 0.7)
    for text in ("worker.kvUsage", '"x"', "worker.kvUsge > 1", "worker.running > 1", ""):
        assert test(text, table) == "??"
    for text in ("worker.kvUsage > 1", '"x"', "worker.kvUsge", "1.0 / 0.0"):
        values, known = COLUMNS.measure_all(Expression(text=text), table)
        assert (values.tolist(), known.tolist()) == ([0.0, 0.0], [False, False])


@pytest.mark.parametrize("text", ["worker.kvUsage < 1", "true", "[1].exists(x, x > worker.images)", 'worker.id.matches("a")'])
def test_no_subjects(text):
    for table in (Table.of({}, 0), Table.of_scopes([]), Table.of({"worker.id": Column.strings([])}, 0)):
        assert COLUMNS.test_all(Expression(text=text), table).shape == (0,)


def test_numbers():
    table = Table.of_scopes([{"worker.images": n, "worker.kvUsage": k} for n, k in ((2**53 + 1, 0.5), (MOST, math.nan), (-7, 1.0))])
    for text in ("worker.images", "worker.images * 2", "worker.kvUsage / 3.0", "worker.images > 0 ? 1.0 : worker.kvUsage"):
        values, known = COLUMNS.measure_all(Expression(text=text), table)
        for row in range(3):
            alone = COLUMNS.explain_measure(Expression(text=text), table, row)
            assert known[row] == (not isinstance(alone, Undecided))
            assert values[row] == (0.0 if isinstance(alone, Undecided) else alone)


def test_values_that_are_not_of_their_kind_are_unknown():
    assert Column.of(Kind.DOUBLE, [1, True, "x", math.nan, None]).known.tolist() == [True, False, False, False, False]
    assert Column.of(Kind.INT, [3.0, 3.5, 2**63, -(2**63)]).known.tolist() == [True, False, False, True]
    assert Column.of(Kind.STRING, ["a", 1, "\ud800"]).known.tolist() == [True, False, False]
    assert Column.of(Kind.BOOL, [True, 1]).known.tolist() == [True, False]
    assert Column.of(Kind.LABELS, [{"a": "b"}, {"a": 1}, "x"]).known.tolist() == [True, False, False]


def test_an_array_of_known_doubles_is_not_copied():
    array = np.array([0.1, 0.2])
    assert np.shares_memory(Column.doubles(array).numbers().values, array)
    assert not np.shares_memory(Column.doubles(array, np.array([True, False])).numbers().values, array)


def test_reasons_are_asked_for_only_when_explaining():
    asked = []

    def why(row):
        asked.append(row)
        return Missing(reason=f"no series for worker {row}")

    table = Table.of({"worker.kvUsage": Column.doubles([0.1, 0.2, 0.3], np.array([True, False, False]), why)}, 3)
    expression = Expression(text="worker.kvUsage < 0.5")
    assert COLUMNS.test_all(expression, table).tolist() == [1, -1, -1]
    assert asked == []
    assert COLUMNS.explain(expression, table, 2) == Undecided(inputs=(("worker.kvUsage", "no series for worker 2"),))
    assert asked == [2]


def test_explanations_keep_each_value_s_own_reason():
    stale = Stale(value=1.0, age=90.0, max_age=30.0, query="q")
    scopes = [{"worker.kvUsage": v} for v in (Missing(reason="NaN"), stale, math.nan, Known(value=0.1, unit="", at=0.0, query="q"))] + [{}]
    expression = Expression(text="worker.kvUsage < 0.5")
    tables_of_both_ways = (
        Table.of_scopes(scopes),
        Table.of({"worker.kvUsage": Column.of(Kind.DOUBLE, [s.get("worker.kvUsage") for s in scopes])}, 5),
    )
    for table in tables_of_both_ways:
        for row, scope in enumerate(scopes):
            assert COLUMNS.explain(expression, table, row) == RULES.test(expression, scope)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Table.of({"worker.kvUsage": Column.doubles([1.0, 2.0])}, 3),
        lambda: Table.of({"worker.kvUsage": Column.ints([1])}, 1),
        lambda: Table.of({"worker.kvUsge": Column.doubles([1.0])}, 1),
        lambda: Column.ints([1.5]),
        lambda: Column.ints(np.array([1], dtype=np.uint64)),
        lambda: Column.bools([1, 0]),
        lambda: Column.doubles([[1.0]]),
        lambda: Column.doubles([1.0, 2.0], np.array([True])),
        lambda: Column.coded([2], ["a", "b"]),
        lambda: Column.coded([-1], ["a", "b"]),
        lambda: Column.coded([0], ["\ud800"]),
    ],
)
def test_what_cannot_be_a_column(make):
    with pytest.raises(ValueError):
        make()


def test_a_row_outside_the_table():
    for row in (-1, 2):
        with pytest.raises(IndexError):
            COLUMNS.explain(Expression(text="worker.kvUsage < 1"), doubles(0.5, 0.6), row)


def test_answers_are_the_caller_s_own():
    table = strings("a", "b")
    first = COLUMNS.test_all(Expression(text='worker.id == "a"'), table)
    first[:] = 0
    assert test('worker.id == "a"', table) == "TF"
    flags = Table.of({"node.noticed": Column.bools([True, False])}, 2)
    COLUMNS.test_all(Expression(text="node.noticed"), flags)[:] = 0
    assert test("node.noticed", flags) == "TF"


def test_coded_texts():
    table = Table.of({"worker.role": Column.coded([0, 1, 1, 99], ["decode", "prefill"], np.array([True, True, False, False]))}, 4)
    assert test('worker.role == "prefill"', table) == "FT??"


def test_a_pattern_is_matched_once_for_each_distinct_text(monkeypatch):
    asked = []
    question = texts._question("text.matches(argument)")

    class Counting:
        def eval(self, data):
            asked.append(data["text"])
            return question.eval(data=data)

    monkeypatch.setattr(texts, "_question", lambda expression: Counting())
    pattern = Expression(text='worker.id.matches("^only-here-[0-9]$")')
    values = ["only-here-1", "x", "only-here-1", "x"] * 50
    assert COLUMNS.test_all(pattern, strings(*values)).tolist() == [1, 0] * 100
    assert COLUMNS.test_all(pattern, strings("x", "only-here-2")).tolist() == [0, 1]
    assert asked == ["only-here-1", "x", "only-here-2"]


def test_what_is_remembered_of_patterns_is_bounded(monkeypatch):
    monkeypatch.setattr(texts, "_REMEMBERED", 10)
    monkeypatch.setattr(texts, "_answers", {})
    for n in range(8):
        assert test(f'worker.id.matches("[{n}]")', strings("0", "1", "2", None)) == "".join("FT"[k == n] for k in range(3)) + "?"
        assert sum(map(len, texts._answers.values())) <= 10
    many = [str(k) for k in range(30)]
    assert test('worker.id.matches("^1")', strings(*many)) == "".join("FT"[k[0] == "1"] for k in many)


def test_row_by_row_asks_once_for_the_same_inputs(monkeypatch):
    asked = []
    rules = CelRules.test

    def counting(self, expression, scope):
        asked.append(dict(scope))
        return rules(self, expression, scope)

    monkeypatch.setattr(CelRules, "test", counting)
    table = Table.of({"worker.kvUsage": Column.doubles([0.0, -0.0, 0.0, 1.0, math.nan, math.nan])}, 6)
    expression = Expression(text="[1.0 - worker.kvUsage].all(x, x > 0.0)")
    assert COLUMNS.test_all(expression, table).tolist() == [1, 1, 1, 0, -1, -1]
    assert len(asked) == 4


def test_what_a_table_keeps_is_bounded(monkeypatch):
    monkeypatch.setattr(tables, "_KEPT_BYTES", 10_000)
    table = strings("a", "b", None)
    for _ in range(2):
        for word in "abcdefghijklmnopqrstuvwxyz":
            assert test(f'worker.id == "{word}"', table) == ("T" if word == "a" else "F") + ("T" if word == "b" else "F") + "?"
    assert len(table._derived) < 20


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "==", "!="])
def test_a_text_on_the_left(sign):
    values = ("a", "b", "c", None)
    for text in (f'"b" {sign} worker.id', f'worker.id {sign} "b"'):
        left, right = (["b"] * 4, values) if text[0] == '"' else (values, ["b"] * 4)
        expected = "".join("?" if None in pair else "FT"[eval(f"{pair[0]!r} {sign} {pair[1]!r}")] for pair in zip(left, right, strict=True))
        assert test(text, strings(*values)) == expected


def test_one_text_in_many_functions():
    """What is kept with a table is kept for one function and one argument."""
    table = strings("ab", "b", "ba", "x", None)
    assert test('worker.id == "b"', table) == "FTFF?"
    assert test('worker.id != "b"', table) == "TFTT?"
    assert test('worker.id.startsWith("b")', table) == "FTTF?"
    assert test('worker.id.endsWith("b")', table) == "TTFF?"
    assert test('worker.id.contains("b")', table) == "TTTF?"
    assert test('worker.id.matches("b")', table) == "TTTF?"
    assert test('worker.id in ["b"]', table) == "FTFF?"
    assert test('worker.id in ["b", "x"]', table) == "FTFT?"
    assert test('worker.id > "b"', table) == "FFTT?"


def test_long_chains_and_deep_nesting_are_columnar():
    table = doubles(0.5, 2.0, math.nan)
    deep = "worker.kvUsage < 1.0"
    for _ in range(12):
        deep = f"!({deep} || false)"
    assert COLUMNS.columnar(Expression(text=deep))
    assert test(deep, table) == "TF?"
    chain = " && ".join(f"worker.kvUsage < {n}.0" for n in range(1, 150))
    assert COLUMNS.columnar(Expression(text=chain))
    assert test(chain, table) == "TF?"
