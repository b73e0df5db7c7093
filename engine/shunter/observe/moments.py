"""Samples of workers over a stretch of the past, instant by instant, without an object for each: `model.table.SampleTable`s over arrays.

They say what `observe.sample` says when it is asked at each instant: what isn't plainly known is resolved by its own functions.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shunter.model.errors import Rejected, Retry
from shunter.model.sample import Known, Missing, Sample
from shunter.model.snapshot import Fleet, Worker, WorkerState
from shunter.model.table import SampleColumn, SampleTable
from shunter.observe.answer import Answer, Series
from shunter.observe.catalog import Catalog, Field, Gauge, window
from shunter.observe.history import CHUNK_S, Ranged, reaching
from shunter.observe.packed import Packed, Places, pack
from shunter.observe.resolve import AHEAD_S, Ask, partial
from shunter.observe.sample import resolved

_LIVE: Final = (WorkerState.RUNNING, WorkerState.FENCED)
_KEPT: Final = 256
"""So many choices of workers are remembered with the rows that they are in."""


class Rows:
    """Which row of every column each worker is in."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)
        self.of: Final[dict[str, int]] = {w.id: row for row, w in enumerate(workers)}
        self._chosen: dict[tuple[str, ...], Places] = {}
        self._only: tuple[Set[str], dict[str, int]] = (frozenset(self.of), self.of)

    def chosen(self, workers: Sequence[str], of: Mapping[str, int]) -> Places:
        """The rows of some workers; -1 for one that isn't in `of`."""
        if of is not self._only[1]:
            return np.array([of.get(w, -1) for w in workers], dtype=np.intp)
        key = tuple(workers)
        found = self._chosen.get(key)
        if found is None:
            if len(self._chosen) >= _KEPT:
                self._chosen.clear()
            found = self._chosen[key] = np.array([of.get(w, -1) for w in workers], dtype=np.intp)
        return found

    def only(self, workers: Set[str]) -> dict[str, int]:
        """The rows by worker, of these alone. What was asked for last is kept."""
        if workers is not self._only[0]:
            self._only, self._chosen = (workers, {w: row for w, row in self.of.items() if w in workers}), {}
        return self._only[1]


class Moment(SampleTable):
    """The samples of one instant."""

    def __init__(self, rows: Rows, fields: Mapping[str, SampleColumn], of: Mapping[str, int] | None = None) -> None:
        """`of` are the workers that it has, and their rows; None: all."""
        self._rows, self._fields = rows, fields
        self._of = rows.of if of is None else of

    def __getitem__(self, worker: str) -> Mapping[str, Sample]:
        return _Row(self._fields, self._of[worker])

    def column(self, field: str, workers: Sequence[str]) -> SampleColumn:
        """See `SampleTable.column`."""
        rows, whole = self._rows.chosen(workers, self._of), self._fields.get(field)
        if whole is None or not len(whole):
            nothing = np.zeros(len(rows))
            return SampleColumn(nothing, nothing, np.zeros(len(rows), dtype=np.bool_), lambda _row: None)
        known = whole.known[rows]
        if rows.size and rows.min() < 0:
            known &= rows >= 0
        return SampleColumn(whole.values[rows], whole.times[rows], known, lambda row: whole[rows[row]] if rows[row] >= 0 else None)

    def only(self, workers: Set[str]) -> "Moment":
        """See `SampleTable.only`."""
        return Moment(self._rows, self._fields, self._rows.only(workers))

    @property
    def anything(self) -> bool:
        """See `SampleTable.anything`."""
        if self._of is self._rows.of:
            return any(bool(column.known.any()) for column in self._fields.values())
        rows = np.fromiter(self._of.values(), dtype=np.intp, count=len(self._of))
        return any(bool(column.known[rows].any()) for column in self._fields.values())

    def _workers(self) -> Sequence[str]:
        return tuple(self._of)


