"""Standing orders: who is given what, and what is recorded of what nodes did by themselves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shunter.act.store import Store
from shunter.app.certs import issue
from shunter.app.duty import Duty
from shunter.app.policies import PolicyFeed
from shunter.app.settings import AgentSettings, PoliciesSettings, PrometheusSettings, Settings, TlsSettings
from shunter.app.sources import source_of
from shunter.app.standing import RENEW, THINK_S, Standing, relayed
from shunter.decide.standing import Fallback
from shunter.model.errors import Problem, Rejected, Stalled
from shunter.model.ids import Commit, Digest, Epoch, ImageId, Incarnation, NodeId, NoticeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import EngineState, Status
from shunter.model.record import Record
from shunter.model.snapshot import Fleet, Image, Node, NoticeKind, Slot, Snapshot, Worker, WorkerState
from shunter.model.standing import NEVER, Holder, Stand, StandingOrder, Stood, image_of, operation_of
from shunter.model.view import NodeView
from shunter.wire import agent_pb2 as pb
from shunter_agent import mandate

NOW = 1000.0
POLICY = """apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {all: true}, notices: [preemption, maintenance]}
"""
A, B, C = NodeId("node-a"), NodeId("node-b"), NodeId("node-c")


def worker(n: int, node: NodeId, **more: Any) -> Worker:
    base = {
        "id": WorkerId(f"w{n}"), "role": "decode", "graph": "g", "engine": "e", "state": WorkerState.RUNNING, "node": node,
        "slot": SlotId(f"{node}/{n}"), "incarnation": Incarnation(0), "memory": 10**9,
    }  # fmt: skip
    return Worker(**(base | more))


def fleet(*workers: Worker, nodes: Sequence[NodeId] = (A, B, C), silent: Sequence[NodeId] = (), **more: Any) -> Fleet:
    made = [
        Node(
            id=node,
            slots=(*(Slot(id=w.slot, worker=w.id) for w in workers if w.node == node and w.slot), Slot(id=SlotId(f"{node}/9"))),
            reachable=node not in silent,
            seen_at=NOW,
        )
        for node in nodes
    ]
    return Fleet(nodes=tuple(made), workers=tuple(workers), **more)


class Agent:
    """Keeps what it is given, if the engine has signed it."""

    def __init__(self, node: NodeId, ca: Path, clock: Callable[[], float]) -> None:
        self.node, self.ca, self.clock = node, ca, clock
        self.orders: list[StandingOrder] = []
        self.fault: Rejected | None = None
        self.said = 0.0, 0.0, 0.0

    def took(self, taken: float, kept: float, presumed: float) -> None:
        self.said = taken, kept, presumed

    async def stand(self, order: pb.StandOrder, timeout: float) -> pb.Done:
        if self.fault is not None:
            raise self.fault
        self.orders.append(mandate.check(order, self.ca, self.node, self.clock()))
        return pb.Done()


class Giving:
    """An engine of epoch 3, and the agents of three nodes."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.now = NOW
        issue(folder / "certs", [], NOW)
        (folder / "policies").mkdir()
        (folder / "policies" / "save.yaml").write_text(POLICY)
        settings = Settings(
            state=folder,
            policies=PoliciesSettings(directory=folder / "policies"),
            prometheus=PrometheusSettings(url="http://127.0.0.1:9"),
            tls=TlsSettings(ca=folder / "certs/ca.pem", cert=folder / "certs/engine.pem", key=folder / "certs/engine.key"),
            agents=(AgentSettings(node="node-a", address="127.0.0.1:9"),),
        )
        self.duty = Duty(settings, PolicyFeed(source_of(settings.policies, folder), lambda: NOW), clock=lambda: self.now)
        self.agents = {node: Agent(node, folder / "certs/ca.pem", lambda: self.now) for node in (A, B, C)}
        self.store = store
        self.records: list[Record] = []
        self.told: dict[str, Problem | None] = {}
        self.breaths = 0
        self.standing = self.anew()

    def anew(self) -> Standing:
        async def call(work: Callable[[], Mapping[NodeId, Sequence[Fallback]]]) -> Mapping[NodeId, Sequence[Fallback]]:
            return work()

        return Standing(
            self.duty,
            self.agents,
            Epoch(3),
            self.store,
            call=call,
            tell=self.told.__setitem__,
            add=lambda records: self.records.extend(records),
            breathe=self.breathe,
            elapsed=lambda: self.now,
        )

    def breathe(self) -> None:
        self.breaths += 1

    async def look(self, seen: Fleet, *stood: Stood) -> None:
        if self.duty.feed.current is None:
            await self.duty.feed.refresh()
        policies = self.duty.feed.current
        assert policies is not None
        self.standing.learn(self.views(seen, *stood))
        self.standing.look(policies, Snapshot(at=self.now, fleet=seen), EngineState(), self.now)
        await self.standing.idle()

    def views(self, seen: Fleet, *stood: Stood) -> list[NodeView]:
        return [
            NodeView(
                node=node, workers=(), images=(), notices=(), epoch=Epoch(3), at=self.now, image_address=f"{node.id}:7444",
                stood=tuple(s for s in stood if s.node == node.id),
            )
            for node in seen.nodes
        ]  # fmt: skip

    def given(self, node: NodeId = A) -> StandingOrder:
        return self.agents[node].orders[-1]


