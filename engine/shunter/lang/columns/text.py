"""CEL's functions of text, run once for each distinct text and not once for each row.

What Python's strings do exactly as CEL's (code points, no locale) is done by them; patterns and conversions are asked of CEL itself.
"""

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, Final

import numpy as np
from cel_expr_python import cel  # type: ignore[import-untyped]

from shunter.lang.columns.logic import union
from shunter.lang.columns.tables import Table
from shunter.lang.columns.vectors import Bools, Codes, Dictionary, Figures, Mask, Numbers, Words, both, decided

PREDICATES: Final[dict[str, Callable[[str, str], bool]]] = {
    "_==_": operator.eq,
    "_!=_": operator.ne,
    "_<_": operator.lt,
    "_<=_": operator.le,
    "_>_": operator.gt,
    "_>=_": operator.ge,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": operator.contains,
}
MIRRORED: Final = {"_==_": "_==_", "_!=_": "_!=_", "_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_"}
"""The comparison that says the same with its sides exchanged."""
_ORDERED: Final = {"_<_": np.less, "_<=_": np.less_equal, "_>_": np.greater, "_>=_": np.greater_equal}
_DTYPES: Final[dict[str, type[np.float64 | np.int64]]] = {"double": np.float64, "int": np.int64}
_REMEMBERED: Final = 1_000_000
"""Answers of CEL that are kept, at about 100 bytes each."""


def predicate(table: Table, function: str, a: Words, argument: str) -> Bools:
    """`a == "x"`, `a.startsWith("x")`, `a.matches("x")`, ...: kept with the table when `a` is a variable or a label."""

    def run() -> Bools:
        if function == "matches":
            answers = _asked("text.matches(argument)", a.dictionary, argument)
            return decided(np.array([answer is True for answer in answers], dtype=np.bool_)[a.codes], _answered(answers, a))
        return decided(_judged(function, a.dictionary, argument)[a.codes], a.known)

    return table.derived((a.name, function, argument), run) if a.name else run()


def _judged(function: str, dictionary: Dictionary, argument: str) -> Mask:
    """The answer for each distinct text."""
    if function in ("_==_", "_!=_"):
        true = np.full(len(dictionary.words), function == "_!=_", dtype=np.bool_)
        if argument in dictionary.index:
            true[dictionary.index[argument]] = function == "_==_"
        return true
    test = PREDICATES[function]
    return np.array([test(word, argument) for word in dictionary.words], dtype=np.bool_)


def is_member(table: Table, a: Words, items: tuple[str, ...]) -> Bools:
    """Whether a text is one of some literals."""

    def run() -> Bools:
        true = np.zeros(len(a.dictionary.words), dtype=np.bool_)
        true[[a.dictionary.index[item] for item in items if item in a.dictionary.index]] = True
        return decided(true[a.codes], a.known)

    return table.derived((a.name, "in", items), run) if a.name else run()


def compare(function: str, a: Words, b: Words) -> Bools:
    """A comparison of, or a search in, two texts that both vary."""
    known = both(a.known, b.known)
    if function in ("_==_", "_!=_"):
        _, place = union(a.dictionary, b.dictionary)
        return decided((np.equal if function == "_==_" else np.not_equal)(a.codes, place[b.codes]), known)
    if function in _ORDERED:
        dictionary, place = union(a.dictionary, b.dictionary)
        rank = np.empty(len(dictionary.words), dtype=np.intp)
        rank[[dictionary.index[word] for word in sorted(dictionary.words)]] = np.arange(len(dictionary.words))
        return decided(_ORDERED[function](rank[a.codes], rank[place[b.codes]]), known)
    pairs, codes = _pairs(a, b)
    test = PREDICATES[function]
    return decided(np.array([test(x, y) for x, y in pairs], dtype=np.bool_)[codes], known)


def join(a: Words, b: Words) -> Words:
    """`a + b`."""
    pairs, codes = _pairs(a, b)
    seen: dict[str, int] = {}
    place = np.array([seen.setdefault(x + y, len(seen)) for x, y in pairs], dtype=np.intp)
    return Words(place[codes], Dictionary(tuple(seen)), both(a.known, b.known))


def _pairs(a: Words, b: Words) -> tuple[list[tuple[str, str]], Codes]:
    """The distinct pairs of texts, at least one, and the position of each row's pair."""
    width = len(b.dictionary.words)
    distinct, codes = np.unique(a.codes * width + b.codes, return_inverse=True)
    pairs = [(a.dictionary.words[pair // width], b.dictionary.words[pair % width]) for pair in distinct.tolist()]
    return pairs or [("", "")], codes


def length(a: Words) -> Numbers:
    """`size(a)`, in code points."""
    return Numbers(np.array([len(word) for word in a.dictionary.words], dtype=np.int64)[a.codes], a.known)


def to_number(kind: str, a: Words) -> Numbers:
    """`double(a)` or `int(a)`: unknown where the text isn't one."""
    answers = [answer if answer is not None and isfinite(answer) else None for answer in _asked(f"{kind}(text)", a.dictionary, "")]
    values: Figures = np.array([answer or 0 for answer in answers], dtype=_DTYPES[kind])
    return Numbers(values[a.codes], _answered(answers, a))


def to_truth(a: Words) -> Bools:
    """`bool(a)`: unknown where the text isn't one."""
    answers = _asked("bool(text)", a.dictionary, "")
    return decided(np.array([answer is True for answer in answers], dtype=np.bool_)[a.codes], _answered(answers, a))


def _answered(answers: Sequence[Any], a: Words) -> Mask | None:
    return both(a.known, np.array([answer is not None for answer in answers], dtype=np.bool_)[a.codes])


# -- what CEL is asked


@lru_cache(maxsize=8)
def _question(expression: str) -> Any:  # noqa: ANN401  (cel.Expression; the library has no types)
    return cel.NewEnv(variables={"text": cel.Type.STRING, "argument": cel.Type.STRING}).compile(expression)


_answers: Final[dict[tuple[str, str], dict[str, Any]]] = {}
"""By question and argument, then by text, over all tables: a worker's name doesn't change from tick to tick."""


def _asked(expression: str, dictionary: Dictionary, argument: str) -> Sequence[Any]:
    """CEL's answer for each text; None for an error."""
    answers = _answers.setdefault((expression, argument), {})
    unasked = [word for word in dictionary.words if word not in answers]
    if unasked and sum(map(len, _answers.values())) + len(unasked) > _REMEMBERED:
        _answers.clear()
        answers, unasked = _answers.setdefault((expression, argument), {}), list(dictionary.words)
    question = _question(expression)
    for word in unasked:
        result = question.eval(data={"text": word, "argument": argument})
        answers[word] = None if result.type() == cel.Type.ERROR else result.value()
    return [answers[word] for word in dictionary.words]
