"""Node tree to policy structs, led by the structs' own types. Strict: nothing is converted but durations, and whole numbers where any
number may stand.

Quantities that can't be parsed are reported here. Anything else that doesn't fit is only marked: the schema has the words for it. What
does fit is bound all the same, so that everything wrong with a document can be told at once.
"""

import enum
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NoReturn

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


class UnboundError(Exception):
    """Something was asked of a value that couldn't be bound."""


class _Nothing:
    """No value could be made; what is wrong has been marked or reported. Nothing can be said of it but that it isn't None."""

    def _unbound(self, *_: object) -> NoReturn:
        raise UnboundError

    __getattr__ = __bool__ = __iter__ = __len__ = __contains__ = __getitem__ = __str__ = __format__ = _unbound
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _unbound
    __hash__ = object.__hash__


_NOTHING: Final = _Nothing()


def _resembles(cls: type, node: Node) -> bool:
    """The node is of the form that the schema asks of a quantity."""
    return isinstance(node, Scalar) and cls in QUANTITIES and re.search(QUANTITIES[cls].pattern, node.text) is not None


class Binder:
    """Binds one document. After `document`: `expressions`, `problems` (quantities), `misfits` (nodes that don't fit their type), and
    `partial`, what could be bound of it: asking for more raises UnboundError.
    """

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.expressions: list[Found] = []
        self.problems: list[Problem] = []
        self.misfits: list[Node] = []
        self.partial: object = None

    def document(self, cls: type, node: Mapping) -> Any | None:  # noqa: ANN401  (an instance of cls)
        """A struct of type `cls`, or None when something is wrong."""
        self.partial = self._struct(struct_type(cls), node, ())
        return None if self.misfits or self.problems else self.partial

    def _misfit(self, node: Node) -> _Nothing:
        self.misfits.append(node)
        return _NOTHING

    def _value(self, kind: mi.Type, node: Node, path: Path) -> object:
        return _BINDERS[kind.__class__](self, kind, node, path)

    def _struct(self, kind: mi.StructType, node: Node, path: Path) -> object:
        if kind.cls is Expression:
            return self._expression(node, path)
        if not isinstance(node, Mapping):
            return self._misfit(node)
        keys, required = _keys(kind.cls)
        values: dict[str, object] = {}
        sound = required <= node.entries.keys()
        for name, (_, below) in node.entries.items():
            key = keys.get(name)
            if key is None:
                sound = sound and name == kind.tag_field
                continue
            here = (*path, name)
            values[key.field] = self._bounded(key.type, below, here, key.limits) if key.limits else self._value(key.type, below, here)
        if not sound:
            self._misfit(node)
            values = {**{keys[name].field: _NOTHING for name in required}, **values}
        return kind.cls(**values)

    def _bounded(self, kind: mi.Type, node: Node, path: Path, limits: Schema) -> object:
        value = self._value(kind, node, path)
        if value is not _NOTHING:
            measured = tuple(node.entries) if isinstance(node, Mapping) else value
            if not keep(measured, limits):
                return self._misfit(node)
        return value

    def _dict(self, kind: mi.DictType, node: Node, path: Path) -> object:
        if not isinstance(node, Mapping):
            return self._misfit(node)
        keys, inner = kind.key_type, kind.value_type
        return {self._value(keys, key, path): self._value(inner, below, (*path, name)) for name, (key, below) in node.entries.items()}

    def _tuple(self, kind: mi.VarTupleType, node: Node, path: Path) -> object:
        if not isinstance(node, Sequence):
            return self._misfit(node)
        return tuple(self._value(kind.item_type, below, (*path, index)) for index, below in enumerate(node.items))

    def _union(self, union: mi.UnionType, node: Node, path: Path) -> object:
        kinds = union.types
        before, told = len(self.misfits), len(self.problems)
        partial: object = _NOTHING
        for kind in kinds:
            misfits, problems = len(self.misfits), len(self.problems)
            value = self._value(kind, node, path)
            if value is not _NOTHING and (misfits, problems) == (len(self.misfits), len(self.problems)):
                del self.misfits[before:], self.problems[told:]
                return value
            partial = value if partial is _NOTHING else partial
        # What looks like a quantity is told as one; for anything else the schema lists what it may be.
        if any(isinstance(kind, mi.CustomType) and _resembles(kind.cls, node) for kind in kinds):
            del self.misfits[before:]
        else:
            del self.problems[told:]
        return partial

    def _expression(self, node: Node, path: Path) -> object:
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            return self._misfit(node)
        place = self.source.place(node.opening(self.source.text))
        expression = Expression(text=node.text, place=place)
        self.expressions.append(Found(path, node, expression))
        return expression

    def _quantity(self, kind: mi.CustomType, node: Node, __: Path) -> object:
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            return self._misfit(node)
        try:
            return kind.cls.parse(node.text)  # type: ignore[attr-defined]
        except UnitError as error:
            what, _, remedy = str(error).partition(": ")
            self.problems.append(self.source.problem("SH116", node.start, what, remedy[:1].upper() + remedy[1:]))
            return _NOTHING

    def _text(self, _: mi.Type, node: Node, __: Path) -> object:
        return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else self._misfit(node)

    def _truth(self, _: mi.Type, node: Node, __: Path) -> object:
        return node.value if isinstance(node, Scalar) and isinstance(node.value, bool) else self._misfit(node)

    def _whole(self, _: mi.Type, node: Node, __: Path) -> object:
        sound = isinstance(node, Scalar) and isinstance(node.value, int) and not isinstance(node.value, bool)
        return node.value if isinstance(node, Scalar) and sound else self._misfit(node)

    def _number(self, _: mi.Type, node: Node, __: Path) -> object:
        value = node.value if isinstance(node, Scalar) else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else self._misfit(node)

    def _literal(self, kind: mi.LiteralType, node: Node, _: Path) -> object:
        sound = isinstance(node, Scalar) and isinstance(node.value, str) and node.value in kind.values
        return node.value if isinstance(node, Scalar) and sound else self._misfit(node)

    def _member(self, kind: mi.EnumType, node: Node, _: Path) -> object:
        found = _members(kind.cls).get(node.value) if isinstance(node, Scalar) and isinstance(node.value, str) else None
        return self._misfit(node) if found is None else found


_BINDERS: Final[dict[type[mi.Type], Callable[[Binder, Any, Node, Path], object]]] = {
    mi.StructType: Binder._struct,
    mi.DictType: Binder._dict,
    mi.VarTupleType: Binder._tuple,
    mi.UnionType: Binder._union,
    mi.CustomType: Binder._quantity,
    mi.StrType: Binder._text,
    mi.BoolType: Binder._truth,
    mi.IntType: Binder._whole,
    mi.FloatType: Binder._number,
    mi.LiteralType: Binder._literal,
    mi.EnumType: Binder._member,
}


class _Key(msgspec.Struct, frozen=True):
    """A key of a struct, as it is bound."""

    field: str
    type: mi.Type
    limits: Schema


@cache
def _keys(cls: type) -> tuple[dict[str, _Key], frozenset[str]]:
    """The keys that become a struct's fields, and those that must be there: `apiVersion` must be written, whatever its default."""
    keys = {field.encode_name: _Key(field.name, inner, limits) for field, inner, limits in fields(cls)}
    return keys, frozenset(f.encode_name for f, _, _ in fields(cls) if f.required or f.encode_name == "apiVersion")


@cache
def _members(cls: type[enum.Enum]) -> dict[str, enum.Enum]:
    return {str(member.value): member for member in cls}
