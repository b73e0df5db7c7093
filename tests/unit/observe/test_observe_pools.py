"""How many workers the planner wants in a pool: whose series counts, and what is no number of workers."""

import msgspec
import pytest
from shunter.model.canon import decode, encode
from shunter.model.errors import Problem, Retry
from shunter.model.ids import Incarnation, WorkerId, pool_id
from shunter.model.pod import Pod
from shunter.model.sample import Known, Missing, Sample, Stale
from shunter.model.snapshot import Fleet, Role, Samples, Worker, WorkerState
from shunter.observe.catalog import Catalog
from shunter.observe.prometheus import Answer, Series
from shunter.observe.sample import sample

NOW = 1_000_000.0
PLANNER = "dynamo_planner_predicted_num_{}_replicas"
OWN = "shunter_pool_desired"


def worker(name: str, graph: str, state: WorkerState = WorkerState.RUNNING) -> Worker:
    role: Role = "decode"
    return Worker(id=WorkerId(name), role=role, graph=graph, engine="vllm", state=state, node=None, slot=None, incarnation=Incarnation(0))


def planner(role: str, value: float | None, graph: str | None = "g", age: float = 1.0, **labels: str) -> Series:
    named = {"dynamo_namespace": graph} if graph is not None else {}
    return Series(labels={"__name__": PLANNER.format(role), **named, **labels}, points=((NOW - age, value),))


def override(role: str, value: float | None, graph: str = "g", **labels: str) -> Series:
    return Series(labels={"__name__": OWN, "graph": graph, "role": role, **labels}, points=((NOW - 1, value),))


class Fake:
    """A Prometheus with these series, by their names."""

    def __init__(self, series: tuple[Series, ...], warnings: tuple[str, ...] = (), error: Exception | None = None) -> None:
        self.series, self.warnings, self.error = series, warnings, error

    async def query(self, promql: str, at: float | None, *, lookback_s: float | None = None) -> Answer:
        assert at == NOW
        if self.error is not None:
            raise self.error
        return Answer(kind="matrix", series=tuple(s for s in self.series if f"{s.labels['__name__']}" in promql), warnings=self.warnings)


async def taken(*series: Series, fleet: Fleet | None = None, catalog: Catalog | None = None, **fake: object) -> Samples:
    client = Fake(series, **fake)  # type: ignore[arg-type]
    return await sample(client, fleet or Fleet(workers=(worker("w", "g"),)), {}, NOW, catalog=catalog or Catalog())


async def desired(*series: Series, role: str = "decode", graph: str = "g", **options: object) -> Sample:
    return (await taken(*series, **options)).pools[pool_id(graph, role)]["desired"]  # type: ignore[arg-type]


def value(given: Sample) -> float:
    assert isinstance(given, Known), given
    return given.value


def reason(given: Sample) -> str:
    assert isinstance(given, Missing), given
    assert given.query
    return given.reason


async def test_each_role_has_the_planners_own_figure_with_its_series() -> None:
    both = planner("prefill", 2.0, pod="p"), planner("decode", 5.0, pod="p")
    prefill, decode_ = await desired(*both, role="prefill"), await desired(*both)
    assert (value(prefill), value(decode_)) == (2, 5)
    assert isinstance(decode_, Known)
    assert (decode_.unit, decode_.at, decode_.labels) == ("workers", NOW - 1, both[1].labels)


async def test_both_pools_of_every_graph_with_a_worker_are_asked_for_and_of_no_other() -> None:
    fleet = Fleet(workers=(worker("a", "g"), worker("b", "h", WorkerState.PARKED)))
    samples = await taken(planner("decode", 3.0), planner("decode", 4.0, "h"), planner("decode", 9.0, "other"), fleet=fleet)
    assert set(samples.pools) == {"g/prefill", "g/decode", "h/prefill", "h/decode"}
    assert value(samples.pools["g/decode"]["desired"]) == 3
    assert value(samples.pools["h/decode"]["desired"]) == 4
    assert reason(samples.pools["h/prefill"]["desired"]) == "query returned 0 series for prefill in h; expected 1"
    assert decode(encode(samples), Samples) == samples


