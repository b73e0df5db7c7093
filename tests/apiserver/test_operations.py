"""Operations in a real API server: whoever leads next goes on from there, and an old leader's hand is stayed.

The fleet is in memory and follows the agents' contract, with the invariant checked after every change; the store's other place is real.
"""

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import admin, install, running
from control_plane import ControlPlane, asset, until
from shunter.act.beyond import Deposed
from shunter.act.execute import Executor
from shunter.act.scheduler import Scheduler
from shunter.act.store import Store
from shunter.app import gone
from shunter.app.upheld import BOUND_S, Upheld, known_epoch
from shunter.cluster.api import Api
from shunter.cluster.elector import Term
from shunter.cluster.events import Events
from shunter.cluster.memory import NAME as MEMORY
from shunter.cluster.operation import Batch, collection, record_of, resource
from shunter.model.errors import Stalled
from shunter.model.ids import Digest, Epoch, ImageId, NodeId, NoticeId, OperationId, WorkerId
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import OperationKind
from shunter.model.snapshot import Notice, NoticeKind

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "property"))
from fleet_in_memory import Crash, World

NAMES = itertools.count()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for this module, that tests may stop for a while."""
    for found in running(tmp_path_factory.mktemp("operations")):
        install(found)
        # a server lets the first creation of a new kind wait, for others of its cluster to know the kind
        found.must("POST", collection("default"), resource(intent("first", 0), Batch(first="first", size=1), "default"))
        yield found


@pytest.fixture
def namespace(plane: ControlPlane) -> str:
    name = f"fleet-{next(NAMES)}"
    plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


class Site:
    """One machine for an engine: a folder, and what an engine there leads with. `term` decides for how long."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path, epoch: int) -> None:
        folder.mkdir(exist_ok=True)
        self.steady = 0.0
        self.term = Term(Epoch(epoch), 0.0, 10.0, lambda: self.steady)
        self.upheld = Upheld(lambda: Api(admin(plane), timeout_s=BOUND_S), namespace, self.term, lambda: 2000.0)
        self._stack = ExitStack()
        self._stack.callback(self.upheld.close)
        self.upheld.open()
        self.store, self.lead = self._stack.enter_context(self.upheld.backing(folder, 1000))

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def site(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(epoch: int, folder: str = "") -> Site:
        made.append(Site(plane, namespace, tmp_path / (folder or f"engine-{epoch}"), epoch))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Counting:
    """A store that ends its engine at the `crash_at`-th change (from 1), before it is durable or right afterwards."""

    def __init__(self, store: Store, crash_at: int = 0, *, after: bool = False) -> None:
        self.store, self.crash_at, self.after, self.changes = store, crash_at, after, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name not in ("insert", "advance", "finish", "adopt"):
            return found

        def counted(*args: Any, **more: Any) -> Any:
            self.changes += 1
            if self.changes == self.crash_at and not self.after:
                raise Crash
            result = found(*args, **more)
            if self.changes == self.crash_at and self.after:
                raise Crash
            return result

        return counted


def intent(name: str, epoch: int, *, waits: bool = False, after: tuple[str, ...] = (), lane: str = "voluntary") -> OperationRecord:
    planned = World(None).plan(OperationKind.MOVE, lane=lane)  # type: ignore[arg-type]
    planned = msgspec.structs.replace(planned, id=OperationId(name), after=tuple(map(OperationId, after)))
    return OperationRecord(
        planned=planned, plan=Digest("sha256:p"), epoch=Epoch(epoch), created_at=1.0, history=((Step.INTENDED, 1.0),), waits=waits
    )


def resources(plane: ControlPlane, namespace: str) -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in plane.must("GET", collection(namespace))["items"]}


def executor(world: World, one: Site, store: Any = None) -> Executor:
    return Executor(msgspec.structs.replace(world.parts(), store=store or one.store, lead=one.lead), one.lead.epoch)


async def lead_on(world: World, one: Site) -> None:
    """As a leader begins: adopt, and take up what is active until nothing runs any more."""
    one.store.adopt(one.lead.epoch)
    scheduler = Scheduler(executor(world, one))
    try:
        scheduler.pump()
        await scheduler.idle()
    finally:
        await scheduler.stop()


CHANGES = {OperationKind.MOVE: 9, OperationKind.PARK: 6, OperationKind.CHECKPOINT: 3, OperationKind.DRAIN: 4, OperationKind.RESTORE: 4}
"""That an undisturbed run makes durable, at least."""
ONCE = ("freeze", "release", "resume", "drain", "checkpoint")


