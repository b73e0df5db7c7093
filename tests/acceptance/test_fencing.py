"""Reports on old leaders that go on, and on workers that were ended while they served. Named after their rows in the list of cases."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from google.protobuf.message import Message
from shunter.act.beyond import Deposed
from shunter.act.execute import Executor
from shunter.act.lease import Lease
from shunter.model.errors import Problem, Retry
from shunter.model.ids import Epoch, OperationId
from shunter.model.operation import Sending, Status
from shunter.model.plan import OperationKind
from shunter.wire import agent_pb2 as pb
from shunter_agent.orders import source
from shunter_agent.refusals import Undone
from shunter_agent.server import AgentService
from shunter_agent.serving.dynamo import DynamoServing

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "agent"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "property"))
from agent_fakes import PROCESS, SPEC, Bench  # pyright: ignore[reportMissingImports]  (found by the line above)
from fleet_in_memory import CrashingStore, World  # pyright: ignore[reportMissingImports]
from test_protocol import KINDS, calmly, fresh  # pyright: ignore[reportMissingImports]

SERVICE = pb.DESCRIPTOR.services_by_name["Agent"]
ORDERS = [method for method in SERVICE.methods if "order" in method.input_type.fields_by_name and method.name != "Stand"]
"""All that an engine can order, as the contract lists it. A standing order is signed, and checked by itself."""


class Refused(Exception):
    """What a caller would see."""


class Call:
    """The engine's call, without a network."""

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return {"x509_subject_alternative_name": [b"spiffe://shunter/engine"]}

    def time_remaining(self) -> float:
        return 5.0

    async def abort(self, _status: object, details: str = "", _trailing: object = ()) -> NoReturn:
        raise Refused(details)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def order(method: Any, epoch: int) -> Message:
    """One of this kind, about the worker, whatever else it would need."""
    request = method.input_type._concrete_class()
    request.order.CopyFrom(pb.Order(operation="op", epoch=epoch, plan="p", worker="w", incarnation=0))
    for field, value in (("image", "image-op"), ("hold_s", 5.0), ("slot", "n/0")):
        if field in method.input_type.fields_by_name:
            setattr(request, field, value)
    return request  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ORDERS, ids=lambda m: m.name)
async def test_ac40_an_old_leaders_order_of_any_kind_is_refused_by_the_agent_itself(bench: Bench, method: Any) -> None:
    """cilium#42920: the old leader kept writing."""
    service = AgentService(bench.node, bench.orders)
    bench.journal.raise_epoch(7)
    before = (dict(bench.faults.done), bench.state(), bench.journal.entries("op"), bench.journal.reservations())
    with pytest.raises(Refused, match="SH601 the order has epoch 6"):
        await getattr(service, method.name)(order(method, 6), Call())
    assert (dict(bench.faults.done), bench.state(), bench.journal.entries("op"), bench.journal.reservations()) == before
    assert bench.journal.epoch == 7


async def test_ac40_a_watch_of_an_old_leader_is_refused_too(bench: Bench) -> None:
    bench.journal.raise_epoch(7)
    watching = AgentService(bench.node, bench.orders).Watch(pb.WatchRequest(epoch=6), Call())  # type: ignore[arg-type]
    with pytest.raises(Refused, match="SH601"):
        await anext(watching)


async def test_ac40_the_epoch_outlives_the_agent(bench: Bench) -> None:
    """kthena#1793: what had been seen was forgotten at a restart."""
    await bench.source.fence(bench.step(epoch=7))
    bench.journal.close()
    bench.boot()
    (fence,) = [method for method in ORDERS if method.name == "Fence"]
    with pytest.raises(Refused, match="SH601"):
        await AgentService(bench.node, bench.orders).Fence(order(fence, 6), Call())  # type: ignore[arg-type]


class Lost:
    """Leads until so many orders were given. Implements `Leadership`."""

    epoch = Epoch(1)
    revoked: frozenset[OperationId] = frozenset()
    troubles: Mapping[str, Any] = {}

    def __init__(self, world: World, orders: int) -> None:
        self.world, self.orders = world, orders
        self.lost = Problem(code="SH508", what="the lease is over", remedy="none: this is a test")

    def held(self) -> bool:
        return len(self.world.orders) < self.orders

    def show(self, sending: Sending) -> None:
        pass


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
async def test_ac40_no_order_is_given_once_the_lease_is_over(tmp_path: Path, kind: OperationKind) -> None:
    """kyverno#14984: after the renewal's deadline it wrote on."""
    orders, _ = await calmly(tmp_path, kind)
    for number in range(orders):
        world = fresh(tmp_path, kind, f"lost-{number}")
        parts = msgspec.structs.replace(world.parts(), lead=Lost(world, number))
        with pytest.raises(Deposed):
            await Executor(parts, world.epoch()).start(world.plan(kind), "sha256:plan")  # type: ignore[arg-type]
        assert len(world.orders) == number, "not one more"
        world.store.close()


