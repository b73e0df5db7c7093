"""What each kind and key of a policy is, for `shunter explain`: from the structs, their docstrings, the schema and the checker's tables."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
import msgspec.inspect as mi

from shunter.lang.check import FIELDS
from shunter.lang.diagnostics import nearest, one_of
from shunter.lang.reflect import struct_type
from shunter.lang.schema import END, KINDS, QUANTITIES, TIME, field_docs, fields
from shunter.model.errors import Problem, Rejected
from shunter.model.expression import Expression
from shunter.model.policy import API_VERSION
from shunter.model.vocabulary import VARIABLES, Variable


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A key: its type, default, bounds and meaning in words. `default` is empty for a required key and for one without a default."""

    name: str
    type: str
    required: bool
    default: str = ""
    bounds: str = ""
    doc: str = ""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A kind (`path` is empty) or one of its keys (`spec.move.order`), and the keys below it.

    `variables` are what an expression sees, besides the policy's own `metrics.<name>` where `metrics` is True; both are empty elsewhere.
    """

    kind: str
    path: str
    field: Field
    doc: str = ""
    fields: tuple[Field, ...] = ()
    variables: tuple[Variable, ...] = ()
    metrics: bool = False


def kinds() -> dict[str, str]:
    """Each kind and what it is for, in a sentence."""
    return {name: _doc(kind) for name, kind in KINDS.items()}


def topic(name: str) -> Topic:
    """The topic at `KIND` or `KIND.key.key`; the kind's case doesn't matter, and `[]` or `<name>` may stand for an entry's own.

    Raises Rejected SH150, with the nearest name, for a kind or key that there isn't.
    """
    given, *keys = name.split(".")
    kind = next((k for k in KINDS if k.lower() == given.lower()), None)
    if kind is None:
        near = nearest(given, KINDS)
        raise _unknown(f"{given} is not a kind of policy", f'Did you mean "{near}"?' if near else f"There are {one_of(KINDS)}")
    whole = Field(name=kind, type="document", required=True, doc=_doc(KINDS[kind]))
    here = _Here(kind=kind, path=(), type=struct_type(KINDS[kind]), field=whole)
    for key in keys:
        here = here.below(key)
    return here.topic()


def _unknown(what: str, remedy: str) -> Rejected:
    return Rejected(Problem(code="SH150", what=what, remedy=remedy))


class _Here(msgspec.Struct, frozen=True, kw_only=True):
    """A place on the way down. `field` describes the key itself."""

    kind: str
    path: tuple[str, ...]
    type: mi.Type
    field: Field
    within: str = ""
    """What the mapping that the key stands in is: said where nothing is said of the key alone."""

    def below(self, key: str) -> "_Here":
        where = ".".join((self.kind, *self.path))
        if isinstance(self.type, mi.DictType):
            return self._entry(key, self.type.value_type)
        if isinstance(self.type, mi.VarTupleType) and _struct(self.type.item_type) is not None:
            return self._item(self.type.item_type).below(key)
        key = key.removesuffix("[]")
        struct = _struct(self.type)
        if struct is None:
            raise _unknown(f"{where} has no keys below it: it is {self.field.type}", f"Ask for {where}")
        known = {f.encode_name: (f, inner) for f, inner, _ in fields(struct.cls)}
        if key not in known:
            names = list(_names(struct))
            near = nearest(key, names)
            raise _unknown(f"{where} has no key {key}", f'Did you mean "{where}.{near}"?' if near else f"It has {one_of(names)}")
        described = next(d for d in _described(struct) if d.name == key)
        return _Here(kind=self.kind, path=(*self.path, key), type=known[key][1], field=described, within=_doc(struct.cls))

    def _entry(self, key: str, inner: mi.Type) -> "_Here":
        """A key of a mapping with free names: skipped when it is a key of the entries, as `metrics.query` is short for any metric's."""
        struct = _struct(inner)
        entry = Field(name=f"<{key.strip('<>[]') or 'name'}>", type=_type(inner), required=False, doc=_doc(struct.cls) if struct else "")
        here = _Here(kind=self.kind, path=(*self.path, entry.name), type=inner, field=entry)
        if struct is not None and key in _names(struct):
            entry = msgspec.structs.replace(entry, name="<name>")
            here = _Here(kind=self.kind, path=(*self.path, entry.name), type=inner, field=entry).below(key)
        return here

    def _item(self, inner: mi.Type) -> "_Here":
        """An entry of a list of mappings: `windows[]`."""
        return msgspec.structs.replace(self, path=(*self.path[:-1], f"{self.path[-1]}[]"), type=inner)

    def topic(self) -> Topic:
        struct = _struct(_inner(self.type))
        own = _doc(struct.cls) if struct else ""
        wanted = FIELDS.get((self.kind, ".".join(self.path[1:]))) if self.path[:1] == ("spec",) else None
        roots = wanted[1] if wanted else frozenset()
        return Topic(
            kind=self.kind,
            path=".".join(self.path),
            field=msgspec.structs.replace(self.field, type=f"{self.field.type} giving {_result(wanted[0])}") if wanted else self.field,
            doc=own if own != self.field.doc else "" if self.field.doc else self.within,
            fields=_described(struct) if struct else (),
            variables=tuple(v for name, v in VARIABLES.items() if name.partition(".")[0] in roots),
            metrics=wanted is not None and _declares_metrics(self.kind),
        )


