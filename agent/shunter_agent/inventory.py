"""The node as it is now, and what the journal knows of an operation."""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import msgspec
from shunter.wire import agent_pb2 as pb
from shunter.wire.convert import refusal

from shunter_agent.capacity import GpuMemory, Looks, taints_of
from shunter_agent.convert import image_message, notice_message, worker_message
from shunter_agent.depot import ImageFacts
from shunter_agent.images.room import KEEP
from shunter_agent.journal import WorkerRow
from shunter_agent.node import Node
from shunter_agent.notices.doubts import of_image
from shunter_agent.preflight import Room, room_of
from shunter_agent.sizes import Sizes


@cache
def _version() -> str:
    """Of what this process was started from."""
    try:
        return version("shunter")
    except PackageNotFoundError:
        return ""


async def report(
    node: Node, sizes: Sizes | None = None, looks: Looks | None = None, asked: pb.InventoryRequest | None = None
) -> pb.NodeReport:
    """Everything an engine plans with. Images are read anew, and so is memory without `sizes`; facts are those of the agent's start.
    Without `looks` nothing is said of GPU memory. `asked` says what of the archive's images is wanted; None: nothing.

    Raises as `Depot.in_archive` does where one of those is asked for.
    """
    asked = asked or pb.InventoryRequest()
    one = await node.in_thread(node.depot.in_archive, asked.archived) if asked.archived else None
    archive = node.depot.archived()
    digest = archive.digest if archive is not None else ""
    listed = archive.images if archive is not None and asked.archive and not asked.archived else ()
    workers = tuple(node.doubted(row) for row in node.journal.workers().values())
    memory = await (sizes or Sizes(node)).of(workers)
    images = await node.in_thread(node.depot.all)
    left, in_memory = await node.in_thread(_room, node)
    of_gpus = looks.last() if looks is not None else GpuMemory()
    return pb.NodeReport(
        node=node.settings.node,
        at=node.clock(),
        epoch=node.journal.epoch,
        runtime=node.runtime.name,
        image_address=node.settings.image_listen,
        version=_version(),
        labels=node.settings.labels,
        facts=node.facts,
        slots=_slots(node, of_gpus),
        workers=[worker_message(row, size or 0, of_gpus.workers.get(row.process, 0)) for row, size in zip(workers, memory, strict=True)],
        images=[image_message(_judged(image, node, workers)) for image in images],
        notices=[notice_message(node.notices[key]) for key in sorted(node.notices)],
        sources=[source.name for source in node.sources],
        problems=[refusal(problem) for source in (*node.sources, *node.rehearsals) for problem in source.health()],
        troubles=[refusal(problem) for problem in node.troubles],
        canaries=node.canaries,
        taints=[pb.Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in taints_of(node)],
        memory=left.memory or 0,
        disk=0 if left.disk is None else max(1, left.disk - KEEP),  # a full disk is known: 0 would say that it isn't
        images_in_memory=in_memory,
        archive=archive is not None,
        archive_looked=archive.looked_at if archive is not None else 0.0,
        archive_digest=digest,
        archived=[image_message(image) for image in ((one,) if one is not None else listed)],
    )


def _judged(image: ImageFacts, node: Node, workers: Sequence[WorkerRow]) -> ImageFacts:
    """What an image was whole too early to say itself: an exporter of GPU errors tells of them up to a look later."""
    row = next((w for w in workers if (w.spec.worker, w.incarnation) == (image.spec.worker, image.incarnation)), None)
    if row is None or image.doubt:
        return image
    return msgspec.structs.replace(image, doubt=of_image(row, node.elapsed() - (node.clock() - image.taken_at)))


def _room(node: Node) -> tuple[Room, bool]:
    return room_of(node), node.depot.in_memory


def _slots(node: Node, looked: GpuMemory) -> list[pb.SlotReport]:
    occupied, reserved = node.occupied(), node.journal.reservations()
    return [
        pb.SlotReport(
            id=name,
            roles=list(slot.roles),
            gpu_model=slot.gpu_model or ", ".join(sorted({gpu.model for gpu in node.slot_gpus.get(name, ())})),
            gpus=slot.gpus or len(node.slot_gpus.get(name, ())),
            gpu=[pb.GpuReport(uuid=gpu.uuid, model=gpu.model, pci=gpu.pci, memory=gpu.memory) for gpu in node.slot_gpus.get(name, ())],
            worker=occupied.get(name, ""),
            reserved_by=reserved[name].operation if name in reserved else "",
            gpu_memory=looked.slots.get(name, 0),
            domains=node.domains(name),
        )
        for name, slot in sorted(node.settings.slot_ids().items())
    ]


async def journal(node: Node, operation: str) -> pb.JournalReply:
    """What became of an operation's steps here, and what there is of its worker now."""
    entries = node.journal.entries(operation)
    worker = entries[-1].worker if entries else ""
    images = await node.in_thread(node.depot.all) if worker else ()
    return pb.JournalReply(
        entries=[pb.JournalEntry(step=entry.step, state=entry.state, at=entry.at, detail=entry.detail) for entry in entries],
        copy=copy_of(node, worker),
        images=[image.id for image in images if image.spec.worker == worker],
    )


def copy_of(node: Node, worker: str) -> str:
    """`frozen`, `held`, `running` or `none`: by what is there, as a journal that couldn't be written may lag behind."""
    if worker in node.held:
        return "held"
    row = node.journal.worker(worker) if worker else None
    if row is None:
        return "held" if _left_over(node, worker) else "none"
    if row.state == "frozen" and worker in node.frozen:
        return "frozen"
    if worker in node.unsettled:  # the agent that held it is dead, and it isn't known to run
        return "frozen" if node.runtime.find(row.process) else "none"
    return "running" if node.runtime.find(row.process) else "none"


def _left_over(node: Node, worker: str) -> bool:
    """A copy that was held or let run, but couldn't be made the worker, and isn't dead yet: Abort ends it."""
    kept = (reservation for reservation in node.journal.reservations().values() if reservation.worker_id == worker)
    return any(reservation.process is not None and node.runtime.find(reservation.process) for reservation in kept)
