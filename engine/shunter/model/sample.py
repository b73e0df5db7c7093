"""Metric values with their provenance. Unknown is not a number: there is no default value anywhere.

There are many of these, and of the values below them; none can refer back to another, so that the garbage collector needn't look at them
(`gc=False`): it would go through all of a large fleet's again and again.
"""

import math
from typing import TypeAlias

import msgspec


class Known(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="known", tag_field="is"):
    """A finite value measured at `at` (seconds since the epoch, UTC) by `query`; `labels` identify the series.

    Its fields are in the order of canonical bytes, which takes a tenth less to write so: there are more of these than of anything else.
    """

    at: float
    labels: dict[str, str] = {}
    query: str
    unit: str
    value: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and math.isfinite(self.at)):
            raise ValueError(f"{self.value} at {self.at} is not a known value: use Missing")


class Missing(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="missing", tag_field="is"):
    """No usable value, and why, in words for people: `query returned 0 series; expected 1`, `NaN`, `Prometheus is away`."""

    reason: str
    query: str = ""


class Stale(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="stale", tag_field="is"):
    """A value exists but is older than it may be. Ages in seconds, all finite; the value is for people, never for a decision."""

    value: float
    age: float
    max_age: float
    query: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and math.isfinite(self.age) and math.isfinite(self.max_age)):
            raise ValueError(f"{self.value} of {self.age} s ago, at most {self.max_age} s, is not a value: use Missing")


Sample: TypeAlias = Known | Missing | Stale


def say(sample: Sample) -> str:
    """A sample in a few words, for reports."""
    match sample:
        case Known(value=value, unit=unit):
            return f"{value:g}{'' if unit in ('', '1') else ' ' + unit}"
        case Missing(reason=reason):
            return f"missing ({reason})"
        case Stale(value=value, age=age, max_age=max_age):
            return f"stale ({value:g}, {age:.0f} s old, at most {max_age:.0f} s allowed)"
