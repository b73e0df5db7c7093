"""A notice that comes while a tick is looking, measuring or deciding."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from shunter.app import heeding as heedings
from shunter.app import leading as leadings
from shunter.app.aside import Aside
from shunter.app.digests import Digests
from shunter.app.heeding import FREEZE_S, HELD_S, IN_A_ROW, Haste
from shunter.model.errors import Stalled
from shunter.model.ids import Digest, Epoch, Incarnation, NodeId, NoticeId, OperationId, PolicyName, SlotId
from shunter.model.operation import OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, Plan, PlannedOperation, Preconditions
from shunter.model.record import RecordKind
from shunter.model.snapshot import Node, Notice, NoticeKind, Samples, Slot, Snapshot
from shunter.observe.inventory import Inventory
from shunter.wire import agent_pb2 as pb
from test_app_engine import FULL, SAVING, Serving, Stage, stage

__all__ = ["stage"]

NOTICE = Notice(id=NoticeId("n"), kind=NoticeKind.PREEMPTION, node=NodeId("node-a"), seen_at=100.0, deadline=700.0)


class Measured(Serving):
    """Two nodes; metrics come when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = asyncio.Event(), asyncio.Event()
        self.notices: tuple[Notice, ...] = ()

    async def look(self, memory: object, now: float) -> Inventory:
        found = await super().look(memory, now)
        other = Node(id=NodeId("node-b"), slots=(Slot(id="node-b/0"),), seen_at=now)  # type: ignore[arg-type]
        fleet = msgspec.structs.replace(found.fleet, nodes=(*found.fleet.nodes, other))
        return Inventory(fleet=fleet, notices=self.notices, problems=())

    async def measure(self, *_: object, **__: object) -> Samples:
        self.asked.set()
        await self.answer.wait()
        return Samples()


@pytest.fixture
async def looking(
    stage: Callable[[int], Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Stage, Measured, list[Plan]]]:
    """An engine with a policy that answers to the notice, and the plans that it offers to be carried out."""
    s, world, offered = stage(0), Measured(), list[Plan]()
    (tmp_path / "policies" / "save.yaml").write_text(SAVING)
    monkeypatch.setattr(s.leading.scheduler, "offer", lambda plan, **_: offered.append(plan))
    await s.leading.following.once()
    s.leading.sight.world = world  # type: ignore[assignment]
    yield s, world, offered
    s.leading.haste.end()


Looking = tuple[Stage, Measured, list[Plan]]


async def test_it_is_ordered_while_the_tick_waits_for_metrics_and_what_the_tick_decided_without_it_is_not(looking: Looking) -> None:
    s, world, offered = looking
    tick = asyncio.create_task(s.leading.tick(100.0))
    await world.asked.wait()
    s.leading.heed(NOTICE)
    assert [[o.kind for o in plan.operations] for plan in offered] == [[OperationKind.MOVE]]
    world.answer.set()
    await tick
    assert len(offered) == 1, "the tick would have taken a checkpoint of the worker that must leave"
    assert s.engine.wake.is_set()
    assert s.recorded(RecordKind.PLAN)[0].plan == offered[0].digest
    assert [r.body["notice"]["id"] for r in s.recorded(RecordKind.NOTICE)] == ["n"]  # type: ignore[index]
    world.notices = (NOTICE,)
    await s.leading.tick(101.0)
    assert [o.id for o in offered[1].operations] == [o.id for o in offered[0].operations], "the next tick knows it by the same id"
    assert len(s.recorded(RecordKind.NOTICE)) == 1
    s.leading.sightings.close()


