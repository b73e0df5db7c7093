"""Every operation, with every single fault at every order and a death of the engine at every durable write: nothing is doubled or lost."""

import asyncio
import contextlib
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fleet_in_memory import FAULTS, PLAN, Crash, CrashingStore, World
from next_engine import take_over
from shunter.act.execute import Executor
from shunter.act.resolve import image_of
from shunter.act.run import Unresolved
from shunter.model.ids import OperationId, node_of
from shunter.model.operation import Outcome, Status, Step
from shunter.model.plan import OperationKind
from shunter.model.record import RecordKind
from shunter.wire import agent_pb2 as pb

KINDS = [
    OperationKind.MOVE,
    OperationKind.PARK,
    OperationKind.CHECKPOINT,
    OperationKind.RESTORE,
    OperationKind.DRAIN,
    OperationKind.DISCARD,
]
SURVIVED = {"a": 4, "b": 8}
"""Of the nine orders of a move. The source may die from the restore on (its image is whole by then), the destination until it runs."""
UNASKED = "doesn't answer; nothing had been asked of its worker yet"
UNSEEN = "the router doesn't see it"
FEWEST = {"move": 272, "park": 128, "checkpoint": 92, "restore": 182, "drain": 64, "discard": 32}
LANES = ("voluntary", "involuntary")
LATER = ("refuse-after", "undone", "slow-after", "cut-after", "dies")
"""What can go wrong with a way back or a second try."""


def fresh(tmp_path: Path, kind: OperationKind, name: str) -> World:
    world = World(CrashingStore(tmp_path / f"{name}.db"))
    if kind in (OperationKind.RESTORE, OperationKind.DISCARD):
        world.agents["c"].images.add("old")  # type: ignore[index, arg-type]
    if kind is OperationKind.DISCARD:
        world.agents["b"].images.add("newer")  # type: ignore[index, arg-type]
    if kind is OperationKind.RESTORE:
        world.agents["a"].copy = None  # type: ignore[index]
    return world


async def carry_out(world: World, kind: OperationKind, **more: object) -> None:
    """Start it, and do what an engine does about what stays open: restart after a crash, try again later."""
    executor = Executor(world.parts(), world.epoch())
    with contextlib.suppress(Unresolved, Crash):
        await executor.start(world.plan(kind, **more), PLAN)  # type: ignore[arg-type]
    await come_to_rest(world)


async def come_to_rest(world: World) -> None:
    for _ in range(6):
        if not world.store.active():
            break
        await take_over(world)
        await world.sleep(60)
    for _ in range(2):  # an agent that wakes up may make a copy, which is held for a while
        await world.sleep(100)
    assert not world.store.active(), "every operation ends once everybody answers again"


def where(world: World, kind: OperationKind, outcome: Outcome) -> set[str | None]:
    """Where the worker may run after an operation that ended like this; None: nowhere."""
    status = outcome.status
    if UNASKED in outcome.reason:
        return {"a", None if world.died else "a"}
    if kind in (OperationKind.MOVE, OperationKind.PARK, OperationKind.DRAIN):
        return {{Status.SUCCEEDED: "b" if kind is OperationKind.MOVE else None, Status.ROLLED_BACK: "a", Status.FAILED: None}[status]}
    if kind is OperationKind.RESTORE:
        return {"a" if status is Status.SUCCEEDED else None}
    # a checkpoint that is whole, and a deleted image, are so whatever became of the worker
    return {"a"} if not world.died else {None}


def settled(world: World, kind: OperationKind) -> Status:
    """What the record says is what is true."""
    (record,) = world.store.recent(0)
    assert record.outcome is not None
    world.check()
    outcome = record.outcome
    status = outcome.status
    assert world.home() in where(world, kind, outcome), outcome
    assert all(a.copy is None or a.copy.state == "running" for a in world.agents.values()), "nothing is left standing still"
    assert world.fenced() == (UNSEEN in outcome.reason), "it is told when the router doesn't see it again, and only then"
    assert bool(outcome.reason) or status is Status.SUCCEEDED
    holders = {node for node, agent in world.agents.items() if image_of(record) in agent.images}
    if kind is OperationKind.DISCARD:
        assert not holders or status is not Status.SUCCEEDED, "deleted, and said so"
        assert holders or status is Status.SUCCEEDED or any(f"may be kept on {node}" in outcome.reason for node in world.agents)
    elif outcome.image is None:
        assert status is Status.ROLLED_BACK or kind is OperationKind.DRAIN or not holders, f"{outcome} doesn't name the image that is left"
    else:
        assert outcome.image in {i for a in world.agents.values() for i in a.images}, f"there is no image {outcome.image}"
    if kind is OperationKind.CHECKPOINT and status is not Status.ROLLED_BACK:
        assert (status is Status.SUCCEEDED) == (holders == {"a", "b"}) or (world.woken and holders == {"a", "b"}), (
            f"{outcome}, held by {holders}"
        )
    if kind is OperationKind.DRAIN:
        assert world.drained == (status is Status.SUCCEEDED)
    return status


