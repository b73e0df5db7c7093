"""An operation that is given up at any moment comes to a safe point: back where it was before its commit, at its end after it."""

import contextlib
import itertools
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from fleet_in_memory import Crash, CrashingStore, World
from gated_executor import Gated, op, outcomes, plan, settle, status_of, told_outcome
from next_engine import take_over
from shunter.act.execute import MACHINES, Executor
from shunter.act.scheduler import Scheduler
from shunter.model.ids import OperationId
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import OperationKind
from shunter.model.record import RecordKind
from test_protocol import KINDS, calmly, come_to_rest, fresh, settled

FIRST, SECOND = OperationId("first"), OperationId("second")
WHY = "its policy is gone"
LAST = {
    OperationKind.MOVE: "release",
    OperationKind.PARK: "release",
    OperationKind.CHECKPOINT: "checkpoint",
    OperationKind.RESTORE: "resume",
    OperationKind.DRAIN: "drain",
    OperationKind.DISCARD: "discard",
}


class GivenUp:
    """Carries one operation out with a scheduler, and cancels it right before an order takes effect."""

    def __init__(self, world: World, kind: OperationKind, at_order: int) -> None:
        self.world, self.planned, self.at_order = world, world.plan(kind), at_order
        self.scheduler = Scheduler(Executor(world.parts(), world.epoch()))
        self.could: bool | None = None
        self.at_step: Step | None = None
        self._plain = world.next_fault
        world.next_fault = self._next_fault  # type: ignore[method-assign, assignment]

    def _next_fault(self, node: str, step: str) -> str:
        fault = self._plain(node, step)  # type: ignore[arg-type]
        if len(self.world.orders) == self.at_order:
            record = self.world.store.get(self.planned.id)
            assert record is not None
            self.at_step = record.step
            self.could = self.scheduler.cancel(self.planned.id, WHY)
        return fault

    async def run(self) -> None:
        try:
            self.scheduler.offer(plan(self.planned))
            await self.scheduler.idle()
        finally:
            await self.scheduler.stop()

    def ended(self) -> OperationRecord:
        (record,) = self.world.store.recent(0)
        return record


def is_safe(given: GivenUp, kind: OperationKind) -> Status:
    """It went on after its commit only, and went back before it for no other reason than that it was given up."""
    status = settled(given.world, kind)
    outcome = given.ended().outcome
    assert outcome is not None
    steps = [step for step, _ in given.ended().history]
    if Step.ROLLING_BACK in steps:
        assert given.could
        assert status is (Status.FAILED if kind is OperationKind.RESTORE else Status.ROLLED_BACK)
        assert (outcome.code, WHY in outcome.reason) == ("SH528", True)
    else:
        assert (status, outcome.code) == (Status.SUCCEEDED, "")
    return status


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
async def test_at_any_order(tmp_path: Path, kind: OperationKind, capsys: pytest.CaptureFixture[str]) -> None:
    orders, _ = await calmly(tmp_path, kind)
    found = {}
    for number in range(1, orders + 1):
        given = GivenUp(fresh(tmp_path, kind, f"{number}"), kind, number)
        await given.run()
        assert given.at_step is not None
        assert given.could is MACHINES[kind].revocable(given.at_step)
        found[given.world.orders[number - 1]] = is_safe(given, kind).value
        given.world.store.close()
    with capsys.disabled():
        print(f"\n{kind.value}, given up: {found}")
    done = [status == "succeeded" for status in found.values()]
    assert done == sorted(done), "once it is committed, it stays so"
    assert list(found)[done.index(True)][1] == LAST[kind], "given up right before this one, it can't be helped any more"


async def test_what_was_given_up_while_nothing_was_touched_yet_is_not_hidden_from_the_router_first(tmp_path: Path) -> None:
    """A notice that was withdrawn during the preflights: reserving and fencing come at once after them, as one step."""
    world = fresh(tmp_path, OperationKind.MOVE, "w")
    given = GivenUp(world, OperationKind.MOVE, 2)
    given.planned = msgspec.structs.replace(given.planned, lane="involuntary")
    await given.run()
    assert [step for _, step in world.orders[:2]] == ["preflight", "preflight"]
    assert not {"fence", "prepare"} & {step for _, step in world.orders}
    assert is_safe(given, OperationKind.MOVE) is Status.ROLLED_BACK


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
async def test_at_any_order_and_a_death_of_the_engine_after_it(tmp_path: Path, kind: OperationKind) -> None:
    """The next engine gives it up, too."""
    orders, writes = await calmly(tmp_path, kind)
    found: Counter[str] = Counter()
    for number, write, after in itertools.product(range(1, orders + 1), range(2, writes + 3), (False, True)):
        world = fresh(tmp_path, kind, f"{number}-{write}-{after}")
        given = GivenUp(world, kind, number)
        world.store.crash_at, world.store.after = write, after
        with contextlib.suppress(Crash):
            await given.run()
        given.at_order = 0
        await come_to_rest(world)
        cancelled = given.ended().cancelled is not None
        status = settled(world, kind)
        outcome = given.ended().outcome
        assert outcome is not None
        if given.could:
            assert given.ended().cancelled is not None, "it says that it can, so it is durable"
        if cancelled and status is not Status.SUCCEEDED:
            assert outcome.code in ("SH528", "SH524"), outcome
        found[status.value] += 1
        world.store.close()
    assert found["succeeded"] > 0
    assert found["rolled-back"] + found["failed"] > 0


