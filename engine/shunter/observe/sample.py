"""Take all samples of one instant: the catalog's fields for every live worker, and the metrics that policies declare."""

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from shunter.model.errors import Rejected, Retry
from shunter.model.policy import MetricInput
from shunter.model.sample import Known, Missing, Sample
from shunter.model.snapshot import Fleet, Samples, Worker, WorkerState
from shunter.observe.catalog import Catalog, Field, Gauge, window
from shunter.observe.pools import of_pools
from shunter.observe.prometheus import Answer, Client, Series
from shunter.observe.resolve import Ask, Empty, lone, one, partial

Answers: TypeAlias = Mapping[tuple[str, float | None], Answer | Missing]
"""By query and look-back; Missing says why there is no answer."""

_SELECTOR: Final = re.compile(r"""\s*[a-zA-Z_:][a-zA-Z0-9_:]*\s*(?:\{(?:[^{}"'`]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)*\}\s*)?""")
"""A plain selector: a metric's name, perhaps with matchers, and nothing else. Only such a query can be turned into a range."""
_NUMBERS: Final = ("inf", "nan")
_LIVE: Final = (WorkerState.RUNNING, WorkerState.FENCED)
_CATALOG: Final = Catalog()
_AT_ONCE: Final = 2000
"""Workers whose samples are taken in one go."""


async def sample(
    client: Client,
    fleet: Fleet,
    inputs: Mapping[str, Mapping[str, MetricInput]],
    at: float,
    *,
    catalog: Catalog = _CATALOG,
    parallel: int = 4,
    within_s: float = 5.0,
    breathe: Callable[[], None] = lambda: None,
) -> Samples:
    """Samples at `at` (seconds since the epoch): Known, Missing or Stale for each catalog field of each running or fenced worker, for each
    field of both pools of each graph, and for each metric in `inputs` (policy name to metric name to what it declares).

    At most `parallel` queries are under way at once, and those that haven't been answered `within_s` seconds after the start are Missing: a
    slow server costs samples, never the tick. A failed query costs its own samples only. `breathe` is called where this can stand still for
    a moment. Raises nothing for what a server does.
    """
    live = [w for w in fleet.workers if w.state in _LIVE]
    engines = {w.engine for w in live}
    fields = [(f, catalog.query(f, engines)) for f in catalog.fields] if live else []
    declared = {(policy, name): asked_as(metric) for policy, metrics in inputs.items() for name, metric in metrics.items()}
    of_all = [(f, catalog.pool_query(f)) for f in catalog.pools] if fleet.workers else []
    wanted = dict.fromkeys([*((query, None) for _, query in (*fields, *of_all)), *declared.values()])
    answers = await _ask(client, list(wanted), at, parallel, within_s)
    policies: dict[str, dict[str, dict[str, Sample]]] = {policy: {} for policy in inputs}
    for (policy, name), key in declared.items():
        breathe()
        metric = inputs[policy][name]
        ask = Ask(query=metric.query, unit=metric.unit, at=at, max_age=float(metric.max_age))
        policies[policy][name] = _of_policy(answers[key], metric, ask, live, catalog.label)
    workers: dict[str, dict[str, Sample]] = {w.id: {} for w in live}
    for field, query in sorted(fields, key=lambda f: f[0].name):  # as canonical bytes have them: writing those takes a sixth less
        breathe()
        ask = Ask(query=query, unit=field.unit, at=at, max_age=catalog.max_age)
        for worker, value in _of_field(answers[query, None], field, ask, live, catalog.label, breathe):
            workers[worker.id][field.name] = value
    pools: defaultdict[str, dict[str, Sample]] = defaultdict(dict)
    for pool_field, query in of_all:
        breathe()
        ask = Ask(query=query, unit=pool_field.unit, at=at, max_age=catalog.max_age)
        for pool, value in of_pools(answers[query, None], pool_field, ask, fleet, catalog):
            pools[pool][pool_field.name] = value
    return Samples(workers=workers, policies=policies, pools=dict(pools))


def asked_as(metric: MetricInput) -> tuple[str, float | None]:
    """The query to send and its look-back. A plain selector is asked as a range, for the samples' own times; of anything else only the time
    of evaluation can be known, so the server is asked not to reach back further than `maxAge`.
    """
    if _SELECTOR.fullmatch(metric.query) and metric.query.strip().lower() not in _NUMBERS:
        return f"{metric.query.strip()}[{window(metric.max_age)}s]", None
    return metric.query, float(metric.max_age)