async def test_without_workers_nothing_is_asked() -> None:
    assert await taken(planner("decode", 3.0), fleet=Fleet(), error=ZeroDivisionError()) == Samples()


async def test_ones_own_series_comes_first_and_says_its_role() -> None:
    assert value(await desired(planner("decode", 5.0), override("decode", 4.0))) == 4
    assert value(await desired(planner("decode", 5.0), override("prefill", 4.0))) == 5
    assert value(await desired(planner("decode", 5.0), override("decode", 4.0, "h"))) == 5
    assert value(await desired(override("decode", 0.0))) == 0, "whoever writes a rule can want none"
    assert "not a finite number" in reason(await desired(planner("decode", 5.0), override("decode", None)))


async def test_a_gauge_that_was_never_set_is_no_wish_for_none() -> None:
    """The client library shows a gauge without labels as 0 from its birth on."""
    assert "hasn't decided yet" in reason(await desired(planner("decode", 0.0)))
    of_two = planner("decode", 0.0, pod="prefill-planner"), planner("decode", 3.0, pod="decode-planner")
    assert value(await desired(*of_two)) == 3
    assert "hasn't decided yet" in reason(await desired(of_two[0], planner("decode", 0.0, pod="another")))


@pytest.mark.parametrize("given", [-1.0, 2.5])
async def test_what_is_no_number_of_workers(given: float) -> None:
    assert f"{given:g} is not a number of workers" in reason(await desired(planner("decode", given)))
    assert f"{given:g} is not a number of workers" in reason(await desired(override("decode", given)))


async def test_whose_a_series_is_must_be_said() -> None:
    said = reason(await desired(planner("decode", 3.0, graph=None)))
    assert "0 series for decode in g" in said
    assert "no label dynamo_namespace" in said
    assert "no label" not in reason(await desired(planner("decode", 3.0, graph="h")))
    labelled = planner("decode", 3.0, graph=None, release="g")
    assert value(await desired(labelled, catalog=Catalog(graph="release"))) == 3
    assert value(await desired(override("decode", 4.0), catalog=Catalog(graph="release"))) == 4


async def test_on_kubernetes_a_graph_has_a_namespace_that_is_named_after_both() -> None:
    """`dynamo_namespace` is `<namespace>-<graph>` there, and the graph is called by its own name alone."""
    pod = Pod(namespace="team", name="decode-0", uid="u")
    one = msgspec.structs.replace(worker("decode-0", "g"), pod=pod)
    fleet = Fleet(workers=(one,))
    assert value(await desired(planner("decode", 3.0, graph="team-g"), fleet=fleet)) == 3
    assert value(await desired(planner("decode", 4.0, graph="g"), fleet=fleet)) == 4
    both = Fleet(workers=(one, worker("decode-1", "team-g")))
    assert "0 series" in reason(await desired(planner("decode", 3.0, graph="team-g"), fleet=both)), "it is the other's own name"
    bare = Fleet(workers=(worker("decode-0", "g"),))
    assert "0 series" in reason(await desired(planner("decode", 3.0, graph="team-g"), fleet=bare))


async def test_age_and_doubt_as_for_other_samples() -> None:
    old = await desired(planner("decode", 3.0, age=40.0))
    assert isinstance(old, Stale)
    assert (old.value, old.max_age) == (3, 30)
    two = reason(await desired(planner("decode", 3.0, pod="a"), planner("decode", 4.0, pod="b")))
    assert "2 series" in two
    assert "differ in pod" in two
    assert "partial" in reason(await desired(planner("decode", 3.0), warnings=("a store is away",)))
    away = Retry(Problem(code="SH300", what="Prometheus can't be reached: refused", remedy="r"))
    assert "can't be reached" in reason(await desired(planner("decode", 3.0), error=away))
    assert "finite" in reason(await desired(planner("decode", None)))
