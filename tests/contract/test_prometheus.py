"""The Prometheus client and the sampling rules against a real Prometheus server, and against servers that misbehave."""

import asyncio
import contextlib
import datetime
import http.server
import ipaddress
import itertools
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from prometheus_api_client import PrometheusConnect
from shunter.model.errors import Retry
from shunter.model.ids import Incarnation, NodeId, SlotId, WorkerId
from shunter.model.policy import MetricInput
from shunter.model.sample import Known, Missing, Sample, Stale
from shunter.model.snapshot import Fleet, Samples, Worker, WorkerState
from shunter.model.units import Duration
from shunter.observe.catalog import Catalog
from shunter.observe.prometheus import Answer, Prometheus
from shunter.observe.sample import sample

BINARY = shutil.which("prometheus")

CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
- job_name: workers
  static_configs:
  - {{targets: ["127.0.0.1:{w1}"], labels: {{worker: w1}}}}
  - {{targets: ["127.0.0.1:{w2}"], labels: {{worker: w2}}}}
- job_name: planners
  static_configs:
  - {{targets: ["127.0.0.1:{planner}"], labels: {{dynamo_namespace: g}}}}
rule_files: [rules.yml]
"""
RULES = """
groups:
- name: desired
  interval: 200ms
  rules:
  - record: shunter_pool_desired
    labels: {graph: g, role: decode}
    expr: floor(test_wanted * 1.5)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Target:
    """A worker's /metrics, whose text a test sets."""

    def __init__(self) -> None:
        self.text = ""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = outer.text.encode()
                self.send_response(200 if body else 503)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self.server.server_address[1])
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Server:
    """A Prometheus server of this module's own."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(**ports))
        (folder / "rules.yml").write_text(RULES)
        self.log = (folder / "log").open("wb")
        assert BINARY
        self.process = subprocess.Popen(
            (
                BINARY,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=warn",
            ),
            stdout=self.log,
            stderr=self.log,
        )
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/-/ready", trust_env=False).status_code == 200:
                    return
            assert time.monotonic() < deadline, (folder / "log").read_text()
            assert self.process.poll() is None, (folder / "log").read_text()
            threading.Event().wait(0.05)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def targets() -> Iterator[dict[str, Target]]:
    all_of_them = {"w1": Target(), "w2": Target(), "planner": Target()}
    yield all_of_them
    for target in all_of_them.values():
        target.close()


@pytest.fixture(scope="module")
def server(targets: dict[str, Target], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not BINARY:
        pytest.skip("no prometheus on PATH")
    started = Server(tmp_path_factory.mktemp("prometheus"), {name: t.port for name, t in targets.items()})
    yield started
    started.close()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Prometheus]:
    async with Prometheus(server.url, deadline_s=5) as opened:
        yield opened


serial = itertools.count()


@pytest.fixture
def name() -> str:
    """A metric's name that no other test has used, since the server remembers."""
    return f"test_{next(serial)}"


async def until(ready: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + 20
    while not await ready():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.05)


async def until_scraped(client: Prometheus, promql: str, series: int = 1) -> Answer:
    answer = await client.query(promql, None)

    async def there() -> bool:
        nonlocal answer
        answer = await client.query(promql, None)
        return len(answer.series) == series

    await until(there, f"{series} series of {promql}")
    return answer


def worker(name: str, engine: str = "vllm") -> Worker:
    return Worker(
        id=WorkerId(name),
        role="decode",
        graph="g",
        engine=engine,
        state=WorkerState.RUNNING,
        node=NodeId("n"),
        slot=SlotId("n/0"),
        incarnation=Incarnation(0),
    )


FLEET = Fleet(workers=(worker("w1"), worker("w2")))


def metric(query: str, max_age: float = 30, **options: object) -> dict[str, dict[str, MetricInput]]:
    return {"p": {"m": MetricInput(query=query, unit="requests", max_age=Duration(max_age), **options)}}  # type: ignore[arg-type]


