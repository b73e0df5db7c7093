"""An engine puts fenced workers of which nobody knows anything back, against an agent's own insides."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec
import pytest
from agent_fakes import Bench, problem
from shunter.act.agents import view_of
from shunter.act.port import Agent, CopyView, copy_view
from shunter.act.run import Parts
from shunter.act.store import Store
from shunter.act.unfence import Unfencing
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import Digest, Epoch, Incarnation, NodeId, NoticeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.snapshot import Fleet, Notice, NoticeKind
from shunter.wire import agent_pb2 as pb
from shunter_agent import inventory

N, W = NodeId("n"), WorkerId("w")


class Direct:
    """The agent, without a network in between."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def report(self, timeout: float) -> pb.NodeReport:
        return await inventory.report(self.bench.node)

    async def journal(self, operation: OperationId, timeout: float) -> CopyView:
        return copy_view(await inventory.journal(self.bench.node, operation))

    async def unfence(self, order: pb.Order, timeout: float) -> pb.Done:
        return await self.bench.source.unfence(pb.StepOrder(order=order))


class Stage:
    """An engine's part under an epoch, on a store of its own."""

    def __init__(self, bench: Bench, store: Store, epoch: int = 2) -> None:
        self.bench, self.store = bench, store
        self.now = 1000.0
        self.recorded: list[tuple[str, object]] = []
        self.told: list[Problem | None] = []
        parts = Parts(
            store=store,
            agents={N: cast(Agent, Direct(bench))},
            fleet=Fleet,
            audit=lambda _record: None,
            clock=lambda: self.now,
            sleep=self.never,
        )
        self.unfencing = Unfencing(
            parts,
            Epoch(epoch),
            record=lambda worker, what, about: self.recorded.append((what, about["operation"])),
            tell=lambda worker, problem: self.told.append(problem),
        )

    async def never(self, seconds: float) -> None:
        raise AssertionError

    async def tick(self, *notices: Notice) -> str:
        """Look, and wait for what is ordered. What the agent then says of the worker."""
        self.now += 1
        view = view_of(await inventory.report(self.bench.node))
        self.unfencing.look(Fleet(nodes=(view.node,), workers=view.workers), notices, self.now)
        await self.unfencing.idle()
        return self.bench.state()

    def insert(self, *, over: bool, name: str = "op") -> OperationRecord:
        planned = PlannedOperation(
            id=OperationId(name),
            kind=OperationKind.MOVE,
            worker=W,
            lane="involuntary",
            policy=PolicyName("p"),
            reason="",
            expect=Preconditions(incarnation=Incarnation(0)),
            from_slot=SlotId("n/0"),
        )
        record = OperationRecord(planned=planned, plan=Digest("d"), epoch=Epoch(2), created_at=1.0)
        self.store.insert([record])
        if over:
            self.store.finish(record.id, Outcome(status=Status.ROLLED_BACK, at=2.0, code="SH519"))
        return record


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with closing(Store(tmp_path / "engine.db")) as store:
        yield Stage(Bench(tmp_path), store)


def notice(deadline: float | None) -> Notice:
    return Notice(id=NoticeId("x"), kind=NoticeKind.PREEMPTION, node=N, seen_at=1.0, deadline=deadline)


async def test_one_whose_operation_nobody_knows_is_put_back_and_audited(stage: Stage) -> None:
    await stage.bench.source.fence(stage.bench.step(epoch=1))
    assert await stage.tick() == "running"
    assert stage.recorded == [
        ("puts w on n back into the router's sight: no operation under way keeps it out", "op"),
        ("w on n is back in the router's sight", "op"),
    ]
    assert stage.bench.serving.registered
    for _ in range(3):
        await stage.tick()
    assert len(stage.recorded) == 2


async def test_one_that_came_by_an_operation_that_nobody_knows_is_put_back(stage: Stage) -> None:
    bench = stage.bench
    bench.journal.drop_worker("w")
    bench.runtime.alive.clear()
    bench.runtime.running.clear()
    bench.give_image()
    await bench.destination.prepare(bench.prepare())
    await bench.destination.restore(bench.restore())
    await bench.destination.resume(bench.step())
    assert bench.state() == "fenced"
    assert await stage.tick() == "running"


async def test_one_in_an_operation_under_way_stays_and_one_whose_operation_ended_doesnt(stage: Stage) -> None:
    await stage.bench.source.fence(stage.bench.step(epoch=2))
    record = stage.insert(over=False)
    assert await stage.tick() == "fenced"
    stage.store.finish(record.id, Outcome(status=Status.ROLLED_BACK, at=2.0, code="SH519"))
    assert await stage.tick() == "running"


