"""Agents that come, move and go while the engine runs."""

from typing import Any

import msgspec
from shunter.app.roster import Roster
from shunter.app.world import Memory, World
from shunter.model.ids import Epoch, Incarnation, NodeId, SlotId, WorkerId
from shunter.model.pod import Pod
from shunter.model.snapshot import Fleet, Node, Slot, Worker, WorkerState
from shunter.model.view import NodeView
from shunter.observe.catalog import Catalog

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


class Client:
    def __init__(self, node: NodeId, address: str) -> None:
        self.node, self.address, self.closed = node, address, False

    async def close(self) -> None:
        self.closed = True

    async def view(self) -> NodeView:
        node = Node(id=self.node, slots=(Slot(id=SlotId(f"{self.node}/0")),))
        return NodeView(node=node, workers=(), images=(), notices=(), epoch=Epoch(1), at=100.0)


def roster(**fixed: str) -> Any:
    return Roster(Client, {NodeId(n): a for n, a in fixed.items()})  # type: ignore[arg-type]


async def test_it_follows_what_is_found_and_what_is_under_way_at_an_old_address_is_seen_through() -> None:
    found = roster(a="h:1")
    old = found[A]
    found.follow({A: "other:1", B: "b:1", C: ""})
    assert {n: c.address for n, c in found.items()} == {A: "h:1", B: "b:1"}, "the settings' count, and C's isn't known yet"
    before, first = iter(found), found[B]
    found.follow({B: "b:2", C: "c:1"})
    assert [*before] == [A, B], "whoever goes through it isn't disturbed"
    assert (found[B].address, first.closed, found[A]) == ("b:2", False, old)
    found.follow({B: ""})
    assert found[B].address == "b:2", "an agent that is being started anew is where it was"
    found.follow({})
    assert set(found) == {A, B, C}, "nobody is forgotten for not being found"
    kept = found[B]
    found.forget({A, B})
    assert set(found) == {A, C}, "but the settings' own"
    found.follow({B: "b:2"})
    assert found[B] is not kept
    await found.close()
    assert all(c.closed for c in (first, kept, old, *found.values()))


async def test_a_look_asks_whoever_there_is_and_joins_what_the_cluster_says_but_remembers_only_what_agents_said() -> None:
    there = roster(a="h:1")
    added = Worker(
        id=WorkerId("w"), role="decode", graph="g", engine="vllm", state=WorkerState.RUNNING, node=A, slot=None,
        incarnation=Incarnation(0), pod=Pod(namespace="n", name="w", uid="u"), pinned="no agent runs there",
    )  # fmt: skip
    world = World(
        there, None, Catalog(),  # type: ignore[arg-type]
        join=lambda fleet: msgspec.structs.replace(fleet, workers=(*fleet.workers, added)),
        bare=lambda fleet: msgspec.structs.replace(fleet, workers=()),
    )  # fmt: skip
    first = await world.look(Memory(), 100.0)
    assert [w.id for w in first.fleet.workers] == ["w"]
    there.follow({B: "b:1"})
    second = await world.look(Memory(fleet=first.fleet), 101.0)
    assert [n.id for n in second.fleet.nodes] == [A, B]
    assert [(w.id, w.state) for w in second.fleet.workers] == [("w", WorkerState.RUNNING)], "it isn't lost because no agent reports it"
    gone = World(there, None, Catalog(), bare=lambda fleet: Fleet(nodes=fleet.nodes))  # type: ignore[arg-type]
    assert (await gone.look(Memory(fleet=second.fleet), 102.0)).fleet.workers == ()
