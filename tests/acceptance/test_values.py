"""Complaints about values that are missing, old, several, or no numbers; and what is said and done here instead.

Each test is named after the row of the list of public bug reports that it answers. Numbers come from a server that speaks Prometheus'
protocol.
"""

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shunter.cli.main import execute
from shunter.decide.evaluate import evaluate
from shunter.decide.profile import Profile
from shunter.lang.bulk import BulkCelRules
from shunter.model.canon import encode, plain
from shunter.model.finding import Finding, Verdict
from shunter.model.operation import EngineState
from shunter.model.plan import Evaluation
from shunter.model.policy import Policy, PolicySet
from shunter.model.sample import Known, Missing, Sample, Stale
from shunter.model.snapshot import Notice, NoticeKind, Samples, Snapshot
from shunter.observe.prometheus import Prometheus
from shunter.observe.recorded import save
from shunter.observe.sample import sample
from shunter.report.json import plan_json
from test_deciding import FLEET, NOW, kinds, of, read

SHIFT = """
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: shift}
spec:
  workers: {graph: chat}
  from: decode
  to: prefill
  when: 'WHEN'
  for: FOR
  sessions: park
  metrics:
"""
METRICS = {
    "wait": "    wait: {query: 'rate(wait[1m]) / rate(asked[1m])', unit: seconds, maxAge: 30s}\n",
    "asked": "    asked: {query: 'sum(rate(asked[1m]))', unit: requests, maxAge: 5m}\n",
}
SAVE = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {all: true}, notices: [preemption]}
"""


@contextmanager
def prometheus(answers: Mapping[str, object]) -> Iterator[str]:
    """The URL of a server that gives each query, by a word in it, its values at NOW, or fails with an HTTP status; to any other nothing."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            found = next((values for word, values in answers.items() if word in asked), [])
            status = found if isinstance(found, int) else 200
            values = found if isinstance(found, list) else []
            result = [{"metric": {"job": f"j{n}"}, "value": [NOW, value]} for n, value in enumerate(values)]
            body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


async def taken(policies: list[Policy], answers: Mapping[str, object]) -> Samples:
    with prometheus(answers) as url:
        async with Prometheus(url) as client:
            return await sample(client, FLEET, {p.name: dict(p.metrics) for p in policies}, NOW)


def shift(when: str, lasts: str = "0s") -> list[Policy]:
    return read(text_of(when, lasts))


def text_of(when: str, lasts: str = "0s") -> str:
    """With those of the metrics that the condition reads."""
    return SHIFT.replace("WHEN", when).replace("FOR", lasts) + "".join(m for name, m in METRICS.items() if f"metrics.{name}" in when)


def decide(policies: list[Policy], series: list[tuple[float, Samples]], notices: tuple[Notice, ...] = ()) -> Evaluation:
    given = PolicySet(commit="c", digest="sha256:p", policies=tuple(sorted(policies, key=lambda p: p.name)))
    snapshots = [Snapshot(at=at, fleet=FLEET, samples=samples, notices=notices) for at, samples in series]
    return evaluate(given, snapshots, EngineState(), snapshots[-1].at, BulkCelRules(), Profile(gpu_restore_floor_s=0))


def waits(sample_: Sample | None) -> Samples:
    return Samples(policies={"shift": {"wait": {} if sample_ is None else {"": sample_}}})


def known(value: float, at: float) -> Known:
    return Known(value=value, unit="seconds", at=at, query="q")


OUTAGE: list[Sample | None] = [Missing(reason="Prometheus is away"), Missing(reason="query returned 0 series; expected 1"), None]


@pytest.mark.parametrize("lost", OUTAGE)
@pytest.mark.parametrize("when", ["metrics.wait > 1.0", "metrics.wait < 1.0", "!(metrics.wait > 1.0)", "metrics.wait > 1.0 || false"])
def test_ac3_an_outage_makes_nothing_happen_however_long_it_lasts(lost: Sample | None, when: str) -> None:
    """keda#965: metrics were away, and once the cooldown was over the fleet was scaled to zero."""
    policies = shift(when, "2m")
    value = 0.5 if "<" in when or "!" in when else 2.0
    series = [(NOW + t, waits(known(value, NOW + t))) for t in range(0, 90, 30)]
    for t in range(90, 4000, 30):
        series = [*series[-8:], (NOW + t, waits(lost))]
        result = decide(policies, series)
        assert (kinds(result), of(result, "shift", "chat").verdict) == ([], Verdict.INCONCLUSIVE), t
    since = NOW + 4000
    for t in range(0, 150, 30):  # it is as if it had just begun
        series = [*series[-8:], (since + t, waits(known(value, since + t)))]
        result = decide(policies, series)
        assert bool(kinds(result)) is (t >= 120), t
        assert t >= 120 or of(result, "shift", "chat").gate == "for"


def test_ac3_a_value_counts_for_as_long_as_its_metric_allows_and_is_never_carried_on() -> None:
    """Each metric has an age of its own: the one is too old after 30 s, the other after 5 minutes."""
    policies = shift("metrics.wait > 1.0 && metrics.asked > 1.0")
    short, long = known(2.0, NOW), known(2.0, NOW)

    def at(age: float) -> Evaluation:
        given = {"wait": {"": short}, "asked": {"": long}}
        return decide(policies, [(NOW + age, Samples(policies={"shift": given}))])

    assert kinds(at(30)) != []
    found = of(at(30.5), "shift", "chat")
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "no value for metrics.wait")
    (stale,) = [i.sample for i in found.evidence[0].inputs if isinstance(i.sample, Stale)]
    assert (stale.age, stale.max_age, stale.value) == (30.5, 30.0, 2.0)
    only = shift("metrics.asked > 1.0")
    for age, acts in ((31.0, True), (300.0, True), (300.5, False)):
        result = decide(only, [(NOW + age, Samples(policies={"shift": {"asked": {"": long}}}))])
        assert bool(kinds(result)) is acts, age


