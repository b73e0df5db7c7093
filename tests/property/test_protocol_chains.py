"""Chains as one durable decision, and one dump at a time on each node."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleet_in_memory import WORKER, Crash, CrashingStore, World
from gated_executor import Gated, op, outcomes, plan, settle, status_of, told_outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from next_engine import take_over
from shunter.act.chain import dumps_on, freed, linked
from shunter.act.execute import Executor
from shunter.act.run import Unresolved
from shunter.act.scheduler import Scheduler
from shunter.model.errors import ShunterError
from shunter.model.ids import Incarnation, NodeId, OperationId, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.record import RecordKind

FIRST, SECOND = OperationId("first"), OperationId("second")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(CrashingStore(tmp_path / "s.db"))


def dump(name: str, node: str, lane: str = "voluntary", kind: OperationKind = OperationKind.MOVE, **more: object) -> PlannedOperation:
    return op(name, None, lane, kind=kind, from_slot=SlotId(f"{node}/{name}"), to_slot=SlotId(f"away/{name}"), **more)


# -- a chain is one decision


async def test_a_newer_plan_neither_drops_nor_doubles_what_a_begun_chain_has_to_come(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    first, second = op("first", "w1"), op("second", "w2", after=(FIRST,))
    scheduler.offer(plan(first, second))
    await settle()
    assert executor.started == ["first"]
    assert [(r.id, r.waits) for r in world.store.state(0).active] == [("first", False), ("second", True)], "decide sees both"
    assert [r.operation for r in world.records if r.kind is RecordKind.INTENT] == ["first", "second"]
    scheduler.offer(plan(at=2.0))
    scheduler.offer(plan(first, second, at=3.0))
    assert scheduler.waiting == ()
    assert executor.started == ["first"]
    await executor.end("first")
    assert executor.started == ["first", "second"]
    await executor.end("second")
    assert [r.operation for r in world.records if r.kind is RecordKind.INTENT] == ["first", "second"]
    assert status_of(world, "second") is Status.SUCCEEDED


async def test_nothing_of_a_chain_is_stored_before_it_begins(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)
    scheduler.offer(plan(op("other"), op("first", "w1"), op("second", "w2", after=(FIRST,))))
    await settle()
    assert [r.id for r in world.store.active()] == ["other"]
    scheduler.offer(plan(at=2.0))
    assert scheduler.waiting == ()
    assert set(outcomes(world)) == {"first", "second"}, "not begun, so a newer plan may drop it"
    await scheduler.stop()


async def test_an_urgent_chain_that_waits_is_dropped_as_a_whole(world: World) -> None:
    """Its second half was planned anew, to another slot: the first would only end a worker to make room for nobody."""
    executor = Gated(world)
    scheduler = Scheduler(executor)
    busy, room = dump("busy", "n", "involuntary"), dump("first", "n", "involuntary", OperationKind.PARK)
    scheduler.offer(plan(busy, room, dump("second", "m", "involuntary", after=(FIRST,)), dump("unconcerned", "n", "involuntary")))
    await settle()
    scheduler.offer(plan(op("another", "second", "involuntary"), at=2.0))
    await settle()
    assert executor.started == ["busy", "another"]
    assert set(outcomes(world)) == {"first", "second"}
    assert [o.id for o in scheduler.waiting] == ["unconcerned"]
    await scheduler.stop()


@pytest.mark.parametrize("ended", [Status.ROLLED_BACK, Status.FAILED, Status.SUPERSEDED])
async def test_what_comes_after_a_failure_is_superseded_down_the_chain(world: World, ended: Status) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    scheduler.offer(plan(op("first"), op("second", after=(FIRST,)), op("third", after=(SECOND,)), op("bystander")))
    await settle()
    await executor.end("first", ended)
    assert executor.started == ["first", "bystander"]
    for name, before in (("second", f"first, which had to come first, ended as {ended.value}"), ("third", "ended as superseded")):
        assert status_of(world, name) is Status.SUPERSEDED
        found = told_outcome(outcomes(world)[name])
        assert found["code"] == "SH526"
        assert before in found["reason"]
    assert [r.id for r in world.store.active()] == ["bystander"]
    await scheduler.stop()


async def test_a_chain_counts_as_one_voluntary_operation(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=2)
    fork = [op("right", after=(FIRST,)), op("left", after=(FIRST,))]
    scheduler.offer(plan(op("first"), *fork, op("alone"), op("later")))
    await settle()
    assert executor.started == ["first", "alone"]
    await executor.end("first")
    assert executor.started == ["first", "alone", "right", "left"], "in the plan's order, and the limit isn't for parts of one chain"
    await executor.end("right")
    assert executor.started[-1] == "left", "it isn't over yet"
    await executor.end("left")
    assert executor.started[-1] == "later"
    await scheduler.stop()


async def test_all_that_leads_to_a_common_end_is_kept_together(world: World) -> None:
    """The limit lets one of two beginnings wait: a newer plan must not drop it while the other's end depends on both."""
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)
    scheduler.offer(plan(op("first", "w1", to_slot="s/0"), op("second", "w2", from_slot="s/0"), op("end", after=(FIRST, SECOND))))
    await settle()
    scheduler.offer(plan(at=2.0))
    assert executor.started == ["first"]
    await executor.end("first")
    assert executor.started == ["first", "second"]
    await executor.end("second")
    assert executor.started == ["first", "second", "end"]
    await scheduler.stop()


