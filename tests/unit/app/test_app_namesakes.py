"""Workers of one name in two namespaces: an engine that starts anew knows of them, also while one of their nodes is silent."""

from contextlib import closing
from pathlib import Path

from shunter.act.lease import Lease
from shunter.act.store import Store
from shunter.app.world import World
from shunter.audit.journal import Journal
from shunter.model.errors import Problem, Retry
from shunter.model.ids import Epoch, Incarnation, NodeId, SlotId, WorkerId
from shunter.model.pod import Pod
from shunter.model.snapshot import Node, Slot, Worker, WorkerState
from shunter.model.view import NodeView
from shunter.observe.catalog import Catalog
from test_app_engine import Stage

HOMES = {NodeId("a"): "dynamo", NodeId("b"): "other"}


class Agent:
    """A node with a worker `w` in a pod of the node's own namespace."""

    def __init__(self, name: NodeId) -> None:
        self.name, self.silent = name, False

    async def view(self) -> NodeView:
        if self.silent:
            raise Retry(Problem(code="SH520", what="no answer", remedy="Look"))
        slot = Slot(id=SlotId(f"{self.name}/0"), worker=WorkerId("w"))
        worker = Worker(
            id=WorkerId("w"),
            role="decode",
            graph="g",
            engine="e",
            state=WorkerState.RUNNING,
            node=self.name,
            slot=slot.id,
            incarnation=Incarnation(0),
            pod=Pod(namespace=HOMES[self.name], name="w", uid=HOMES[self.name], container="main"),
        )
        node = Node(id=self.name, slots=(slot,), seen_at=100.0)
        return NodeView(node=node, workers=(worker,), images=(), notices=(), epoch=Epoch(1), at=100.0)


async def test_an_engine_that_starts_anew_knows_that_a_name_is_shared(tmp_path: Path) -> None:
    agents = {name: Agent(name) for name in HOMES}

    async def look(run: str, now: float) -> Stage:
        """What an engine sees at its start, on the store that those before it have left."""
        (tmp_path / run).mkdir()
        with (
            closing(Store(tmp_path / "engine.db")) as store,
            Lease(tmp_path / "engine.lock", store) as lease,
            Journal(tmp_path / "a.db") as journal,
        ):
            stage = Stage(tmp_path / run, store, lease, journal, 0)
            stage.leading.sight.world = World(agents, None, Catalog())  # type: ignore[arg-type]
            stage.leading.sight.recall()
            await stage.leading.sight.look(now)
            return stage

    await look("first", 100.0)
    for run, at, away in (("second", 200.0, "a"), ("third", 300.0, "b")):
        for name, agent in agents.items():
            agent.silent = name == away
        seen = await look(run, at)
        (worker,) = seen.leading.duty.scene.fleet.workers
        assert (worker.node != away, worker.state) == (True, WorkerState.FROZEN)
        assert [problem.code for problem in seen.told if problem.subject == "w"] == ["SH310"]
