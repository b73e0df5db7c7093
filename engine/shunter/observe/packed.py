"""The series of a long answer with all their numbers in arrays: a point takes 16 bytes, and none becomes an object."""

from collections.abc import Sequence
from math import inf, nan
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from shunter.observe.answer import Labels, Points, Series

Doubles: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.intp]

_NUMBERS: Final = msgspec.json.Decoder(list[float])


class Packed(msgspec.Struct, frozen=True):
    """Series one after the other: those of number `n` are the points from `begins[n]` up to `begins[n + 1]`, in the order of time.

    `times` are seconds since the epoch; a value that isn't finite is NaN. Behind the last one is a point that never comes: every place
    is one's.
    """

    labels: Sequence[Labels]
    begins: Places
    times: Doubles
    values: Doubles


def pack(series: Sequence[Series]) -> Packed:
    """The same points as those of the series. Raises what reading these raises."""
    texts = [s.points.text if isinstance(s.points, Points) else b"" for s in series]
    found = _read(texts) if texts and all(texts) else None
    if found is None:
        found = _one_by_one(series, texts)
    counts, flat = found
    begins = np.concatenate(([0], np.cumsum(counts))).astype(np.intp)
    times, values = np.empty(len(flat) // 2 + 1), np.empty(len(flat) // 2 + 1)
    times[:-1], times[-1] = flat[0::2], inf
    values[:-1], values[-1] = flat[1::2], nan
    values[np.isinf(values)] = nan
    return Packed([s.labels for s in series], begins, times, values)


def _one_by_one(series: Sequence[Series], texts: Sequence[bytes]) -> tuple[list[int], Doubles]:
    """The usual ones as text all the same; of the others each point as it is read."""
    parts, counts = [np.empty(0)], []
    for one, text in zip(series, texts, strict=True):
        found = _read([text]) if text else None
        if found is None:
            points = one.points
            numbers = [nan if number is None else number for point in points for number in point]
            found = [len(points)], np.array(numbers, dtype=np.float64)
        counts += found[0]
        parts.append(found[1])
    return counts, np.concatenate(parts)


def _read(texts: Sequence[bytes]) -> tuple[list[int], Doubles] | None:
    """How many points each text has, and times and values in turn. None where the text must be looked at point by point: NaN and infinities
    aren't numbers in JSON, and the zero below zero would lose its sign.
    """
    joined = b",".join(texts)
    if b'"-0"' in joined:
        return None
    try:
        numbers: list[Any] = _NUMBERS.decode(b"[%b]" % joined.translate(None, b'[]"'))
    except msgspec.DecodeError:
        return None
    counts = [text.count(b"[") - 1 for text in texts]
    return (counts, np.array(numbers, dtype=np.float64)) if len(numbers) == 2 * sum(counts) else None
