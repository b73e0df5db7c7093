"""What this node has left for workers on their way to it: memory, disk, GPU memory; and what it is tainted with."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from shunter.model.snapshot import Taint

from shunter_agent.journal import WorkerRow
from shunter_agent.node import Node
from shunter_agent.notices.watching import Watching
from shunter_agent.runtime.port import Gpu, Gpus, Process

AGAIN_S: Final = 5.0
"""Seconds after which GPUs are looked at again once somebody asks."""


def taints_of(node: Node) -> tuple[Taint, ...]:
    """By its settings, and by sources that know of its Node object; sorted."""
    told = {taint for source in node.sources if isinstance(source, Watching) for taint in source.taints()}
    return tuple(sorted(told | {one.taint for one in node.settings.taints}, key=str))


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes. `slots`: the least of what a worker could have on one of a slot's GPUs; `workers`: the most that each has on one."""

    slots: dict[str, int] = {}
    workers: dict[Process, int] = {}


class Looks:
    """GPU memory as it was a moment ago. Never waits: a report on the node must not hang with a GPU."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known = GpuMemory()
        self._at = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    def last(self) -> GpuMemory:
        """The last look, empty before the first has ended; the next one is begun when that is old."""
        node = self._node
        if node.slot_gpus and self._looking is None and node.elapsed() - self._at >= AGAIN_S:
            self._at = node.elapsed()
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._over)
        return self._known

    async def _look(self) -> None:
        node = self._node
        rows = tuple(node.journal.workers().values())
        taken = {*(row.slot for row in rows), *node.journal.reservations()}
        now = await node.in_thread(node.runtime.gpus)
        workers = {row.process: await node.in_thread(_most, node, row) for row in rows}
        slots = {slot: least(own, now, free=slot not in taken) for slot, own in node.slot_gpus.items()}
        self._known = GpuMemory(slots=slots, workers=workers)

    def _over(self, done: "asyncio.Task[None]") -> None:
        self._looking = None
        if not done.cancelled() and (error := done.exception()) is not None:
            self._node.log.error("GPUs not looked at", error=f"{type(error).__name__}: {error}")


def _most(node: Node, row: WorkerRow) -> int:
    return int(node.runtime.needs(row.process, row.spec).get("gpu_memory", 0))


def least(own: Sequence[Gpu], now: Gpus, *, free: bool) -> int:
    """The least bytes of a slot's GPUs: what is free there if the slot is, else all there are. 0: one of them doesn't answer, or it has
    none.
    """
    here = {gpu.pci: gpu for gpu in now.gpus}
    found = [here.get(gpu.pci) for gpu in own]
    return min((gpu.free if free else gpu.memory) if gpu is not None else 0 for gpu in found) if found else 0
