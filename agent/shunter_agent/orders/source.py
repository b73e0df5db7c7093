"""Orders to a node about a worker that lives on it: fence, freeze, thaw, release, checkpoint, drain."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from shunter.model.errors import Rejected, Retry, ShunterError, Stalled, Unknown
from shunter.wire import agent_pb2 as pb

from shunter_agent.convert import asked, deadline_of, image_message
from shunter_agent.depot import ImageFacts, Sending
from shunter_agent.gpus import facts_for, gone
from shunter_agent.guard import Asked
from shunter_agent.journal import WorkerRow
from shunter_agent.node import FrozenCopy, Hidden, Leaving
from shunter_agent.notices.doubts import of_image
from shunter_agent.orders.ahead import Copied, copy_ahead
from shunter_agent.orders.carry import Orders, Outcome
from shunter_agent.orders.settling import TRAFFIC_S, hide, settle, show
from shunter_agent.orders.streams import gone_on
from shunter_agent.refusals import Undone, rejected, retry, undone
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.port import Frozen
from shunter_agent.urgency import is_urgent

BEGIN_S: Final = 30.0
"""Seconds that disks and links may take before a worker is stopped: there is nothing to be read or written for that yet."""
TICK_S: Final = 0.001
LOOK_S: Final = 0.25
"""Seconds between looks at a worker that drains."""
_RUNS: Final = (Retry, Stalled)
"""What `Source._go_on` raises of a worker that runs, for its network's sake or the journal's. After anything else it may be dead."""


class Source:
    """The source's side. One per agent."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._node = orders.node
        self._after: dict[str, float] = {}
        """No image of a worker may be said to be taken before this moment (seconds since the epoch)."""

    # -- traffic

    async def fence(self, message: pb.StepOrder) -> pb.Done:
        """Take the worker out of discovery. See `serving.port.Serving.fence`."""
        head = asked(message.order)
        return await self._orders.carry_out("fence", head, pb.Done, lambda: self._fence(head))

    async def _fence(self, head: Asked) -> Outcome[pb.Done]:
        node = self._node
        evidence = await hide(node, head.operation, node.row(head.worker))

        def write() -> None:
            node.change(head.worker, state="fenced")
            node.journal.undo(head.operation, ("unfence",), node.clock(), "fenced again")

        return Outcome(pb.Done(at=node.clock(), detail=evidence), write, evidence)

    async def unfence(self, message: pb.StepOrder) -> pb.Done:
        """Put the worker back into discovery, at the source after a rollback or at the destination at the end."""
        head = asked(message.order)
        return await self._orders.carry_out("unfence", head, pb.Done, lambda: self._unfence(head))

    async def _unfence(self, head: Asked) -> Outcome[pb.Done]:
        node, row = self._node, self._node.row(head.worker)
        if row.state == "frozen":
            raise rejected("SH606", "unfence was refused: the worker stands still", "Thaw it first", head.worker)
        evidence = await node.in_time(TRAFFIC_S, "to show the worker to the router", node.serving.unfence, row.spec)

        found = await gone_on(node, head.worker, row.process)
        detail = "; ".join(filter(None, (evidence, str(found))))

        def write() -> None:
            node.change(head.worker, state="running", operation="")
            node.journal.undo(head.operation, ("fence",), node.clock(), "unfenced")

        return Outcome(pb.Done(at=node.clock(), detail=detail, connections=found.had, ended=found.ended, moved=found.moved), write, detail)

    # -- freezing

    async def freeze(self, message: pb.FreezeOrder, within_s: float | None = None) -> pb.FreezeReply:
        """Stop and dump the worker, sending the image meanwhile; keep it standing still for `hold_s`.

        Before that its memory is copied while it runs (see `copy_ahead`). `within_s` is how long the caller waits; None: it doesn't say.

        Raises Undone when it was tried and the worker runs on; Rejected SH608 for a hold that isn't allowed.
        """
        head = asked(message.order)
        if not 0 < message.hold_s <= self._node.settings.hold:
            raise rejected(
                "SH608",
                f"a hold of {message.hold_s:g} s was asked for, allowed are up to {self._node.settings.hold:g} s",
                "Change the engine's hold, or `hold` in the agent's settings",
            )
        return await self._orders.carry_out("freeze", head, pb.FreezeReply, lambda: self._freeze(head, message, within_s))

    async def _freeze(self, head: Asked, message: pb.FreezeOrder, within_s: float | None) -> Outcome[pb.FreezeReply]:
        node, row = self._node, self._node.row(head.worker)
        folder, expected = await self._begin(message.image, row, message.order)
        node.busy_images.begin(message.image, head.operation)
        sending: Sending | None = None
        copied = Copied()
        try:
            if message.to.address:
                progress = node.progress(head.operation, "freeze", expected)
                sending = await node.in_time(
                    BEGIN_S,
                    "to begin with sending the image",
                    node.depot.sending,
                    folder,
                    message.image,
                    message.to.node,
                    message.to.address,
                    progress,
                    expected,
                    head.worker,
                    deadline_of(message.order) or self._earliest(row),
                    late=lambda begun: begun.cancel(),
                )
                copied = await copy_ahead(node, row, sending, within_s, message.ahead_s if message.HasField("ahead_s") else None)
            frozen = await self._stop(row, folder)
        except BaseException:
            node.busy_images.end(message.image, head.operation)
            await self._drop(message.image, sending)
            raise
        copy = FrozenCopy(head.operation, frozen, node.elapsed() + message.hold_s, row.state == "fenced", message.image, message.hold_s)
        node.frozen[head.worker] = copy
        dumped_at = time.monotonic()
        keeping: asyncio.Task[ImageFacts] | None = None
        try:
            keeping = asyncio.create_task(self._keep(message.image, row, frozen, sending))
            await asyncio.sleep(0)  # it goes on while the journal waits for a disk that the dump keeps busy
            node.change(head.worker, state="frozen")
            image = await self._within(keeping, message.hold_s, head.worker)
        except BaseException as error:
            await self._take_back(row, copy, sending, keeping)
            if isinstance(error, ShunterError):
                raise undone(error.problem) from error
            raise
        finally:
            node.busy_images.end(message.image, head.operation)
        copy.until = node.elapsed() + message.hold_s
        reply = pb.FreezeReply(
            image=image_message(image),
            frozen_at=frozen.dump.frozen_at,
            dump_s=frozen.dump.dump_s,
            send_s=frozen.dump.dump_s + time.monotonic() - dumped_at if sending else 0.0,
            copy_s=copied.seconds,
            copied_bytes=copied.bytes,
            sent_bytes=sending.bytes - copied.bytes if sending else None,
        )

        def write() -> None:
            node.journal.undo(head.operation, ("thaw", "release"), node.clock(), "frozen again")

        detail = f"image {image.id}, {sending.bytes} bytes sent" if sending else f"image {image.id}"
        return Outcome(reply, write, detail)

    def _earliest(self, row: WorkerRow) -> float | None:
        """By when the worker has to be gone, as far as this node has heard; seconds since the epoch, None: no such."""
        heard = (notice for notice in self._node.notices.values() if notice.slot in ("", row.slot))
        return min((notice.deadline for notice in heard if notice.deadline is not None), default=None)

    @staticmethod
    async def _within(keeping: "asyncio.Task[ImageFacts]", hold_s: float, worker: str) -> ImageFacts:
        """The image, once it is whole. Raises Retry SH653 when it isn't within `hold_s` seconds; whoever it is that keeps it waiting, the
        worker stands still meanwhile."""
        await asyncio.wait((keeping,), timeout=hold_s)
        if keeping.done():
            return keeping.result()
        raise retry(
            "SH653",
            f"the image wasn't whole {hold_s:g} s after the dump, and the worker runs on",
            "Look at the link to the destination and at the disks of both nodes; an image that takes longer needs a longer hold",
            worker,
        )

    async def _take_back(
        self, row: WorkerRow, copy: FrozenCopy, sending: Sending | None, keeping: "asyncio.Task[ImageFacts] | None"
    ) -> None:
        try:
            await self._go_on(row.spec.worker, copy)
        except _RUNS:
            await self._drop(copy.image, sending, keeping)
            raise
        except BaseException:
            await self._rescue(row, copy.image, copy.frozen, sending, keeping)
            raise
        await self._drop(copy.image, sending, keeping)

    async def _rescue(
        self, row: WorkerRow, image: str, frozen: Frozen, sending: Sending | None = None, keeping: "asyncio.Task[ImageFacts] | None" = None
    ) -> None:
        """A worker that can't be let run on may have died, and its dump, which is whole, is then all that is left of it: kept here."""
        node = self._node
        if sending is not None:
            await node.in_thread(sending.cancel)
        if keeping is not None:
            (kept,) = await asyncio.gather(keeping, return_exceptions=True)
            if isinstance(kept, ImageFacts):
                return
        try:
            await node.in_thread(partial(node.depot.commit, self._facts(image, row, frozen), durable=True))
        except ShunterError as error:
            node.log.problem(error.problem, worker=row.spec.worker, image=image)

    def _facts(self, image: str, row: WorkerRow, frozen: Frozen, pause_s: float = 0.0) -> ImageFacts:
        frozen_at = self._node.elapsed() - (self._node.clock() - frozen.dump.frozen_at)
        return ImageFacts(
            id=image,
            spec=row.spec,
            incarnation=row.incarnation,
            taken_at=max(frozen.dump.frozen_at, self._after.get(row.spec.worker, 0.0)),
            pause_s=pause_s,
            facts=facts_for(self._node.facts, frozen.dump.needs),
            runtime=self._node.runtime.name,
            privileges=frozen.dump.privileges,
            doubt=of_image(self._node.doubted(row), frozen_at),
        )

    def _newest(self, row: WorkerRow) -> float:
        """When the worker's last image was taken here. The next one is younger, also when the clock was set back meanwhile: whoever has to
        choose takes the youngest. 0.0: there is none of this incarnation."""
        own = (image for image in self._node.depot.all() if (image.spec.worker, image.incarnation) == (row.spec.worker, row.incarnation))
        return max((image.taken_at for image in own), default=0.0)

    async def _begin(self, image: str, row: WorkerRow, order: pb.Order) -> tuple[Path, int]:
        """A folder for the image, and about how many bytes it will have; 0 when nobody knows. All of them need room here, also of an image
        that is sent while it is made: CRIU writes files, and they are kept until the destination has it."""
        node = self._node
        expected = await node.in_thread(node.runtime.memory, row.process) or 0
        least = await node.in_thread(node.runtime.dumped_at_least, row.process)
        self._after[row.spec.worker] = await node.in_time(BEGIN_S, "to look at the images", self._newest, row) + TICK_S
        try:
            what = "to make room for the image"
            begin = partial(node.depot.begin, image, expected, least, urgent=is_urgent(order, row, node.notices.values()))
            made = await node.in_time(BEGIN_S, what, begin, late=lambda _made: node.depot.abandon(image))
        except Stalled as error:  # the disk is full, but the worker wasn't touched
            raise undone(error.problem) from error
        return made, expected

    async def _stop(self, row: WorkerRow, folder: Path) -> Frozen:
        node, worker = self._node, row.spec.worker
        stopped = tuple(sorted(await node.in_thread(processes.stopped, row.process)))
        if stopped != row.stopped:
            node.change(worker, stopped=stopped)
        lost = gone(node.notices.values(), row.slot)
        if lost is not None:
            needs = await node.in_thread(node.runtime.needs, row.process, row.spec)
            if needs:
                raise undone(lost)
        try:
            return await node.in_thread(
                node.runtime.freeze, row.process, row.spec, node.network(worker), folder, self._frozen_event(row.operation)
            )
        except Rejected as error:
            raise undone(error.problem) from error

    def _frozen_event(self, operation: str) -> Callable[[float], None]:
        loop = asyncio.get_running_loop()

        def tell(_at: float) -> None:
            loop.call_soon_threadsafe(self._node.step_event, operation, "frozen")

        return tell

    async def _keep(self, image: str, row: WorkerRow, frozen: Frozen, sending: Sending | None) -> ImageFacts:
        """Make the image whole here and, at the same time, at the destination."""
        node = self._node
        facts = self._facts(image, row, frozen)
        if sending is not None:
            await node.in_thread(sending.finish, facts)
        return await node.in_thread(partial(node.depot.commit, facts, durable=sending is None))

    async def _drop(self, image: str, sending: Sending | None, keeping: "asyncio.Task[ImageFacts] | None" = None) -> None:
        node = self._node
        if sending is not None:
            await node.in_thread(sending.cancel)
        if keeping is not None:
            (kept,) = await asyncio.gather(keeping, return_exceptions=True)
            if isinstance(kept, ImageFacts):  # whole after all, but too late: its worker has gone on since
                await self._delete(node.depot.discard, image)
        await self._delete(node.depot.abandon, image)

    async def _delete(self, delete: Callable[[str], object], image: str) -> None:
        try:
            await self._node.in_thread(delete, image)
        except Stalled as error:  # it stays, and nobody needs it; why the order failed is what there is to answer
            self._node.log.problem(error.problem, image=image)

    async def _go_on(self, worker: str, copy: FrozenCopy, also: Callable[[], None] = lambda: None) -> None:
        """Let a frozen worker run on in place, with its network; `also` becomes durable with that.

        Raises Unknown, or Retry or Stalled once it runs; with the copy still in hand: the end of its hold tries it again.
        """
        node = self._node
        if await node.in_thread(node.runtime.find, node.row(worker).process):
            await node.in_thread(copy.frozen.thaw)  # also of a hold that was lost: to be let go isn't to run yet
        await node.in_thread(node.network(worker).connect)
        with node.journal.batch():
            node.change(worker, state="fenced" if copy.fenced else "running")
            also()
        node.frozen.pop(worker, None)

    async def thaw(self, message: pb.StepOrder) -> pb.Done:
        """Let the frozen worker run on. Done already when its hold has ended."""
        head = asked(message.order)
        return await self._orders.carry_out("thaw", head, pb.Done, lambda: self._thaw(head))

    async def _thaw(self, head: Asked) -> Outcome[pb.Done]:
        node = self._node
        copy = node.frozen.get(head.worker)
        if copy is None:
            await settle(node, head.worker)
            return Outcome(pb.Done(at=node.clock(), detail="it runs already"), detail="it runs already")
        await self._go_on(head.worker, copy)

        def write() -> None:
            node.journal.undo(head.operation, ("freeze",), node.clock(), "thawed")

        return Outcome(pb.Done(at=node.clock(), detail="runs on in place"), write, "runs on in place")

    async def end_hold(self, worker: str, why: str) -> None:
        """The hold ended without an order: run on, go back into traffic, and remember that. Call with the worker's lock held."""
        node = self._node
        copy = node.frozen[worker]
        operation, row = copy.operation, node.row(worker)
        if not await node.in_thread(node.runtime.find, row.process):
            node.worker_ended(worker, -1)
            return

        def thawed() -> None:
            node.journal.undo(operation, ("freeze",), node.clock(), why)
            reply = pb.Done(at=node.clock(), detail=why)
            node.journal.done(operation, "thaw", worker, node.clock(), reply.SerializeToString(), why)

        await self._go_on(worker, copy, thawed)
        node.log.error("thawed without an order", operation=operation, worker=worker, why=why)
        node.step_event(operation, "hold-ended")
        if copy.fenced:
            node.hidden[worker] = Hidden(operation, why, node.elapsed())
            await show(node, worker)
        else:
            node.change(worker, state="running", operation="")

    # -- ending

    async def release(self, message: pb.StepOrder) -> pb.Done:
        """End the frozen copy. Raises Unknown when its death can't be confirmed."""
        head = asked(message.order)
        return await self._orders.carry_out("release", head, pb.Done, lambda: self._release(head))

    async def _release(self, head: Asked) -> Outcome[pb.Done]:
        node, worker = self._node, head.worker
        copy = node.frozen[worker]
        if not copy.frozen.alive():
            await self.end_hold(worker, "the hold was lost")
            raise rejected("SH606", "release was refused: the hold was lost, and the worker runs on", "Plan again", worker)
        network, process = node.network(worker), node.row(worker).process
        await node.in_thread(network.disconnect)  # nothing of its death may reach its peers
        with node.exits.ending(worker, process):
            try:
                await node.in_thread(copy.frozen.release)
            except Unknown:
                if await node.in_thread(node.runtime.find, process):
                    raise
        at = node.clock()
        node.frozen.pop(worker, None)
        node.remove_network(worker)
        node.sync_later(copy.image)
        return self._left(head, "release", at, "ended; its image is kept")

    def _left(self, head: Asked, step: str, at: float, detail: str) -> Outcome[pb.Done]:
        """The worker is dead. Should the journal not take that now, `leave` writes it later."""
        node, worker = self._node, head.worker
        row = node.row(worker)
        node.unsettled.pop(worker, None)
        node.leaving[worker] = Leaving(row.process, row.incarnation, head.operation, step, detail)

        def write() -> None:
            node.journal.drop_worker(worker)

        return Outcome(pb.Done(at=at, detail=detail), write, detail)

    def leave(self, worker: str) -> None:
        """Write down that a worker was ended, if that couldn't be written then. Call with its lock held. Raises Stalled SH610."""
        node, left = self._node, self._node.leaving[worker]
        row = node.journal.worker(worker)
        if row is not None and (row.process, row.incarnation) == (left.process, left.incarnation):
            with node.journal.batch():
                node.journal.drop_worker(worker)
                reply = pb.Done(at=node.clock(), detail=left.detail)
                node.journal.done(left.operation, left.step, worker, node.clock(), reply.SerializeToString(), left.detail)
        node.leaving.pop(worker, None)

    async def drain(self, message: pb.StepOrder, within_s: float) -> pb.Done:
        """Wait up to `within_s` seconds until the worker serves nothing, then end it. Raises Undone SH651: left fenced and running."""
        head = asked(message.order)
        return await self._orders.carry_out("drain", head, pb.Done, lambda: self._drain(head, within_s))

    async def _drain(self, head: Asked, within_s: float) -> Outcome[pb.Done]:
        node, worker = self._node, head.worker
        row = node.row(worker)
        if row.state == "running":
            await hide(node, head.operation, row)
            node.change(worker, state="fenced")
        await self._until_idle(row, within_s)
        network = node.network(worker)
        with node.exits.ending(worker, row.process):
            await node.in_thread(node.runtime.end, row.process)
        await node.in_thread(network.disconnect)
        node.remove_network(worker)
        return self._left(head, "drain", node.clock(), "served its last request and was ended")

    async def retire(self, message: pb.StepOrder) -> pb.Done:
        """End the worker as it is; an image of it is elsewhere. Raises Unknown when its death can't be confirmed."""
        head = asked(message.order)
        return await self._orders.carry_out("retire", head, pb.Done, lambda: self._retire(head))

    async def _retire(self, head: Asked) -> Outcome[pb.Done]:
        node, worker = self._node, head.worker
        row, network = node.row(worker), node.network(worker)
        await node.in_thread(network.disconnect)  # nothing of its death may reach its peers
        with node.exits.ending(worker, row.process):
            await node.in_thread(node.runtime.end, row.process)
        node.remove_network(worker)
        return self._left(head, "retire", node.clock(), "ended; its image is elsewhere")

    async def _until_idle(self, row: WorkerRow, within_s: float) -> None:
        node, end, left = self._node, time.monotonic() + within_s, "unknown"
        while True:
            try:
                count = await node.in_thread(node.serving.inflight, row.spec)
            except Retry as error:
                left = f"unknown ({error.problem.what})"
            else:
                if count == 0:
                    return
                left = str(count)
            if not node.journal.worker(row.spec.worker):
                raise rejected("SH652", "the worker ended by itself while it drained", "Restore it from an image", row.spec.worker)
            if time.monotonic() + LOOK_S >= end:
                raise Undone(
                    retry(
                        "SH651",
                        f"the worker still serves after {within_s:.0f} s (requests in flight: {left}); it is left fenced and running",
                        "Wait longer, unfence it, or move it instead: a move keeps its streams",
                        row.spec.worker,
                    ).problem
                )
            await asyncio.sleep(LOOK_S)

    # -- images without a move

    async def checkpoint(self, message: pb.CheckpointOrder) -> pb.FreezeReply:
        """Take an image; the worker stands still for the dump alone. Raises Undone."""
        head = asked(message.order)
        return await self._orders.carry_out("checkpoint", head, pb.FreezeReply, lambda: self._checkpoint(head, message))

    async def _checkpoint(self, head: Asked, message: pb.CheckpointOrder) -> Outcome[pb.FreezeReply]:
        node, row, image = self._node, self._node.row(head.worker), message.image
        folder, _expected = await self._begin(image, row, message.order)
        node.busy_images.begin(image, head.operation)
        try:
            frozen = await self._stop(row, folder)
            copy = FrozenCopy(head.operation, frozen, node.elapsed(), row.state == "fenced", image)
            node.frozen[head.worker] = copy
            try:
                await self._go_on(head.worker, copy)
            except _RUNS:
                raise
            except BaseException:
                await self._rescue(row, image, frozen)
                raise
            thawed_at = node.clock()
            facts = self._facts(image, row, frozen, max(0.0, thawed_at - frozen.dump.frozen_at))
            kept = await node.in_thread(partial(node.depot.commit, facts, durable=True))
        except BaseException:
            await self._drop(image, None)
            raise
        finally:
            node.busy_images.end(image, head.operation)
        node.sync_later(image)  # on the disk already, where it may yet share what it has in common with others
        dump = frozen.dump
        reply = pb.FreezeReply(image=image_message(kept), frozen_at=dump.frozen_at, thawed_at=thawed_at, dump_s=dump.dump_s)
        return Outcome(reply, detail=f"image {image}")
