"""Everything that can be checked before anything is frozen. A restore that can't work is refused here, with the two values that differ."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from shunter.model.errors import Problem
from shunter.model.pod import Pod
from shunter.model.room import DISK_MARGIN, MEMORY_MARGIN
from shunter.model.snapshot import Taint
from shunter.model.units import Bytes
from shunter.wire import agent_pb2 as pb
from shunter.wire import convert as wire

from shunter_agent import capacity, gpus, guard
from shunter_agent.convert import asked, privileges_message, to_uses, uses_message, worker_message
from shunter_agent.convert import spec as to_spec
from shunter_agent.guard import Asked, in_other_operation
from shunter_agent.journal import WorkerRow
from shunter_agent.node import Node
from shunter_agent.runtime import hostmemory, privileges
from shunter_agent.runtime.network import exists
from shunter_agent.runtime.port import Housing, MemoryLimit, Privileges, Runtime, Uses, WorkerSpec
from shunter_agent.urgency import is_urgent

FACTS: Final = {
    "runtime": "checkpoint runtime",
    "arch": "processor architecture",
    "cpu": "processor",
    "cpu_features": "processor features",
    "kernel": "kernel",
    "criu": "CRIU version",
    "driver": "GPU driver",
    "cuda": "CUDA version",
    "gpu": "GPU model",
    "boot": "boot of the machine",
}
"""What facts are called in messages. All that an image names must be equal where it is restored, those without words too."""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Free bytes for images on the disk, and for workers in memory; None when it can't be told. `limit`: the file of the limit that leaves
    no more memory; empty: the node has no more."""

    disk: int | None
    memory: int | None
    limit: str = ""


def room(images: Path, *, beside: bool = True) -> Room:
    """The room of this node now. `beside`: workers live in this agent's own cgroups, as those do that it starts or restores, but for those
    in pods."""
    try:
        stat = os.statvfs(images)
        disk: int | None = stat.f_bavail * stat.f_frsize
    except OSError:
        disk = None
    memory, limit = hostmemory.least(hostmemory.available(), hostmemory.limits_of("self") if beside else ())
    return Room(disk=disk, memory=memory, limit=limit)


def room_of(node: Node) -> Room:
    """`room`, of the node that this agent is for. Blocks."""
    return room(node.depot.root, beside=not isinstance(node.runtime, Housing))


def compare(needed: Mapping[str, str], here: Mapping[str, str], node: str) -> list[Problem]:
    """SH655 for each fact that an image needs and this node doesn't have."""
    found = []
    for key in sorted(needed):
        if needed[key] == here.get(key):
            continue
        words, has = FACTS.get(key, key), repr(here[key]) if key in here else "none"
        what = f"the image needs {words} {needed[key]!r}, this node has {has}"
        remedy = "Choose a node that is equal in this, or make them equal"
        found.append(Problem(code="SH655", what=what, remedy=remedy, subject=node))
    return found


def enough(size: int, free: Room, node: str, *, in_memory: bool = False, promised: int = 0) -> list[Problem]:
    """SH656 when the disk, SH657 when the memory isn't enough for an image of `size` bytes; `in_memory`: it is kept there, beside its
    worker, until it is encrypted. `promised` bytes are for workers that come before it."""
    found = []
    if free.disk is not None and free.disk < size * DISK_MARGIN:
        what = f"the image needs about {Bytes(size)} on the disk and a margin of 20 %, free are {Bytes(free.disk)}"
        found.append(Problem(code="SH656", what=what, remedy="Discard images, or choose another node", subject=node))
    needed = size * 2 if in_memory else size
    if free.memory is not None and free.memory - promised * MEMORY_MARGIN < needed * MEMORY_MARGIN:
        whose = "the worker and its image, which lies in memory, too, need" if in_memory else "the worker needs"
        what = f"{whose} about {Bytes(needed)} of memory and a margin of 10 %, {_available(free.memory, free.limit)}"
        what += f", of which workers on their way here need {Bytes(promised)}" if promised else ""
        remedy = "Raise that limit, or choose another node" if free.limit else "Choose another node"
        found.append(Problem(code="SH657", what=what, remedy=remedy, subject=node))
    return found