def test_ac3_what_leaves_for_a_notice_waits_for_no_metric() -> None:
    """Held decisions are voluntary ones: sessions on a node that goes are carried away without Prometheus."""
    notice = Notice(id="n", kind=NoticeKind.PREEMPTION, node="a", seen_at=NOW, deadline=NOW + 120)
    result = decide([*shift("metrics.wait > 1.0"), *read(SAVE)], [(NOW, waits(None))], (notice,))
    assert [(o.kind.value, o.worker, o.lane) for o in result.plan.operations] == [("park", "decode-0", "involuntary")]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([], "query returned 0 series; expected 1"),
        (["1", "2"], "query returned 2 series; expected 1"),
        (["3", *["2"] * 6], "query returned 7 series; expected 1"),
        (["NaN"], 'the value of {job="j0"} is not a finite number'),
        (500, "500"),
    ],
)
async def test_ac7_an_answer_that_is_no_one_value_says_what_it_was_and_to_which_query(answer: object, said: str) -> None:
    """argo-rollouts#1466: people read `slice index out of range`."""
    policies = shift("metrics.wait > 1.0")
    found = of(decide(policies, [(NOW, await taken(policies, {"wait": answer}))]), "shift", "chat")
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "no value for metrics.wait")
    (lacking,) = [i.sample for i in found.evidence[0].inputs if i.name == "metrics.wait"]
    assert isinstance(lacking, Missing)
    assert said in lacking.reason
    assert lacking.query == "rate(wait[1m]) / rate(asked[1m])"
    assert said in found.evidence[0].detail
    assert not any(word in str(plain(found)) for word in ("Traceback", "Error(", "index out of range", "NoneType"))


def strictly(data: bytes | str) -> Any:
    """As a reader that knows JSON and nothing more: `NaN` and `Infinity` aren't in it, and no key stands twice."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), [k for k, _ in pairs]
        return dict(pairs)

    return json.loads(data, parse_constant=refuse, object_pairs_hook=once)


@pytest.mark.parametrize("word", ["NaN", "+Inf", "-Inf"])
async def test_ac9_whatever_prometheus_says_all_that_is_written_is_json(
    word: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """argo-rollouts#2758: a page crashed on `[NaN]`."""
    policies = shift("metrics.wait > 1.0 && pools.decode.kvUsage < 0.5")
    samples = await taken(policies, {"wait": [word], "asked": [word], "kv": [word]})
    snapshot = Snapshot(at=NOW, fleet=FLEET, samples=samples)
    evaluation = decide(policies, [(NOW, samples)])
    for data in (encode(snapshot), encode(evaluation.plan), plan_json(evaluation, snapshot)):
        strictly(data)
    (tmp_path / "p.yaml").write_text(text_of("metrics.wait > 1.0"))
    save(snapshot, tmp_path / "fleet.json")
    strictly((tmp_path / "fleet.json").read_text())
    assert execute(["plan", "--snapshot", str(tmp_path / "fleet.json"), "--policies", str(tmp_path), "--format", "json"]) == 0
    (shown,) = strictly(capsysbinary.readouterr().out)["findings"]
    assert shown["verdict"] == "inconclusive"


@pytest.mark.parametrize(("value", "tag"), [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "-inf")])
def test_ac9_what_is_not_finite_is_a_text_for_people_and_refused_where_it_would_count(value: float, tag: str) -> None:
    """As a tagged text it is told apart from what is missing; nothing that is signed or decided on holds it."""
    assert strictly(msgspec.json.encode(plain({"a": [value], "b": None}))) == {"a": [{"notFinite": tag}], "b": None}
    with pytest.raises(ValueError, match="no canonical form"):
        encode({"a": [value]})
    with pytest.raises(ValueError, match="not a known value"):
        Known(value=value, unit="1", at=NOW, query="q")


IDLE = [
    "metrics.asked == 0.0 || metrics.wait < 1.0",
    "metrics.wait < 1.0 || metrics.asked == 0.0",
    "metrics.asked == 0.0 ? true : metrics.wait < 1.0",
]


@pytest.mark.parametrize("when", IDLE)
async def test_ac10_no_traffic_is_told_by_a_counter_of_its_own(when: str) -> None:
    """dynamo#6985, #3131: at idle a latency is 0/0, and nothing was ever scaled down. Nothing asked for isn't an unknown latency."""

    async def said(asked: object, wait: object) -> Finding:
        policies = shift(when)
        result = decide(policies, [(NOW, await taken(policies, {"sum": asked, "wait": wait}))])
        found = of(result, "shift", "chat")
        assert bool(kinds(result)) is (found.verdict is Verdict.ACT)
        return found

    # a query is told by a word in it: `sum` is only in the counter's
    assert (await said(["0"], ["NaN"])).verdict is Verdict.ACT, "idle"
    assert (await said(["0"], [])).verdict is Verdict.ACT, "idle, and the quotient has no series"
    assert (await said(["5"], ["0.2"])).verdict is Verdict.ACT, "busy, and quick"
    assert (await said(["5"], ["2"])).verdict is Verdict.PASS, "busy, and slow"
    for asked, wait in ((["5"], ["NaN"]), (["5"], []), ([], ["NaN"]), (["NaN"], ["NaN"]), (500, ["NaN"])):
        found = await said(asked, wait)
        assert found.verdict is Verdict.INCONCLUSIVE, "that it isn't known is no idleness"
