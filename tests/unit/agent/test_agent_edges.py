"""Exits, events, notices, fencing, probing and settings: the agent's edges to the world."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pytest
from agent_fakes import PROCESS, SPEC
from msgspec.structs import replace
from shunter.model.errors import Problem, Rejected, Retry
from shunter.wire import agent_pb2 as pb
from shunter_agent import convert, settings
from shunter_agent.events import Events
from shunter_agent.exits import Exits
from shunter_agent.main import app
from shunter_agent.notices import file as notices
from shunter_agent.notices.port import Notice
from shunter_agent.runtime.port import Process
from shunter_agent.serving.dynamo import DynamoServing
from shunter_agent.serving.probe import Probe
from typer.testing import CliRunner


class TestExits:
    @pytest.mark.parametrize(("code", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)])
    async def test_the_end_of_a_process_is_told_with_its_status(self, code: str, status: int) -> None:
        told: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        exits = Exits(lambda worker, status: told.set_result((worker, status)))
        child = subprocess.Popen([sys.executable, "-S", "-c", f"import sys; sys.stdin.read()\n{code}"], stdin=subprocess.PIPE)
        exits.watch("w", Process(pid=child.pid, started=0))
        child.stdin.close()  # type: ignore[union-attr]
        assert await asyncio.wait_for(told, 10) == ("w", status)
        child.wait()

    async def test_a_process_that_is_dead_already(self) -> None:
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        Exits(lambda _worker, status: told.set_result(status)).watch("w", PROCESS)
        assert await asyncio.wait_for(told, 10) == -1


class TestEvents:
    async def test_a_slow_reader_is_dropped_and_the_others_are_not(self) -> None:
        events = Events(room=2)
        slow, quick = events.subscribe(), events.subscribe()
        quickly = aiter(quick)
        for number in range(3):
            events.publish(pb.Event(notice_withdrawn=str(number)))
            assert (await anext(quickly)).notice_withdrawn == str(number)
        assert events.readers == 1
        assert [event.notice_withdrawn async for event in slow] == ["0", "1"]


class TestNotices:
    def scan(self, folder: Path) -> tuple[list[Mapping[str, Notice]], list[Problem], notices.FileNotices]:
        seen: list[Mapping[str, Notice]] = []
        problems: list[Problem] = []
        source = notices.FileNotices(folder, clock=lambda: 50.0, log=problems.append)
        source._changed = seen.append
        source.scan(first=True)
        return seen, problems, source

    def test_posted_read_and_withdrawn(self, tmp_path: Path) -> None:
        notices.post(tmp_path, kind="preemption", notice_id="n1", deadline=170.0, detail="spot")
        seen, _, source = self.scan(tmp_path)
        assert seen == [{"n1": Notice(id="n1", kind="preemption", seen_at=50.0, deadline=170.0, source="file", detail="spot")}]
        assert notices.withdraw(tmp_path, "n1")
        source.scan()
        assert seen[1:] == [{}]
        assert not notices.withdraw(tmp_path, "n1")

    @pytest.mark.parametrize(
        "text",
        [
            "{",
            "[]",
            '{"id": "a"}',
            '{"id": "a", "kind": "nonsense"}',
            '{"id": "../a", "kind": "gone"}',
            '{"id": "a", "kind": "gone", "lead": "120"}',
            '{"id": "a", "kind": "gone", "deadline": "2026-01-02T03:04:05"}',
            '{"id": "a", "kind": "gone", "deadline": 1, "lead": "1s"}',
            '{"id": "a", "kind": "gone", "typo": 1}',
        ],
    )
    def test_a_malformed_file_is_a_problem_told_once_and_hides_no_other(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "bad.json").write_text(text)
        notices.post(tmp_path, kind="gone", notice_id="good", deadline=None)
        seen, problems, source = self.scan(tmp_path)
        source.scan()
        assert list(seen[0]) == ["good"]
        assert [problem.code for problem in problems] == ["SH641"]
        assert source.health() == tuple(problems)

    @pytest.mark.parametrize("broken", ["", "{", '{"id": "n", "kind": "drain", "deadline": "0001-01-01T00:00:00+23:59"}', "x" * 70_000])
    def test_a_file_that_cant_be_read_any_more_still_says_what_it_said(self, tmp_path: Path, broken: str) -> None:
        """As while somebody writes it anew in place: that would be a notice withdrawn, and another one a moment later."""
        (tmp_path / "n.json").write_text('{"id": "n", "kind": "drain"}')
        seen, problems, source = self.scan(tmp_path)
        (tmp_path / "n.json").write_text(broken)
        source.scan()
        assert (len(seen), [p.code for p in problems], source.health()) == (1, ["SH641"], tuple(problems))
        (tmp_path / "n.json").write_text('{"id": "m", "kind": "drain"}')
        source.scan()
        assert (list(seen[-1]), source.health()) == (["m"], ())
        (tmp_path / "n.json").unlink()
        source.scan()
        assert seen[-1] == {}

    def test_a_folder_that_cant_be_read_withdraws_nothing(self, tmp_path: Path) -> None:
        folder = tmp_path / "notices"
        notices.post(folder, kind="preemption", notice_id="n", deadline=170.0)
        seen, problems, source = self.scan(folder)
        folder.rename(tmp_path / "away")
        source.scan()
        assert (len(seen), [p.code for p in source.health()]) == (1, ["SH642"])
        (tmp_path / "away").rename(folder)
        source.scan()
        assert (len(seen), source.health(), len(problems)) == (1, (), 1)

    def test_a_fault_of_ours_makes_the_folder_blind_and_ends_no_thread(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(notices, "RESCAN_S", 0.01)
        notices.post(tmp_path, kind="drain", notice_id="n", deadline=None)
        blind, seen = threading.Event(), threading.Event()
        source = notices.FileNotices(tmp_path, log=lambda _problem: blind.set())
        source.start(lambda found: seen.set() if not found else None)
        try:
            with monkeypatch.context() as broken:
                broken.setattr(notices, "parse", lambda *_: [][0])
                assert blind.wait(10)
                assert [p.code for p in source.health()] == ["SH642"]
            notices.withdraw(tmp_path, "n")
            assert seen.wait(10)
            assert source.health() == ()
        finally:
            source.stop()

    def test_deadlines(self, tmp_path: Path) -> None:
        for name, fields in {"a": {"lead": "2m"}, "b": {"deadline": "1970-01-01T01:00:00+01:00"}, "c": {"deadline": 7}, "d": {}}.items():
            (tmp_path / f"{name}.json").write_text(json.dumps({"id": name, "kind": "drain", **fields}))
            os.utime(tmp_path / f"{name}.json", (100, 100))
        seen, _, _ = self.scan(tmp_path)
        assert {name: notice.deadline for name, notice in seen[0].items()} == {"a": 220.0, "b": 0.0, "c": 7.0, "d": None}

    def test_a_file_that_appears_is_told_without_being_asked(self, tmp_path: Path) -> None:
        arrived = threading.Event()
        source = notices.FileNotices(tmp_path / "new")
        source.start(lambda found: arrived.set() if found else None)
        try:
            notices.post(tmp_path / "new", kind="gone", notice_id="n", deadline=None)
            assert arrived.wait(3)  # well before the next look without an event
        finally:
            source.stop()

    def test_the_command_line(self, tmp_path: Path) -> None:
        run = CliRunner()
        posted = run.invoke(app, ["notice", "post", "--dir", str(tmp_path), "--kind", "preemption", "--lead", "120s", "--id", "n"])
        assert posted.output == "n\n"
        assert "n  preemption" in run.invoke(app, ["notice", "list", "--dir", str(tmp_path)]).output
        assert run.invoke(app, ["notice", "withdraw", "--dir", str(tmp_path), "n"]).exit_code == 0
        assert run.invoke(app, ["notice", "withdraw", "--dir", str(tmp_path), "n"]).exit_code == 1
        wrong = run.invoke(app, ["notice", "post", "--dir", str(tmp_path), "--kind", "nonsense"])
        assert isinstance(wrong.exception, Rejected)


class Serving:
    """A worker's control API over a transport without a network, registered in a discovery folder."""

    def __init__(self, folder: Path, routes: dict[str, tuple[int, object]], *, obeys: bool = True) -> None:
        self.asked: list[str] = []
        self.routes, self.obeys = routes, obeys
        self.entry = folder / "v1" / "instances" / "dynamo%2Fbackend%2Fgenerate%2Fff"
        self.entry.parent.mkdir(parents=True)
        self.register(True)
        self.now = 0.0
        client = httpx.Client(transport=httpx.MockTransport(self.answer))
        self.serving = DynamoServing(folder, client=client, monotonic=lambda: self.now, wait=self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def register(self, there: bool) -> None:
        if there:
            self.entry.write_text(json.dumps({"endpoint": "generate", "instance_id": 255, "transport": {"tcp": f"{SPEC.address}/ff/x"}}))
        else:
            self.entry.unlink(missing_ok=True)

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(path)
        status, body = self.routes.get(path, (404, {}))
        if status == 200 and request.method == "POST" and self.obeys:
            self.register(not path.endswith(("/fence", "/drain")))
        return httpx.Response(status, json=body)


CONTROLS: dict[str, tuple[int, object]] = {
    "/engine/control/fence": (200, {"instance_id": 255}),
    "/engine/control/unfence": (200, {"instance_id": 255}),
}
ADMIN: dict[str, tuple[int, object]] = {
    "/engine/drain": (200, {}),
    "/engine/resume": (200, {}),
    "/engine/status": (200, {"inflight_requests": 4}),
}


class TestServing:
    @pytest.mark.parametrize("routes", [CONTROLS, ADMIN])
    def test_fenced_and_unfenced_by_whichever_api_there_is(self, tmp_path: Path, routes: dict[str, tuple[int, object]]) -> None:
        worker = Serving(tmp_path, routes)
        assert "gone from discovery" in worker.serving.fence(SPEC)
        assert "back in discovery" in worker.serving.unfence(SPEC)

    def test_a_fence_that_discovery_does_not_show_is_put_back_and_refused(self, tmp_path: Path) -> None:
        worker = Serving(tmp_path, CONTROLS, obeys=False)
        with pytest.raises(Retry, match="SH623"):
            worker.serving.fence(SPEC)
        assert worker.asked == ["/engine/control/fence", "/engine/control/unfence"]

    def test_what_cannot_be_fenced(self, tmp_path: Path) -> None:
        worker = Serving(tmp_path, {})
        worker.register(False)
        with pytest.raises(Rejected, match="SH621"):
            worker.serving.fence(SPEC)
        with pytest.raises(Rejected, match="SH621"):
            worker.serving.fence(replace(SPEC, control=""))
        with pytest.raises(Rejected, match="SH621"):
            DynamoServing().fence(replace(SPEC, control=""))

    def test_a_worker_in_trouble_is_a_reason_to_try_again(self, tmp_path: Path) -> None:
        with pytest.raises(Retry, match="SH622"):
            Serving(tmp_path, {"/engine/control/fence": (500, {})}).serving.fence(SPEC)

    def test_in_flight(self, tmp_path: Path) -> None:
        assert Serving(tmp_path, ADMIN).serving.inflight(SPEC) == 4

    @pytest.mark.parametrize("body", [{}, {"inflight_requests": "3"}, {"inflight_requests": True}, []])
    def test_a_status_without_a_count_is_not_taken_for_idle(self, tmp_path: Path, body: object) -> None:
        with pytest.raises(Rejected, match="SH621"):
            Serving(tmp_path, {"/engine/status": (200, body)}).serving.inflight(SPEC)

    def metrics(self, folder: Path, text: str, status: int = 200) -> DynamoServing:
        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(status, text=text) if request.url.path == "/metrics" else httpx.Response(404)

        return DynamoServing(folder, client=httpx.Client(transport=httpx.MockTransport(answer)))

    def test_in_flight_by_the_metric_where_there_is_no_status(self, tmp_path: Path) -> None:
        text = (
            "# TYPE dynamo_component_inflight_requests gauge\n"
            'dynamo_component_inflight_requests{dynamo_component="backend",dynamo_endpoint="generate",worker_id="ff"} 3\n'
            'dynamo_component_inflight_requests{dynamo_component="backend",dynamo_endpoint="clear",worker_id="ff"} 1\n'
            'dynamo_component_inflight_requests{dynamo_component="backend",dynamo_endpoint="worker_kv_query_source_1d"} 7\n'
        )
        assert self.metrics(tmp_path, text).inflight(SPEC) == 4

    @pytest.mark.parametrize(
        ("text", "status"),
        [
            ("", 200),
            ('dynamo_component_inflight_requests{dynamo_endpoint="worker_kv_query_source_1d"} 0\n', 200),
            ('dynamo_component_inflight_requests{dynamo_endpoint="generate"} NaN\n', 200),
            ('dynamo_component_inflight_requests{dynamo_endpoint="generate"} +Inf\n', 200),
            ('dynamo_component_inflight_requests{dynamo_endpoint="generate"} 0\n', 500),
        ],
    )
    def test_metrics_that_do_not_say_are_not_taken_for_idle(self, tmp_path: Path, text: str, status: int) -> None:
        with pytest.raises(Rejected, match="SH621"):
            self.metrics(tmp_path, text, status).inflight(SPEC)


class TestProbe:
    def probe(self, answers: list[int], alive: Callable[[], bool] = lambda: True) -> str:
        now = [0.0]

        def wait(seconds: float) -> None:
            now[0] += seconds

        client = httpx.Client(
            transport=httpx.MockTransport(lambda _request: httpx.Response(answers.pop(0) if len(answers) > 1 else answers[0]))
        )
        return Probe(client, monotonic=lambda: now[0], wait=wait)(SPEC, alive, 2.0)

    def test_it_waits_for_health(self) -> None:
        assert "100 ms" in self.probe([503, 503, 200])

    def test_a_worker_that_stays_ill(self) -> None:
        with pytest.raises(Rejected, match=r"SH632.*503"):
            self.probe([503])

    def test_a_process_that_died(self) -> None:
        with pytest.raises(Rejected, match="SH631"):
            self.probe([200], lambda: False)


GOOD = """
node = "n"
listen = "127.0.0.1:1"
image_listen = "127.0.0.1:2"
state = "state"
bridge = "br0"
[tls]
ca = "ca.pem"
cert = "c.pem"
key = "c.key"
[[slots]]
index = 0
roles = ["decode"]
[[workers]]
worker = "w"
role = "decode"
graph = "g"
engine = "vllm"
address = "10.0.0.1:9000"
mac = "02:00:00:00:00:01"
slot = 0
command = ["x"]
"""


class TestSettings:
    def load(self, folder: Path, text: str) -> settings.Settings:
        (folder / "agent.toml").write_text(text)
        return settings.load(folder / "agent.toml")

    def test_paths_are_relative_to_the_file(self, tmp_path: Path) -> None:
        found = self.load(tmp_path, GOOD)
        assert (found.state, found.tls.ca, list(found.slot_ids())) == (tmp_path / "state", tmp_path / "ca.pem", ["n/0"])
        assert found.workers[0].spec.command == ("x",)

    def test_what_becomes_of_connections_travels_with_the_worker(self, tmp_path: Path) -> None:
        plain, closing = GOOD.replace("mac =", "# mac ="), 'slot = 0\nconnections = "close"'
        specs = [self.load(tmp_path, text).workers[0].spec for text in (plain, plain.replace("slot = 0", closing))]
        assert [spec.connections for spec in specs] == ["keep", "close"]
        assert [convert.spec(convert.spec_message(spec)).connections for spec in specs] == ["keep", "close"]

    @pytest.mark.parametrize(
        ("before", "after", "words"),
        [
            ('node = "n"', "", "node"),
            ('node = "n"', 'nod = "n"', "nod"),
            ("slot = 0", "slot = 4", "slot 4"),
            ("slot = 0", 'slot = 0\nconnections = "close"', "w has a mac, and so takes its address and its connections along"),
            ("slot = 0", 'slot = 0\nconnections = "reset"', "connections"),
            ('role = "decode"', 'role = "prefill"', "prefill"),
            ('bridge = "br0"', "", "bridge"),
            ('listen = "127.0.0.1:1"', 'listen = "here"', "host:port"),
            ("index = 0", 'index = "0"', "index"),
            ("[tls]", "[tls", "TOML"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path: Path, before: str, after: str, words: str) -> None:
        with pytest.raises(Rejected, match=words) as error:
            self.load(tmp_path, GOOD.replace(before, after, 1))
        assert error.value.problem.code == "SH672"

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(Rejected, match="SH671"):
            settings.load(tmp_path / "none.toml")


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = "import sys, shunter_agent.main; print([m for m in ('grpc', 'httpx', 'watchdog', 'sqlite3') if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )
    assert found.stdout == "[]\n"
