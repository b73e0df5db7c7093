"""Stands in for Prometheus over a stretch of the past: what is asked instant by instant is fetched a chunk at a time.

`observe.sample` then takes the very samples that it would have taken at each instant, by the same rules and with their own times.
"""

import asyncio
import re
from array import array
from collections.abc import Sequence
from math import nan
from typing import Final, Protocol, TypeAlias

import msgspec

from shunter.observe.prometheus import Answer, Series

CHUNK_S: Final = 1800.0
"""How much is fetched at once, in seconds: a query's points of half an hour are a few megabytes for a thousand workers."""
_RANGE: Final = re.compile(r"(.*)\[([0-9]+)s\]", re.DOTALL)
"""How `observe.sample` and the catalog ask for samples with their own times."""

_Key: TypeAlias = tuple[str, float | None]


class Ranged(Protocol):
    """What is asked of a server."""

    async def query(self, promql: str, at: float | None, *, lookback_s: float | None = None) -> Answer:
        """See `Prometheus.query`."""
        ...

    async def query_range(self, promql: str, begin: float, end: float, step_s: float, *, lookback_s: float | None = None) -> Answer:
        """See `Prometheus.query_range`."""
        ...


class History:
    """A `Client` for instants up to `end` (seconds since the epoch), `step_s` apart, asked in their order.

    A chunk that can't be fetched raises what the server does for each of its instants: what isn't known stays unknown.
    """

    def __init__(self, server: Ranged, end: float, step_s: float, *, chunk_s: float = CHUNK_S) -> None:
        self._server, self._end, self._step = server, end, step_s
        self._steps = max(1, int(chunk_s / step_s))
        self._chunks: dict[_Key, _Chunk | Exception] = {}
        self._until: dict[_Key, float] = {}
        self._fetching = asyncio.Lock()

    async def query(self, promql: str, at: float | None, *, lookback_s: float | None = None) -> Answer:
        """What the server would have answered at `at`, which must not be before the instant asked for last."""
        assert at is not None, "history has no now"
        key = (promql, lookback_s)
        if at > self._until.get(key, -1.0):
            # one at a time: an answer is large until it is packed
            async with self._fetching:
                await self._fetch(key, at)
        found = self._chunks[key]
        if isinstance(found, Exception):
            raise found
        return found.at(at)

    async def _fetch(self, key: _Key, at: float) -> None:
        promql, lookback_s = key
        last = min(at + (self._steps - 1) * self._step, self._end)
        self._chunks.pop(key, None)
        self._until[key] = last
        try:
            ranged = _RANGE.fullmatch(promql)
            if ranged is not None and lookback_s is None:
                reach = int(ranged[2])
                answer = await self._server.query(reaching(promql, last - at), last)
                self._chunks[key] = _Chunk(answer, reach=float(reach), ahead=0.0)
            else:
                answer = await self._server.query_range(promql, at, last, self._step, lookback_s=lookback_s)
                # instants go over the wire in milliseconds, and may come back a little later than they were
                self._chunks[key] = _Chunk(answer, reach=self._step / 2, ahead=0.001)
        except Exception as error:  # raised again for each instant of the chunk
            self._chunks[key] = error


def reaching(promql: str, further_s: float) -> str:
    """The same range query reaching so many seconds further back; a query that isn't one as it is."""
    ranged = _RANGE.fullmatch(promql)
    return promql if ranged is None else f"{ranged[1]}[{int(further_s + int(ranged[2]) + 1)}s]"


def reach_of(promql: str) -> float | None:
    """How far back a range query reaches, in seconds; None: it isn't one of those that are asked for samples with their own times."""
    ranged = _RANGE.fullmatch(promql)
    return None if ranged is None else float(ranged[2])


class _Chunk:
    """An answer over a stretch of time, packed; `reach` is how far back from an instant a point counts, `ahead` how far after it."""

    def __init__(self, answer: Answer, *, reach: float, ahead: float) -> None:
        self._answer = msgspec.structs.replace(answer, series=())
        self._reach, self._ahead = reach, ahead
        self._tracks = [_Track(series) for series in answer.series]

    def at(self, at: float) -> Answer:
        """Of each series the newest point within reach: of older ones nothing is asked."""
        newest, oldest = at + self._ahead, at - self._reach
        found = [series for track in self._tracks if (series := track.newest(newest, oldest)) is not None]
        return msgspec.structs.replace(self._answer, series=tuple(found))


class _Track:
    """One series: times and values in arrays, and where in them the last question was."""

    __slots__ = ("_index", "_labels", "_made", "_times", "_values")

    def __init__(self, series: Series) -> None:
        self._labels = series.labels
        self._times, self._values = _packed(series.points)
        self._index = -1
        self._made: Series | None = None

    def newest(self, at: float, oldest: float) -> Series | None:
        """The series with its newest point that is not after `at`, or None if that is before `oldest`."""
        times, index = self._times, self._index
        while index + 1 < len(times) and times[index + 1] <= at:
            index += 1
        if index < 0 or times[index] < oldest:
            self._index = index
            return None
        if index != self._index or self._made is None:
            value = self._values[index]
            self._made = Series(labels=self._labels, points=((times[index], value if value == value else None),))
            self._index = index
        return self._made


def _packed(points: Sequence[tuple[float, float | None]]) -> tuple["array[float]", "array[float]"]:
    """A tenth of what the same numbers take as objects."""
    return array("d", (at for at, _ in points)), array("d", (nan if value is None else value for _, value in points))
