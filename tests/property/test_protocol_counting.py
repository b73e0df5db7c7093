"""Operations that change how many workers pools are kept at: a model of whoever keeps them, with deaths and refusals at every point.

Whatever happens, in the end the numbers are those of the workers: one less where it has left, one more where it has come, and as before
where nothing came of it.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fleet_in_memory import PLAN, SPEC, Crash, CrashingStore, MemoryAgent, World
from shunter.act.execute import Executor
from shunter.act.run import Times
from shunter.model.errors import Problem, Rejected, Retry, Unknown
from shunter.model.ids import Epoch, ImageId, NodeId, PoolId, SlotId
from shunter.model.operation import OperationRecord, Status
from shunter.model.plan import OperationKind
from shunter.model.pod import Pod, Resident
from shunter.wire import agent_pb2 as pb

LEFT = Pod(namespace="ns", name="w", uid="u")


class Dynamo:
    """Whoever keeps pools at a number. `faults` by the number of the call (from 1): `refuse`, `lost` (done, and no answer), `crash`,
    `crash-after`.
    """

    def __init__(self, world: World, faults: dict[int, str] | None = None) -> None:
        self.world, self.faults = world, faults or {}
        self.changed: dict[str, str] = {}
        self.calls: list[str] = []
        self.alive_at_change: list[bool] = []
        self.looked_ahead: list[PoolId | None] = []

    def _befall(self, call: str, effect: str = "") -> None:
        self.calls.append(call)
        fault = self.faults.get(len(self.calls), "")
        if fault == "crash":
            raise Crash
        if fault == "refuse":
            raise Rejected(Problem(code="SH275", what="the quota is 3 workers", remedy=""))
        if effect:
            operation, _, what = effect.partition("=")
            assert (what != "done") or self.changed.get(operation) != "undone", "what was taken back isn't done again"
            if what == "done" or operation in self.changed:
                self.changed[operation] = what
        if fault == "crash-after":
            raise Crash
        if fault == "lost":
            raise Unknown(Problem(code="SH251", what="no answer", remedy=""))

    async def check(self, record: OperationRecord, left: Pod | None, then: PoolId | None) -> None:
        self.looked_ahead.append(then)
        self._befall("check")

    async def change(self, record: OperationRecord, may: Callable[[], None]) -> None:
        may()
        agents = self.world.agents.values()
        self.alive_at_change.append(any(a.copy is not None and a.copy.state in ("running", "frozen") for a in agents))
        self._befall("change", f"{record.id}=done")

    async def take_back(self, record: OperationRecord, may: Callable[[], None]) -> None:
        may()
        self._befall("take back", f"{record.id}=undone")

    def counts(self, operation: str) -> bool:
        """The number is one that the operation made it."""
        return self.changed.get(operation) == "done"


class Pods:
    """Pods that are always there."""

    async def prepare(self, record: OperationRecord, slot: SlotId, left: Pod | None, who: Resident, may_go_on: object) -> Pod | None:
        return Pod(namespace="ns", name="new", uid="n")

    def strange(self, pod: Pod, node: NodeId) -> str:
        return ""

    async def keep(self, record: OperationRecord, pod: Pod) -> None: ...

    async def remember(self, record: OperationRecord, pod: Pod) -> None: ...

    async def show(self, pod: Pod, *, shown: bool) -> None: ...

    async def retire(self, pod: Pod) -> None: ...

    async def withdraw(self, record: OperationRecord) -> None: ...


def live_in_pods(agent: MemoryAgent) -> None:
    """Its workers live in a pod, and it says so."""

    def row(state: str) -> pb.WorkerReport:
        return pb.WorkerReport(spec=SPEC, state=state, pod_namespace=LEFT.namespace, pod_name=LEFT.name, pod_uid=LEFT.uid)

    agent.row = row  # type: ignore[method-assign]


def world(tmp_path: Path, kind: OperationKind) -> World:
    made = World(CrashingStore(tmp_path / "engine.db"))
    for agent in made.agents.values():
        live_in_pods(agent)
    made.drained = kind is OperationKind.DRAIN
    if kind is OperationKind.RESTORE:
        made.agents[NodeId("a")].copy = None
        made.agents[NodeId("a")].images.add(ImageId("parked"))
    return made


def executor(world: World, dynamo: Dynamo, epoch: int) -> Executor:
    return Executor(msgspec.structs.replace(world.parts(), places=Pods(), replicas=dynamo), Epoch(epoch))  # type: ignore[arg-type]


async def carried(world: World, dynamo: Dynamo, kind: OperationKind, cause: str = "shift:p:1") -> OperationRecord:
    """Until it has ended, over as many engines as it takes."""
    planned = world.plan(kind, cause=cause, pool=PoolId("g/decode"))
    try:
        return await executor(world, dynamo, world.epoch()).start(planned, PLAN)
    except Crash:
        pass
    for _ in range(5):
        active = world.store.active()
        if not active:
            break
        epoch = world.epoch()
        world.store.adopt(epoch)
        try:
            await executor(world, dynamo, epoch).resume(world.store.active()[0])
        except Crash:
            continue
    record = world.store.get(planned.id)
    assert record is not None
    return record


KINDS = (OperationKind.PARK, OperationKind.DRAIN, OperationKind.RESTORE)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_asked_before_anything_is_touched_and_counted_once(tmp_path: Path, kind: OperationKind) -> None:
    found = world(tmp_path, kind)
    dynamo = Dynamo(found)
    record = asyncio.run(carried(found, dynamo, kind))
    assert record.status is Status.SUCCEEDED
    assert dynamo.calls == ["check", "change"]
    assert dynamo.counts(record.id)


def test_a_worker_is_counted_out_while_it_still_can_run_on(tmp_path: Path) -> None:
    found = world(tmp_path, OperationKind.PARK)
    dynamo = Dynamo(found)
    asyncio.run(carried(found, dynamo, OperationKind.PARK))
    assert dynamo.alive_at_change == [True], "it stands still, and nothing has ended it"


def test_and_one_that_comes_is_counted_in_before_it_runs(tmp_path: Path) -> None:
    found = world(tmp_path, OperationKind.RESTORE)
    dynamo = Dynamo(found)
    asyncio.run(carried(found, dynamo, OperationKind.RESTORE))
    assert dynamo.alive_at_change == [False]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_beforehand_leaves_everything_as_it_was(tmp_path: Path, kind: OperationKind) -> None:
    found = world(tmp_path, kind)
    dynamo = Dynamo(found, {1: "refuse"})
    record = asyncio.run(carried(found, dynamo, kind))
    assert record.outcome is not None
    assert (record.outcome.code, record.outcome.reason) == ("SH275", "the quota is 3 workers")
    assert not [step for _, step in found.orders if step in ("fence", "freeze", "restore", "drain")]
    assert not dynamo.changed


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_at_the_commit_goes_back_and_says_why(tmp_path: Path, kind: OperationKind) -> None:
    found = world(tmp_path, kind)
    dynamo = Dynamo(found, {2: "refuse"})
    record = asyncio.run(carried(found, dynamo, kind))
    assert record.outcome is not None
    assert "the quota is 3 workers" in record.outcome.reason
    assert not dynamo.counts(record.id)
    if kind is OperationKind.PARK:
        assert record.status is Status.ROLLED_BACK
        assert found.home() == "a", "it runs on where it was"
        assert not found.fenced()
    if kind is OperationKind.RESTORE:
        assert record.status is Status.FAILED
        assert record.outcome.image == "parked", "it is in its image, as before"


@pytest.mark.parametrize("fault", ["crash", "crash-after", "lost"])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_the_workers_whatever_dies_when(tmp_path: Path, kind: OperationKind, at: int, fault: str) -> None:
    found = world(tmp_path, kind)
    dynamo = Dynamo(found, {at: fault})
    record = asyncio.run(carried(found, dynamo, kind))
    assert record.outcome is not None, "nobody finished it"
    assert dynamo.counts(record.id) == (record.status is Status.SUCCEEDED)


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_dies_at_each_change_of_its_own_store(tmp_path: Path, kind: OperationKind) -> None:
    for at in range(1, 9):
        for after in (False, True):
            folder = tmp_path / f"{at}{after}"
            folder.mkdir()
            found = world(folder, kind)
            found.store.crash_at, found.store.after = at, after
            dynamo = Dynamo(found)
            try:
                record = asyncio.run(carried(found, dynamo, kind))
            except AssertionError:
                assert not dynamo.changed, "its intent wasn't durable, and nothing was changed"
                continue
            assert dynamo.counts(record.id) == (record.status is Status.SUCCEEDED), f"died at change {at}"


@pytest.mark.parametrize(("kind", "status"), [(OperationKind.PARK, Status.ROLLED_BACK), (OperationKind.RESTORE, Status.FAILED)])
def test_what_was_counted_is_counted_back_when_the_agents_go_back(tmp_path: Path, kind: OperationKind, status: Status) -> None:
    found = world(tmp_path, kind)
    found.named = {("a", "release"): ["refuse"]}
    found.healthy = kind is OperationKind.PARK
    dynamo = Dynamo(found)
    record = asyncio.run(carried(found, dynamo, kind))
    assert record.status is status
    assert dynamo.calls == ["check", "change", "take back"]
    assert not dynamo.counts(record.id)


@pytest.mark.parametrize("kind", [OperationKind.PARK, OperationKind.DRAIN])
def test_what_a_dying_node_drives_out_is_still_wanted(tmp_path: Path, kind: OperationKind) -> None:
    for number, (cause, lane) in enumerate((("notice:n", "involuntary"), ("every:1", "voluntary"), ("shift:p:1", "involuntary"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = world(folder, kind)
        dynamo = Dynamo(found)
        planned = found.plan(kind, lane=lane, cause=cause)
        asyncio.run(executor(found, dynamo, found.epoch()).start(planned, PLAN))
        assert dynamo.calls == []


def test_what_comes_behind_it_is_looked_at_beforehand(tmp_path: Path) -> None:
    """A park whose slot goes to another pool asks for both numbers: where that can't have one more, the worker stays where it is."""
    found = world(tmp_path, OperationKind.PARK)
    dynamo = Dynamo(found, {1: "refuse"})
    park = found.plan(OperationKind.PARK, cause="shift:p:1", pool=PoolId("g/decode"))
    comes = found.plan(OperationKind.RESTORE, 1, cause="shift:p:1", pool=PoolId("g/prefill"), after=(park.id,))
    run = executor(found, dynamo, found.epoch())
    asyncio.run(run.carry(run.intend(park, PLAN, [comes])))
    assert dynamo.looked_ahead == [PoolId("g/prefill")]