async def test_values_come_with_the_time_of_their_scrape(client: Prometheus, targets: dict[str, Target]) -> None:
    targets[
        "w1"
    ].text = "vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.25\nshunter_worker_sessions 7\n"
    targets["w2"].text = "vllm:num_requests_running 4\nvllm:gpu_cache_usage_perc 0.5\nshunter_worker_kv_tokens 1e6\n"
    await until_scraped(client, "vllm:num_requests_running", 2)
    now = time.time()
    taken = await sample(client, FLEET, {}, now)
    first, second = taken.workers["w1"], taken.workers["w2"]
    assert {f: s.value for f, s in first.items() if isinstance(s, Known)} == {"running": 3, "waiting": 1, "kvUsage": 0.25, "sessions": 7}
    assert {f: s.value for f, s in second.items() if isinstance(s, Known)} == {"running": 4, "kvUsage": 0.5, "kvTokens": 1e6}
    assert second["waiting"] == Missing(reason="query returned 0 series; expected 1", query=second["waiting"].query)
    assert set(first) == set(second) == {"running", "waiting", "kvUsage", "sessions", "kvTokens"}
    running = first["running"]
    assert isinstance(running, Known)
    assert running.at < now, "the time of the scrape, not of the evaluation"
    assert now - running.at < 5
    assert running.labels["__name__"] == "vllm:num_requests_running"
    assert running.unit == "requests"
    # Later the same scrape is the same sample with the same time: evaluated at another instant, its age is told by itself.
    again = (await sample(client, FLEET, {}, running.at + 0.001)).workers["w1"]["running"]
    assert isinstance(again, Known)
    assert again.at == pytest.approx(running.at, abs=1e-6)


async def test_agrees_with_an_independent_reader(client: Prometheus, server: Server, targets: dict[str, Target], name: str) -> None:
    targets["w1"].text = "".join(f'{name}{{i="{i}"}} {v}\n' for i, v in enumerate([0, -1.5, 1e-300, 1e300, 123456789.125, 0.1]))
    await until_scraped(client, f"count_over_time({name}[1m]) > 2", 6)
    other = PrometheusConnect(url=server.url)
    for query in (name, f"sum({name})", f"{name}[5s] @ {time.time():.3f}", f"rate({name}[1m])", f"-{name} > 0"):
        at = time.time() - 0.1
        ours = await client.query(query, at)
        theirs = await asyncio.to_thread(other.custom_query, query, {"time": f"{at:.3f}"})
        flat = {tuple(sorted(s.labels.items())): s.points for s in ours.series}
        expected = {
            tuple(sorted(r["metric"].items())): tuple((float(t), float(v)) for t, v in (r["values"] if "values" in r else [r["value"]]))
            for r in theirs
        }
        assert flat == expected, query
        assert flat


async def test_every_kind_of_result(client: Prometheus) -> None:
    scalar = await client.query("scalar(vector(2)) * 3", 1000.5)
    assert scalar == Answer(kind="scalar", series=scalar.series)
    assert scalar.series[0].points == ((1000.5, 6.0),)
    assert scalar.series[0].labels == {}
    assert (await client.query("vector(1) == 2", None)).series == ()
    with pytest.raises(Retry) as caught:
        await client.query('"text"', None)
    assert caught.value.problem.code == "SH303"
    assert "string" in caught.value.problem.what


async def test_not_a_number_is_missing_with_query_and_labels(client: Prometheus, targets: dict[str, Target], name: str) -> None:
    targets["w1"].text = f"{name} NaN\n"
    targets["w2"].text = f"{name} +Inf\n"
    await until_scraped(client, f"{name}", 2)
    taken = await sample(client, FLEET, metric(name), time.time())
    for who in ("w1", "w2"):
        got = taken.policies["p"]["m"][who]
        assert isinstance(got, Missing)
        assert "not a finite number" in got.reason
        assert f'worker="{who}"' in got.reason
        assert got.query == name
    ratio = await sample(client, FLEET, metric("vector(0) / vector(0)"), time.time())
    assert isinstance(ratio.policies["p"]["m"][""], Missing)
    said = await sample(client, FLEET, metric("vector(0) / vector(0)", on_missing=0.0), time.time())
    declared = said.policies["p"]["m"][""]
    assert isinstance(declared, Known)
    assert declared.value == 0
    assert "onMissing declares 0" in declared.query


