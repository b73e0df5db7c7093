"""A move leaves its image on both nodes; what retention plans then takes it from both, once there is a newer one."""

from pathlib import Path

import msgspec
import pytest
from fleet_in_memory import PLAN, CrashingStore, World
from shunter.act.execute import Executor
from shunter.decide.evaluate import evaluate
from shunter.decide.profile import Profile
from shunter.lang.cel import CelRules
from shunter.model.errors import Place
from shunter.model.ids import Commit, Digest, ImageId, Incarnation, NodeId
from shunter.model.operation import OperationRecord, Status
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.policy import CheckpointPolicy, CheckpointSpec, Metadata, Policy, PolicySet, WorkerSelector
from shunter.model.snapshot import Fleet, Node, Snapshot
from shunter.model.units import Duration

A, B, C = (NodeId(n) for n in "abc")
DAY = 86400.0
KEEP_ONE = PolicySet(
    commit=Commit("c"),
    digest=Digest("p"),
    policies=(
        Policy(
            document=CheckpointPolicy(
                metadata=Metadata(name="images"), spec=CheckpointSpec(workers=WorkerSelector(all=True), every=Duration(DAY))
            ),
            place=Place(file="images.yaml", line=1, column=1),
            blob="b",
            commit=Commit("c"),
        ),
    ),
)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """The worker was moved from a to b, and then to c: two images, each where it was taken and where it was restored."""
    world = World(CrashingStore(tmp_path / "s.db"))
    assert await carry(world, world.plan(OperationKind.MOVE)) is Status.SUCCEEDED
    await world.sleep(60)
    world.incarnation = 1
    assert await carry(world, world.plan(OperationKind.MOVE, 1)) is Status.SUCCEEDED
    await world.sleep(60)
    world.incarnation = 2
    return world


async def carry(world: World, planned: PlannedOperation) -> Status:
    record: OperationRecord = await Executor(world.parts(), world.epoch()).start(planned, PLAN)
    return record.status


def seen(world: World, silent: NodeId | None = None) -> Fleet:
    """The fleet as the engine sees it: images with the incarnation and time of their dump, a silent node with what it last held."""
    taken = {ImageId("image-move-0"): 0, ImageId("image-move-1"): 1}
    fleet = world.fleet()

    def known(node: Node) -> Node:
        return msgspec.structs.replace(node, reachable=node.id != silent)

    images = [
        msgspec.structs.replace(i, incarnation=Incarnation(taken[i.id]), taken_at=1000.0 + taken[i.id], nodes=holders)
        for i in fleet.images
        if (holders := tuple(n for n in i.nodes if n not in world.gone))
    ]
    return msgspec.structs.replace(fleet, nodes=tuple(known(n) for n in fleet.nodes if n.id not in world.gone), images=tuple(images))


def retained(world: World, silent: NodeId | None = None) -> list[PlannedOperation]:
    snapshot = Snapshot(at=world.now, fleet=seen(world, silent))
    return list(evaluate(KEEP_ONE, [snapshot], world.store.state(world.now), world.now, CelRules(), Profile()).plan.operations)


def images(world: World) -> dict[NodeId, set[ImageId]]:
    return {node: agent.images for node, agent in world.agents.items() if agent.images}


async def test_the_older_image_goes_from_both_its_holders(world: World) -> None:
    old, new = ImageId("image-move-0"), ImageId("image-move-1")
    assert images(world) == {A: {old}, B: {old, new}, C: {new}}
    (discard,) = retained(world)
    assert (discard.kind, discard.image) == (OperationKind.DISCARD, old)
    assert await carry(world, discard) is Status.SUCCEEDED
    assert images(world) == {B: {new}, C: {new}}
    assert retained(world) == []


async def test_the_copy_of_a_node_that_comes_back_goes_too(world: World) -> None:
    """While it is silent nothing is deleted; once it is gone for good the others' copies are; and its own once it is back after all."""
    old, new = ImageId("image-move-0"), ImageId("image-move-1")
    assert retained(world, silent=A) == []
    world.agents[A].dead = True
    world.gone.add(A)
    (first,) = retained(world)
    assert await carry(world, first) is Status.SUCCEEDED
    assert images(world) == {A: {old}, B: {new}, C: {new}}
    assert retained(world) == []
    await world.sleep(10)
    world.agents[A].dead = False
    world.gone.clear()
    (second,) = retained(world)
    assert second.id != first.id
    assert await carry(world, second) is Status.SUCCEEDED
    assert images(world) == {B: {new}, C: {new}}


async def test_a_holder_that_does_not_answer_holds_the_worker_up_for_a_while_only(world: World) -> None:
    (discard,) = retained(world)
    world.agents[A].away_until = world.now + 3600.0
    record = await Executor(world.parts(), world.epoch()).start(discard, PLAN)
    assert record.status is Status.ROLLED_BACK
    assert record.outcome is not None
    assert record.outcome.code == "SH521"
    assert "a (SH520" in record.outcome.reason
    assert world.store.active() == (), "a notice for the worker's own node must not wait for a node that only holds an old image"
    assert images(world)[B] == {ImageId("image-move-1")}, "the other copy is gone already"
