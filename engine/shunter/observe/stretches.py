"""One catalog field, or one metric that a policy declares, over a stretch of time: all workers' samples at one instant after the other.

What is plainly known is a number in an array. Whatever else there is, `observe.sample`'s own functions resolve, when it is looked at.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

import numpy as np

from shunter.model.policy import MetricInput
from shunter.model.sample import Known, Missing, Sample
from shunter.model.snapshot import Worker
from shunter.model.table import SampleColumn, SampleMap
from shunter.observe.answer import Series
from shunter.observe.catalog import Catalog, Field, Gauge
from shunter.observe.packed import Places
from shunter.observe.resolve import AHEAD_S, Ask
from shunter.observe.sample import declared, mixed, resolved
from shunter.observe.tracks import Tracks

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


class FieldStretch:
    """A catalog field. `missing` is why there is nothing of it all the time, None where there is an answer."""

    def __init__(self, field: Field, query: str, catalog: Catalog, rows: Rows, tracks: Tracks, missing: Missing | None) -> None:
        self.field, self._query, self._catalog, self._workers = field, query, catalog, rows.workers
        self._tracks, self._missing = tracks, missing
        self._series = _by_worker(tracks, catalog.label)
        self._layers, self._tangled = self._sorted_out()

    def _sorted_out(self) -> tuple[list[Places], list[int]]:
        """For each row its series of the gauge that counts first, of the one that counts next, ...; and the rows for which some gauge has
        several, which are looked at one by one.
        """
        labels = self._tracks.labels
        none = len(labels)  # the number of a series without points
        ranks = {engine: _Ranks(self.field.gauges_for(engine)) for engine in {w.engine for w in self._workers}}
        layers = [np.full(len(self._workers), none, dtype=np.intp)]
        tangled = []
        for row, worker in enumerate(self._workers):
            own = ranks[worker.engine].by_gauge(labels, self._series.get(worker.id, ()))
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
        missing = self._missing
        if missing is not None:
            nothing = np.zeros(len(self._workers))
            return SampleColumn(nothing, nothing, nothing != 0, lambda _row: missing)
        ask = Ask(query=self._query, unit=self.field.unit, at=at, max_age=self._catalog.max_age)
        newest = _Newest(self._tracks, at)
        chosen = self._layers[-1]
        for layer in self._layers[-2::-1]:
            chosen = np.where(newest.there[layer], layer, chosen)

        def slowly(row: int) -> Sample:
            worker = self._workers[row]
            return resolved(self.field, worker.engine, newest.series(self._series.get(worker.id, ())), ask)

        return newest.column(chosen, ask, slowly, self._tangled)


class MetricStretch:
    """A metric that a policy declares."""

    def __init__(self, metric: MetricInput, label: str, rows: Rows, tracks: Tracks, missing: Missing | None) -> None:
        """`label` names the worker on a series; `missing` as for a field."""
        self._metric, self._label, self._rows, self._tracks, self._missing = metric, label, rows, tracks, missing
        self._series = _by_worker(tracks, label)
        self._nameless = np.array(self._series.pop("", []), dtype=np.intp)
        self._named = np.array([n for own in self._series.values() for n in own], dtype=np.intp)
        none = len(tracks.labels)
        own = [self._series.get(w.id, []) for w in rows.workers]
        self._only = np.array([series[0] if len(series) == 1 else none for series in own], dtype=np.intp)
        self._tangled = [row for row, series in enumerate(own) if len(series) > 1]

    def at(self, at: float) -> Mapping[str, Sample]:
        """The samples by worker, or one for all under an empty name."""
        if self._missing is not None:
            return {"": self._missing}
        metric = self._metric
        ask, newest = Ask(query=metric.query, unit=metric.unit, at=at, max_age=float(metric.max_age)), _Newest(self._tracks, at)
        if not newest.there[self._named].any():
            return {"": declared(newest.series(self._nameless.tolist()), metric, ask)}
        if newest.there[self._nameless].any():
            return {"": mixed(metric.query, self._label)}

        def slowly(row: int) -> Sample:
            return declared(newest.series(self._series.get(self._rows.workers[row].id, ())), metric, ask)

        odd = self._tangled if isinstance(metric.on_missing, str) else None
        return Metric(self._rows, newest.column(self._only, ask, slowly, odd))


class Metric(SampleMap):
    """A declared metric's samples at one instant."""

    def __init__(self, rows: Rows, column: SampleColumn) -> None:
        self._rows, self._column = rows, column

    def __getitem__(self, worker: str) -> Sample:
        found = self._column[self._rows.of[worker]]
        assert found is not None, "each worker has something, be it Missing"
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows.of)

    def __len__(self) -> int:
        return len(self._rows.of)

    def column(self, workers: Sequence[str]) -> SampleColumn:
        """See `SampleMap.column`."""
        return picked(self._column, self._rows.chosen(workers, self._rows.of))


class _Newest:
    """The newest points at one instant."""

    def __init__(self, tracks: Tracks, at: float) -> None:
        self._tracks = tracks
        self._places, self.there = tracks.newest(at)

    def series(self, numbers: Iterable[int]) -> list[Series]:
        """Those of these series that have a point within reach, with it alone."""
        return [self._tracks.series(n, self._places[n]) for n in numbers if self.there[n]]

    def column(self, chosen: Places, ask: Ask, slowly: Callable[[int], Sample], odd: Sequence[int] | None) -> SampleColumn:
        """Of each row the point of the series that was chosen, where that is plainly known. `slowly` gives the sample of any row; it must
        be asked about those in `odd`, or, if that is None, about all that aren't plainly known, since they may be Known all the same.
        """
        tracks, places = self._tracks, self._places[chosen]
        values, times = tracks.values[places], tracks.times[places]
        age = ask.at - times
        known = self.there[chosen] & np.isfinite(values) & (age <= ask.max_age) & (age >= -AHEAD_S)
        looked_at = {row: slowly(row) for row in (np.flatnonzero(~known).tolist() if odd is None else odd)}
        for row, sample in looked_at.items():
            known[row] = isinstance(sample, Known)
            if isinstance(sample, Known):
                values[row], times[row] = sample.value, sample.at

        def make(row: int) -> Sample:
            if row in looked_at:
                return looked_at[row]
            if not known[row]:
                return slowly(row)
            labels = tracks.labels[chosen[row]]
            return Known(value=float(values[row]), unit=ask.unit, at=float(times[row]), query=ask.query, labels=labels)

        return SampleColumn(values, times, known, make)


def picked(whole: SampleColumn, rows: Places) -> SampleColumn:
    """These rows of a column; -1 for one that it hasn't."""
    known = whole.known[rows]
    if np.count_nonzero(rows < 0):
        known &= rows >= 0
    return SampleColumn(whole.values[rows], whole.times[rows], known, lambda row: whole[rows[row]] if rows[row] >= 0 else None)


def _by_worker(tracks: Tracks, label: str) -> dict[str, list[int]]:
    """The numbers of series by the worker that they name; `""`: none."""
    found: dict[str, list[int]] = {}
    for number, labels in enumerate(tracks.labels):
        found.setdefault(labels.get(label, ""), []).append(number)
    return found


class _Ranks:
    """A field's gauges for one engine, the preferred first."""

    def __init__(self, gauges: Sequence[Gauge]) -> None:
        self._named: dict[str, list[tuple[int, Gauge]]] = {}
        for rank, gauge in enumerate(gauges):
            self._named.setdefault(gauge.name, []).append((rank, gauge))

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
        for rank, gauge in self._named.get(labels.get("__name__", ""), ()):
            if gauge.labels.items() <= labels.items():
                return rank
        return None