async def _ask(client: Client, wanted: list[tuple[str, float | None]], at: float, parallel: int, within_s: float) -> Answers:
    room = asyncio.Semaphore(parallel)

    async def one_query(query: str, lookback_s: float | None) -> Answer | Missing:
        async with room:
            try:
                return await client.query(query, at, lookback_s=lookback_s)
            except (Retry, Rejected) as error:
                return Missing(reason=error.problem.what, query=query)

    tasks = {key: asyncio.ensure_future(one_query(*key)) for key in wanted}
    if not tasks:
        return {}
    try:
        await asyncio.wait(tasks.values(), timeout=within_s)
    finally:
        late = [task for task in tasks.values() if task.cancel()]
        await asyncio.gather(*late, return_exceptions=True)
    return {
        key: Missing(reason=f"no answer within the {within_s:g} s that a round of samples may take", query=key[0])
        if task.cancelled()
        else task.result()
        for key, task in tasks.items()
    }


class _Own:
    """The series of each worker that they name. Nearly every worker has one, which is worth a way of its own."""

    def __init__(self, answer: Answer, label: str) -> None:
        names = [series.labels.get(label, "") for series in answer.series]
        self._alone: dict[str, Series] = dict(zip(names, answer.series, strict=True))
        self._several: dict[str, list[Series]] = {}
        if len(self._alone) < len(names):
            counts = Counter(names)
            for name, series in zip(names, answer.series, strict=True):
                if counts[name] > 1:
                    self._several.setdefault(name, []).append(series)
                    self._alone.pop(name, None)
        self.nameless = self.of("")
        """Those that name none."""
        self.named = len(names) > len(self.nameless)

    def name(self, worker: Worker) -> str:
        """What the worker's series call it: of one in a pod the pod's name, as that is what is scraped; where none does, its id."""
        if worker.pod is not None and (worker.pod.name in self._alone or worker.pod.name in self._several):
            return worker.pod.name
        return worker.id

    def alone(self, worker: str) -> Series | None:
        """The only one that the worker has."""
        return self._alone.get(worker)

    def of(self, worker: str) -> Sequence[Series]:
        """All that the worker has."""
        series = self._alone.get(worker)
        return (series,) if series is not None else self._several.get(worker, ())


def _of_field(
    answer: Answer | Missing, field: Field, ask: Ask, live: list[Worker], label: str, breathe: Callable[[], None]
) -> Iterator[tuple[Worker, Sample]]:
    if not isinstance(answer, Missing):
        answer = partial(answer, ask.query) or answer
    if isinstance(answer, Missing):
        yield from ((worker, answer) for worker in live)
        return
    found = _Own(answer, label)
    gauges = {engine: field.gauges_for(engine) for engine in {w.engine for w in live}}
    plain = {engine: frozenset(g.name for g in own if not g.labels) for engine, own in gauges.items()}
    for place, worker in enumerate(live):
        if place % _AT_ONCE == 0:
            breathe()
        name = found.name(worker)
        series = found.alone(name)
        known = lone(series, ask) if series is not None and series.labels.get("__name__") in plain[worker.engine] else None
        yield worker, known or _plain(one(_first_of(found.of(name), gauges[worker.engine]), ask))


def resolved(field: Field, engine: str, series: Sequence[Series], ask: Ask) -> Sample:
    """What these series, all of one worker of this engine, say of a field."""
    return _plain(one(_first_of(series, field.gauges_for(engine)), ask))


def _first_of(series: Sequence[Series], gauges: Sequence[Gauge]) -> Sequence[Series]:
    for gauge in gauges if series else ():
        own = [s for s in series if s.labels.get("__name__") == gauge.name and gauge.labels.items() <= s.labels.items()]
        if own:
            return own
    return ()


def _of_policy(answer: Answer | Missing, metric: MetricInput, ask: Ask, live: list[Worker], label: str) -> dict[str, Sample]:
    """By worker id, or under `""` one value for all."""
    if not isinstance(answer, Missing):
        answer = partial(answer, ask.query) or answer
    if isinstance(answer, Missing):
        return {"": answer}
    found = _Own(answer, label)
    if not found.named:
        return {"": _or_declared(one(found.nameless, ask), metric, ask)}
    if found.nameless:
        return {"": mixed(ask.query, label)}
    return {worker.id: _or_declared(one(found.of(found.name(worker)), ask), metric, ask) for worker in live}


def mixed(query: str, label: str) -> Missing:
    """Nobody can tell what the series mean: some are of a worker, and some aren't."""
    return Missing(reason=f"some series have the label {label} and some have not", query=query)


def declared(series: Sequence[Series], metric: MetricInput, ask: Ask) -> Sample:
    """What these series, all of one worker or of none, say of a metric that a policy declares."""
    return _or_declared(one(series, ask), metric, ask)


def _plain(value: Sample | Empty) -> Sample:
    return value.missing if isinstance(value, Empty) else value


def _or_declared(value: Sample | Empty, metric: MetricInput, ask: Ask) -> Sample:
    """The author's own word for no data, only where there was an answer without data."""
    if not isinstance(value, Empty):
        return value
    if isinstance(metric.on_missing, str):
        return value.missing
    said = f"{ask.query} (no data: {value.missing.reason}; onMissing declares {float(metric.on_missing):g})"
    return Known(value=float(metric.on_missing), unit=ask.unit, at=ask.at, query=said)
