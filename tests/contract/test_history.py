"""History against a real Prometheus: at each instant the very samples that asking at that instant gives; and a backtest over it."""

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from past_prometheus import PROMETHEUS, PROMTOOL, serving
from shunter.app.recording import Recording, save
from shunter.cli.main import execute
from shunter.model.ids import Incarnation, NodeId, SlotId, WorkerId
from shunter.model.policy import MetricInput
from shunter.model.sample import Known, Missing, Stale
from shunter.model.snapshot import Fleet, Node, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.model.units import Duration
from shunter.observe.catalog import Catalog
from shunter.observe.history import History
from shunter.observe.moments import Moments
from shunter.observe.prometheus import Prometheus
from shunter.observe.sample import sample

pytestmark = pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason="prometheus and promtool aren't installed")

BEGIN = 1_790_000_010.0
LENGTH, SCRAPE = 3600.0, 15.0
QUEUE = (1200.0, 2400.0)
"""When prefill queues, seconds after the beginning."""


def worker(name: str) -> Worker:
    at = NodeId(f"node-{name}")
    return Worker(
        id=WorkerId(name), role="prefill" if name[0] == "p" else "decode", graph="g", engine="vllm", state=WorkerState.RUNNING, node=at,
        slot=SlotId(f"{at}/0"), incarnation=Incarnation(0), memory=10**9,
    )  # fmt: skip


WORKERS = tuple(worker(name) for name in ("d0", "d1", "d2", "p0"))
FLEET = Fleet(
    nodes=tuple(
        Node(id=w.node, slots=(Slot(id=w.slot, worker=w.id), Slot(id=SlotId(f"{w.node}/1")))) for w in WORKERS if w.node and w.slot
    ),
    workers=WORKERS,
)


def points(value, begin: float = 0.0, end: float = LENGTH, every: float = SCRAPE) -> list[tuple[float, float]]:
    count = int((end - begin) / every)
    return [(BEGIN + begin + n * every + 0.25, value(begin + n * every)) for n in range(count)]


def queued(name: str):
    return lambda t: 50.0 if name == "p0" and QUEUE[0] <= t < QUEUE[1] else 1.0


MADE = {
    "vllm:num_requests_waiting": [({"worker": w.id}, points(queued(w.id))) for w in WORKERS],
    "vllm:kv_cache_usage_perc": [
        ({"worker": "d0"}, points(lambda t: 0.2 + t / 36000)),
        ({"worker": "d1"}, points(lambda t: math.nan if 600 <= t < 660 else 0.3)),
        ({"worker": "d2"}, [*points(lambda t: 0.4, 0, 900), *points(lambda t: 0.4, 1500)]),
        ({"worker": "p0"}, points(lambda t: 0.1)),
    ],
    "shunter_worker_sessions": [({"worker": "d0"}, points(lambda t: 3.0)), ({"worker": "d1"}, points(lambda t: 5.0, every=60))],
    "shunter_worker_kv_tokens": [({"worker": w.id}, points(lambda t: 1000.0)) for w in WORKERS if w.id != "d2"],
    # two series of one worker, of which one ends
    "vllm:num_requests_running": [
        ({"worker": "d0", "instance": "a"}, points(lambda t: 2.0, 0, 1000)),
        ({"worker": "d0", "instance": "b"}, points(lambda t: 7.0, 900)),
    ],
    "wait_seconds": [({"worker": "d0"}, points(lambda t: t)), ({"worker": "d1"}, points(lambda t: 2.0, 0, 600))],
    "requests": [({}, points(lambda t: 10 * t))],
}
INPUTS = {
    "a": {
        "wait": MetricInput(query="wait_seconds", unit="seconds", max_age=Duration(20)),
        "rate": MetricInput(query="deriv(requests[2m])", unit="requests"),
        "none": MetricInput(query="sum(nothing)", unit="1", on_missing=7.0),
        "wrong": MetricInput(query="sum(", unit="1"),
    }
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("past"), MADE) as found:
        yield found


