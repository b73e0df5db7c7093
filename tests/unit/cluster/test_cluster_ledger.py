"""The ledger against a server in memory that keeps versions, and that fails when it is told to."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from cluster_server import Server, refused
from shunter.cluster.ledger import Ledger, Overtaken
from shunter.cluster.operation import FINALIZER, record_of
from shunter.model.errors import Stalled
from shunter.model.ids import Digest, Epoch, ImageId, Incarnation, OperationId, PolicyName, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Sending, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions


class Kept(Server):
    """Operations by name. `failures` come instead of the next answers to what would change something; None lets one through.

    One that is a pair is given after the change was made all the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, dict[str, Any]] = {}
        self.failures: list[httpx.Response | Exception | tuple[Exception] | None] = []
        self.version = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.requests.append(request)
        failure = self.failures.pop(0) if request.method != "GET" and self.failures else None
        if isinstance(failure, httpx.Response):
            return failure
        if isinstance(failure, Exception):
            raise failure
        answer = self._answer(request)
        if isinstance(failure, tuple):
            raise failure[0]
        return answer

    def _answer(self, request: httpx.Request) -> httpx.Response:
        name, _, sub = request.url.path.partition("/workeroperations")[2].strip("/").partition("/")
        body = json.loads(request.content) if request.content else {}
        if request.method == "POST":
            name = body["metadata"]["name"]
            return refused(409) if name in self.kept else self._store(name, {k: v for k, v in body.items() if k != "status"})
        if not name:
            return httpx.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": list(self.kept.values())})
        one = self.kept.get(name)
        if one is None:
            return refused(404)
        if request.method == "DELETE":
            return httpx.Response(200, json=self.kept.pop(name))
        if request.method == "PUT":
            if body["metadata"]["resourceVersion"] != one["metadata"]["resourceVersion"]:
                return refused(409)
            return self._store(name, {**one, "status": body["status"]} if sub else {**body, "status": one.get("status")})
        return httpx.Response(200, json=one)

    def _store(self, name: str, one: dict[str, Any]) -> httpx.Response:
        self.version += 1
        self.kept[name] = {**one, "metadata": {**one["metadata"], "resourceVersion": str(self.version), "uid": f"uid-{name}"}}
        return httpx.Response(200, json=self.kept[name])

    def touch(self, name: str, **status: Any) -> None:
        """Somebody else writes it."""
        one = self.kept[name]
        self._store(name, {**one, **({"status": {**(one.get("status") or {}), **status}} if status else {})})


def record(name: str = "discard-1", **more: Any) -> OperationRecord:
    planned = PlannedOperation(
        id=OperationId(name), kind=OperationKind.DISCARD, worker=WorkerId("w"), lane="voluntary", policy=PolicyName("p"),
        reason="old", expect=Preconditions(incarnation=Incarnation(0)), image=ImageId("i"),
    )  # fmt: skip
    return OperationRecord(
        planned=planned, plan=Digest("sha256:x"), epoch=Epoch(5), created_at=1.0, history=((Step.INTENDED, 1.0),), **more
    )


@pytest.fixture
def server() -> Kept:
    return Kept()


@pytest.fixture
async def ledger(server: Kept) -> AsyncIterator[Ledger]:
    api = server.api()
    found = Ledger(api, "n", Epoch(5), clock=lambda: 10.0)
    running = asyncio.create_task(found.run())
    yield found
    found.stop()
    await running
    await api.aclose()


async def until(done: Any) -> None:
    async with asyncio.timeout(5):
        while not done():
            await asyncio.sleep(0.01)


async def test_an_intent_is_one_write_and_its_status_follows(server: Kept, ledger: Ledger) -> None:
    await ledger.put([record()], together=True)
    assert [request.method for request in server.requests] == ["POST"]
    await until(lambda: server.kept["discard-1"].get("status"))
    assert record_of(server.kept["discard-1"]) == record()


async def test_how_far_its_image_is_is_shown_now_and_then_and_not_beyond_the_step(server: Kept) -> None:
    api, now = server.api(), [100.0]
    ledger = Ledger(api, "n", Epoch(5), clock=lambda: 10.0, steady=lambda: now[0])
    running = asyncio.create_task(ledger.run())

    def show(count: int, name: str = "discard-1") -> None:
        ledger.show(Sending(operation=OperationId(name), bytes=count, at=9.0))

    def shown() -> Any:
        return server.kept["discard-1"].get("status", {}).get("sending", {}).get("bytes")

    show(1)
    assert not server.requests, "nobody knows it"
    await ledger.put([record(step=Step.FENCED)], together=True)
    show(2)
    await until(lambda: shown() == 2)
    said = len(server.requests)
    now[0] += 4.9
    show(3)
    now[0] += 0.1
    show(4)
    await until(lambda: shown() == 4)
    assert [request.method for request in server.requests[said:]].count("PUT") == 1
    await ledger.put([record(step=Step.FROZEN)], together=True)
    assert shown() is None
    assert server.kept["discard-1"]["status"]["step"] == "frozen"
    now[0] += 5
    await ledger.put([record(step=Step.FROZEN, outcome=Outcome(status=Status.SUCCEEDED, at=9.0))], together=True)
    show(5)
    assert shown() is None
    ledger.stop()
    await running
    await api.aclose()