class Slow(Dynamo):
    """One that answers nothing while a copy stands still, and notes in which state it finds it when it is to take everything back."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.thawed: list[str] = []

    async def change(self, record: OperationRecord, may: Callable[[], None]) -> None:
        self._befall("change", f"{record.id}=done")
        await asyncio.Event().wait()

    async def take_back(self, record: OperationRecord, may: Callable[[], None]) -> None:
        copy = self.world.agents[NodeId("a")].copy
        self.thawed.append(copy.state if copy is not None else "none")
        await super().take_back(record, may)


@pytest.mark.parametrize(("kind", "status"), [(OperationKind.PARK, Status.ROLLED_BACK), (OperationKind.RESTORE, Status.FAILED)])
def test_nobody_stands_still_for_longer_than_its_hold_because_numbers_change_slowly(
    tmp_path: Path, kind: OperationKind, status: Status
) -> None:
    found = world(tmp_path, kind)
    slow = Slow(found)
    planned = found.plan(kind, cause="shift:p:1", pool=PoolId("g/decode"))
    parts = msgspec.structs.replace(found.parts(), places=Pods(), replicas=slow, times=Times(hold=0.2))  # type: ignore[arg-type]
    record = asyncio.run(asyncio.wait_for(Executor(parts, found.epoch()).start(planned, PLAN), 20))
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (status, "SH529")
    assert not slow.counts(record.id)
    if kind is OperationKind.PARK:
        assert slow.thawed == ["running"], "it runs on before it is waited for that again"
        assert not found.fenced()


def test_numbers_are_written_early_in_a_hold_or_not_at_all(tmp_path: Path) -> None:
    """An engine that takes a park up late finds a worker that may run on at any moment: its pod isn't made to go any more."""
    found = world(tmp_path, OperationKind.PARK)
    dynamo = Dynamo(found, {2: "crash"})
    planned = found.plan(OperationKind.PARK, cause="shift:p:1", pool=PoolId("g/decode"))
    with pytest.raises(Crash):
        asyncio.run(executor(found, dynamo, found.epoch()).start(planned, PLAN))
    epoch = found.epoch()
    found.store.adopt(epoch)
    found.now += 0.6 * Times().hold
    record = asyncio.run(executor(found, dynamo, epoch).resume(found.store.active()[0]))
    assert (record.status, record.outcome and record.outcome.code) == (Status.ROLLED_BACK, "SH529")
    assert dynamo.calls.count("change") == 1
    assert found.home() == "a"


