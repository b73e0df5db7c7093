"""Waiting for pods: how long, for what, and how seldom the API server is asked."""

from collections.abc import Callable

import msgspec
import pytest
from shunter.cluster.awaiting import ASK_S, Awaiting, Patience
from shunter.cluster.pods import UNSCHEDULABLE, Being, WorkerPod
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import NodeId, WorkerId
from shunter.model.pod import Pod, Resident

B = NodeId("b")
COMING = WorkerPod(
    pod=Pod(namespace="n", name="w-1", uid="u", container="main"), resident=Resident(id=WorkerId("w"), role="decode", graph="g", engine=""),
    node=None, being=Being.COMING, ready=False, why="its pod doesn't run yet: pulling", labels={}, tolerations=(), gpus=1, controller="",
    gated=True,
)  # fmt: skip
RUNNING = msgspec.structs.replace(COMING, being=Being.RUNNING, node=B, why="")


class Waits:
    """A clock, and what is seen and answered by it."""

    def __init__(self, seen: Callable[[float], WorkerPod | None], answer: Callable[[float], WorkerPod | None] | None = None) -> None:
        self.now, self.asked, self.checked = 0.0, 0, 0
        self._seen, self._answer = seen, answer or seen

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def ask(self, _pod: Pod) -> WorkerPod | None:
        self.asked += 1
        return self._answer(self.now)

    def may_go_on(self) -> None:
        self.checked += 1

    async def wait(self) -> Pod:
        patience = Patience(running=100.0, room=10.0)
        awaiting = Awaiting(self.ask, lambda _uid: self._seen(self.now), patience, lambda: self.now, self.sleep)
        return await awaiting.until_it_runs(COMING, B, self.may_go_on)

    async def refused(self) -> str:
        with pytest.raises(Rejected) as raised:
            await self.wait()
        assert raised.value.problem.code == "SH560"
        return raised.value.problem.what


async def test_what_follows_the_cluster_tells_it_and_the_server_is_asked_seldom() -> None:
    waits = Waits(lambda now: RUNNING if now > 30.0 else COMING)
    assert await waits.wait() == RUNNING.pod
    assert 30.0 < waits.now < 31.0
    assert waits.asked <= 30.0 / ASK_S
    assert waits.checked > 90


async def test_a_copy_that_has_fallen_behind_holds_nobody_up_for_long() -> None:
    waits = Waits(lambda _: None, lambda now: RUNNING if now > 1.0 else COMING)
    await waits.wait()
    assert waits.now <= ASK_S + 1.0


async def test_a_server_that_doesnt_answer_says_nothing_of_the_pod() -> None:
    def answer(now: float) -> WorkerPod:
        if now < 20.0:
            raise Retry(Problem(code="SH251", what="no answer", remedy="none"))
        return RUNNING

    waits = Waits(lambda _: None, answer)
    await waits.wait()
    assert waits.asked > 2


async def test_each_reason_has_its_time() -> None:
    full = msgspec.structs.replace(COMING, reason=UNSCHEDULABLE, why="0/3 nodes")
    waits = Waits(lambda _: full)
    assert "0/3 nodes" in await waits.refused()
    assert 10.0 <= waits.now < 12.0
    waits = Waits(lambda now: full if now % 15.0 < 8.0 else COMING)
    assert "pulling" in await waits.refused() or waits.now >= 100.0
    assert waits.now >= 100.0, "room that comes and goes isn't none"
    hopeless = msgspec.structs.replace(COMING, reason="CreateContainerError", why="no such command")
    waits = Waits(lambda now: hopeless if now > 2.0 else COMING)
    assert "no such command" in await waits.refused()
    assert waits.now < 4.0


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (msgspec.structs.replace(COMING, being=Being.ENDED, why="its pod has ended (Evicted)"), "Evicted"),
        (msgspec.structs.replace(COMING, being=Being.ENDING, why="its pod is being deleted"), "being deleted"),
        (msgspec.structs.replace(RUNNING, node=NodeId("c")), "runs on c"),
    ],
)
async def test_what_will_never_run_there_is_given_up_at_once(pod: WorkerPod, said: str) -> None:
    waits = Waits(lambda _: pod)
    assert said in await waits.refused()
    assert waits.now < 1.0


async def test_one_that_was_deleted_is_known_by_the_servers_word() -> None:
    waits = Waits(lambda _: None, lambda _: None)
    assert "deleted" in await waits.refused()
