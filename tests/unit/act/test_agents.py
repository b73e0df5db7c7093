"""The client over real mutual TLS on loopback: who answers is checked, and failures say what they say about the effect."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from shunter.act.agents import AgentClient, TlsFiles
from shunter.model.errors import Problem, Rejected, Retry, Stalled, Unknown
from shunter.model.ids import Epoch, ImageId, NodeId, OperationId
from shunter.wire import agent_pb2 as pb
from shunter.wire import convert
from shunter.wire.agent_pb2_grpc import AgentServicer, add_AgentServicer_to_server

ORDER = pb.Order(operation="op", epoch=3, plan="p", worker="w", incarnation=1)


class Authority:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
        ca = self._builder(self.name, self.key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        (folder / "ca.pem").write_bytes(ca.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )

    def issue(self, name: str, uri: str, dns: str) -> TlsFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri), x509.DNSName(dns)])
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        cert = self._builder(subject, key).add_extension(names, critical=False).sign(self.key, hashes.SHA256())
        files = TlsFiles(ca=self.folder / "ca.pem", cert=self.folder / f"{name}.pem", key=self.folder / f"{name}.key")
        files.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return files


class Servicer(AgentServicer):
    """Answers each call as its method's entry in `answers` says: a message, or a status with or without a refusal."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.status: grpc.StatusCode | None = None
        self.refusal: Problem | None = None
        self.report = pb.NodeReport(node="a", at=5.0, epoch=3, runtime="criu", image_address="a:1")

    async def _answer(self, request: object, context: grpc.aio.ServicerContext, reply: object) -> object:
        self.asked.append(request)
        if self.status is not None:
            trailing = ((convert.REFUSAL_KEY, convert.refusal(self.refusal).SerializeToString()),) if self.refusal else ()
            await context.abort(self.status, "no", trailing)
        return reply

    async def Inventory(self, request: pb.InventoryRequest, context: grpc.aio.ServicerContext) -> object:
        return await self._answer(request, context, self.report)

    async def Journal(self, request: pb.JournalRequest, context: grpc.aio.ServicerContext) -> object:
        entries = [pb.JournalEntry(step="freeze", state="done")]
        return await self._answer(request, context, pb.JournalReply(copy="frozen", images=["i"], entries=entries))

    async def Freeze(self, request: pb.FreezeOrder, context: grpc.aio.ServicerContext) -> object:
        return await self._answer(request, context, pb.FreezeReply(frozen_at=9.0))

    async def Release(self, request: pb.StepOrder, context: grpc.aio.ServicerContext) -> object:
        return await self._answer(request, context, pb.Done(at=1.0))

    async def Watch(self, request: pb.WatchRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[pb.Event]:
        yield pb.Event(hello=pb.Hello(node="a", epoch=request.epoch))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")


Connect = Callable[..., AgentClient]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Servicer, Connect]]:
    authority = Authority(tmp_path)
    mine = authority.issue("engine", "spiffe://shunter/engine", "engine.shunter")
    its = authority.issue("a", "spiffe://shunter/agent/a", "a.agent.shunter")
    servicer, server = Servicer(), grpc.aio.server()
    add_AgentServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    pair = [(its.key.read_bytes(), its.cert.read_bytes())]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair, its.ca.read_bytes(), require_client_auth=True))
    await server.start()
    clients: list[AgentClient] = []

    def connect(node: str, **more: Any) -> AgentClient:
        clients.append(AgentClient(NodeId(node), f"127.0.0.1:{port}", mine, **more))
        return clients[-1]

    yield servicer, connect
    for client in clients:
        await client.close()
    await server.stop(None)