async def test_one_that_waits_for_its_turn_is_in_no_operation_yet(stage: Stage) -> None:
    await stage.bench.source.fence(stage.bench.step(epoch=1))
    waiting = msgspec.structs.replace(stage.insert(over=True), waits=True)
    stage.store.insert([msgspec.structs.replace(waiting, planned=msgspec.structs.replace(waiting.planned, id=OperationId("later")))])
    assert await stage.tick() == "running"


async def test_a_node_that_is_about_to_go_gets_no_new_requests(stage: Stage) -> None:
    await stage.bench.source.fence(stage.bench.step(epoch=1))
    assert await stage.tick(notice(2000.0)) == "fenced"
    assert await stage.tick(notice(1000.0)) == "running", "it was to go, and is there still"


async def test_a_notice_without_an_end_keeps_nobody_out_for_ever(stage: Stage) -> None:
    await stage.bench.source.fence(stage.bench.step(epoch=1))
    assert await stage.tick(notice(None)) == "running"


@pytest.mark.parametrize("refused", [Retry(problem("SH622")), Rejected(problem("SH621"))])
async def test_one_that_cant_be_put_back_is_told_and_tried_again_more_and_more_seldom(stage: Stage, refused: Exception) -> None:
    await stage.bench.source.fence(stage.bench.step(epoch=1))
    tried = 0

    def refuse() -> None:
        nonlocal tried
        tried += 1
        raise refused

    stage.bench.faults.at["unfence"] = refuse
    for _ in range(300):
        stage.bench.faults.at.setdefault("unfence", refuse)
        assert await stage.tick() == "fenced"
    assert 8 <= tried <= 12
    assert {p.code for p in stage.told if p} == {"SH535"}
    stage.bench.faults.at.clear()
    for _ in range(61):
        await stage.tick()
    assert stage.bench.state() == "running"
    assert stage.told[-1] is None


async def test_it_is_put_back_each_time_and_not_answered_from_the_journal(stage: Stage) -> None:
    for number in range(3):
        await stage.bench.source.fence(stage.bench.step(f"op-{number}", epoch=2))
        stage.bench.node.part(f"op-{number}", "w")
        assert await stage.tick() == "running", number
        await stage.tick()


async def test_of_a_silent_node_nothing_is_said(stage: Stage) -> None:
    await stage.bench.source.fence(stage.bench.step(epoch=1))
    view = view_of(await inventory.report(stage.bench.node))
    silent = Fleet(nodes=(msgspec.structs.replace(view.node, reachable=False),), workers=view.workers)
    stage.unfencing.look(silent, (), 1000.0)
    await stage.unfencing.idle()
    assert (stage.told, stage.recorded, stage.bench.state()) == ([], [], "fenced")


async def test_what_ended_or_began_since_it_was_seen_is_left_alone(stage: Stage) -> None:
    await stage.bench.source.fence(stage.bench.step(epoch=2))
    view = view_of(await inventory.report(stage.bench.node))
    fleet = Fleet(nodes=(view.node,), workers=view.workers)
    stage.unfencing.look(fleet, (), 1000.0)
    record = stage.insert(over=False)
    await stage.unfencing.idle()
    assert (stage.recorded, stage.bench.state()) == ([], "fenced")
    stage.store.finish(record.id, Outcome(status=Status.ROLLED_BACK, at=2.0))
    await stage.bench.source.unfence(stage.bench.step(epoch=2))
    stage.unfencing.look(fleet, (), 1001.0)
    await stage.unfencing.idle()
    assert (stage.told, stage.recorded) == ([], [])


async def test_an_overtaken_engine_puts_nobody_back(stage: Stage) -> None:
    await stage.bench.source.fence(stage.bench.step(epoch=3))
    assert await stage.tick() == "fenced"
    assert [p.what.count("SH601") for p in stage.told if p] == [1]


async def test_of_one_that_no_agent_reports_and_only_its_pod_is_known_no_agent_is_asked(stage: Stage) -> None:
    await stage.bench.source.fence(stage.bench.step(epoch=1))
    view = view_of(await inventory.report(stage.bench.node))
    by_pod = tuple(msgspec.structs.replace(worker, slot=None) for worker in view.workers)
    stage.unfencing.look(Fleet(nodes=(view.node,), workers=by_pod), (), 1000.0)
    await stage.unfencing.idle()
    assert (stage.told, stage.recorded, stage.bench.state()) == ([], [], "fenced")
