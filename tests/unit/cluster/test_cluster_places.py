"""What the engine says of pods, where the API server doesn't take it at once."""

from typing import Any

import pytest
from shunter.cluster.api import Conflict
from shunter.cluster.estate import Estate
from shunter.cluster.places import Pods
from shunter.cluster.pods import Being, WorkerPod
from shunter.model.errors import Problem, Rejected, Retry, ShunterError
from shunter.model.ids import Digest, Epoch, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.pod import Pod, Resident

HERE = Pod(namespace="dynamo", name="decode-0-1a2b", uid="u", container="main")
MOVE = OperationRecord(
    planned=PlannedOperation(
        id=OperationId("move-1"), kind=OperationKind.MOVE, worker=WorkerId("decode-0"), lane="voluntary", policy=PolicyName("p"),
        reason="r", expect=Preconditions(incarnation=Incarnation(0)), to_slot=SlotId("b/0"),
    ),
    plan=Digest("d"), epoch=Epoch(1), created_at=1.0,
)  # fmt: skip


class Server:
    """Has one pod, and answers changes as it is told to."""

    def __init__(self, uid: str, answer: ShunterError) -> None:
        self.uid, self.answer = uid, answer
        self.deleted: list[Any] = []

    async def get(self, path: str, query: Any = None) -> Any:
        return {"metadata": {"name": HERE.name, "namespace": "dynamo", "uid": self.uid, "labels": {}}, "spec": {}}

    async def merge(self, path: str, body: Any, *, strategic: bool = False) -> Any:
        raise self.answer

    async def delete(self, path: str, options: Any = None) -> Any:
        self.deleted.append(options)
        raise Conflict(self.answer.problem)


def pods(server: Server) -> Pods:
    estate = Estate(namespace="dynamo", nodes={}, agents={}, pods={})
    return Pods(server, lambda: estate, "fleet", "shunter")  # type: ignore[arg-type]


def said(code: str) -> Problem:
    return Problem(code=code, what="no", remedy="none")


async def test_that_a_worker_came_is_said_again_while_others_change_its_pod() -> None:
    """Or the pod would stay one that waits, out of every Service, with a worker in it."""
    with pytest.raises(Retry) as raised:
        await pods(Server("u", Conflict(said("SH253")))).keep(MOVE, HERE)
    assert not isinstance(raised.value, Conflict)
    with pytest.raises(Rejected):
        await pods(Server("u", Rejected(said("SH256")))).keep(MOVE, HERE)


@pytest.mark.parametrize("answer", [Conflict(said("SH253")), Rejected(said("SH256"))])
async def test_where_another_has_its_name_there_is_nothing_to_be_said(answer: ShunterError) -> None:
    await pods(Server("another", answer)).keep(MOVE, HERE)


def test_only_a_pod_of_a_worker_on_that_node_can_be_its_home() -> None:
    found = WorkerPod(
        pod=HERE, resident=Resident(id=WorkerId("decode-0"), role="decode", graph="g", engine=""), node=NodeId("a"), being=Being.RUNNING,
        ready=True, why="", labels={}, tolerations=(), gpus=1, controller="", gated=False,
    )  # fmt: skip
    estate = Estate(namespace="dynamo", nodes={}, agents={}, pods={HERE.uid: found})
    made = Pods(Server("u", Retry(said("SH251"))), lambda: estate, "fleet", "shunter")  # type: ignore[arg-type]
    assert made.strange(HERE, NodeId("a")) == ""
    assert made.strange(HERE, NodeId("b")) == "that is on a"
    assert "no such pod" in made.strange(Pod(namespace="dynamo", name=HERE.name, uid="another"), NodeId("a"))


async def test_which_pods_were_deleted_is_known_afterwards() -> None:
    server = Server("u", Conflict(said("SH253")))
    made = pods(server)
    await made.retire(HERE)
    assert "u" in made.deleted
    assert [one["preconditions"] for one in server.deleted] == [{"uid": "u"}]


class Restless(Server):
    """Others change the pod right before each of our changes, until `after` of them."""

    def __init__(self, after: int) -> None:
        super().__init__("u", Conflict(said("SH253")))
        self.after, self.versions = after, 0
        self.merged: list[Any] = []

    async def get(self, path: str, query: Any = None) -> Any:
        found = await super().get(path, query)
        found["metadata"]["resourceVersion"] = str(self.versions)
        return found

    async def merge(self, path: str, body: Any, *, strategic: bool = False) -> Any:
        self.versions += 1
        if self.versions <= self.after:
            raise self.answer
        self.merged.append(body["metadata"])


@pytest.mark.parametrize(("after", "done"), [(2, True), (99, False)])
async def test_the_cost_of_a_pod_that_others_change_as_well_is_tried_again(after: int, done: bool) -> None:
    spare = WorkerPod(
        pod=HERE, resident=Resident(id=WorkerId("decode-0"), role="decode", graph="g", engine=""), node=NodeId("a"), being=Being.RUNNING,
        ready=True, why="", labels={}, tolerations=(), gpus=1, controller="", gated=False, spare="5",
    )  # fmt: skip
    server, now = Restless(after), iter((0.0, 0.0, 61.0, 61.0))
    estate = Estate(namespace="dynamo", nodes={}, agents={}, pods={HERE.uid: spare})
    made = Pods(server, lambda: estate, "fleet", "shunter", clock=lambda: next(now))  # type: ignore[arg-type]

    async def tidied() -> None:
        await made.tidy(lambda _pod: False, {}, (), lambda: None)

    await tidied()
    if done:
        await tidied()
    else:
        with pytest.raises(Retry):
            await tidied()
    before = {"controller.kubernetes.io/pod-deletion-cost": "5", "shunter.dev/spare": None}
    assert server.merged == ([{"uid": "u", "resourceVersion": str(after), "annotations": before}] if done else [])
