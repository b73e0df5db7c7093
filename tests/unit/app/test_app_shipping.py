"""Records reach a collector in order and at least once, whatever it answers; and nothing of the engine waits for it."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from shunter.app.audits import shipping
from shunter.app.settings import AuditSettings
from shunter.app.shipping import Shipper
from shunter.audit.journal import Journal
from shunter.model.ids import Commit, Epoch
from shunter.model.record import Record, RecordKind

URL = "http://collector:4318/v1/logs"
Answer = Callable[[httpx.Request], httpx.Response]


def record(number: int, kind: RecordKind = RecordKind.STEP, **body: object) -> Record:
    return Record(
        at=1_800_000_000.25 + number, kind=kind, subject="w", what=f"step {number}", epoch=Epoch(1), commit=Commit("c" * 40), body=body
    )


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "audit.db") as journal:
        journal.append([record(n) for n in range(1, 4)])
        yield journal


def shipper(audit: Journal, answer: Answer) -> Shipper:
    return Shipper(lambda: Journal(audit.path, read_only=True), URL, audit.path.with_suffix(".otlp"), httpx.MockTransport(answer))


def logs(request: httpx.Request) -> list[dict[str, Any]]:
    (resource,) = json.loads(request.content)["resourceLogs"]
    return resource["scopeLogs"][0]["logRecords"]


def attributes(log: dict[str, Any]) -> dict[str, Any]:
    return {pair["key"].removeprefix("shunter.audit."): pair["value"] for pair in log["attributes"]}


def seqs(requests: list[httpx.Request]) -> list[list[int]]:
    return [[int(attributes(log)["seq"]["intValue"]) for log in logs(request)] for request in requests]


class Collector:
    """Answers with what it is given, then with 200, and remembers what it got."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers, self.got = list(answers), []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.got.append(request)
        answer = self.answers.pop(0) if self.answers else httpx.Response(200, json={})
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_each_record_is_sent_in_order_and_once_while_all_is_well(audit: Journal) -> None:
    collector = Collector()
    s = shipper(audit, collector)
    assert [s.send(), s.send()] == [3, 0]
    audit.append([record(4)])
    assert s.send() == 1
    assert shipper(audit, collector).send() == 0, "another process goes on from there"
    assert seqs(collector.got) == [[1, 2, 3], [4]]


def test_what_is_in_a_log(audit: Journal) -> None:
    collector = Collector()
    audit.append([record(4, RecordKind.OUTCOME, n=2**70, x=0.5, on=True, none=None, deep=[{"a": "b"}], outcome={"status": "failed"})])
    shipper(audit, collector).send()
    log = logs(collector.got[0])[3]
    assert log["timeUnixNano"] == "1800000004250000000"
    assert (log["severityNumber"], log["severityText"], log["eventName"]) == (17, "ERROR", "shunter.audit.outcome")
    assert log["body"] == {"stringValue": "w: step 4"}
    told = attributes(log)
    assert (told["commit"], told["pretend"], "operation" in told) == ({"stringValue": "c" * 40}, {"boolValue": False}, False)
    body = {pair["key"]: pair["value"] for pair in told["body"]["kvlistValue"]["values"]}
    assert body["n"] == {"stringValue": str(2**70)}
    assert (body["x"], body["on"], body["none"]) == ({"doubleValue": 0.5}, {"boolValue": True}, {})
    assert body["deep"] == {"arrayValue": {"values": [{"kvlistValue": {"values": [{"key": "a", "value": {"stringValue": "b"}}]}}]}}
    assert collector.got[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("answer", [httpx.Response(503), httpx.Response(429), httpx.Response(404), httpx.ConnectError("refused")])
def test_what_a_collector_does_not_take_now_is_sent_again_ever_more_slowly(audit: Journal, answer: httpx.Response | Exception) -> None:
    collector = Collector(answer, answer)
    s = shipper(audit, collector)
    assert [s._try(), s._try()] == [2.0, 4.0]
    assert s.problem is not None
    assert s.problem.code == "SH979"
    assert s._try() == 1.0
    assert s.problem is None
    assert seqs(collector.got) == [[1, 2, 3]] * 3


def test_one_record_that_is_refused_for_ever_holds_up_none_of_the_others(audit: Journal) -> None:
    def picky(request: httpx.Request) -> httpx.Response:
        return httpx.Response(400 if any(attributes(log)["seq"]["intValue"] == "2" for log in logs(request)) else 200)

    s = shipper(audit, picky)
    said = []
    while s.send():
        said.append(s.problem and s.problem.what)
    assert said == [None, "the collector refuses record 2: it answered 400", None]


def test_what_a_collector_says_it_dropped_is_told(audit: Journal) -> None:
    answer = httpx.Response(200, json={"partialSuccess": {"rejectedLogRecords": "2", "errorMessage": "too old"}})
    s = shipper(audit, Collector(answer))
    assert s.send() == 3
    assert s.problem is not None
    assert s.problem.what == "the collector refused 2 of records 1 to 3: too old"


@pytest.mark.parametrize("content", [b"", b"\x0a\x00", b"[]", b'{"partialSuccess": 5}'])
def test_an_answer_of_any_kind_will_do(audit: Journal, content: bytes) -> None:
    s = shipper(audit, Collector(httpx.Response(200, content=content)))
    assert (s.send(), s.problem) == (3, None)


def test_many_are_sent_in_portions(audit: Journal) -> None:
    audit.append([record(n) for n in range(4, 1102)])
    collector = Collector()
    s = shipper(audit, collector)
    assert [s._try(), s._try(), s._try()] == [0.0, 0.0, 1.0]
    assert [len(got) for got in seqs(collector.got)] == [500, 500, 101]


def test_a_password_in_the_url_is_not_told(audit: Journal) -> None:
    s = Shipper(
        lambda: Journal(audit.path, read_only=True),
        "http://me:hush@c/v1/logs",
        audit.path.with_suffix(".otlp"),
        httpx.MockTransport(Collector(httpx.Response(500))),
    )
    s._try()
    assert s.problem is not None
    assert "hush" not in str(s.problem)


def test_over_a_real_connection_by_its_own_thread(audit: Journal) -> None:
    arrived, got = threading.Event(), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
            self.send_response(200)
            self.end_headers()
            arrived.set()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        made = shipping(audit.path.parent, AuditSettings(otlp=f"http://127.0.0.1:{server.server_port}/v1/logs"))
        assert made is not None
        made.start()
        assert arrived.wait(20)
        made.close()
        server.shutdown()
        serving.join()
    assert got[0][0] == "/v1/logs"
    assert shipping(audit.path.parent, AuditSettings()) is None
