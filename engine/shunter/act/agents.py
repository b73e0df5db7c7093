"""The agents over gRPC with mutual TLS: typed calls, each with a deadline, and failures sorted by what they say about the effect."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import msgspec

from shunter.act.archives import LISTS, Listed, listed
from shunter.act.port import CopyView, copy_view
from shunter.model.canon import decode
from shunter.model.errors import Problem, Rejected, Retry, ShunterError, Stalled, Unknown
from shunter.model.ids import Epoch, ImageId, NodeId, OperationId, SlotId
from shunter.model.pod import Pod
from shunter.model.standing import Stood
from shunter.model.view import NodeView
from shunter.wire import agent_pb2 as pb
from shunter.wire import convert
from shunter.wire.agent_pb2_grpc import AgentStub

T = TypeVar("T")
_MESSAGE_BYTES = 16 * 2**20
"""A node's report lists its images; far more than any real one, and a bound for a broken one."""


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files: the certificate authority of all agents, the engine's own certificate and its key."""

    ca: Path
    cert: Path
    key: Path


def view_of(report: pb.NodeReport, seen: Listed | None = None) -> NodeView:
    """A report in model terms; `seen` is what the archive has by it (None: as it says itself). Raises ValueError when it says something
    that this engine has no word for."""
    node = convert.node(report)
    archive_looked, archived = seen or (report.archive_looked, listed(report))
    return NodeView(
        node=node,
        workers=tuple(sorted((convert.worker(w, node.id) for w in report.workers), key=lambda w: w.id)),
        images=tuple(sorted((convert.image(i, node.id) for i in report.images), key=lambda i: i.id)),
        notices=tuple(sorted((convert.notice(n, node.id) for n in report.notices), key=lambda n: n.id)),
        epoch=Epoch(report.epoch),
        at=report.at,
        image_address=report.image_address,
        archive_looked=archive_looked,
        archived=archived,
        stood=tuple(decode(body, Stood) for body in report.stood),
    )


def failure(error: grpc.RpcError, node: NodeId, call: str) -> ShunterError:
    """What a failed call says about its effect: Rejected, Retry, or Unknown when it carries no refusal.

    A connection that failed before anything was sent looks like one that broke after it, so UNAVAILABLE is Unknown too.
    """
    refused = convert.refusal_of(error)
    code = error.code() if isinstance(error, grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
    if refused is not None:
        if code is grpc.StatusCode.ABORTED:
            return Retry(refused)
        if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INTERNAL):
            return Rejected(refused)
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
    return Unknown(
        Problem(
            code="SH520",
            what=f"{call} got no answer from the agent of {node}: {code.name.lower().replace('_', ' ')}, {details}",
            remedy="Nothing to do yet: the agent's journal is asked until it says what was done. Check that the node is up and reachable",
            subject=node,
        )
    )


def _of_pod(pod: Pod | None) -> dict[str, str]:
    if pod is None:
        return {}
    return {"pod_uid": pod.uid, "pod_namespace": pod.namespace, "pod_name": pod.name, "pod_container": pod.container}