@pytest.fixture
def giving(tmp_path: Path) -> Iterator[Giving]:
    with closing(Store(tmp_path / "engine.db")) as store:
        yield Giving(tmp_path, store)


async def test_each_node_is_given_what_to_do_for_its_workers_signed_and_with_an_end(giving: Giving) -> None:
    await giving.look(fleet(worker(0, A), worker(1, A, role="prefill"), worker(2, B)))
    order = giving.given(A)
    assert [(s.worker, s.act, s.slot, s.kinds, s.policy) for s in order.stands] == [
        ("w0", "checkpoint", "node-a/0", (NoticeKind.PREEMPTION, NoticeKind.MAINTENANCE), "save"),
        ("w1", "checkpoint", "node-a/1", (NoticeKind.PREEMPTION, NoticeKind.MAINTENANCE), "save"),
    ]
    assert {h.node for s in order.stands for h in s.holders} == {B, C}, "never on the node that goes"
    assert all(h.address == f"{h.node}:7444" for s in order.stands for h in s.holders)
    assert (order.epoch, order.issued_at, order.valid_until, order.silence) == (3, NOW, NOW + 600.0, 10.0)
    assert [s.worker for s in giving.given(B).stands] == ["w2"]
    assert giving.given(C).stands == ()


async def test_what_it_is_to_say_is_worked_out_in_portions(giving: Giving) -> None:
    """Of a large fleet it takes most of a second, every ten: a notice doesn't share the processor with all of that."""
    await giving.look(fleet(*(worker(n, A) for n in range(40))))
    assert giving.breaths >= 40


async def test_it_is_given_anew_when_it_changes_and_before_it_ends_and_not_each_tick(giving: Giving) -> None:
    seen = fleet(worker(0, A))
    await giving.look(seen)
    giving.now += THINK_S
    await giving.look(seen)
    assert len(giving.agents[A].orders) == 1
    giving.now += THINK_S
    await giving.look(fleet(worker(0, A, incarnation=Incarnation(1))))
    assert [o.stands[0].incarnation for o in giving.agents[A].orders] == [0, 1]
    assert len(giving.agents[B].orders) == 1
    giving.now += RENEW * 600.0
    await giving.look(fleet(worker(0, A, incarnation=Incarnation(1))))
    assert len(giving.agents[B].orders) == 2


async def test_a_node_that_takes_none_is_told_once_and_asked_again(giving: Giving) -> None:
    problem = Problem(code="SH520", what="unimplemented", remedy="Update it")
    giving.agents[A].fault = Rejected(problem)
    await giving.look(fleet(worker(0, A)))
    told = giving.told["standing orders"]
    assert told is not None
    assert (told.code, "node-a took no standing order" in told.what) == ("SH541", True)
    assert giving.agents[B].orders
    giving.agents[A].fault = None
    giving.now += THINK_S
    await giving.look(fleet(worker(0, A)))
    assert giving.told["standing orders"] is None
    assert giving.agents[A].orders


async def test_a_node_that_doesnt_answer_is_given_none(giving: Giving) -> None:
    await giving.look(fleet(worker(0, A), silent=[A]))
    assert not giving.agents[A].orders


@pytest.mark.parametrize(
    ("spec", "acts"),
    [
        ("otherwise: [drain]", ["fence"]),
        ("otherwise: []", []),
        ("mode: preview", []),
        ("mode: 'off'", []),
        ("otherwise: [checkpoint]", ["checkpoint"]),
    ],
)
async def test_what_is_given_is_what_the_policy_falls_back_to(giving: Giving, spec: str, acts: list[str]) -> None:
    folder = giving.duty.settings.policies.directory
    assert folder is not None
    (folder / "save.yaml").write_text(POLICY.replace("notices:", f"{spec}, notices:"))
    await giving.look(fleet(worker(0, A)))
    assert [s.act for s in giving.given(A).stands] == acts