async def test_a_target_that_goes_away_turns_stale_and_then_missing(client: Prometheus, targets: dict[str, Target], name: str) -> None:
    targets["w1"].text = f"{name} 5\n"
    targets["w2"].text = f"{name} 6\n"
    await until_scraped(client, name, 2)
    targets["w1"].text = ""

    async def vanished() -> bool:
        return len((await client.query(name, None)).series) == 1

    await until(vanished, "the stale marker")
    last = (await client.query(f'{name}{{worker="w1"}}[1m]', None)).series[0].points[-1][0]
    inputs = metric(name, max_age=4)

    def of_w1(taken: Samples) -> Sample:
        given = taken.policies["p"]["m"]
        return given.get("w1") or given[""]  # "": neither worker has a series any more

    kinds = [type(of_w1(await sample(client, FLEET, inputs, last + age))) for age in (3.9, 4.1, 5.9, 6.1)]
    assert kinds == [Known, Stale, Stale, Missing]
    stale = of_w1(await sample(client, FLEET, inputs, last + 5))
    assert isinstance(stale, Stale)
    assert (stale.value, stale.max_age) == (5, 4)
    assert stale.age == pytest.approx(5, abs=1e-3)
    not_declared = of_w1(await sample(client, FLEET, metric(name, max_age=4, on_missing=1.0), last + 5))
    assert isinstance(not_declared, Stale), "onMissing is for no data, not for old data"


async def test_more_than_one_value_for_a_worker_is_none(client: Prometheus, targets: dict[str, Target]) -> None:
    targets["w1"].text = 'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
    targets["w2"].text = 'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 3\n'
    await until_scraped(client, 'vllm:num_requests_running{engine=~"0|1"}', 4)
    catalog = Catalog(max_age=1.0)

    async def settled() -> bool:  # series of earlier tests have gone out of the window
        return len((await client.query("vllm:num_requests_running[2s]", None)).series) == 4

    await until(settled, "only this test's series")
    taken = await sample(client, FLEET, {}, time.time(), catalog=catalog)
    doubled = taken.workers["w1"]["running"]
    assert isinstance(doubled, Missing)
    assert doubled.reason == "query returned 2 series; expected 1 (they differ in engine)"
    agreeing = taken.workers["w2"]["running"]
    assert isinstance(agreeing, Known)
    assert agreeing.value == 3


async def test_what_the_planner_wants_and_a_rule_that_says_otherwise(client: Prometheus, targets: dict[str, Target]) -> None:
    prefill, decode = (f"dynamo_planner_predicted_num_{role}_replicas" for role in ("prefill", "decode"))
    targets["planner"].text = f"{prefill} 2\n{decode} 0\n"
    await until_scraped(client, f"{prefill} == 2")
    first = await sample(client, FLEET, {}, time.time())
    wanted = first.pools["g/prefill"]["desired"]
    assert isinstance(wanted, Known)
    assert (wanted.value, wanted.unit, wanted.labels["dynamo_namespace"]) == (2, "workers", "g")
    assert wanted.at < time.time()
    undecided = first.pools["g/decode"]["desired"]
    assert isinstance(undecided, Missing)
    assert "hasn't decided yet" in undecided.reason
    targets["planner"].text = f"{prefill} 2\n{decode} 6\ntest_wanted 5\n"
    await until_scraped(client, "shunter_pool_desired")
    second = await sample(client, FLEET, {}, time.time())
    of_the_rule = second.pools["g/decode"]["desired"]
    assert isinstance(of_the_rule, Known)
    assert (of_the_rule.value, of_the_rule.labels["__name__"]) == (7, "shunter_pool_desired")


async def test_a_bad_query_costs_its_own_sample_only(client: Prometheus, targets: dict[str, Target]) -> None:
    targets["w1"].text = "shunter_worker_sessions 9\n"
    await until_scraped(client, 'shunter_worker_sessions{worker="w1"} == 9')
    with pytest.raises(Retry) as caught:
        await client.query("sum(", None)
    assert caught.value.problem.code == "SH303"
    assert "parse error" in caught.value.problem.what
    assert "sum(" in caught.value.problem.what
    inputs = {"bad": metric("sum(")["p"], "good": metric("vector(4)")["p"]}
    taken = await sample(client, FLEET, inputs, time.time())
    bad, good = taken.policies["bad"]["m"][""], taken.policies["good"]["m"][""]
    assert isinstance(bad, Missing)
    assert "parse error" in bad.reason
    assert isinstance(good, Known)
    assert good.value == 4
    assert isinstance(taken.workers["w1"]["sessions"], Known)