def test_ac40_a_lock_that_somebody_has_replaced_is_no_lease(tmp_path: Path) -> None:
    store = CrashingStore(tmp_path / "s.db")
    with Lease(tmp_path / "engine.lock", store) as first:
        assert first.held()
        (tmp_path / "engine.lock").unlink()
        assert not first.held()
        with Lease(tmp_path / "engine.lock", store) as second:
            assert (first.held(), second.held()) == (False, True)
            assert second.epoch > first.epoch
    store.close()


class Slow:
    """A serving engine that ends its requests one by one, each time that it is asked; before that it doesn't answer."""

    def __init__(self, bench: Bench, answers: list[int | None]) -> None:
        self.bench, self.answers, self.asked = bench, answers, 0

    def fence(self, spec: object) -> str:
        return self.bench.serving.fence(spec)

    def unfence(self, spec: object) -> str:
        return self.bench.serving.unfence(spec)

    def inflight(self, spec: Any) -> int:
        assert PROCESS in self.bench.runtime.alive, "it was ended while it was asked"
        assert not self.bench.serving.registered, "new requests still come"
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if answer is None:
            raise Retry(Problem(code="SH622", what="no answer", remedy="none: this is a test"))
        return answer


async def test_ac45_a_worker_is_ended_once_it_says_that_nothing_is_in_flight(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """ai-dynamo/dynamo#13559: what was in flight was given five seconds, and then HTTP 500."""
    monkeypatch.setattr(source, "LOOK_S", 0.0)
    bench.node.serving = serving = Slow(bench, [None, 3, None, 2, 1, None, 0])  # type: ignore[assignment]
    done = await bench.source.drain(bench.step(), 60)
    assert serving.asked == len(serving.answers), "no answer is not none in flight"
    assert (bench.runtime.alive, bench.state()) == (set(), "none")
    assert done.detail == "served its last request and was ended"


@pytest.mark.parametrize("answers", [[1], [None], [5, 4, 3, 2, None]], ids=["busy", "silent", "both"])
async def test_ac45_a_worker_that_still_serves_when_its_time_is_over_is_not_ended(
    bench: Bench, answers: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "LOOK_S", 0.01)
    bench.node.serving = Slow(bench, answers)  # type: ignore[assignment]
    with pytest.raises(Undone, match="SH651 the worker still serves"):
        await bench.source.drain(bench.step(), 0.1)
    assert (PROCESS in bench.runtime.alive, bench.state(), bench.faults.done["end"]) == (True, "fenced", 0)


async def test_ac45_the_number_in_flight_is_the_engines_own(tmp_path: Path) -> None:
    """Over HTTP, as a real worker says it: by its status, or by its metrics where it has none."""
    seen: list[str] = []
    busy = [2, 1, 0]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        seen.append(path)
        status = "200 OK" if path != "/engine/status" else "404 Not Found"
        body = "{}" if path != "/metrics" else f'dynamo_component_inflight_requests{{dynamo_endpoint="generate"}} {busy.pop(0)}\n'
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        bench = Bench(tmp_path)
        spec = msgspec.structs.replace(SPEC, control=f"http://127.0.0.1:{port}")
        row = bench.node.row("w")
        bench.journal.put_worker(msgspec.structs.replace(row, spec=spec))
        bench.node.serving = DynamoServing()
        await bench.source.drain(bench.step(), 10)
    assert (bench.state(), busy) == ("none", [])
    assert seen[0] == "/engine/control/fence"
    assert seen.count("/metrics") == 3


async def test_ac45_a_drain_that_could_not_end_well_shows_the_worker_again(tmp_path: Path) -> None:
    """The operation is rolled back with its evidence, and no half-drained worker is left hidden."""
    world = World(CrashingStore(tmp_path / "s.db"))
    world.named = {("a", "drain"): ["undone"]}
    record = await Executor(world.parts(), world.epoch()).start(world.plan(OperationKind.DRAIN), "sha256:plan")  # type: ignore[arg-type]
    assert record.outcome is not None
    assert (record.outcome.status, world.fenced(), world.home()) == (Status.ROLLED_BACK, False, "a")
    world.store.close()