class AgentClient:
    """One node's agent: an `Agent` for the executor, and views and events for the observer.

    The server has to show a certificate of our CA for `<node>.agent.shunter`: whatever answers at the address, it is that node's agent.
    """

    def __init__(self, node: NodeId, address: str, tls: TlsFiles, *, looks_on: bool = False, presumed: float = 0.0) -> None:
        """`address` is host:port; connects when first used. Needs a running event loop. Raises Stalled SH509 for unreadable files.

        `looks_on`: who asks leads nothing. To the node it is as if no engine had asked. `presumed`: see schemas/agent.proto.
        """
        self._node, self._looks_on = node, looks_on
        self._heard = pb.InventoryRequest(looks_on=looks_on, presumed_s=presumed)
        try:
            credentials = grpc.ssl_channel_credentials(tls.ca.read_bytes(), tls.key.read_bytes(), tls.cert.read_bytes())
        except OSError as error:
            raise Stalled(
                Problem(
                    code="SH509",
                    what=f"the engine's TLS files can't be read: {error}",
                    remedy="Make them with `shunter certs`, and check the [tls] section of the engine's settings",
                    subject=str(error.filename),
                )
            ) from error
        options = (
            ("grpc.ssl_target_name_override", f"{node}.agent.shunter"),
            ("grpc.max_receive_message_length", _MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 3_000),
            ("grpc.enable_retries", 0),
        )
        self._channel = grpc.aio.secure_channel(address, credentials, options=options)
        self._stub = AgentStub(self._channel)  # type: ignore[no-untyped-call, unused-ignore]

    @property
    def node(self) -> NodeId:
        """See `Agent`."""
        return self._node

    async def close(self) -> None:
        """End the connection, and with it all calls under way."""
        await self._channel.close()

    def took(self, taken: float, kept: float, presumed: float) -> None:
        """Have the node know by its next question what was taken in of its reports: see schemas/agent.proto."""
        self._heard = pb.InventoryRequest(looks_on=self._looks_on, taken=taken, kept=kept, presumed_s=presumed)

    async def view(self, timeout: float = 2.0) -> NodeView:
        """The node as it is now. Raises Unknown SH520, also for a report that can't be understood."""
        until = time.monotonic() + timeout
        report = await self.report(timeout)
        if report.node != self._node:
            raise self._nonsense(f"it says that it is {report.node!r}")
        try:
            return view_of(report, await LISTS.of(report, lambda: self._inventory(until - time.monotonic(), archive=True)))
        except (ValueError, msgspec.MsgspecError) as error:
            raise self._nonsense(str(error)) from error

    async def watch(self, epoch: Epoch) -> AsyncIterator[pb.Event]:
        """Its events as they happen; the first is a Hello. Ends by Unknown SH520 when the stream breaks: watch anew, and take a view."""
        try:
            async for event in self._stub.Watch(pb.WatchRequest(epoch=epoch)):
                yield event
        except grpc.RpcError as error:
            raise failure(error, self._node, "Watch") from error

    async def report(self, timeout: float, archived: ImageId | None = None) -> pb.NodeReport:
        """See `Agent`."""
        return await self._inventory(timeout, archived=archived or "")

    async def _inventory(self, timeout: float, *, archive: bool = False, archived: str = "") -> pb.NodeReport:
        request = pb.InventoryRequest(archive=archive, archived=archived)
        request.MergeFrom(self._heard)
        return await self._ask("Inventory", self._stub.Inventory, request, timeout, pb.NodeReport)

    async def journal(self, operation: OperationId, timeout: float) -> CopyView:
        """See `Agent`."""
        reply = await self._ask("Journal", self._stub.Journal, pb.JournalRequest(operation=operation), timeout, pb.JournalReply)
        try:
            return copy_view(reply)
        except ValueError as error:
            raise self._nonsense(str(error)) from error

    async def preflight(
        self,
        order: pb.Order,
        *,
        destination: bool,
        slot: SlotId | None,
        facts: Mapping[str, str],
        size: int,
        timeout: float,
        spec: pb.WorkerSpec | None = None,
        uses: pb.Uses | None = None,
        privileges: pb.Privileges | None = None,
    ) -> pb.PreflightReply:
        """See `Agent`."""
        message = pb.PreflightOrder(
            order=order,
            destination=destination,
            slot=slot or "",
            facts=facts,
            bytes=size,
            spec=spec,
            uses=uses,
            privileges=privileges,
        )
        return await self._ask("Preflight", self._stub.Preflight, message, timeout, pb.PreflightReply)

    async def prepare(
        self,
        order: pb.Order,
        slot: SlotId,
        spec: pb.WorkerSpec,
        timeout: float,
        pod: Pod | None = None,
        container: pb.Contained | None = None,
    ) -> pb.Done:
        """See `Agent`."""
        message = pb.PrepareOrder(order=order, slot=slot, spec=spec, container=container, **_of_pod(pod))
        return await self._ask("Prepare", self._stub.Prepare, message, timeout, pb.Done)

    async def fence(self, order: pb.Order, timeout: float) -> pb.Done:
        """See `Agent`."""
        return await self._step("Fence", self._stub.Fence, order, timeout)

    async def unfence(self, order: pb.Order, timeout: float) -> pb.Done:
        """See `Agent`."""
        return await self._step("Unfence", self._stub.Unfence, order, timeout)

    async def freeze(
        self, order: pb.Order, image: ImageId, to: pb.Peer | None, hold: float, timeout: float, ahead: float | None = None
    ) -> pb.FreezeReply:
        """See `Agent`."""
        message = pb.FreezeOrder(order=order, image=image, to=to, hold_s=hold, ahead_s=ahead)
        return await self._ask("Freeze", self._stub.Freeze, message, timeout, pb.FreezeReply)

    async def thaw(self, order: pb.Order, timeout: float) -> pb.Done:
        """See `Agent`."""
        return await self._step("Thaw", self._stub.Thaw, order, timeout)

    async def release(self, order: pb.Order, timeout: float) -> pb.Done:
        """See `Agent`."""
        return await self._step("Release", self._stub.Release, order, timeout)

    async def restore(
        self, order: pb.Order, slot: SlotId, image: ImageId, hold: float, timeout: float, pod: Pod | None = None
    ) -> pb.RestoreReply:
        """See `Agent`."""
        message = pb.RestoreOrder(order=order, slot=slot, image=image, hold_s=hold, **_of_pod(pod))
        return await self._ask("Restore", self._stub.Restore, message, timeout, pb.RestoreReply)

    async def resume(self, order: pb.Order, timeout: float) -> pb.ResumeReply:
        """See `Agent`."""
        return await self._ask("Resume", self._stub.Resume, pb.StepOrder(order=order), timeout, pb.ResumeReply)

    async def abort(self, order: pb.Order, timeout: float) -> pb.Done:
        """See `Agent`."""
        return await self._step("Abort", self._stub.Abort, order, timeout)

    async def checkpoint(self, order: pb.Order, image: ImageId, timeout: float) -> pb.FreezeReply:
        """See `Agent`."""
        message = pb.CheckpointOrder(order=order, image=image)
        return await self._ask("Checkpoint", self._stub.Checkpoint, message, timeout, pb.FreezeReply)

    async def send(self, order: pb.Order, image: ImageId, to: pb.Peer, timeout: float) -> pb.SendReply:
        """See `Agent`."""
        return await self._ask("Send", self._stub.Send, pb.SendOrder(order=order, image=image, to=to), timeout, pb.SendReply)

    async def drain(self, order: pb.Order, timeout: float) -> pb.Done:
        """See `Agent`."""
        return await self._step("Drain", self._stub.Drain, order, timeout)

    async def discard(self, order: pb.Order, image: ImageId, timeout: float, *, archived: bool = False) -> pb.Done:
        """See `Agent`."""
        message = pb.DiscardOrder(order=order, image=image, archived=archived)
        return await self._ask("Discard", self._stub.Discard, message, timeout, pb.Done)

    async def stand(self, order: pb.StandOrder, timeout: float) -> pb.Done:
        """Give it a standing order, in the place of the one before. Raises as `Agent` does."""
        return await self._ask("Stand", self._stub.Stand, order, timeout, pb.Done)

    async def _step(self, call: str, method: Callable[..., Awaitable[object]], order: pb.Order, timeout: float) -> pb.Done:
        return await self._ask(call, method, pb.StepOrder(order=order), timeout, pb.Done)

    async def _ask(self, call: str, method: Callable[..., Awaitable[object]], message: object, timeout: float, kind: type[T]) -> T:
        try:
            reply = await method(message, timeout=timeout)
        except grpc.RpcError as error:
            raise failure(error, self._node, call) from error
        assert isinstance(reply, kind)
        return reply

    def _nonsense(self, what: str) -> Unknown:
        return Unknown(
            Problem(
                code="SH520",
                what=f"the agent of {self._node} gave an answer that makes no sense: {what}",
                remedy="Check its address in the engine's settings, and that engine and agent are of the same version",
                subject=self._node,
            )
        )
