"""The agent's gRPC server: mutual TLS, the caller's identity on every call, and refusals in a form that engines can act on."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeVar

import grpc
from google.protobuf.message import Message
from shunter.model.errors import Problem, Rejected, Retry, ShunterError, Stalled
from shunter.wire import agent_pb2 as pb
from shunter.wire import agent_pb2_grpc as rpc
from shunter.wire.convert import REFUSAL_KEY, refusal

from shunter_agent import inventory
from shunter_agent.callers import caller, refused
from shunter_agent.capacity import Looks
from shunter_agent.guard import check_epoch
from shunter_agent.node import Node
from shunter_agent.orders.carry import Orders
from shunter_agent.orders.destination import Destination
from shunter_agent.orders.source import Source
from shunter_agent.orders.transfers import Transfers
from shunter_agent.preflight import preflight
from shunter_agent.refusals import Undone
from shunter_agent.sizes import Sizes
from shunter_agent.standing import Standing
from shunter_agent.tls import READER, TlsFiles

M = TypeVar("M", bound=Message)


class Context(Protocol):
    """What is used of a gRPC call's context; gRPC's own class has no types."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: tuple[tuple[str, bytes], ...] = ()) -> NoReturn:
        """End the call with a status."""
        ...

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What is known of the caller's certificate."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline, None without one."""
        ...


DRAIN_S: Final = 60.0
"""Seconds that a drain waits when its caller set no deadline."""
MARGIN_S: Final = 0.5
"""A drain gives up so long before its caller's deadline, so that the caller hears of it."""


class AgentService(rpc.AgentServicer):
    """Implements schemas/agent.proto."""

    def __init__(self, node: Node, orders: Orders) -> None:
        self._node = node
        self._orders = orders
        self.source = Source(orders)
        self.destination = Destination(orders)
        self._transfers = Transfers(orders)
        self._sizes, self._looks = Sizes(node), Looks(node)
        self.standing = Standing(orders, self.source, self._transfers)

    async def Inventory(self, request: pb.InventoryRequest, context: Context) -> pb.NodeReport:
        """See schemas/agent.proto, as for all that follow."""
        who = await _admit(context, looks=True)
        if who == READER or request.looks_on:  # neither decides anything for this node, whatever a reader says
            return await _answered(context, lambda: self._report(request))

        async def told() -> pb.NodeReport:
            words, asked_at = self.standing.words, self._node.elapsed()
            words.heard(request.taken, request.kept, request.presumed_s)
            report = await self._report(request)
            words.reported(report.at, self._node.notices, asked_at)
            return report

        return await self._answer(context, told)

    async def _report(self, request: pb.InventoryRequest) -> pb.NodeReport:
        report = await inventory.report(self._node, self._sizes, self._looks, request)
        report.stood.extend(self.standing.reports())
        report.problems.extend(refusal(problem) for problem in self.standing.words.problems())
        return report

    async def Journal(self, request: pb.JournalRequest, context: Context) -> pb.JournalReply:  # noqa: D102
        return await self._answer(context, lambda: inventory.journal(self._node, request.operation))

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.Event]:  # noqa: D102
        await _admit(context)
        self.standing.heard()
        node = self._node
        try:
            check_epoch(request.epoch, node.journal.epoch)
            node.journal.raise_epoch(request.epoch)
        except ShunterError as error:
            await _refuse(context, error)
        reader = node.events.subscribe()
        try:
            yield pb.Event(hello=pb.Hello(node=node.settings.node, epoch=node.journal.epoch))
            async for event in reader:
                yield event
        finally:
            reader.close()

    async def Preflight(self, request: pb.PreflightOrder, context: Context) -> pb.PreflightReply:  # noqa: D102
        return await self._answer(context, lambda: preflight(self._node, request))

    async def Prepare(self, request: pb.PrepareOrder, context: Context) -> pb.Done:  # noqa: D102
        return await self._answer(context, lambda: self.destination.prepare(request))

    async def Fence(self, request: pb.StepOrder, context: Context) -> pb.Done:  # noqa: D102
        return await self._answer(context, lambda: self.source.fence(request))

    async def Unfence(self, request: pb.StepOrder, context: Context) -> pb.Done:  # noqa: D102
        return await self._answer(context, lambda: self.source.unfence(request))

    async def Freeze(self, request: pb.FreezeOrder, context: Context) -> pb.FreezeReply:  # noqa: D102
        return await self._answer(context, lambda: self.source.freeze(request, context.time_remaining()))

    async def Thaw(self, request: pb.StepOrder, context: Context) -> pb.Done:  # noqa: D102
        return await self._answer(context, lambda: self.source.thaw(request))

    async def Release(self, request: pb.StepOrder, context: Context) -> pb.Done:  # noqa: D102
        return await self._answer(context, lambda: self.source.release(request))

    async def Restore(self, request: pb.RestoreOrder, context: Context) -> pb.RestoreReply:  # noqa: D102
        return await self._answer(context, lambda: self.destination.restore(request))

    async def Resume(self, request: pb.StepOrder, context: Context) -> pb.ResumeReply:  # noqa: D102
        return await self._answer(context, lambda: self.destination.resume(request))

    async def Abort(self, request: pb.StepOrder, context: Context) -> pb.Done:  # noqa: D102
        return await self._answer(context, lambda: self.destination.abort(request))

    async def Checkpoint(self, request: pb.CheckpointOrder, context: Context) -> pb.FreezeReply:  # noqa: D102
        return await self._answer(context, lambda: self.source.checkpoint(request))

    async def Send(self, request: pb.SendOrder, context: Context) -> pb.SendReply:  # noqa: D102
        return await self._answer(context, lambda: self._transfers.send(request))

    async def Drain(self, request: pb.StepOrder, context: Context) -> pb.Done:  # noqa: D102
        left = context.time_remaining()
        within = DRAIN_S if left is None else max(0.0, left - MARGIN_S)
        return await self._answer(context, lambda: self.source.drain(request, within))

    async def Discard(self, request: pb.DiscardOrder, context: Context) -> pb.Done:  # noqa: D102
        return await self._answer(context, lambda: self._transfers.discard(request))

    async def Stand(self, request: pb.StandOrder, context: Context) -> pb.Done:  # noqa: D102
        return await self._answer(context, lambda: self.standing.keep(request))

    async def _answer(self, context: Context, work: Callable[[], Awaitable[M]]) -> M:
        """What the engine asks for, and nobody else gets."""
        await _admit(context)
        self.standing.heard()
        return await _answered(context, work)