@pytest.mark.parametrize("chunk_s", [30.0, 600.0, 1800.0])
async def test_history_gives_what_asking_at_each_instant_gives(url: str, chunk_s: float) -> None:
    times = [BEGIN + 0.0006 + 70 * n for n in range(52)]
    async with Prometheus(url, deadline_s=30) as server:
        history = History(server, times[-1], 70.0, chunk_s=chunk_s)
        moments = Moments(server, FLEET, times[-1], 70.0, catalog=Catalog(), inputs=INPUTS, chunk_s=chunk_s)
        seen: list[Samples] = []
        for at in times:
            there, direct = await sample(history, FLEET, INPUTS, at, within_s=30), await sample(server, FLEET, INPUTS, at, within_s=30)
            # Prometheus words a refusal of a range a little differently
            assert isinstance(direct.policies["a"].pop("wrong")[""], Missing)
            assert "parse error" in there.policies["a"].pop("wrong")[""].reason
            assert there == direct, at - BEGIN
            instant = await moments.at(at)
            assert instant.workers == direct.workers, at - BEGIN
            assert "parse error" in instant.policies["a"].pop("wrong")[""].reason
            assert instant.policies == direct.policies, at - BEGIN
            seen.append(there)
    kinds = {type(s) for one in seen for fields in one.workers.values() for s in fields.values()}
    assert kinds == {Known, Missing, Stale}, "the comparison saw all there is"
    assert any(isinstance(one.policies["a"]["rate"][""], Known) for one in seen)


async def test_a_server_that_is_away_leaves_everything_missing(tmp_path: Path) -> None:
    async with Prometheus("http://127.0.0.1:1", deadline_s=1) as server:
        history = History(server, BEGIN + 60, 30.0)
        for at in (BEGIN, BEGIN + 30):
            seen = await sample(history, FLEET, {}, at, within_s=5)
            assert {type(s) for fields in seen.workers.values() for s in fields.values()} == {Missing}
        moments = Moments(server, FLEET, BEGIN + 60, 30.0, catalog=Catalog(), chunk_s=30.0)
        assert (await moments.at(BEGIN)).workers == seen.workers
        assert not (await moments.at(BEGIN + 30)).workers.anything
        await moments.aclose()


POLICY = """\
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: relieve}
spec:
  workers: {graph: g}
  from: decode
  to: prefill
  when: pools.prefill.waiting > 30
  for: 2m
  cooldown: 10m
  limits: {from: {min: 1}}
---
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: images}
spec:
  workers: {role: decode}
  every: 20m
  when: worker.kvUsage < 0.9
"""
SETTINGS = """\
state = "state"
[policies]
directory = "policies"
[prometheus]
url = "{url}"
[tls]
ca = "ca.pem"
cert = "engine.pem"
key = "engine.key"
[[agents]]
node = "node-a"
address = "127.0.0.1:1"
"""


