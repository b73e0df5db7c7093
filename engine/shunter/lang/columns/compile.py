"""From a checked syntax tree to functions over whole columns.

Each part of the tree becomes a function from a table to a vector, of the one type that the checker has proven. What has no exact
counterpart here (list macros, timestamps, types at run time, maps as a whole, ...) raises `NotColumnar`: CEL then answers row by row.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np

from shunter.lang.columns import arithmetic, logic, text
from shunter.lang.columns.tables import Table, kind_of
from shunter.lang.columns.vectors import Bools, Dictionary, Figures, Frame, Numbers, Words
from shunter.lang.tree import Call, Constant, Listed, Name, Presence, Tree
from shunter.model.vocabulary import Kind


class NotColumnar(Exception):
    """There is no exact counterpart on columns."""


class Truth(msgspec.Struct, frozen=True):
    """A compiled boolean part."""

    run: Callable[[Table, Frame], Bools]


class Number(msgspec.Struct, frozen=True):
    """A compiled number: `whole` for CEL's int, otherwise its double."""

    run: Callable[[Table, Frame], Numbers]
    whole: bool


class Text(msgspec.Struct, frozen=True):
    """A compiled text. `literal` is set when it is the same everywhere."""

    run: Callable[[Table, Frame], Words]
    literal: str | None = None


Part: TypeAlias = Truth | Number | Text


def compile_tree(tree: Tree) -> Part:
    """The functions for a tree, whose depth CEL's parser bounds. Raises NotColumnar."""
    match tree:
        case Constant(value=value):
            return _constant(value)
        case Name(name=name):
            return _variable(name)
        case Presence(name=name, key=key):
            return _presence(name, key)
        case Call(function="@in", arguments=(item, Listed(items=items))):
            return _member(compile_tree(item), items)
        case Call(function="@in", arguments=(Constant(value=str() as key), Name(name=name))) if _is_labels(name):
            return _presence(name, key)
        case Call(function="size", arguments=(Name(name=name),)) if _is_labels(name):
            return Number(lambda table, frame: table.label_count(name), True)
        case Call(function=function, arguments=arguments):
            return _call(function, tuple(compile_tree(argument) for argument in arguments))
    raise NotColumnar