async def test_where_something_goes_on_an_idle_connection_that_ended_is_no_problem(tmp_path: Path) -> None:
    world = fresh(tmp_path, OperationKind.MOVE, "idle")
    world.ended, world.moved = 2, 1
    await carry_out(world, OperationKind.MOVE)
    outcome = world.store.get(OperationId("move-0")).outcome  # type: ignore[union-attr]
    assert outcome is not None
    assert (outcome.status, outcome.code) == (Status.SUCCEEDED, "")


async def test_where_a_worker_lives_is_told_where_it_goes_before_it_is_fenced(tmp_path: Path) -> None:
    world = fresh(tmp_path, OperationKind.MOVE, "contained")
    await carry_out(world, OperationKind.MOVE)
    assert world.agents["b"].contained == "engine:1"  # type: ignore[index]
    steps = [step for _node, step in world.orders]
    assert steps.index("prepare") < steps.index("fence")


@pytest.mark.parametrize("kind", [OperationKind.MOVE, OperationKind.RESTORE])
async def test_connections_that_did_not_outlast_it_are_told_and_nothing_is_undone_for_them(tmp_path: Path, kind: OperationKind) -> None:
    world = fresh(tmp_path, kind, "ended")
    world.ended = 2
    await carry_out(world, kind)
    outcome = world.store.get(OperationId(f"{kind.value}-0")).outcome  # type: ignore[union-attr]
    assert outcome is not None
    assert (outcome.status, outcome.code) == (Status.SUCCEEDED, "SH574")
    assert outcome.reason == "it runs, but nothing goes on: 2 of its 3 connections had ended before anything went over them"
    record = world.store.get(OperationId(f"{kind.value}-0"))
    assert Step.UNFENCED in [step for step, _at in record.history]  # type: ignore[union-attr]
    assert world.home() == node_of(world.store.get(OperationId(f"{kind.value}-0")).planned.to_slot)  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize("lane", LANES)
async def test_what_the_destination_lacks_is_said_before_anything_is_touched(tmp_path: Path, lane: str) -> None:
    world = fresh(tmp_path, OperationKind.MOVE, "lacking")
    world.agents["b"].addresses = set()  # type: ignore[index]
    await carry_out(world, OperationKind.MOVE, lane=lane)
    outcome = world.store.get(OperationId("move-0")).outcome  # type: ignore[union-attr]
    assert outcome is not None
    assert (outcome.status, outcome.code) == (Status.ROLLED_BACK, "SH768")
    assert {step for _node, step in world.orders} == {"preflight", "abort"}, "to end what there isn't harms nobody"


@pytest.mark.parametrize("kind", [OperationKind.MOVE, OperationKind.PARK])
@pytest.mark.parametrize(
    ("ahead", "told"), [(12.5, {"sent": 3, "copy": 12.5, "copied": 4}), (0.0, {"sent": 7, "copy": None, "copied": None})]
)
async def test_a_worker_is_copied_ahead_for_as_long_as_the_plan_says(
    tmp_path: Path, kind: OperationKind, ahead: float, told: dict[str, float | None]
) -> None:
    world = fresh(tmp_path, kind, "ahead")
    await carry_out(world, kind, lane="involuntary", ahead=ahead)
    outcome = world.store.get(OperationId(f"{kind.value}-0")).outcome  # type: ignore[union-attr]
    assert outcome is not None
    measured = outcome.measured
    assert {name: getattr(measured, name) for name in told} == told
    assert (measured.send, measured.bytes) == (2, 7)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
