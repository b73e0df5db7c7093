"""The agent over real TLS on loopback: who may call, what refusals look like, and that a repeated order is done once."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from google.protobuf.message_factory import GetMessageClass
from shunter.act import agents
from shunter.act.agents import AgentClient
from shunter.act.agents import TlsFiles as EngineFiles
from shunter.act.archives import Lists
from shunter.model.errors import Rejected, Retry, Unknown
from shunter.model.ids import ImageId, NodeId
from shunter.wire import agent_pb2 as pb
from shunter.wire import agent_pb2_grpc as rpc
from shunter.wire.convert import refusal_of
from shunter_agent import inventory
from shunter_agent.callers import caller
from shunter_agent.capacity import Looks
from shunter_agent.node import Node
from shunter_agent.server import AgentService, make_server
from shunter_agent.sizes import Sizes
from shunter_agent.standing import Standing
from shunter_agent.tls import TlsFiles
from shunter_agent.word import Words

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "agent"))
from agent_fakes import PROCESS, Bench, problem  # pyright: ignore[reportMissingImports]  (found by the line above)

ENGINE = "spiffe://shunter/engine"
READER = "spiffe://shunter/reader"
HOST = "n.agent.shunter"


class Authority:
    """A small certificate authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
        certificate = (
            self._builder(self.name, self.key).add_extension(x509.BasicConstraints(True, None), True).sign(self.key, hashes.SHA256())
        )
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        return (
            builder.serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(hours=1))
        )

    def issue(self, name: str, *uris: str) -> TlsFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        extension = x509.SubjectAlternativeName([*names, x509.DNSName(HOST)])
        certificate = self._builder(subject, key).add_extension(extension, False).sign(self.key, hashes.SHA256())
        files = TlsFiles(ca=self.ca, cert=self.folder / f"{name}.pem", key=self.folder / f"{name}.key")
        files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return files


class World:
    """A served bench, and stubs that call it with any certificate."""

    def __init__(self, bench: Bench, port: int, authority: Authority, other: Authority) -> None:
        self.bench, self.port, self.authority, self.other = bench, port, authority, other

    @asynccontextmanager
    async def caller(self, *uris: str, foreign: bool = False) -> AsyncIterator[rpc.AgentStub]:
        files = (self.other if foreign else self.authority).issue("caller", *uris)
        credentials = grpc.ssl_channel_credentials(self.authority.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes())
        options = (("grpc.ssl_target_name_override", HOST),)
        async with grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options) as channel:
            yield rpc.AgentStub(channel)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    bench = Bench(tmp_path)
    server, port = make_server(AgentService(bench.node, bench.orders), authority.issue("agent", "spiffe://shunter/agent/n"), "127.0.0.1:0")
    await server.start()
    try:
        yield World(bench, port, authority, other)
    finally:
        await server.stop(None)
        bench.journal.close()


async def test_the_engine_gets_an_answer(world: World) -> None:
    async with world.caller(ENGINE) as agent:
        report = await agent.Inventory(pb.InventoryRequest(), timeout=10)
    assert [(w.spec.worker, w.state) for w in report.workers] == [("w", "running")]


