"""One snapshot, indexed: what is where, in an order that doesn't depend on how the snapshot was put together."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import attrgetter

from shunter.model.ids import NodeId, PoolId, SlotId, WorkerId, node_of, pool_id
from shunter.model.snapshot import Image, Node, Notice, Role, Slot, Snapshot, Worker, WorkerState

STANDING = (WorkerState.RUNNING, WorkerState.FENCED)
AWAY = (WorkerState.PARKED, WorkerState.LOST)

_by_id = attrgetter("id")


class World:
    """Read-only indexes over a snapshot, each made when first asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.at = snapshot.at
        self._among: dict[tuple[str | None, Role | None], tuple[Worker, ...]] = {}

    @cached_property
    def nodes(self) -> dict[NodeId, Node]:
        """By id, in the order of ids."""
        return {n.id: n for n in sorted(self.snapshot.fleet.nodes, key=_by_id)}

    @cached_property
    def workers(self) -> dict[WorkerId, Worker]:
        """By id, in the order of ids."""
        return {w.id: w for w in sorted(self.snapshot.fleet.workers, key=_by_id)}

    @cached_property
    def pools(self) -> dict[PoolId, tuple[Worker, ...]]:
        """All workers of each pool, whatever their state."""
        pools: dict[tuple[str, Role], list[Worker]] = defaultdict(list)
        for graph, members in self._graphs.items():
            for worker in members:
                pools[graph, worker.role].append(worker)
        return {pool_id(graph, role): tuple(members) for (graph, role), members in pools.items()}

    @cached_property
    def _graphs(self) -> dict[str, list[Worker]]:
        graphs: dict[str, list[Worker]] = defaultdict(list)
        for worker in self.workers.values():
            graphs[worker.graph].append(worker)
        return graphs

    def among(self, graph: str | None, role: Role | None) -> tuple[Worker, ...]:
        """Workers of the graph and the role, in the order of their ids; None: of all."""
        found = self._among.get((graph, role))
        if found is None:
            found = self._among[graph, role] = tuple(self._choose(graph, role))
        return found

    def _choose(self, graph: str | None, role: Role | None) -> Sequence[Worker] | Iterator[Worker]:
        if graph is not None and role is not None:
            return self.pools.get(pool_id(graph, role), ())
        if graph is not None:
            return self._graphs.get(graph, ())
        return (w for w in self.workers.values() if role is None or w.role == role)

    @cached_property
    def away(self) -> tuple[Worker, ...]:
        """Workers that are parked or lost, in the order of their ids."""
        return tuple(w for w in self.workers.values() if w.state in AWAY)

    @cached_property
    def noticed(self) -> tuple[Worker, ...]:
        """Workers that are on nodes for which a notice is open, or were there last, in the order of their ids."""
        return tuple(w for w in self.workers.values() if w.node in self.notices)

    @cached_property
    def graphs(self) -> tuple[str, ...]:
        """Graphs that have workers, sorted."""
        return tuple(sorted(self._graphs))

    @cached_property
    def slots(self) -> dict[SlotId, Slot]:
        """All slots, in the order of nodes and then of slots."""
        return {s.id: s for node in self.nodes.values() for s in in_order(node.slots)}

    @cached_property
    def vacant(self) -> dict[NodeId, tuple[Slot, ...]]:
        """Each node's sound slots that no worker has and none is reserved for, in order; nodes without one aren't in it."""
        found = {
            node.id: [s for s in node.slots if s.worker is None and s.reserved_by is None and s.id not in self.failing]
            for node in self.nodes.values()
        }
        return {node: tuple(in_order(slots)) for node, slots in found.items() if slots}

    @cached_property
    def images(self) -> dict[WorkerId, tuple[Image, ...]]:
        """Each worker's images, the newest first."""
        images: dict[WorkerId, list[Image]] = defaultdict(list)
        for image in self.snapshot.fleet.images:
            images[image.worker].append(image)
        return {w: tuple(sorted(own, key=_newest)) if len(own) > 1 else (own[0],) for w, own in images.items()}

    @cached_property
    def holding(self) -> dict[NodeId, int]:
        """Bytes of images that each node holds; nodes without one aren't in it."""
        holding: dict[NodeId, int] = defaultdict(int)
        for image in self.snapshot.fleet.images:
            for node in image.nodes:
                holding[node] += image.bytes
        return dict(holding)

    @cached_property
    def notices(self) -> dict[NodeId, tuple[Notice, ...]]:
        """Each node's open notices, also those about one of its GPUs, the nearest deadline first, those without one last."""
        notices: dict[NodeId, list[Notice]] = defaultdict(list)
        for notice in self.snapshot.notices:
            notices[notice.node].append(notice)
        return {node: tuple(sorted(own, key=_urgency)) for node, own in notices.items()}

    @cached_property
    def going(self) -> frozenset[NodeId]:
        """Nodes of which a notice says that they are going as a whole."""
        return frozenset(n.node for n in self.snapshot.notices if n.slot is None)

    @cached_property
    def failing(self) -> frozenset[SlotId]:
        """Slots with a notice about one of their GPUs."""
        return frozenset(n.slot for n in self.snapshot.notices if n.slot is not None)

    def node_of_slot(self, slot: SlotId) -> Node | None:
        """The node of a slot, or None when it isn't in the fleet."""
        return self.nodes.get(node_of(slot))

    def stays(self, node: NodeId) -> bool:
        """The node is known, answers, and nothing says that it is going."""
        return (known := self.nodes.get(node)) is not None and known.reachable and node not in self.going

    def leaving(self, worker: Worker) -> str | None:
        """Why nothing voluntary is done with a worker where it is: its node or its GPU is going. None: both stay."""
        if worker.node is not None and not self.stays(worker.node):
            return f"{worker.node} is going, or doesn't answer"
        return f"a notice is open for a GPU of {worker.slot}" if worker.slot in self.failing else None

    def restorable(self, worker: WorkerId) -> Image | None:
        """The worker's newest image that a node which answers holds, or None."""
        return next((i for i in self.images.get(worker, ()) if any(self._answers(n) for n in i.nodes)), None)

    def _answers(self, node: NodeId) -> bool:
        return (known := self.nodes.get(node)) is not None and known.reachable

    def size(self, worker: Worker) -> tuple[int | None, str]:
        """Bytes that a dump of the worker will have, and where the figure is from. None: nothing is known of its pool either."""
        if worker.memory is not None:
            return worker.memory, ""
        own = self.images.get(worker.id, ())
        if own:
            return own[0].bytes, "size of its newest image"
        largest = max((w.memory for w in self.pools[worker.pool] if w.memory is not None), default=None)
        return largest, "size of the largest worker of its pool"

    def has_gpus(self, worker: Worker) -> bool:
        """The worker occupies GPUs, or, while it is away, its pool does."""
        slot = self.slots.get(worker.slot) if worker.slot else None
        if slot is not None:
            return slot.gpus > 0
        return any((s := self.slots.get(w.slot)) is not None and s.gpus > 0 for w in self.pools[worker.pool] if w.slot)


def in_order(slots: Sequence[Slot]) -> Sequence[Slot]:
    """Slots by their ids."""
    return sorted(slots, key=_by_id) if len(slots) > 1 else slots


def _newest(image: Image) -> tuple[int, float, str]:
    return (-image.incarnation, -image.taken_at, image.id)


def _urgency(notice: Notice) -> tuple[bool, float, str]:
    return (notice.deadline is None, notice.deadline or 0.0, notice.id)