async def test_a_look_that_began_before_it_came_doesnt_forget_it(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    s, world, _ = looking
    seen = world.look

    async def look(memory: object, now: float) -> Inventory:
        found = await seen(memory, now)
        s.leading.heed(NOTICE)
        return found

    monkeypatch.setattr(world, "look", look)
    await s.leading.sight.look(100.0)
    assert s.engine.scene.notices == (NOTICE,)
    monkeypatch.undo()
    await s.leading.sight.look(101.0)
    assert s.engine.scene.notices == (), "its agent says that it isn't open any more"


async def test_one_that_no_stream_has_told_of_is_ordered_before_metrics_are_waited_for(looking: Looking) -> None:
    s, world, offered = looking
    world.notices = (NOTICE,)
    tick = asyncio.create_task(s.leading.tick(100.0))
    await world.asked.wait()
    assert [[o.kind for o in plan.operations] for plan in offered] == [[OperationKind.MOVE]]
    world.answer.set()
    await tick
    s.leading.sightings.close()


async def test_however_many_come_some_tick_is_carried_out(looking: Looking) -> None:
    s, world, offered = looking
    for n in range(IN_A_ROW + 1):
        world.asked.clear()
        world.answer.clear()
        tick = asyncio.create_task(s.leading.tick(100.0 + n))
        await world.asked.wait()
        s.leading.heed(msgspec.structs.replace(NOTICE, id=NoticeId(f"n-{n}"), seen_at=100.0 + n))
        world.answer.set()
        await tick
        assert len(offered) == n + 1 + (n == IN_A_ROW)
    s.leading.sightings.close()


async def test_said_again_it_asks_for_nothing_more(looking: Looking) -> None:
    s, _, offered = looking
    await s.leading.sight.look(100.0)
    for _ in range(2):
        s.leading.heed(NOTICE)
    assert len(offered) == 1


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({"seen_at": 101.0, "detail": "again"}, False),
        ({"deadline": 699.5}, False),
        ({"deadline": 900.0}, False),
        ({"deadline": 690.0}, True),
        ({"kind": NoticeKind.MAINTENANCE}, True),
        ({"dumpable": False}, True),
        ({"slot": SlotId("node-a/0")}, True),
        ({"id": NoticeId("another")}, True),
    ],
)
async def test_a_word_that_changes_all_the_time_is_decided_on_anew_only_where_it_asks_for_more(
    looking: Looking, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], asks: bool
) -> None:
    """Each time it took the loop 16 ms, and overtook the tick."""
    s, _, _ = looking
    await s.leading.sight.look(100.0)
    s.leading.heed(NOTICE)
    began = s.leading.heeding.number
    s.leading.heed(msgspec.structs.replace(NOTICE, **changes))
    assert (s.leading.heeding.number > began) is asks


class Timer:
    def __init__(self, due: dict[object, tuple[float, Callable[[], None]]]) -> None:
        self._due = due

    def cancel(self) -> None:
        self._due.pop(self, None)


class Later:
    """The loop's timers, by a time of the test's own."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}

    def call_later(self, seconds: float, call: Callable[[], None]) -> "Timer":
        timer = Timer(self._due)
        self._due[timer] = self.now + seconds, call
        return timer

    def at(self, now: float) -> None:
        """Let what is due by then happen."""
        self.now = now
        for timer, (at, call) in tuple(self._due.items()):
            if at <= now and self._due.pop(timer, None):
                call()


@pytest.fixture
async def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    found = Later()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", found.call_later)
    return found


async def test_ticks_stand_still_until_the_freeze_has_had_time_to_begin(later: Later) -> None:
    aside = Aside()
    haste = Haste(aside, lambda: later.now)
    haste.fenced()
    later.at(9.0)
    assert not haste.on, "of what no notice asked for nobody is in haste"
    haste.begin()
    later.at(9.05)
    haste.fenced()
    later.at(9.05 + FREEZE_S - 0.001)
    assert not aside.goes_on
    haste.begin()
    haste.fenced()
    later.at(9.05 + 2 * FREEZE_S - 0.002)
    assert not aside.goes_on, "another one has as much"
    later.at(9.05 + 2 * FREEZE_S)
    assert aside.goes_on


async def test_ticks_have_half_of_the_time_however_many_notices_come(later: Later) -> None:
    """Each one put the end off, and no tick came to its own."""
    row, rows = 0, [0]
    aside = Aside()
    haste, held = Haste(aside, lambda: later.now), 0
    for step in range(4000):
        later.at(step / 100)
        haste.begin()
        row = 0 if aside.goes_on else row + 1
        rows.append(row)
        held += not aside.goes_on
    assert 0.45 <= held / 4000 <= 0.55
    assert 190 <= max(rows) <= 210, "two seconds in a row"
    haste.end()
    assert gc.isenabled()
    later.at(later.now + 2 * HELD_S)
    haste.begin()
    assert not aside.goes_on, "after some quiet it is as it was"
    assert not gc.isenabled(), "nor is garbage looked for meanwhile"
    haste.end()
    assert (aside.goes_on, gc.isenabled(), haste.on) == (True, True, False)


async def test_a_plan_that_was_carried_out_before_to_the_letter_ends_no_tick(
    stage: Callable[[int], Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had planned was given up since, and a clock showed the same moment twice."""
    s, world = stage(0), Measured()
    (tmp_path / "policies" / "images.yaml").unlink()
    (tmp_path / "policies" / "save.yaml").write_text(SAVING)
    monkeypatch.setattr(s.leading.scheduler, "_dumping", lambda: frozenset({NodeId("node-a")}))
    await s.leading.following.once()
    s.leading.sight.world, world.notices = world, (NOTICE,)  # type: ignore[assignment]
    tick = asyncio.create_task(s.leading.tick(100.0))
    await world.asked.wait()
    s.leading.scheduler._waiting.clear()
    world.answer.set()
    await tick
    assert "SH504" in {problem.code for problem in s.told}
    await s.leading.tick(101.0)
    assert [o.kind for o in s.leading.scheduler.waiting] == [OperationKind.MOVE]
    s.leading.sightings.close()