async def test_without_another_node_that_stays_it_is_only_hidden(giving: Giving) -> None:
    await giving.look(fleet(worker(0, A), silent=[B, C]))
    assert [(s.act, s.holders) for s in giving.given(A).stands] == [("fence", ())]


# -- what nodes did


STAND = Stand(
    worker=WorkerId("w0"), incarnation=Incarnation(0), slot=SlotId("node-a/0"), act="checkpoint", policy=PolicyName("save"),
    kinds=(NoticeKind.PREEMPTION,), holders=(Holder(node=B, address="node-b:7444"),),
)  # fmt: skip
OPERATION = operation_of(STAND, Epoch(2), NoticeId("n"))
DONE = Stood(
    operation=OPERATION, node=A, stand=STAND, order=Digest("sha256:order"), epoch=Epoch(2), commit=Commit("c" * 40), notice=NoticeId("n"),
    kind=NoticeKind.PREEMPTION, deadline=NOW + 60, state="done", began_at=NOW - 20, at=NOW - 10,
    image=image_of(OPERATION, NoticeKind.PREEMPTION, NOW + 60), holder=B,
)  # fmt: skip


async def test_what_a_node_did_is_an_operation_that_has_ended_and_one_record_for_every_engine_after_it(giving: Giving) -> None:
    seen = fleet(worker(0, A))
    giving.standing.learn(giving.views(seen, msgspec.structs.replace(DONE, state="begun")))
    assert giving.store.get(OPERATION) is None
    for standing in (giving.standing, giving.standing, giving.anew()):
        standing.learn(giving.views(seen, DONE))
    record = giving.store.get(OPERATION)
    assert record is not None
    assert record.outcome is not None
    assert (record.epoch, record.created_at, record.outcome.status, record.outcome.image) == (2, NOW - 20, Status.SUCCEEDED, DONE.image)
    assert giving.store.active() == ()
    (told,) = giving.records
    assert (told.at, told.epoch, told.commit, told.operation, told.subject) == (NOW - 10, 2, "c" * 40, OPERATION, "w0")
    assert "node-a did by itself what it was ordered ahead" in told.what
    assert told.body["standing"]["order"] == "sha256:order"  # type: ignore[index]


async def test_what_a_node_did_without_a_deadline_has_none(giving: Giving) -> None:
    undated = msgspec.structs.replace(DONE, deadline=NEVER, image=image_of(OPERATION, NoticeKind.PREEMPTION, NEVER))
    giving.standing.learn(giving.views(fleet(worker(0, A)), undated))
    record = giving.store.get(OPERATION)
    assert record is not None
    assert (record.planned.deadline, record.planned.image) == (None, undated.image)


async def test_what_failed_without_a_deadline_is_recorded_once_it_isnt_tried_again(giving: Giving) -> None:
    seen, failed = fleet(worker(0, A)), msgspec.structs.replace(DONE, state="failed", code="SH810", deadline=NEVER, holder=None)
    giving.standing.learn(giving.views(seen, failed))
    assert giving.records == []
    giving.now += 60.0
    giving.standing.learn(giving.views(seen, failed))
    assert len(giving.records) == 1


async def test_what_failed_is_recorded_once_it_is_over(giving: Giving) -> None:
    seen, failed = fleet(worker(0, A)), msgspec.structs.replace(DONE, state="failed", code="SH810", detail="no room", holder=None)
    giving.standing.learn(giving.views(seen, failed))
    assert giving.records == [], "it is tried again"
    giving.now = NOW + 60
    giving.standing.learn(giving.views(seen, failed))
    record = giving.store.get(OPERATION)
    assert record is not None
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.code) == (Status.FAILED, "SH810")


async def test_the_end_of_the_worker_is_recorded_too(giving: Giving) -> None:
    seen = fleet(worker(0, A))
    giving.standing.learn(giving.views(seen, DONE))
    giving.standing.learn(giving.views(seen, msgspec.structs.replace(DONE, state="ended")))
    assert ["ended it at the deadline" in r.what for r in giving.records] == [False, True]


async def test_who_did_something_is_given_a_new_order_at_once_so_that_it_knows_that_the_engine_knows(giving: Giving) -> None:
    seen = fleet(worker(0, A))
    await giving.look(seen)
    giving.now += 1.0
    await giving.look(seen, DONE)
    assert [o.issued_at for o in giving.agents[A].orders] == [NOW, NOW + 1.0]
    assert [o.heard for o in giving.agents[A].orders] == [{}, {OPERATION: DONE.at}]
    assert len(giving.agents[B].orders) == 1