class _Row(Mapping[str, Sample]):
    """One worker's samples by field."""

    __slots__ = ("_fields", "_row")

    def __init__(self, fields: Mapping[str, SampleColumn], row: int) -> None:
        self._fields, self._row = fields, row

    def __getitem__(self, field: str) -> Sample:
        found = self._fields[field][self._row]
        assert found is not None, "each worker has something of each field, be it Missing"
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class Moments:
    """All catalog fields of a fleet's workers, for instants up to `end` (seconds since the epoch), `step_s` apart, asked in their order.

    A stretch of `chunk_s` is fetched at a time, the next one while the one before is used. What can't be fetched is Missing at each of its
    instants.
    """

    def __init__(self, server: Ranged, fleet: Fleet, end: float, step_s: float, *, catalog: Catalog, chunk_s: float = CHUNK_S) -> None:
        self._server, self._catalog, self._end, self._step = server, catalog, end, step_s
        self._steps = max(1, int(chunk_s / step_s))
        self._rows = Rows([w for w in fleet.workers if w.state in _LIVE])
        engines = {w.engine for w in self._rows.workers}
        self._asked = [(f, catalog.query(f, engines)) for f in catalog.fields] if self._rows.workers else []
        self._fields: list[_Stretch] = []
        self._until = -1.0
        self._next: asyncio.Task[list[_Stretch]] | None = None

    async def at(self, at: float) -> Moment:
        """The samples at `at`, which must not be before the instant asked for last."""
        if at > self._until:
            fetching, self._next = self._next, None
            self._fields = await (fetching if fetching is not None else self._fetch(at))
            self._until = self._last(at)
            if (following := at + self._steps * self._step) <= self._end:
                self._next = asyncio.create_task(self._fetch(following))
        return Moment(self._rows, {one.field.name: one.at(at) for one in self._fields})

    async def aclose(self) -> None:
        """Give up what is being fetched."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)

    def _last(self, at: float) -> float:
        return min(at + (self._steps - 1) * self._step, self._end)

    async def _fetch(self, at: float) -> list["_Stretch"]:
        # one query after the other: an answer is large until it is packed
        return [_Stretch(field, query, self._catalog, self._rows.workers, await self._answer(query, at)) for field, query in self._asked]

    async def _answer(self, query: str, at: float) -> Answer | Missing:
        last = self._last(at)
        try:
            answer = await self._server.query(reaching(query, last - at), last)
        except (Retry, Rejected) as error:
            return Missing(reason=error.problem.what, query=query)
        return partial(answer, query) or answer


class _Stretch:
    """One field over a stretch of time."""

    def __init__(self, field: Field, query: str, catalog: Catalog, workers: Sequence[Worker], answer: Answer | Missing) -> None:
        self.field, self._query, self._catalog, self._workers = field, query, catalog, workers
        self._missing = answer if isinstance(answer, Missing) else None
        packed = pack(() if isinstance(answer, Missing) else answer.series)
        self._tracks = _Tracks(packed, float(window(catalog.max_age)))
        self._series: dict[str, list[int]] = {}
        for number, labels in enumerate(packed.labels):
            self._series.setdefault(labels.get(catalog.label, ""), []).append(number)
        self._layers, self._tangled = self._sorted_out(packed)

    def _sorted_out(self, packed: Packed) -> tuple[list[Places], list[int]]:
        """For each row its series of the gauge that counts first, of the one that counts next, ...; and the rows for which some gauge has
        several, which are looked at one by one.
        """
        none = len(packed.labels)  # the number of a series without points
        ranks = {engine: _Ranks(self.field.gauges_for(engine)) for engine in {w.engine for w in self._workers}}
        layers = [np.full(len(self._workers), none, dtype=np.intp)]
        tangled = []
        for row, worker in enumerate(self._workers):
            own = ranks[worker.engine].by_gauge(packed.labels, self._series.get(worker.id, ()))
            if any(len(series) > 1 for series in own):
                tangled.append(row)
                continue
            while len(layers) < len(own):
                layers.append(np.full(len(self._workers), none, dtype=np.intp))
            for layer, series in zip(layers, own, strict=False):
                layer[row] = series[0]
        return layers, tangled

    def at(self, at: float) -> SampleColumn:
        """The samples of all workers."""
        ask = Ask(query=self._query, unit=self.field.unit, at=at, max_age=self._catalog.max_age)
        tracks, missing = self._tracks, self._missing
        if missing is not None:
            nothing = np.zeros(len(self._workers))
            return SampleColumn(nothing, nothing, nothing != 0, lambda _row: missing)
        newest, there = tracks.newest(at)
        chosen = self._layers[-1]
        for layer in self._layers[-2::-1]:
            chosen = np.where(there[layer], layer, chosen)
        places = newest[chosen]
        values, times = tracks.values[places], tracks.times[places]
        age = at - times
        known = there[chosen] & np.isfinite(values) & (age <= ask.max_age) & (age >= -AHEAD_S)

        def slowly(row: int) -> Sample:
            worker = self._workers[row]
            series = [tracks.series(n, newest[n]) for n in self._series.get(worker.id, ()) if there[n]]
            return resolved(self.field, worker.engine, series, ask)

        odd = {row: slowly(row) for row in self._tangled}
        for row, sample in odd.items():
            known[row] = isinstance(sample, Known)
            if isinstance(sample, Known):
                values[row], times[row] = sample.value, sample.at

        def make(row: int) -> Sample:
            if known[row] and row not in odd:
                labels = tracks.labels[chosen[row]]
                return Known(value=float(values[row]), unit=ask.unit, at=float(times[row]), query=ask.query, labels=labels)
            return odd[row] if row in odd else slowly(row)

        return SampleColumn(values, times, known, make)


class _Tracks:
    """Series over time, and how far each has come. Behind the last there is one more that has no points."""

    def __init__(self, packed: Packed, reach: float) -> None:
        """`reach` is how far back from an instant a point counts, in seconds."""
        self.labels, self._reach = packed.labels, reach
        self._begins, self._ends = np.append(packed.begins[:-1], packed.begins[-1]), np.append(packed.begins[1:], packed.begins[-1])
        # one point more, so that every place is one
        self.times, self.values = np.append(packed.times, np.inf), np.append(packed.values, np.nan)
        self._next = self._begins.copy()

    def newest(self, at: float) -> tuple[Places, NDArray[np.bool_]]:
        """The place of each series' newest point that is not after `at`, and whether it is within reach."""
        while True:
            further = (self._next < self._ends) & (self.times[self._next] <= at)
            if not further.any():
                break
            self._next = self._next + further
        places = np.maximum(self._next - 1, 0)
        there = (self._next > self._begins) & (self.times[places] >= at - self._reach)
        return places, there

    def series(self, number: int, place: Any) -> Series:  # noqa: ANN401  (numpy's own integers)
        """The series with this point alone."""
        value = float(self.values[place])
        return Series(labels=self.labels[number], points=((float(self.times[place]), value if value == value else None),))


class _Ranks:
    """A field's gauges for one engine, the preferred first."""

    def __init__(self, gauges: Sequence[Gauge]) -> None:
        self._gauges = gauges

    def by_gauge(self, labels: Sequence[Mapping[str, str]], series: Sequence[int]) -> list[list[int]]:
        """The series of each gauge that has any. One that several gauges would take counts for the first of them."""
        if len(series) == 1 and self._rank(labels[series[0]]) is not None:
            return [list(series)]
        found: dict[int, list[int]] = {}
        for number in series:
            if (rank := self._rank(labels[number])) is not None:
                found.setdefault(rank, []).append(number)
        return [found[rank] for rank in sorted(found)]

    def _rank(self, labels: Mapping[str, str]) -> int | None:
        name = labels.get("__name__")
        return next((n for n, g in enumerate(self._gauges) if g.name == name and g.labels.items() <= labels.items()), None)