async def test_who_only_looks_on_is_no_engine_that_was_heard_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a person who looks at a fleet without an engine keeps its nodes from helping themselves."""
    heard: list[bool] = []
    monkeypatch.setattr(Standing, "heard", lambda _: heard.append(True))
    async with world.caller(ENGINE) as agent:
        report = await agent.Inventory(pb.InventoryRequest(looks_on=True), timeout=10)
        assert (report.node, heard) == ("n", [])
        await agent.Inventory(pb.InventoryRequest(), timeout=10)
        assert heard == [True]


METHODS: dict[str, Callable[[Bench], object]] = {
    "Inventory": lambda _bench: pb.InventoryRequest(),
    "Journal": lambda _bench: pb.JournalRequest(operation="op"),
    "Preflight": lambda bench: pb.PreflightOrder(order=bench.order()),
    "Prepare": lambda bench: bench.prepare(),
    "Fence": lambda bench: bench.step(),
    "Unfence": lambda bench: bench.step(),
    "Freeze": lambda bench: bench.freeze(),
    "Thaw": lambda bench: bench.step(),
    "Release": lambda bench: bench.step(),
    "Restore": lambda bench: bench.restore(),
    "Resume": lambda bench: bench.step(),
    "Abort": lambda bench: bench.step(),
    "Checkpoint": lambda bench: pb.CheckpointOrder(order=bench.order(), image="i"),
    "Send": lambda bench: pb.SendOrder(order=bench.order(), image="i"),
    "Drain": lambda bench: bench.step(),
    "Discard": lambda bench: pb.DiscardOrder(order=bench.order(), image="i"),
    "Stand": lambda _bench: pb.StandOrder(),
}


LOOKS = {"Inventory"}
"""What a reader may call: all that a preview asks of an agent."""


@pytest.mark.parametrize(
    "uris", [("spiffe://shunter/agent/n",), (), (ENGINE, "spiffe://shunter/agent/n"), (ENGINE + "/x",), (READER, ENGINE), (READER + "/x",)]
)
async def test_no_method_answers_anybody_but_the_engine(world: World, uris: tuple[str, ...]) -> None:
    served = {method.name for method in pb.DESCRIPTOR.services_by_name["Agent"].methods}
    assert served == {*METHODS, "Watch"}
    async with world.caller(*uris) as agent:
        for name, request in METHODS.items():
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await getattr(agent, name)(request(world.bench), timeout=10)
            assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED, name
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await anext(aiter(agent.Watch(pb.WatchRequest(epoch=1), timeout=10)))
        assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert not world.bench.faults.done
    assert world.bench.journal.epoch == 0


async def test_a_reader_may_look_and_is_refused_all_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the service's own list, so that a call that is new is refused until somebody decides."""
    heard: list[str] = []
    monkeypatch.setattr(Standing, "heard", lambda _: heard.append("an engine"))
    monkeypatch.setattr(Words, "heard", lambda *_: heard.append("an engine's words"))
    served = [method.name for method in pb.DESCRIPTOR.services_by_name["Agent"].methods]
    refusals = dict[str, grpc.aio.AioRpcError]()
    async with world.caller(READER) as agent:
        for method in pb.DESCRIPTOR.services_by_name["Agent"].methods:
            made = METHODS[method.name](world.bench) if method.name in METHODS else GetMessageClass(method.input_type)()
            called = getattr(agent, method.name)(made, timeout=10)
            try:
                await (anext(aiter(called)) if method.server_streaming else called)
            except grpc.aio.AioRpcError as error:
                refusals[method.name] = error
        assert {name for name in served if name not in refusals} == LOOKS
        for name, error in refusals.items():
            refused = refusal_of(error)
            assert (error.code(), refused and refused.code) == (grpc.StatusCode.PERMISSION_DENIED, "SH615"), name
            assert READER in str(error.details()), name
        with pytest.raises(grpc.aio.AioRpcError):
            await anext(aiter(agent.Watch(pb.WatchRequest(epoch=7), timeout=10)))
        report = await agent.Inventory(pb.InventoryRequest(looks_on=False, taken=5.0, kept=5.0, presumed_s=1.0), timeout=10)
    assert [(w.spec.worker, w.state) for w in report.workers] == [("w", "running")]
    assert (report.epoch, world.bench.journal.epoch) == (0, 0)
    assert heard == [], "a reader is no engine that could be reached, whatever it says of itself"
    assert not world.bench.faults.done


async def test_a_readers_client_sees_the_node_and_checks_whose_it_is(world: World) -> None:
    """As `shunter plan` looks; and an agent of another name, though of the same authority, isn't taken for the node."""
    files = world.authority.issue("reader", READER)
    tls = EngineFiles(ca=world.authority.ca, cert=files.cert, key=files.key)
    client, other = (AgentClient(NodeId(node), f"127.0.0.1:{world.port}", tls, looks_on=True) for node in ("n", "m"))
    try:
        assert [w.id for w in (await client.view()).workers] == ["w"]
        with pytest.raises(Unknown, match=r"SH520 .*SH615 .*spiffe://shunter/reader"):
            await client.fence(pb.Order(operation="o1", epoch=1, worker="w", plan="p"), 5.0)
        with pytest.raises(Unknown, match="SH520"):
            await other.view()
    finally:
        await client.close()
        await other.close()
    assert world.bench.journal.epoch == 0


