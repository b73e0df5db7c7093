"""What the executor asks of a node's agent. `agents.AgentClient` does it over gRPC; tests do it in memory."""

from collections.abc import Mapping
from typing import Literal, Protocol, cast, get_args

import msgspec

from shunter.model.ids import ImageId, NodeId, OperationId, SlotId
from shunter.model.pod import Pod
from shunter.wire import agent_pb2 as pb

Copy = Literal["running", "frozen", "held", "none"]


class CopyView(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent's journal says of an operation.

    `copy` is what there is of the operation's worker on that node now, `images` the worker's whole images there, `steps` the last state of
    each step that the agent was ordered (`begun`, `done`, `failed`, `undone`).
    """

    copy: Copy = "none"
    images: frozenset[ImageId] = frozenset()
    steps: Mapping[str, str] = {}


def copy_view(reply: pb.JournalReply) -> CopyView:
    """A journal's answer in the executor's terms. Raises ValueError for a copy of an unknown kind."""
    if reply.copy not in get_args(Copy):
        raise ValueError(f"{reply.copy!r} is not a state of a copy")
    return CopyView(
        copy=cast(Copy, reply.copy),
        images=frozenset(ImageId(i) for i in reply.images),
        steps={entry.step: entry.state for entry in reply.entries},
    )


class Agent(Protocol):
    """One node's agent. Every call has a deadline, `timeout` in seconds.

    All raise Rejected (nothing was done, or it was tried and undone), Retry (nothing was done, try later) or Unknown (SH520: the outcome
    must be found out through `journal`). Repeating a step of an operation is answered from the agent's journal and not done twice.
    """

    @property
    def node(self) -> NodeId:
        """The node that it answers for."""
        ...

    async def report(self, timeout: float, archived: ImageId | None = None) -> pb.NodeReport:
        """The node as it is now; of archived images `archived` alone, if the archive has it now. Rejected and Retry mean, where that is
        asked, that nobody can say."""
        ...

    async def journal(self, operation: OperationId, timeout: float) -> CopyView:
        """What it knows of an operation."""
        ...

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
        """Check without touching anything; `slot`, `facts`, `size` (bytes), `spec`, `uses` and `privileges` matter at a destination."""
        ...

    async def prepare(
        self,
        order: pb.Order,
        slot: SlotId,
        spec: pb.WorkerSpec,
        timeout: float,
        pod: Pod | None = None,
        container: pb.Contained | None = None,
    ) -> pb.Done:
        """Reserve the slot and make the worker's network identity. `pod` is what it comes to; None: it lives in none.

        `container` is the worker's own, which the pod's has to be like; None: it isn't known.
        """
        ...

    async def fence(self, order: pb.Order, timeout: float) -> pb.Done:
        """Out of the router's discovery."""
        ...

    async def unfence(self, order: pb.Order, timeout: float) -> pb.Done:
        """Back into it."""
        ...

    async def freeze(
        self, order: pb.Order, image: ImageId, to: pb.Peer | None, hold: float, timeout: float, ahead: float | None = None
    ) -> pb.FreezeReply:
        """Stop and dump; the image goes `to` another node while it is written, None: it stays. `hold` in seconds, and so is `ahead`, for
        which memory may be copied there before; None: as the agent thinks fit.
        """
        ...

    async def thaw(self, order: pb.Order, timeout: float) -> pb.Done:
        """Run on in place."""
        ...

    async def release(self, order: pb.Order, timeout: float) -> pb.Done:
        """End the frozen copy, and answer once it is dead."""
        ...

    async def restore(
        self, order: pb.Order, slot: SlotId, image: ImageId, hold: float, timeout: float, pod: Pod | None = None
    ) -> pb.RestoreReply:
        """Restore, held for at most `hold` seconds. `pod` as in `prepare`."""
        ...

    async def resume(self, order: pb.Order, timeout: float) -> pb.ResumeReply:
        """Let the held copy run, and probe it."""
        ...

    async def abort(self, order: pb.Order, timeout: float) -> pb.Done:
        """End a held copy and free the slot."""
        ...

    async def checkpoint(self, order: pb.Order, image: ImageId, timeout: float) -> pb.FreezeReply:
        """Take an image; the worker runs on."""
        ...

    async def send(self, order: pb.Order, image: ImageId, to: pb.Peer, timeout: float) -> pb.SendReply:
        """Copy an image to another node, or to the archive (`archives.ARCHIVE` as its address)."""
        ...

    async def drain(self, order: pb.Order, timeout: float) -> pb.Done:
        """Wait until it serves nothing, then end it."""
        ...

    async def discard(self, order: pb.Order, image: ImageId, timeout: float, *, archived: bool = False) -> pb.Done:
        """Delete an image on the node or, `archived`, in the archive."""
        ...
