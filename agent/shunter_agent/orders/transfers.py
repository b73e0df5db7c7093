"""Orders about whole images: send one to another node, delete one."""

import time

from shunter.model.errors import Rejected, Retry, Unknown
from shunter.wire import agent_pb2 as pb

from shunter_agent.convert import asked, deadline_of
from shunter_agent.depot import ARCHIVE
from shunter_agent.guard import Asked
from shunter_agent.node import FrozenCopy, HeldCopy, Node
from shunter_agent.orders.carry import Orders, Outcome
from shunter_agent.refusals import rejected, retry, undone


class Transfers:
    """Send and discard. One per agent."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._node = orders.node

    async def send(self, message: pb.SendOrder) -> pb.SendReply:
        """Send a whole image to another agent. Raises Rejected SH665, Undone when the transfer failed and left nothing there."""
        head, step = asked(message.order), f"send:{message.to.node}:{message.image}"
        return await self._orders.carry_out(step, head, pb.SendReply, lambda: self._send(head, step, message), message.image)

    async def _send(self, head: Asked, step: str, message: pb.SendOrder) -> Outcome[pb.SendReply]:
        node = self._node
        image = await node.in_thread(node.depot.get, message.image)
        if image is None:
            raise rejected("SH665", f"there is no whole image {message.image} here", "Send it from a node that holds it", head.worker)
        began = time.monotonic()
        node.busy_images.begin(message.image, head.operation)
        self._hold_on(head, node.settings.hold)
        try:
            progress = node.progress(head.operation, step, image.bytes)
            deadline = deadline_of(message.order)
            sent = await node.in_thread(node.depot.send, message.image, message.to.node, message.to.address, progress, deadline)
        except (Rejected, Retry) as error:
            raise undone(error.problem) from error
        except Unknown as error:  # it may be whole there: then sending it again finds that out, and sends nothing
            raise Retry(error.problem) from error
        finally:
            node.busy_images.end(message.image, head.operation)
            self._hold_on(head)
        took = time.monotonic() - began
        return Outcome(pb.SendReply(bytes_sent=sent, send_s=took), detail=f"{sent} bytes to {message.to.node} in {took:.2f} s")

    def _hold_on(self, head: Asked, seconds: float | None = None) -> None:
        """A worker that stands still for this operation may go on doing so: for its hold, or for the longest one while an order is at work,
        and no longer than that."""
        copy = self._node.frozen.get(head.worker)
        if copy is not None and copy.operation == head.operation:
            copy.until = self._node.elapsed() + (copy.hold_s if seconds is None else seconds)

    async def discard(self, message: pb.DiscardOrder) -> pb.Done:
        """Delete an image, here or in the archive.

        Raises Retry SH666 while an unfinished operation here needs it, SH822; Rejected SH825.
        """
        head, step = asked(message.order), f"discard:{message.image}"
        if message.archived:
            step = f"discard:{ARCHIVE}:{message.image}"
            return await self._orders.carry_out(step, head, pb.Done, lambda: self._discard_archived(message.image), message.image)
        return await self._orders.carry_out(step, head, pb.Done, lambda: self._discard(message.image), message.image)

    async def _discard(self, image: str) -> Outcome[pb.Done]:
        node = self._node
        if user := needed_by(node, image):
            raise retry("SH666", f"operation {user} needs the image", "Wait until that operation has ended", image)
        existed = await node.in_thread(node.depot.discard, image)
        detail = "deleted" if existed else "there was no such image here"
        return Outcome(pb.Done(at=node.clock(), detail=detail), detail=detail)

    async def _discard_archived(self, image: str) -> Outcome[pb.Done]:
        node = self._node
        if user := needed_by(node, image):
            raise retry("SH666", f"operation {user} needs the image", "Wait until that operation has ended", image)
        existed = await node.in_thread(node.depot.discard_archived, image)
        detail = "deleted in the archive" if existed else "there was no such image in the archive"
        return Outcome(pb.Done(at=node.clock(), detail=detail), detail=detail)


def needed_by(node: Node, image: str) -> str | None:
    """The operation that has the image in use here, or None."""
    standing: list[FrozenCopy | HeldCopy] = [*node.frozen.values(), *node.held.values()]
    for copy in standing:
        if copy.image == image:
            return copy.operation
    return node.busy_images.user(image)
