"""When an engine sees to what operations have left in pods, and whose it leaves alone."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shunter.act.beside import Beside
from shunter.act.store import Store
from shunter.app.housed import TIDY_S, Housed
from shunter.app.settings import LeaseSettings, PodsSettings
from shunter.cluster.estate import Estate
from shunter.cluster.nodes import ClusterNode
from shunter.cluster.pods import Being, WorkerPod
from shunter.decide.retention import LEFT_S
from shunter.model.ids import Digest, Epoch, ImageId, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.pod import OPERATION, STARTED_BY, Pod, Resident
from shunter.model.snapshot import Fleet, Image, Node, Worker, WorkerState

KUBECONFIG = """\
current-context: x
contexts: [{name: x, context: {cluster: c, user: u, namespace: shunter}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


class Places:
    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[WorkerPod], bool], Mapping[str, bool], Collection[NodeId]]] = []
        self.deleted: dict[str, None] = {}

    def note_deleted(self, uid: str) -> None:
        self.deleted[uid] = None

    async def tidy(self, under_way: Any, lived_in: Any, answering: Any, still_leads: Any, stake: Any) -> list[str]:
        still_leads()
        self.asked.append((under_way, lived_in, answering))
        return ["did it"]


def pod(uid: str, operation: str = "move-0") -> WorkerPod:
    return WorkerPod(
        pod=Pod(namespace="n", name=uid, uid=uid), resident=Resident(id=WorkerId("w"), role="decode", graph="g", engine=""),
        node=NodeId("a"), being=Being.RUNNING, ready=True, why="", labels={OPERATION: operation}, tolerations=(), gpus=1, controller="",
        gated=True,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Any:
    found = Store(tmp_path / "engine.db")
    yield found
    found.close()


async def test_what_an_operation_has_in_hand_is_left_alone_until_it_is_over(tmp_path: Path, store: Store) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    now = 100.0
    housed = Housed(LeaseSettings(kubeconfig=tmp_path / "kubeconfig"), PodsSettings(namespace="dynamo"), clock=lambda: now)
    assert (housed.where.namespace, housed.where.agents_namespace) == ("dynamo", "shunter-agents")
    housed.places = places = Places()  # type: ignore[assignment]
    planned = PlannedOperation(
        id=OperationId("move-1"), kind=OperationKind.MOVE, worker=WorkerId("w"), lane="voluntary", policy=PolicyName("p"), reason="r",
        expect=Preconditions(incarnation=Incarnation(0)), to_slot=SlotId("b/0"),
    )  # fmt: skip
    store.insert([OperationRecord(planned=planned, plan=Digest("d"), epoch=Epoch(1), created_at=1.0)])
    store.advance(planned.id, Step.PREPARED, 2.0, left=pod("old").pod, pod=pod("new").pod)
    running = Worker(
        id=WorkerId("w"), role="decode", graph="g", engine="", state=WorkerState.FENCED, node=NodeId("a"), slot=SlotId("a/0"),
        incarnation=Incarnation(0), pod=pod("old").pod,
    )  # fmt: skip
    by_pod = msgspec.structs.replace(running, id=WorkerId("v"), slot=None, pod=pod("unreported").pod)
    nodes = (Node(id=NodeId("a"), slots=()), Node(id=NodeId("b"), slots=(), reachable=False))
    orders, said = Beside(lambda: now, lambda *_: None), list[str]()

    async def tick() -> None:
        housed.tidy(orders, store, Fleet(nodes=nodes, workers=(by_pod, running)), lambda: None, said.append)
        await orders.idle()

    await tick()
    (under_way, lived_in, answering) = places.asked[0]
    assert (lived_in, set(answering), said) == ({"old": False}, {"a"}, ["did it"])
    assert [under_way(one) for one in (pod("old"), pod("new", "move-1"), pod("third", "move-1"), pod("other"))] == [True, True, True, False]
    golden = msgspec.structs.replace(pod("golden", ""), labels={STARTED_BY: "move-1"})
    assert under_way(golden)
    store.finish(planned.id, Outcome(status=Status.SUCCEEDED, at=3.0))
    assert not under_way(pod("old"))
    assert not under_way(golden)
    await tick()
    assert len(places.asked) == 1, "not each tick"
    running = msgspec.structs.replace(running, state=WorkerState.FROZEN)
    now += TIDY_S
    await tick()
    assert places.asked.pop()[0](pod("other")), "which of the pods of that name has the worker isn't known"
    running = msgspec.structs.replace(running, state=WorkerState.RUNNING)
    now += TIDY_S
    await tick()
    assert len(places.asked) == 2


def test_the_next_engine_knows_why_a_pod_is_gone_that_it_never_saw(tmp_path: Path, store: Store) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    housed = Housed(LeaseSettings(kubeconfig=tmp_path / "kubeconfig"), PodsSettings(namespace="dynamo"))
    housed.places = places = Places()  # type: ignore[assignment]
    nodes = {NodeId("a"): ClusterNode(name=NodeId("a"), labels={}, taints=(), ready=True)}
    estate = Estate(namespace="dynamo", nodes=nodes, agents={}, pods={})
    housed.estate = lambda: estate  # type: ignore[method-assign]
    lived = [
        Worker(
            id=WorkerId(name), role="decode", graph="g", engine="", state=WorkerState.RUNNING, node=NodeId("a"), slot=SlotId("a/0"),
            incarnation=Incarnation(0), pod=pod(name).pod,
        )
        for name in ("moved", "rolled-back", "in-its-image", "nobodys")
    ]  # fmt: skip
    for name, step, outcome in (
        ("moved", Step.RELEASED, Outcome(status=Status.SUCCEEDED, at=3.0)),
        ("rolled-back", Step.ROLLING_BACK, Outcome(status=Status.ROLLED_BACK, at=3.0)),
        ("in-its-image", Step.ROLLING_BACK, Outcome(status=Status.FAILED, at=3.0, image=ImageId("i"))),
    ):
        planned = PlannedOperation(
            id=OperationId(name), kind=OperationKind.MOVE, worker=WorkerId(name), lane="voluntary", policy=PolicyName("p"), reason="r",
            expect=Preconditions(incarnation=Incarnation(0)), to_slot=SlotId("b/0"),
        )  # fmt: skip
        store.insert([OperationRecord(planned=planned, plan=Digest("d"), epoch=Epoch(1), created_at=1.0)])
        store.advance(planned.id, Step.PREPARED, 2.0, left=pod(name).pod)
        store.advance(planned.id, step, 2.5)
        store.finish(planned.id, outcome)
    housed.recall(Fleet(workers=tuple(lived)), store.recent(0.0))
    assert set(places.deleted) == {"moved", "in-its-image"}
    gone = [msgspec.structs.replace(one, state=WorkerState.LOST, node=None, slot=None) for one in lived]

    def pinned(fleet: Fleet) -> set[str]:
        return {worker.id for worker in fleet.workers if worker.pinned}

    found = housed.joined(Fleet(workers=tuple(gone)))
    assert pinned(found) == {"rolled-back", "nobodys"}
    estate = msgspec.structs.replace(estate, nodes={})
    assert pinned(housed.joined(found)) == {"rolled-back", "nobodys"}, "what was judged stays so"


def test_who_went_with_a_pod_and_left_no_image_is_forgotten_after_an_hour(tmp_path: Path) -> None:
    """Each rollout makes more of them, and none of them comes back."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    now = 100.0
    housed = Housed(LeaseSettings(kubeconfig=tmp_path / "kubeconfig"), PodsSettings(namespace="dynamo"), now=lambda: now)
    housed.places = Places()  # type: ignore[assignment]
    nodes = {NodeId("a"): ClusterNode(name=NodeId("a"), labels={}, taints=(), ready=True)}
    removed = {name: msgspec.structs.replace(pod(name, ""), labels={}) for name in ("bare", "imaged")}
    estate = Estate(namespace="dynamo", nodes=nodes, agents={}, pods={}, removed=removed)
    housed.estate = lambda: estate  # type: ignore[method-assign]
    lost = [
        Worker(
            id=WorkerId(name), role="decode", graph="g", engine="", state=WorkerState.LOST, node=None, slot=None,
            incarnation=Incarnation(0), pod=pod(uid).pod,
        )
        for name, uid in (("bare", "bare"), ("imaged", "imaged"), ("died", "elsewhere"))
    ]  # fmt: skip
    image = Image(id=ImageId("i"), worker=WorkerId("imaged"), role="decode", graph="g", engine="", nodes=(NodeId("a"),), bytes=1,
                  taken_at=1.0, incarnation=Incarnation(0))  # fmt: skip
    fleet = housed.joined(Fleet(workers=tuple(lost), images=(image,)))
    assert {w.id: w.left_at for w in fleet.workers} == {"bare": 100, "imaged": 100, "died": None}
    now += LEFT_S - 1
    assert len(housed.joined(fleet).workers) == 3
    now += 1
    fleet = housed.joined(fleet)
    assert {w.id for w in fleet.workers} == {"imaged", "died"}, "neither who has an image, nor who died"
    housed.joined(fleet)
    again = housed.joined(msgspec.structs.replace(fleet, workers=(*fleet.workers, lost[0])))
    assert {w.id: w.left_at for w in again.workers} == {"bare": now, "imaged": 100, "died": None}, "who came again has an hour of its own"
    assert {w.id for w in housed.joined(msgspec.structs.replace(fleet, images=())).workers} == {"died"}, "who has none any more goes, too"
    estate = msgspec.structs.replace(estate, nodes={})
    found = housed.joined(msgspec.structs.replace(fleet, workers=tuple(lost)))
    assert {w.left_at for w in found.workers} == {None}, "its node failed it: it is brought back"
