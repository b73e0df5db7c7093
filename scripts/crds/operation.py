"""The definition of `WorkerOperation`, from `model.plan` and `model.operation`: the engine writes it, people read it."""

from typing import Final

from shunter.cluster.kinds import GROUP, VERSION
from shunter.cluster.operation import KIND, LONGEST, OPERATIONS, camel
from shunter.lang.schema import Schema, definitions
from shunter.model.errors import Problem
from shunter.model.operation import Measured, Outcome, Outstanding, Sending, Status, Step
from shunter.model.plan import PlannedOperation
from shunter.model.pod import Pod

from crds.rules import Rule
from crds.structural import structural

_NAME: Final = 253
"""Characters of an id: of a node, a worker, an image."""
_MANY: Final = 1000
"""Entries of a list: the API server wants a bound to what rules can cost. A batch, or a chain, of more is none that anybody plans."""
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_COUNT: Final[Schema] = {"type": "integer", "format": "int64", "minimum": 0}

SPEC_RULES: Final[tuple[Rule, ...]] = (
    ("self == oldSelf", "what was intended doesn't change: an operation that is to be another is another one"),
    ("self.kind != 'move' || (has(self.fromSlot) && has(self.toSlot))", "a move needs fromSlot and toSlot"),
    ("self.kind != 'restore' || (has(self.toSlot) && has(self.image))", "a restore needs toSlot and image"),
    ("!(self.kind in ['park', 'drain']) || has(self.fromSlot)", "a park or drain needs fromSlot"),
    ("self.kind != 'discard' || has(self.image)", "a discard needs image"),
    ("!has(self.preview) || !self.preview", "a preview is shown, never carried out"),
)
STATUS_RULES: Final[tuple[Rule, ...]] = (
    ("self.epoch >= oldSelf.epoch", "an engine with a higher epoch has taken this operation over"),
    ("!has(oldSelf.outcome) || (has(self.outcome) && self.outcome == oldSelf.outcome)", "what has ended isn't changed"),
    ("has(self.outcome) == !(self.phase in ['active', 'unknown'])", "phase and outcome say different things"),
)
COLUMNS: Final = (
    ("Kind", "string", ".spec.kind", "What is done", 0),
    ("Worker", "string", ".spec.worker", "To which worker", 0),
    ("From", "string", ".spec.fromSlot", "The slot that it leaves", 0),
    ("To", "string", ".spec.toSlot", "The slot that it comes to", 0),
    ("Step", "string", ".status.step", "The last step that is durably known", 0),
    ("Phase", "string", ".status.phase", "How it stands", 0),
    ("Lane", "string", ".spec.lane", "Whether it had to be", 0),
    ("Policy", "string", ".spec.policy", "Which policy wanted it", 1),
    ("Epoch", "integer", ".status.epoch", "The leader that carries it out, or did", 1),
    ("Stopped", "number", ".status.measured.stopped", "Seconds for which the worker stood still", 1),
    ("Reason", "string", ".spec.reason", "Why it was decided", 1),
    ("Age", "date", ".metadata.creationTimestamp", "Since when it is begun", 0),
)


def _named(cls: type) -> Schema:
    """The structural schema of a struct of the model, with a resource's names."""
    found = structural(cls.__name__, {name: _renamed(given) for name, given in definitions(cls).items()})
    _bound(found)
    return found


def _renamed(given: Schema) -> Schema:
    if "properties" not in given:
        return given
    bare = {name: {key: value for key, value in inner.items() if key != "default"} for name, inner in given["properties"].items()}
    return {
        **given,
        "properties": {camel(name): inner for name, inner in bare.items()},
        "required": [camel(name) for name in given["required"]],
    }


def _bound(schema: Schema) -> None:
    if schema.get("type") == "string" and "enum" not in schema and "format" not in schema:
        schema.setdefault("maxLength", LONGEST)
    if schema.get("type") == "array":
        schema.setdefault("maxItems", _MANY)
        _bound(schema["items"])
    for inner in schema.get("properties", {}).values():
        _bound(inner)


def _with(rules: tuple[Rule, ...]) -> Schema:
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


