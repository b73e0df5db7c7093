"""Particular ways in which a worker dies, or an agent says no to what it did, and what the record then says."""

from pathlib import Path

import pytest
from fleet_in_memory import PLAN, CrashingStore, World
from shunter.act.execute import Executor
from shunter.model.operation import Outcome, Status, Step
from shunter.model.plan import Estimate, OperationKind
from shunter.wire import agent_pb2 as pb

Faults = dict[tuple[str, str], list[str]]
MOVE, PARK, CHECKPOINT, RESTORE, DRAIN, DISCARD = (
    OperationKind.MOVE,
    OperationKind.PARK,
    OperationKind.CHECKPOINT,
    OperationKind.RESTORE,
    OperationKind.DRAIN,
    OperationKind.DISCARD,
)
NOT_THERE: Faults = {("b", "resume"): ["undone", "undone"]}
"""The destination can't run it, twice: the move goes back to the source's image."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(CrashingStore(tmp_path / "s.db"))


async def ended(world: World, kind: OperationKind, faults: Faults, lane: str = "voluntary") -> Outcome:
    """How it ends; all faults must have been met."""
    world.named = {order: list(each) for order, each in faults.items()}
    record = await Executor(world.parts(), world.epoch()).start(world.plan(kind, lane=lane), PLAN)
    assert not any(world.named.values()), f"never met: {world.named}"
    assert record.outcome is not None
    await world.sleep(100)
    assert all(a.copy is None or a.copy.state == "running" for a in world.agents.values())
    return record.outcome


def image_of(kind: OperationKind) -> str:
    return f"image-{kind.value}-0"


async def test_a_drain_that_is_done_and_said_to_be_refused_has_succeeded(world: World) -> None:
    found = await ended(world, DRAIN, {("a", "drain"): ["refuse-after"]})
    assert (found.status, found.code) == (Status.SUCCEEDED, "")
    assert world.store.ended() == {"w"}, "it was ended on purpose, and isn't to be restored"


async def test_a_worker_that_dies_before_it_is_drained_was_not_drained(world: World) -> None:
    found = await ended(world, DRAIN, {("a", "drain"): ["dies"]})
    assert found.status is Status.FAILED
    assert "died before it was drained" in found.reason
    assert world.store.ended() == frozenset()


async def test_a_worker_that_dies_while_a_drain_goes_back(world: World) -> None:
    found = await ended(world, DRAIN, {("a", "drain"): ["undone"], ("a", "unfence"): ["dies"]})
    assert found.status is Status.FAILED
    assert "died on a" in found.reason


async def test_a_drain_that_failed_on_a_going_node_tells_that_the_worker_stays_out_of_traffic(world: World) -> None:
    found = await ended(world, DRAIN, {("a", "drain"): ["undone"]}, lane="involuntary")
    assert found.status is Status.ROLLED_BACK
    assert "the router doesn't see it: its node is going" in found.reason
    assert world.fenced()


@pytest.mark.parametrize("kind", [MOVE, PARK])
async def test_a_worker_that_dies_before_its_image_is_whole_leaves_none_to_name(world: World, kind: OperationKind) -> None:
    found = await ended(world, kind, {("a", "freeze"): ["dies"]})
    assert (found.status, found.image) == (Status.FAILED, None)
    assert "died at its source" in found.reason


@pytest.mark.parametrize(
    "faults",
    [
        {("b", "restore"): ["refuse"], ("b", "abort"): ["dies"]},
        {("b", "restore"): ["refuse"], ("a", "thaw"): ["dies"]},
        {("b", "restore"): ["refuse"], ("a", "unfence"): ["dies"]},
        {("a", "freeze"): ["refuse-after"], ("b", "abort"): ["dies"]},
        {("a", "freeze"): ["refuse-after"], ("a", "unfence"): ["dies"]},
    ],
    ids=str,
)
async def test_a_worker_that_dies_on_the_way_back_is_in_its_image(world: World, faults: Faults) -> None:
    found = await ended(world, MOVE, faults)
    assert (found.status, found.image) == (Status.FAILED, image_of(MOVE))
    assert "died" in found.reason
    assert "SH99" in found.code, "what it was rolled back for comes first"


async def test_an_image_that_only_the_destination_has_is_named(world: World) -> None:
    """The source's node lost its copy of the image with the worker."""
    plain = world.next_fault

    def loses(node: str, step: str) -> str:
        if step == "abort":
            world.agents["a"].images.clear()  # type: ignore[index]
            world.agents["a"].copy = None  # type: ignore[index]
        return plain(node, step)  # type: ignore[arg-type]

    world.next_fault = loses  # type: ignore[method-assign, assignment]
    found = await ended(world, MOVE, {("a", "freeze"): ["refuse-after"]})
    assert (found.status, found.image) == (Status.FAILED, image_of(MOVE))


@pytest.mark.parametrize("kind", [MOVE, PARK])
async def test_a_release_that_is_done_and_said_to_be_refused_goes_on(world: World, kind: OperationKind) -> None:
    found = await ended(world, kind, {("a", "release"): ["refuse-after"]})
    assert found.status is Status.SUCCEEDED
    assert world.home() == ("b" if kind is MOVE else None)


@pytest.mark.parametrize("tries", [["refuse-after"], ["undone", "refuse-after"]])
async def test_a_source_that_runs_its_image_and_denies_it(world: World, tries: list[str]) -> None:
    found = await ended(world, MOVE, NOT_THERE | {("a", "resume"): tries})
    assert found.status is Status.ROLLED_BACK
    assert world.home() == "a"
    assert not world.fenced()


