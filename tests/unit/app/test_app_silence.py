"""How long a node has been silent, whatever clocks on walls say meanwhile."""

from collections.abc import Callable

import msgspec
import pytest
from shunter.app.leading import Leading
from shunter.app.silence import Silence
from shunter.app.world import World
from shunter.model.errors import Problem, Retry
from shunter.model.ids import Epoch, Incarnation, NodeId, NoticeId, SlotId, WorkerId
from shunter.model.pod import Pod
from shunter.model.snapshot import Node, Notice, NoticeKind, Slot, Worker, WorkerState
from shunter.model.view import NodeView
from shunter.observe.catalog import Catalog
from test_app_engine import Stage, stage

__all__ = ["stage"]
A, W = NodeId("node-a"), WorkerId("w")


class Ticking:
    """A clock that nobody sets."""

    def __init__(self) -> None:
        self.at = 5.0

    def __call__(self) -> float:
        return self.at


def notice(deadline: float | None, seen_at: float = 100.0) -> Notice:
    return Notice(id=NoticeId("n"), kind=NoticeKind.PREEMPTION, node=A, seen_at=seen_at, deadline=deadline)


def test_it_counts_from_the_first_look_without_an_answer_and_ends_with_one() -> None:
    clock = Ticking()
    silence = Silence(clock)
    silence.looked([], [], 100.0)
    clock.at += 500  # the engine stood still: nobody looked
    assert silence.lasts() == {}
    silence.looked([A], [], 600.0)
    assert silence.lasts() == {A: 0.0}
    clock.at += 7
    silence.looked([A], [], 607.0)
    assert silence.lasts() == {A: 7.0}
    silence.looked([], [], 607.0)
    assert silence.lasts() == {}


@pytest.mark.parametrize(
    ("told", "first_seen", "left"),
    [
        (notice(130.0), 100.0, 30.0),
        (notice(None), 100.0, 0.0),
        (notice(90.0), 100.0, 0.0),
        (notice(130.0, seen_at=120.0), 100.0, 10.0),
        (notice(100_030.0, seen_at=100_000.0), 100.0, 30.0),  # our clock was wrong by a day, and is set right now
    ],
)
def test_it_doesnt_count_before_a_deadline_whatever_our_clock_is_set_to(told: Notice, first_seen: float, left: float) -> None:
    clock = Ticking()
    silence = Silence(clock)
    silence.looked([A], [told], first_seen)
    assert silence.lasts() == {A: -left}
    clock.at += 20
    silence.looked([A], [told], first_seen + 10_000)  # set forward
    assert silence.lasts() == {A: 20.0 - left}


class Living:
    """A node with one worker, which may not answer, and whose own clock is behind."""

    def __init__(self, behind: float) -> None:
        self.behind = behind
        self.now = 0.0
        self.answers = True
        self.deadline = 1000.0

    async def view(self) -> NodeView:
        if not self.answers:
            raise Retry(Problem(code="SH520", what="no answer", remedy="Look"))
        slot = Slot(id=SlotId("node-a/0"), worker=W)
        worker = Worker(
            id=W,
            role="decode",
            graph="g",
            engine="e",
            state=WorkerState.RUNNING,
            node=A,
            slot=slot.id,
            incarnation=Incarnation(0),
        )
        return NodeView(
            node=Node(id=A, slots=(slot,), seen_at=self.now - self.behind),
            workers=(worker,),
            images=(),
            notices=(notice(self.deadline - self.behind, 970.0 - self.behind),),
            epoch=Epoch(1),
            at=self.now - self.behind,
        )


class Watched:
    """An engine that looks at such a node, by two clocks."""

    def __init__(self, stage: Stage, behind: float) -> None:
        self.stage, self.node, self.steady = stage, Living(behind), Ticking()
        self.leading: Leading = stage.leading
        self.leading.sight.world = World({A: self.node}, None, Catalog())  # type: ignore[arg-type]
        self.leading.sight.nodes = (A,)
        self.leading.sight.silence = Silence(self.steady)

    async def look(self, now: float, *, answers: bool, after: float = 1.0) -> WorkerState:
        self.node.now, self.node.answers = now, answers
        self.steady.at += after
        await self.leading.sight.look(now)
        (worker,) = self.stage.engine.scene.fleet.workers
        return worker.state


async def test_a_slow_clock_and_a_missed_look_make_nobody_lost_and_the_clock_is_told_once(stage: Callable[[int], Stage]) -> None:
    w = Watched(stage(0), behind=70.0)
    await w.look(993.0, answers=True)
    await w.look(994.0, answers=True)
    assert await w.look(996.0, answers=False) is WorkerState.RUNNING
    assert await w.look(997.0, answers=True) is WorkerState.RUNNING
    assert [p.code for p in w.stage.told] == ["SH312", "SH520"]
    w.node.behind = 0.0
    await w.look(998.0, answers=True)
    assert [p.code for p in w.stage.told].count("SH312") == 1


async def test_a_clock_that_is_set_forward_makes_nobody_lost_and_real_silence_does(stage: Callable[[int], Stage]) -> None:
    w = Watched(stage(0), behind=0.0)
    await w.look(994.0, answers=True)
    assert await w.look(5000.0, answers=False) is WorkerState.RUNNING
    for n in range(70):  # 65 s beyond the deadline that was 6 s away
        assert await w.look(5001.0 + n, answers=False) is WorkerState.RUNNING, n
    assert await w.look(5080.0, answers=False) is WorkerState.LOST
    assert w.leading.sight.gone == {A}


class Namesake(Living):
    """A node with a pod of some namespace whose worker has that name."""

    def __init__(self, node: NodeId, namespace: str) -> None:
        super().__init__(0.0)
        self.id, self.pod = node, Pod(namespace=namespace, name="w", uid=namespace)

    async def view(self) -> NodeView:
        told = await super().view()
        own = [msgspec.structs.replace(one, node=self.id, slot=SlotId(f"{self.id}/0"), pod=self.pod) for one in told.workers]
        return msgspec.structs.replace(told, node=msgspec.structs.replace(told.node, id=self.id), workers=tuple(own), notices=())


async def test_while_a_namesake_doesnt_answer_nothing_is_decided_on_the_other(stage: Callable[[int], Stage]) -> None:
    s, other = stage(0), NodeId("node-b")
    nodes = {A: Namesake(A, "dynamo"), other: Namesake(other, "somebodys")}
    s.leading.sight.world = World(nodes, None, Catalog())  # type: ignore[arg-type]
    s.leading.sight.nodes = tuple(nodes)
    states = []
    for now, answers in ((1.0, True), (2.0, False), (3.0, False), (4.0, True)):
        nodes[A].answers = answers
        for node in nodes.values():
            node.now = now
        await s.leading.sight.look(now)
        states += [worker.state for worker in s.engine.scene.fleet.workers]
    assert states == [WorkerState.FROZEN] * 4
