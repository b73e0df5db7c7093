"""A plan that a person has ordered: all of it is durable at once, nothing drops it, and it keeps to the limits of any other."""

import sqlite3
from pathlib import Path

import msgspec
import pytest
from fleet_in_memory import CrashingStore, World
from gated_executor import Gated, op, outcomes, plan, settle, status_of, told_outcome
from shunter.act.execute import Executor
from shunter.act.scheduler import Scheduler
from shunter.act.store import Store
from shunter.app.astray import astray
from shunter.model.errors import Problem, Rejected, Stalled
from shunter.model.ids import NoticeId, OperationId, SlotId, node_of
from shunter.model.operation import Status
from shunter.model.plan import OperationKind
from shunter.model.record import RecordKind
from shunter.model.snapshot import Notice, NoticeKind


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(CrashingStore(tmp_path / "s.db"))


async def test_it_is_in_the_store_as_a_whole_before_anything_of_it_begins(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=2)
    ordered = plan(op("v1"), op("v2"), op("v3"), op("i1", lane="involuntary"), op("shown", preview=True))
    scheduler.accept(ordered)
    assert world.store.consumed(ordered.digest)
    assert [r.id for r in world.store.active()] == ["v1", "v2", "v3", "i1"]
    assert [r.operation for r in world.records if r.kind is RecordKind.INTENT] == ["v1", "v2", "v3", "i1"]
    await settle()
    assert executor.started == ["i1", "v1", "v2"], "involuntary ones first, and voluntary ones two at a time"
    assert world.store.get(OperationId("shown")) is None
    await executor.end("v1")
    assert executor.started[-1] == "v3"
    await scheduler.stop()


async def test_a_newer_plan_does_not_drop_what_waits(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)
    scheduler.accept(plan(op("v1"), op("v2")))
    await settle()
    scheduler.offer(plan(op("other"), at=2.0))
    await settle()
    assert executor.started == ["v1"]
    await executor.end("v1")
    await executor.end("v2")
    assert executor.started == ["v1", "v2", "other"]
    await scheduler.stop()


async def test_what_waits_gives_way_to_what_is_urgent_for_its_worker_or_slot(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)
    slot, other = SlotId("b/0"), SlotId("c/0")
    then = op("then", after=(OperationId("to-slot"),))
    scheduler.accept(plan(op("v1"), op("own", worker="w"), op("to-slot", to_slot=slot), then, op("apart", to_slot=other)))
    await settle()
    scheduler.offer(plan(op("i1", worker="w", lane="involuntary", to_slot=slot), at=2.0))
    await settle()
    assert executor.started == ["v1", "i1"]
    gone = {name: status_of(world, name) for name in ("own", "to-slot", "then", "apart")}
    assert gone == {**dict.fromkeys(("own", "to-slot", "then"), Status.SUPERSEDED), "apart": Status.ACTIVE}
    assert "i1 can't wait" in told_outcome(outcomes(world)["own"])["reason"]
    await scheduler.stop()


async def test_a_full_disk_does_not_keep_what_is_urgent_from_beginning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)
    scheduler.accept(plan(op("v1"), op("own", worker="w")))
    await settle()

    def full(*_: object) -> bool:
        raise Stalled(Problem(code="SH501", what="the disk is full", remedy="Free some"))

    monkeypatch.setattr(executor, "cancel", full)
    scheduler.offer(plan(op("i1", worker="w", lane="involuntary"), at=2.0))
    await settle()
    assert executor.started == ["v1", "i1"]
    await scheduler.stop()