async def test_a_certificate_of_another_authority_gets_no_connection(world: World) -> None:
    async with world.caller(ENGINE, foreign=True) as agent:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await agent.Inventory(pb.InventoryRequest(), timeout=10)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_old_leader_is_refused_with_its_code(world: World) -> None:
    async with world.caller(ENGINE) as agent:
        await agent.Fence(world.bench.step(epoch=5), timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await agent.Freeze(world.bench.freeze(), timeout=10)  # epoch 1
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    refused = refusal_of(error.value)
    assert refused is not None
    assert refused.code == "SH601"
    assert refused.remedy
    assert world.bench.faults.done["freeze"] == 0


async def test_a_repeated_order_is_answered_from_the_journal(world: World) -> None:
    async with world.caller(ENGINE) as agent:
        first = await agent.Freeze(world.bench.freeze(), timeout=10)
        again = await agent.Freeze(world.bench.freeze(), timeout=10)
    assert first == again
    assert world.bench.faults.done["freeze"] == 1


async def test_each_kind_of_refusal_has_its_status(world: World) -> None:
    async with world.caller(ENGINE) as agent:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await agent.Release(world.bench.step(), timeout=10)
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        world.bench.faults.at["freeze"] = Rejected(problem("SH701"))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await agent.Freeze(world.bench.freeze(), timeout=10)
        refused = refusal_of(error.value)
        assert error.value.code() is grpc.StatusCode.INTERNAL
        assert refused is not None
        assert refused.code == "SH701"
        world.bench.faults.at["fence"] = ZeroDivisionError()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await agent.Fence(world.bench.step(), timeout=10)
        assert error.value.code() is grpc.StatusCode.UNKNOWN
        assert refusal_of(error.value) is None


async def test_a_drain_answers_before_its_callers_deadline(world: World) -> None:
    world.bench.serving.requests = 2
    async with world.caller(ENGINE) as agent:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await agent.Drain(world.bench.step(), timeout=1.2)
    refused = refusal_of(error.value)
    assert error.value.code() is grpc.StatusCode.INTERNAL
    assert refused is not None
    assert refused.code == "SH651"
    assert PROCESS in world.bench.runtime.running


async def test_watching_begins_with_a_hello_and_tells_of_exits(world: World) -> None:
    async with world.caller(ENGINE) as agent:
        events = agent.Watch(pb.WatchRequest(epoch=3), timeout=10)
        hello = await events.read()
        assert (hello.hello.node, hello.hello.epoch) == ("n", 3)
        world.bench.runtime.alive.clear()
        world.bench.node.worker_ended("w", -9)
        exit_event = await events.read()
        assert (exit_event.exit.worker, exit_event.exit.status) == ("w", -9)
        events.cancel()


async def test_the_journal_says_what_there_is(world: World) -> None:
    async with world.caller(ENGINE) as agent:
        await agent.Fence(world.bench.step(), timeout=10)
        await agent.Freeze(world.bench.freeze(), timeout=10)
        reply = await agent.Journal(pb.JournalRequest(operation="op"), timeout=10)
        nothing = await agent.Journal(pb.JournalRequest(operation="never"), timeout=10)
    assert [(entry.step, entry.state) for entry in reply.entries] == [("fence", "done"), ("freeze", "done")]
    assert (reply.copy, list(reply.images)) == ("frozen", ["image-op"])
    assert (list(nothing.entries), nothing.copy) == ([], "none")


def test_identity_is_the_only_uri() -> None:
    assert caller({"x509_subject_alternative_name": [ENGINE.encode(), b"engine.shunter"]}) == ENGINE
    assert caller({"x509_subject_alternative_name": [b"reader.shunter", READER.encode()]}) == READER
    for nobody in (
        {},
        {"x509_common_name": [ENGINE.encode()]},
        {"x509_subject_alternative_name": [READER.encode(), READER.encode()]},
        {"x509_subject_alternative_name": [READER.encode(), ENGINE.encode()]},
    ):
        assert caller(nobody) == ""


async def test_the_list_of_the_archive_travels_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the wire, to the engine's own client: what it has, it isn't sent again; nor is it where nobody asked for it."""
    world.bench.give_image()
    world.bench.depot.archive = {"image": world.bench.depot.whole.pop("image")}
    wanted, report = list[bool](), inventory.report

    async def told(node: Node, sizes: Sizes, looks: Looks, asked: pb.InventoryRequest) -> pb.NodeReport:
        wanted.append(asked.archive)
        return await report(node, sizes, looks, asked)

    monkeypatch.setattr(inventory, "report", told)
    monkeypatch.setattr(agents, "LISTS", Lists())
    files = world.authority.issue("engine", ENGINE)
    client = AgentClient(NodeId("n"), f"127.0.0.1:{world.port}", EngineFiles(ca=world.authority.ca, cert=files.cert, key=files.key))
    try:
        first, again = await client.view(), await client.view()
        assert [(i.id, i.nodes, i.archived) for i in first.archived] == [("image", (), True)]
        assert again.archived is first.archived
        assert wanted == [False, True, False]
        assert not (await client.report(5.0)).archived
        assert [i.id for i in (await client.report(5.0, ImageId("image"))).archived] == ["image"]
        world.bench.depot.faults.at["in_archive"] = Retry(problem("SH822"))
        with pytest.raises(Retry, match="SH822"):
            await client.report(5.0, ImageId("image"))
        await client.discard(pb.Order(operation="o1", epoch=1, worker="w", plan="p"), ImageId("image"), 5.0, archived=True)
        assert (await client.view()).archived == ()
    finally:
        await client.close()