async def test_a_fleet_that_cant_be_digested_is_decided_on_by_nobody(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong there mustn't leave a plan whose snapshot has no name."""
    s, _, offered = looking
    await s.leading.sight.look(100.0)

    def take(_digests: Digests, _snapshot: Snapshot) -> None:
        raise ValueError("it isn't finite")

    monkeypatch.setattr(Digests, "take", take)
    with pytest.raises(ValueError, match="finite"):
        s.leading.heed(NOTICE)
    assert offered == []


async def test_a_store_that_fails_meanwhile_is_told_and_stops_nothing(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    s, _, offered = looking
    await s.leading.sight.look(100.0)

    def state(_now: float) -> None:
        raise Stalled(FULL)

    monkeypatch.setattr(s.leading.store, "state", state)
    s.leading.heed(NOTICE)
    assert offered == []
    assert FULL in s.told
    assert s.engine.wake.is_set(), "a tick tries again"


async def test_orders_come_before_the_next_tick(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    s, _, _ = looking
    monkeypatch.setattr(leadings, "TICK_AFTER_S", 3600.0)
    await s.leading.sight.look(100.0)
    s.engine.wake.clear()
    s.leading.heed(NOTICE)
    assert not s.engine.wake.is_set()


async def test_what_is_done_aside_stands_still_while_orders_are_given_and_goes_on_after_them() -> None:
    aside, done = Aside(), list[str]()
    aside.start()
    try:
        aside.hold()
        aside.later(lambda: (aside.breathe(), done.append("told"))[0])
        answer = asyncio.create_task(aside.call(lambda: "answer"))
        await asyncio.wait((answer,), timeout=0.05)
        assert done == []
        assert not answer.done()
        aside.release()
        assert await asyncio.wait_for(answer, 5) == "answer"
        assert done == ["told"]
    finally:
        aside.close()
    assert await aside.call(lambda: "here") == "here", "without its thread it is done where it is asked for"


async def test_a_notice_that_comes_while_the_next_fleet_is_made_ready_is_decided_on_the_one_before(looking: Looking) -> None:
    s, world, offered = looking
    world.answer.set()
    await s.leading.tick(100.0)
    offered.clear()
    before = s.leading.heeding.ready
    assert before is not None
    assert before.fleet is s.engine.scene.fleet
    made = s.leading.heeding.get_ready

    def meanwhile(*args: object) -> object:
        s.leading.heed(NOTICE)
        return made(*args)  # type: ignore[arg-type]

    s.leading.heeding.get_ready = meanwhile  # type: ignore[method-assign, assignment]
    await s.leading.tick(101.0)
    (plan,) = offered
    seen = Snapshot(at=100.0, fleet=before.fleet, samples=before.samples, notices=s.engine.scene.notices)
    assert plan.snapshot == seen.id, "what is recorded is what it was decided on"
    assert s.leading.heeding.ready is not before
    s.leading.sightings.close()


async def test_what_has_ended_since_is_in_what_a_notice_is_decided_on(looking: Looking) -> None:
    s, world, _ = looking
    world.answer.set()
    await s.leading.tick(100.0)
    heeding = s.leading.heeding
    assert heeding.ready is not None
    stale = heeding.ready
    planned = PlannedOperation(
        id=OperationId("m"), kind=OperationKind.MOVE, worker=stale.fleet.workers[0].id, lane="involuntary", policy=PolicyName("p"),
        reason="r", expect=Preconditions(incarnation=Incarnation(0)), to_slot=SlotId("node-b/0"),
    )  # fmt: skip
    outcome = Outcome(status=Status.SUCCEEDED, at=101.0)
    heeding.begin()
    heeding.ended(OperationRecord(planned=planned, plan=Digest("d"), epoch=Epoch(1), created_at=100.0, outcome=outcome))
    assert heeding.ready.fleet.workers[0].node == "node-b"
    heeding.take(stale)  # made from a look that began before
    assert heeding.ready.fleet.workers[0].node == "node-b"
    assert heeding.ready.pools is None, "which pools are where has changed with it"
    s.leading.sightings.close()


async def test_no_step_of_a_tick_begins_while_something_cant_wait() -> None:
    aside, done = Aside(), list[str]()
    aside.start()
    try:
        aside.hold()
        steps = asyncio.create_task(aside.call(lambda: done.append("step")))
        await asyncio.wait((steps,), timeout=0.05)
        assert done == []
        aside.release()
        await asyncio.wait_for(steps, 5)
        assert done == ["step"]
    finally:
        aside.close()


async def test_why_it_was_ordered_is_recorded_with_its_evidence_after_the_order(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    s, _, offered = looking
    later = list[Callable[[], None]]()
    monkeypatch.setattr(s.leading.aside, "later", later.append)
    await s.leading.sight.look(100.0)
    s.leading.heed(NOTICE)
    assert len(offered) == 1
    assert s.recorded(RecordKind.FINDING) == [], "no order waits for it"
    for work in later:
        work()
    (found,) = s.recorded(RecordKind.FINDING)
    (plan,) = s.recorded(RecordKind.PLAN)
    assert (found.subject, found.body["policy"], found.body["verdict"], found.body["lane"]) == ("w", "save", "act", "involuntary")
    assert (found.plan, found.commit, found.at) == (plan.plan, plan.commit, plan.at)
    assert "notices" in {one["gate"] for one in found.body["evidence"]}  # type: ignore[attr-defined]


async def test_an_error_of_ours_over_a_notice_isnt_taken_for_a_word_that_we_dont_know(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    s, _, _ = looking
    heard = list[Notice]()

    class Telling:
        async def watch(self, _epoch: object) -> AsyncIterator[pb.Event]:
            for kind in ("of-another-age", "preemption"):
                yield pb.Event(notice=pb.NoticeReport(id="n", kind=kind, seen_at=100.0))

    def heed(notice: Notice) -> None:
        heard.append(notice)
        raise ValueError("ours")

    monkeypatch.setattr(s.leading, "agents", {"node-a": Telling()})
    monkeypatch.setattr(s.leading, "heed", heed)
    with pytest.raises(ValueError, match="ours"):
        await s.leading._watch(NodeId("node-a"))
    assert [n.kind for n in heard] == [NoticeKind.PREEMPTION]


async def test_a_tick_that_plans_to_the_letter_what_it_has_ordered_already_goes_on(
    stage: Callable[[int], Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but policies that answer to notices, and metrics that say the same: both plans are one, and all of it waits for a dump."""
    s, world = stage(0), Measured()
    (tmp_path / "policies" / "images.yaml").unlink()
    (tmp_path / "policies" / "save.yaml").write_text(SAVING)
    monkeypatch.setattr(s.leading.scheduler, "_dumping", lambda: frozenset({NodeId("node-a")}))
    await s.leading.following.once()
    s.leading.sight.world, world.notices = world, (NOTICE,)  # type: ignore[assignment]
    world.answer.set()
    await s.leading.tick(100.0)
    first, second = s.recorded(RecordKind.PLAN)
    assert first.plan == second.plan
    assert [o.kind for o in s.leading.scheduler.waiting] == [OperationKind.MOVE]
    s.leading.sightings.close()


async def test_an_engine_that_cant_begin_or_go_on_leaves_no_thread_behind_and_no_haste(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    s, closed = stage(0), list[bool]()

    class Metrics:
        async def aclose(self) -> None:
            closed.append(True)

    def recall() -> None:
        raise Stalled(FULL)

    s.leading.prometheus = Metrics()  # type: ignore[assignment]
    monkeypatch.setattr(s.leading.sight, "recall", recall)
    monkeypatch.setattr(heedings, "HASTE_S", 3600.0)
    monkeypatch.setattr(heedings, "HELD_S", 3600.0)
    s.leading.haste.begin()
    with pytest.raises(Stalled):
        await s.leading.run(asyncio.Event())
    assert closed == [True]
    assert gc.isenabled()
    assert "aside" not in {thread.name for thread in threading.enumerate()}
