"""The engine dies with what it did on a dead disk in memory only: the next one knows an older step, or nothing at all.

Whatever it does then, there never are two copies, and the worker is neither lost nor left standing still.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fleet_in_memory import Crash, CrashingStore, World
from gated_executor import plan
from next_engine import take_over
from shunter.act.execute import Executor
from shunter.act.scheduler import Scheduler
from shunter.model.ids import NodeId, OperationId, SlotId
from shunter.model.operation import Status
from shunter.model.plan import Lane, OperationKind, PlannedOperation
from test_protocol_dead_disk import Dying


class Engine:
    """One on a disk that dies at the `dead_at`-th order, and that ends itself at the `ends_at`-th, both from 1. 0: never."""

    def __init__(self, world: World, dead_at: int, ends_at: int) -> None:
        self.world, self.dead_at, self.ends_at = world, dead_at, ends_at
        self.orders = 0
        self.ended = False
        self.db = Dying(world.store._db)
        world.store._db = self.db  # type: ignore[assignment]
        self.scheduler = Scheduler(Executor(world.parts(), world.epoch()))
        self.known = world.next_fault
        world.next_fault = self.next_fault  # type: ignore[method-assign]

    def next_fault(self, node: NodeId, step: str) -> str:
        self.orders += 1
        self.db.dead |= self.orders == self.dead_at
        if self.orders == self.ends_at:
            self.ended = True
            raise Crash
        return self.known(node, step)

    async def carry(self, *moves: tuple[str, Lane, str]) -> None:
        """Moves one after the other, each with a few ticks to come to its end."""
        wanted = iter(moves)

        def following() -> PlannedOperation | None:
            name, lane, to = next(wanted, ("", "voluntary", ""))
            if not name or self.world.home() in (None, to):
                return None
            planned = self.world.plan(OperationKind.MOVE, lane=lane)
            return msgspec.structs.replace(
                planned,
                id=OperationId(name),
                to_slot=SlotId(f"{to}/0"),
                expect=msgspec.structs.replace(planned.expect, free=SlotId(f"{to}/0")),
            )

        await self.work(following)

    async def work(self, following: Callable[[], PlannedOperation | None]) -> None:
        """What `following` gives, one after the other, until that is None."""
        number = 0
        try:
            while (planned := following()) is not None:
                self.scheduler.offer(plan(planned, at=float(number)))
                number += 1
                for _ in range(4):
                    await self.scheduler.idle()
                    await self.world.sleep(1.0)
                    self.scheduler.pump()
        except Crash:
            pass
        finally:
            await self.scheduler.stop()
            self.world.next_fault = self.known  # type: ignore[method-assign]


async def after(tmp_path: Path, world: World) -> None:
    """The disk is mended, and the next engine leads until all is over."""
    world.store.close()
    world.store = CrashingStore(tmp_path / "s.db")
    for _ in range(10):
        await take_over(world)
        await world.sleep(30.0)
    assert world.store.active() == ()
    states = [agent.copy.state for agent in world.agents.values() if agent.copy]
    assert states == ["running"] or (not states and any(agent.images for agent in world.agents.values())), "or it waits in its image"


@pytest.mark.parametrize("lane", ["voluntary", "involuntary"])
@pytest.mark.parametrize("fault", ["", "refuse resume", "refuse release"])
async def test_what_was_done_in_memory_is_done_by_nobody_a_second_time(tmp_path: Path, lane: Lane, fault: str) -> None:
    """A move, and then an urgent one to a third node: at each order the disk dies, and at each later one the engine does."""
    tried = 0
    for dead_at in range(1, 11):
        for ends_at in range(dead_at, 21):
            folder = tmp_path / f"{dead_at}-{ends_at}"
            folder.mkdir()
            world = World(CrashingStore(folder / "s.db"))
            if fault:
                step = fault.removeprefix("refuse ")
                world.named = {(NodeId(node), step): ["refuse", "refuse"] for node in "ab"}
            engine = Engine(world, dead_at, ends_at)
            await engine.carry(("first", lane, "b"), ("second", "involuntary", "c"))
            await engine.carry()
            if engine.ended:
                await after(folder, world)
                tried += 1
            world.store.close()
    assert tried > 50


@pytest.mark.parametrize("dead_at", range(1, 9))
async def test_a_move_that_ended_well_in_memory_is_found_out_to_have_ended_well(tmp_path: Path, dead_at: int) -> None:
    """The next engine knows its intent, or some steps, and a worker that runs where it was to come to: nothing of it has failed."""
    world = World(CrashingStore(tmp_path / "s.db"))
    engine = Engine(world, dead_at, 0)
    await engine.carry(("first", "involuntary", "b"))
    assert (engine.db.dead, world.home()) == (True, "b")
    await after(tmp_path, world)
    record = world.store.get(OperationId("first"))
    assert record is not None
    assert record.status is Status.SUCCEEDED, record.outcome
    assert world.home() == "b"
    assert not world.fenced()
    world.store.close()


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("dead_at", range(1, 8))
async def test_a_worker_that_arrived_is_found_there_though_its_old_node_never_answers_again(
    tmp_path: Path, dead_at: int, *, declared: bool
) -> None:
    """That node was going, and all that the next engine knows for sure is that the move was intended."""
    world = World(CrashingStore(tmp_path / "s.db"))
    engine = Engine(world, dead_at, 0)
    await engine.carry(("first", "involuntary", "b"))
    assert (engine.db.dead, world.home()) == (True, "b")
    world.agents[NodeId("a")].away_until = float("inf")
    world.agents[NodeId("a")].dead = declared
    world.gone |= {"a"} if declared else set()
    await after(tmp_path, world)
    record = world.store.get(OperationId("first"))
    assert record is not None
    assert (record.status, world.home(), world.fenced()) == (Status.SUCCEEDED, "b", False)
    world.store.close()