@pytest.mark.parametrize(("kind", "after"), [(OperationKind.MOVE, False), *((kind, True) for kind in CHANGES)])
async def test_killed_at_each_change_another_machine_finishes_it_once(site: Callable[..., Site], kind: OperationKind, after: bool) -> None:
    epochs = itertools.count(1)
    for crash_at in itertools.count(1):
        first = site(next(epochs), f"a{crash_at}")
        world = World(first.store)  # type: ignore[arg-type]
        if kind is OperationKind.RESTORE:
            world.agents[NodeId("a")].copy = None
            world.agents[NodeId("a")].images.add(ImageId("parked"))
        operation = OperationId(f"{kind.value}-{crash_at}")
        planned = msgspec.structs.replace(world.plan(kind), id=operation)
        died = False
        try:
            await executor(world, first, Counting(first.store, crash_at, after=after)).start(planned, Digest("sha256:plan"))
        except Crash:
            died = True
        first.close()
        told = len(world.orders)
        second = site(next(epochs), f"b{crash_at}")
        await lead_on(world, second)
        record = second.store.get(operation)
        second.close()
        if crash_at == 1 and not after:
            assert record is None, "its intent wasn't durable"
            assert told == 0, "and so no agent was told"
            continue
        assert record is not None, "it is lost"
        assert record.outcome is not None, "nobody finished it"
        twice = [order for order in world.orders if order[1] in ONCE and world.orders.count(order) > 1]
        undone = Status.FAILED if kind is OperationKind.RESTORE else Status.ROLLED_BACK  # its worker is in its image, as before
        assert not twice or record.status is undone, "done twice"
        assert record.status in (Status.SUCCEEDED, undone)
        assert not world.fenced(), "left out of the router's sight"
        if not died:
            break
    assert crash_at > CHANGES[kind]


async def test_whoever_was_overtaken_writes_and_orders_nothing_more(site: Callable[..., Site], plane: ControlPlane, namespace: str) -> None:
    """It stood still in the middle of a move, past its term; its own clock tells it nothing yet."""
    old = site(1)
    world = World(old.store)  # type: ignore[arg-type]
    with pytest.raises(Crash):
        await executor(world, old, Counting(old.store, 4)).start(world.plan(OperationKind.MOVE), Digest("sha256:plan"))
    new = site(2)
    assert record_of(resources(plane, namespace)["move-0"]).epoch == 2, "before the new one gives any order"
    await lead_on(world, new)
    orders = len(world.orders)
    assert old.lead.held(), "it doesn't know yet"
    with pytest.raises(Deposed) as raised:
        await executor(world, old).resume(old.store.active()[0])
    assert raised.value.problem.code == "SH551"
    assert len(world.orders) == orders, "not an order was given"
    assert not old.lead.held()
    with pytest.raises(Deposed):
        old.store.consume(Digest("sha256:other"), 1.0)
    assert record_of(resources(plane, namespace)["move-0"]).epoch == 2


async def test_a_term_that_is_over_allows_no_order_even_if_nobody_else_came(site: Callable[..., Site]) -> None:
    one = site(1)
    world = World(one.store)  # type: ignore[arg-type]
    record = executor(world, one).intend(world.plan(OperationKind.MOVE, lane="involuntary"), Digest("sha256:plan"))
    one.steady = 11.0
    with pytest.raises(Deposed) as raised:
        await executor(world, one).carry(record)
    assert raised.value.problem.code == "SH557"
    assert world.orders == []
    with pytest.raises(Deposed):
        executor(world, one).intend(world.plan(OperationKind.CHECKPOINT, 1, "involuntary"), Digest("sha256:other"))


