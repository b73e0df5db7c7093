"""Operations that have another pool's worker start from a golden image: a model of the cluster's part, with deaths at every point.

Whatever becomes of the start, the worker that made way has left and the operation has succeeded; what was made for it is there only if it
serves; and it is made once.
"""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fleet_in_memory import PLAN, Crash, CrashingStore, World
from shunter.act.execute import Executor
from shunter.act.run import Times, Unresolved
from shunter.model.errors import Problem, Rejected, Retry, Unknown
from shunter.model.ids import Epoch, NodeId, PoolId
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import OperationKind
from shunter.model.pod import Pod, Started
from shunter.model.snapshot import Fleet, Node, Taint
from test_protocol_counting import LEFT, Dynamo, Pods, world

KINDS = (OperationKind.PARK, OperationKind.DRAIN)
COMING, SERVES = Started(state="coming", why="it isn't restored yet"), Started(state="serves")
G = Pod(namespace="ns", name="g-prefill-1", uid="u-g")
INSTEAD, FAILED = Started(state="instead", why="the controller kept its own"), Started(state="failed", why="RestoreFailed: no such file")


class Cluster:
    """Where pods start from golden images. `ends` is how a start ends, `looks` how often it is looked at before that; `faults` by the
    number of the call (from 1): `crash`, `crash-after`, `lost` (done, and no answer), `away` (nothing done, and no answer).
    """

    def __init__(self, ends: Started = SERVES, *, looks: int = 2, faults: dict[int, str] | None = None, why: str = "") -> None:
        self.ends, self.looks, self.faults, self.why = ends, looks, faults or {}, why
        self.pod = False
        self.made = 0
        self.calls: list[str] = []

    def _befall(self, call: str, effect: Callable[[], None] = lambda: None) -> None:
        self.calls.append(call)
        fault = self.faults.get(len(self.calls), "")
        if fault == "crash":
            raise Crash
        if fault == "away":
            raise Retry(Problem(code="SH251", what="no answer", remedy=""))
        effect()
        if fault == "crash-after":
            raise Crash
        if fault == "lost":
            raise Unknown(Problem(code="SH251", what="no answer", remedy=""))

    async def begin(self, record: OperationRecord, may: Callable[[], None]) -> str:
        may()
        if not self.why and not self.pod:
            self._befall("begin", self._make)
        else:
            self._befall("begin")
        return self.why

    def _make(self) -> None:
        self.pod = True
        self.made += 1

    async def look(self, record: OperationRecord) -> Started:
        self._befall("look")
        if not self.pod:
            return INSTEAD
        self.looks -= 1
        if self.looks > 0:
            return msgspec.structs.replace(COMING, pod=G)
        if self.ends is INSTEAD:
            self.pod, self.why = False, "the controller has a pod of its own that got a GPU first"
        return msgspec.structs.replace(self.ends, pod=G)

    async def end(self, record: OperationRecord, may: Callable[[], None]) -> bool:
        may()
        self._befall("end", self._remove)
        return True

    def _remove(self) -> None:
        self.pod = False