def _spec() -> Schema:
    spec = _named(PlannedOperation)
    del spec["properties"]["id"]  # the resource's name
    spec["properties"]["deadline"] = {**_TIME, "description": "When it must have ended."}
    for key in ("worker", "fromSlot", "toSlot", "image", "policy", "notice", "pool", "handsTo", "golden"):
        spec["properties"][key]["maxLength"] = _NAME
    batch = {
        "type": "object",
        "description": "The operations that became durable together with it or not at all: the first of them, and their number.",
        "properties": {"first": {"type": "string", "maxLength": _NAME}, "size": {**_COUNT, "minimum": 1}},
        "required": ["first", "size"],
    }
    spec["properties"] |= {
        "plan": {"type": "string", "maxLength": _NAME, "description": "The plan's digest."},
        "epoch": {**_COUNT, "description": "The leader that decided it."},
        "createdAt": {**_TIME, "description": "When it was made durable."},
        "waits": {"type": "boolean", "description": "It waited for its turn in a chain when it was made durable."},
        "left": {**_named(Pod), "description": "The pod that its worker lived in when it was made durable."},
        "batch": batch,
    }
    spec["required"] = [*(key for key in spec["required"] if key != "id"), "plan", "epoch", "createdAt", "batch"]
    spec["description"] = "What was intended. It never changes."
    return {**spec, **_with(SPEC_RULES)}


def _status() -> Schema:
    step = {"type": "string", "enum": [one.value for one in Step]}
    outcome = _named(Outcome)
    outcome["properties"]["at"] = dict(_TIME)
    sending = _named(Sending)
    sending["properties"]["at"] = dict(_TIME)
    del sending["properties"]["operation"]  # the resource's name
    sending["required"] = [key for key in sending["required"] if key != "operation"]
    outstanding = _named(Outstanding)
    outstanding["properties"]["since"] = dict(_TIME)
    moment = {"type": "object", "properties": {"step": dict(step), "at": dict(_TIME)}, "required": ["step", "at"]}
    texts = {key: {"type": "string", "maxLength": LONGEST} for key in ("type", "reason", "message")}
    condition = {
        "type": "object",
        "properties": {**texts, "status": {"type": "string", "enum": ["True", "False", "Unknown"]}, "lastTransitionTime": dict(_TIME)},
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
    }
    properties = {
        "phase": {"type": "string", "enum": [one.value for one in Status], "description": "How it stands."},
        "epoch": {**_COUNT, "description": "The leader that carries it out, or did. It never falls."},
        "step": {**step, "description": "The last step that is durably known."},
        "history": {
            "type": "array", "items": moment, "maxItems": _MANY, "x-kubernetes-list-type": "atomic",
            "description": "Every step, oldest first.",
        },
        "waits": {"type": "boolean", "description": "It waits for its turn: no agent was asked for anything yet."},
        "problem": {**_named(Problem), "description": "Why it is being rolled back."},
        "outstanding": {**outstanding, "description": "The answer without which it isn't known how far it has come."},
        "cancelled": {**_named(Problem), "description": "Why it is to be given up as far as that still can be done."},
        "measured": _named(Measured),
        "sending": {**sending, "description": "How far its image was on its way, when that was last said in this step."},
        "pod": {**_named(Pod), "description": "The pod that was made for the worker to come to."},
        "left": {**_named(Pod), "description": "The pod that it leaves, which is deleted once that is committed."},
        "frozenAt": {**_TIME, "description": "When its worker was stopped, by the source's clock."},
        "outcome": outcome,
        "conditions": {
            "type": "array", "items": condition, "maxItems": 8,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            "description": "Ended: it has an outcome, whose word is the reason.",
        },
    }  # fmt: skip
    return {
        "type": "object",
        "description": "How far it has come. The engine alone writes it.",
        "properties": properties,
        "required": ["phase", "epoch", "step"],
        **_with(STATUS_RULES),
    }


def operation_schema() -> Schema:
    """Of the whole resource."""
    return {
        "type": "object",
        "description": "One thing that the engine does to a worker, or did. The engine makes them; delete one to have it given up.",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _spec(),
            "status": _status(),
        },
        "required": ["spec"],
    }


def operation_definition(category: str) -> Schema:
    """The CustomResourceDefinition of operations."""
    columns = [
        {"name": name, "type": kind, "jsonPath": path, "description": text, **({"priority": priority} if priority else {})}
        for name, kind, path, text, priority in COLUMNS
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{OPERATIONS}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "shunter", "app.kubernetes.io/part-of": "shunter"},
            "annotations": {"argocd.argoproj.io/sync-options": "ServerSideApply=true", "argocd.argoproj.io/sync-wave": "-10"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": OPERATIONS,
                "singular": KIND.lower(),
                "shortNames": ["wop"],
                "categories": [category],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": operation_schema()},
                }
            ],
        },
    }