async def test_any_single_fault(tmp_path: Path, kind: OperationKind, capsys: pytest.CaptureFixture[str]) -> None:
    calm = {lane: await calmly(tmp_path, kind, lane) for lane in LANES}
    orders, writes = calm["voluntary"][0], {lane: found[1] for lane, found in calm.items()}
    outcomes: Counter[str] = Counter()
    points = 0
    for number, fault, lane in itertools.product(range(1, orders + 1), FAULTS, LANES):
        world = fresh(tmp_path, kind, f"{number}-{fault}-{lane}")
        world.faults = {number: fault}
        await carry_out(world, kind, lane=lane)
        outcomes[settled(world, kind).value] += 1
        world.store.close()
        points += 1
    crashes = [(lane, number, after) for lane in LANES for number in range(1, writes[lane] + 1) for after in (False, True)]
    for lane, number, after in crashes:
        world = fresh(tmp_path, kind, f"crash-{number}-{after}-{lane}")
        world.store.crash_at, world.store.after = number, after
        await carry_out(world, kind, lane=lane)
        if world.store.recent(0):
            outcomes[settled(world, kind).value] += 1
        else:
            assert (number, after) == (1, False), "only before its intent is durable can an operation be forgotten"
            assert not world.orders, "no order without an intent"
        world.store.close()
        points += 1
    with capsys.disabled():
        print(f"\n{kind.value}: {points} points tried ({orders} orders, {writes['voluntary']} writes): {dict(outcomes)}")
    assert points == orders * len(FAULTS) * 2 + 2 * sum(writes.values())
    assert points >= FEWEST[kind.value]
    assert outcomes["succeeded"] > 0
    assert outcomes["rolled-back"] + outcomes["failed"] > 0


async def calmly(tmp_path: Path, kind: OperationKind, lane: str = "voluntary") -> tuple[int, int]:
    """How many orders and durable writes it takes when nothing is wrong."""
    calm = fresh(tmp_path, kind, f"calm-{lane}")
    await carry_out(calm, kind, lane=lane)
    assert settled(calm, kind) is Status.SUCCEEDED
    calm.store.close()
    return len(calm.orders), calm.store.writes


