"""Two real agents over TLS on loopback, with the pretend runtime: the engine's own protocol, without root and without CRIU."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from shunter.act.agents import AgentClient, TlsFiles
from shunter.act.execute import Executor
from shunter.act.run import Parts
from shunter.act.store import Store
from shunter.model.errors import Rejected
from shunter.model.ids import Digest, Epoch, ImageId, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import Status
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.record import Record
from shunter.model.snapshot import Fleet as Snapshot
from shunter.wire import agent_pb2 as pb
from shunter_agent.runtime import process as processes

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "local-fleet"))
from fleet import ANY, Fleet, NodePlan, WorkerPlan, descendants, wait_for  # pyright: ignore[reportMissingImports]  (found by the line above)

NODES = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
)
A, B = NodeId("node-a"), NodeId("node-b")
AT_A, AT_B = SlotId("node-a/0"), SlotId("node-b/0")
WORKER = WorkerId("decode-0")
HOLD_S = 10.0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("pretend")
        patch.setenv("TMPDIR", str(folder))  # where the agents keep their shelf
        with Fleet(folder / "fleet", pretend=True, weights_mb=1, nodes=NODES) as made:
            made.start_nodes()
            for node in made.nodes.values():
                wait_for(f"{node.name} to take orders", lambda log=node.log: '"taking orders"' in log.read_text())
            yield made


class Engine:
    """What carries operations out, without what decides on them."""

    def __init__(self, fleet: Fleet) -> None:
        certs = fleet.folder / "certs"
        tls = TlsFiles(ca=certs / "ca.pem", cert=certs / "engine.pem", key=certs / "engine.key")
        self.agents = {NodeId(name): AgentClient(NodeId(name), f"{node.address}:{node.port(0)}", tls) for name, node in fleet.nodes.items()}
        self.store = Store(fleet.folder / "store.db")
        self.records: list[Record] = []
        self.seen = Snapshot()

    async def look(self) -> Snapshot:
        views = [await agent.view() for agent in self.agents.values()]
        self.seen = Snapshot(
            nodes=tuple(view.node for view in views),
            workers=tuple(worker for view in views for worker in view.workers),
            images=tuple(image for view in views for image in view.images),
        )
        return self.seen

    async def carry(self, kind: OperationKind, number: str, to: SlotId) -> tuple[Status, str]:
        """Carry out an operation on the worker as it is now; how it ended, and why."""
        await self.look()
        (worker,) = self.seen.workers
        planned = PlannedOperation(
            id=OperationId(number),
            kind=kind,
            worker=WORKER,
            lane="involuntary",
            policy=PolicyName("p"),
            reason="a test",
            expect=Preconditions(incarnation=worker.incarnation, at=worker.slot),
            from_slot=worker.slot,
            to_slot=to,
        )
        parts = Parts(
            store=self.store, agents=self.agents, fleet=lambda: self.seen, audit=self.records.append, clock=time.time, sleep=asyncio.sleep
        )
        epoch = self.store.next_epoch()
        ended = await Executor(parts, epoch).start(planned, Digest("sha256:0"))
        assert ended.outcome is not None
        return ended.outcome.status, ended.outcome.reason


@asynccontextmanager
async def engine(fleet: Fleet) -> AsyncIterator[Engine]:
    made = Engine(fleet)
    try:
        yield made
    finally:
        for agent in made.agents.values():
            await agent.close()
        made.store.close()


def worker_pid(fleet: Fleet) -> int:
    agents = [node.agent.pid for node in fleet.nodes.values() if node.agent is not None]
    (pid,) = (pid for agent in agents for pid in descendants(agent) if "worker.py" in command(pid))
    return pid


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def state(pid: int) -> str:
    seen = processes.stat(pid)
    assert seen is not None
    return seen.state


async def test_a_move_there_and_back_by_the_engines_protocol(built: Fleet) -> None:
    pid = worker_pid(built)
    async with engine(built) as e:
        for number, to in enumerate((AT_B, AT_A)):
            assert await e.carry(OperationKind.MOVE, f"move-{number}", to=to) == (Status.SUCCEEDED, "")
            (worker,) = (await e.look()).workers
            assert (worker.slot, worker.incarnation, worker.state.value) == (to, Incarnation(number + 1), "running")
            assert state(pid) != "T"
    assert {record.pretend for record in e.records} == {True}
    assert [record.body["step"] for record in e.records[:2]] == ["intended", "prepared"]


async def held_at_b(e: Engine, operation: str) -> pb.Order:
    """The worker of node-a frozen, its copy held on node-b."""
    epoch: Epoch = e.store.next_epoch()
    report = await e.agents[A].report(5)
    (worker,) = report.workers
    order = pb.Order(operation=operation, epoch=epoch, plan="p", worker=WORKER, incarnation=worker.incarnation)
    image, there = ImageId(f"image-{operation}"), (await e.agents[B].report(5)).image_address
    await e.agents[B].prepare(order, AT_B, worker.spec, 5)
    await e.agents[A].fence(order, 5)
    await e.agents[A].freeze(order, image, pb.Peer(node=B, address=there), HOLD_S, 5)
    await e.agents[B].restore(order, AT_B, image, HOLD_S, 5)
    return order


async def test_a_copy_whose_source_still_has_the_worker_is_never_let_run(built: Fleet) -> None:
    pid = worker_pid(built)
    async with engine(built) as e:
        order = await held_at_b(e, "too-early")
        with pytest.raises(Rejected, match=r"SH708 .*node-a has not released"):
            await e.agents[B].resume(order, 5)
        assert state(pid) == "T"
        await e.agents[A].thaw(order, 5)
        await e.agents[B].abort(order, 5)
        await e.agents[A].unfence(order, 5)
        assert state(pid) != "T"
        (worker,) = (await e.look()).workers
        assert (worker.slot, worker.state.value) == (AT_A, "running")


async def test_a_worker_thawed_after_an_abort_moves_again_later(built: Fleet) -> None:
    pid = worker_pid(built)
    async with engine(built) as e:
        order = await held_at_b(e, "given-up")
        await e.agents[B].abort(order, 5)
        assert state(pid) == "T"
        await e.agents[A].thaw(order, 5)
        assert state(pid) != "T"
        await e.agents[A].unfence(order, 5)
        assert await e.carry(OperationKind.MOVE, "move-again", to=AT_B) == (Status.SUCCEEDED, "")
