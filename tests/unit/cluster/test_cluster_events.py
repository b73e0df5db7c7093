"""Events of operations: which there are, and on what."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from cluster_server import Server, refused
from shunter.cluster.events import Events, events
from shunter.model.ids import Digest, Epoch, Incarnation, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.pod import Pod


def made(kind: OperationKind, **more: Any) -> list[tuple[str, str, str, str]]:
    planned = PlannedOperation(
        id=OperationId("x-1"), kind=kind, worker=WorkerId("w"), lane="voluntary", policy=PolicyName("p"), reason="because",
        expect=Preconditions(incarnation=Incarnation(0), at=SlotId("a/0")),
        from_slot=SlotId("a/0") if kind is OperationKind.MOVE else None, to_slot=SlotId("b/0") if kind is OperationKind.MOVE else None,
    )  # fmt: skip
    record = OperationRecord(planned=planned, plan=Digest("d"), epoch=Epoch(1), created_at=5.0, **more)
    found = list(events(record, "uid", "shunter"))
    assert len({one["metadata"]["name"] for one in found}) == len(found), "none overwrites another"
    assert {one["metadata"]["namespace"] for one in found if one["involvedObject"]["kind"] == "Node"} <= {"default"}
    return [(one["involvedObject"]["kind"], one["involvedObject"]["name"], one["reason"], one["type"]) for one in found]


def ended(status: Status) -> Outcome:
    return Outcome(status=status, at=9.0, reason="gone")


def test_a_move_is_told_of_where_it_leaves_and_where_it_comes() -> None:
    assert made(OperationKind.MOVE) == [
        ("WorkerOperation", "x-1", "MoveBegun", "Normal"),
        ("Node", "a", "MoveBegun", "Normal"),
        ("Node", "b", "MoveBegun", "Normal"),
    ]
    assert ("Node", "a", "MoveFailed", "Warning") in made(OperationKind.MOVE, outcome=ended(Status.FAILED))


def test_routine_is_told_of_on_nodes_only_when_it_goes_wrong() -> None:
    assert [about for about, *_ in made(OperationKind.CHECKPOINT)] == ["WorkerOperation"]
    assert [about for about, *_ in made(OperationKind.CHECKPOINT, outcome=ended(Status.SUCCEEDED))] == ["WorkerOperation"]
    assert made(OperationKind.CHECKPOINT, outcome=ended(Status.ROLLED_BACK))[1] == ("Node", "a", "CheckpointRolledBack", "Warning")


@pytest.mark.parametrize("more", [{"waits": True}, {"step": Step.FENCED}])
def test_steps_and_what_waits_are_no_news(more: dict[str, Any]) -> None:
    assert made(OperationKind.MOVE, **more) == []


def test_pods_that_a_worker_leaves_and_comes_to_are_told_of_it() -> None:
    left, came = Pod(namespace="dynamo", name="d-0", uid="u0"), Pod(namespace="dynamo", name="d-0-1a", uid="u1")
    found = made(OperationKind.MOVE, outcome=ended(Status.SUCCEEDED), left=left, pod=came)
    assert found[-2:] == [("Pod", "d-0", "MoveSucceeded", "Normal"), ("Pod", "d-0-1a", "MoveSucceeded", "Normal")]


async def test_what_happens_to_the_same_worker_again_is_counted_and_what_is_gone_is_said_anew() -> None:
    def move(number: int, worker: str = "w") -> OperationRecord:
        planned = PlannedOperation(
            id=OperationId(f"move-{number}"), kind=OperationKind.MOVE, worker=WorkerId(worker), lane="voluntary", policy=PolicyName("p"),
            reason="because", expect=Preconditions(incarnation=Incarnation(0)), to_slot=SlotId("b/0"),
        )  # fmt: skip
        pod = Pod(namespace="dynamo", name="d-0-1a", uid="u1")
        return OperationRecord(
            planned=planned, plan=Digest("d"), epoch=Epoch(1), created_at=5.0, outcome=ended(Status.ROLLED_BACK), left=pod
        )

    there: set[str] = set()
    said: list[tuple[str, str, int]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        body, path = json.loads(request.content), request.url.path
        if request.method == "POST":
            if body["metadata"]["name"] in there:
                return refused(409)
            there.add(body["metadata"]["name"])
            said.append((body["involvedObject"]["kind"], body["metadata"]["name"], 1))
        elif path.rpartition("/")[2] not in there:
            return refused(404)
        else:
            said.append(("", path.rpartition("/")[2], body["count"]))
        return httpx.Response(200, json={"metadata": {}})

    server = Server(*[answer] * 30)
    events_of = Events(server.api(), "shunter")
    run = asyncio.create_task(events_of.run())

    async def told(record: OperationRecord) -> list[tuple[str, str, int]]:
        before = len(server.requests)
        events_of.offer(record, f"uid-{record.id}")
        async with asyncio.timeout(5):
            while len(server.requests) < before + 3 or events_of._queue:
                await asyncio.sleep(0.001)
        found = list(said)
        said.clear()
        return found

    try:
        first = await told(move(1))
        assert [kind for kind, _, _ in first] == ["WorkerOperation", "Node", "Pod"]
        again = await told(move(2))
        assert again == [("WorkerOperation", "move-2.rolledback", 1), ("", "move-1.rolledback.b", 2), ("", "move-1.rolledback.d-0-1a", 2)]
        assert await told(move(1)) == [], "said before: by this engine or the one before it"
        other = await told(move(3, "other"))
        assert ("Pod", "move-3.rolledback.d-0-1a", 1) in other, "another worker's is another Event"
        there.clear()
        assert ("Pod", "move-4.rolledback.d-0-1a", 1) in await told(move(4)), "it is gone after an hour"
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    assert events_of.problem is None