def _constant(value: bool | int | float | str) -> Part:
    if isinstance(value, bool):
        truth = Bools(np.array([value]), np.array([not value]))
        return Truth(lambda table, frame: truth)
    if isinstance(value, str):
        words = Words(np.zeros(1, dtype=np.intp), Dictionary((value,)))
        return Text(lambda table, frame: words, value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise NotColumnar
    numbers = Numbers(np.array([value], dtype=np.int64)) if isinstance(value, int) else arithmetic.finite(np.array([value]), None)
    return Number(lambda table, frame: numbers, isinstance(value, int))


def _variable(name: str) -> Part:
    labels, bracket, rest = name.partition('["')
    if bracket:
        key = rest.removesuffix('"]')
        return Text(lambda table, frame: table.label(labels, key))
    match _kind(name):
        case Kind.DOUBLE | Kind.INT as kind:
            return Number(lambda table, frame: table.column(name).numbers(), kind is Kind.INT)
        case Kind.BOOL:
            return Truth(lambda table, frame: table.column(name).truths())
        case Kind.STRING:
            return Text(lambda table, frame: table.column(name).words(name))
        case _:
            raise NotColumnar


def _kind(name: str) -> Kind | None:
    """A variable's kind; None for other identifiers, such as the names of types."""
    try:
        return kind_of(name)
    except ValueError:
        return None


def _is_labels(name: str) -> bool:
    return _kind(name) is Kind.LABELS


def _presence(name: str, key: str) -> Truth:
    if not _is_labels(name):
        raise NotColumnar
    return Truth(lambda table, frame: table.derived((name, key, "has"), lambda: table.has_label(name, key)))


def _member(item: Part, items: tuple[Tree, ...]) -> Truth:
    """`x in [literals]`, all of the type of x."""
    literals = tuple(literal.value for literal in items if isinstance(literal, Constant))
    wanted = str if isinstance(item, Text) else bool if isinstance(item, Truth) else int if item.whole else float
    if len(literals) != len(items) or any(type(literal) is not wanted for literal in literals):
        raise NotColumnar
    match item:
        case Text(run=words):
            texts = tuple(str(literal) for literal in literals)
            return Truth(lambda table, frame: text.is_member(table, words(table, frame), texts))
        case Number(run=numbers, whole=whole):
            if whole and any(not -(2**63) <= int(literal) < 2**63 for literal in literals):
                raise NotColumnar
            array: Figures = np.array(literals, dtype=np.int64) if whole else np.array(literals, dtype=np.float64)
            return Truth(lambda table, frame: arithmetic.is_member(numbers(table, frame), array))
        case Truth(run=truth):
            each = [_constant(literal) for literal in literals]
            if len(each) != 1 or not isinstance(each[0], Truth):
                raise NotColumnar
            return _both(logic.same, Truth(truth), each[0])


def _call(function: str, arguments: tuple[Part, ...]) -> Part:
    match arguments:
        case (a,):
            return _unary(function, a)
        case (Truth() as a, Truth() as b):
            return _logical(function, a, b)
        case (Number() as a, Number() as b):
            return _numerical(function, a, b)
        case (Text() as a, Text() as b):
            return _textual(function, a, b)
        case (Truth() as test, a, b) if function == "_?_:_":
            return _conditional(test, a, b)
    raise NotColumnar


def _unary(function: str, a: Part) -> Part:
    match function, a:
        case "!_", Truth(run=truth):
            return Truth(lambda table, frame: logic.negation(truth(table, frame)))
        case "-_", Number(run=numbers, whole=whole):
            negative = arithmetic.negative_int if whole else arithmetic.negative_double
            return Number(lambda table, frame: negative(numbers(table, frame), frame), whole)
        case "size", Text(run=words):
            return Number(lambda table, frame: text.length(words(table, frame)), True)
        case (("double" | "int" | "bool" | "string"), _):
            return _conversion(function, a)
    raise NotColumnar


def _conversion(function: str, a: Part) -> Part:
    match function, a:
        case ("double", Number(whole=False)) | ("int", Number(whole=True)) | ("bool", Truth()) | ("string", Text()):
            return a
        case "double", Number(run=numbers):
            return Number(lambda table, frame: _as_double(numbers(table, frame), frame), False)
        case "int", Number(run=numbers):
            return Number(lambda table, frame: arithmetic.to_int(numbers(table, frame), frame), True)
        case (("double" | "int"), Text(run=words)):
            return Number(lambda table, frame: text.to_number(function, words(table, frame)), function == "int")
        case "bool", Text(run=words):
            return Truth(lambda table, frame: text.to_truth(words(table, frame)))
    raise NotColumnar


def _as_double(numbers: Numbers, frame: Frame) -> Numbers:
    return Numbers(arithmetic.as_double(numbers.values, frame), numbers.known)


def _both(operator: Callable[[Bools, Bools], Bools], a: Truth, b: Truth) -> Truth:
    left, right = a.run, b.run
    return Truth(lambda table, frame: operator(left(table, frame), right(table, frame)))


def _logical(function: str, a: Truth, b: Truth) -> Truth:
    match function:
        case "_&&_":
            return _both(logic.conjunction, a, b)
        case "_||_":
            return _both(logic.disjunction, a, b)
        case "_==_":
            return _both(logic.same, a, b)
        case "_!=_":
            return _both(lambda x, y: logic.negation(logic.same(x, y)), a, b)
    raise NotColumnar


def _numerical(function: str, a: Number, b: Number) -> Part:
    left, right = a.run, b.run
    comparison = arithmetic.COMPARISONS.get(function)
    if comparison is not None:
        return Truth(lambda table, frame: arithmetic.compare(comparison, left(table, frame), right(table, frame), frame))
    operator = (arithmetic.INTS if a.whole else arithmetic.DOUBLES).get(function)
    if operator is None or a.whole != b.whole:
        raise NotColumnar
    return Number(lambda table, frame: operator(left(table, frame), right(table, frame), frame), a.whole)


def _textual(function: str, a: Text, b: Text) -> Part:
    left, right = a.run, b.run
    if function == "_+_":
        return Text(lambda table, frame: text.join(left(table, frame), right(table, frame)))
    if function not in text.PREDICATES and function != "matches":
        raise NotColumnar
    literal, mirrored = b.literal, text.MIRRORED.get(function)
    if literal is not None:
        return Truth(lambda table, frame: text.predicate(table, function, left(table, frame), literal))
    if a.literal is not None and mirrored is not None:
        return _textual(mirrored, b, a)
    if function == "matches":
        raise NotColumnar
    return Truth(lambda table, frame: text.compare(function, left(table, frame), right(table, frame)))


def _conditional(test: Truth, a: Part, b: Part) -> Part:
    condition = test.run
    match a, b:
        case Truth(run=yes_truth), Truth(run=no_truth):
            return Truth(lambda table, frame: logic.truth_where(condition(table, frame), yes_truth(table, frame), no_truth(table, frame)))
        case Number(run=yes, whole=whole), Number(run=no, whole=also) if whole == also:
            return Number(lambda table, frame: logic.number_where(condition(table, frame), yes(table, frame), no(table, frame)), whole)
        case Text(run=yes_text), Text(run=no_text):
            return Text(lambda table, frame: logic.words_where(condition(table, frame), yes_text(table, frame), no_text(table, frame)))
    raise NotColumnar
