"""The disk dies while an operation is at some step, and stays dead: what was begun comes to a safe end within a bounded time all the same.

It ends where it was, or, once it is committed, where it was to go: running and in the router's sight, or put away on purpose. The world
checks that there never are two copies.
"""

from pathlib import Path

import msgspec
import pytest
from fleet_in_memory import FAULTS, HOLD, CrashingStore, World
from gated_executor import plan
from shunter.act.execute import Executor
from shunter.act.run import Parts
from shunter.act.scheduler import Scheduler
from shunter.act.store import ENDING
from shunter.model.errors import Problem, ShunterError, Stalled
from shunter.model.ids import ImageId, NodeId, OperationId
from shunter.model.operation import Status
from shunter.model.plan import OperationKind
from shunter.model.record import Record, RecordKind

MOVE, PARK, DRAIN = OperationKind.MOVE, OperationKind.PARK, OperationKind.DRAIN
CHECKPOINT, RESTORE, DISCARD = OperationKind.CHECKPOINT, OperationKind.RESTORE, OperationKind.DISCARD
BOUND = HOLD + 15.0
"""Seconds within which all is well again: what stands still by a hold may have to wait for its end."""
ORDERS = [
    *((MOVE, step) for step in ("preflight", "prepare", "fence", "freeze", "restore", "release", "resume", "unfence")),
    *((PARK, step) for step in ("preflight", "fence", "freeze", "send c", "release")),
    *((DRAIN, step) for step in ("fence", "drain")),
    *((CHECKPOINT, step) for step in ("preflight", "checkpoint", "send b")),
    *((RESTORE, step) for step in ("prepare", "restore", "resume", "unfence")),
    (DISCARD, "discard"),
]


class Dying:
    """A connection to a disk that can be read only from some moment on."""

    def __init__(self, db: object) -> None:
        self.db, self.dead = db, False

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> object:
        if self.dead and not statement.startswith("SELECT"):
            raise OSError(30, "Read-only file system")
        return self.db.execute(statement, values)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self.db, name)


class Stage:
    """One engine on a disk that dies at an order, before its answer can be written down: the store's, the audit's or both."""

    def __init__(self, folder: Path, at: str, dies: str = "both") -> None:
        self.world = World(CrashingStore(folder / "s.db"))
        self.db = Dying(self.world.store._db)
        self.world.store._db = self.db  # type: ignore[assignment]
        self.audit_dead = False
        self.errors: list[str] = []
        parts = msgspec.structs.replace(self.world.parts(), audit=self.audit)
        self.scheduler = self.lead(parts)
        known = self.world.next_fault

        def next_fault(node: str, step: str) -> str:
            if step == at:
                self.db.dead, self.audit_dead = dies != "audit", dies != "store"
            return known(NodeId(node), step)

        self.world.next_fault = next_fault  # type: ignore[assignment, method-assign]

    def lead(self, parts: Parts) -> Scheduler:
        self.executor = Executor(parts, self.world.epoch())

        def on_error(_operation: OperationId, error: ShunterError) -> None:
            self.errors.append(error.problem.code)

        return Scheduler(self.executor, on_error=on_error)

    def audit(self, record: Record) -> None:
        """As `app.degraded.Watch.audit` does it: what waits for its end isn't held up."""
        self.world.records.append(record)
        licenses = record.kind is RecordKind.STEP and record.body["step"] not in ENDING and "outstanding" not in record.body
        if self.audit_dead and licenses and record.body["lane"] == "voluntary":
            raise Stalled(Problem(code="SH901", what="the audit takes no writes", remedy="Mend it"))

    async def tick(self, seconds: float) -> None:
        """The engine's ticks, one a second."""
        for _ in range(round(seconds)):
            await self.world.sleep(1.0)
            self.scheduler.pump()
            await self.scheduler.idle()


def away(world: World) -> None:
    """The worker has ended, and has an image."""
    world.agents[NodeId("a")].images.add(ImageId("kept"))
    world.agents[NodeId("a")].copy = None


def settled(stage: Stage, kind: OperationKind) -> None:
    """Nothing is left in between."""
    world = stage.world
    assert world.store.active() == ()
    (record,) = world.store.recent(0)
    assert not world.fenced()
    assert not any(agent.prepared for agent in world.agents.values() if agent.copy is None)
    states = [agent.copy.state for agent in world.agents.values() if agent.copy]
    gone = kind in (PARK, DRAIN) and record.status is Status.SUCCEEDED
    stayed = kind is RESTORE and record.status is not Status.SUCCEEDED
    assert states == ([] if gone or stayed else ["running"]), record


@pytest.mark.parametrize("dies", ["store", "audit", "both"])
@pytest.mark.parametrize(("kind", "at"), ORDERS, ids=[f"{kind.value} {at}" for kind, at in ORDERS])
async def test_what_is_under_way_comes_to_a_safe_end_on_a_dead_disk(tmp_path: Path, kind: OperationKind, at: str, dies: str) -> None:
    stage = Stage(tmp_path, at, dies)
    world = stage.world
    if kind in (RESTORE, DISCARD):
        world.agents[NodeId("a")].images.add(ImageId("kept"))
    if kind is RESTORE:
        away(world)
    planned = world.plan(kind)
    if kind is PARK:
        planned = msgspec.structs.replace(planned, copies=(NodeId("b"), NodeId("c")))
    stage.scheduler.offer(plan(planned))
    await stage.scheduler.idle()
    assert stage.db.dead or stage.audit_dead, "the order was given"
    await stage.tick(BOUND)
    settled(stage, kind)
    ended = world.store.get(planned.id)
    await stage.tick(600 - BOUND)
    stage.db.dead = stage.audit_dead = False
    assert world.store.recover()
    await stage.tick(5)
    assert world.store.get(planned.id) == ended
    settled(stage, kind)
    await stage.scheduler.stop()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", ["freeze", "release"])
async def test_another_fault_on_the_way_back_or_on_leaves_nothing_in_between(tmp_path: Path, at: str, fault: str) -> None:
    """One more at each order. Only a worker whose unfence is refused stays out of the router's sight, until `act.unfence` mends that."""
    tried = 0
    for number in range(1, 14):
        folder = tmp_path / str(number)
        folder.mkdir()
        stage = Stage(folder, at)
        world = stage.world
        world.faults = {number: fault}
        stage.scheduler.offer(plan(world.plan(MOVE)))
        await stage.scheduler.idle()
        await stage.tick(150)
        await stage.scheduler.stop()
        assert world.store.active() == (), number
        if not world.faults:
            tried += 1
            (record,) = world.store.recent(0)
            assert record.outcome is not None
            assert not world.fenced() or record.outcome.code == "SH519" or "doesn't see it" in record.outcome.reason, number
            running = [agent.copy.state for agent in world.agents.values() if agent.copy]
            assert running == ["running"] or (not running and (record.outcome.image or world.died_bare)), number
        world.store.close()
    assert tried >= 7
