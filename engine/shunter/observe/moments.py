"""Samples over a stretch of the past, instant by instant, without an object for each: `model.table.SampleTable`s over arrays.

They say what `observe.sample` says when it is asked at each instant.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from shunter.model.errors import Rejected, Retry
from shunter.model.policy import MetricInput
from shunter.model.sample import Missing, Sample
from shunter.model.snapshot import Fleet, WorkerState
from shunter.model.table import SampleColumn, SampleTable
from shunter.observe.answer import Answer
from shunter.observe.catalog import Catalog
from shunter.observe.history import CHUNK_S, Ranged, reach_of, reaching
from shunter.observe.packed import pack
from shunter.observe.resolve import partial
from shunter.observe.sample import asked_as
from shunter.observe.stretches import FieldStretch, MetricStretch, Rows, picked
from shunter.observe.tracks import Tracks

_LIVE: Final = (WorkerState.RUNNING, WorkerState.FENCED)
Key: TypeAlias = tuple[str, float | None]
"""A query, and how far back it may look, in seconds; None: as far as it says itself."""


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
        return picked(whole, rows)

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


class Instant(NamedTuple):
    """What was to be seen at one instant: of workers, and by policy and name what policies declare."""

    workers: Moment
    policies: dict[str, dict[str, Mapping[str, Sample]]]


class _Stretch(NamedTuple):
    """All of it over a stretch of time."""

    fields: Sequence[FieldStretch]
    metrics: Sequence[tuple[str, str, MetricStretch]]


class Moments:
    """All catalog fields of a fleet's workers, and the metrics that policies declare, for instants up to `end` (seconds since the epoch),
    `step_s` apart, asked in their order.

    A stretch of `chunk_s` is fetched at a time, the next one while the one before is used. What can't be fetched is Missing at each of its
    instants.
    """

    def __init__(
        self,
        server: Ranged,
        fleet: Fleet,
        end: float,
        step_s: float,
        *,
        catalog: Catalog,
        inputs: Mapping[str, Mapping[str, MetricInput]] | None = None,
        chunk_s: float = CHUNK_S,
    ) -> None:
        """`inputs` is what policies declare, by policy and name."""
        self._server, self._catalog, self._end, self._step = server, catalog, end, step_s
        self._steps = max(1, int(chunk_s / step_s))
        self._rows = Rows([w for w in fleet.workers if w.state in _LIVE])
        engines = {w.engine for w in self._rows.workers}
        self._fields = [(f, catalog.query(f, engines)) for f in catalog.fields] if self._rows.workers else []
        self._metrics = [(policy, name, metric) for policy, own in (inputs or {}).items() for name, metric in own.items()]
        self._policies = tuple(inputs or ())
        self._now = _Stretch((), ())
        self._until = -1.0
        self._next: asyncio.Task[_Stretch] | None = None

    async def at(self, at: float) -> Instant:
        """The samples at `at`, which must not be before the instant asked for last."""
        if at > self._until:
            fetching, self._next = self._next, None
            self._now = await (fetching if fetching is not None else self._fetch(at))
            self._until = self._last(at)
            if (following := at + self._steps * self._step) <= self._end:
                self._next = asyncio.create_task(self._fetch(following))
        policies: dict[str, dict[str, Mapping[str, Sample]]] = {policy: {} for policy in self._policies}
        for policy, name, metric in self._now.metrics:
            policies[policy][name] = metric.at(at)
        return Instant(Moment(self._rows, {one.field.name: one.at(at) for one in self._now.fields}), policies)

    async def aclose(self) -> None:
        """Give up what is being fetched."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)

    def _last(self, at: float) -> float:
        return min(at + (self._steps - 1) * self._step, self._end)

    async def _fetch(self, at: float) -> _Stretch:
        # one query after the other: an answer is large until it is packed
        wanted: list[Key] = [*((query, None) for _, query in self._fields), *map(_key, self._metrics)]
        found = {key: await self._series(key, at) for key in dict.fromkeys(wanted)}
        fields = []
        for field, query in self._fields:
            tracks, missing, warned = found[query, None]
            fields.append(FieldStretch(field, query, self._catalog, self._rows, tracks, missing or partial(warned, query)))
        metrics = []
        for policy, name, metric in self._metrics:
            tracks, missing, warned = found[_key((policy, name, metric))]
            own = missing or partial(warned, metric.query)
            metrics.append((policy, name, MetricStretch(metric, self._catalog.label, self._rows, tracks, own)))
        return _Stretch(fields, metrics)

    async def _series(self, key: Key, at: float) -> tuple[Tracks, Missing | None, Answer]:
        """The series, why there are none, and what the server said beside them."""
        (query, lookback_s), last = key, self._last(at)
        reach, missing, answer = reach_of(query), None, Answer(kind="matrix", series=())
        try:
            if reach is not None and lookback_s is None:
                answer = await self._server.query(reaching(query, last - at), last)
            else:
                answer = await self._server.query_range(query, at, last, self._step, lookback_s=lookback_s)
        except (Retry, Rejected) as error:
            missing = Missing(reason=error.problem.what, query=query)
        packed = pack(answer.series)
        if reach is not None and lookback_s is None:
            tracks = Tracks(packed, reach=reach)
        else:
            # instants go over the wire in milliseconds, and may come back a little later than they were
            tracks = Tracks(packed, reach=self._step / 2, ahead=0.001)
        return tracks, missing, Answer(kind=answer.kind, series=(), warnings=answer.warnings)


def _key(declared: tuple[str, str, MetricInput]) -> Key:
    return asked_as(declared[2])