def test_a_leader_whose_writing_thread_failed_leads_no_more(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that we know of makes it fail; should it, another one is to lead, that can write."""
    fail = threading.Event()

    async def run(_self: Events) -> None:
        while not fail.is_set():
            await asyncio.sleep(0.01)
        raise RuntimeError("what nobody thought of")

    monkeypatch.setattr(Events, "run", run)
    one = site(1)
    world = World(one.store)  # type: ignore[arg-type]
    assert one.lead.held()
    fail.set()
    until(lambda: not one.lead.held(), 10)
    with pytest.raises(Deposed) as raised:
        executor(world, one).intend(world.plan(OperationKind.MOVE, lane="involuntary"), Digest("sha256:plan"))
    assert raised.value.problem.code == "SH557"


def test_the_server_itself_refuses_an_epoch_that_falls(site: Callable[..., Site], plane: ControlPlane, namespace: str) -> None:
    one = site(5)
    one.store.insert([intent("move-1", 5)])
    until(lambda: "status" in resources(plane, namespace)["move-1"], 10)
    found = resources(plane, namespace)["move-1"]
    where = f"{collection(namespace)}/move-1"
    status, answer = plane.ask("PUT", f"{where}/status", {**found, "status": {**found["status"], "epoch": 4}})
    assert status == 422
    assert "higher epoch" in answer["message"]
    status, answer = plane.ask("PUT", where, {**found, "spec": {**found["spec"], "toSlot": "c/0"}})
    assert status == 422
    assert "doesn't change" in answer["message"]


async def test_without_the_server_nothing_voluntary_begins_and_what_is_involuntary_goes_on_and_is_written_later(
    site: Callable[..., Site], plane: ControlPlane, namespace: str
) -> None:
    one = site(1)
    world = World(one.store)  # type: ignore[arg-type]
    planned = world.plan(OperationKind.MOVE, lane="involuntary")
    record = executor(world, one).intend(planned, Digest("sha256:plan"))
    plane.freeze_api()
    try:
        began = time.monotonic()
        record = await executor(world, one).carry(record)
        assert record.status is Status.SUCCEEDED
        assert world.home() == "b"
        assert time.monotonic() - began < 2 * BOUND_S, "it is held up once, and not at each step"
        assert one.store.unwritten > 0
        with pytest.raises(Stalled) as raised:
            executor(world, one).intend(world.plan(OperationKind.CHECKPOINT, 1), Digest("sha256:other"))
        assert raised.value.problem.code in ("SH501", "SH251")
        assert not one.store.healthy
    finally:
        plane.thaw_api()
    until(one.store.recover, 15, "written")
    assert one.store.unwritten == 0
    found = record_of(resources(plane, namespace)["move-0"])
    assert (found.status, found.step) == (record.status, record.step)
    assert [step for step, _ in found.history] == [step for step, _ in record.history]
    executor(world, one).intend(world.plan(OperationKind.CHECKPOINT, 1), Digest("sha256:other"))
    assert set(resources(plane, namespace)) == {"move-0", "checkpoint-1"}


def test_an_intent_whose_answer_is_lost_is_none_and_leaves_nothing(site: Callable[..., Site], plane: ControlPlane, namespace: str) -> None:
    one = site(1)
    plane.freeze_api()
    try:
        with pytest.raises(Stalled):
            one.store.insert([intent("move-1", 1), intent("move-2", 1, waits=True, after=("move-1",))])
        assert one.store.get(OperationId("move-1")) is None
    finally:
        plane.thaw_api()
    until(one.store.probe, 15)
    until(lambda: resources(plane, namespace) == {}, 10, "what of it came through is removed")
    one.store.insert([intent("move-1", 1)])
    assert set(resources(plane, namespace)) == {"move-1"}


def test_a_part_of_what_was_decided_together_is_given_up_by_the_next(
    site: Callable[..., Site], plane: ControlPlane, namespace: str
) -> None:
    first = site(1)
    first.store.insert([intent("move-1", 1), intent("move-2", 1, waits=True, after=("move-1",))])
    until(lambda: all("status" in one for one in resources(plane, namespace).values()), 10)
    whole = resources(plane, namespace)
    first.close()
    part = {key: value for key, value in whole["move-2"].items() if key != "status"}
    part["metadata"] = {"name": "move-9", "finalizers": part["metadata"]["finalizers"]}
    part["spec"] = {**part["spec"], "batch": {"first": "move-8", "size": 2}}
    plane.must("POST", collection(namespace), part)
    second = site(2)
    assert [record.id for record in second.store.active()] == ["move-1", "move-2"]
    given_up = second.store.get(OperationId("move-9"))
    assert given_up is not None
    assert given_up.outcome is not None
    assert (given_up.outcome.status, given_up.outcome.code) == (Status.SUPERSEDED, "SH555")
    until(lambda: resources(plane, namespace)["move-9"].get("status", {}).get("phase") == "superseded", 10)


def test_deleting_one_under_way_asks_for_it_to_be_given_up_and_keeps_it_until_it_has_ended(
    site: Callable[..., Site], plane: ControlPlane, namespace: str
) -> None:
    one = site(1)
    one.store.insert([intent("move-1", 1)])
    plane.must("DELETE", f"{collection(namespace)}/move-1")
    until(lambda: one.lead.revoked == {"move-1"}, 10)
    assert "move-1" in resources(plane, namespace), "it is still known"
    record = one.store.get(OperationId("move-1"))
    assert record is not None
    world = World(one.store)  # type: ignore[arg-type]
    executor(world, one).drop(record, msgspec.structs.replace(one.lead.lost, code="SH528"))
    until(lambda: resources(plane, namespace) == {}, 10)


def test_the_fleet_and_the_workers_that_were_ended_are_known_on_another_machine(
    site: Callable[..., Site], plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    first = site(1)
    world = World(first.store)  # type: ignore[arg-type]
    first.store.insert([msgspec.structs.replace(intent("park-1", 1), planned=world.plan(OperationKind.PARK, 1))])
    ended = executor(world, first).drop(first.store.active()[0], first.lead.lost)
    assert ended.outcome is not None
    dead = Notice(id=NoticeId("gone-c"), kind=NoticeKind.GONE, node=NodeId("c"), seen_at=6.0, source=gone.SOURCE, detail="burnt down")
    shared = {WorkerId("w"): frozenset({NodeId("a"), NodeId("b")})}
    first.store.save_fleet(world.fleet(), (dead,), 7.0, namesakes=shared)
    until(lambda: plane.ask("GET", f"/api/v1/namespaces/{namespace}/configmaps/{MEMORY}")[0] == 200, 10)
    first.close()
    second = site(2)
    remembered = second.store.load_fleet()
    assert remembered is not None
    assert remembered.fleet == msgspec.structs.replace(world.fleet(), images=()), "images are reported by whoever holds them"
    assert remembered.namesakes == shared
    assert gone.declared(tmp_path / "engine-2") == (dead,)
    assert [record.id for record in second.store.recent(0.0)] == ["park-1"]


async def test_a_new_candidate_knows_the_highest_epoch_though_the_lease_is_gone(
    site: Callable[..., Site], plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    one = site(41)
    world = World(one.store)  # type: ignore[arg-type]
    one.store.save_fleet(world.fleet(), (), 7.0)
    until(lambda: plane.ask("GET", f"/api/v1/namespaces/{namespace}/configmaps/{MEMORY}")[0] == 200, 10)
    api = Api(admin(plane))
    assert await known_epoch(api, namespace, tmp_path / "another") == 41
    await api.aclose()


def test_kubectl_shows_what_is_happening(site: Callable[..., Site], plane: ControlPlane, namespace: str) -> None:
    one = site(3)
    one.store.insert([intent("move-1", 3)])
    one.store.advance(OperationId("move-1"), Step.FENCED, 2.0)
    shown = kubectl(plane, "get", "workeroperations", "-n", namespace)
    heads, row = (line.split() for line in shown.splitlines())
    assert heads == ["NAME", "KIND", "WORKER", "FROM", "TO", "STEP", "PHASE", "LANE", "AGE"]
    assert row[:-1] == ["move-1", "move", "w", "a/0", "b/0", "fenced", "active", "voluntary"]
    assert "move-1" in kubectl(plane, "get", "shunter", "-n", namespace)


def kubectl(plane: ControlPlane, *arguments: str) -> str:
    program = asset("kubectl")
    if program is None:
        pytest.skip("no kubectl")
    access = ("--server", plane.url, "--certificate-authority", plane.ca)
    who = ("--client-certificate", plane.folder / "admin.crt", "--client-key", plane.folder / "admin.key")
    return subprocess.run([program, *access, *who, *arguments], check=True, capture_output=True, text=True, timeout=30).stdout


def test_people_see_on_the_nodes_what_began_there_and_how_it_ended(site: Callable[..., Site], plane: ControlPlane, namespace: str) -> None:
    one = site(1)
    world = World(one.store)  # type: ignore[arg-type]
    for node in ("a", "b"):
        plane.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    name = f"move-{namespace}"
    one.store.insert([intent(name, 1)])
    one.store.advance(OperationId(name), Step.FENCED, 2.0)
    executor(world, one).drop(one.store.active()[0], one.lead.lost)

    def reasons(where: str, kind: str, about: str) -> list[str]:
        found = plane.must("GET", f"/api/v1/namespaces/{where}/events")["items"]
        ours = [
            e
            for e in found
            if (e["involvedObject"]["kind"], e["involvedObject"]["name"]) == (kind, about) and name in e["metadata"]["name"]
        ]
        return sorted(e["reason"] for e in ours)

    until(lambda: len(reasons("default", "Node", "b")) == 2, 10)
    assert reasons("default", "Node", "a") == reasons("default", "Node", "b") == ["MoveBegun", "MoveSuperseded"]
    assert reasons(namespace, "WorkerOperation", name) == ["MoveBegun", "MoveSuperseded"]
    assert f"move of w from a/0 to b/0: because ({name})" in kubectl(plane, "describe", "node", "b")
