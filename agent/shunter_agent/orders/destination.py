"""Orders to a node about a worker on its way to it: prepare, restore, resume, abort."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from shunter.model.errors import Rejected, Retry, ShunterError, Stalled
from shunter.model.pod import Pod
from shunter.wire import agent_pb2 as pb

from shunter_agent import convert
from shunter_agent.convert import asked
from shunter_agent.depot import ImageFacts
from shunter_agent.guard import Asked, in_other_operation
from shunter_agent.journal import Reservation, WorkerRow
from shunter_agent.node import HeldCopy
from shunter_agent.orders.carry import Orders, Outcome
from shunter_agent.orders.streams import remember
from shunter_agent.preflight import too_narrow
from shunter_agent.refusals import rejected, retry, undone
from shunter_agent.runtime.port import Housing, Network, Process, WorkerSpec

READABLE_S: Final = 60.0
"""Seconds that an image may take to be put together or decrypted for a restore, however small it is."""
MOST_S: Final = 600.0
"""The same, however large it is."""
SLOWEST: Final = 100e6
"""Bytes a second: what the slowest disk is taken to do."""
_MADE: Final = ("prepare", "restore", "resume")


class Destination:
    """The destination's side. One per agent."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        """What carries them out, with the workers' locks."""
        self._node = orders.node

    # -- prepare

    async def prepare(self, message: pb.PrepareOrder) -> pb.Done:
        """Reserve the slot and make the worker's network identity, not connected.

        Raises Rejected SH661 (no such slot), SH662 (role), SH663 (the worker lives here); Retry SH664 (slot occupied), SH605.
        """
        head = asked(message.order)
        return await self.orders.carry_out("prepare", head, pb.Done, lambda: self._prepare(head, message))

    async def _prepare(self, head: Asked, message: pb.PrepareOrder) -> Outcome[pb.Done]:
        node = self._node
        spec = node.placed(convert.spec(message.spec), message.slot)
        self._check_slot(head, message.slot, spec)
        if message.pod_uid:
            spec = await self._housed(spec, message)
        while True:
            self._check_slot(head, message.slot, spec)  # again after each wait: another may have come meanwhile
            stale = self._kept(head, message.slot)
            if stale is None:
                break
            await self._take_over(head, stale)  # left to lapse, it would take the worker's network along
        reservation = Reservation(
            slot=message.slot, operation=head.operation, epoch=head.epoch, spec=spec, incarnation=head.incarnation + 1, at=node.clock()
        )
        node.journal.put_reservation(reservation)
        try:
            await node.network_removed(head.worker)
            network: Network = await node.in_thread(node.runtime.network, spec)
            node.networks[head.worker] = network
        except BaseException:
            node.journal.drop_reservation(message.slot)  # where that can't be written, it is unknown what there is, and the slot lapses
            raise

        def write() -> None:
            node.journal.undo(head.operation, ("abort", "restore", "resume"), node.clock(), "prepared again")

        detail = f"{message.slot} is reserved"
        return Outcome(pb.Done(at=node.clock(), detail=detail), write, detail)

    def _kept(self, head: Asked, slot: str) -> Reservation | None:
        """What is reserved for the worker, or in this slot."""
        kept = self._node.journal.reservations().values()
        return next((one for one in kept if one.slot == slot or one.worker_id == head.worker), None)

    async def _take_over(self, head: Asked, stale: Reservation) -> None:
        """Free what an older leader's operation has left reserved, for this worker or for another. Raises Retry SH605 when that one's copy
        is just being made, or let run."""
        why = "a newer leader's operation took it over"
        if stale.worker_id == head.worker:
            await self.free(stale, why)
            return
        lock = self.orders.lock(stale.worker_id)
        if lock.locked():
            what = f"operation {stale.operation} is at work in {stale.slot}"
            raise retry("SH605", what, "Wait until that operation has ended", head.worker)
        async with lock:
            if self._node.journal.reservations().get(stale.slot) == stale:
                await self.free(stale, why)

    async def _housed(self, spec: WorkerSpec, message: pb.PrepareOrder) -> WorkerSpec:
        pod = Pod(namespace=message.pod_namespace, name=message.pod_name, uid=message.pod_uid, container=message.pod_container)
        runtime = self._node.runtime
        if not isinstance(runtime, Housing):
            what, remedy = (
                f"it is to live in the pod {pod}, and this agent has to do with no pods",
                "Add [containers] to the agent's settings",
            )
            raise rejected("SH680", what, remedy, spec.worker)
        housed = await self._node.in_thread(runtime.housed, spec, pod)
        if message.HasField("container"):
            unfit = await self._node.in_thread(runtime.unfit, spec, convert.contained(message.container), pod)
            if unfit is not None:
                raise Rejected(unfit)
        size = self._node.promises.of(message.order.operation)
        narrow = too_narrow(size, await self._node.in_thread(runtime.memory_limits, pod), pod) if size else None
        if narrow is not None:
            raise Rejected(narrow)
        return housed if housed.gpus else msgspec.structs.replace(housed, gpus=spec.gpus)

    def _check_slot(self, head: Asked, slot: str, spec: WorkerSpec) -> None:
        node = self._node
        settings = node.settings.slot_ids().get(slot)
        if settings is None:
            raise rejected("SH661", f"{node.settings.node} has no slot {slot}", "Plan again with its inventory", slot)
        if spec.worker != head.worker:
            raise rejected("SH602", "the order's worker and its spec differ", "This is a fault in the engine; report it", head.worker)
        if spec.role not in settings.roles:
            raise rejected(
                "SH662", f"{slot} doesn't take {spec.role} workers (it takes {', '.join(settings.roles)})", "Choose another slot", slot
            )
        if node.journal.worker(head.worker) is not None:
            raise rejected("SH663", "the worker lives on this node already", "Plan again with its inventory", head.worker)
        if occupant := node.occupied().get(slot):
            raise retry("SH664", f"{slot} is occupied by {occupant}", "Wait until it has left, or choose another slot", slot)
        for kept in node.journal.reservations().values():
            if kept.slot != slot and kept.spec.worker != head.worker:
                continue
            refused = in_other_operation(head, kept.operation, kept.epoch, kept.spec.worker in node.held)
            if refused is not None:
                raise refused

    # -- restore

    async def restore(self, message: pb.RestoreOrder) -> pb.RestoreReply:
        """Restore an image into the reserved slot, held for `hold_s`. Raises Rejected SH608, SH665 (no such image); Undone SH7xx."""
        head = asked(message.order)
        if not 0 < message.hold_s <= self._node.settings.hold:
            raise rejected(
                "SH608",
                f"a hold of {message.hold_s:g} s was asked for, allowed are up to {self._node.settings.hold:g} s",
                "Change the engine's hold, or `hold` in the agent's settings",
            )
        return await self.orders.carry_out("restore", head, pb.RestoreReply, lambda: self._restore(head, message))

    async def _restore(self, head: Asked, message: pb.RestoreOrder) -> Outcome[pb.RestoreReply]:
        node, reservation = self._node, self._reservation(head)
        if message.slot and message.slot != reservation.slot:
            raise rejected(
                "SH606", f"restore was refused: {reservation.slot} is reserved, not {message.slot}", "Prepare that slot", message.slot
            )
        prepared = reservation.spec.pod.uid if reservation.spec.pod is not None else ""
        if message.pod_uid != prepared:
            what = f"restore was refused: the pod that is prepared has the uid {prepared or 'of none'}, not {message.pod_uid or 'of none'}"
            raise rejected("SH606", what, "Prepare that pod", head.worker)
        image = await node.in_thread(node.depot.get, message.image) or await self._fetched(message)
        if image is None or image.spec.worker != head.worker:
            raise rejected("SH665", f"there is no whole image {message.image} of the worker here", "Send it here first", head.worker)
        network = node.network(head.worker)
        began = time.monotonic()
        node.busy_images.begin(message.image, head.operation)
        try:
            folder = await self._readable(image)
            try:
                held = await node.in_thread(node.runtime.restore, reservation.spec, network, folder, self._born(reservation))
            finally:
                node.in_background(node.depot.done, message.image)
        except Rejected as error:
            raise undone(error.problem) from error
        finally:
            node.busy_images.end(message.image, head.operation)
        node.held[head.worker] = HeldCopy(head.operation, held, node.elapsed() + message.hold_s, message.image)
        node.keep(asyncio.create_task(remember(node, head.worker, held.process)))

        def write() -> None:
            whole = self._whole(reservation.spec, image.spec)
            node.journal.put_reservation(msgspec.structs.replace(reservation, process=held.process, spec=whole, doubt=image.doubt))
            node.journal.undo(head.operation, ("resume", "abort"), node.clock(), "restored again")

        reply = pb.RestoreReply(restore_s=time.monotonic() - began, incarnation=reservation.incarnation)
        return Outcome(reply, write, f"held, from image {message.image}")

    async def _fetched(self, message: pb.RestoreOrder) -> ImageFacts | None:
        """The image, once it is here from the archive. Raises what the depot does."""
        node, archived = self._node, self._node.depot.archived()
        known = archived.images if archived is not None else ()
        total = next((image.bytes for image in known if image.id == message.image), 0)
        progress = node.progress(message.order.operation, "restore", total)
        return await node.in_thread(node.depot.fetch, message.image, progress, convert.deadline_of(message.order))

    async def _readable(self, image: ImageFacts) -> Path:
        """The folder of an image, as a driver can read it. Raises what the depot does; Retry SH614."""
        node, within_s = self._node, min(READABLE_S + image.bytes / SLOWEST, MOST_S)

        def done(_folder: Path) -> None:
            node.depot.done(image.id)

        return await node.in_time(within_s, "to make the image readable", node.depot.folder, image.id, late=done)

    def _born(self, reservation: Reservation) -> Callable[[Process], None]:
        """Notes a copy as soon as there is one: everybody may die before it is whole, and the next agent has to end what is left of it."""
        node, loop = self._node, asyncio.get_running_loop()

        def note(process: Process) -> None:
            kept = node.journal.reservation(reservation.operation)
            # a copy that failed may have been noted before this one
            if kept is not None and msgspec.structs.replace(kept, process=reservation.process) == reservation:
                try:
                    node.journal.put_reservation(msgspec.structs.replace(reservation, process=process))
                except Stalled as error:  # it can't be made the worker either, then, and is ended by whoever finds that out
                    node.log.problem(error.problem, worker=reservation.worker_id)

        def born(process: Process) -> None:
            loop.call_soon_threadsafe(note, process)  # nobody waits for the disk: a worker stands still meanwhile

        return born

    @staticmethod
    def _whole(ordered: WorkerSpec, imaged: WorkerSpec) -> WorkerSpec:
        """The order's spec, with what only the image knows of it."""
        return msgspec.structs.replace(ordered, command=imaged.command, env=imaged.env)

    def _reservation(self, head: Asked) -> Reservation:
        found = self._node.journal.reservation(head.operation)
        assert found is not None  # the guard has seen it
        return found

    # -- resume

    async def resume(self, message: pb.StepOrder) -> pb.ResumeReply:
        """Connect the held copy's network, let it run, and probe it.

        Raises Undone (SH631, SH632, SH7xx) when no copy is left here; the slot stays reserved, so that Restore can be ordered again.
        """
        head = asked(message.order)
        return await self.orders.carry_out("resume", head, pb.ResumeReply, lambda: self._resume(head))

    async def _resume(self, head: Asked) -> Outcome[pb.ResumeReply]:
        node, worker = self._node, head.worker
        reservation, copy, network = self._reservation(head), node.held[worker], node.network(worker)
        try:
            await node.in_thread(network.connect)
        except ShunterError as error:
            await node.in_thread(network.disconnect)
            raise retry(error.problem.code, error.problem.what, error.problem.remedy, worker) from error
        try:
            process = await node.in_thread(copy.held.resume)
        except Rejected as error:
            await self._back(reservation, copy.held.process)  # a driver's word that it is gone isn't enough to give its slot away
            node.held.pop(worker, None)
            raise undone(error.problem) from error
        running_at = node.clock()
        node.held.pop(worker, None)
        try:
            self.settle_in(reservation, process)
        except BaseException:  # a copy that runs without being the worker would soon run twice
            await self._back(reservation, process)
            raise
        node.exits.watch(worker, process)
        try:
            evidence = await node.in_thread(node.probe, reservation.spec, lambda: node.runtime.find(process), node.settings.probe)
        except Rejected as error:
            await self._back(reservation, process, ran=True)
            raise undone(error.problem) from error
        return Outcome(pb.ResumeReply(running_at=running_at, probe=evidence), detail=evidence)

    def settle_in(self, reservation: Reservation, process: Process) -> None:
        """The copy runs: from now on it is the worker, and lives here. It is out of traffic until it is unfenced."""
        node = self._node
        row = WorkerRow(
            spec=reservation.spec,
            process=process,
            slot=reservation.slot,
            incarnation=reservation.incarnation,
            state="fenced",
            operation=reservation.operation,
            epoch=reservation.epoch,
            doubt=reservation.doubt,
        )
        with node.journal.batch():
            node.journal.put_worker(row)
            node.journal.drop_reservation(reservation.slot)
            node.journal.undo(reservation.operation, ("fence", "unfence", "release", "freeze"), node.clock(), "the worker came back")

    async def _back(self, reservation: Reservation, process: Process, *, ran: bool = False) -> None:
        """No copy may be left of a resume that failed; the slot stays reserved. Raises Unknown when a copy may live on.

        The peers of one that `ran` for a while hear by its death that their connections are over: they are ahead of the image by what it
        has sent them, and what is restored of that could never go on with them.
        """
        node, worker = self._node, reservation.spec.worker
        if ran:
            with node.exits.ending(worker, process):
                await node.in_thread(node.runtime.end, process)
        try:
            await node.in_thread(node.network(worker).disconnect)
        finally:
            with node.exits.ending(worker, process):
                await node.in_thread(node.runtime.end, process)
        with node.journal.batch():
            node.journal.drop_worker(worker)
            node.journal.put_reservation(msgspec.structs.replace(reservation, process=None, at=node.clock()))
            node.journal.undo(reservation.operation, ("restore",), node.clock(), "its copy failed when it was let run")

    # -- abort

    async def abort(self, message: pb.StepOrder) -> pb.Done:
        """End a held copy and free what Prepare reserved. Nothing to do is done."""
        head = asked(message.order)
        return await self.orders.carry_out("abort", head, pb.Done, lambda: self._abort(head))

    async def _abort(self, head: Asked) -> Outcome[pb.Done]:
        node = self._node
        reservation = node.journal.reservation(head.operation)
        detail = "nothing was reserved or held here"
        if reservation is not None:
            await self.free(reservation, "aborted")
            detail = f"{reservation.slot} is free again"
        return Outcome(pb.Done(at=node.clock(), detail=detail), lambda: None, detail)

    async def end_hold(self, worker: str, why: str) -> None:
        """The hold ended without an order: the copy dies; its slot stays reserved for a while. Call with the worker's lock held."""
        node = self._node
        copy = node.held[worker]
        await node.in_thread(copy.held.abort)
        node.held.pop(worker, None)
        reservation = node.journal.reservation(copy.operation)
        with node.journal.batch():
            node.journal.undo(copy.operation, ("restore",), node.clock(), why)
            if reservation is not None:
                node.journal.put_reservation(msgspec.structs.replace(reservation, process=None, at=node.clock()))
        node.log.error("held copy ended without an order", operation=copy.operation, worker=worker, why=why)
        node.step_event(copy.operation, "hold-ended")

    async def free(self, reservation: Reservation, why: str) -> None:
        """End any held copy, remove the network, free the slot. Raises Unknown when the copy may live on: the slot then stays reserved."""
        node, worker = self._node, reservation.spec.worker
        copy = node.held.get(worker)
        if copy is not None and copy.operation == reservation.operation:
            await node.in_thread(copy.held.abort)
            node.held.pop(worker, None)
        row, process = node.journal.worker(worker), reservation.process
        if process is not None and (row is None or row.process != process) and await node.in_thread(node.runtime.find, process):
            await node.in_thread(node.runtime.end, process)
        network = node.networks.pop(worker, None) if row is None and worker not in node.held else None
        if network is not None:
            try:
                await node.in_thread(network.destroy)
            except (Rejected, Retry) as error:
                node.log.problem(error.problem, worker=worker)
        with node.journal.batch():
            node.journal.drop_reservation(reservation.slot)
            node.journal.undo(reservation.operation, _MADE, node.clock(), why)
