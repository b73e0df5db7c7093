"""Node tree to policy structs, led by the structs' own types. Strict: nothing is converted but durations, and whole numbers where any
number may stand.

Quantities that can't be parsed are reported here. Anything else that doesn't fit is only marked: the schema has the words for it.
"""

import re
from typing import Any, Final

import msgspec
import msgspec.inspect as mi

from shunter.lang.diagnostics import SourceText
from shunter.lang.reflect import struct_type
from shunter.lang.schema import QUANTITIES, Schema, fields, keep
from shunter.lang.yaml import Mapping, Node, Scalar, Sequence
from shunter.model.errors import Problem
from shunter.model.expression import Expression
from shunter.model.units import UnitError

Path = tuple[str | int, ...]


class Found(msgspec.Struct):
    """An expression that stands at `path` of its document."""

    path: Path
    node: Scalar
    expression: Expression


class _Nothing:
    """No value could be made; what is wrong has been marked or reported."""


_NOTHING: Final = _Nothing()


def _resembles(cls: type, node: Node) -> bool:
    """The node is of the form that the schema asks of a quantity."""
    return isinstance(node, Scalar) and cls in QUANTITIES and re.search(QUANTITIES[cls].pattern, node.text) is not None


class Binder:
    """Binds one document. After `document`: `expressions`, `problems` (quantities), and `misfits` (nodes that don't fit their type)."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.expressions: list[Found] = []
        self.problems: list[Problem] = []
        self.misfits: list[Node] = []

    def document(self, cls: type, node: Mapping) -> Any | None:  # noqa: ANN401  (an instance of cls)
        """A struct of type `cls`, or None when something is wrong."""
        value = self._struct(struct_type(cls), node, ())
        return None if isinstance(value, _Nothing) else value

    def _misfit(self, node: Node) -> _Nothing:
        self.misfits.append(node)
        return _NOTHING

    def _value(self, kind: mi.Type, node: Node, path: Path) -> object:
        match kind:
            case mi.StructType(cls=cls) if cls is Expression:
                return self._expression(node, path)
            case mi.StructType():
                return self._struct(kind, node, path)
            case mi.DictType(key_type=key, value_type=inner):
                return self._dict(key, inner, node, path)
            case mi.VarTupleType(item_type=inner):
                return self._tuple(inner, node, path)
            case mi.UnionType(types=types):
                return self._union(types, node, path)
            case mi.CustomType(cls=cls) if cls in QUANTITIES:
                return self._quantity(cls, node)
        return self._scalar(kind, node)

    def _struct(self, kind: mi.StructType, node: Node, path: Path) -> object:
        if not isinstance(node, Mapping):
            return self._misfit(node)
        values: dict[str, object] = {}
        known = {"kind"} if kind.tag_field else set()
        for field, inner, limits in fields(kind.cls):
            name = field.encode_name
            known.add(name)
            below = node.get(name)
            if below is not None:
                values[field.name] = self._bounded(inner, below, (*path, name), limits)
            elif field.required or name == "apiVersion":
                values[field.name] = self._misfit(node)
        if not node.entries.keys() <= known:
            self._misfit(node)
            return _NOTHING
        return _NOTHING if any(isinstance(value, _Nothing) for value in values.values()) else kind.cls(**values)

    def _bounded(self, kind: mi.Type, node: Node, path: Path, limits: Schema) -> object:
        value = self._value(kind, node, path)
        if limits and not isinstance(value, _Nothing):
            measured = tuple(node.entries) if isinstance(node, Mapping) else value
            if not keep(measured, limits):
                return self._misfit(node)
        return value

    def _dict(self, keys: mi.Type, kind: mi.Type, node: Node, path: Path) -> object:
        if not isinstance(node, Mapping):
            return self._misfit(node)
        values = {self._scalar(keys, key): self._value(kind, below, (*path, name)) for name, (key, below) in node.entries.items()}
        return _NOTHING if any(isinstance(part, _Nothing) for entry in values.items() for part in entry) else values

    def _tuple(self, kind: mi.Type, node: Node, path: Path) -> object:
        if not isinstance(node, Sequence):
            return self._misfit(node)
        values = tuple(self._value(kind, below, (*path, index)) for index, below in enumerate(node.items))
        return _NOTHING if any(isinstance(value, _Nothing) for value in values) else values

    def _union(self, kinds: tuple[mi.Type, ...], node: Node, path: Path) -> object:
        before, told = len(self.misfits), len(self.problems)
        for kind in kinds:
            value = self._value(kind, node, path)
            if not isinstance(value, _Nothing):
                del self.misfits[before:], self.problems[told:]
                return value
        # What looks like a quantity is told as one; for anything else the schema lists what it may be.
        if any(isinstance(kind, mi.CustomType) and _resembles(kind.cls, node) for kind in kinds):
            del self.misfits[before:]
        else:
            del self.problems[told:]
        return _NOTHING

    def _expression(self, node: Node, path: Path) -> object:
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            return self._misfit(node)
        place = self.source.place(node.opening(self.source.text))
        expression = Expression(text=node.text, place=place)
        self.expressions.append(Found(path, node, expression))
        return expression

    def _quantity(self, cls: Any, node: Node) -> object:  # noqa: ANN401  (a class with `parse`)
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            return self._misfit(node)
        try:
            return cls.parse(node.text)
        except UnitError as error:
            what, _, remedy = str(error).partition(": ")
            self.problems.append(self.source.problem("SH116", node.start, what, remedy[:1].upper() + remedy[1:]))
            return _NOTHING

    def _scalar(self, kind: mi.Type, node: Node) -> object:
        value = node.value if isinstance(node, Scalar) else None
        result: object = None
        match kind:
            case mi.StrType():
                result = value if isinstance(value, str) else None
            case mi.BoolType():
                result = value if isinstance(value, bool) else None
            case mi.IntType():
                result = value if isinstance(value, int) and not isinstance(value, bool) else None
            case mi.FloatType():
                result = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
            case mi.LiteralType(values=values):
                result = value if isinstance(value, str) and value in values else None
            case mi.EnumType(cls=cls):
                result = next((member for member in cls if member.value == value and isinstance(value, str)), None)
        return self._misfit(node) if result is None else result
