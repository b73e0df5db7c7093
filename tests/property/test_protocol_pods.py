"""Operations on a worker that lives in a pod, with an engine that dies at every write and at every word to the API server, and with an API
server that fails: whatever happens, the pod that the worker lives in is never deleted, the one that it left is, and nothing else is left.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleet_in_memory import PLAN, SPEC, WORKER, Crash, CrashingStore, World
from next_engine import take_over
from shunter.act.execute import Executor
from shunter.act.run import Parts
from shunter.model.errors import Problem, Rejected, Retry, Stalled, Unknown
from shunter.model.ids import NodeId, OperationId, SlotId, node_of
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import Estimate, OperationKind
from shunter.model.pod import Pod, Resident
from shunter.wire import agent_pb2 as pb

MOVE, PARK, RESTORE, DRAIN = OperationKind.MOVE, OperationKind.PARK, OperationKind.RESTORE, OperationKind.DRAIN
NEVER = 10**6


class Kept:
    """A pod as the API server has it."""

    def __init__(self, node: str, operation: str = "") -> None:
        self.node, self.operation, self.serving = node, operation, not operation


class MemoryPlaces:
    """Pods in memory: what `cluster.places.Pods` does, checked against what the agents' copies really are."""

    def __init__(self, world: "PodWorld") -> None:
        self.world = world
        self.pods: dict[str, Kept] = {}
        self.names: dict[tuple[str, str], str] = {}
        self.calls = 0
        self.crash_at, self.after = 0, False
        self.fail: dict[int, type[BaseException]] = {}
        self.away: Callable[[], bool] = lambda: False
        """The API server doesn't answer at all."""
        self.remembered: set[str] = set()
        self._uids = itertools.count(1)

    def add(self, node: str, operation: str = "") -> str:
        uid = f"u{next(self._uids)}"
        self.pods[uid] = Kept(node, operation)
        return uid

    def pod(self, uid: str) -> Pod:
        return Pod(namespace="n", name=f"pod-{uid}", uid=uid)

    def _met(self, *, after: bool) -> None:
        if not after:
            self.calls += 1
            failure = self.fail.pop(self.calls, Retry if self.away() else None)
            if failure is not None:
                raise failure(Problem(code="SH251", what="no answer", remedy="none"))
        if self.calls == self.crash_at and after == self.after:
            self.crash_at = 0
            raise Crash

    async def prepare(
        self, record: OperationRecord, slot: SlotId, left: Pod | None, who: Resident, may_go_on: Callable[[], None]
    ) -> Pod | None:
        assert who.id == WORKER
        self._met(after=False)
        may_go_on()
        key = (record.id, node_of(slot))
        if self.names.get(key) not in self.pods:
            assert not [k for k in self.pods.values() if k.node == node_of(slot)], "there is room for one on each node"
            self.names[key] = self.add(node_of(slot), record.id)
        self._met(after=True)
        return self.pod(self.names[key])

    def strange(self, pod: Pod, node: NodeId) -> str:
        kept = self.pods.get(pod.uid)
        return "" if kept is not None and kept.node == node else "that isn't one of its own"

    async def keep(self, record: OperationRecord, pod: Pod) -> None:
        self._met(after=False)
        if pod.uid in self.pods:
            self.pods[pod.uid].serving = True
        self._met(after=True)

    async def remember(self, record: OperationRecord, pod: Pod) -> None:
        self._met(after=False)
        assert pod.uid in self.pods
        self.remembered.add(record.id)
        self._met(after=True)

    async def show(self, pod: Pod, *, shown: bool) -> None:
        self._met(after=False)

    async def retire(self, pod: Pod) -> None:
        self._met(after=False)
        self._delete(pod.uid)
        self._met(after=True)

    async def withdraw(self, record: OperationRecord) -> None:
        self._met(after=False)
        for uid in [u for u, k in self.pods.items() if k.operation == record.id and not k.serving]:
            self._delete(uid)
        self._met(after=True)

    def tidy(self) -> None:
        """As the engine does in its ticks."""
        for uid, kept in list(self.pods.items()):
            record = self.world.store.get(OperationId(kept.operation)) if kept.operation else None
            if kept.operation and not kept.serving and (record is None or record.outcome is not None):
                if uid == self.world.lives_in:
                    kept.serving = True
                else:
                    self._delete(uid)

    def _delete(self, uid: str) -> None:
        kept = self.pods.pop(uid, None)
        if kept is not None:
            assert self.world.lives_in != uid, f"the pod of a copy that lives was deleted, after {self.world.orders[-6:]}"