async def test_two_beginnings_of_one_chain_begin_at_once(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)
    scheduler.offer(plan(op("first"), op("second"), op("end", after=(FIRST, SECOND))))
    await settle()
    assert executor.started == ["first", "second"]
    await scheduler.stop()


async def test_a_stopped_scheduler_leaves_the_chain_to_the_next_engine(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    scheduler.offer(plan(op("first"), op("second", after=(FIRST,)), op("other")))
    await settle()
    await scheduler.stop()
    scheduler.pump()
    assert scheduler.running == ()
    await settle()
    assert executor.started == ["first", "other"]
    assert [(r.id, r.waits) for r in world.store.active()] == [("first", False), ("second", True), ("other", False)]


async def test_what_is_urgent_leaves_a_chain_that_is_stuck(world: World) -> None:
    """Its first half isn't answered for: the worker behind it must become plannable again. What isn't urgent keeps its place."""

    errors: list[ShunterError] = []
    scheduler = Scheduler(Executor(world.parts(), world.epoch()), on_error=lambda _id, error: errors.append(error))
    world.faults = {8: "cut-after"}
    move = msgspec.structs.replace(world.plan(OperationKind.MOVE), id=FIRST)
    scheduler.offer(plan(move, op("urgent", lane="involuntary", after=(FIRST,)), op("patient", after=(FIRST,))))
    await scheduler.idle()
    assert [e.problem.code for e in errors] == ["SH520"]
    assert status_of(world, "urgent") is Status.SUPERSEDED
    assert told_outcome(outcomes(world)["urgent"])["code"] == "SH526"
    assert {r.id for r in world.store.active()} == {"first", "patient"}


# -- a slot that is free only because of what came before


def swap(world: World) -> tuple[PlannedOperation, PlannedOperation]:
    """W is parked, and X, which waits in an image on c, takes its place: what a shift of roles does."""
    world.agents[NodeId("c")].images.add("old")  # type: ignore[arg-type]
    park = msgspec.structs.replace(world.plan(OperationKind.PARK), id=FIRST)
    slot = SlotId("a/0")
    expect = Preconditions(incarnation=Incarnation(0), absent=True, free=slot)
    restore = op("second", "x", kind=OperationKind.RESTORE, image="old", to_slot=slot, expect=expect, after=(FIRST,))
    return park, restore


async def test_a_slot_that_was_freed_after_the_fleet_was_last_seen(world: World) -> None:
    park, restore = swap(world)
    seen = world.fleet()
    assert "w" in str(seen.nodes[0].slots[0].worker), "as far as is known, W is still there"
    executor = Executor(msgspec.structs.replace(world.parts(), fleet=lambda: seen), world.epoch())
    scheduler = Scheduler(executor)
    scheduler.offer(plan(park, restore))
    await scheduler.idle()
    assert {n: told_outcome(r)["status"] for n, r in outcomes(world).items()} == {"first": "succeeded", "second": "succeeded"}
    assert world.home() == "a"


def test_only_what_has_left_frees_a_slot(world: World) -> None:
    park, restore = swap(world)

    def find(status: Status, kind: OperationKind) -> dict[SlotId, WorkerId]:
        outcome: Any = None if status is Status.ACTIVE else {"status": status, "at": 1.0}
        planned = msgspec.structs.replace(park, kind=kind)
        record = msgspec.convert({"planned": planned, "plan": "p", "epoch": 1, "created_at": 0.0, "outcome": outcome}, OperationRecord)
        return dict(freed(restore, lambda _id: record))

    assert find(Status.SUCCEEDED, OperationKind.PARK) == {SlotId("a/0"): WORKER}
    assert find(Status.SUCCEEDED, OperationKind.CHECKPOINT) == {}
    assert find(Status.ROLLED_BACK, OperationKind.PARK) == {}
    assert find(Status.ACTIVE, OperationKind.PARK) == {}
    assert dict(freed(restore, lambda _id: None)) == {}


async def test_the_agent_has_the_last_word_on_a_freed_slot(world: World) -> None:
    """Somebody else came to the slot in between: nobody is restored over them."""
    park, restore = swap(world)
    seen = world.fleet()
    executor = Executor(msgspec.structs.replace(world.parts(), fleet=lambda: seen), world.epoch())
    await executor.carry(executor.intend(park, plan().digest, [restore]))
    back = msgspec.structs.replace(world.plan(OperationKind.RESTORE), to_slot=SlotId("a/0"))
    await Executor(world.parts(), executor.epoch).start(back, plan().digest)
    assert world.home() == "a"
    (waiting,) = world.store.active()
    record = await executor.carry(executor.begin(waiting))
    assert record.status is Status.FAILED
    assert record.outcome is not None
    assert "occupied" in record.outcome.reason
    assert world.home() == "a"


# -- the engine dies in a chain


async def live(world: World) -> None:
    """What an engine does after it began to lead, until all is quiet."""
    for _ in range(6):
        executor = Executor(world.parts(), world.epoch())
        world.store.adopt(executor.epoch)
        scheduler = Scheduler(executor)
        scheduler.offer(plan(at=world.now))  # by now decide has other ideas
        await scheduler.idle()
        await world.sleep(60)
        if not world.store.active():
            break
    await world.sleep(200)


async def until_it_dies(world: World) -> bool:
    park, restore = swap(world)
    scheduler = Scheduler(Executor(world.parts(), world.epoch()))
    try:
        scheduler.offer(plan(park, restore))
        await scheduler.idle()
    except Crash:
        return True
    finally:
        await scheduler.stop()
    return False


async def test_the_engine_dies_at_every_write_of_a_chain(tmp_path: Path) -> None:
    calm = World(CrashingStore(tmp_path / "calm.db"))
    assert not await until_it_dies(calm)
    writes = calm.store.writes
    calm.store.close()
    between = 0
    for number in range(1, writes + 1):
        for after in (False, True):
            world = World(CrashingStore(tmp_path / f"{number}-{after}.db"))
            world.store.crash_at, world.store.after = number, after
            assert await until_it_dies(world)
            left = world.store.get(SECOND)
            if left is None:
                assert (number, after) == (1, False), "only before the chain is durable can half of it be forgotten"
                assert world.store.get(FIRST) is None
                assert world.orders == []
                continue
            assert left.waits or status_of(world, "first") is Status.SUCCEEDED
            between += left.waits and status_of(world, "first") is Status.SUCCEEDED
            await live(world)
            assert world.store.active() == ()
            world.check()
            first, second = status_of(world, "first"), status_of(world, "second")
            if left.step is Step.INTENDED:  # its turn hadn't come, or it had only just begun
                wanted = Status.SUCCEEDED if first is Status.SUCCEEDED else Status.SUPERSEDED
                assert second is wanted, f"crash {number} {after}: first {first}, second {second}"
            assert world.home() == ("a" if first is not Status.SUCCEEDED or second is Status.SUCCEEDED else None)
            world.store.close()
    assert between >= 2, "it died right between the halves, too"


async def test_recovery_leaves_alone_what_waits_for_its_turn(world: World) -> None:
    """The first half is still being looked into: nothing is asked for the second, and it isn't rolled back either."""
    park, restore = swap(world)
    executor = Executor(world.parts(), world.epoch())
    world.faults = {4: "cut-after"}  # the worker is ended, and its agent is away before it has said so
    with pytest.raises(Unresolved):
        await executor.carry(executor.intend(park, plan().digest, [restore]))
    asked = list(world.orders)
    assert asked[-1] == ("a", "release")
    await take_over(world)
    assert [(r.id, r.waits, r.epoch) for r in world.store.active()] == [("first", False, 2), ("second", True, 2)]
    assert world.orders == asked
    await world.sleep(100)
    await take_over(world)
    assert {r.id: r.status for r in world.store.recent(0)} == {"first": Status.SUCCEEDED, "second": Status.SUCCEEDED}
    steps = [step for _, step in world.orders[len(asked) :]]
    assert steps == ["preflight", "send a", "prepare", "restore", "resume", "unfence"], "the second half, and nothing twice"
    assert world.home() == "a"


async def test_what_waits_for_its_turn_is_not_resumed(world: World) -> None:
    park, restore = swap(world)
    executor = Executor(world.parts(), world.epoch())
    executor.intend(park, plan().digest, [restore])
    (_, waiting) = world.store.active()
    assert await executor.resume(waiting) is waiting
    assert world.orders == []


async def test_recovery_ends_what_waits_for_something_that_failed(world: World) -> None:
    park, restore = swap(world)
    executor = Executor(world.parts(), world.epoch())
    executor.intend(park, plan().digest, [restore])  # and then it dies
    await take_over(world)
    assert {r.id: r.status for r in world.store.recent(0)} == {"first": Status.ROLLED_BACK, "second": Status.SUPERSEDED}
    assert told_outcome(outcomes(world)["second"])["code"] == "SH526"
    assert world.store.active() == ()


# -- one dump at a time


async def test_one_dump_at_a_time_on_a_node_in_the_order_of_the_plan(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    urgent = "involuntary"
    scheduler.offer(
        plan(
            dump("z", "n", urgent),
            dump("y", "n", urgent, OperationKind.PARK),
            dump("other-node", "m", urgent),
            op("restore", lane=urgent, kind=OperationKind.RESTORE, to_slot=SlotId("n/free")),
            dump("x", "n", urgent),
        )
    )
    await settle()
    assert executor.started == ["z", "other-node", "restore"]
    await executor.dumped("z")
    assert executor.started[3:] == ["y"], "its image is whole: the node is free, wherever it is restored"
    await executor.end("z")
    assert executor.started[3:] == ["y"]
    await executor.end("y", Status.ROLLED_BACK)
    assert executor.started[3:] == ["y", "x"]
    await scheduler.stop()


async def test_an_urgent_dump_waits_for_the_one_under_way_and_for_no_other(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=9)
    scheduler.offer(plan(dump("checkpoint", "n", kind=OperationKind.CHECKPOINT), dump("shift", "n"), dump("elsewhere", "m")))
    await settle()
    assert executor.started == ["checkpoint", "elsewhere"]
    scheduler.offer(plan(dump("urgent", "n", "involuntary"), dump("shift", "n"), at=2.0))
    await settle()
    assert executor.started == ["checkpoint", "elsewhere"]
    await executor.dumped("checkpoint")
    assert executor.started[2:] == ["urgent"]
    await executor.dumped("urgent")
    assert executor.started[2:] == ["urgent", "shift"]
    await scheduler.stop()


async def test_nothing_voluntary_gets_ahead_of_an_urgent_dump_that_waits_for_its_slot(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    taken = op("arriving", "w", "involuntary", kind=OperationKind.RESTORE, to_slot=SlotId("away/urgent"))
    scheduler.offer(plan(taken, dump("urgent", "n", "involuntary"), dump("voluntary", "n")))
    await settle()
    assert executor.started == ["arriving"]
    await executor.end("arriving")
    assert executor.started == ["arriving", "urgent"]
    await executor.end("urgent")
    assert executor.started == ["arriving", "urgent", "voluntary"]
    await scheduler.stop()


async def test_the_order_is_the_newest_plans(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor)
    one, two, three = (dump(name, "n", "involuntary") for name in ("one", "two", "three"))
    scheduler.offer(plan(one, two, three))
    await settle()
    scheduler.offer(plan(one, three, two, at=2.0))
    await executor.dumped("one")
    assert executor.started == ["one", "three"]
    await scheduler.stop()


# -- any plans, any order of events

KINDS = [OperationKind.MOVE, OperationKind.PARK, OperationKind.CHECKPOINT, OperationKind.RESTORE]


@st.composite
def plans(draw: st.DrawFn) -> list[list[PlannedOperation]]:
    made: list[list[PlannedOperation]] = []
    for number in range(draw(st.integers(1, 3))):
        operations: list[PlannedOperation] = []
        for index in range(draw(st.integers(1, 6))):
            earlier = [o.id for o in operations]
            after = draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)) if earlier else []
            lane = draw(st.sampled_from(["voluntary", "involuntary"]))
            kind = draw(st.sampled_from(KINDS))
            operations.append(dump(f"{number}-{index}", draw(st.sampled_from("nm")), lane, kind, after=tuple(after)))
        made.append(operations)
    return made


def check_lanes(world: World, executor: Gated, free: set[str]) -> None:
    """Truth from the store and from what was really begun: `free` have dumped."""
    dumping: list[NodeId] = []
    for record in world.store.active():
        node = dumps_on(record.planned)
        if record.id in executor.started and record.id not in free and node is not None:
            dumping.append(node)
        assert record.waits == (record.id not in executor.started)
    assert len(dumping) == len(set(dumping)), f"two dumps at once on {dumping}"
    for name in executor.started:
        record_of = world.store.get(OperationId(name))
        assert record_of is not None
        assert all(status_of(world, b) is Status.SUCCEEDED for b in record_of.planned.after)
    assert len(executor.started) == len(set(executor.started)), "nothing is begun twice"


async def play(world: World, offered: list[list[PlannedOperation]], dice: st.DataObject) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=2)
    free: set[str] = set()
    pending = list(offered)
    for number in range(60):
        under_way = [r.id for r in world.store.active() if not r.waits]
        moves = [("offer", "")] * bool(pending)
        moves += [("dumped", name) for name in under_way if name not in free]
        moves += [(how.value, name) for name in under_way for how in (Status.SUCCEEDED, Status.ROLLED_BACK)]
        if not moves:
            break
        what, name = dice.draw(st.sampled_from(moves), label=str(number))
        if what == "offer":
            scheduler.offer(plan(*pending.pop(0), at=float(number)))
            await settle()
        elif what == "dumped":
            free.add(name)
            await executor.dumped(name)
        else:
            await executor.end(name, Status(what))
        check_lanes(world, executor, free)
    assert scheduler.waiting == ()
    assert world.store.active() == (), "all that was begun ends, and so does what waited for it"
    begun = {r.id for r in world.store.recent(0)}
    for chain in linked(o for operations in offered for o in operations):
        assert len({name in begun for name in chain}) == 1, "a chain is in the store as a whole, or not at all"
    await scheduler.stop()


@given(offered=plans(), dice=st.data())
@settings(max_examples=60, deadline=None)
def test_any_plans_in_any_order_of_events(offered: list[list[PlannedOperation]], dice: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(CrashingStore(Path(folder) / "s.db"))
        try:
            asyncio.run(play(world, offered, dice))
        finally:
            world.store.close()
