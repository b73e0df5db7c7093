"""The syntax tree of a checked CEL expression, read from its serialized form: as much of it as questions about whole conditions need.

What isn't known here is `Other`: whoever asks must then do without an answer.
"""

import struct
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from shunter.lang.wire import varint


class Constant(msgspec.Struct, frozen=True):
    """A literal."""

    value: bool | int | float | str


class Name(msgspec.Struct, frozen=True):
    """A variable by its qualified name; one label of a map of labels is `worker.labels["tier"]`."""

    name: str


class Presence(msgspec.Struct, frozen=True):
    """A test of presence: `has(worker.labels.tier)` asks whether the map of labels called `name` has the key."""

    name: str
    key: str


class Call(msgspec.Struct, frozen=True):
    """An operator (`_&&_`, `_<_`, `!_`, `_?_:_`, `@in`) or a function, with its arguments; a method's target is the first of them."""

    function: str
    arguments: "tuple[Tree, ...]"


class Listed(msgspec.Struct, frozen=True):
    """A list literal."""

    items: "tuple[Tree, ...]"


class Other(msgspec.Struct, frozen=True):
    """Anything else."""


Tree: TypeAlias = Constant | Name | Presence | Call | Listed | Other

_CHECKED_EXPR: Final = 4
_MOST_DEPTH: Final = 200


def read(serialized: bytes) -> Tree:
    """The tree in a `cel.expr.CheckedExpr` inside a `google.protobuf.Any`. Raises ValueError for bytes that are cut short."""
    checked = b"".join(value for number, value in _fields(serialized) if number == 2 and isinstance(value, bytes))
    for number, value in _fields(checked):
        if number == _CHECKED_EXPR and isinstance(value, bytes):
            return _expression(value, 0)
    return Other()


def _expression(data: bytes, depth: int) -> Tree:
    if depth > _MOST_DEPTH:
        return Other()
    for number, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        match number:
            case 3:
                return _constant(value)
            case 4:
                return Name(_text(value, 1).removeprefix("."))
            case 5:
                return _select(value, depth)
            case 6:
                return _call(value, depth)
            case 7:
                return Listed(tuple(_expression(item, depth + 1) for n, item in _fields(value) if n == 1 and isinstance(item, bytes)))
    return Other()


def _constant(data: bytes) -> Tree:
    for number, value in _fields(data):
        match number, value:
            case 2, int():
                return Constant(bool(value))
            case 3, int():
                return Constant(value - 2**64 if value >= 2**63 else value)
            case 5, bytes():
                return Constant(struct.unpack("<d", value)[0])
            case 6, bytes():
                return Constant(value.decode("utf-8"))
    return Other()


def _select(data: bytes, depth: int) -> Tree:
    """`labels.key`, or `has(labels.key)`."""
    operand: Tree = Other()
    key, tests_presence = "", False
    for number, value in _fields(data):
        match number, value:
            case 1, bytes():
                operand = _expression(value, depth + 1)
            case 2, bytes():
                key = value.decode("utf-8")
            case 3, int():
                tests_presence = bool(value)
    if not isinstance(operand, Name):
        return Other()
    return Presence(operand.name, key) if tests_presence else _label(operand, key)


def _call(data: bytes, depth: int) -> Tree:
    function, found = "", list[Tree]()
    for field, value in _fields(data):
        if field == 2 and isinstance(value, bytes):
            function = value.decode("utf-8")
        elif isinstance(value, bytes):
            found.append(_expression(value, depth + 1))
    arguments = tuple(found)
    match function, arguments:
        case "_[_]", (Name() as labels, Constant(value=str() as key)):
            return _label(labels, key)
        case "-_", (Constant(value=int() | float() as number),) if not isinstance(number, bool):
            return Constant(-number)
    return Call(function, arguments)


def _label(labels: Name, key: str) -> Name:
    return Name(f'{labels.name}["{key}"]')


def _text(data: bytes, wanted: int) -> str:
    return next((value.decode("utf-8") for number, value in _fields(data) if number == wanted and isinstance(value, bytes)), "")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message as (number, value): whole numbers for varints, bytes for all else."""
    position = 0
    while position < len(data):
        key, position = varint(data, position)
        kind = key & 7
        if kind == 0:
            value, position = varint(data, position)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, position = varint(data, position)
        if position + size > len(data):
            raise ValueError("the serialized expression is cut short")
        yield key >> 3, data[position : position + size]
        position += size