class PodWorld(World):
    """A world whose agents say which pods their copies live in."""

    def __init__(self, store: CrashingStore) -> None:
        super().__init__(store)
        self.places = MemoryPlaces(self)
        self.in_pods: dict[str, str] = {"a": self.places.add("a")}
        """By node: the pod in which its copy lives, or was made to."""
        for name, agent in self.agents.items():
            self._say(name, agent)

    def _say(self, name: str, agent: Any) -> None:
        restore = agent.restore

        def row(state: str) -> pb.WorkerReport:
            uid = self.in_pods[name]
            return pb.WorkerReport(spec=SPEC, state=state, pod_uid=uid, pod_namespace="n", pod_name=f"pod-{uid}")

        async def restored(order: Any, slot: Any, image: Any, hold: float, timeout: float, pod: Pod | None = None) -> Any:
            assert pod is not None, "it is restored into no pod"
            kept = self.places.pods.get(pod.uid)
            assert kept is not None, "it is restored into a pod that is gone"
            assert kept.node == name, "it is restored into a pod elsewhere"
            reply = await restore(order, slot, image, hold, timeout)
            self.in_pods[name] = pod.uid
            return reply

        agent.row, agent.restore = row, restored

    @property
    def lives_in(self) -> str | None:
        """The pod of the copy that runs, or could run on by itself; None: there is none."""
        for name, agent in self.agents.items():
            if agent.copy and agent.copy.state in ("running", "frozen"):
                return self.in_pods[name]
        return None

    def parts(self) -> Parts:
        return msgspec.structs.replace(super().parts(), places=self.places)

    def settled(self) -> None:
        """When all is over: one pod for a worker that lives, in which it does, and none for one that doesn't."""
        self.places.tidy()
        home = self.lives_in
        assert set(self.places.pods) == ({home} if home is not None else set()), (self.places.pods, home, self.orders)
        if home is not None:
            assert self.places.pods[home].serving


@pytest.fixture
def worlds(tmp_path: Path) -> Callable[[], PodWorld]:
    number = itertools.count()
    return lambda: PodWorld(CrashingStore(tmp_path / f"{next(number)}.db"))


async def carry(world: PodWorld, kind: OperationKind, lane: str = "voluntary") -> OperationRecord | None:
    """To its end, by as many engines as it takes."""
    planned = world.plan(kind, lane=lane)
    try:
        await Executor(world.parts(), world.epoch()).start(planned, PLAN)
    except Crash:
        for _ in range(6):
            await world.sleep(40.0)
            await take_over(world)
            record = world.store.get(planned.id)
            if record is None or record.outcome is not None:
                break
    return world.store.get(planned.id)


async def parked(world: PodWorld) -> None:
    await carry(world, PARK)
    world.settled()
    assert world.places.remembered == {"park-0"}
    world.places.calls = world.store.writes = 0


async def begun(worlds: Callable[[], PodWorld], kind: OperationKind) -> PodWorld:
    world = worlds()
    if kind is RESTORE:
        await parked(world)
    return world