async def test_a_source_gets_a_second_try_too(world: World) -> None:
    found = await ended(world, MOVE, NOT_THERE | {("a", "resume"): ["undone"]})
    assert found.status is Status.ROLLED_BACK
    assert world.home() == "a"


async def test_a_source_that_refuses_to_run_its_image_keeps_no_held_copy(world: World) -> None:
    found = await ended(world, MOVE, NOT_THERE | {("a", "resume"): ["refuse", "refuse"]})
    assert (found.status, found.code, found.image) == (Status.FAILED, "SH517", image_of(MOVE))
    assert world.agents["a"].copy is None  # type: ignore[index]
    assert world.orders[-1] == ("a", "abort")


async def test_a_worker_that_passes_no_probe_is_left_in_its_image(world: World) -> None:
    found = await ended(world, MOVE, {("b", "resume"): ["unhealthy"]})
    assert (found.status, found.code, found.image) == (Status.FAILED, "SH517", image_of(MOVE))
    assert [node for node, step in world.orders if step == "resume"] == ["b", "b", "a", "a"]


async def test_a_worker_that_dies_once_it_is_back_from_its_image(world: World) -> None:
    found = await ended(world, MOVE, NOT_THERE | {("a", "unfence"): ["dies"]})
    assert (found.status, found.image) == (Status.FAILED, image_of(MOVE))
    assert "died on a" in found.reason


async def test_a_worker_that_dies_after_it_was_shown_and_before_that_was_heard(world: World) -> None:
    found = await ended(world, MOVE, {("b", "unfence"): ["after", "dies"]})
    assert (found.status, found.code) == (Status.FAILED, "SH516")


async def test_a_held_copy_that_dies_is_made_anew(world: World) -> None:
    found = await ended(world, MOVE, {("b", "resume"): ["dies"]})
    assert (found.status, world.home()) == (Status.SUCCEEDED, "b")


async def test_a_worker_that_dies_once_its_image_is_whole_comes_out_of_it(world: World) -> None:
    found = await ended(world, MOVE, {("b", "restore"): ["dies"]})
    assert (found.status, world.home()) == (Status.SUCCEEDED, "b")


async def test_what_was_never_fenced_is_not_said_to_be_hidden(world: World) -> None:
    found = await ended(world, MOVE, {("a", "fence"): ["refuse"], ("a", "unfence"): ["refuse"]})
    assert (found.status, found.code) == (Status.ROLLED_BACK, "SH999")
    assert "router" not in found.reason


async def test_a_checkpoint_that_is_done_and_said_to_be_refused_is_copied_on(world: World) -> None:
    found = await ended(world, CHECKPOINT, {("a", "checkpoint"): ["refuse-after"], ("a", "send b"): ["refuse-after"]})
    assert (found.status, found.code) == (Status.SUCCEEDED, "")
    assert world.agents["b"].images == {image_of(CHECKPOINT)}  # type: ignore[index]
    steps = [step for step, _ in world.store.recent(0)[0].history]
    assert steps == [Step.INTENDED, Step.ROLLING_BACK, Step.DUMPED, Step.COPIED]


async def test_a_worker_that_dies_before_a_checkpoint_does_not_run_on(world: World) -> None:
    found = await ended(world, CHECKPOINT, {("a", "checkpoint"): ["dies"]})
    assert found.status is Status.FAILED
    assert "died before its image was taken" in found.reason


async def test_a_checkpoint_says_what_it_does_not_know(world: World) -> None:
    found = await ended(world, CHECKPOINT, {("a", "checkpoint"): ["cut"]})
    assert found.status is Status.ROLLED_BACK
    assert "isn't known" in found.reason


async def test_a_discard_that_is_done_and_said_to_be_refused_has_succeeded(world: World) -> None:
    world.agents["c"].images |= {"newer", "old"}  # type: ignore[index, arg-type]
    found = await ended(world, DISCARD, {("c", "discard"): ["refuse-after"]})
    assert (found.status, world.agents["c"].images) == (Status.SUCCEEDED, {"newer"})  # type: ignore[index]


async def test_a_restored_worker_that_dies_before_it_is_shown(world: World) -> None:
    world.agents["c"].images.add("old")  # type: ignore[index, arg-type]
    world.agents["a"].copy = None  # type: ignore[index]
    found = await ended(world, RESTORE, {("a", "resume"): ["refuse-after"], ("a", "unfence"): ["dies"]})
    assert (found.status, found.code, found.image) == (Status.FAILED, "SH516", "old")


async def test_a_source_gets_the_time_to_take_its_gpu_memory_back(world: World) -> None:
    """As much as its dump was given, which is by the estimate: nobody asks again, or gives up, while its driver copies."""
    asked: list[float] = []
    source = world.agents["a"]  # type: ignore[index]
    plain = source.thaw

    async def thaw(order: pb.Order, timeout: float) -> pb.Done:
        asked.append(timeout)
        return await plain(order, timeout)

    source.thaw = thaw  # type: ignore[method-assign]
    planned = world.plan(MOVE, estimate=Estimate(total=100.0))
    world.named = {("b", "restore"): ["refuse"]}
    record = await Executor(world.parts(), world.epoch()).start(planned, PLAN)
    assert record.outcome is not None
    assert record.outcome.status is Status.ROLLED_BACK
    assert asked == [600.0]
