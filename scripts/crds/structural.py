"""JSON Schema to the structural schemas that the API server takes: no references, no defaults, a type for everything, rules beside them.

Defaults aren't taken over on purpose: a default that the server writes makes what it holds differ from what Git says, for good.
"""

from typing import Any, Final

from shunter.lang.schema import Schema
from shunter.model import policy

from crds.rules import FIELDS, POSITIVE, RULES, Rule

LONGEST_QUANTITY: Final = 64
"""Characters. The API server wants a bound to what rules over text can cost."""

_NUMBER: Final = r"[0-9]+(\.[0-9]+)?"
_SPAN: Final = "".join(f"({_NUMBER}{unit})?" for unit in ("d", "h", "m", "s", "ms"))
_NOT_ZERO: Final = "[1-9]"
QUANTITIES: Final[dict[str, tuple[str, ...]]] = {
    "Duration": (f"^{_SPAN}$", "."),
    "Share": (r"^0*(100(\.0+)?|[0-9]{1,2}(\.[0-9]+)?)%$",),
    "Bandwidth": (f"^{_NUMBER}(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)/s$", _NOT_ZERO),
    "Rate": (f"^{_NUMBER}/{_SPAN}$", "^[0-9.]*[1-9][0-9.]*/.*[1-9]"),
}
"""By title, all the patterns that a quantity has to match: what the schema says, and what `model.units` says beyond it."""

_KEPT: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "pattern", "minimum")


def structural(name: str, definitions: dict[str, Schema]) -> Schema:
    """The structural schema of a definition, with all that it refers to in place."""
    return _Writer(definitions).named(name)


class _Writer:
    def __init__(self, definitions: dict[str, Schema]) -> None:
        self.definitions = definitions

    def named(self, name: str) -> Schema:
        given = self.definitions[name]
        if name in QUANTITIES:
            return {"type": "string", "maxLength": LONGEST_QUANTITY, **_all_of(QUANTITIES[name])}
        if given.get("type") != "object" or "properties" not in given:
            return self.of(given)
        written = {
            "type": "object",
            "description": given.get("description", ""),
            "properties": {key: self.field(name, key, inner) for key, inner in given["properties"].items()},
        }
        if given["required"]:
            written["required"] = list(given["required"])
        return _with_rules(written, RULES.get(name, ()))

    def field(self, struct: str, key: str, given: Schema) -> Schema:
        written = self.of(given)
        if isinstance(extra := _of_bases(struct, key), dict):
            rules = extra.get("rules", ())
            written = _with_rules({**written, **{k: v for k, v in extra.items() if k != "rules"}}, rules)
        if (struct, key) in POSITIVE:
            _positive(written)
        described = " ".join(filter(None, (given.get("description", ""), _default(given))))
        return {**written, "description": described} if described else written

    def of(self, given: Schema) -> Schema:
        if "$ref" in given:
            written = self.named(given["$ref"].rpartition("/")[2])
        elif "anyOf" in given:
            written = self.union(given["anyOf"])
        elif "enum" in given:
            written = {"type": "string", "enum": list(given["enum"])}
        elif "const" in given:
            written = {"type": "string", "enum": [given["const"]]}
        elif given["type"] == "object":
            written = self.mapping(given)
        elif given["type"] == "array":
            written = self.array(given)
        else:
            written = {"type": given["type"]}
            if given["type"] == "integer":
                written["format"] = "int64"
        written.update({keyword: given[keyword] for keyword in _KEPT if keyword in given})
        if "exclusiveMinimum" in given:
            written.update(minimum=given["exclusiveMinimum"], exclusiveMinimum=True)
        return written

    def mapping(self, given: Schema) -> Schema:
        names = given.get("propertyNames", {}).get("enum")
        if names:
            listed = ", ".join(f"'{name}'" for name in names)
            written = {"type": "object", "additionalProperties": self.of(given["additionalProperties"]), "maxProperties": len(names)}
            return _with_rules(written, ((f"self.all(name, name in [{listed}])", f"the keys are {listed}"),))
        return {"type": "object", "additionalProperties": self.of(given["additionalProperties"])}

    def array(self, given: Schema) -> Schema:
        written = {"type": "array", "items": self.of(given["items"]), "x-kubernetes-list-type": "atomic"}
        if not given.get("uniqueItems"):
            return written
        # not as a set of Kubernetes': applying one with a repetition is an error inside the server
        written["maxItems"] = len(written["items"]["enum"])
        return _with_rules(written, (("self.all(one, self.exists_one(other, other == one))", "an item is repeated"),))

    def union(self, parts: list[Schema]) -> Schema:
        """A number or text: of one kind each. The server has a word for whole numbers or text only; for others the type stays open and
        everything else is ruled out by what may not be there.
        """
        text = next(part for part in (self.of(part) for part in parts) if part["type"] == "string")
        text.pop("type")
        if any(part.get("type") == "integer" for part in parts):
            return {"x-kubernetes-int-or-string": True, **text}
        words = text.pop("enum")
        return {
            "x-kubernetes-preserve-unknown-fields": True,
            "pattern": f"^({'|'.join(words)})$",
            "maxProperties": 0,
            "maxItems": 0,
            "not": {"enum": [True, False, {}, []]},
        }


def _of_bases(struct: str, key: str) -> Schema | None:
    cls = getattr(policy, struct, None)
    return next((FIELDS[base.__name__, key] for base in getattr(cls, "__mro__", ()) if (base.__name__, key) in FIELDS), None)


def _all_of(patterns: tuple[str, ...]) -> Schema:
    first, *more = patterns
    return {"pattern": first, **({"allOf": [{"pattern": pattern} for pattern in more]} if more else {})}


def _positive(written: Schema) -> None:
    """Demand that a quantity is more than 0; in a map, of each of its values."""
    value = written if written.get("type") == "string" else written["additionalProperties"]
    value["allOf"] = [*value.get("allOf", ()), {"pattern": _NOT_ZERO}]


def _default(given: Schema) -> str:
    value: Any = given.get("default")
    if value is None or value in ({}, []):
        return ""
    shown = ", ".join(str(part) for part in value) if isinstance(value, list | tuple) else str(value)
    return f"Without it: {shown.lower() if isinstance(value, bool) else shown}."


def _with_rules(written: Schema, rules: tuple[Rule, ...]) -> Schema:
    if not rules:
        return written
    return {**written, "x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}