class Sight:
    """Routers that find the worker by its pod, for as long as `shown` says."""

    def __init__(self, shown: bool) -> None:
        self.shown, self.asked = shown, 0

    async def unseen(self, pod: Pod) -> None:
        self.asked += 1
        if self.shown:
            raise Retry(Problem(code="SH279", what="it is ready still", remedy=""))


@pytest.mark.parametrize("kind", [OperationKind.PARK, OperationKind.MOVE])
@pytest.mark.parametrize(("shown", "lane"), [(True, "voluntary"), (False, "voluntary"), (True, "involuntary")])
def test_nobody_is_frozen_in_sight_of_routers_unless_the_node_goes(tmp_path: Path, kind: OperationKind, shown: bool, lane: str) -> None:
    found, sight = world(tmp_path, kind), Sight(shown)
    parts = msgspec.structs.replace(found.parts(), places=Pods(), router=sight)  # type: ignore[arg-type]
    record = asyncio.run(Executor(parts, found.epoch()).start(found.plan(kind, lane=lane), PLAN))
    frozen = [node for node, step in found.orders if step == "freeze"]
    if shown and lane == "voluntary":
        assert (record.status, record.outcome and record.outcome.code, frozen) == (Status.ROLLED_BACK, "SH279", [])
        assert found.home() == "a"
        assert not found.fenced(), "and it is put back"
    else:
        assert (record.status, frozen) == (Status.SUCCEEDED, ["a"])
    assert sight.asked == (lane == "voluntary")
