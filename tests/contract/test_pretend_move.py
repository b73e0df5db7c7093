"""Two real agents over TLS on loopback, with the pretend runtime: the engine's own protocol, without root and without CRIU."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fleet import ANY, Fleet, NodePlan, WorkerPlan
from machine import with_argument
from shunter.act.agents import AgentClient, TlsFiles
from shunter.act.execute import Executor
from shunter.act.run import Parts
from shunter.act.store import Store
from shunter.model.errors import Rejected
from shunter.model.ids import Digest, ImageId, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import Status
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.record import Record
from shunter.model.snapshot import Fleet as Seen
from shunter.wire import agent_pb2 as pb
from shunter_agent.runtime import process as processes

NODES = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
)
A, B = NodeId("node-a"), NodeId("node-b")
AT_A, AT_B = SlotId("node-a/0"), SlotId("node-b/0")
WORKER = WorkerId("decode-0")
HOLD_S = 60.0
ANSWER_S = 30.0


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path / "fleet", pretend=True, weights_mb=1, nodes=NODES) as made:
        made.start_nodes()
        yield made


class Engine:
    """What carries operations out, without what decides on them."""

    def __init__(self, fleet: Fleet) -> None:
        certs = fleet.folder / "certs"
        tls = TlsFiles(ca=certs / "ca.pem", cert=certs / "engine.pem", key=certs / "engine.key")
        self.agents = {NodeId(name): AgentClient(NodeId(name), f"{node.address}:{node.port(0)}", tls) for name, node in fleet.nodes.items()}
        self.store = Store(fleet.folder / "store.db")
        self.records: list[Record] = []
        self.seen = Seen()

    async def look(self) -> tuple[SlotId, Incarnation, str]:
        """Where the worker is, its incarnation and its state."""
        views = [await agent.view() for agent in self.agents.values()]
        self.seen = Seen(
            nodes=tuple(view.node for view in views),
            workers=tuple(worker for view in views for worker in view.workers),
            images=tuple(image for view in views for image in view.images),
        )
        (worker,) = self.seen.workers
        assert worker.slot is not None
        return worker.slot, worker.incarnation, worker.state.value

    async def move(self, number: int, to: SlotId) -> tuple[Status, str]:
        """Move the worker from where it is now; how that ended, and why."""
        at, incarnation, _ = await self.look()
        planned = PlannedOperation(
            id=OperationId(f"move-{number}"),
            kind=OperationKind.MOVE,
            worker=WORKER,
            lane="involuntary",
            policy=PolicyName("p"),
            reason="a test",
            expect=Preconditions(incarnation=incarnation, at=at),
            from_slot=at,
            to_slot=to,
        )
        parts = Parts(
            store=self.store, agents=self.agents, fleet=lambda: self.seen, audit=self.records.append, clock=time.time, sleep=asyncio.sleep
        )
        ended = await Executor(parts, self.store.next_epoch()).start(planned, Digest("sha256:0"))
        assert ended.outcome is not None
        return ended.outcome.status, ended.outcome.reason

    async def held_at_b(self) -> pb.Order:
        """The worker of node-a frozen, its copy held on node-b; the order that did it."""
        report = await self.agents[A].report(ANSWER_S)
        (worker,) = report.workers
        order = pb.Order(operation="by-steps", epoch=self.store.next_epoch(), plan="p", worker=WORKER, incarnation=worker.incarnation)
        image, there = ImageId("image"), pb.Peer(node=B, address=(await self.agents[B].report(ANSWER_S)).image_address)
        await self.agents[B].prepare(order, AT_B, worker.spec, ANSWER_S)
        await self.agents[A].fence(order, ANSWER_S)
        await self.agents[A].freeze(order, image, there, HOLD_S, ANSWER_S)
        await self.agents[B].restore(order, AT_B, image, HOLD_S, ANSWER_S)
        return order


@asynccontextmanager
async def engine(fleet: Fleet) -> AsyncIterator[Engine]:
    made = Engine(fleet)
    try:
        yield made
    finally:
        for agent in made.agents.values():
            await agent.close()
        made.store.close()


def process_state(fleet: Fleet) -> tuple[int, str]:
    """The worker's one process, and its state letter: `T` when it is stopped."""
    (pid,) = with_argument(str(fleet.discovery))
    seen = processes.stat(pid)
    assert seen is not None
    return pid, seen.state