async def test_a_chain_of_it_waits_for_its_turn_and_falls_with_a_failure(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    scheduler.accept(plan(op("first"), op("second", after=(OperationId("first"),)), op("third", after=(OperationId("second"),))))
    await settle()
    assert executor.started == ["first"]
    await executor.end("first", Status.FAILED)
    assert {name: status_of(world, name) for name in ("second", "third")} == {"second": Status.SUPERSEDED, "third": Status.SUPERSEDED}
    await scheduler.stop()


async def test_the_next_engine_goes_on_with_what_waits(world: World) -> None:
    first = Scheduler(Gated(world), voluntary=1)
    first.accept(plan(op("v1"), op("v2")))
    await first.stop()
    executor = Gated(world)
    world.store.adopt(executor.epoch)
    second = Scheduler(executor, voluntary=2)
    second.pump()
    await settle()
    assert executor.started == ["v2"], "and v1, which was begun, is taken up where it was"
    with pytest.raises(Rejected) as twice:
        second.accept(plan(op("v1"), op("v2")))
    assert twice.value.problem.code == "SH504"
    await second.stop()


async def test_an_operation_that_was_begun_before_keeps_the_whole_plan_out(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    scheduler.offer(plan(op("v1")))
    await settle()
    later = plan(op("new"), op("v1"), at=2.0)
    with pytest.raises(Rejected) as caught:
        scheduler.accept(later)
    assert caught.value.problem.code == "SH503"
    assert world.store.get(OperationId("new")) is None
    assert not world.store.consumed(later.digest), "all or none"
    await scheduler.stop()


async def test_a_store_that_takes_no_write_takes_no_plan(tmp_path: Path) -> None:
    """Also none that is urgent: what a person has ordered must not be forgotten."""
    store = CrashingStore(tmp_path / "s.db")
    world = World(store)
    executor = Gated(world)
    scheduler = Scheduler(executor)
    ordered = plan(op("i1", lane="involuntary"))
    with sqlite3.connect(tmp_path / "s.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        store._db.execute("PRAGMA busy_timeout=1")
        with pytest.raises(Stalled):
            scheduler.accept(ordered)
        other.execute("ROLLBACK")
    other.close()
    assert executor.started == []
    with Store(tmp_path / "s.db", read_only=True)._db as db:
        assert db.execute("SELECT count(*) FROM operations").fetchone() == (0,)
    scheduler.accept(ordered)
    await settle()
    assert executor.started == ["i1"]
    await scheduler.stop()


async def test_what_would_go_to_a_node_that_is_going_by_now_is_not_begun(world: World) -> None:
    """A notice that comes while an operation of an accepted plan waits for its turn."""
    notices: list[Notice] = []
    executor = Executor(msgspec.structs.replace(world.parts(), astray=lambda planned: astray(planned, notices, 0.0)), world.epoch())
    executor.accept(plan(world.plan(OperationKind.MOVE)))
    (waiting,) = world.store.active()
    assert waiting.planned.to_slot is not None
    notices.append(Notice(id=NoticeId("n"), kind=NoticeKind.PREEMPTION, node=node_of(waiting.planned.to_slot), seen_at=1.0))
    ended = await executor.carry(executor.begin(waiting))
    assert ended.status is Status.SUPERSEDED
    assert ended.outcome is not None
    assert ended.outcome.code == "SH510"
    assert "where it would go, has an open notice (preemption of" in ended.outcome.reason
    assert world.orders == []


async def test_what_waited_and_is_accepted_is_begun_once_and_nothing_drops_it(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)
    decided = plan(op("v0"), op("v1"), op("v2"))
    scheduler.offer(decided)
    assert [o.id for o in scheduler.waiting] == ["v1", "v2"]
    scheduler.accept(plan(op("v1"), op("v3"), at=2.0))
    assert [o.id for o in scheduler.waiting] == ["v2"], "the rest is the store's"
    scheduler.offer(plan(op("v1"), at=3.0))
    await settle()
    await executor.end("v0")
    await executor.end("v1")
    await executor.end("v3")
    assert executor.started == ["v0", "v1", "v3"]
    assert {name: status_of(world, name) for name in ("v1", "v3")} == dict.fromkeys(("v1", "v3"), Status.SUCCEEDED)
    await scheduler.stop()
