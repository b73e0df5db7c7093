"""What the structs of YAML documents are made of, in the terms of `msgspec.inspect`.

msgspec's own reflection refuses a union of a quantity with another type (`int | Share`), because its decoder couldn't tell them apart.
These structs aren't read by that decoder: `bind` reads them, from nodes that know whether they are numbers or text.
"""

import enum
import types
from functools import cache
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec
import msgspec.inspect as mi

_UNIONS: Final = (Union, types.UnionType)


@cache
def struct_type(cls: type) -> mi.StructType:
    """The reflected struct `cls`. Literals keep the order in which they are written."""
    config = cls.__struct_config__  # type: ignore[attr-defined]
    found = tuple(
        mi.Field(
            name=field.name,
            encode_name=field.encode_name,
            type=_of(field.type),
            required=field.required,
            default=field.default,
            default_factory=field.default_factory,
        )
        for field in msgspec.structs.fields(cls)
    )
    return mi.StructType(
        cls=cls, fields=found, tag_field=config.tag_field, tag=config.tag, forbid_unknown_fields=config.forbid_unknown_fields
    )


def _of(kind: Any) -> mi.Type:  # noqa: ANN401  (whatever may stand in an annotation)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return mi.UnionType(types=tuple(_of(part) for part in arguments))
    if origin is Literal:
        return mi.LiteralType(values=arguments)
    if origin is dict:
        return mi.DictType(key_type=_of(arguments[0]), value_type=_of(arguments[1]))
    if origin is tuple and arguments[1:] == (...,):
        return mi.VarTupleType(item_type=_of(arguments[0]))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return struct_type(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return mi.EnumType(cls=kind)
    return mi.type_info(kind)
