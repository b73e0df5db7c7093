"""Why a document doesn't fit its schema, in words and places. Asked only of documents that don't: `bind` says faster whether one does."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from shunter.lang.diagnostics import MAX_PROBLEMS, SourceText, nearest, one_of, shown, suggest
from shunter.lang.schema import END, QUANTITIES, TIME, Schema, repetition, validator
from shunter.lang.yaml import Mapping, Node, Scalar, look_up, plain
from shunter.model.errors import Problem

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

_TITLES: Final = {kind.__name__: quantity for kind, quantity in QUANTITIES.items()}
_TYPE_NAMES: Final = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
}


def explain(source: SourceText, kind: str, document: Mapping) -> list[Problem]:
    """Every place where a document doesn't fit its kind's schema, up to some more than MAX_PROBLEMS. Empty when it fits."""
    return misfits(source, validator(kind), document)


def misfits(source: SourceText, checker: "Draft202012Validator", document: Mapping) -> list[Problem]:
    """Every place where a document doesn't fit a schema, in words, up to some more than MAX_PROBLEMS. Empty when it fits."""
    found: dict[Problem, None] = {}
    for error in checker.iter_errors(cast(Any, plain(document))):
        found.update(dict.fromkeys(_Explanation(source, document, error).problems()))
        if len(found) > MAX_PROBLEMS:
            break
    return list(found)