async def test_a_killed_server_is_a_retry_and_everything_missing(targets: dict[str, Target], tmp_path: Path) -> None:
    if not BINARY:
        pytest.skip("no prometheus on PATH")
    mortal = Server(tmp_path, {name: t.port for name, t in targets.items()})
    async with Prometheus(mortal.url) as client:
        assert (await client.query("vector(1)", None)).series
        mortal.close()
        with pytest.raises(Retry) as caught:
            await client.query("vector(1)", None)
        assert caught.value.problem.code in {"SH300", "SH304"}, "away, or gone within the connection that was open"
        with pytest.raises(Retry) as caught:
            await client.query("vector(1)", None)
        assert caught.value.problem.code == "SH300"
        assert mortal.url in str(caught.value)
        taken = await sample(client, FLEET, metric("vector(1)", on_missing=0.0), time.time())
    assert all(isinstance(s, Missing) for fields in taken.workers.values() for s in fields.values())
    assert isinstance(taken.policies["p"]["m"][""], Missing), "an outage is not the author's no data"


# -- servers that misbehave

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def misbehaving(handle: Handle) -> AsyncIterator[str]:
    """An HTTP server that reads a whole request and then does as told."""
    under_way: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
            await reader.readexactly(length)
            await handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except (OSError, asyncio.CancelledError):
                writer.transport.abort()  # a client that doesn't read keeps it from ending by itself
            under_way.discard(task)

    started = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{started.sockets[0].getsockname()[1]}"
    finally:
        for task in list(under_way):
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        started.close()
        await started.wait_closed()


def reply(body: str | bytes, *, status: str = "200 OK", headers: str = "", length: int | None = None) -> Handle:
    data = body.encode() if isinstance(body, str) else body

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(data) if length is None else length}\r\n{headers}\r\n".encode() + data)
        await writer.drain()

    return handle


async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


SUCCESS = '{"status":"success","data":{"resultType":"vector","result":[]}}'


@pytest.mark.parametrize(
    ("handle", "code", "words"),
    [
        (hang, "SH301", "within 0.3 s"),
        (drip, "SH301", "within 0.3 s"),
        (reply("<html>Sign in</html>"), "SH304", "isn't Prometheus' JSON"),
        (reply("[]"), "SH304", "isn't Prometheus' JSON"),
        (reply(SUCCESS[:-9], length=len(SUCCESS)), "SH304", "broke off"),
        (reply(SUCCESS[:-9]), "SH304", "isn't Prometheus' JSON"),
        (reply('{"status":"success"}'), "SH302", "HTTP 200"),
        (reply('{"status":"success","data":{"resultType":"vector","result":[{"metric":{}}]}}'), "SH304", "without a value"),
        (reply('{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"x"]}]}}'), "SH304", "x"),
        (reply('{"status":"error","errorType":"internal","error":"boom"}'), "SH303", "internal: boom"),
        (reply('{"status":"error","errorType":"timeout","error":"slow"}', status="503 Service Unavailable"), "SH303", "timeout: slow"),
        (reply("upstream down", status="503 Service Unavailable"), "SH302", "HTTP 503"),
        (reply("<html>", status="500 Internal Server Error"), "SH302", "HTTP 500"),
        (reply("who are you", status="401 Unauthorized"), "SH302", "HTTP 401"),
        (reply(SUCCESS, status="404 Not Found"), "SH302", "HTTP 404"),
        (reply("", status="302 Found", headers="Location: http://127.0.0.1:1/\r\n"), "SH302", "redirects"),
        (reply(SUCCESS, headers="Content-Encoding: gzip\r\n"), "SH304", "compressed"),
        (reply(b"x" * 2000), "SH305", "1,000 bytes"),
    ],
)
async def test_a_server_that_misbehaves(handle: Handle, code: str, words: str) -> None:
    deadline = 0.3 if code == "SH301" else 30.0  # what answers at once may take its time on a busy machine
    async with misbehaving(handle) as url, Prometheus(url, deadline_s=deadline, max_bytes=1000) as client:
        with pytest.raises(Retry) as caught:
            await client.query("up", None)
    assert caught.value.problem.code == code
    assert words in caught.value.problem.what
    assert caught.value.problem.subject == url


async def test_it_asks_once_whatever_happens() -> None:
    asked = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reply("no", status="503 Service Unavailable")(reader, writer)

    async with misbehaving(count) as url, Prometheus(url) as client:
        with pytest.raises(Retry):
            await client.query("up", None)
    assert asked == 1


