"""JSON Schema of the policy kinds, generated from the structs in `model.policy`.

The schema says what a document may look like; editors use the same file (schemas/policy.v1alpha1.json). `bind` enforces the same rules on
the way to the structs, faster, but only as yes or no: on a no, `misfits` asks the schema for every reason.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import msgspec.inspect as mi

from shunter.lang.reflect import struct_type
from shunter.model import policy
from shunter.model.expression import Expression
from shunter.model.units import Bandwidth, Duration, Rate, Share

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

Schema = dict[str, Any]

SCHEMA_ID: Final = "https://shunter.dev/schemas/policy.v1alpha1.json"
KINDS: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        policy.PreemptionPolicy,
        policy.ReassignmentPolicy,
        policy.CheckpointPolicy,
        policy.RebalancePolicy,
        policy.DisruptionBudget,
        policy.FleetProfile,
    )
}
NAME: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
METRIC_NAME: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
TIME: Final = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
END: Final = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
_DURATION: Final = r"([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+"
_NUMBER: Final = r"[0-9]+(\.[0-9]+)?"


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """A number with a unit, as the schema has it. `noun` is what errors call it, `example` one that is right."""

    noun: str
    pattern: str
    doc: str
    example: str


QUANTITIES: Final[dict[type, Quantity]] = {
    Duration: Quantity(
        noun="a duration",
        pattern=f"^{_DURATION}$",
        doc="A number with a unit, or several with falling units: 30s, 5m, 1h30m, 250ms.",
        example="30s",
    ),
    Share: Quantity(noun="a share", pattern=f"^{_NUMBER}%$", doc="A percentage from 0% to 100%.", example="10%"),
    Bandwidth: Quantity(
        noun="a bandwidth",
        pattern=f"^{_NUMBER}(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)/s$",
        doc="Bytes per second: 40GB/s, 500MiB/s.",
        example="40GB/s",
    ),
    Rate: Quantity(noun="a rate", pattern=f"^{_NUMBER}/{_DURATION}$", doc="How many in which time: 1/1000h.", example="1/1000h"),
}
"""The quantities of the policy language, by their types in `model.units`."""


BOUNDS: Final[dict[tuple[str, str], Schema]] = {
    ("Metadata", "name"): {"pattern": NAME, "maxLength": 63},
    ("Metadata", "namespace"): {"pattern": NAME, "maxLength": 63},
    ("_Spec", "metrics"): {"propertyNames": {"pattern": METRIC_NAME}},
    ("_Scoped", "workers"): {"minProperties": 1},
    ("MetricInput", "query"): {"minLength": 1},
    ("PreemptionSpec", "notices"): {"minItems": 1, "uniqueItems": True},
    ("PreemptionSpec", "otherwise"): {"uniqueItems": True},
    ("Floor", "min"): {"minimum": 0},
    ("Ceiling", "max"): {"minimum": 1},
    ("Limits", "step"): {"minimum": 1},
    ("Keep", "last"): {"minimum": 1},
    ("CheckpointSpec", "copies"): {"minimum": 1},
    ("Gain", "at_least"): {"exclusiveMinimum": 0},
    ("RebalanceSpec", "step"): {"minimum": 1},
    ("Window", "from_"): {"pattern": TIME},
    ("Window", "to"): {"pattern": END},
    ("Window", "days"): {"minItems": 1, "uniqueItems": True},
    ("PerWindow", "max"): {"minimum": 0},
    ("BudgetSpec", "operations"): {"minItems": 1, "uniqueItems": True},
    ("BudgetSpec", "max_concurrent"): {"minimum": 0},
    ("FleetProfileSpec", "gpu_model"): {"minLength": 1},
    ("FleetProfileSpec", "prefill_rate"): {"exclusiveMinimum": 0},
    ("FleetProfileSpec", "prefill_doubling"): {"exclusiveMinimum": 0},
}
"""Bounds that Python's types don't say, by struct and field, as JSON Schema keywords."""


def bounds(cls: type, field: str) -> Schema:
    """The keywords in BOUNDS for a struct's field, its bases' included."""
    return next((BOUNDS[base.__name__, field] for base in cls.__mro__ if (base.__name__, field) in BOUNDS), {})


@cache
def fields(cls: type) -> tuple[tuple[mi.Field, mi.Type, Schema], ...]:
    """A struct's fields, each with its type (None left out: an optional key is simply absent) and its bounds."""
    found = []
    for field in struct_type(cls).fields:
        kind = field.type
        if isinstance(kind, mi.UnionType):
            parts = tuple(part for part in kind.types if not isinstance(part, mi.NoneType))
            kind = parts[0] if len(parts) == 1 else mi.UnionType(types=parts)
        found.append((field, kind, bounds(cls, field.name)))
    return tuple(found)


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Field name to the string that stands under it in the source, for a struct and its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is msgspec.Struct or not issubclass(base, msgspec.Struct):
            continue
        body = cast(ast.ClassDef, ast.parse(inspect.getsource(base)).body[0]).body
        for here, after in pairwise(body):
            if isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name) and isinstance(after, ast.Expr):
                text = after.value.value if isinstance(after.value, ast.Constant) else ""
                docs[here.target.id] = inspect.cleandoc(str(text))
    return docs


