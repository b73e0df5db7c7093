"""What a structural schema can't say and the API server's expressions can: the counterpart of `lang.check` and `lang.specs`.

Each rule stands at the struct that it is about. What isn't here only `shunter validate` can say; docs/how-to/run-in-kubernetes.md lists it.
"""

from typing import Final

import msgspec
from shunter.lang.schema import METRIC_NAME, Schema
from shunter.lang.specs import FIGURES, LOOKS_BACK
from shunter.model import policy
from shunter.model.units import Duration

Rule = tuple[str, str]
"""An expression over `self`, and what is said when it doesn't hold."""

MANY: Final = 100
"""Entries of a map or a list that rules look at: the API server wants a bound to what a rule can cost."""


def _seconds(value: str) -> str:
    """A quantity's seconds, whole ones where it says days: the server's `duration` knows none, and a duration can't be made of numbers."""
    end = f"{value}.indexOf('d')"
    days = f"double({value}.substring(0, {end})) * 86400.0"
    rest = f"({value}.endsWith('d') ? 0.0 : double(duration({value}.substring({end} + 1)).getSeconds()))"
    return f"({value}.contains('d') ? {days} + {rest} : double(duration({value}).getSeconds()))"


def not_longer(shorter: str, longer: str) -> str:
    """Whether one quantity is at most another, exactly where neither says days."""
    daily = f"{shorter}.contains('d') || {longer}.contains('d')"
    return f"(({daily}) ? {_seconds(shorter)} <= {_seconds(longer)} : duration({shorter}) <= duration({longer}))"


def _at_most_looked_back(key: str) -> Rule:
    message = f"{key} must be {LOOKS_BACK} or less: the engine knows of the last hour only"
    return f"!has(self.{key}) || {not_longer(f'self.{key}', repr(str(LOOKS_BACK)))}", message


def _interval(least: Duration, most: Duration) -> Rule:
    both = not_longer("self.min", "self.max")
    alone = f"has(self.min) ? {not_longer('self.min', repr(str(most)))} : !has(self.max) || {not_longer(repr(str(least)), 'self.max')}"
    return f"has(self.min) && has(self.max) ? {both} : ({alone})", "the shortest interval, min, must not be longer than the longest, max"


_FIGURES: Final = tuple(field.encode_name for field in msgspec.structs.fields(policy.FleetProfileSpec) if field.name in FIGURES)
_PLANNER: Final = "has(self.follow) && self.follow == 'planner'"
_ROLE: Final = "has(self.workers.role)"

RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "WorkerSelector": (
        (
            "(has(self.all) && self.all) != (has(self.role) || has(self.graph) || has(self.where))",
            "name a role, a graph or a condition, or say all: true, not both",
        ),
    ),
    "ReassignmentSpec": (
        ("self.from != self.to", "from and to are the same: give the hardware to the other role"),
        (f"({_PLANNER}) || has(self.when)", "add when, or follow: planner to carry out what the planner wants"),
        (f"!({_PLANNER}) || !has(self.when)", "when stands beside follow: planner, which says itself when"),
        (f"!({_PLANNER}) || !has(self.revert)", "revert stands beside follow: planner, which says itself when"),
        (f"!{_ROLE} || self.workers.role == self.from", "workers.role isn't the role that hardware is taken from: no worker can be picked"),
        (f"!({_PLANNER}) || !{_ROLE}", "the planner may want hardware of either pool: remove workers.role, and say which graph is meant"),
        _at_most_looked_back("cooldown"),
    ),
    "CheckpointSpec": (("has(self.every) != has(self.cadence)", "say either every or cadence"),),
    "Optimal": (_interval(*policy.Optimal.__struct_defaults__[:2]),),
    "RebalanceSpec": (
        ("!has(self.gain) || (has(self.to) && has(self.to.prefer))", "gain needs to.prefer, a number by which places are compared"),
        _at_most_looked_back("cooldown"),
    ),
    "BudgetSpec": (
        (
            "has(self.maxConcurrent) || has(self.maxPerWindow) || (has(self.windows) && size(self.windows) > 0)",
            "the budget limits nothing: add maxConcurrent, maxPerWindow or windows",
        ),
    ),
    "PerWindow": (_at_most_looked_back("window"),),
    "Window": (("self.from != self.to", 'from and to are the same: for the whole day write from: "00:00" and to: "24:00"'),),
    "FleetProfileSpec": (
        (
            " || ".join([*(f"has(self.{name})" for name in _FIGURES), "(has(self.lead) && size(self.lead) > 0)"]),
            "the profile gives no figure",
        ),
    ),
}
"""By the struct's name in `shunter.model.policy`."""

FIELDS: Final[dict[tuple[str, str], Schema]] = {
    ("WorkerSelector", "graph"): {"pattern": r"\S"},
    ("_Spec", "metrics"): {
        "maxProperties": MANY,
        "rules": ((f"self.all(name, name.matches('{METRIC_NAME}'))", "letters, digits and _, no digit first"),),
    },
    ("BudgetSpec", "windows"): {"maxItems": MANY},
    ("Window", "from"): {"maxLength": len("HH:MM")},
    ("Window", "to"): {"maxLength": len("HH:MM")},
}
"""Keywords of single fields, by struct (or the base it is from) and key."""

POSITIVE: Final = frozenset(
    {
        ("MetricInput", "maxAge"),
        ("CheckpointSpec", "every"),
        ("Optimal", "min"),
        ("Pause", "atMost"),
        ("Overhead", "atMost"),
        ("Keep", "within"),
        ("PerWindow", "window"),
        ("FleetProfileSpec", "lead"),
    }
)
"""Quantities that must be more than 0, by struct and key; those of a map's values where the key is one."""