def too_narrow(size: int, limits: Sequence[MemoryLimit], pod: Pod) -> Problem | None:
    """SH657 when a limit of a pod's memory doesn't leave what a worker of `size` bytes needs that is to live in it."""
    left, path = hostmemory.least(None, limits)
    if left is None or left >= size * MEMORY_MARGIN:
        return None
    what = f"the worker needs about {Bytes(size)} of memory and a margin of 10 %, {_available(left, path)}"
    return Problem(code="SH657", what=what, remedy="Raise the memory limit of the pod's container or of what is above it", subject=str(pod))


def _available(free: int, limit: str) -> str:
    return f"{limit} leaves {Bytes(free)}" if limit else f"available are {Bytes(free)}"


def intolerable(spec: WorkerSpec | None, taints: Sequence[Taint], node: str) -> list[Problem]:
    """SH677 for each taint of the node that the worker doesn't tolerate, where somebody said what it does."""
    if spec is None or spec.tolerations is None:
        return []
    mine = spec.tolerations
    return [
        Problem(
            code="SH677",
            what=f"the node is tainted with {taint}, and the worker tolerates {', '.join(map(str, mine)) or 'no taint'}",
            remedy="Choose another node, remove the taint, or let the worker tolerate it",
            subject=node,
        )
        for taint in taints
        if taint.hard and not any(one.tolerates(taint) for one in mine)
    ]


def slot_problems(node: Node, head: Asked, slot: str) -> list[Problem]:
    """Why the slot can't take the worker now: SH661, SH663, SH664, SH605."""
    if slot not in node.settings.slot_ids():
        return [
            Problem(code="SH661", what=f"{node.settings.node} has no slot {slot}", remedy="Plan again with its inventory", subject=slot)
        ]
    found = []
    occupant = node.occupied().get(slot)
    if occupant is not None and occupant != head.worker:
        found.append(Problem(code="SH664", what=f"{slot} is occupied by {occupant}", remedy="Choose another slot", subject=slot))
    kept = node.journal.reservations().get(slot)
    refused = in_other_operation(head, kept.operation, kept.epoch, kept.spec.worker in node.held) if kept else None
    if refused is not None:
        found.append(refused.problem)
    if node.journal.worker(head.worker) is not None:
        found.append(
            Problem(code="SH663", what="the worker lives on this node already", remedy="Plan again with its inventory", subject=head.worker)
        )
    return found


async def preflight(node: Node, message: pb.PreflightOrder, look: Callable[[Node], Room] = room_of) -> pb.PreflightReply:
    """Check one side. Changes nothing but the highest epoch seen, and isn't journaled: it is answered anew each time.

    Raises Rejected SH601 to SH604, Retry SH605.
    """
    head = asked(message.order)
    seen = node.seen(head)
    guard.check_head(head, seen)
    node.journal.raise_epoch(head.epoch)
    if message.destination:
        problems = [*slot_problems(node, head, message.slot), *await _unproven(node)]
        everywhere, of_slot = gpus.apart(message.facts)
        problems += compare(everywhere, node.facts, node.settings.node)
        if of_slot:
            now = await node.in_thread(node.runtime.gpus)
            problems += gpus.unfit(of_slot, message.slot, node.slot_gpus.get(message.slot, ()), now)
        spec = to_spec(message.spec) if message.HasField("spec") else None
        problems += unconnected(spec, node.settings.bridge if node.settings.runtime == "criu" else "", node.settings.node)
        if message.HasField("uses"):
            problems += await _lacking(node, to_uses(message.uses))
        problems += await node.in_thread(_not_allowed, message, node.settings.node)
        problems += intolerable(spec, capacity.taints_of(node), node.settings.node)
        problems += gpus.unlinked(spec.linked if spec else None, message.slot, node.domains(message.slot))
        room_now, in_memory = await node.in_thread(look, node), node.depot.in_memory
        kept = node.promises.others(head.operation)
        problems += enough(message.bytes, room_now, node.settings.node, in_memory=in_memory, promised=kept)
        if not problems:
            node.promises.keep(head.operation, message.bytes, beside=message.bytes if in_memory else 0)
        refusals = [wire.refusal(problem) for problem in problems]
        return pb.PreflightReply(refusals=refusals, facts=node.facts, image_address=node.settings.image_listen)
    guard.check_step("freeze", head, seen)
    row = node.row(head.worker)
    lost = gpus.gone(node.notices.values(), row.slot)
    looked = await node.in_thread(_look, node.runtime, row, lost)
    needs, found, size = looked.needs, looked.problems, looked.size
    least = await node.in_thread(node.runtime.dumped_at_least, row.process)
    urgent = is_urgent(message.order, row, node.notices.values())
    short = await node.in_thread(partial(node.depot.short, head.worker, least, urgent=urgent))
    found = [*await _unproven(node), *found, *([short] if short is not None else [])]
    await _remark(node, row)
    return pb.PreflightReply(
        refusals=[wire.refusal(problem) for problem in found],
        facts=gpus.facts_for(node.facts, needs),
        bytes=size or 0,
        worker=worker_message(node.doubted(row)),
        uses=uses_message(looked.uses) if looked.uses is not None else None,
        privileges=privileges_message(looked.privileges),
    )