class _Generator:
    def __init__(self) -> None:
        self.defs: dict[str, Schema] = {
            "Expression": {
                "type": "string",
                "title": "Expression",
                "minLength": 1,
                "maxLength": 4096,
                "description": "A CEL expression over the policy variables.",
            },
        }

    def of(self, kind: mi.Type) -> Schema:
        match kind:
            case mi.StructType(cls=cls) if cls is Expression:
                return {"$ref": "#/$defs/Expression"}
            case mi.StructType():
                return self.struct(kind)
            case mi.CustomType(cls=cls) if cls in QUANTITIES:
                return self.quantity(cls)
            case mi.UnionType(types=types):
                return {"anyOf": [self.of(part) for part in types]}
            case mi.LiteralType(values=values):
                return {"enum": [str(value) for value in values]}
            case mi.EnumType(cls=cls):
                return {"enum": [member.value for member in cls]}
            case mi.DictType(key_type=mi.EnumType() as key, value_type=value):
                return {"type": "object", "propertyNames": self.of(key), "additionalProperties": self.of(value)}
            case mi.DictType(value_type=value):
                return {"type": "object", "additionalProperties": self.of(value)}
            case mi.VarTupleType(item_type=item):
                return {"type": "array", "items": self.of(item)}
        return {"type": _SCALARS[type(kind)]}

    def quantity(self, cls: type) -> Schema:
        name, quantity = cls.__name__, QUANTITIES[cls]
        self.defs[name] = {"type": "string", "title": name, "pattern": quantity.pattern, "description": quantity.doc}
        return {"$ref": f"#/$defs/{name}"}

    def struct(self, kind: mi.StructType) -> Schema:
        name = kind.cls.__name__
        if name not in self.defs:
            properties: dict[str, Schema] = {}
            required = [field.encode_name for field in kind.fields if field.required]
            if kind.tag_field:
                properties["kind"] = {"const": kind.tag, "description": inspect.cleandoc(kind.cls.__doc__ or "")}
                required = ["apiVersion", "kind", *required]
            docs = field_docs(kind.cls)
            for field, inner, limits in fields(kind.cls):
                entry = {**self.of(inner), **limits}
                if field.name in docs:
                    entry["description"] = docs[field.name]
                if not field.required and field.default not in (None, msgspec.NODEFAULT) and not isinstance(inner, mi.StructType):
                    entry["default"] = str(field.default) if type(field.default) in QUANTITIES else field.default
                properties[field.encode_name] = entry
            self.defs[name] = {
                "type": "object",
                "title": name,
                "description": inspect.cleandoc(kind.cls.__doc__ or ""),
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{name}"}


_SCALARS: Final[dict[type, str]] = {mi.StrType: "string", mi.IntType: "integer", mi.FloatType: "number", mi.BoolType: "boolean"}


def definitions(cls: type) -> dict[str, Schema]:
    """The schemas of a struct and of all that is in it, by name: what `$defs` holds."""
    generator = _Generator()
    generator.struct(struct_type(cls))
    return {name: generator.defs[name] for name in sorted(generator.defs)}


@cache
def policy_schema() -> Schema:
    """The schema of one document of a policy file, Draft 2020-12."""
    generator = _Generator()
    kinds = [generator.struct(struct_type(kind)) for kind in KINDS.values()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Shunter policy, shunter.dev/v1alpha1",
        "oneOf": kinds,
        "$defs": {name: generator.defs[name] for name in sorted(generator.defs)},
    }


@cache
def validator(kind: str) -> "Draft202012Validator":
    """The validator of one kind's documents, built once."""
    return strict_validator({"$ref": f"#/$defs/{kind}", "$defs": policy_schema()["$defs"]})


def strict_validator(schema: Schema) -> "Draft202012Validator":
    """A validator of documents of `schema`. `1.0` is no whole number here: what a reader sees is what counts."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool))
    strict = extend(Draft202012Validator, {"uniqueItems": _unique}, type_checker=checker)  # type: ignore[no-untyped-call]
    return cast("Draft202012Validator", strict(schema))


def repetition(items: Iterable[object]) -> int | None:
    """Index of the first item that equals an earlier one, or None. In linear time for any JSON, which jsonschema's own test isn't."""
    seen: set[bytes] = set()
    for index, item in enumerate(items):
        key = msgspec.json.encode(item, order="sorted")
        if key in seen:
            return index
        seen.add(key)
    return None


def _unique(validator: object, wanted: bool, items: object, schema: Schema) -> Iterator["ValidationError"]:
    from jsonschema.exceptions import ValidationError

    if wanted and isinstance(items, list) and repetition(items) is not None:
        yield ValidationError("an item is repeated")


def keep(value: object, limits: Schema) -> bool:
    """Whether a value keeps the keywords of BOUNDS: `bind`'s side of what `misfits` explains. For mappings `value` is the tuple of keys."""
    return all(_KEYWORDS[keyword](value, limit) for keyword, limit in limits.items())


_KEYWORDS: Final[dict[str, Any]] = {
    "pattern": lambda value, limit: re.search(limit, value) is not None and not value.endswith("\n"),
    "maxLength": lambda value, limit: len(value) <= limit,
    "minLength": lambda value, limit: len(value) >= limit,
    "minimum": lambda value, limit: value >= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "minItems": lambda value, limit: len(value) >= limit,
    "minProperties": lambda value, limit: len(value) >= limit,
    "uniqueItems": lambda value, _: len(set(value)) == len(value),
    "propertyNames": lambda value, limit: all(re.search(limit["pattern"], key) for key in value),
}


def rendered() -> str:
    """The schema file's text, with a newline at its end."""
    import json

    return json.dumps(policy_schema(), indent=2, ensure_ascii=False) + "\n"
