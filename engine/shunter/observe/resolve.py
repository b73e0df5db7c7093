"""From the series of an answer to one sample: the rules by which a value counts as known."""

from collections.abc import Sequence
from typing import Final

import msgspec

from shunter.model.sample import Known, Missing, Sample, Stale
from shunter.observe.prometheus import Answer, Point, Series

AHEAD_S: Final = 5.0
"""How far ahead of our clock a sample's time may be, in seconds."""
_SHOWN: Final = 6


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a sample is wanted of. `at` is our time, seconds since the epoch; `max_age` in seconds."""

    query: str
    unit: str
    at: float
    max_age: float


class Empty(msgspec.Struct, frozen=True, kw_only=True):
    """There was an answer and it holds no value: no series, or NaN. It is what `onMissing` is for; a failed query isn't."""

    missing: Missing


def partial(answer: Answer, query: str) -> Missing | None:
    """Missing when the server says that it may not have looked everywhere; None when the answer is whole."""
    if not answer.warnings:
        return None
    return Missing(reason=f"the answer may be partial: {'; '.join(answer.warnings[:2])}", query=query)


def lone(series: Series, ask: Ask) -> Known | None:
    """The value of the only series there is, when nothing is wrong with it: what nearly every worker has."""
    at, value = series.points[-1]
    if value is None or not -AHEAD_S <= ask.at - at <= ask.max_age:
        return None
    return Known(value=value, unit=ask.unit, at=at, query=ask.query, labels=series.labels)


def one(series: Sequence[Series], ask: Ask) -> Sample | Empty:
    """The one value that these series agree on."""
    if not series:
        return Empty(missing=Missing(reason="query returned 0 series; expected 1", query=ask.query))
    if len(series) == 1 and (known := lone(series[0], ask)) is not None:
        return known
    return _agreed([(s.points[-1], s.labels) for s in series], ask)


def _agreed(latest: Sequence[tuple[Point, dict[str, str]]], ask: Ask) -> Sample | Empty:
    ahead = max(at for (at, _), _ in latest) - ask.at
    if ahead > AHEAD_S:
        return Missing(reason=f"the newest sample is {ahead:.0f} s in the future: compare the clocks", query=ask.query)
    # A series that has ended (the worker came back under another address) doesn't compete with the one that goes on.
    fresh = [(point, labels) for point, labels in latest if ask.at - point[0] <= ask.max_age]
    if not fresh:
        return _old([point for point, _ in latest], ask)
    unusable = [labels for (_, value), labels in fresh if value is None]
    if unusable:
        return Empty(missing=Missing(reason=f"the value of {_named(unusable[0])} is not a finite number", query=ask.query))
    values = {value for (_, value), _ in fresh}
    if len(values) > 1:
        return Missing(reason=f"query returned {len(fresh)} series; expected 1{_difference([s for _, s in fresh])}", query=ask.query)
    (at, value), labels = max(fresh, key=lambda f: f[0][0])
    assert value is not None
    return Known(value=value, unit=ask.unit, at=at, query=ask.query, labels=labels)


def _old(points: Sequence[Point], ask: Ask) -> Sample:
    at, value = max(points, key=lambda p: p[0])
    if value is None:
        return Missing(reason=f"the last value is {ask.at - at:.0f} s old and not a finite number", query=ask.query)
    return Stale(value=value, age=ask.at - at, max_age=ask.max_age, query=ask.query)


def _named(labels: dict[str, str]) -> str:
    inner = ", ".join(f'{k}="{v}"' for k, v in sorted(labels.items()) if k != "__name__")
    return f"{labels.get('__name__', '')}{{{inner}}}" if labels else "the result"


def _difference(all_labels: Sequence[dict[str, str]]) -> str:
    """The labels by which the series differ, so that the author knows what to aggregate over."""
    names = sorted({name for labels in all_labels for name in labels})
    differing = [name for name in names if len({labels.get(name) for labels in all_labels}) > 1]
    return f" (they differ in {', '.join(differing[:_SHOWN])})" if differing else ""
