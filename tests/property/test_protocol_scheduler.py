"""What starts when: order, limits, newer plans, and what is left for later."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleet_in_memory import WORKER, CrashingStore, World
from gated_executor import Gated, op, outcomes, plan, settle, status_of, told_outcome
from shunter.act.execute import Executor
from shunter.act.scheduler import Scheduler
from shunter.model.errors import Place, Problem, Rejected, ShunterError, Stalled
from shunter.model.expression import Expression
from shunter.model.finding import Lane
from shunter.model.ids import Commit, Digest, OperationId, PolicyName
from shunter.model.operation import Status
from shunter.model.plan import OperationKind, Plan, PlannedOperation
from shunter.model.policy import Metadata, Mode, Policy, PolicySet, RebalancePolicy, RebalanceSpec, WorkerSelector
from shunter.model.record import Record


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(CrashingStore(tmp_path / "s.db"))


async def test_voluntary_ones_are_limited_and_involuntary_ones_are_not(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=2)
    scheduler.offer(plan(op("v1"), op("v2"), op("v3"), *(op(f"i{n}", lane="involuntary") for n in range(5))))
    await settle()
    assert executor.started == ["i0", "i1", "i2", "i3", "i4", "v1", "v2"]
    await executor.end("v1")
    assert executor.started[-1] == "v3"
    await scheduler.stop()


async def test_one_at_a_time_for_a_worker_and_a_slot(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    scheduler.offer(
        plan(
            op("first", "w1", "involuntary", to_slot="b/0"),
            op("same-worker", "w1", "involuntary"),
            op("same-slot", "w2", "involuntary", from_slot="b/0"),
            op("other", "w3", "involuntary"),
        )
    )
    await settle()
    assert executor.started == ["first", "other"]
    await executor.end("first")
    assert set(executor.started) == {"first", "other", "same-worker", "same-slot"}
    await scheduler.stop()


async def test_after_waits_for_success_and_falls_with_a_failure(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    first, second = OperationId("first"), OperationId("second")
    scheduler.offer(plan(op("first"), op("second", after=(first,)), op("third", after=(second,))))
    await settle()
    assert executor.started == ["first"]
    await executor.end("first")
    assert executor.started == ["first", "second"]
    await executor.end("second", Status.ROLLED_BACK)
    assert executor.started == ["first", "second"]
    assert scheduler.waiting == ()
    why = told_outcome(outcomes(world)["third"])
    assert why["code"] == "SH526"
    assert "second" in why["reason"]
    assert status_of(world, "third") is Status.SUPERSEDED
    assert world.store.active() == ()


async def test_a_newer_plan_drops_what_was_not_started(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)
    scheduler.offer(plan(op("running"), op("stale"), op("kept")))
    await settle()
    scheduler.offer(plan(op("running"), op("kept"), op("new"), at=2.0))
    await settle()
    assert executor.started == ["running"], "what was started goes on, and isn't started again"
    assert {o.id for o in scheduler.waiting} == {"kept", "new"}
    ((name, dropped),) = outcomes(world).items()
    assert name == "stale"
    assert world.store.get(OperationId("stale")) is None, "it was never begun, so it may be decided again"
    begun = next(r for r in world.records if r.operation == "running")
    assert set(dropped.body) == {*begun.body, "outcome"}, "all outcomes are told alike"
    assert (told_outcome(dropped)["status"], told_outcome(dropped)["code"]) == ("superseded", "SH527")
    await scheduler.stop()


def in_force(commit: str, **modes: Mode) -> PolicySet:
    spec = {name: RebalanceSpec(workers=WorkerSelector(all=True), when=Expression(text="true"), mode=mode) for name, mode in modes.items()}
    made = tuple(
        Policy(
            document=RebalancePolicy(metadata=Metadata(name=name), spec=one),
            place=Place(file="a.yaml", line=1, column=1),
            blob="",
            commit=Commit(commit),
        )
        for name, one in spec.items()
    )
    return PolicySet(commit=Commit(commit), digest=Digest(commit), policies=made)


async def test_what_waits_is_dropped_as_soon_as_a_newer_commit_doesnt_want_it(world: World) -> None:
    """Before any plan is made with that commit, so that nothing of it begins meanwhile; what is urgent is no policy's to take back."""
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)

    def of(policy: str, name: str, lane: Lane = "voluntary", **more: Any) -> PlannedOperation:
        return msgspec.structs.replace(op(name, lane=lane, **more), policy=PolicyName(policy))

    first = OperationId("gone")
    scheduler.offer(
        plan(of("p", "running"), of("gone", "gone"), of("stays", "chained", after=(first,)), of("shown", "shown"), of("stays", "kept"))
    )
    await settle()
    scheduler.withdraw(in_force("c" * 40, stays="enforce", shown="preview"))
    assert {o.id for o in scheduler.waiting} == {"kept"}
    assert sorted(outcomes(world)) == ["chained", "gone", "shown"]
    assert told_outcome(outcomes(world)["gone"])["reason"] == "commit cccccccccccc doesn't have its policy in force"
    await executor.end("running")
    assert executor.started == ["running", "kept"]
    scheduler.offer(
        plan(of("gone", "urgent-1", "involuntary"), of("gone", "urgent-2", "involuntary", after=(OperationId("urgent-1"),)), at=3.0)
    )
    await settle()
    scheduler.withdraw(in_force("d" * 40))
    assert "urgent-1" in executor.started
    assert not [name for name in outcomes(world) if name.startswith("urgent")]
    await scheduler.stop()