KINDS = [MOVE, PARK, RESTORE, DRAIN]


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_goes_wrong_when_nothing_does(worlds: Callable[[], PodWorld], kind: OperationKind) -> None:
    world = await begun(worlds, kind)
    record = await carry(world, kind)
    assert record is not None
    assert record.status is Status.SUCCEEDED
    world.settled()
    assert (world.lives_in is not None) == (kind in (MOVE, RESTORE))
    if kind is MOVE:
        assert (record.pod, record.left) == (world.places.pod("u2"), world.places.pod("u1"))
        assert set(world.places.pods) == {"u2"}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_that_dies_at_any_write(worlds: Callable[[], PodWorld], kind: OperationKind, *, after: bool) -> None:
    for at in itertools.count(1):
        world = await begun(worlds, kind)
        world.store.crash_at, world.store.after = at, after
        await carry(world, kind)
        if world.store.crash_at:
            assert at > 4, "it writes that often"
            return
        world.settled()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_that_dies_at_any_word_to_the_server(worlds: Callable[[], PodWorld], kind: OperationKind, *, after: bool) -> None:
    for at in itertools.count(1):
        world = await begun(worlds, kind)
        world.places.crash_at, world.places.after = at, after
        await carry(world, kind)
        if world.places.crash_at and world.places.calls < at:
            assert at > 1, "it speaks to it"
            return
        world.places.crash_at = 0
        world.settled()


@pytest.mark.parametrize("failure", [Retry, Unknown, Rejected])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_fails_at_any_word(worlds: Callable[[], PodWorld], kind: OperationKind, failure: type[Exception]) -> None:
    for at in itertools.count(1):
        world = await begun(worlds, kind)
        world.places.fail[at] = failure
        record = await carry_on(world, kind)
        if world.places.fail:
            assert at > 1
            return
        assert record is not None
        assert record.outcome is not None
        world.settled()


async def carry_on(world: PodWorld, kind: OperationKind) -> OperationRecord | None:
    """As the scheduler does: what stays active is taken up again."""
    from shunter.act.run import Unresolved

    planned = world.plan(kind)
    try:
        await Executor(world.parts(), world.epoch()).start(planned, PLAN)
    except Unresolved:
        await take_over(world)
    return world.store.get(planned.id)


FAULTS: list[tuple[dict[tuple[str, str], list[str]], Status]] = [
    ({("b", "prepare"): ["refuse"]}, Status.ROLLED_BACK),
    ({("a", "freeze"): ["refuse"]}, Status.ROLLED_BACK),
    ({("b", "restore"): ["refuse"]}, Status.ROLLED_BACK),
    ({("b", "resume"): ["undone"]}, Status.SUCCEEDED),
    ({("b", "resume"): ["undone", "undone"]}, Status.ROLLED_BACK),
    ({("b", "resume"): ["undone", "undone"], ("a", "restore"): ["refuse", "refuse"]}, Status.FAILED),
    ({("a", "freeze"): ["dies"]}, Status.FAILED),
]


@pytest.mark.parametrize(("faults", "status"), FAULTS)
async def test_a_move_that_an_agent_refuses_leaves_one_pod(worlds: Callable[[], PodWorld], faults: Any, status: Status) -> None:
    """Also where the worker comes back to a node whose pod it had left: it gets a new one there."""
    world = worlds()
    world.named = {order: list(each) for order, each in faults.items()}
    record = await carry(world, MOVE)
    assert record is not None
    assert record.status is status
    await world.sleep(100)
    if world.lives_in is None:  # it is in its image, and the pod that it died in is its controller's
        world.places.pods = {uid: kept for uid, kept in world.places.pods.items() if kept.operation}
    world.settled()
    if ("b", "resume") in faults and status is Status.ROLLED_BACK:
        assert record.pod is not None
        assert world.places.pods[record.pod.uid].node == "a"
        assert "u1" not in world.places.pods


@pytest.mark.parametrize("kind", [MOVE, PARK])
@pytest.mark.parametrize("framed", [True, False])
async def test_nothing_starts_in_the_pod_of_a_worker_that_is_in_its_image(
    worlds: Callable[[], PodWorld], kind: OperationKind, *, framed: bool
) -> None:
    """It died while it stood still. Its controller makes another pod, with another name; without an image it may start where it was."""
    world = worlds()
    world.named = {("a", "freeze"): ["refuse-after" if framed else "dies"], ("a", "thaw"): ["dies"]}
    record = await carry(world, kind)
    assert record is not None
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.image is not None) == (Status.FAILED, framed)
    assert set(world.places.pods) - {"u2"} == (set() if framed else {"u1"})


