"""From answers to samples: when a value is known, and what is said when it isn't."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from shunter.model.canon import decode, encode
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import Incarnation, NodeId, SlotId, WorkerId
from shunter.model.pod import Pod
from shunter.model.policy import MetricInput
from shunter.model.sample import Known, Missing, Stale
from shunter.model.snapshot import Fleet, Samples, Worker, WorkerState
from shunter.model.units import Duration
from shunter.model.vocabulary import POOL_METRICS, WORKER_METRICS
from shunter.observe.catalog import Catalog, Field, Gauge, window
from shunter.observe.prometheus import Answer, Series
from shunter.observe.sample import sample

NOW = 1_000_000.0
FIELDS = {v.name for v in WORKER_METRICS}


def worker(name: str, engine: str = "vllm", state: WorkerState = WorkerState.RUNNING) -> Worker:
    return Worker(
        id=WorkerId(name),
        role="decode",
        graph="g",
        engine=engine,
        state=state,
        node=NodeId("n"),
        slot=SlotId("n/0"),
        incarnation=Incarnation(0),
    )


def series(name: str, who: str, value: float | None, age: float = 1.0, **labels: str) -> Series:
    identity = {"__name__": name, **({"worker": who} if who else {}), **labels}
    return Series(labels=identity, points=((NOW - age - 1, -1.0), (NOW - age, value)))


def matrix(*given: Series, warnings: tuple[str, ...] = ()) -> Answer:
    return Answer(kind="matrix", series=given, warnings=warnings)


class Fake:
    """Answers by a rule over the query, and remembers what it was asked."""

    def __init__(self, rule: Callable[[str], Answer | Exception]) -> None:
        self.rule = rule
        self.asked: list[tuple[str, float | None, float | None]] = []
        self.under_way = 0
        self.most = 0

    async def query(self, promql: str, at: float | None, *, lookback_s: float | None = None) -> Answer:
        self.asked.append((promql, at, lookback_s))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        answer = self.rule(promql)
        if isinstance(answer, Exception):
            raise answer
        return answer


def failure(kind: type[Retry] | type[Rejected] = Retry) -> Exception:
    return kind(Problem(code="SH300", what="Prometheus can't be reached: refused", remedy="r"))


def metric(query: str = "sum(q)", **options: object) -> MetricInput:
    return MetricInput(query=query, unit="tokens", max_age=Duration(30), **options)  # type: ignore[arg-type]


async def fields(*given: Series, engine: str = "vllm", warnings: tuple[str, ...] = (), catalog: Catalog | None = None) -> dict[str, object]:
    """The samples of one worker, when every query gives these series."""
    taken = await sample(
        Fake(lambda _: matrix(*given, warnings=warnings)), Fleet(workers=(worker("w", engine),)), {}, NOW, catalog=catalog or Catalog()
    )
    return dict(taken.workers["w"])


async def declared(answer: Answer | Exception, fleet: tuple[str, ...] = ("a", "b"), **options: object) -> dict[str, object]:
    """The samples of one declared metric."""
    client = Fake(lambda q: answer if "sum(q)" in q else matrix())
    workers = tuple(worker(w) for w in fleet)
    return dict((await sample(client, Fleet(workers=workers), {"p": {"m": metric(**options)}}, NOW)).policies["p"]["m"])


async def test_every_live_worker_gets_every_field_and_no_other_worker_does() -> None:
    states = dict(zip("abcde", WorkerState, strict=True))
    fleet = Fleet(workers=tuple(worker(w, state=s) for w, s in states.items()))
    taken = await sample(Fake(lambda _: matrix()), fleet, {}, NOW)
    assert {w: states[w] for w in taken.workers} == {"a": WorkerState.RUNNING, "b": WorkerState.FENCED}
    for got in taken.workers.values():
        assert set(got) == FIELDS
        assert all(isinstance(s, Missing) and s.reason == "query returned 0 series; expected 1" and s.query for s in got.values())


async def test_one_query_a_field_at_the_time_given() -> None:
    client = Fake(lambda _: matrix())
    await sample(client, Fleet(workers=tuple(worker(f"w{i}") for i in range(100))), {}, NOW)
    assert len(client.asked) == len(FIELDS) + len(POOL_METRICS)
    assert {at for _, at, _ in client.asked} == {NOW}
    assert all(q.endswith("[45s]") for q, _, _ in client.asked)
    sglang = [q for q, _, _ in client.asked if "sglang" in q]
    assert not sglang, "names of engines that aren't there are not asked for"


async def test_without_workers_nothing_is_asked() -> None:
    client = Fake(lambda _: matrix())
    assert await sample(client, Fleet(), {}, NOW) == Samples()
    assert client.asked == []


@pytest.mark.parametrize(
    ("engine", "name", "field"),
    [
        ("vllm", "vllm:num_requests_running", "running"),
        ("vllm", "vllm:gpu_cache_usage_perc", "kvUsage"),
        ("vllm", "vllm:kv_cache_usage_perc", "kvUsage"),
        ("sglang", "sglang:num_queue_reqs", "waiting"),
        ("sglang", "sglang:kv_used_tokens", "kvTokens"),
        ("trtllm", "trtllm_kv_cache_utilization", "kvUsage"),
        ("trtllm", "trtllm:num_requests_waiting", "waiting"),
        ("tiny", "vllm:num_requests_running", "running"),
        ("vllm", "shunter_worker_sessions", "sessions"),
        ("sglang", "shunter_worker_kv_tokens", "kvTokens"),
        ("vllm", "dynamo_component_gpu_cache_usage_percent", "kvUsage"),
    ],
)
async def test_names_by_engine(engine: str, name: str, field: str) -> None:
    got = await fields(series(name, "w", 0.5), engine=engine)
    assert isinstance(got[field], Known)
    assert sum(isinstance(s, Known) for s in got.values()) == 1


async def test_another_engines_name_does_not_count() -> None:
    got = await fields(series("sglang:num_running_reqs", "w", 3), engine="vllm")
    assert isinstance(got["running"], Missing)


async def test_the_preferred_name_counts_whatever_the_order_of_series() -> None:
    both = [
        series("vllm:num_requests_running", "w", 3),
        series("shunter_worker_running", "w", 9),
        series("dynamo_component_inflight_requests", "w", 5),
    ]
    for order in (both, both[::-1]):
        got = (await fields(*order))["running"]
        assert isinstance(got, Known)
        assert got.value == 9


async def test_dynamos_inflight_requests_count_for_the_generating_endpoint_alone() -> None:
    name = "dynamo_component_inflight_requests"
    got = await fields(series(name, "w", 4, dynamo_endpoint="generate"), series(name, "w", 0, dynamo_endpoint="clear_kv_blocks"))
    assert isinstance(got["running"], Known)
    assert got["running"].value == 4


async def test_a_known_sample_carries_time_unit_query_and_labels() -> None:
    got = (await fields(series("vllm:kv_cache_usage_perc", "w", 0.25, age=7)))["kvUsage"]
    assert isinstance(got, Known)
    assert (got.value, got.unit, got.at) == (0.25, "1", NOW - 7)
    assert got.labels == {"__name__": "vllm:kv_cache_usage_perc", "worker": "w"}
    assert "vllm:kv_cache_usage_perc" in got.query


@pytest.mark.parametrize(("age", "kind"), [(0, Known), (30, Known), (30.001, Stale), (44, Stale), (-5, Known), (-5.001, Missing)])
async def test_age(age: float, kind: type) -> None:
    got = (await fields(series("shunter_worker_sessions", "w", 2, age=age)))["sessions"]
    assert isinstance(got, kind)
    if isinstance(got, Stale):
        assert (got.value, got.max_age) == (2, 30)
        assert got.age == pytest.approx(age)
    if isinstance(got, Missing):
        assert "future" in got.reason


async def test_a_series_that_ended_does_not_compete_with_its_successor() -> None:
    ended = series("shunter_worker_sessions", "w", 2, age=31, instance="old:1")
    got = (await fields(ended, series("shunter_worker_sessions", "w", 5, age=1, instance="new:1")))["sessions"]
    assert isinstance(got, Known)
    assert got.value == 5


async def test_only_the_newest_point_counts_also_when_it_is_not_a_number() -> None:
    got = (await fields(series("shunter_worker_sessions", "w", None)))["sessions"]
    assert isinstance(got, Missing)
    assert got.reason == 'the value of shunter_worker_sessions{worker="w"} is not a finite number'


async def test_different_values_are_no_value_and_equal_ones_are_one() -> None:
    first = series("shunter_worker_sessions", "w", 2, replica="a")
    differing = (await fields(first, series("shunter_worker_sessions", "w", 3, replica="b")))["sessions"]
    assert isinstance(differing, Missing)
    assert differing.reason == "query returned 2 series; expected 1 (they differ in replica)"
    equal = (await fields(first, series("shunter_worker_sessions", "w", 2, age=0.5, replica="b")))["sessions"]
    assert isinstance(equal, Known)
    assert equal.at == NOW - 0.5


async def test_a_partial_answer_is_no_answer() -> None:
    got = await fields(series("shunter_worker_sessions", "w", 2), warnings=("store eu is away",))
    assert all(isinstance(s, Missing) and "partial: store eu is away" in s.reason for s in got.values())


@pytest.mark.parametrize("kind", [Retry, Rejected])
async def test_a_failed_query_costs_its_own_field_only(kind: type[Retry] | type[Rejected]) -> None:
    def rule(query: str) -> Answer | Exception:
        return failure(kind) if "waiting" in query else matrix(series("shunter_worker_sessions", "w", 2))

    inputs = {"p": {"bad": metric("f(waiting)", on_missing=0.0), "good": metric("f(x)")}}
    taken = await sample(Fake(rule), Fleet(workers=(worker("w"),)), inputs, NOW)
    assert taken.workers["w"]["waiting"] == Missing(
        reason="Prometheus can't be reached: refused", query=taken.workers["w"]["waiting"].query
    )
    assert isinstance(taken.workers["w"]["sessions"], Known)
    assert isinstance(taken.policies["p"]["bad"][""], Missing), "onMissing is for no data, not for no answer"
    assert isinstance(taken.policies["p"]["good"]["w"], Known)


async def test_a_declared_metric_by_worker_or_for_all() -> None:
    by_worker = await declared(matrix(series("", "a", 1), series("", "gone", 9)))
    assert isinstance(by_worker["a"], Known)
    assert by_worker["a"].unit == "tokens"
    assert by_worker["b"] == Missing(reason="query returned 0 series; expected 1", query="sum(q)")
    assert set(by_worker) == {"a", "b"}
    for_all = await declared(matrix(series("", "", 4)))
    assert set(for_all) == {""}
    assert isinstance(for_all[""], Known)
    mixed = await declared(matrix(series("", "a", 1), series("", "", 4)))
    assert isinstance(mixed[""], Missing)
    assert "label worker" in mixed[""].reason
    several = await declared(matrix(series("", "", 4, model="x"), series("", "", 5, model="y")))
    assert isinstance(several[""], Missing)
    assert "2 series; expected 1 (they differ in model)" in several[""].reason


async def test_on_missing_is_the_authors_word_for_no_data() -> None:
    nothing = (await declared(matrix(), on_missing=0.0))[""]
    assert isinstance(nothing, Known)
    assert (nothing.value, nothing.at) == (0, NOW)
    assert "onMissing declares 0" in nothing.query
    assert "0 series" in nothing.query
    by_worker = await declared(matrix(series("", "a", 1)), on_missing=2.5)
    assert [s.value for s in by_worker.values() if isinstance(s, Known)] == [1, 2.5]
    not_a_number = (await declared(matrix(series("", "", None)), on_missing=0.0))[""]
    assert isinstance(not_a_number, Known)
    without = (await declared(matrix()))[""]
    assert isinstance(without, Missing)


@pytest.mark.parametrize(
    "answer",
    [
        failure(),
        matrix(series("", "", 1), warnings=("partial",)),
        matrix(series("", "", 1, age=31)),
        matrix(series("", "", 1, age=-6)),
        matrix(series("", "", 1, x="a"), series("", "", 2, x="b")),
    ],
)
async def test_on_missing_says_nothing_about_failures(answer: Answer | Exception) -> None:
    assert not isinstance((await declared(answer, on_missing=0.0))[""], Known)


@pytest.mark.parametrize(
    ("query", "sent", "lookback"),
    [
        ("queue_depth", "queue_depth[45s]", None),
        (" a:b:c ", "a:b:c[45s]", None),
        ('q{job="x", path=~"a}b\\"[5m]"}', 'q{job="x", path=~"a}b\\"[5m]"}[45s]', None),
        ("q{a='}'}", "q{a='}'}[45s]", None),
        ("q[5m]", "q[5m]", 30),
        ("q offset 5m", "q offset 5m", 30),
        ("sum(q)", "sum(q)", 30),
        ("q + q", "q + q", 30),
        ('q{a="b"} / q', 'q{a="b"} / q', 30),
        ('{__name__="q"}', '{__name__="q"}', 30),
        ("NaN", "NaN", 30),
        ("1", "1", 30),
    ],
)
async def test_plain_selectors_are_asked_for_their_own_times(query: str, sent: str, lookback: float | None) -> None:
    client = Fake(lambda _: matrix())
    await sample(client, Fleet(), {"p": {"m": metric(query)}}, NOW)
    assert client.asked == [(sent, NOW, lookback)]


async def test_the_same_query_is_asked_once() -> None:
    client = Fake(lambda _: matrix(series("", "", 1)))
    inputs = {"p": {"m": metric(), "n": metric()}, "q": {"m": metric()}}
    taken = await sample(client, Fleet(), inputs, NOW)
    assert len(client.asked) == 1
    assert all(isinstance(s[""], Known) for metrics in taken.policies.values() for s in metrics.values())


async def test_no_more_queries_at_once_than_allowed() -> None:
    client = Fake(lambda _: matrix())
    inputs = {"p": {f"m{i}": metric(f"f({i})") for i in range(40)}}
    await sample(client, Fleet(workers=(worker("w"),)), inputs, NOW, parallel=4)
    assert len(client.asked) == 46
    assert client.most == 4


async def test_a_fault_of_our_own_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        await sample(Fake(lambda _: ZeroDivisionError()), Fleet(workers=(worker("w"),)), {}, NOW)


async def test_samples_go_through_canonical_bytes() -> None:
    client = Fake(lambda q: matrix(series("shunter_worker_sessions", "w", 2), series("shunter_worker_kv_tokens", "w", 3, age=40)))
    taken = await sample(client, Fleet(workers=(worker("w"),)), {"p": {"m": metric(on_missing=1.0)}}, NOW)
    assert {type(s) for s in taken.workers["w"].values()} == {Known, Missing, Stale}
    assert {type(s) for fields in taken.pools.values() for s in fields.values()} == {Missing}
    assert decode(encode(taken), Samples) == taken


def test_the_catalog_has_every_field_of_the_language() -> None:
    catalog = Catalog()
    assert [(f.name, f.unit) for f in catalog.fields] == [(v.name, v.unit) for v in WORKER_METRICS]
    assert [(f.name, f.unit) for f in catalog.pools] == [(v.name, v.unit) for v in POOL_METRICS]
    for engine in ("vllm", "sglang", "trtllm", "unheard-of"):
        assert all(f.gauges_for(engine) for f in catalog.fields)


def test_the_label_is_configurable_and_can_not_inject() -> None:
    catalog = Catalog(label="pod", max_age=10)
    assert catalog.query(catalog.fields[3], {"vllm"}) == '{__name__="shunter_worker_sessions",pod!=""}[15s]'
    with pytest.raises(Rejected) as caught:
        Catalog(label='worker!=""} or vector(1) #')
    assert caught.value.problem.code == "SH307"
    with pytest.raises(Rejected):
        Catalog(graph="a-b")
    with pytest.raises(Rejected):
        Catalog(fields=(Field(name="x", unit="", gauges=(Gauge(name='a"b'),)),))


async def test_samples_by_another_label() -> None:
    given = Series(labels={"__name__": "shunter_worker_sessions", "pod": "w", "worker": "other"}, points=((NOW, 2.0),))
    got = await fields(given, catalog=Catalog(label="pod"))
    assert isinstance(got["sessions"], Known)


@pytest.mark.parametrize(("age", "seconds"), [(30, 45), (0.2, 1), (0, 1), (7, 11)])
def test_windows_are_whole_seconds_beyond_the_age(age: float, seconds: int) -> None:
    assert window(age) == seconds


async def test_what_is_measured_of_a_worker_in_a_pod_goes_by_the_pods_name_wherever_it_has_moved() -> None:
    moved = msgspec.structs.replace(worker("decode-0"), pod=Pod(namespace="n", name="decode-0-1a2b", uid="u"))
    running = "vllm:num_requests_running"
    both = Fake(lambda _: matrix(series(running, "decode-0", 9.0, age=20.0), series(running, "decode-0-1a2b", 4.0)))
    taken = await sample(both, Fleet(workers=(moved,)), {"p": {"m": metric()}}, NOW)
    assert taken.workers["decode-0"]["running"].value == 4.0  # type: ignore[union-attr]
    assert taken.policies["p"]["m"]["decode-0"].value == 4.0  # type: ignore[union-attr]
    own = Fake(lambda _: matrix(series(running, "decode-0", 9.0)))
    taken = await sample(own, Fleet(workers=(moved,)), {}, NOW)
    assert taken.workers["decode-0"]["running"].value == 9.0, "series that are told apart by its own name"  # type: ignore[union-attr]