class Retiring(Pods):
    """Notes what there was when the pod that is left went."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.seen: list[list[str]] = []

    async def retire(self, pod: Pod) -> None:
        self.seen.append(list(self.cluster.calls))


def executor(found: World, cluster: Cluster | None, epoch: int, dynamo: Dynamo | None = None, pods: Pods | None = None) -> Executor:
    parts = found.parts()
    return Executor(
        msgspec.structs.replace(
            parts, places=pods or Pods(), replicas=dynamo or Dynamo(found), starts=cluster, times=Times(serve=30.0, look=1.0)
        ),  # type: ignore[arg-type]
        Epoch(epoch),
    )


async def carried(found: World, cluster: Cluster | None, kind: OperationKind, **more: object) -> OperationRecord:
    """Until it has ended, over as many engines as it takes."""
    given = {"cause": "shift:p:1", "pool": PoolId("g/decode"), "hands_to": PoolId("g/prefill"), "golden": "gold", **more}
    planned = found.plan(kind, **given)  # type: ignore[arg-type]
    dynamo = Dynamo(found)
    try:
        return await executor(found, cluster, found.epoch(), dynamo).start(planned, PLAN)
    except Crash:
        pass
    for _ in range(6):
        if not found.store.active():
            break
        epoch = found.epoch()
        found.store.adopt(epoch)
        try:
            await executor(found, cluster, epoch, dynamo).resume(found.store.active()[0])
        except Crash:
            continue
    record = found.store.get(planned.id)
    assert record is not None
    return record


def steps(record: OperationRecord) -> list[Step]:
    return [step for step, _ in record.history]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_begun_when_the_worker_is_gone_and_before_its_pod_is(tmp_path: Path, kind: OperationKind) -> None:
    found, cluster = world(tmp_path, kind), Cluster()
    pods = Retiring(cluster)
    planned = found.plan(kind, cause="shift:p:1", pool=PoolId("g/decode"), hands_to=PoolId("g/prefill"), golden="gold")
    record = asyncio.run(executor(found, cluster, found.epoch(), pods=pods).start(planned, PLAN))
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "")
    assert cluster.calls == ["begin", "look", "look"]
    assert pods.seen == [["begin"]], "while the GPU is nobody's else"
    assert steps(record)[-2:] == [Step.RELEASED, Step.STARTING]
    assert found.home() is None
    assert (record.outcome.image is not None) == (kind is OperationKind.PARK)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("cluster", "code", "said", "left"),
    [
        (Cluster(FAILED), "SH571", "couldn't be started from (pod ns/g-prefill-1 (u-g)): RestoreFailed: no such file", False),
        (Cluster(INSTEAD), "SH570", "the controller kept its own", False),
        (Cluster(why="gold isn't ready"), "SH570", "starts natively, and not from golden image gold: gold isn't ready", False),
        (Cluster(looks=10_000), "SH572", "didn't serve within 30 s (it isn't restored yet)", False),
    ],
    ids=["failed", "instead", "not-begun", "late"],
)
def test_what_comes_to_nothing_is_told_and_leaves_nothing(
    tmp_path: Path, kind: OperationKind, cluster: Cluster, code: str, said: str, left: bool
) -> None:
    found, own = world(tmp_path, kind), Cluster(cluster.ends, looks=cluster.looks, why=cluster.why)
    began = found.now
    record = asyncio.run(carried(found, own, kind))
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, code)
    assert said in record.outcome.reason
    assert own.pod is left
    assert found.now - began < 60


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "more", [{"golden": ""}, {"cause": "notice:n"}, {"lane": "involuntary"}], ids=["not-asked-for", "no-reassignment", "urgent"]
)
def test_where_it_isnt_asked_for_nothing_is_started_so(tmp_path: Path, kind: OperationKind, more: dict[str, str]) -> None:
    found, cluster = world(tmp_path, kind), Cluster()
    record = asyncio.run(carried(found, cluster, kind, **more))
    assert record.status is Status.SUCCEEDED
    assert cluster.calls == []
    assert Step.STARTING not in steps(record)


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_that_makes_no_pods_says_so(tmp_path: Path, kind: OperationKind) -> None:
    record = asyncio.run(carried(world(tmp_path, kind), None, kind))
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH570")


def test_where_the_number_wasnt_changed_nobody_is_started(tmp_path: Path) -> None:
    found, cluster = world(tmp_path, OperationKind.DRAIN), Cluster()
    planned = found.plan(OperationKind.DRAIN, cause="shift:p:1", pool=PoolId("g/decode"), hands_to=PoolId("g/prefill"), golden="gold")
    record = asyncio.run(executor(found, cluster, found.epoch(), Dynamo(found, {2: "refuse"})).start(planned, PLAN))
    assert (record.status, record.outcome and record.outcome.code) == (Status.SUCCEEDED, "SH275")
    assert cluster.calls == []


@pytest.mark.parametrize("ends", [SERVES, FAILED, INSTEAD], ids=lambda e: e.state)
@pytest.mark.parametrize("fault", ["crash", "crash-after", "lost", "away"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_dies_when_it_is_started_once_and_left_only_if_it_serves(
    tmp_path: Path, kind: OperationKind, at: int, fault: str, ends: Started
) -> None:
    found, cluster = world(tmp_path, kind), Cluster(ends, faults={at: fault})
    record = asyncio.run(carried(found, cluster, kind))
    assert record.status is Status.SUCCEEDED, "the worker has left, whatever comes in its place"
    assert cluster.made == 1, cluster.calls
    assert cluster.pod == (ends is SERVES)
    assert record.outcome is not None
    assert record.outcome.code == {"serves": "", "failed": "SH571", "instead": "SH570"}[ends.state]


@pytest.mark.parametrize("ends", [SERVES, FAILED, INSTEAD], ids=lambda e: e.state)
@pytest.mark.parametrize("kind", KINDS)
def test_two_faults_in_a_row_change_nothing_of_that(tmp_path: Path, kind: OperationKind, ends: Started) -> None:
    """Also the second of which befalls the repeat of what the first had befallen."""
    faults = ("crash", "crash-after", "lost", "away")
    for number, (at, gap, first, second) in enumerate(itertools.product(range(1, 7), (1, 2), faults, faults)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found, cluster = world(folder, kind), Cluster(ends, faults={at: first, at + gap: second})
        record = asyncio.run(carried(found, cluster, kind))
        tried = f"{first} at {at}, {second} at {at + gap}: {cluster.calls}"
        assert record.status is Status.SUCCEEDED, tried
        assert cluster.made == 1, tried
        assert cluster.pod == (ends is SERVES), tried
        assert record.outcome is not None
        assert record.outcome.code == {"serves": "", "failed": "SH571", "instead": "SH570"}[ends.state], tried


@pytest.mark.parametrize(
    ("cluster", "code"), [(Cluster(), "SH518"), (Cluster(FAILED), "SH571"), (Cluster(why="gold isn't ready"), "SH570")], ids=["0", "1", "2"]
)
def test_what_there_was_to_tell_before_is_told_with_it(tmp_path: Path, cluster: Cluster, code: str) -> None:
    found, own = world(tmp_path, OperationKind.PARK), Cluster(cluster.ends, why=cluster.why)
    record = begun(found, short=True)
    ended = asyncio.run(executor(found, own, record.epoch).resume(record))
    assert ended.outcome is not None
    assert ended.outcome.code == code
    assert "1 of 2 copies couldn't be made" in ended.outcome.reason


def begun(found: World, *, short: bool = False, left: bool = True, **more: object) -> OperationRecord:
    """One whose worker has left."""
    given = {"cause": "shift:p:1", "pool": PoolId("g/decode"), "hands_to": PoolId("g/prefill"), "golden": "gold", **more}
    planned = found.plan(OperationKind.PARK, **given)  # type: ignore[arg-type]
    epoch = Epoch(found.epoch())
    found.store.insert([OperationRecord(planned=planned, plan=PLAN, epoch=epoch, created_at=found.now, left=LEFT if left else None)])
    why = Problem(code="SH518", what="1 of 2 copies couldn't be made", remedy="") if short else None
    return found.store.advance(planned.id, Step.STARTING, found.now, problem=why)


@pytest.mark.parametrize("kind", KINDS)
def test_which_pod_it_is_stands_in_its_step_and_in_what_is_told(tmp_path: Path, kind: OperationKind) -> None:
    found = world(tmp_path, kind)
    record = asyncio.run(carried(found, Cluster(FAILED), kind))
    assert record.pod == G
    told = [one for one in found.records if one.body.get("step") == "starting" and "pod" in one.body]
    assert told[0].body["pod"] == {"namespace": "ns", "name": "g-prefill-1", "uid": "u-g", "container": ""}
    assert record.outcome is not None
    assert "ns/g-prefill-1 (u-g)" in record.outcome.reason


@pytest.mark.parametrize("ends", [FAILED, INSTEAD], ids=lambda e: e.state)
def test_a_removal_that_is_refused_is_no_removal(tmp_path: Path, ends: Started) -> None:
    class Refusing(Cluster):
        async def end(self, record: OperationRecord, may: Callable[[], None]) -> bool:
            raise Rejected(Problem(code="SH256", what="a webhook takes no deletion", remedy=""))

    record = asyncio.run(carried(world(tmp_path, OperationKind.PARK), Refusing(ends), OperationKind.PARK))
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH573" if ends is FAILED else "SH570")
    assert "its pod ns/g-prefill-1 (u-g) wasn't removed: a webhook takes no deletion" in record.outcome.reason


def test_an_engine_that_makes_no_pods_cant_remove_what_one_before_it_made(tmp_path: Path) -> None:
    found, cluster = world(tmp_path, OperationKind.PARK), Cluster(FAILED, faults={4: "crash"})
    with pytest.raises(Crash):
        asyncio.run(executor(found, cluster, (record := begun(found)).epoch).resume(record))
    assert cluster.pod
    epoch = found.epoch()
    found.store.adopt(epoch)
    ended = asyncio.run(executor(found, None, epoch).resume(found.store.active()[0]))
    assert ended.outcome is not None
    assert (ended.status, ended.outcome.code) == (Status.SUCCEEDED, "SH573")


class Away(Cluster):
    """Nobody answers one kind of question, ever."""

    def __init__(self, what: str, ends: Started = FAILED) -> None:
        super().__init__(ends)
        self.what = what

    def _befall(self, call: str, effect: Callable[[], None] = lambda: None) -> None:
        if call == self.what:
            self.calls.append(call)
            raise Retry(Problem(code="SH251", what="no answer", remedy=""))
        super()._befall(call, effect)


@pytest.mark.parametrize(("what", "code"), [("begin", "SH570"), ("look", "SH570"), ("end", "SH573")])
def test_it_has_an_end_though_one_question_is_never_answered(tmp_path: Path, what: str, code: str) -> None:
    """And the pod that is left goes at once, so that a native one gets its GPU."""
    found, cluster = world(tmp_path, OperationKind.PARK), Away(what)
    pods, record = Retiring(cluster), begun(found)
    began = found.now
    for _ in range(5):
        try:
            record = asyncio.run(executor(found, cluster, record.epoch, pods=pods).resume(record))
        except Unresolved:
            record = found.store.active()[0]
    assert (record.status, record.outcome and record.outcome.code) == (Status.SUCCEEDED, code)
    assert found.now - began < 200
    assert set(pods.seen[0]) == {"begin"}


def test_one_that_is_given_up_is_removed_and_starts_natively(tmp_path: Path) -> None:
    found = world(tmp_path, OperationKind.PARK)
    record = begun(found)

    class Given(Cluster):
        async def look(self, record: OperationRecord) -> Started:
            assert own.cancel(found.store.active()[0], "its policy is gone")
            return await super().look(record)

    cluster = Given(looks=10_000)
    own = executor(found, cluster, record.epoch)
    ended = asyncio.run(own.resume(record))
    assert ended.outcome is not None
    assert (ended.status, ended.outcome.code) == (Status.SUCCEEDED, "SH570")
    assert "its policy is gone" in ended.outcome.reason
    assert not cluster.pod


@pytest.mark.parametrize("why", ["late", "cordoned", "notice"])
def test_where_nothing_can_come_of_it_nothing_is_begun(tmp_path: Path, why: str) -> None:
    found, cluster = world(tmp_path, OperationKind.PARK), Cluster()
    record = begun(found)
    own = executor(found, cluster, record.epoch)
    if why == "late":
        found.now += 31
    if why == "notice":
        own.parts = msgspec.structs.replace(own.parts, astray=lambda planned: "" if planned.to_slot is None else "it is going")
    if why == "cordoned":
        node = Node(id=NodeId("a"), slots=(), taints=(Taint(key="node.kubernetes.io/unschedulable"),))
        own.parts = msgspec.structs.replace(own.parts, fleet=lambda: Fleet(nodes=(node,)))
    ended = asyncio.run(own.resume(record))
    assert (ended.status, ended.outcome and ended.outcome.code) == (Status.SUCCEEDED, "SH570")
    assert cluster.made == 0


def test_nobody_is_started_for_a_worker_that_lived_in_no_pod(tmp_path: Path) -> None:
    """Nobody keeps the number of such, so nobody was asked for one more."""
    found, cluster = World(CrashingStore(tmp_path / "engine.db")), Cluster()
    record = asyncio.run(carried(found, cluster, OperationKind.DRAIN))
    assert (record.status, record.outcome and record.outcome.code) == (Status.SUCCEEDED, "SH570")
    assert cluster.calls == []


@pytest.mark.parametrize("ends", [SERVES, FAILED, INSTEAD], ids=lambda e: e.state)
@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_dies_at_each_change_of_its_own_store(tmp_path: Path, kind: OperationKind, ends: Started) -> None:
    tried = 0
    for at in range(1, 14):
        for after in (False, True):
            folder = tmp_path / f"{at}{after}"
            folder.mkdir()
            found, cluster = world(folder, kind), Cluster(ends)
            found.store.crash_at, found.store.after = at, after
            try:
                record = asyncio.run(carried(found, cluster, kind))
            except AssertionError:
                assert not cluster.calls, "its intent wasn't durable, and nothing was started"
                continue
            if record.status is Status.SUCCEEDED:
                tried += 1
                assert cluster.made == 1, f"died at change {at}: {cluster.calls}"
                assert cluster.pod == (ends is SERVES), f"died at change {at}"
            else:
                assert cluster.calls == [], "nobody is started for one that stays"
    assert tried > 10


def test_how_long_it_may_take_counts_over_engines(tmp_path: Path) -> None:
    """An engine that takes it up late doesn't wait as long again."""
    found, cluster = world(tmp_path, OperationKind.PARK), Cluster(looks=10_000, faults={5: "crash"})
    planned = found.plan(OperationKind.PARK, cause="shift:p:1", pool=PoolId("g/decode"), hands_to=PoolId("g/prefill"), golden="gold")
    with pytest.raises(Crash):
        asyncio.run(executor(found, cluster, found.epoch()).start(planned, PLAN))
    found.now += 40
    epoch = found.epoch()
    found.store.adopt(epoch)
    record = asyncio.run(executor(found, cluster, epoch).resume(found.store.active()[0]))
    assert (record.status, record.outcome and record.outcome.code) == (Status.SUCCEEDED, "SH572")
    assert not cluster.pod
    assert cluster.calls.count("look") < 6


def test_one_that_serves_at_the_last_moment_stays(tmp_path: Path) -> None:
    class Late(Cluster):
        async def end(self, record: OperationRecord, may: Callable[[], None]) -> bool:
            self.calls.append("end")
            self.looks = 0
            return False

    found, cluster = world(tmp_path, OperationKind.PARK), Late(looks=10_000)
    record = asyncio.run(carried(found, cluster, OperationKind.PARK))
    assert (record.status, record.outcome and record.outcome.code) == (Status.SUCCEEDED, "")
    assert cluster.pod


def test_a_refusal_of_the_server_is_a_reason_for_a_native_start(tmp_path: Path) -> None:
    class Refusing(Cluster):
        async def begin(self, record: OperationRecord, may: Callable[[], None]) -> str:
            raise Rejected(Problem(code="SH256", what="the API server finds this invalid", remedy=""))

    found, cluster = world(tmp_path, OperationKind.PARK), Refusing()
    record = asyncio.run(carried(found, cluster, OperationKind.PARK))
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH570")
    assert "finds this invalid" in record.outcome.reason
