"""The engine's loops when the audit takes no writes: they go on, and nothing is left out of it in the end."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from shunter.act.lease import Lease
from shunter.act.store import Store
from shunter.app import leading
from shunter.app.degraded import Watch, condition
from shunter.app.engine import Engine
from shunter.app.leading import Leading
from shunter.app.policies import PolicyFeed
from shunter.app.room import Room, suiting
from shunter.app.settings import AgentSettings, PoliciesSettings, PrometheusSettings, Settings, TlsSettings
from shunter.app.sightings import series
from shunter.app.sources import source_of
from shunter.audit import trail as trails
from shunter.audit.head import Head
from shunter.audit.journal import Journal
from shunter.audit.trail import Trail
from shunter.model.errors import Problem, Stalled
from shunter.model.expression import Expression, Scope, Undecided
from shunter.model.finding import Finding, Verdict
from shunter.model.ids import Commit, Digest, Incarnation, NodeId, NoticeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status
from shunter.model.plan import Estimate, Evaluation, OperationKind, Plan, PlannedOperation, Preconditions
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet, Node, Notice, NoticeKind, Samples, Slot, Worker, WorkerState
from shunter.model.units import Duration
from shunter.observe.inventory import Inventory

POLICY = """apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: images}
spec: {workers: {all: true}, every: 5m}
"""
FULL = Problem(code="SH901", what="the disk that holds the audit is full", remedy="Free some space")


class Filling:
    """A journal on a disk that is full for a number of writes."""

    def __init__(self, journal: Journal, refused: int) -> None:
        self.journal, self.refused = journal, refused

    @property
    def last(self) -> Head:
        return self.journal.last

    def append(self, records: Sequence[Record]) -> object:
        self.refused -= 1
        if self.refused >= 0:
            raise Stalled(FULL)
        return self.journal.append(records)

    def catch_up(self) -> None:
        self.journal.catch_up()


def settings(folder: Path) -> Settings:
    (folder / "policies").mkdir()
    (folder / "policies" / "images.yaml").write_text(POLICY)
    return Settings(
        state=folder,
        policies=PoliciesSettings(directory=folder / "policies", poll=Duration(0.01)),
        prometheus=PrometheusSettings(url="http://127.0.0.1:9"),
        tls=TlsSettings(ca=folder, cert=folder, key=folder),
        agents=(AgentSettings(node="node-a", address="127.0.0.1:9"),),
    )


class Stage:
    """A leading engine on real files, whose journal refuses some writes."""

    def __init__(self, folder: Path, store: Store, lease: Lease, journal: Journal, refused: int) -> None:
        given = settings(folder)
        self.told: list[Problem] = []
        self.journal, self.filling = journal, Filling(journal, refused)
        feed = PolicyFeed(source_of(given.policies, folder), lambda: 100.0)
        self.engine = Engine(given, feed, clock=lambda: 100.0, on_problem=self.told.append)
        trail = Trail(self.filling, lambda: 100.0)
        room = Room(folder, (), suiting(folder))
        watch = Watch(store, trail, room, folder, lambda: 100.0)
        self.leading = Leading(self.engine, store, lease, trail, watch, {}, None)  # type: ignore[arg-type]

    def recorded(self, kind: RecordKind) -> list[Record]:
        return [sealed.record for sealed in self.journal.list(kind=kind, limit=None)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[[int], Stage]]:
    with (
        closing(Store(tmp_path / "engine.db")) as store,
        Lease(tmp_path / "engine.lock", store) as lease,
        Journal(tmp_path / "a.db") as journal,
    ):
        yield lambda refused: Stage(tmp_path, store, lease, journal, refused)


@pytest.mark.parametrize("refused", [0, 3])
async def test_policies_are_followed_and_recorded_once_when_the_audit_takes_writes_again(
    stage: Callable[[int], Stage], refused: int
) -> None:
    s = stage(refused)
    following = asyncio.create_task(s.leading.following.run())

    async def until_recorded() -> None:
        while not s.recorded(RecordKind.POLICIES):
            await asyncio.wait([following], timeout=0.01)
            assert not following.done(), following.exception()
            s.leading.check_disk()

    try:
        await asyncio.wait_for(until_recorded(), 10)
        for _ in range(3):  # further polls add nothing
            await s.leading.following.once()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert [record.body["policies"] for record in s.recorded(RecordKind.POLICIES)] == [["images"]]
    assert [problem.code for problem in s.told] == (["SH532"] if refused else [])


class Noticed:
    """A world with one node, of which it is said that it goes."""

    unreachable: ClassVar[dict[str, Problem]] = {}
    notice = Notice(id=NoticeId("n1"), kind=NoticeKind.PREEMPTION, node=NodeId("node-a"), seen_at=99.0)

    async def look(self, _memory: object, _now: float) -> Inventory:
        fleet = Fleet(nodes=(Node(id=NodeId("node-a"), slots=()),))
        return Inventory(fleet=fleet, notices=(self.notice,), problems=())


async def test_a_notice_and_a_source_that_went_away_are_recorded_once_however_often_the_audit_refused(
    stage: Callable[[int], Stage],
) -> None:
    s = stage(2)
    away = Problem(code="SH203", what="the remote didn't answer", remedy="Check it")
    s.leading.sight.world = Noticed()  # type: ignore[assignment]
    await s.leading.sight.look(100.0)
    s.leading.voice.tell_or_clear("policies", away)
    assert s.recorded(RecordKind.NOTICE) == []
    for _ in range(3):
        s.leading.check_disk()
        await s.leading.sight.look(101.0)
        s.leading.voice.tell_or_clear("policies", away)
    assert [r.body["notice"]["id"] for r in s.recorded(RecordKind.NOTICE)] == ["n1"]  # type: ignore[index]
    assert [r.what for r in s.recorded(RecordKind.SOURCE) if r.subject == "policies"] == ["the remote didn't answer"]
    assert all("spooled" in s.recorded(kind)[0].body for kind in (RecordKind.NOTICE, RecordKind.SOURCE))
    assert s.journal.verify().ok


class Cancelled(Noticed):
    """What was announced doesn't happen."""

    async def look(self, _memory: object, _now: float) -> Inventory:
        return Inventory(fleet=Fleet(nodes=(Node(id=NodeId("node-a"), slots=()),)), notices=(), problems=())


