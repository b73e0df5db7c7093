"""A worker in a pod moves off a node that is going while the API server is away, and the engine dies: the next one knows the intent alone,
or some steps. Whatever it does then, a worker that runs at its destination lives on there, in the pod that was made for it and in no other.
"""

from pathlib import Path

import msgspec
import pytest
from fleet_in_memory import PLAN, CrashingStore
from gated_executor import plan
from next_engine import take_over
from shunter.act.execute import Executor
from shunter.model.ids import NodeId, OperationId, SlotId
from shunter.model.operation import Status
from shunter.model.plan import Lane, OperationKind
from shunter.model.snapshot import Fleet
from test_protocol_forgotten import Engine
from test_protocol_pods import PodWorld, parked

A, B = NodeId("a"), NodeId("b")
ORDERS = 12
"""More than a move has, so that all of them are met."""
DURABLE = 3
"""The first order of a move at which its worker's new pod is there: without the API server none is made, and the worker stays."""


class KnownPods(PodWorld):
    """One whose fleet says which pod the worker lives in, as agents and the API server do."""

    def fleet(self) -> Fleet:
        found = super().fleet()
        lives_in = self.lives_in
        pod = self.places.pod(lives_in) if lives_in is not None and lives_in in self.places.pods else None
        return msgspec.structs.replace(found, workers=tuple(msgspec.structs.replace(w, pod=pod) for w in found.workers))


async def moved(folder: Path, lane: Lane, dead_at: int, ends_at: int, *steps: str) -> tuple[KnownPods, bool]:
    """The world after an engine that the API server answered no more from the `dead_at`-th order on; if it died at the `ends_at`-th."""
    folder.mkdir()
    world = KnownPods(CrashingStore(folder / "s.db"))
    world.named = {(NodeId(node), step): ["refuse"] for node in "ab" for step in steps}
    engine = Engine(world, dead_at, ends_at)
    world.places.away = lambda: engine.db.dead
    await engine.carry(("first", lane, "b"))
    world.places.away = lambda: False
    world.store.close()
    world.store = CrashingStore(folder / "s.db")
    return world, engine.ended or not ends_at


async def led(world: KnownPods, rounds: int = 10) -> None:
    """The next engine leads."""
    for _ in range(rounds):
        await take_over(world)
        await world.sleep(30.0)


@pytest.mark.parametrize("lane", ["voluntary", "involuntary"])
@pytest.mark.parametrize("refused", ["", "resume", "release"])
async def test_the_pod_that_it_left_goes_and_the_one_that_it_lives_in_stays(tmp_path: Path, lane: Lane, refused: str) -> None:
    arrived = 0
    for dead_at in range(1, ORDERS):
        for ends_at in (*range(dead_at, ORDERS), 0):
            world, ended = await moved(tmp_path / f"{dead_at}-{ends_at}", lane, dead_at, ends_at, *filter(None, [refused]))
            if ended:
                there = world.home() == B
                await led(world)
                assert world.store.active() == ()
                if there:
                    assert world.home() == B
                    assert not world.fenced()
                if world.home() is not None:
                    world.settled()
                arrived += there
            world.store.close()
    assert arrived or refused == "release" or lane == "voluntary"


@pytest.mark.parametrize("dead_at", range(DURABLE, 8))
async def test_a_worker_that_arrived_lives_on_where_its_old_node_never_answers_again(tmp_path: Path, dead_at: int) -> None:
    """That node was going: it doesn't answer the next engine, and is declared gone later, or never."""
    arrived = 0
    for ends_at in (*range(dead_at, ORDERS), 0):
        for declared in (True, False):
            world, ended = await moved(tmp_path / f"{ends_at}-{declared}", "involuntary", dead_at, ends_at)
            if ended and world.home() == B:
                world.agents[A].away_until = float("inf")
                await led(world, 3)
                if declared:
                    world.agents[A].dead = True
                    world.gone.add(A)
                    world.places.pods = {uid: kept for uid, kept in world.places.pods.items() if kept.node != A}
                await led(world)
                record = world.store.get(OperationId("first"))
                assert record is not None
                assert (record.status, world.home(), world.fenced()) == (Status.SUCCEEDED, B, False)
                world.settled()
                arrived += 1
            world.store.close()
    assert arrived