@pytest.fixture
def here(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("policies", POLICY), ("other", POLICY.replace("waiting > 30", "waiting > 60").replace("every: 20m", "every: 10m"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(text)
    (tmp_path / "engine.toml").write_text(SETTINGS.format(url=url))
    save(Recording.of(Snapshot(at=BEGIN, fleet=FLEET)), tmp_path / "fleet.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


SPAN = ["--since", "2026-09-21T14:13:30", "--until", "2026-09-21T15:13:30", "--step", "30s", "--snapshot", "fleet.json"]


def told(capsys: pytest.CaptureFixture[str], *more: str) -> list[dict]:
    assert execute(["backtest", *SPAN, "--format", "json", *more]) == 0
    return json.loads(capsys.readouterr().out)["backtests"]


def test_what_the_policies_would_have_done(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = told(capsys, "--svg", "picture.svg")
    assert (found["begin"], found["end"], found["steps"]) == (BEGIN, BEGIN + 3600, 121)
    tallies = {t["policy"]: t for t in found["tallies"]}
    held = tallies["relieve"]["steps"]
    assert held.get("hold", 0) + held.get("act", 0) == pytest.approx((QUEUE[1] - QUEUE[0]) / 30, abs=2)
    checkpoints = [a for a in found["acts"] if a["operation"]["kind"] == "checkpoint"]
    assert {a["operation"]["worker"] for a in checkpoints} == {"d0", "d1", "d2"}
    by_worker = [a["at"] - BEGIN for a in checkpoints if a["operation"]["worker"] == "d0"]
    assert len(by_worker) == 3, by_worker
    assert all(later - earlier >= 1200 for earlier, later in pairwise(by_worker))
    blind = [a["at"] - BEGIN for a in checkpoints if a["operation"]["worker"] == "d2"]
    assert all(not 945 < at < 1500 for at in blind), "while its usage wasn't known, nothing was decided on it"
    assert (here / "picture.svg").read_text().startswith("<svg ")


def test_two_revisions_over_the_same_samples(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = told(capsys, "--compare", "policies", "other")
    (alone,) = told(capsys)
    assert base["acts"] == alone["acts"]
    images = [sum(a["operation"]["kind"] == "checkpoint" for a in one["acts"]) for one in (base, head)]
    assert images[1] > images[0]
    assert {t["policy"]: t for t in head["tallies"]}["relieve"]["steps"].get("hold", 0) == 0
    assert execute(["backtest", *SPAN, "--compare", "policies", "other"]) == 0
    assert "Side by side" in capsys.readouterr().out


def test_what_a_change_would_have_changed_over_that_time(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["diff", "policies", "other", *SPAN, "--format", "json"]) == 2
    found = json.loads(capsys.readouterr().out)["contrast"]
    flips = {(t["flip"]["policy"], t["flip"]["subject"], t["flip"]["before"], t["flip"]["after"]): t for t in found["turned"]}
    queue = flips["relieve", "g", "hold", "pass"]
    assert queue["steps"] == pytest.approx((QUEUE[1] - QUEUE[0]) / 30, abs=2)
    assert queue["flip"]["by_after"]["expression"] == "pools.prefill.waiting > 60"
    assert ["pools.prefill.waiting", "50 requests"] in queue["flip"]["by_after"]["inputs"]
    sooner = next(a for a in found["added"] if a["at"] - BEGIN > 60 and a["operation"]["kind"] == "checkpoint")
    cause = found["turned"][sooner["cause"]]["flip"]
    assert (cause["policy"], cause["subject"]) == ("images", sooner["operation"]["worker"])
    assert "every 20m" in cause["by_before"]["detail"]
    assert execute(["diff", "policies", "policies", *SPAN]) == 0
    assert "no difference in outcome" in capsys.readouterr().out
    assert execute(["diff", "policies", "other", *SPAN, "--notice", "node-d0=preemption:60s"]) == 1
    assert "SH969" in capsys.readouterr().err


def test_what_was_refused_and_so_is_not_compared_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a mistake in a file would look like a policy that nobody wants any more."""
    (here / "broken").mkdir()
    (here / "broken" / "a.yaml").write_text("kind: [")
    for command in (["diff", "policies", "broken", *SPAN], ["backtest", *SPAN, "--compare", "policies", "broken"]):
        execute(command)
        told = " ".join(capsys.readouterr().out.split())
        assert "Files of the head were refused, and what they say isn't compared: a.yaml:1:" in told
        assert "Files of the base" not in told


@pytest.mark.parametrize("arguments", [["--since", "1s", "--step", "30s"], ["--since", "1h", "--step", "0s"], ["--since", "soon"]])
def test_a_time_that_cannot_be_looked_at(here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert execute(["backtest", *arguments]) == 1
    assert "error: SH9" in capsys.readouterr().err