async def _answered(context: Context, work: Callable[[], Awaitable[M]]) -> M:
    try:
        return await work()
    except ShunterError as error:
        await _refuse(context, error)


def status_of(error: ShunterError) -> grpc.StatusCode:
    """The gRPC status that tells an engine what a failure means; UNKNOWN carries no refusal."""
    if isinstance(error, Undone):
        return grpc.StatusCode.INTERNAL
    if isinstance(error, Retry):
        return grpc.StatusCode.ABORTED
    if isinstance(error, Rejected | Stalled):
        return grpc.StatusCode.FAILED_PRECONDITION
    return grpc.StatusCode.UNKNOWN


async def _refuse(context: Context, error: ShunterError) -> NoReturn:
    status = status_of(error)
    trailing = () if status is grpc.StatusCode.UNKNOWN else ((REFUSAL_KEY, refusal(error.problem).SerializeToString()),)
    await context.abort(status, str(error.problem), trailing)


async def _admit(context: Context, *, looks: bool = False) -> str:
    """Who calls, where that is somebody who may: the engine, and a reader that `looks`. Refuses all others: SH609, SH615."""
    who = caller(context.auth_context())
    problem = refused(who, looks=looks)
    if problem is not None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(problem), ((REFUSAL_KEY, refusal(problem).SerializeToString()),))
    return who


def make_server(service: AgentService, tls: TlsFiles, listen: str) -> tuple[grpc.aio.Server, int]:
    """A server that isn't started yet, and the port that it is bound to. Raises Stalled SH668 when the files or the port can't be had."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 4 << 20)))
    rpc.add_AgentServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    try:
        credentials = grpc.ssl_server_credentials(
            [(_read(tls.key), _read(tls.cert))], root_certificates=_read(tls.ca), require_client_auth=True
        )
        port = server.add_secure_port(listen, credentials)
    except (OSError, RuntimeError, ValueError) as error:
        raise Stalled(
            Problem(
                code="SH668",
                what=f"the agent can't listen at {listen}: {error}",
                remedy="Check `listen` and the TLS files in its settings, and that no other agent runs here",
                subject=listen,
            )
        ) from error
    return server, port


def _read(path: Path) -> bytes:
    return path.read_bytes()