async def test_a_plan_is_carried_out_once_and_a_preview_never(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    once = plan(op("one"), op("shown", preview=True), op("two"))
    scheduler.offer(once)
    await settle()
    assert executor.started == ["one", "two"]
    with pytest.raises(Rejected, match="SH504"):
        scheduler.offer(same_digest(once))
    await scheduler.stop()


def same_digest(original: Plan) -> Plan:
    """The same digest, but with nothing of it begun: as if the operations' records had been lost."""
    clone = Plan(at=9.0, commit=original.commit, policy_set=original.policy_set, snapshot=original.snapshot, operations=(op("fresh"),))
    vars(clone).update(digest=original.digest)
    return clone


async def test_nothing_voluntary_starts_while_the_store_takes_no_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    monkeypatch.setattr(world.store, "gate", lambda: False)
    scheduler.offer(plan(op("voluntary"), op("involuntary", lane="involuntary")))
    await settle()
    assert executor.started == ["involuntary"]
    assert [o.id for o in scheduler.waiting] == ["voluntary"]
    await scheduler.stop()


async def test_what_waits_for_an_agent_is_taken_up_again(world: World) -> None:
    """The destination hears Resume and then is away for longer than anybody looks into it."""
    errors: list[ShunterError] = []
    scheduler = Scheduler(Executor(world.parts(), world.epoch()), on_error=lambda _id, error: errors.append(error))
    world.faults = {8: "cut-after"}
    scheduler.offer(plan(world.plan(OperationKind.MOVE)))
    await scheduler.idle()
    assert [e.problem.code for e in errors] == ["SH520"]
    (record,) = world.store.active()
    assert record.status is Status.UNKNOWN
    assert record.outstanding is not None
    assert record.outstanding.problem.code == "SH520"
    assert world.home() == "b"
    await world.sleep(100)
    scheduler.pump()
    await scheduler.idle()
    assert world.store.active() == ()
    assert [r.status for r in world.store.recent(0)] == [Status.SUCCEEDED]
    assert world.home() == "b"
    assert world.store.recent(0)[0].planned.worker == WORKER


async def test_a_precondition_that_no_longer_holds_ends_it_untouched(world: World) -> None:
    planned = world.plan(OperationKind.MOVE)
    world.incarnation = 3
    record = await Executor(world.parts(), world.epoch()).start(planned, Digest("p"))
    assert record.status is Status.SUPERSEDED
    assert record.outcome is not None
    assert record.outcome.code == "SH510"
    assert "incarnation 3" in record.outcome.reason
    assert world.orders == []


async def test_an_overtaken_engine_stops(world: World) -> None:
    executor = Executor(world.parts(), world.epoch())
    world.agents["a"].epoch = 99  # type: ignore[index]
    with pytest.raises(ShunterError) as stopped:
        await executor.start(world.plan(OperationKind.MOVE), Digest("p"))
    assert stopped.value.problem.code == "SH522"
    assert world.home() == "a"


async def test_an_audit_trail_that_is_full_stops_the_next_effect(world: World) -> None:
    def audit(record: Record) -> None:
        if record.body.get("step") == "frozen":
            raise Stalled(Problem(code="SH901", what="full", remedy="free it"))

    parts = msgspec.structs.replace(world.parts(), audit=audit)
    with pytest.raises(Stalled):
        await Executor(parts, world.epoch()).start(world.plan(OperationKind.MOVE), Digest("p"))
    assert world.orders[-1][1] == "freeze"
    await world.sleep(60)
    assert world.home() == "a", "the hold has ended, and the worker runs on"