@pytest.mark.parametrize("failure", [Retry, Unknown, Rejected, Crash])
@pytest.mark.parametrize("back", [False, True])
async def test_a_move_that_is_tried_twice_while_the_server_fails_or_the_engine_dies(
    worlds: Callable[[], PodWorld], failure: type[BaseException], *, back: bool
) -> None:
    """There, or there in vain and then where it came from."""
    for at in itertools.count(1):
        world = worlds()
        world.named = {("b", "resume"): ["undone", "undone"] if back else ["undone"]}
        if failure is Crash:
            world.places.crash_at = at
            await carry(world, MOVE)
        else:
            world.places.fail[at] = failure
            await carry_on(world, MOVE)
        if world.places.fail or (world.places.crash_at and world.places.calls < at):
            assert at > 4
            return
        world.places.crash_at = 0
        world.settled()


async def test_an_order_goes_nowhere_where_the_engine_looks_after_no_pods(worlds: Callable[[], PodWorld]) -> None:
    world = worlds()
    parts = World.parts(world)
    record = await Executor(parts, world.epoch()).start(world.plan(MOVE), PLAN)
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.code) == (Status.ROLLED_BACK, "SH562")
    assert ("b", "prepare") not in world.orders
    assert record.step is Step.ROLLING_BACK


async def test_what_cant_wait_waits_for_its_pod_only_while_the_move_can_still_be_in_time(worlds: Callable[[], PodWorld]) -> None:
    """An image that has to be pulled first may take longer than the node has left, and nothing else is done for the worker meanwhile."""
    world = worlds()
    clock, waited = world.parts().clock, 0

    async def slow(record: OperationRecord, slot: SlotId, left: Pod | None, who: Resident, may_go_on: Callable[[], None]) -> Pod | None:
        nonlocal waited
        while waited < 100:
            may_go_on()
            await world.sleep(1.0)
            waited += 1
        return None

    world.places.prepare = slow  # type: ignore[method-assign]
    urgent = msgspec.structs.replace(world.plan(MOVE, lane="involuntary"), deadline=clock() + 60.0, estimate=Estimate(stopped=20.0))
    record = await Executor(world.parts(), world.epoch()).start(urgent, PLAN)
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.code) == (Status.ROLLED_BACK, "SH513")
    assert 35 <= waited <= 41
    assert world.lives_in == "u1"
    assert not any("fence" in str(order) for order in world.orders), "it was never touched"


class Lead:
    """Leads until the engine has said so much to the API server; it may stand still for as long as it likes after each word."""

    lost = Problem(code="SH551", what="another engine leads", remedy="none")

    def __init__(self, holds: Callable[[], bool]) -> None:
        self.held = holds


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_that_leads_no_more_says_nothing_to_the_server(worlds: Callable[[], PodWorld], kind: OperationKind) -> None:
    """The next one may have the same pods in hand, and another operation on the worker by then."""
    for at in itertools.count(1):
        world = await begun(worlds, kind)
        lead: Any = Lead(lambda world=world, at=at: world.places.calls < at)
        parts = msgspec.structs.replace(world.parts(), lead=lead)
        try:
            await Executor(parts, world.epoch()).start(world.plan(kind), PLAN)
        except Stalled:
            assert world.places.calls == at
        if world.places.calls < at:
            assert at > 2
            return
        assert world.places.calls == at


@pytest.mark.parametrize("kind", [MOVE, PARK, DRAIN])
async def test_what_an_agent_says_has_no_pod_of_another_node_deleted(worlds: Callable[[], PodWorld], kind: OperationKind) -> None:
    world = worlds()
    world.in_pods["a"] = others = world.places.add("b")
    record = await carry(world, kind)
    assert record is not None
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.code) == (Status.ROLLED_BACK, "SH564")
    assert set(world.places.pods) == {"u1", others}