async def test_what_has_ended_already_is_never_seen_as_merely_intended(server: Kept, ledger: Ledger) -> None:
    """What a node did by itself, and told of later: whoever led next would do it again."""
    ledger.stop()
    await ledger.put([record(outcome=Outcome(status=Status.SUCCEEDED, at=9.0))], together=True)
    assert server.kept["discard-1"]["status"]["phase"] == "succeeded"


async def test_a_step_names_the_version_that_it_follows(server: Kept, ledger: Ledger) -> None:
    await ledger.put([record()], together=True)
    server.touch("discard-1")  # a person's label
    await ledger.put([record(step=Step.DUMPED)], together=True)
    assert server.kept["discard-1"]["status"]["step"] == "dumped"
    server.touch("discard-1", epoch=6)
    with pytest.raises(Overtaken):
        await ledger.put([record(step=Step.COPIED)], together=True)
    assert server.kept["discard-1"]["status"]["step"] == "dumped"
    before = len(server.requests)
    with pytest.raises(Overtaken):
        await ledger.put([record("discard-2")], together=True)
    assert len(server.requests) == before, "not even asked"


HICCUPS = [refused(500), refused(429), httpx.ConnectError("refused"), (httpx.ReadError("reset"),)]


@pytest.mark.parametrize("hiccup", HICCUPS, ids=["failed", "busy", "away", "lost"])
async def test_a_hiccup_stops_nothing_and_does_nothing_twice(server: Kept, ledger: Ledger, hiccup: Any) -> None:
    server.failures = [hiccup]
    await ledger.put([record()], together=True)
    assert list(server.kept) == ["discard-1"]
    server.failures = [None, hiccup] if not server.kept["discard-1"].get("status") else [hiccup]
    await ledger.put([record(step=Step.DUMPED)], together=True)
    assert server.kept["discard-1"]["status"]["step"] == "dumped"
    assert ledger.problem is None


async def test_what_fails_twice_is_told_and_nothing_of_it_stays(server: Kept, ledger: Ledger) -> None:
    server.failures = [(httpx.ReadError("reset"),), refused(500), refused(500)]
    with pytest.raises(Stalled) as raised:
        await ledger.put([record()], together=True)
    assert raised.value.problem.code == "SH251"
    await until(lambda: ledger.problem is None)
    await until(lambda: server.kept == {})
    await ledger.put([record()], together=True)
    assert list(server.kept) == ["discard-1"]


async def test_of_what_is_under_way_already_each_that_is_there_stays(server: Kept, ledger: Ledger) -> None:
    """It went on in memory while the server was away: what came through when it was back is lost no more."""
    under_way = [record("discard-1", step=Step.DUMPED), record("discard-2", step=Step.DUMPED)]
    server.failures = [None, refused(500), refused(500), refused(500)]
    with pytest.raises(Stalled):
        await ledger.put(under_way, together=False)
    await until(lambda: ledger.problem is None)
    assert "DELETE" not in [request.method for request in server.requests]
    await ledger.put(under_way, together=False)
    assert {name: one["status"]["step"] for name, one in server.kept.items()} == {"discard-1": "dumped", "discard-2": "dumped"}


async def test_what_stands_there_already_is_not_written_again(server: Kept, ledger: Ledger) -> None:
    await ledger.put([record(step=Step.DUMPED)], together=True)
    await ledger.put([record(step=Step.DUMPED)], together=True)
    assert [request.method for request in server.requests if request.method != "GET"] == ["POST", "PUT"]


async def test_a_status_that_comes_later_and_fails_keeps_nothing_else_from_being_written(server: Kept, ledger: Ledger) -> None:
    server.failures = [None, refused(500)]
    await ledger.put([record()], together=True)
    await until(lambda: not server.failures)
    await ledger.put([record("discard-2")], together=True)
    await until(lambda: all(one.get("status") for one in server.kept.values()))


async def test_one_that_has_ended_is_let_go_and_then_may_be_deleted(server: Kept, ledger: Ledger) -> None:
    await ledger.put([record()], together=True)
    assert server.kept["discard-1"]["metadata"]["finalizers"] == [FINALIZER]
    await ledger.put([record(outcome=Outcome(status=Status.SUCCEEDED, at=9.0))], together=True)
    await until(lambda: not server.kept["discard-1"]["metadata"]["finalizers"])
    assert server.kept["discard-1"]["status"]["phase"] == "succeeded"


async def test_one_that_somebody_took_away_by_force_is_there_again_at_its_next_step(server: Kept, ledger: Ledger) -> None:
    await ledger.put([record()], together=True)
    await until(lambda: server.kept["discard-1"].get("status"))
    del server.kept["discard-1"]
    await ledger.put([record(step=Step.DUMPED)], together=True)
    assert server.kept["discard-1"]["status"]["step"] == "dumped"


async def test_another_of_the_same_name_that_was_never_begun_makes_way(server: Kept, ledger: Ledger) -> None:
    """Left by a write that failed, of a plan that isn't wanted any more."""
    other = Kept()
    api = other.api()
    await Ledger(api, "n", Epoch(5)).put([msgspec.structs.replace(record(), plan=Digest("sha256:older"))], together=True)
    await api.aclose()
    server.kept = other.kept
    await ledger.put([record()], together=True)
    assert server.kept["discard-1"]["spec"]["plan"] == "sha256:x"
