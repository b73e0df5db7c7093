"""What a struct says of its fields: names, types in words, defaults, and the docstrings under them."""

import ast
import inspect
import sys
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

import msgspec
import msgspec.inspect as mi
from shunter.lang.reflect import struct_type
from shunter.model.expression import Expression
from shunter.model.units import Bandwidth, Bytes, Duration, Rate, Share

_NAMES: Final = {
    Duration: "duration",
    Bytes: "size",
    Bandwidth: "bandwidth",
    Rate: "rate",
    Share: "share",
    Expression: "expression",
    Path: "path",
}
_QUANTITIES: Final = (Duration, Bandwidth, Rate, Share)
_PLAIN: Final = {mi.StrType: "text", mi.IntType: "whole number", mi.FloatType: "number", mi.BoolType: "true or false"}


def docs(cls: type) -> dict[str, str]:
    """Field name to the string under it in the source, for a struct and its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        source = getattr(sys.modules.get(base.__module__), "__file__", None)
        if not source or not base.__module__.startswith("shunter"):
            continue
        body = cast(ast.ClassDef, ast.parse(inspect.getsource(base)).body[0]).body
        for here, after in pairwise(body):
            match here, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                    found[name] = inspect.cleandoc(text)
    return found


def words(kind: mi.Type) -> str:
    """A type for people."""
    match kind:
        case mi.StructType(cls=cls) | mi.CustomType(cls=cls) if cls in _NAMES:
            return _NAMES[cls]
        case mi.StructType():
            return "mapping"
        case mi.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case mi.EnumType(cls=cls):
            return " or ".join(f"`{member.value}`" for member in cls)
        case mi.UnionType(types=types):
            return " or ".join(words(one) for one in types if not isinstance(one, mi.NoneType))
        case mi.VarTupleType(item_type=item):
            return f"list of: {words(item)}"
        case mi.DictType(key_type=mi.EnumType() as key, value_type=value):
            return f"mapping of {words(key)} to: {words(value)}"
        case mi.DictType(value_type=value):
            return f"mapping of names to: {words(value)}"
    return _PLAIN[type(kind)]


def default(field: mi.Field) -> str:
    """A field's default as it would be written; `required` when it has none, empty when leaving it out means that there is none."""
    if field.required:
        return "required"
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if value is None or value in ("", (), {}) or isinstance(value, msgspec.Struct):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, float) and not isinstance(value, _QUANTITIES):
        return f"`{value:g}`"
    return f"`{value}`"


def inner(kind: mi.Type) -> tuple[str, mi.StructType] | None:
    """The struct that a field holds, with what its path gets for it (`.<name>` in a map, `[]` in a list); None for anything else."""
    match kind:
        case mi.StructType(cls=cls) if cls not in _NAMES:
            return "", kind
        case mi.DictType(value_type=mi.StructType() as value):
            return ".<name>", value
        case mi.VarTupleType(item_type=mi.StructType() as item):
            return "[]", item
    return None


def struct(cls: type) -> mi.StructType:
    """A struct and what it is made of."""
    return struct_type(cls)


def about(cls: type) -> str:
    """A struct's own docstring."""
    return inspect.cleandoc(cls.__doc__ or "")