def _not_allowed(message: pb.PreflightOrder, node: str) -> Sequence[Problem]:
    here = privileges.own() if message.HasField("privileges") else None
    if here is None:
        return ()
    needed = Privileges(capabilities=message.privileges.capabilities, no_new_privs=message.privileges.no_new_privs)
    return privileges.beyond(needed, here, node)


async def _unproven(node: Node) -> Sequence[Problem]:
    return await node.proven.problems() if node.proven is not None else ()


def unconnected(spec: WorkerSpec | None, bridge: str, node: str) -> list[Problem]:
    """SH676 for a worker with a network of its own, where there is no bridge to connect it to: that would show once it is to run here."""
    if spec is None or not spec.mac or not bridge or exists(bridge):
        return []
    what, remedy = f"there is no bridge {bridge} here, which the worker's network is to be connected to", "Make it, or choose another node"
    return [Problem(code="SH676", what=what, remedy=remedy, subject=node)]


async def _lacking(node: Node, uses: Uses) -> Sequence[Problem]:
    """What a look at it finds. One that fails (a file system that doesn't answer, say) is no reason to refuse: the restore looks again."""
    try:
        return await node.in_thread(node.runtime.lacking, uses, node.settings.node)
    except OSError as error:
        node.log.error("what a worker uses can't be looked for here", error=str(error))
        return ()


class _Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs where it goes, what speaks against a dump, its bytes of memory (None: it can't be told), what it uses of its node
    and what it is allowed (None: it takes all along, or it can't be told)."""

    needs: Mapping[str, str]
    problems: Sequence[Problem]
    size: int | None
    uses: Uses | None
    privileges: Privileges | None


def _look(runtime: Runtime, row: WorkerRow, lost: Problem | None) -> _Looked:
    """`lost` speaks against a dump if it has GPUs."""
    needs = runtime.needs(row.process, row.spec)
    found = [lost] if lost is not None and needs else runtime.check(row.process, row.spec)
    uses = None
    with contextlib.suppress(OSError):  # it is just ending, which shows elsewhere
        uses = runtime.uses(row.process, row.spec)
    return _Looked(
        needs=needs,
        problems=found,
        size=runtime.memory(row.process),
        uses=uses,
        privileges=runtime.privileges(row.process),
    )


async def _remark(node: Node, row: WorkerRow) -> None:
    """Say what a move would cost. It is no reason not to move."""
    if isinstance(node.runtime, Housing):
        with contextlib.suppress(OSError):  # it is just ending, which shows elsewhere
            for remark in await node.in_thread(node.runtime.remarks, row.process, row.spec):
                node.log.info("before a move", worker=row.spec.worker, remark=remark)
