"""Images in the archive: put there by checkpoints, restored from there when no node has them, and deleted there last."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest
from fleet_in_memory import FAULTS, PLAN, CrashingStore, World
from shunter.act.execute import Executor
from shunter.act.run import Unresolved
from shunter.model.ids import ImageId, NodeId, OperationId
from shunter.model.operation import OperationRecord, Status
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.wire import agent_pb2 as pb

A, B, C = (NodeId(n) for n in "abc")
IMAGE = ImageId("image-checkpoint-0")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(CrashingStore(tmp_path / "s.db"))


async def carry(world: World, planned: PlannedOperation) -> OperationRecord:
    return await Executor(world.parts(), world.epoch()).start(planned, PLAN)


def checkpoint(world: World, number: int = 0) -> PlannedOperation:
    return world.plan(OperationKind.CHECKPOINT, number, copies=(A, B), archive=True)


def restore(world: World) -> PlannedOperation:
    planned = world.plan(OperationKind.RESTORE, 1)  # to b or c
    expect = msgspec.structs.replace(planned.expect, image=IMAGE, free="c/0")
    return msgspec.structs.replace(planned, image=IMAGE, to_slot="c/0", expect=expect)


def archive_orders(world: World) -> list[tuple[str, str]]:
    return [(node, step) for node, step in world.orders if "archive" in step]


async def test_a_checkpoint_goes_to_the_archive_once_its_copies_are_whole(world: World) -> None:
    record = await carry(world, checkpoint(world))
    assert (record.status, record.outcome and record.outcome.code) == (Status.SUCCEEDED, "")
    assert world.archive == {IMAGE}
    assert [step for _, step in world.orders if step.startswith("send")] == ["send b", "send archive"]


async def test_one_that_is_not_asked_for_does_not(world: World) -> None:
    await carry(world, msgspec.structs.replace(checkpoint(world), archive=False))
    assert (world.archive, archive_orders(world)) == (set(), [])


@pytest.mark.parametrize("fault", ["refuse", "retry", "undone", "before"])
async def test_that_it_could_not_be_put_there_is_told_and_nothing_else(world: World, fault: str) -> None:
    world.named["a", "send archive"] = [fault]
    record = await carry(world, checkpoint(world))
    assert record.status is Status.SUCCEEDED
    assert record.outcome is not None
    assert record.outcome.code == "SH567"
    assert (world.archive, world.agents[A].images, world.agents[B].images) == (set(), {IMAGE}, {IMAGE})
    assert world.store.active() == ()


@pytest.mark.parametrize("fault", ["after", "refuse-after"])
async def test_what_is_there_in_the_end_counts(world: World, fault: str) -> None:
    world.named["a", "send archive"] = [fault]
    record = await carry(world, checkpoint(world))
    assert (record.status, record.outcome and record.outcome.code, world.archive) == (Status.SUCCEEDED, "", {IMAGE})


async def test_nobody_waits_for_it_once_a_notice_comes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has to be free for what saves it, however long an object store takes."""
    stuck, noticed, stuck_in = asyncio.Event(), [""], list[ImageId]()

    async def hang(image: ImageId) -> pb.SendReply:
        stuck_in.append(image)
        noticed[0] = "a has an open notice"
        await stuck.wait()
        return pb.SendReply()

    parts = msgspec.structs.replace(world.parts(), astray=lambda planned: noticed[0] if planned.to_slot == "a/0" else "")
    send = world.agents[A].send

    async def sending(order: pb.Order, image: ImageId, to: pb.Peer, timeout: float) -> pb.SendReply:
        return await (hang(image) if to.address == "archive" else send(order, image, to, timeout))

    monkeypatch.setattr(world.agents[A], "send", sending)
    async with asyncio.timeout(10):
        record = await Executor(parts, world.epoch()).start(checkpoint(world), PLAN)
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH567")
    assert "a notice is open for a/0" in record.outcome.reason
    assert stuck_in == [IMAGE]
    assert world.now < 1000 + 60, "and it didn't wait for the time that the order has"


async def test_it_is_not_even_begun_when_one_is_open_already(world: World) -> None:
    """The notice came while the copies were made."""
    parts = msgspec.structs.replace(world.parts(), astray=lambda planned: "open" if planned.to_slot == "a/0" else "")
    record = await Executor(parts, world.epoch()).start(checkpoint(world), PLAN)
    assert record.outcome is not None
    assert (record.status, record.outcome.code, archive_orders(world)) == (Status.SUCCEEDED, "SH567", [])
    assert "it wasn't sent" in record.outcome.reason


async def test_a_node_whose_agent_is_not_known_any_more_costs_no_image(world: World) -> None:
    known, record = world.agents, None
    parts = world.parts()

    class Agents(dict):  # type: ignore[type-arg]
        def get(self, node: NodeId, default: object = None) -> object:
            return None if world.agents[B].images and node == A else dict.get(self, node, default)

    record = await Executor(msgspec.structs.replace(parts, agents=Agents(known)), world.epoch()).start(checkpoint(world), PLAN)
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH567")
    assert "SH511" in record.outcome.reason


async def test_it_comes_back_from_the_archive_when_both_nodes_that_had_it_are_dead(world: World) -> None:
    assert (await carry(world, checkpoint(world))).status is Status.SUCCEEDED
    for node in (A, B):
        world.agents[node].dead = True
        world.gone.add(node)
    world.agents[A].copy = None
    assert world.home() is None
    record = await carry(world, restore(world))
    assert record.status is Status.SUCCEEDED, record.outcome
    assert world.home() == C