async def test_orders_views_and_journals(served: tuple[Servicer, Connect]) -> None:
    servicer, connect = served
    client = connect("a")
    reply = await client.freeze(ORDER, ImageId("i"), pb.Peer(node="b", address="b:1"), 30.0, 5)
    assert reply.frozen_at == 9.0
    assert servicer.asked == [pb.FreezeOrder(order=ORDER, image="i", to=pb.Peer(node="b", address="b:1"), hold_s=30.0)]
    found = await client.journal(OperationId("op"), 5)
    assert (found.copy, found.images, found.steps) == ("frozen", {"i"}, {"freeze": "done"})
    view = await client.view()
    assert (view.node.id, view.epoch, view.at) == ("a", 3, 5.0)


async def test_who_looks_on_says_so(served: tuple[Servicer, Connect]) -> None:
    servicer, connect = served
    await connect("a").view()
    await connect("a", looks_on=True).view()
    assert servicer.asked == [pb.InventoryRequest(), pb.InventoryRequest(looks_on=True)]


async def test_an_image_that_stays_names_no_peer(served: tuple[Servicer, Connect]) -> None:
    servicer, connect = served
    await connect("a").freeze(ORDER, ImageId("i"), None, 30.0, 5)
    (asked,) = servicer.asked
    assert isinstance(asked, pb.FreezeOrder)
    assert not asked.HasField("to")


@pytest.mark.parametrize(
    ("status", "refusal", "kind"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, True, Rejected),
        (grpc.StatusCode.INTERNAL, True, Rejected),
        (grpc.StatusCode.ABORTED, True, Retry),
        (grpc.StatusCode.INTERNAL, False, Unknown),
        (grpc.StatusCode.ABORTED, False, Unknown),
        (grpc.StatusCode.UNAVAILABLE, False, Unknown),
        (grpc.StatusCode.UNKNOWN, True, Unknown),
    ],
)
async def test_failures(served: tuple[Servicer, Connect], status: grpc.StatusCode, refusal: bool, kind: type[Exception]) -> None:
    servicer, connect = served
    servicer.status = status
    servicer.refusal = Problem(code="SH606", what="not frozen", remedy="plan again", subject="w") if refusal else None
    with pytest.raises((Rejected, Retry, Unknown)) as failed:
        await connect("a").release(ORDER, 5)
    assert type(failed.value) is kind
    assert failed.value.problem.code == ("SH520" if kind is Unknown else "SH606")


async def test_a_call_past_its_deadline_is_unknown(served: tuple[Servicer, Connect], monkeypatch: pytest.MonkeyPatch) -> None:
    servicer, connect = served
    forever = asyncio.Event()

    async def hang(request: object, context: object, reply: object) -> object:
        await forever.wait()
        return reply

    answer: Callable[..., Awaitable[object]] = hang
    monkeypatch.setattr(servicer, "_answer", answer)
    with pytest.raises(Unknown, match="deadline exceeded"):
        await connect("a").release(ORDER, 0.3)


async def test_another_nodes_agent_is_not_believed(served: tuple[Servicer, Connect]) -> None:
    servicer, connect = served
    with pytest.raises(Unknown):
        await connect("b").release(ORDER, 2)
    assert servicer.asked == [], "the order never left: the certificate isn't b's"


async def test_a_report_that_makes_no_sense(served: tuple[Servicer, Connect]) -> None:
    servicer, connect = served
    servicer.report.workers.add(spec=pb.WorkerSpec(worker="w", role="juggler"), state="running")
    with pytest.raises(Unknown, match="juggler"):
        await connect("a").view()


async def test_events_until_the_stream_breaks(served: tuple[Servicer, Connect]) -> None:
    _, connect = served
    seen: list[pb.Event] = []

    async def collect() -> None:
        async for event in connect("a").watch(Epoch(4)):
            seen.append(event)

    with pytest.raises(Unknown, match="SH520"):
        await collect()
    assert [e.hello.epoch for e in seen] == [4]


async def test_missing_files_are_named(tmp_path: Path) -> None:
    missing = TlsFiles(ca=tmp_path / "ca.pem", cert=tmp_path / "c.pem", key=tmp_path / "k.pem")
    with pytest.raises(Stalled, match=r"SH509.*ca\.pem"):
        AgentClient(NodeId("a"), "127.0.0.1:1", missing)
