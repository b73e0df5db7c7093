"""An engine frees what operations that are over have left reserved, against an agent's own insides."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec
import pytest
from agent_fakes import Bench, problem
from shunter.act.agents import view_of
from shunter.act.freeing import Freeing
from shunter.act.port import Agent
from shunter.act.run import Parts
from shunter.act.store import Store
from shunter.model.errors import Problem, Retry
from shunter.model.ids import Digest, Epoch, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.snapshot import Fleet
from shunter.wire import agent_pb2 as pb
from shunter_agent import inventory

N, SLOT = NodeId("n"), SlotId("n/0")


class Direct:
    """The agent, without a network in between."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def report(self, timeout: float) -> pb.NodeReport:
        return await inventory.report(self.bench.node)

    async def abort(self, order: pb.Order, timeout: float) -> pb.Done:
        return await self.bench.destination.abort(pb.StepOrder(order=order))


class Stage:
    """An engine's part under an epoch, on a store of its own, and a slot that `op` has reserved."""

    def __init__(self, bench: Bench, store: Store, epoch: int = 2) -> None:
        self.bench, self.store = bench, store
        self.now = 1000.0
        self.recorded: list[str] = []
        self.told: list[Problem | None] = []
        parts = Parts(
            store=store,
            agents={N: cast(Agent, Direct(bench))},
            fleet=Fleet,
            audit=lambda _record: None,
            clock=lambda: self.now,
            sleep=self.never,
        )
        self.freeing = Freeing(
            parts,
            Epoch(epoch),
            record=lambda _slot, what, _about: self.recorded.append(what),
            tell=lambda _slot, problem: self.told.append(problem),
        )

    async def never(self, seconds: float) -> None:
        raise AssertionError

    async def tick(self, *, reachable: bool = True) -> str | None:
        """Look, and wait for what is ordered. Who has the slot then."""
        self.now += 1
        await self.look(reachable=reachable)
        (kept,) = (slot.reserved_by for slot in view_of(await inventory.report(self.bench.node)).node.slots if slot.id == SLOT)
        return kept

    async def look(self, *, reachable: bool = True) -> None:
        node = view_of(await inventory.report(self.bench.node)).node
        self.freeing.look(Fleet(nodes=(msgspec.structs.replace(node, reachable=reachable),)))
        await self.freeing.idle()

    def insert(self, over: Status | None) -> OperationRecord:
        planned = PlannedOperation(
            id=OperationId("op"),
            kind=OperationKind.MOVE,
            worker=WorkerId("w"),
            lane="involuntary",
            policy=PolicyName("p"),
            reason="",
            expect=Preconditions(incarnation=Incarnation(0)),
            to_slot=SLOT,
        )
        record = OperationRecord(planned=planned, plan=Digest("d"), epoch=Epoch(1), created_at=1.0)
        self.store.insert([record])
        if over is not None:
            self.store.finish(record.id, Outcome(status=over, at=2.0, code="SH814"))
        return record


@pytest.fixture
async def stage(tmp_path: Path) -> Iterator[Stage]:  # type: ignore[misc]
    with closing(Store(tmp_path / "engine.db")) as store:
        made = Stage(Bench(tmp_path, worker=False), store)
        await made.bench.destination.prepare(made.bench.prepare("n/0", "op", epoch=1))
        yield made


@pytest.mark.parametrize("over", [Status.ROLLED_BACK, Status.FAILED, Status.SUPERSEDED])
async def test_what_an_operation_left_reserved_is_freed_and_audited(stage: Stage, over: Status) -> None:
    stage.insert(over)
    assert await stage.tick() is None
    assert stage.recorded == ["freed n/0, which op had reserved and couldn't give back at its end"]
    assert await stage.tick() is None
    assert len(stage.recorded) == 1


@pytest.mark.parametrize("over", [None, Status.SUCCEEDED])
async def test_one_under_way_keeps_its_slot_and_one_that_is_done_gives_it_back_itself(stage: Stage, over: Status | None) -> None:
    stage.insert(over)
    assert await stage.tick() == "op"
    assert stage.recorded == []


async def test_what_this_engine_never_heard_of_is_somebody_elses(stage: Stage) -> None:
    assert await stage.tick() == "op"


async def test_of_a_silent_node_nothing_is_asked(stage: Stage) -> None:
    stage.insert(Status.ROLLED_BACK)
    assert await stage.tick(reachable=False) == "op"
    assert stage.told == []


async def test_one_that_cant_be_freed_is_told_and_tried_again_more_and_more_seldom(stage: Stage) -> None:
    stage.insert(Status.ROLLED_BACK)
    real, tried = stage.bench.destination.abort, 0

    async def refuse(_message: pb.StepOrder) -> pb.Done:
        nonlocal tried
        tried += 1
        raise Retry(problem("SH610"))

    stage.bench.destination.abort = refuse  # type: ignore[method-assign]
    for _ in range(300):
        assert await stage.tick() == "op"
    assert 8 <= tried <= 12
    assert {p.code for p in stage.told if p} == {"SH536"}
    stage.bench.destination.abort = real  # type: ignore[method-assign]
    for _ in range(61):
        await stage.tick()
    assert await stage.tick() is None
    assert stage.told[-1] is None


async def test_what_its_operation_gave_back_since_it_was_seen_isnt_said_to_be_freed(stage: Stage) -> None:
    record = stage.insert(Status.ROLLED_BACK)
    seen = view_of(await inventory.report(stage.bench.node)).node
    await stage.bench.destination.abort(stage.bench.step(record.id, epoch=1))
    stage.freeing.look(Fleet(nodes=(seen,)))
    await stage.freeing.idle()
    assert stage.recorded == []


async def test_an_overtaken_engine_frees_nothing(stage: Stage) -> None:
    stage.insert(Status.ROLLED_BACK)
    overtaken = Stage(stage.bench, stage.store, epoch=0)
    assert await overtaken.tick() == "op"
    assert [p.what.count("SH601") for p in overtaken.told if p] == [1]
    assert overtaken.recorded == []