async def test_what_is_nowhere_is_not_restored(world: World) -> None:
    """The engine's list is old: somebody deleted it."""
    await carry(world, checkpoint(world))
    for node in (A, B):
        world.agents[node].dead = True
        world.gone.add(node)
    world.agents[A].copy = None
    planned, fleet = restore(world), world.fleet()
    world.drained = True  # nothing is left of the worker, and that is no fault of the protocol
    world.archive.clear()
    parts = msgspec.structs.replace(world.parts(), fleet=lambda: fleet)
    record = await Executor(parts, world.epoch()).start(planned, PLAN)
    assert record.outcome is not None
    assert (record.status is Status.SUCCEEDED, record.outcome.code) == (False, "SH512")
    assert "nor has the archive" in record.outcome.reason
    assert not any(agent.copy for agent in world.agents.values() if not agent.dead)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f not in ("dies", "unhealthy")])
@pytest.mark.parametrize("step", ["prepare", "restore", "resume"])
async def test_whatever_happens_on_the_way_back_there_is_one_copy_or_the_image(world: World, step: str, fault: str) -> None:
    await carry(world, checkpoint(world))
    for node in (A, B):
        world.agents[node].dead = True
        world.gone.add(node)
    world.agents[A].copy = None
    world.named["c", step] = [fault]
    with contextlib.suppress(Unresolved):
        await carry(world, restore(world))
    for left in world.store.active():
        await world.sleep(100.0)
        await Executor(world.parts(), world.epoch()).resume(left)
    record = world.store.get(OperationId("restore-1"))
    assert record is not None
    assert world.archive == {IMAGE}
    assert (world.home() == C) == (record.status is Status.SUCCEEDED)


def discard(world: World) -> PlannedOperation:
    planned = world.plan(OperationKind.DISCARD, 7)
    return msgspec.structs.replace(planned, image=IMAGE, expect=Preconditions(incarnation=planned.expect.incarnation, image=IMAGE))


def newer(world: World, *, on: tuple[NodeId, ...]) -> None:
    """Another image, taken later: the world tells them apart by their time."""
    fleet, world_fleet = world.fleet, world.fleet
    later = ImageId("image-later")
    for node in on:
        world.agents[node].images.add(later)
    if not on:
        world.archive.add(later)

    def told() -> object:
        seen = world_fleet()
        images = tuple(msgspec.structs.replace(i, taken_at=5.0 if i.id == later else 0.0) for i in seen.images)
        return msgspec.structs.replace(seen, images=images)

    assert fleet is not None
    world.fleet = told  # type: ignore[method-assign, assignment]


async def test_a_discard_deletes_it_there_last(world: World) -> None:
    await carry(world, checkpoint(world))
    newer(world, on=(C,))
    assert (await carry(world, discard(world))).status is Status.SUCCEEDED
    assert IMAGE not in world.archive
    assert [step for _, step in world.orders if step.startswith("discard")] == ["discard", "discard", "discard archived"]


async def test_the_last_one_is_never_deleted_there(world: World) -> None:
    await carry(world, checkpoint(world))
    newer(world, on=())
    record = await carry(world, discard(world))
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.ROLLED_BACK, "SH521")
    assert "SH566" in record.outcome.reason
    assert IMAGE in world.archive


@pytest.mark.parametrize("back", [False, True])
async def test_of_a_worker_that_nobody_brings_back_the_last_goes_too_unless_it_is_back(world: World, *, back: bool) -> None:
    """As a rollout has it: its pod went, and another worker came in its place."""
    await carry(world, checkpoint(world))
    world.drained = True
    if not back:
        world.agents[A].copy = None
    planned = discard(world)
    planned = msgspec.structs.replace(planned, expect=msgspec.structs.replace(planned.expect, absent=True))
    record = await carry(world, planned)
    assert record.status is (Status.SUPERSEDED if back else Status.SUCCEEDED)
    assert (world.archive, world.agents[A].images) == (({IMAGE}, {IMAGE}) if back else (set(), set()))


async def test_another_node_is_asked_when_the_first_does_not_answer(world: World) -> None:
    await carry(world, checkpoint(world))
    newer(world, on=(C,))
    world.named["a", "discard archived"] = ["before"]
    assert (await carry(world, discard(world))).status is Status.SUCCEEDED
    assert IMAGE not in world.archive
    assert [node for node, step in world.orders if step == "discard archived"] == ["a", "b"]


async def test_what_is_left_there_is_told(world: World) -> None:
    await carry(world, checkpoint(world))
    newer(world, on=(C,))
    for node in "abc":
        world.named[node, "discard archived"] = ["retry"]
    record = await carry(world, discard(world))
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.ROLLED_BACK, "SH521")
    assert "the archive (SH998" in record.outcome.reason
    assert IMAGE in world.archive


async def test_an_engine_that_dies_while_it_is_put_there_puts_it_there_afterwards(tmp_path: Path) -> None:
    """Wherever it dies, the next one leaves the worker running, and an image that is in the archive unless its outcome says otherwise."""
    from fleet_in_memory import Crash

    for crash_at in range(1, 9):
        for after in (False, True):
            world = World(CrashingStore(tmp_path / f"{crash_at}-{after}.db"))
            world.store.crash_at, world.store.after = crash_at, after
            try:
                await carry(world, checkpoint(world))
            except Crash:
                executor = Executor(world.parts(), world.epoch())
                for record in world.store.active():
                    await executor.resume(record)
            done = [r for r in world.store.recent(0.0) if r.status is Status.SUCCEEDED]
            assert world.home() == A
            assert world.archive == ({IMAGE} if done else set())