async def test_a_worker_moves_there_and_back_and_there_and_back_by_the_engines_protocol(fleet: Fleet) -> None:
    """It comes back sooner than its first node has looked again at what it let go: what left and what came back are the same process."""
    pid, _ = process_state(fleet)
    async with engine(fleet) as e:
        for number, to in enumerate((AT_B, AT_A, AT_B, AT_A)):
            assert await e.move(number, to) == (Status.SUCCEEDED, "")
            assert await e.look() == (to, number + 1, "running")
            same, state = process_state(fleet)
            assert (same, state == "T") == (pid, False)
    assert {record.pretend for record in e.records} == {True}
    assert [record.body["step"] for record in e.records[:2]] == ["intended", "prepared"]


@pytest.mark.parametrize("tolerates", [False, True])
async def test_a_node_takes_no_worker_that_does_not_tolerate_its_taint(tmp_path: Path, tolerates: bool) -> None:
    """Whoever sends it there: the agent looks at its own settings, and at what the worker's say, which go along with it."""
    with Fleet(tmp_path / "fleet", pretend=True, weights_mb=1, nodes=NODES) as fleet:
        b, a = fleet.nodes["node-b"].config, fleet.nodes["node-a"].config
        b.write_text('taints = [{key = "team", value = "search"}]\n' + b.read_text())
        a.write_text(a.read_text() + f'tolerations = [{{key = "{"team" if tolerates else "other"}", operator = "Exists"}}]\n')
        fleet.start_nodes()
        async with engine(fleet) as e:
            status, why = await e.move(0, AT_B)
            assert await e.look() == ((AT_B, 1, "running") if tolerates else (AT_A, 0, "running"))
            (there,) = (n for n in e.seen.nodes if n.id == B)
            assert ([str(t) for t in there.taints], there.memory is None, there.disk is None) == (["team=search:NoSchedule"], False, False)
            assert [len(w.tolerations or ()) for w in e.seen.workers] == [1]
    if tolerates:
        assert status is Status.SUCCEEDED
    else:
        assert status is Status.ROLLED_BACK
        assert "the node is tainted with team=search:NoSchedule, and the worker tolerates other" in why


async def test_a_copy_whose_source_still_has_the_worker_is_never_let_run(fleet: Fleet) -> None:
    async with engine(fleet) as e:
        order = await e.held_at_b()
        with pytest.raises(Rejected, match=r"SH708 .*node-a has not released"):
            await e.agents[B].resume(order, ANSWER_S)
        assert process_state(fleet)[1] == "T"
        await e.agents[A].thaw(order, ANSWER_S)
        await e.agents[B].abort(order, ANSWER_S)
        await e.agents[A].unfence(order, ANSWER_S)
        assert process_state(fleet)[1] != "T"
        assert await e.look() == (AT_A, 0, "running")


async def test_a_worker_thawed_after_an_abort_moves_again_later(fleet: Fleet) -> None:
    async with engine(fleet) as e:
        order = await e.held_at_b()
        await e.agents[B].abort(order, ANSWER_S)
        assert process_state(fleet)[1] == "T"
        await e.agents[A].thaw(order, ANSWER_S)
        assert process_state(fleet)[1] != "T"
        await e.agents[A].unfence(order, ANSWER_S)
        assert await e.move(0, AT_B) == (Status.SUCCEEDED, "")
        assert await e.look() == (AT_B, 1, "running")