def _inner(kind: mi.Type) -> mi.Type:
    """What the entries of a mapping with free names or of a list are; any other type itself."""
    if isinstance(kind, mi.DictType):
        return kind.value_type
    return kind.item_type if isinstance(kind, mi.VarTupleType) else kind


def _declares_metrics(kind: str) -> bool:
    spec = next(_struct(f.type) for f in struct_type(KINDS[kind]).fields if f.name == "spec")
    return spec is not None and "metrics" in _names(spec)


def _result(result: str) -> str:
    return "true or false" if result == "bool" else "a number"


def _names(struct: mi.StructType) -> tuple[str, ...]:
    return tuple(d.name for d in _described(struct))


def _described(struct: mi.StructType) -> tuple[Field, ...]:
    """The keys of a struct, those that must be given first; each kind's own before what all kinds have."""
    docs = field_docs(struct.cls)
    found = []
    if struct.tag_field:
        found.append(Field(name="apiVersion", type=f'"{API_VERSION}"', required=True, doc="The version of the policy language."))
        found.append(Field(name="kind", type=f'"{struct.tag}"', required=True, doc="The kind of the policy."))
    for field, inner, limits in fields(struct.cls):
        if field.encode_name == "apiVersion":
            continue
        below = _struct(_inner(inner))
        doc = docs.get(field.name) or (_doc(below.cls) if below else "")
        found.append(
            Field(
                name=field.encode_name,
                type=_type(inner),
                required=field.required,
                default="" if field.required else _default(field.default, field.default_factory),
                bounds=", ".join(_bound(*one) for one in limits.items()),
                doc=doc,
            )
        )
    return tuple(sorted(found, key=lambda f: not f.required))


def _default(value: object, factory: object) -> str:
    """A default as it would be written; empty where leaving the key out means that there is none, or says nothing."""
    if value in (None, msgspec.NODEFAULT) and factory in (None, msgspec.NODEFAULT, dict):
        return ""
    if isinstance(value, msgspec.Struct):
        return _default_of_struct(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(str(item) for item in value)}]"
    return str(value)


def _default_of_struct(value: msgspec.Struct) -> str:
    """The keys that differ from nothing, in braces."""
    given = ((f.encode_name, getattr(value, f.name)) for f, _, _ in fields(type(value)))
    parts = [f"{name}: {text}" for name, inner in given if inner is not None and (text := _default(inner, None))]
    return f"{{{', '.join(parts)}}}" if parts else ""


def _type(kind: mi.Type) -> str:
    match kind:
        case mi.StructType(cls=cls):
            return "expression" if cls is Expression else "mapping"
        case mi.CustomType(cls=cls) if cls in QUANTITIES:
            return QUANTITIES[cls].noun.partition(" ")[2]
        case mi.UnionType(types=types):
            return one_of(_type(part) for part in types)
        case mi.LiteralType(values=values):
            return " | ".join(f'"{value}"' for value in values)
        case mi.EnumType(cls=cls):
            return " | ".join(f'"{member.value}"' for member in cls)
        case mi.DictType(key_type=mi.EnumType() as key, value_type=value):
            return f"mapping of {_type(key)} to {_type(value)}s"
        case mi.DictType(value_type=value):
            return f"mapping of names to {_type(value)}s"
        case mi.VarTupleType(item_type=item):
            return f"list of {_type(item)}"
    return _SCALARS.get(type(kind), "value")


_SCALARS: dict[type, str] = {mi.StrType: "text", mi.IntType: "whole number", mi.FloatType: "number", mi.BoolType: "true or false"}


def _bound(keyword: str, limit: Any) -> str:  # noqa: ANN401  (JSON Schema's own)
    told = _BOUNDS.get(keyword)
    return told(limit) if told else f"{keyword} {limit}"


_BOUNDS: Final[dict[str, Callable[[Any], str]]] = {
    "minimum": lambda v: f"at least {v}",
    "exclusiveMinimum": lambda v: f"more than {v}",
    "minItems": lambda v: f"at least {v} {'entry' if v == 1 else 'entries'}",
    "minProperties": lambda v: f"at least {v} key{'' if v == 1 else 's'}",
    "minLength": lambda _: "not empty",
    "maxLength": lambda v: f"at most {v} characters",
    "uniqueItems": lambda _: "no entry twice",
    "propertyNames": lambda _: "names of letters, digits and _, no digit first",
    "pattern": lambda v: "hours and minutes" if v in (TIME, END) else "lower-case letters, digits and -, a letter or digit at both ends",
}


def _struct(kind: mi.Type) -> mi.StructType | None:
    """The struct whose keys a value of this type has, or None."""
    return kind if isinstance(kind, mi.StructType) and kind.cls is not Expression else None


def _doc(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split())