class _Explanation:
    """One schema error, in words."""

    def __init__(self, source: SourceText, document: Mapping, error: "ValidationError") -> None:
        self.source = source
        self.error = error
        self.path = tuple(error.absolute_path)
        self.node = look_up(document, self.path)
        self.where = ".".join(str(step) for step in self.path) or "the document"
        parent = look_up(document, self.path[:-1]) if self.path else None
        self.key = parent.entries[str(self.path[-1])][0] if isinstance(parent, Mapping) else None
        self.title = str(error.schema.get("title", "")) if isinstance(error.schema, dict) else ""

    def at(self, code: str, what: str, remedy: str, node: "Node | None" = None) -> Problem:
        return self.source.problem(code, (node or self.node).start, what, remedy)

    def problems(self) -> Iterable[Problem]:
        if "propertyNames" in self.error.absolute_schema_path and self.error.validator == "enum":
            return [self.unknown_key(str(self.error.instance), [str(word) for word in cast(list[str], self.error.validator_value)])]
        if "propertyNames" in self.error.absolute_schema_path:
            return [self.name(str(self.error.instance), self.key_node(str(self.error.instance)), "letters, digits and _, no digit first")]
        handler = _HANDLERS.get(str(self.error.validator), _Explanation.other)
        return handler(self)

    def key_node(self, key: str) -> Node:
        return self.node.entries[key][0] if isinstance(self.node, Mapping) and key in self.node.entries else self.node

    def unknown_keys(self) -> list[Problem]:
        known = list(self.error.schema["properties"])  # type: ignore[index]
        extra = [key for key in cast(dict[str, Any], self.error.instance) if key not in known][: MAX_PROBLEMS + 1]
        return [self.unknown_key(key, known) for key in extra]

    def unknown_key(self, key: str, known: list[str]) -> Problem:
        remedy = suggest(key, known, f"It has {one_of(known)}")
        return self.at("SH111", f'"{shown(key)}" is not a key of {self.where}', remedy, self.key_node(key))

    def missing_keys(self) -> list[Problem]:
        given = cast(dict[str, Any], self.error.instance)
        missing = [key for key in cast(list[str], self.error.validator_value) if key not in given]
        return [self.at("SH112", f'{self.where} lacks the key "{key}"', f"Add {key}: to it", self.key or self.node) for key in missing]

    def wrong_type(self) -> list[Problem]:
        wanted = str(self.error.validator_value)
        scalar = self.node if isinstance(self.node, Scalar) else None
        if scalar is not None and scalar.value is None:
            return [self.at("SH113", f"{self.where} has no value", "Give it one, or remove the key")]
        given = shown(scalar.text) if scalar else _TYPE_NAMES["object" if isinstance(self.node, Mapping) else "array"]
        if (quantity := _TITLES.get(self.title)) is not None:
            example = f"{given}s" if self.title == "Duration" and scalar and scalar.text.isdigit() else quantity.example
            remedy = f"Write it with a unit, such as {example}"
            return [self.at("SH116", f"{self.where} must be {quantity.noun}: {given} is not", remedy)]
        remedy = f'Put it in quotes: "{given}"' if wanted == "string" and scalar else f"Write {_TYPE_NAMES[wanted]}"
        return [self.at("SH113", f"{self.where} must be {_TYPE_NAMES[wanted]}: {given} is not", remedy)]

    def not_allowed(self) -> list[Problem]:
        wanted = self.error.validator_value
        allowed = [str(value) for value in (wanted if isinstance(wanted, list) else [wanted])]
        given = shown(self.node.text) if isinstance(self.node, Scalar) else "that"
        hint = nearest(given, allowed) if given != "that" else None
        listed = f"Write {one_of(allowed)}"
        return [self.at("SH114", f"{given or 'nothing'} can't be {self.where}", f'Did you mean "{hint}"? {listed}' if hint else listed)]

    def no_choice(self) -> list[Problem]:
        parts = cast(list[Schema], self.error.validator_value)
        listed = one_of(word for part in parts for word in _choices(part))
        given = shown(self.node.text) if isinstance(self.node, Scalar) else "that"
        return [self.at("SH114", f"{given or 'nothing'} can't be {self.where}", f"Write {listed}")]

    def out_of_bounds(self) -> list[Problem]:
        least = self.error.validator_value
        if self.error.validator == "exclusiveMinimum":
            return [self.at("SH115", f"{self.where} must be more than {least}: {self.error.instance} is not", f"Write more than {least}")]
        if self.error.validator == "minimum":
            return [self.at("SH115", f"{self.where} must be at least {least}: {self.error.instance} is not", f"Write {least} or more")]
        if self.title == "Expression":
            return []  # the expression's own check says it
        words = {"minItems": "is empty", "minLength": "is empty", "maxLength": "is too long"}
        limit = f"at most {least} characters" if self.error.validator == "maxLength" else "at least one entry"
        return [self.at("SH115", f"{self.where} {words[str(self.error.validator)]}", f"Give it {limit}")]

    def empty_selector(self) -> list[Problem]:
        return [self.at("SH120", f"{self.where} selects by nothing", "Name a role, a graph or a condition, or say all: true", self.key)]

    def repeated(self) -> list[Problem]:
        items = cast(list[Any], self.error.instance)
        places = self.node.items if not isinstance(self.node, Scalar | Mapping) else []
        again = repetition(items) or 0
        return [
            self.at("SH123", f"{self.where} has {shown(str(items[again]))} twice", "Remove one of them", places[again] if places else None)
        ]

    def pattern(self) -> list[Problem]:
        if self.title in _TITLES:
            return []  # `bind` parsed it, and says more
        if (time := _TIMES.get(str(self.error.validator_value))) is not None:
            return [self.at("SH115", f'{self.where} is no time of day: "{shown(str(self.error.instance))}"', time)]
        return [self.name(str(self.error.instance), self.node, "lower-case letters, digits and -, a letter or digit at both ends")]

    def name(self, given: str, node: Node, allowed: str) -> Problem:
        return self.at("SH117", f'"{shown(given)}" can\'t be a name', f"Use {allowed}", node)

    def other(self) -> list[Problem]:
        return [self.at("SH113", f"{self.where} doesn't fit: {shown(self.error.message)}", "See the policy reference")]


def _choices(part: Schema) -> list[str]:
    """One of several things that a value may be, in words."""
    if "$ref" in part and (quantity := _TITLES.get(part["$ref"].rpartition("/")[2])) is not None:
        return [f"{quantity.noun} such as {quantity.example}"]
    return [str(word) for word in part.get("enum", [_TYPE_NAMES.get(part.get("type", ""), "another value")])]


_TIMES: Final = {TIME: 'Write hours and minutes in quotes, such as "22:00"', END: 'Write hours and minutes in quotes, up to "24:00"'}
_HANDLERS: Final = {
    "additionalProperties": _Explanation.unknown_keys,
    "required": _Explanation.missing_keys,
    "type": _Explanation.wrong_type,
    "enum": _Explanation.not_allowed,
    "const": _Explanation.not_allowed,
    "anyOf": _Explanation.no_choice,
    "minimum": _Explanation.out_of_bounds,
    "exclusiveMinimum": _Explanation.out_of_bounds,
    "minItems": _Explanation.out_of_bounds,
    "minLength": _Explanation.out_of_bounds,
    "maxLength": _Explanation.out_of_bounds,
    "minProperties": _Explanation.empty_selector,
    "uniqueItems": _Explanation.repeated,
    "pattern": _Explanation.pattern,
}
