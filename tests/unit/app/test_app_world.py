"""The world as it is seen: agents that answer, fail and hang, side by side."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
from shunter.app import world
from shunter.app.aside import Aside
from shunter.app.world import Memory, World, inputs_of
from shunter.lang.load import load
from shunter.model.errors import Problem, Retry
from shunter.model.ids import Commit, Epoch, Incarnation, NodeId, SlotId, WorkerId
from shunter.model.policy import PolicySet
from shunter.model.sample import Known, Missing
from shunter.model.snapshot import Fleet, Node, Slot, Worker, WorkerState
from shunter.model.source import Revision, SourceFile
from shunter.model.view import NodeView
from shunter.observe.catalog import Catalog
from shunter.observe.prometheus import Answer, Series

NOW = 1_000_000.0
AWAY = Problem(code="SH520", what="no answer", remedy="Look")


def view(node: str) -> NodeView:
    name, slot = NodeId(node), SlotId(f"{node}/0")
    worker = Worker(
        id=WorkerId(f"w-{node}"),
        role="decode",
        graph="g",
        engine="vllm",
        state=WorkerState.RUNNING,
        node=name,
        slot=slot,
        incarnation=Incarnation(0),
    )
    return NodeView(
        node=Node(id=name, slots=(Slot(id=slot, worker=worker.id),), seen_at=NOW),
        workers=(worker,),
        images=(),
        notices=(),
        epoch=Epoch(1),
        at=NOW,
    )


class Answers:
    """An agent that answers."""

    def __init__(self, node: str) -> None:
        self.node = node

    async def view(self) -> NodeView:
        return view(self.node)


class Fails:
    async def view(self) -> NodeView:
        raise Retry(AWAY)


class Hangs:
    """An agent that never answers; whoever gives it up ends the wait."""

    def __init__(self) -> None:
        self.begun = self.given_up = False

    async def view(self) -> NodeView:
        self.begun = True
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up = True
            raise
        raise AssertionError


class Meter:
    """A Prometheus that gives every worker the same value, or one that fails."""

    def __init__(self, value: float | None = 3.0) -> None:
        self.value = value
        self.asked: list[tuple[str, float | None]] = []

    async def query(self, promql: str, at: float | None, *, lookback_s: float | None = None) -> Answer:
        self.asked.append((promql, at))
        if self.value is None or at is None:
            raise Retry(AWAY)
        labels = {"__name__": "vllm:num_requests_waiting", "worker": "w-node-a"}
        return Answer(kind="matrix", series=(Series(labels=labels, points=((at - 1, self.value),)),))


def seen(agents: Mapping[str, world.Viewed], meter: Meter | None = None) -> World:
    return World({NodeId(name): agent for name, agent in agents.items()}, meter or Meter(), Catalog())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "VIEW_TIMEOUT_S", 0.05)


async def test_an_agent_that_hangs_is_unreachable_and_holds_nobody_up() -> None:
    hangs = Hangs()
    looked = seen({"node-a": Answers("node-a"), "node-b": hangs, "node-c": Fails(), "node-d": Answers("node-d")})
    inventory = await asyncio.wait_for(looked.look(Memory(), NOW), 5)
    assert [(n.id, n.reachable) for n in inventory.fleet.nodes] == [
        ("node-a", True),
        ("node-b", False),
        ("node-c", False),
        ("node-d", True),
    ]
    assert [w.id for w in inventory.fleet.workers] == ["w-node-a", "w-node-d"]
    assert hangs.given_up
    assert {node: (p.code, p.what) for node, p in looked.unreachable.items()} == {
        "node-b": ("SH520", "the agent didn't answer in time"),
        "node-c": ("SH520", "no answer"),
    }


async def test_many_that_hang_cost_one_time_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "VIEW_TIMEOUT_S", 0.5)
    looked = seen({f"node-{n}": Hangs() for n in range(20)})
    await asyncio.wait_for(looked.look(Memory(), NOW), 5)  # one after the other they would take 10 s
    assert len(looked.unreachable) == 20


async def test_a_node_that_goes_silent_keeps_its_workers_and_one_that_answers_again_is_reachable() -> None:
    first = (await seen({"node-a": Answers("node-a")}).look(Memory(), NOW)).fleet
    silent = seen({"node-a": Hangs()})
    then = (await silent.look(Memory(fleet=first), NOW + 1)).fleet
    assert [(w.id, w.state) for w in then.workers] == [("w-node-a", WorkerState.RUNNING)]
    assert not then.nodes[0].reachable
    back = seen({"node-a": Answers("node-a")})
    assert (await back.look(Memory(fleet=then), NOW + 2)).fleet.nodes[0].reachable
    assert back.unreachable == {}


async def test_memory_tells_a_worker_that_was_ended_from_one_that_was_lost() -> None:
    before = (await seen({"node-a": Answers("node-a")}).look(Memory(), NOW)).fleet

    class Empty:
        async def view(self) -> NodeView:
            told = view("node-a")
            return NodeView(node=told.node, workers=(), images=(), notices=(), epoch=told.epoch, at=NOW + 1)

    async def states(**more: frozenset[WorkerId]) -> list[tuple[str, WorkerState]]:
        found = await seen({"node-a": Empty()}).look(Memory(fleet=before, **more), NOW + 1)
        return [(w.id, w.state) for w in found.fleet.workers]

    one = frozenset({WorkerId("w-node-a")})
    assert await states() == [("w-node-a", WorkerState.LOST)]
    assert await states(busy=one) == [("w-node-a", WorkerState.FROZEN)]
    assert await states(ended=one) == []  # on purpose, and without an image there is nothing left to know


async def fleet() -> Fleet:
    return (await seen({"node-a": Answers("node-a")}).look(Memory(), NOW)).fleet


async def test_samples_are_taken_at_the_time_asked_for_and_missing_ones_say_why() -> None:
    known = await seen({}, Meter(3.0)).measure(await fleet(), policies(), NOW, within_s=2)
    assert isinstance(found := known.workers["w-node-a"]["waiting"], Known)
    assert (found.value, found.at) == (3.0, NOW - 1)
    missing = (await seen({}, Meter(None)).measure(await fleet(), policies(), NOW, within_s=2)).workers["w-node-a"]["waiting"]
    assert isinstance(missing, Missing)
    assert "no answer" in missing.reason


def policies(change: Callable[[str], str] = lambda text: text) -> PolicySet:
    text = change("""apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: images}
