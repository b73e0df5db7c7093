"""What nodes have left for workers that come to them: memory to be restored in, and disk for their images. What this plan brings to a node,
and what is on its way there already, is taken off.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, NamedTuple

from shunter.decide.world import World
from shunter.model.ids import NodeId, node_of
from shunter.model.operation import OperationRecord, Step
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.room import DISK_MARGIN, MEMORY_MARGIN
from shunter.model.snapshot import Node, Slot, Worker
from shunter.model.units import Bytes

_BEFORE_IMAGE: Final = frozenset({Step.INTENDED, Step.PREPARED, Step.FENCED})
_BEFORE_COPIES: Final = _BEFORE_IMAGE | {Step.DUMPED}
_BEFORE_MEMORY: Final = _BEFORE_IMAGE | {Step.FROZEN}
"""Until then a node's report doesn't show yet what a worker takes that comes there."""
_COMING: Final = frozenset({OperationKind.MOVE, OperationKind.RESTORE})


class Size(NamedTuple):
    """Bytes of a worker that is to come: all that it has, and the most that it has on one GPU. 0: not known."""

    bytes: int = 0
    gpu: int = 0


def host_of(worker: Worker, slot: Slot | None) -> int:
    """Bytes of the node's own memory that a worker has at least. Its size counts those on its GPUs too, of which only the most on one is
    known.
    """
    return max(0, (worker.memory or 0) - (slot.gpus if slot is not None else 0) * (worker.gpu_memory or 0))


class Left(NamedTuple):
    """How many bytes the workers may have, all together, for which a node has memory and disk. Infinite: not known."""

    memory: float = inf
    disk: float = inf

    @property
    def bytes(self) -> float:
        """By whichever is the less."""
        return min(self.memory, self.disk)


UNKNOWN: Final = Left()


class Rooms:
    """By node. `changes` counts what was taken off by this plan."""

    def __init__(self, world: World, active: Sequence[OperationRecord]) -> None:
        """`active` are operations under way. What is voluntary and waits for its turn takes nothing from what is involuntary: it counts
        once `keep_promises` is called.
        """
        self._left = {n.id: _left(n) for n in world.nodes.values() if n.memory is not None or n.disk is not None}
        self._beside = frozenset(n.id for n in world.nodes.values() if n.images_in_memory)
        self._least, self.changes, self._workers = inf, 0, world.workers
        known = active if self._left else ()
        self._promises = [r for r in known if r.promised]
        for record in (r for r in known if not r.promised):
            self._expect(record)
        self.changes = 0
        self._least = min((left.bytes for left in self._left.values()), default=inf)

    def keep_promises(self, dropped: Callable[[OperationRecord], bool]) -> None:
        """From now on what waits for its turn counts, but for what is `dropped`."""
        for record in self._promises:
            if not dropped(record):
                self._expect(record)
        self._promises = []

    def _expect(self, record: OperationRecord) -> None:
        planned, worker = record.planned, self._workers.get(record.planned.worker)
        size = (worker.memory if worker is not None else None) or planned.estimate.bytes or 0
        if planned.kind in _COMING and planned.to_slot is not None:
            memory = size if record.step in _BEFORE_MEMORY else 0
            self._take(node_of(planned.to_slot), memory, size if record.step in _BEFORE_IMAGE else 0)
        elif record.step in _BEFORE_COPIES:
            for node in planned.copies:
                self._take(node, 0, size)

    def left(self, node: NodeId) -> Left:
        """What the node has left."""
        return self._left.get(node, UNKNOWN)

    def plan(self, operation: PlannedOperation, size: int) -> None:
        """Take off what a planned operation brings to its nodes: a worker of `size` bytes, or images of it."""
        if not self._left or not size:
            return
        if operation.kind in _COMING and operation.to_slot is not None:
            self._take(node_of(operation.to_slot), size, size)
        for node in operation.copies:
            self._take(node, 0, size)

    def _take(self, node: NodeId, memory: int, disk: int) -> None:
        left = self._left.get(node)
        if left is not None and (memory or disk):
            alone = (disk - memory) / 2 if node in self._beside and disk > memory else 0
            self._left[node] = after = Left(left.memory - memory - alone, left.disk - disk)
            self._least, self.changes = min(self._least, after.bytes), self.changes + 1

    def freed(self, node: NodeId, host: int, image: int) -> int:
        """For how many bytes more there is memory once a worker with `host` bytes of it has gone, and left an image of `image` bytes."""
        return int((host - (image if node in self._beside else 0)) / (MEMORY_MARGIN * (2 if node in self._beside else 1)))

    def roomy(self, size: int) -> bool:
        """There is room for so many bytes on every node."""
        return not size or size <= self._least

    def holds(self, node: NodeId, size: int) -> bool:
        """There is room for an image of so many bytes, without its worker."""
        left = self.left(node)
        return not size or (size <= left.disk and (node not in self._beside or size / 2 <= left.memory))


def _left(node: Node) -> Left:
    """An image that lies in memory lies there beside its worker."""
    times = 2 if node.images_in_memory else 1
    return Left(
        memory=inf if node.memory is None else node.memory / (MEMORY_MARGIN * times),
        disk=inf if node.disk is None else node.disk / DISK_MARGIN,
    )


def short(left: Left, size: int) -> str:
    """Why there is no room for `size` bytes, with both values."""
    what = "memory" if left.memory <= left.disk else "disk"
    return f"it has {what} left for {Bytes(max(0, int(left.bytes)))}, not for {Bytes(size)}"