async def restored(folder: Path, dead_at: int, ends_at: int) -> tuple[KnownPods, bool]:
    """As `moved`, of a parked worker that is brought back to `b`."""
    folder.mkdir()
    world = KnownPods(CrashingStore(folder / "s.db"))
    await parked(world)
    planned = msgspec.structs.replace(world.plan(OperationKind.RESTORE, lane="involuntary"), to_slot=SlotId("b/0"))
    planned = msgspec.structs.replace(planned, expect=msgspec.structs.replace(planned.expect, free=planned.to_slot))
    engine = Engine(world, dead_at, ends_at)
    world.places.away = lambda: engine.db.dead
    once = iter([planned])
    await engine.work(lambda: next(once, None))
    world.places.away = lambda: False
    world.store.close()
    world.store = CrashingStore(folder / "s.db")
    return world, engine.ended or not ends_at


@pytest.mark.parametrize("away", [False, True])
async def test_a_restored_worker_lives_on_in_its_new_pod(tmp_path: Path, *, away: bool) -> None:
    """Also where its new node doesn't answer for a while to the engine that takes over."""
    arrived = 0
    for dead_at in range(1, ORDERS):
        for ends_at in (*range(dead_at, ORDERS), 0):
            world, ended = await restored(tmp_path / f"{dead_at}-{ends_at}", dead_at, ends_at)
            if ended and world.home() == B:
                if away:
                    world.agents[B].away_until = world.now + 200.0
                await led(world)
                assert world.store.active() == ()
                assert (world.home(), world.fenced()) == (B, False)
                world.settled()
                arrived += 1
            world.store.close()
    assert arrived


@pytest.mark.parametrize("returns", ["later", "meanwhile"])
async def test_it_lives_on_where_its_new_node_is_away_when_the_old_one_is_declared_gone(tmp_path: Path, returns: str) -> None:
    """`meanwhile`: the node is back when its copy is to be ended, as nobody had said that it runs."""
    world, _ = await moved(tmp_path / "w", "involuntary", DURABLE, 0)
    assert world.home() == B
    old, new = world.agents[A], world.agents[B]
    old.dead, new.away_until = True, world.now + 200.0
    world.gone.add(A)
    world.places.pods = {uid: kept for uid, kept in world.places.pods.items() if kept.node != A}
    known = world.next_fault

    def back(node: NodeId, step: str) -> str:
        if (node, step, returns) == (B, "abort", "meanwhile"):
            new.away_until = 0.0
        return known(node, step)

    world.next_fault = back  # type: ignore[method-assign]
    await led(world)
    record = world.store.get(OperationId("first"))
    assert record is not None
    assert (record.status, world.home(), world.fenced()) == (Status.SUCCEEDED, B, False)
    world.settled()
    world.store.close()


@pytest.mark.parametrize("kind", [OperationKind.MOVE, OperationKind.RESTORE])
async def test_one_that_dies_as_it_is_taken_up_is_left_in_one_pod_or_its_image(tmp_path: Path, kind: OperationKind) -> None:
    """One that moved is restored where it came from, in a pod of its own as the one that it had left is gone."""
    if kind is OperationKind.MOVE:
        world, _ = await moved(tmp_path / "w", "involuntary", DURABLE, 0)
    else:
        world, _ = await restored(tmp_path / "w", 2, 0)
    assert world.home() == B
    world.named = {(B, "resume"): ["dies"]}
    await led(world)
    assert world.died
    assert (world.home(), world.store.active()) == (A if kind is OperationKind.MOVE else None, ())
    if kind is OperationKind.MOVE:
        assert world.lives_in not in ("u1", "u2")
    world.settled()
    world.store.close()


@pytest.mark.parametrize("kind", [OperationKind.MOVE, OperationKind.PARK, OperationKind.DRAIN, OperationKind.CHECKPOINT])
@pytest.mark.parametrize("waits", [False, True])
def test_which_pod_is_left_is_durable_with_the_beginning(tmp_path: Path, kind: OperationKind, *, waits: bool) -> None:
    """Of what waits for its turn once that has come: it may live elsewhere by then."""
    world = KnownPods(CrashingStore(tmp_path / "s.db"))
    executor, planned = Executor(world.parts(), world.epoch()), world.plan(kind)
    if waits:
        (record,) = executor.accept(plan(planned))
        assert record.left is None
        executor.begin(record)
    else:
        executor.intend(planned, PLAN)
    world.store.close()
    found = CrashingStore(tmp_path / "s.db").get(planned.id)
    assert found is not None
    assert found.left == (world.places.pod("u1") if kind is not OperationKind.CHECKPOINT else None)


def test_a_pod_that_isnt_one_of_that_nodes_workers_is_none_that_it_leaves(tmp_path: Path) -> None:
    world = KnownPods(CrashingStore(tmp_path / "s.db"))
    world.in_pods["a"] = world.places.add("b")
    record = Executor(world.parts(), world.epoch()).intend(world.plan(OperationKind.MOVE), PLAN)
    assert record.left is None