spec:
  workers: {all: true}
  every: 5m
  when: metrics.load > 1
  metrics: {load: {query: up, unit: '1'}}
""")
    file = SourceFile(path="images.yaml", blob="b", data=text.encode())
    found = load(Revision(commit=Commit("c"), committed_at=None, files=(file,)), None)
    assert found.problems == ()
    return found


def test_declared_metrics_are_asked_for_unless_their_policy_is_off() -> None:
    assert {policy: list(metrics) for policy, metrics in inputs_of(policies()).items()} == {"images": ["load"]}
    assert inputs_of(policies(lambda text: text + "  mode: off\n")) == {}


async def test_a_look_stands_still_while_something_cant_wait() -> None:
    class Breathless(Aside):
        asked = 0

        def breathe(self) -> None:
            self.asked += 1

    aside = Breathless()
    looking = World({NodeId("a"): Answers("a")}, Meter(), Catalog(), aside)
    found = await looking.look(Memory(), NOW)
    assert aside.asked >= 5
    aside.asked = 0
    await looking.measure(found.fleet, policies(), NOW, within_s=1.0)
    assert aside.asked >= 5


async def test_whoever_cant_wait_has_a_turn_while_a_thousand_agents_are_asked() -> None:
    asked: list[NodeId] = []

    class Asked(Answers):
        async def view(self) -> NodeView:
            asked.append(NodeId(self.node))
            return await super().view()

    names = [f"node-{n:04}" for n in range(1000)]
    looking = asyncio.create_task(seen({name: Asked(name) for name in names}).look(Memory(), NOW))
    turns: list[int] = []
    while not looking.done():
        turns.append(len(asked))
        await asyncio.sleep(0)
    assert len((await looking).fleet.nodes) == 1000
    assert len(set(turns)) >= 10, "one after the other in portions, not all in one step of the loop"


async def test_a_look_that_is_given_up_leaves_no_question_behind() -> None:
    """Between two portions, when nobody waits for those of the first yet."""
    hangs = [Hangs() for _ in range(3 * world._AT_ONCE)]
    looking = asyncio.create_task(seen({f"node-{n}": one for n, one in enumerate(hangs)}).look(Memory(), NOW))
    while not any(one.begun for one in hangs):
        await asyncio.sleep(0)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    await asyncio.sleep(0)
    assert 0 < sum(one.begun for one in hangs) < len(hangs)
    assert [one for one in hangs if one.begun and not one.given_up] == []


async def test_no_more_agents_are_asked_while_something_cant_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[NodeId] = []

    class Asked(Answers):
        async def view(self) -> NodeView:
            asked.append(NodeId(self.node))
            return await super().view()

    monkeypatch.setattr(world, "_REST_S", 0.0)
    aside = Aside()
    names = [f"node-{n:04}" for n in range(10 * world._AT_ONCE)]
    looking = asyncio.create_task(World({NodeId(n): Asked(n) for n in names}, Meter(), Catalog(), aside).look(Memory(), NOW))
    await asyncio.sleep(0)
    aside.hold()
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(asked) < len(names) / 2
    aside.release()
    assert len((await looking).fleet.nodes) == len(names)