@pytest.mark.parametrize(
    "fault", ["before", "after", "refuse", "refuse-after", "cut-after", "restart", "restart-after", "undone", "dies", "stopped"]
)
async def test_with_any_fault_at_the_same_order_or_the_next(tmp_path: Path, fault: str) -> None:
    orders, _ = await calmly(tmp_path, OperationKind.MOVE)
    for number, later in itertools.product(range(1, orders + 1), (0, 1)):
        world = fresh(tmp_path, OperationKind.MOVE, f"{number}-{later}")
        world.faults = {number + later: fault}
        given = GivenUp(world, OperationKind.MOVE, number)
        await given.run()
        given.at_order = 0
        await come_to_rest(world)
        settled(world, OperationKind.MOVE)
        world.store.close()


# -- what it is told, and what goes with it


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(CrashingStore(tmp_path / "s.db"))


async def test_it_is_audited_and_said_once(world: World) -> None:
    given = GivenUp(world, OperationKind.MOVE, 5)
    plain = world.next_fault

    def twice(node: str, step: str) -> str:
        if step == "freeze":
            assert given.scheduler.cancel(given.planned.id, "another reason")
        return plain(node, step)  # type: ignore[arg-type]

    world.next_fault = twice  # type: ignore[method-assign, assignment]
    await given.run()
    told = [r.what for r in world.records if r.kind is RecordKind.STEP and "given up" in r.what]
    assert told == ["move: to be given up after fenced"]
    assert "another reason" in (given.ended().outcome or pytest.fail("no outcome")).reason, "the first one counts"
    assert given.scheduler.cancel(given.planned.id, WHY) is False, "it has ended"
    assert given.scheduler.cancel(OperationId("never-heard-of"), WHY) is False


async def test_one_that_was_not_begun_is_dropped_and_may_be_planned_again(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)
    scheduler.offer(plan(op("running"), op("waiting")))
    await settle()
    assert scheduler.cancel(OperationId("waiting"), WHY)
    assert scheduler.waiting == ()
    assert told_outcome(outcomes(world)["waiting"])["code"] == "SH528"
    assert world.store.get(OperationId("waiting")) is None
    scheduler.offer(plan(op("running"), op("waiting"), at=2.0))
    await executor.end("running")
    assert executor.started == ["running", "waiting"]
    await scheduler.stop()


async def test_one_that_is_begun_but_has_asked_for_nothing_is_superseded(world: World) -> None:
    scheduler = Scheduler(Executor(world.parts(), world.epoch()))
    planned = world.plan(OperationKind.MOVE)
    scheduler.offer(plan(planned))
    assert scheduler.cancel(planned.id, WHY)
    await scheduler.idle()
    assert status_of(world, planned.id) is Status.SUPERSEDED
    assert told_outcome(outcomes(world)[planned.id])["code"] == "SH528"
    assert world.orders == []


@pytest.mark.parametrize("given_up", [FIRST, SECOND])
async def test_a_chain_goes_as_a_whole(world: World, given_up: OperationId) -> None:
    """Room that nobody comes to isn't to be made, and nobody comes to room that isn't made."""
    executor = Gated(world)
    scheduler = Scheduler(executor)
    scheduler.offer(plan(op("first"), op("second", after=(FIRST,)), op("bystander")))
    await settle()
    assert scheduler.cancel(given_up, WHY)
    assert status_of(world, "second") is Status.SUPERSEDED
    marked = {r.id: r.cancelled is not None for r in world.store.active()}
    assert marked == {"first": True, "bystander": False}
    await executor.end("first", Status.ROLLED_BACK)
    assert executor.started == ["first", "bystander"]
    await scheduler.stop()


async def test_a_chain_that_was_not_begun_goes_as_a_whole_too(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)
    scheduler.offer(plan(op("busy"), op("first"), op("second", after=(FIRST,))))
    await settle()
    assert scheduler.cancel(SECOND, WHY)
    assert scheduler.waiting == ()
    assert set(outcomes(world)) == {"first", "second"}
    await scheduler.stop()


async def test_what_waited_for_the_place_of_a_cancelled_one_begins_at_once(world: World) -> None:
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=1)
    scheduler.offer(plan(op("first"), op("second", after=(FIRST,)), op("next")))
    await settle()
    await executor.end("first")
    assert executor.started == ["first", "second"]
    assert scheduler.cancel(SECOND, WHY)
    await executor.end("second", Status.ROLLED_BACK)
    assert executor.started == ["first", "second", "next"]
    await scheduler.stop()


async def test_one_whose_agent_is_silent_is_given_up_once_it_answers(world: World) -> None:
    """The source is away after Fence. Whoever cancels meanwhile needn't wait, and needn't ask again."""
    world.named = {("a", "fence"): ["cut-after"]}
    given = GivenUp(world, OperationKind.PARK, 2)
    await given.run()
    assert given.could
    (left,) = world.store.active()
    assert left.cancelled is not None
    await world.sleep(100)
    await take_over(world)
    assert settled(world, OperationKind.PARK) is Status.ROLLED_BACK
    assert not world.fenced()