async def test_a_disk_that_takes_no_writes_is_told_and_it_is_recorded_later(giving: Giving, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fleet(worker(0, A))

    def insert(_records: object) -> None:
        raise Stalled(Problem(code="SH501", what="full", remedy="Free it"))

    with monkeypatch.context() as full:
        full.setattr(giving.store, "insert", insert)
        giving.standing.learn(giving.views(seen, DONE))
    assert giving.told["standing orders"] is not None
    assert giving.records == []
    giving.standing.learn(giving.views(seen, DONE))
    assert len(giving.records) == 1


# -- what images tell of nodes that don't


def image(taken_at: float, **more: Any) -> Image:
    base = {
        "id": DONE.image, "worker": WorkerId("w0"), "incarnation": Incarnation(0), "taken_at": taken_at, "bytes": 10**9, "nodes": (B,),
        "role": "decode", "graph": "g", "engine": "e",
    }  # fmt: skip
    return Image(**(base | more))


def test_an_image_tells_of_the_notice_of_a_node_that_is_silent_since() -> None:
    (notice,) = relayed(fleet(worker(0, A), silent=[A], images=(image(NOW + 10),)))
    assert (notice.node, notice.kind, notice.deadline, notice.seen_at) == (A, NoticeKind.PREEMPTION, NOW + 60, NOW + 10)


@pytest.mark.parametrize("first", ["a", "z"])
def test_an_image_for_a_notice_without_a_deadline_tells_of_one_and_hides_no_other(first: str) -> None:
    undated = image(NOW + 10, id=image_of(OperationId(f"standing-{first * 16}".replace("z", "f")), NoticeKind.PREEMPTION, NEVER))
    (notice,) = relayed(fleet(worker(0, A), silent=[A], images=(undated,)))
    assert notice.deadline is None, "nobody is taken for dead by it"
    both = sorted((undated, image(NOW + 10)), key=lambda i: i.id)
    (notice,) = relayed(fleet(worker(0, A), silent=[A], images=tuple(both)))
    assert notice.deadline == NOW + 60


async def test_an_image_of_which_its_node_has_told_tells_nothing_whatever_clocks_say(giving: Giving) -> None:
    seen = fleet(worker(0, A), silent=[A], images=(image(NOW + 3600),))
    unsent = msgspec.structs.replace(DONE, state="begun", holder=None)
    giving.standing.learn(giving.views(seen, unsent))
    assert len(relayed(seen, giving.standing.knows)) == 1, "that it was sent is news"
    giving.standing.learn(giving.views(seen, DONE))
    assert relayed(seen, giving.standing.knows) == ()
    assert relayed(seen, giving.anew().knows) == (), "nor to an engine that came later"


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (fleet(worker(0, A), images=(image(NOW + 10),)), "it answers"),
        (fleet(worker(0, A), silent=[A], images=(image(NOW + 4),)), "it has answered since, or as good as"),
        (fleet(worker(0, A, incarnation=Incarnation(1)), silent=[A], images=(image(NOW + 10),)), "it was restored since"),
        (fleet(worker(0, B), silent=[A], images=(image(NOW + 10),)), "its worker is elsewhere"),
        (fleet(worker(0, A), silent=[A], images=(image(NOW + 10, nodes=(A,)),)), "nobody else has it"),
        (fleet(worker(0, A), silent=[A], images=(image(NOW + 10, id=ImageId("image-move-1")),)), "an image of another kind"),
    ],
)
def test_an_image_tells_nothing_of(seen: Fleet, why: str) -> None:
    assert relayed(seen) == (), why


async def test_a_node_is_told_what_was_taken_in_of_it_once_that_is_remembered(giving: Giving) -> None:
    await giving.look(fleet())
    assert giving.agents[A].said == (0.0, 0.0, 0.0), "this round isn't remembered yet"
    giving.now += 1.0
    await giving.look(fleet())
    assert giving.agents[A].said == (NOW, NOW, 65.0)


async def test_what_a_next_engine_elsewhere_may_not_know_yet_isnt_called_kept(giving: Giving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "elsewhere", True)
    for _ in range(KEPT_S := 31):
        await giving.look(fleet())
        assert giving.agents[A].said[1] == 0.0
        giving.now += 1.0
    await giving.look(fleet())
    giving.now += 1.0
    await giving.look(fleet())
    taken, kept, _ = giving.agents[A].said
    assert taken - kept == KEPT_S - 1
    assert taken == giving.now - 1.0


async def test_nothing_is_called_taken_in_that_a_disk_hasnt(giving: Giving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "unwritten", 1)
    await giving.look(fleet())
    await giving.look(fleet())
    assert giving.agents[A].said == (0.0, 0.0, 0.0)