async def test_a_partial_answer_is_kept_apart_and_decides_nothing() -> None:
    body = (
        '{"status":"success","warnings":["store eu-1 is away"],"infos":["hint"],"data":{"resultType":"matrix","result":'
        f'[{{"metric":{{"__name__":"shunter_worker_running","worker":"w1"}},"values":[[{time.time():.3f},"1"]]}}]}}}}'
    )
    async with misbehaving(reply(body)) as url, Prometheus(url) as client:
        answer = await client.query("up", None)
        assert answer.warnings == ("store eu-1 is away",)
        assert answer.infos == ("hint",)
        assert answer.series[0].points[0][1] == 1
        taken = await sample(client, FLEET, metric("shunter_worker_running"), time.time())
    for got in (*taken.workers["w1"].values(), taken.policies["p"]["m"][""]):
        assert isinstance(got, Missing)
        assert "store eu-1 is away" in got.reason


async def test_native_histograms_hold_no_number() -> None:
    body = '{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"histogram":[5,{"count":"1","sum":"2"}]}]}}'
    async with misbehaving(reply(body)) as url, Prometheus(url) as client:
        answer = await client.query("h", None)
    assert answer.series[0].points == ((5.0, None),)


async def test_a_server_that_hangs_costs_samples_and_not_the_tick() -> None:
    async with misbehaving(hang) as url, Prometheus(url, deadline_s=30) as client:
        started = time.monotonic()
        taken = await sample(client, FLEET, metric("vector(1)"), time.time(), within_s=0.3)
        assert time.monotonic() - started < 5
    got = [*taken.workers["w2"].values(), taken.policies["p"]["m"][""]]
    assert len(got) == 6
    assert all(isinstance(s, Missing) and "within the 0.3 s" in s.reason for s in got)


async def test_credentials_are_sent_and_never_shown() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    started = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = started.sockets[0].getsockname()[1]
    async with started, Prometheus(f"http://user:hunter2@127.0.0.1:{port}/prefix/", headers={"X-Scope-OrgID": "team"}) as client:
        with pytest.raises(Retry) as caught:
            await client.query("up", None)
    assert "hunter2" not in str(caught.value)
    assert heads[0].startswith(b"POST /prefix/api/v1/query ")
    lowered = heads[0].lower()
    assert b"authorization: basic " in lowered
    assert b"x-scope-orgid: team" in lowered
    assert b"accept-encoding: identity" in lowered


async def test_the_form_says_query_time_deadline_and_look_back() -> None:
    forms: list[dict[str, list[str]]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
        forms.append(parse_qs((await reader.readexactly(length)).decode(), strict_parsing=True))
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(SUCCESS)}\r\nConnection: close\r\n\r\n{SUCCESS}".encode())
        await writer.drain()
        writer.close()

    started = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with started, Prometheus(f"http://127.0.0.1:{started.sockets[0].getsockname()[1]}", deadline_s=1.5) as client:
        await client.query('a{b="&=é+"}', 1234.5678, lookback_s=30)
        await client.query("a", None)
    assert forms == [
        {"query": ['a{b="&=é+"}'], "time": ["1234.568"], "timeout": ["1500ms"], "lookback_delta": ["30s"]},
        {"query": ["a"], "timeout": ["1500ms"]},
    ]


def certificate(folder: Path, name: str, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key, signed by `issuer` or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(minutes=5))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(issuer[1] if issuer else key, hashes.SHA256())
    )
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return paths


async def test_tls_with_a_private_authority_and_a_client_certificate(tmp_path: Path) -> None:
    ca = certificate(tmp_path, "ca", None)
    issuer = x509.load_pem_x509_certificate(ca[0].read_bytes()), serialization.load_pem_private_key(ca[1].read_bytes(), None)
    assert isinstance(issuer[1], ec.EllipticCurvePrivateKey)
    served = certificate(tmp_path, "server", (issuer[0], issuer[1]))
    ours = certificate(tmp_path, "client", (issuer[0], issuer[1]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*served)
    context.load_verify_locations(ca[0])
    context.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(SUCCESS)}\r\nConnection: close\r\n\r\n{SUCCESS}".encode())
            await writer.drain()
        writer.close()

    started = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{started.sockets[0].getsockname()[1]}"
    async with started:
        async with Prometheus(url, ca=ca[0], cert=ours) as client:
            assert (await client.query("up", None)).series == ()
        for options in ({"cert": ours}, {"ca": ca[0]}):  # a server that isn't trusted; a client that isn't
            async with Prometheus(url, **options) as client:  # type: ignore[arg-type]
                with pytest.raises(Retry) as caught:
                    await client.query("up", None)
            assert caught.value.problem.code in {"SH300", "SH304"}