async def test_a_notice_that_is_withdrawn_is_recorded_once(stage: Callable[[int], Stage]) -> None:
    s = stage(0)
    for at, world in ((100.0, Noticed()), (101.0, Cancelled()), (102.0, Cancelled())):
        s.leading.sight.world = world  # type: ignore[assignment]
        await s.leading.sight.look(at)
    assert [(r.what, list(r.body)) for r in s.recorded(RecordKind.NOTICE)] == [
        ("preemption of node-a", ["notice"]),
        ("preemption of node-a is open no more", ["withdrawn"]),
    ]
    assert s.leading.duty.scene.notices == ()


class Ailing(Noticed):
    """What is wrong with what the node listens to."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__()
        self.node = Node(id=NodeId("node-a"), slots=(), problems=problems)

    async def look(self, _memory: object, _now: float) -> Inventory:
        return Inventory(fleet=Fleet(nodes=(self.node,)), notices=(), problems=())


async def test_what_has_been_wrong_with_a_node_for_long_hides_nothing_that_comes(stage: Callable[[int], Stage]) -> None:
    s = stage(0)
    pod = Problem(code="SH658", what="a pod tolerates the drain", remedy="Take it off", subject="node-a/0")
    blind = Problem(code="SH645", what="aws is blind", remedy="Check it", subject="aws")
    for problems in ((pod,), (pod, blind), (pod, msgspec.structs.replace(blind, what="aws is blind, still")), (pod,), ()):
        s.leading.sight.world = Ailing(*problems)  # type: ignore[assignment]
        await s.leading.sight.look(100.0)
    assert [problem.code for problem in s.told] == ["SH658", "SH645"]
    said = [(r.subject, r.what) for r in s.recorded(RecordKind.SOURCE) if r.subject == "notices node-a"]
    assert [what for _, what in said] == ["a pod tolerates the drain", "aws is blind", "SH645 aws is over", "is back"]


async def test_a_disk_that_takes_no_writes_is_told_shown_and_closes_the_gate(stage: Callable[[int], Stage]) -> None:
    s = stage(10**6)
    s.leading.voice.record(RecordKind.ENGINE, "engine", "leads")
    s.leading.check_disk()
    assert [problem.code for problem in s.told] == ["SH532"]
    assert not s.leading.store.probe()
    shown = condition(s.engine.settings.state, 100.0)
    assert shown is not None
    assert (shown.problem.code, shown.since, shown.records) == ("SH532", 100.0, 1)
    assert "1970-01-01 00:01:40 UTC the disk that holds the audit is full" in shown.problem.what
    assert "SH532" in (s.engine.health.degraded or "")
    metric = s.engine.metrics.registry.get_sample_value
    assert metric("shunter_degraded", {"on": "memory"}) == 1.0
    assert metric("shunter_unwritten", {"what": "records"}) == 1.0
    s.filling.refused = 0
    s.leading.check_disk()
    assert s.leading.store.probe()
    assert condition(s.engine.settings.state, 100.0) is None
    assert metric("shunter_degraded", {"on": "memory"}) == 0.0
    assert [(r.subject, r.what) for r in s.recorded(RecordKind.SOURCE)][-1] == ("engine's disk", "is back")


async def test_findings_are_not_observed_while_too_many_records_wait(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stage(10**6)
    monkeypatch.setattr(trails, "CROWDED", 1)
    finding = Finding(policy=PolicyName("p"), subject="w", lane="voluntary", verdict=Verdict.HOLD, gate="window", reason="closed")
    plan = Plan(at=100.0, commit=Commit("c"), policy_set=Digest("s"), snapshot=Digest("t"))
    evaluation = Evaluation(findings=(finding,), plan=plan)
    monkeypatch.setattr(leading, "evaluate", lambda *_: evaluation)
    s.leading.sight.world = Serving()  # type: ignore[assignment]
    await s.leading.following.once()
    s.leading.voice.record(RecordKind.ENGINE, "engine", "leads")
    await s.leading.tick(100.0)
    s.filling.refused = 0
    assert s.leading.trail.retry()
    assert s.recorded(RecordKind.FINDING) == s.recorded(RecordKind.PLAN) == []
    await s.leading.tick(101.0)
    assert [r.subject for r in s.recorded(RecordKind.FINDING)] == ["w"], "it isn't left out, only later"


class Serving(Noticed):
    """A world with one worker without an image, so that there is a checkpoint to take, which is voluntary."""

    def __init__(self) -> None:
        self.looks = 0
        self.memory = 0
        self.incarnation = 0

    async def look(self, _memory: object, now: float) -> Inventory:
        self.looks += 1
        slot = Slot(id=SlotId("node-a/0"), worker=WorkerId("w"))
        worker = Worker(
            id=WorkerId("w"),
            role="decode",
            graph="g",
            engine="e",
            state=WorkerState.RUNNING,
            node=NodeId("node-a"),
            slot=slot.id,
            incarnation=Incarnation(self.incarnation),
            memory=2**20 + self.looks,
        )
        fleet = Fleet(nodes=(Node(id=NodeId("node-a"), slots=(slot,), seen_at=now),), workers=(worker,))
        return Inventory(fleet=fleet, notices=(), problems=())

    async def measure(self, *_: object, **__: object) -> Samples:
        return Samples()


async def test_while_the_disk_is_full_no_plan_that_could_wait_is_offered_and_the_fleet_is_saved_only_when_a_place_changes(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stage(0)
    world = Serving()
    s.leading.sight.world = world  # type: ignore[assignment]
    await s.leading.following.once()
    offered: list[Plan] = []
    saved: list[float] = []
    monkeypatch.setattr(s.leading.scheduler, "offer", lambda plan, **_: offered.append(plan))
    monkeypatch.setattr(s.leading.store, "save_fleet", lambda _fleet, _notices, at, _packed, **_: saved.append(at))
    await s.leading.tick(100.0)
    assert [o.kind for o in offered[-1].operations] == [OperationKind.CHECKPOINT]
    with monkeypatch.context() as full:
        full.setattr(Room, "missing", lambda _self: "No space left on device")
        await s.leading.tick(101.0)
        assert offered[-1].operations == ()
        world.incarnation = 1
        await s.leading.tick(102.0)
        await s.leading.tick(103.0)
    assert saved == [100.0, 102.0]
    await s.leading.tick(104.0)
    assert saved == [100.0, 102.0], "what was measured of it can wait"
    await s.leading.tick(132.0)
    assert saved == [100.0, 102.0, 132.0]
    assert [o.kind for o in offered[-1].operations] == [OperationKind.CHECKPOINT]


class Leaving(Serving):
    """Its node is going, and no other has a slot. Before its metrics come the second time, its worker was parked."""

    def __init__(self) -> None:
        super().__init__()
        self.parked: Callable[[], None] = lambda: None

    async def look(self, memory: object, now: float) -> Inventory:
        seen = await super().look(memory, now)
        nodes = (*seen.fleet.nodes, Node(id=NodeId("node-b"), slots=(), seen_at=now))
        notice = Notice(id=NoticeId("n1"), kind=NoticeKind.PREEMPTION, node=NodeId("node-a"), seen_at=99.0, deadline=400.0)
        return Inventory(fleet=msgspec.structs.replace(seen.fleet, nodes=nodes), notices=(notice,), problems=())

    async def measure(self, *_: object, **__: object) -> Samples:
        if self.looks == 2:
            self.parked()
        return Samples()


async def test_what_was_parked_after_the_look_isnt_parked_again(stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    s = stage(0)
    save = POLICY.replace("CheckpointPolicy", "PreemptionPolicy").replace("every: 5m", "notices: [preemption]")
    (s.engine.settings.state / "policies" / "images.yaml").write_text(save)
    s.leading.sight.world = world = Leaving()  # type: ignore[assignment]
    await s.leading.following.once()
    offered: list[Plan] = []
    monkeypatch.setattr(s.leading.scheduler, "offer", lambda plan, **_: offered.append(plan))
    await s.leading.tick(100.0)
    (park,) = offered[-1].operations
    assert park.kind is OperationKind.PARK
    s.leading.store.insert([OperationRecord(planned=park, plan=offered[-1].digest, epoch=s.leading.epoch, created_at=100.0)])
    world.parked = lambda: s.leading._progress(s.leading.store.finish(park.id, Outcome(status=Status.SUCCEEDED, at=101.0)))
    await s.leading.tick(101.0)
    assert world.looks == 2
    assert offered[-1].operations == ()
    await s.leading.tick(102.0)
    (again,) = offered[-1].operations
    assert (again.kind, again.id == park.id) == (OperationKind.PARK, False), "a look that began later says that it is there"


async def test_a_newer_commit_gives_up_what_it_doesnt_want_once(stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    s = stage(0)
    await s.leading.following.once()
    first = s.engine.feed.current
    assert first is not None
    given_up: list[tuple[str, str]] = []
    monkeypatch.setattr(s.leading.scheduler, "cancel", lambda operation, because: given_up.append((operation, because)))
    s.leading.take_back(first)
    planned = PlannedOperation(
        id=OperationId("checkpoint-1"),
        kind=OperationKind.CHECKPOINT,
        worker=WorkerId("w"),
        lane="voluntary",
        policy=PolicyName("images"),
        reason="",
        expect=Preconditions(incarnation=Incarnation(0)),
    )
    s.leading.store.insert([OperationRecord(planned=planned, plan=Digest("p"), epoch=s.leading.epoch, created_at=100.0)])
    s.leading.take_back(first)
    assert given_up == []
    newer = msgspec.structs.replace(first, commit=Commit("b" * 40), policies=())
    s.leading.take_back(newer)
    s.leading.take_back(newer)
    assert given_up == [("checkpoint-1", "commit bbbbbbbbbbbb has no policy images")]


async def test_what_cant_be_given_up_keeps_nothing_from_being_decided_and_is_tried_again(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stage(0)
    s.leading.sight.world = Serving()  # type: ignore[assignment]
    await s.leading.following.once()
    first = s.engine.feed.current
    assert first is not None
    s.leading.take_back(first)
    planned = PlannedOperation(
        id=OperationId("move-1"),
        kind=OperationKind.MOVE,
        worker=WorkerId("v"),
        lane="voluntary",
        policy=PolicyName("gone"),
        reason="",
        expect=Preconditions(incarnation=Incarnation(0)),
    )
    s.leading.store.insert([OperationRecord(planned=planned, plan=Digest("p"), epoch=s.leading.epoch, created_at=100.0)])
    s.engine.feed.current = msgspec.structs.replace(first, commit=Commit("b" * 40))
    asked: list[str] = []
    offered: list[Plan] = []
    refuse = True

    def cancel(operation: OperationId, because: str) -> bool:
        asked.append(because)
        if refuse:
            raise Stalled(FULL)
        return True

    monkeypatch.setattr(s.leading.scheduler, "cancel", cancel)
    monkeypatch.setattr(s.leading.scheduler, "offer", lambda plan, **_: offered.append(plan))
    for now in (100.0, 101.0, 102.0):
        await s.leading.tick(now)
    assert len(offered) == 3
    assert [p.code for p in s.told if p == FULL] == ["SH901"], "told once"
    refuse = False
    for now in (103.0, 104.0):
        await s.leading.tick(now)
    assert asked == ["commit bbbbbbbbbbbb has no policy gone"] * 4


async def test_each_tick_looks_for_workers_that_are_fenced_for_no_reason(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stage(0)
    s.leading.sight.world = Serving()  # type: ignore[assignment]
    looked: list[tuple[list[str], int, float]] = []
    monkeypatch.setattr(
        s.leading.unfencing, "look", lambda fleet, notices, now: looked.append(([w.id for w in fleet.workers], len(notices), now))
    )
    for now in (100.0, 101.0):
        await s.leading.tick(now)
    assert looked == [(["w"], 0, 100.0), (["w"], 0, 101.0)]


async def test_what_fleet_is_decided_on_is_kept_for_previews(stage: Callable[[int], Stage], tmp_path: Path) -> None:
    s = stage(0)
    await s.leading.following.once()
    for at in (100.0, 101.0):
        await s.leading.tick(at)
    assert series(tmp_path, 100.0, 101.0, 1.0).during(100.0, 101.0) == (0,)
    assert series(tmp_path, 0.0, 101.0, 1.0).during(80.0, 101.0) is None
    s.leading.sightings.close()


class Going(Serving):
    """The node goes; another has room."""

    async def look(self, memory: object, now: float) -> Inventory:
        found = await super().look(memory, now)
        node = Node(id=NodeId("node-b"), slots=(Slot(id=SlotId("node-b/0")),), seen_at=now)
        notice = Notice(id=NoticeId("n"), kind=NoticeKind.PREEMPTION, node=NodeId("node-a"), seen_at=now, deadline=now + 600)
        fleet = msgspec.structs.replace(found.fleet, nodes=(*found.fleet.nodes, node))
        return Inventory(fleet=fleet, notices=(notice,), problems=())


SAVING = """apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {all: true}, notices: [preemption], reserve: 5s}
"""


@pytest.mark.parametrize(("hurries", "kinds"), [(False, []), (True, [OperationKind.MOVE])])
async def test_one_that_carries_out_a_plan_answers_a_notice_that_comes_meanwhile_and_plans_nothing_else(
    stage: Callable[[int], Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurries: bool, kinds: list[OperationKind]
) -> None:
    s = stage(0)
    (tmp_path / "policies" / "save.yaml").write_text(SAVING)
    s.engine.decides, s.engine.hurries = False, hurries
    offered: list[Plan] = []
    monkeypatch.setattr(s.leading.scheduler, "offer", lambda plan, **_: offered.append(plan))
    await s.leading.following.once()
    for at, world in ((100.0, Serving()), (101.0, Going())):
        s.leading.sight.world = world  # type: ignore[assignment]
        await s.leading.tick(at)
    for plan in offered:
        assert [o.kind for o in plan.operations] == kinds, "no checkpoint, and the move if it is to hurry"
    assert len({o.id for plan in offered for o in plan.operations}) == len(kinds), "at once, and by the tick, that isn't told"
    assert bool(s.recorded(RecordKind.PLAN)) == bool(kinds), "what isn't done isn't recorded as planned"
    s.leading.sightings.close()


async def test_a_notice_gives_up_what_it_has_overtaken_and_a_full_disk_keeps_nothing_from_being_decided(
    stage: Callable[[int], Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stage(0)
    (tmp_path / "policies" / "save.yaml").write_text(SAVING)
    await s.leading.following.once()
    planned = PlannedOperation(
        id=OperationId("move-w"),
        kind=OperationKind.MOVE,
        worker=WorkerId("w"),
        lane="voluntary",
        policy=PolicyName("images"),
        reason="",
        expect=Preconditions(incarnation=Incarnation(0)),
        from_slot=SlotId("node-a/0"),
        to_slot=SlotId("node-b/0"),
        estimate=Estimate(stopped=700.0),
    )
    s.leading.store.insert([OperationRecord(planned=planned, plan=Digest("p"), epoch=s.leading.epoch, created_at=99.0)])
    asked: list[str] = []
    offered: list[Plan] = []

    def cancel(operation: OperationId, because: str) -> bool:
        asked.append(f"{operation}: {because}")
        raise Stalled(FULL)

    monkeypatch.setattr(s.leading.scheduler, "cancel", cancel)
    monkeypatch.setattr(s.leading.scheduler, "offer", lambda plan, **_: offered.append(plan))
    for at, world in ((100.0, Serving()), (101.0, Going())):
        s.leading.sight.world = world  # type: ignore[assignment]
        await s.leading.tick(at)
    assert asked == ["move-w: it would end 100 s after the deadline of preemption of node-a"]
    assert len(offered) == 2
    s.leading.sightings.close()


async def test_each_tick_looks_for_what_was_left_reserved_and_for_what_was_left_fenced(stage: Callable[[int], Stage]) -> None:
    """What these two do is tested with them; here, that they are asked at all, with the fleet as it is."""
    s = stage(0)
    s.leading.sight.world = Noticed()  # type: ignore[assignment]
    freed: list[Fleet] = []
    fenced: list[Fleet] = []
    s.leading.freeing.look = freed.append  # type: ignore[method-assign]
    s.leading.unfencing.look = lambda fleet, _notices, _now: fenced.append(fleet)  # type: ignore[method-assign]
    await s.leading.tick(100.0)
    assert freed == fenced == [s.engine.scene.fleet]


async def test_a_condition_is_asked_once_of_each_snapshot_however_many_ticks_look_back_at_it(
    stage: Callable[[int], Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s, asked = stage(0), list[float]()
    (tmp_path / "policies" / "images.yaml").write_text(
        "apiVersion: shunter.dev/v1alpha1\nkind: ReassignmentPolicy\nmetadata: {name: relieve}\n"
        "spec: {workers: {all: true}, from: decode, to: prefill, when: pools.decode.workers > 0, for: 1m}\n"
    )
    real = s.engine.rules.test

    def test(expression: Expression, scope: Scope) -> bool | Undecided:
        if expression.text == "pools.decode.workers > 0":
            now = scope["now"]
            assert isinstance(now, float)
            asked.append(now)
        return real(expression, scope)

    monkeypatch.setattr(s.engine.rules, "test", test)
    await s.leading.following.once()
    s.leading.sight.world = Serving()  # type: ignore[assignment]
    ticks = [100.0 + n for n in range(6)]
    for at in ticks:
        await s.leading.tick(at)
    once_old = [asked.count(at) for at in ticks[1:-1]]
    assert once_old == [once_old[0]] * 4, "the older one is, the more ticks have looked back at it"
    assert once_old[0] > 0
    s.leading.sightings.close()


class Pods:
    """Workers in pods, of which the cluster has confirmed nothing for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def overdue(self) -> float:
        return self.seconds


async def test_an_engine_that_hears_of_no_pods_is_not_ready_though_agents_answer(stage: Callable[[int], Stage]) -> None:
    s = stage(0)
    s.leading.sight.looked_at = s.leading.sight.measured_at = 99.0
    late = []
    for seconds in (0.0, 200.0):
        s.leading.housed = Pods(seconds)  # type: ignore[assignment]
        s.leading._ages(100.0)
        late.append(s.engine.health.late().get("inventory"))
    assert late == [None, 200.0]


class Unfollowed:
    """Dynamo's graphs, which nobody follows any more."""

    def note(self, *_: object) -> tuple[Problem, ...]:
        raise RuntimeError("what nobody thought of")


async def test_an_engine_ends_with_what_follows_dynamos_graphs(stage: Callable[[int], Stage]) -> None:
    s = stage(0)
    s.leading.graphs = Unfollowed()  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="what nobody thought of"):
        await asyncio.wait_for(s.leading._loop(asyncio.Event(), []), 20)