@pytest.mark.parametrize(
    ("kind", "lane"), [*((kind, "voluntary") for kind in KINDS), (OperationKind.MOVE, "involuntary")], ids=lambda v: getattr(v, "value", v)
)
async def test_any_fault_and_another_one_soon_after(
    tmp_path: Path, kind: OperationKind, lane: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one meets the way back, or the second try."""
    orders, _ = await calmly(tmp_path, kind)
    outcomes: Counter[str] = Counter()
    numbers = range(1, orders + 1) if lane == "voluntary" else range(3, 6)  # what differs: prepare, fence, freeze
    cases = list(itertools.product(numbers, FAULTS, (1, 2, 3), LATER))
    for number, first, later, second in cases:
        world = fresh(tmp_path, kind, f"{number}-{first}-{later}-{second}")
        world.faults = {number: first, number + later: second}
        await carry_out(world, kind, lane=lane)
        outcomes[settled(world, kind).value] += 1
        world.store.close()
    with capsys.disabled():
        print(f"\n{kind.value}: {len(cases)} pairs of faults tried: {dict(outcomes)}")
    assert len(cases) == len(numbers) * len(FAULTS) * 3 * len(LATER)
    assert outcomes["succeeded"] > 0


@pytest.mark.parametrize("lane", LANES)
async def test_a_crash_and_a_fault_together(tmp_path: Path, lane: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine dies at each write of a move, and the restarted one meets a fault at each of its orders."""
    _, writes = await calmly(tmp_path, OperationKind.MOVE, lane)
    points = 0
    for number in range(2, writes + 1):
        for later in range(1, 5):
            for fault in ("before", "after", "refuse", "refuse-after", "cut-after", "undone", "dies"):
                world = fresh(tmp_path, OperationKind.MOVE, f"{number}-{later}-{fault}")
                world.store.crash_at = number
                with pytest.raises(Crash):
                    await Executor(world.parts(), world.epoch()).start(world.plan(OperationKind.MOVE, lane=lane), PLAN)
                world.faults = {len(world.orders) + later: fault}
                await come_to_rest(world)
                settled(world, OperationKind.MOVE)
                world.store.close()
                points += 1
    with capsys.disabled():
        print(f"\nmove, crash and fault: {points} points tried")
    assert points == (writes - 1) * 28


@pytest.mark.parametrize("node", ["a", "b"])
async def test_a_node_that_dies_for_good_at_any_order(tmp_path: Path, node: str) -> None:
    orders, _ = await calmly(tmp_path, OperationKind.MOVE)
    survived = 0
    for number in range(1, orders + 1):
        world = fresh(tmp_path, OperationKind.MOVE, f"{number}")
        world.agents["c"].images.add("older")  # type: ignore[index, arg-type]
        plain = world.next_fault

        def dies(asked: str, step: str, world: World = world, plain: object = plain, number: int = number) -> str:
            found = plain(asked, step)  # type: ignore[operator]
            if len(world.orders) == number:
                world.agents[node].dead = True  # type: ignore[index]
            return found  # type: ignore[no-any-return]

        world.next_fault = dies  # type: ignore[method-assign, assignment]
        executor = Executor(world.parts(), world.epoch())
        try:
            await executor.start(world.plan(OperationKind.MOVE), PLAN)
        except Unresolved:
            (waiting,) = world.store.active()
            assert waiting.status is Status.UNKNOWN
            assert waiting.step in (Step.COMMITTING, Step.RELEASED, Step.RESUMED, Step.ROLLING_BACK)
        world.gone.add(node)  # somebody says that it won't come back
        await come_to_rest(world)
        survived += world.home() is not None
        world.store.close()
    assert survived == SURVIVED[node]


@pytest.mark.parametrize(("node", "step"), [("a", "preflight"), ("b", "preflight")])
async def test_what_cant_wait_is_fenced_after_both_sides_have_passed_and_not_before(tmp_path: Path, node: str, step: str) -> None:
    calm = fresh(tmp_path, OperationKind.MOVE, "calm")
    await carry_out(calm, OperationKind.MOVE, lane="involuntary")
    asked = [step for _, step in calm.orders]
    assert asked[:4] == ["preflight", "preflight", "prepare", "fence"]
    (record,) = calm.store.recent(0)
    assert [s for s, _ in record.history][:3] == [Step.INTENDED, Step.PREPARED, Step.FENCED]
    assert [r.body["step"] for r in calm.records][:3] == ["intended", "prepared", "fenced"]
    world = fresh(tmp_path, OperationKind.MOVE, "refused")
    world.faults = {1 + [n for n, _ in calm.orders].index(node): "refuse"}  # type: ignore[arg-type]
    await carry_out(world, OperationKind.MOVE, lane="involuntary")
    assert settled(world, OperationKind.MOVE) is Status.ROLLED_BACK
    assert "fence" not in [step for _, step in world.orders]


@pytest.mark.parametrize("kind", [OperationKind.MOVE, OperationKind.PARK])
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("older", [False, True])
async def test_whoever_leaves_is_known_from_the_preflight_or_from_an_older_agents_report(
    tmp_path: Path, kind: OperationKind, lane: str, *, older: bool
) -> None:
    world = fresh(tmp_path, kind, "w")
    asked: list[str] = []
    towards: list[str] = []
    for name, agent in world.agents.items():
        preflight, report, freeze = agent.preflight, agent.report, agent.freeze

        async def checked(*args: object, preflight: Any = preflight, **more: object) -> pb.PreflightReply:
            found: pb.PreflightReply = await preflight(*args, **more)
            if older:
                found.ClearField("worker")
                found.ClearField("image_address")
            return found

        async def reported(timeout: float, archived: None = None, *, name: str = name, report: Any = report) -> pb.NodeReport:
            asked.append(name)
            found: pb.NodeReport = await report(timeout, archived)
            return found

        async def frozen(order: object, image: object, to: pb.Peer | None, *args: object, freeze: Any = freeze) -> object:
            towards.append(f"{to.node} {to.address}" if to else "")
            return await freeze(order, image, to, *args)

        agent.preflight, agent.report, agent.freeze = checked, reported, frozen  # type: ignore[method-assign, assignment]
    await carry_out(world, kind, lane=lane)
    assert settled(world, kind) is Status.SUCCEEDED
    assert towards == ["b b:1"]
    assert ("a" in asked, "b" in asked) == (older, older or kind is OperationKind.PARK), "a report takes a look at all of a node"


async def test_an_order_that_is_refused_is_taken_back_once_the_other_one_has_its_answer(tmp_path: Path) -> None:
    """The slot isn't to be had, and the worker is being fenced at that moment."""
    world = fresh(tmp_path, OperationKind.MOVE, "w")
    fence, answered, may = world.agents["a"].fence, [], asyncio.Event()  # type: ignore[index]

    async def slow(order: object, timeout: float) -> object:
        await may.wait()
        done = await fence(order, timeout)  # type: ignore[arg-type]
        answered.append(True)
        return done

    world.agents["a"].fence = slow  # type: ignore[index, method-assign, assignment]
    world.faults = {3: "refuse"}
    moving = asyncio.create_task(carry_out(world, OperationKind.MOVE, lane="involuntary"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert [step for _, step in world.orders] == ["preflight", "preflight", "prepare"], (
        "nothing is taken back before it is known what was done"
    )
    may.set()
    await moving
    assert answered
    assert settled(world, OperationKind.MOVE) is Status.ROLLED_BACK
    assert ("a", "unfence") in world.orders


async def test_each_step_is_durable_and_audited_before_the_next_effect(tmp_path: Path) -> None:
    world = fresh(tmp_path, OperationKind.MOVE, "s")
    seen: list[tuple[str, int]] = []
    plain = world.next_fault
    world.next_fault = lambda node, step: (seen.append((step, len(world.records))), plain(node, step))[1]  # type: ignore[method-assign]
    await carry_out(world, OperationKind.MOVE)
    kinds = [r.kind for r in world.records]
    assert kinds[0] is RecordKind.INTENT
    assert kinds[-1] is RecordKind.OUTCOME
    known = dict(seen)
    steps = [r.body["step"] for r in world.records]
    for effect, before in {
        "fence": "prepared",
        "freeze": "fenced",
        "restore": "frozen",
        "release": "committing",
        "resume": "released",
    }.items():
        assert steps[known[effect] - 1] == before
    assert [s for _, s in world.orders] == [
        "preflight", "preflight", "prepare", "fence", "freeze", "restore", "release", "resume", "unfence",
    ]  # fmt: skip
    (image,) = world.agents["b"].images  # type: ignore[index]
    assert world.agents["a"].images == {image}, "the destination's copy may not be on its disk yet"  # type: ignore[index]


@pytest.mark.parametrize(("kind", "fence"), [(OperationKind.MOVE, 4), (OperationKind.PARK, 2)])
@pytest.mark.parametrize("fault", ["cut-after", "cut"])
async def test_a_source_that_is_away_for_longer_than_a_hold_is_unfenced_once_it_is_back(
    tmp_path: Path, kind: OperationKind, fence: int, fault: str
) -> None:
    """Between Fence and Freeze there is no hold that would end: if the operation ended too, the worker would be out of traffic for good."""
    world = fresh(tmp_path, kind, "s")
    world.faults = {fence if fault == "cut-after" else fence + 1: fault}
    executor = Executor(world.parts(), world.epoch())
    with pytest.raises(Unresolved) as stays:
        await executor.start(world.plan(kind), PLAN)
    assert world.orders[fence - 1] == ("a", "fence")
    assert stays.value.problem.code == "SH514"
    assert world.fenced()
    assert [r.step for r in world.store.active()] == [Step.ROLLING_BACK]
    await come_to_rest(world)
    assert settled(world, kind) is Status.ROLLED_BACK
    assert not world.fenced()


async def test_a_source_that_is_away_before_anything_was_asked_of_it_holds_nobody_up(tmp_path: Path) -> None:
    world = fresh(tmp_path, OperationKind.MOVE, "s")
    world.faults = {1: "cut-after"}
    record = await Executor(world.parts(), world.epoch()).start(world.plan(OperationKind.MOVE), PLAN)
    assert record.status is Status.ROLLED_BACK
    assert "nothing had been asked of its worker" in (record.outcome.reason if record.outcome else "")
    assert world.home() == "a"
    assert not world.fenced()


@pytest.mark.parametrize(("kind", "node", "resume"), [(OperationKind.MOVE, "b", 8), (OperationKind.RESTORE, "a", 5)])
async def test_a_worker_that_dies_between_resume_and_unfence_is_no_success(
    tmp_path: Path, kind: OperationKind, node: str, resume: int
) -> None:
    world = fresh(tmp_path, kind, "s")
    plain = world.next_fault

    def dies(asked: str, step: str) -> str:
        if step == "unfence":
            assert len(world.orders) == resume
            world.agents[node].copy = None  # type: ignore[index]
        return plain(asked, step)  # type: ignore[arg-type]

    world.next_fault = dies  # type: ignore[method-assign, assignment]
    record = await Executor(world.parts(), world.epoch()).start(world.plan(kind), PLAN)
    assert record.status is Status.FAILED
    assert record.outcome is not None
    assert (record.outcome.code, record.outcome.image) == ("SH516", f"image-{record.id}" if kind is OperationKind.MOVE else "old")
    assert "died on" in record.outcome.reason
    assert world.home() is None
