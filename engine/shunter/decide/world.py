"""One snapshot, indexed: what is where, in an order that doesn't depend on how the snapshot was put together."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from math import inf
from operator import attrgetter
from typing import Any, Final

from shunter.model.ids import NodeId, PoolId, SlotId, WorkerId, node_of, pool_id
from shunter.model.snapshot import ZONE_LABEL, Image, Node, Notice, Role, Slot, Snapshot, Worker, WorkerState

STANDING = (WorkerState.RUNNING, WorkerState.FENCED)
AWAY = (WorkerState.PARKED, WorkerState.LOST)

_RUNNING: Final = WorkerState.RUNNING
_ROLES: Final[tuple[Role, ...]] = ("decode", "prefill")

_by_id = attrgetter("id")
_WORKER = attrgetter("worker")
_TAKEN = attrgetter("taken_at")


class Nodes:
    """Indexes over the nodes of a fleet."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.all = nodes
        self.answers: dict[Hashable, dict[NodeId, Any]] = {}
        """What depends on nothing but these nodes, by what was asked."""

    @cached_property
    def by_id(self) -> dict[NodeId, Node]:
        """In the order of ids."""
        return {n.id: n for n in sorted(self.all, key=_by_id)}

    @cached_property
    def slots(self) -> dict[SlotId, Slot]:
        """All slots, to be looked up."""
        return {s.id: s for node in self.by_id.values() for s in node.slots}

    @cached_property
    def zones(self) -> dict[NodeId, str]:
        """The zone of each node that has one; empty where all that have one have the same."""
        found = {n.id: zone for n in self.all if (zone := n.labels.get(ZONE_LABEL))}
        return found if len(set(found.values())) > 1 else {}

    @cached_property
    def least_gpu(self) -> float:
        """The least bytes that a worker could have on a GPU of any slot; infinite where none is known."""
        return min((s.gpu_memory for s in self.slots.values() if s.gpu_memory is not None), default=inf)

    @cached_property
    def vacant(self) -> dict[NodeId, tuple[Slot, ...]]:
        """Each node's slots that no worker has and none is reserved for, in order; nodes without one aren't in it."""
        found = {node.id: [s for s in node.slots if s.worker is None and s.reserved_by is None] for node in self.by_id.values()}
        return {node: tuple(in_order(slots)) for node, slots in found.items() if slots}


class Workers:
    """Indexes over the workers of a fleet."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.all = workers
        self.answers: dict[Hashable, Mapping[WorkerId, bool | None]] = {}
        """What conditions that read nothing but these workers came out as, by what was asked."""
        self._among: dict[tuple[str | None, Role | None], tuple[Worker, ...]] = {}
        self._running: dict[PoolId, tuple[Worker, ...]] = {}

    @cached_property
    def by_id(self) -> dict[WorkerId, Worker]:
        """In the order of ids."""
        return {w.id: w for w in sorted(self.all, key=_by_id)}

    @cached_property
    def pools(self) -> dict[PoolId, tuple[Worker, ...]]:
        """All workers of each pool, whatever their state."""
        found = ((graph, role, [w for w in members if w.role == role]) for graph, members in self.graphs.items() for role in _ROLES)
        return {pool_id(graph, role): tuple(members) for graph, role, members in found if members}

    def running(self, pool: PoolId) -> tuple[Worker, ...]:
        """Those of the pool that run, in the order of their ids."""
        found = self._running.get(pool)
        if found is None:
            found = self._running[pool] = tuple([w for w in self.pools.get(pool, ()) if w.state is _RUNNING])
        return found

    @cached_property
    def graphs(self) -> dict[str, list[Worker]]:
        """All workers of each graph."""
        graphs: dict[str, list[Worker]] = defaultdict(list)
        for worker in self.by_id.values():
            graphs[worker.graph].append(worker)
        return graphs

    @cached_property
    def by_node(self) -> dict[NodeId | None, list[Worker]]:
        """Those that are on each node, or were there last, in the order of their ids."""
        found: dict[NodeId | None, list[Worker]] = defaultdict(list)
        for worker in self.by_id.values():
            found[worker.node].append(worker)
        return found

    @cached_property
    def standing(self) -> Counter[NodeId | None]:
        """How many are on each node, in a slot and with a process in it."""
        return Counter([w.node for w in self.all if w.slot and w.state in STANDING])

    @cached_property
    def pinned(self) -> dict[WorkerId, str]:
        """Why nothing can be done with some of them."""
        return {w.id: w.pinned for w in self.all if w.pinned}

    @cached_property
    def left(self) -> frozenset[WorkerId]:
        """Those that have gone with their pods, and whom nobody brings back."""
        return frozenset([name for name in self.pinned if self.by_id[name].left_at is not None])

    @cached_property
    def away(self) -> tuple[Worker, ...]:
        """Those that are parked or lost, in the order of their ids."""
        return tuple([w for w in self.by_id.values() if w.state is not _RUNNING and w.state in AWAY])

    def among(self, graph: str | None, role: Role | None) -> tuple[Worker, ...]:
        """Those of the graph and the role, in the order of their ids; None: of all."""
        found = self._among.get((graph, role))
        if found is None:
            found = self._among[graph, role] = tuple(self._choose(graph, role))
        return found

    def _choose(self, graph: str | None, role: Role | None) -> Iterable[Worker]:
        if graph is not None and role is not None:
            return self.pools.get(pool_id(graph, role), ())
        if graph is not None:
            return self.graphs.get(graph, ())
        return self.by_id.values() if role is None else [w for w in self.by_id.values() if w.role == role]


class Images:
    """Indexes over the images of a fleet. They don't change: `then` makes those that follow."""

    def __init__(self, images: Sequence[Image]) -> None:
        self.all = images

    @cached_property
    def by_worker(self) -> dict[WorkerId, tuple[Image, ...]]:
        """Each worker's, the newest first."""
        images: dict[WorkerId, list[Image]] = defaultdict(list)
        for image in self.all:
            images[image.worker].append(image)
        return {w: (own[0],) if len(own) == 1 else _newest_first(own) for w, own in images.items()}

    @cached_property
    def taken(self) -> dict[WorkerId, float]:
        """When the newest of each worker that it can come back from was taken, seconds since the epoch: one that isn't to be trusted is as
        good as none."""
        trusted = [i for i in self.all if not i.doubt]
        found = {i.worker: i.taken_at for i in trusted}
        return found if len(found) == len(trusted) else {i.worker: i.taken_at for i in sorted(trusted, key=_TAKEN)}

    @cached_property
    def several(self) -> frozenset[WorkerId]:
        """Workers that have more than one."""
        if len(self.taken) == len(self.all):
            return frozenset()
        return frozenset([w for w, number in Counter(map(_WORKER, self.all)).items() if number > 1])

    @cached_property
    def held(self) -> dict[NodeId, int]:
        """Bytes that each node holds; nodes that hold none aren't in it."""
        return _moved({}, (), self.all)

    def then(self, images: Sequence[Image]) -> "Images":
        """The same as `Images(images)`, in less time where most of them are the very same."""
        if images is self.all:
            return self
        other = Images(images)
        now, before = set(map(id, images)), set(map(id, self.all))
        gone, new = [i for i in self.all if id(i) not in now], [i for i in images if id(i) not in before]
        if len(gone) + len(new) <= len(images) // 2 and len(now) == len(images) and len(before) == len(self.all):
            other._follow(self, gone, new)
        return other

    def _follow(self, before: "Images", gone: Sequence[Image], new: Sequence[Image]) -> None:
        """Work out what was asked of the indexes before, from what it was there."""
        known = before.__dict__
        away = set(map(id, gone))
        fresh: dict[WorkerId, list[Image]] = defaultdict(list)
        for image in new:
            fresh[image.worker].append(image)
        workers = {i.worker for i in (*gone, *new)}
        if "by_worker" in known or "taken" in known:
            by_worker = before.by_worker.copy()
            for worker in workers:
                kept = [i for i in by_worker.pop(worker, ()) if id(i) not in away]
                if own := [*kept, *fresh.get(worker, ())]:
                    by_worker[worker] = _newest_first(own)
            self.__dict__["by_worker"] = by_worker
            if "taken" in known:
                newest = {w: _taken(by_worker.get(w, ())) for w in workers}
                taken = {w: at for w, at in before.taken.items() if w not in newest}
                self.__dict__["taken"] = taken | {w: at for w, at in newest.items() if at is not None}
        if "held" in known:
            self.__dict__["held"] = _moved(before.held, gone, new)


class World:
    """Read-only indexes over a snapshot, each made when first asked for."""

    def __init__(self, snapshot: Snapshot, like: "World | None" = None) -> None:
        """What is the very same in `like` isn't indexed again."""
        self.snapshot = snapshot
        self.at = snapshot.at
        fleet = snapshot.fleet
        nodes, workers, images = (like._nodes, like._workers, like._images) if like is not None else (None, None, None)
        self._nodes: Nodes = nodes if nodes is not None and nodes.all is fleet.nodes else Nodes(fleet.nodes)
        self._workers: Workers = workers if workers is not None and workers.all is fleet.workers else Workers(fleet.workers)
        self._images: Images = images.then(fleet.images) if images is not None else Images(fleet.images)
        same = like is not None and self._nodes is nodes and self._workers is workers
        self.offers: dict[Hashable, tuple[dict[NodeId, Any], dict[SlotId, Any]]] = like.offers if same and like is not None else {}
        """What there is on these nodes, beside these workers, for who looks for the same, by node and by slot: while no notice is open,
        nothing is under way and nothing is planned. To be looked up and added to."""

    @property
    def nodes(self) -> dict[NodeId, Node]:
        """By id, in the order of ids."""
        return self._nodes.by_id

    @property
    def pinned(self) -> Mapping[WorkerId, str]:
        """Why nothing can be done with some workers."""
        return self._workers.pinned

    @property
    def left(self) -> frozenset[WorkerId]:
        """Workers that have gone with their pods, and whom nobody brings back."""
        return self._workers.left

    @property
    def workers(self) -> dict[WorkerId, Worker]:
        """By id, in the order of ids."""
        return self._workers.by_id

    @property
    def pools(self) -> dict[PoolId, tuple[Worker, ...]]:
        """All workers of each pool, whatever their state."""
        return self._workers.pools

    def running(self, pool: PoolId) -> tuple[Worker, ...]:
        """Workers of the pool that run, in the order of their ids."""
        return self._workers.running(pool)

    def among(self, graph: str | None, role: Role | None) -> tuple[Worker, ...]:
        """Workers of the graph and the role, in the order of their ids; None: of all."""
        return self._workers.among(graph, role)

    @property
    def answers(self) -> dict[Hashable, Mapping[WorkerId, bool | None]]:
        """What conditions that read nothing but these workers came out as, by what was asked: to be looked up and added to."""
        return self._workers.answers

    @property
    def answers_of_nodes(self) -> dict[Hashable, dict[NodeId, Any]]:
        """The same of what reads nothing but these nodes, and no notice: an answer for each node that was asked about."""
        return self._nodes.answers

    @property
    def standing(self) -> Counter[NodeId | None]:
        """How many workers are on each node, in a slot and with a process in it."""
        return self._workers.standing

    @property
    def away(self) -> tuple[Worker, ...]:
        """Workers that are parked or lost, in the order of their ids."""
        return self._workers.away

    @cached_property
    def noticed(self) -> tuple[Worker, ...]:
        """Workers that are on nodes for which a notice is open, or were there last, in the order of their ids."""
        by_node = self._workers.by_node if self.notices else {}
        return tuple(sorted([w for node in self.notices for w in by_node.get(node, ())], key=_by_id))

    @cached_property
    def graphs(self) -> tuple[str, ...]:
        """Graphs that have workers, sorted."""
        return tuple(sorted(self._workers.graphs))

    @property
    def slots(self) -> dict[SlotId, Slot]:
        """All slots, to be looked up."""
        return self._nodes.slots

    @property
    def zones(self) -> Mapping[NodeId, str]:
        """The zone of each node that has one; empty where all that have one have the same."""
        return self._nodes.zones

    @property
    def least_gpu(self) -> float:
        """The least bytes that a worker could have on a GPU of any slot, as far as that is known."""
        return self._nodes.least_gpu

    @property
    def empty(self) -> dict[NodeId, tuple[Slot, ...]]:
        """Each node's slots that no worker has and none is reserved for, sound or not, in order."""
        return self._nodes.vacant

    @cached_property
    def vacant(self) -> dict[NodeId, tuple[Slot, ...]]:
        """Each node's sound slots that no worker has and none is reserved for, in order; nodes without one aren't in it."""
        if not self.failing:
            return self._nodes.vacant
        found = {node: tuple(s for s in slots if s.id not in self.failing) for node, slots in self._nodes.vacant.items()}
        return {node: slots for node, slots in found.items() if slots}

    @property
    def images(self) -> dict[WorkerId, tuple[Image, ...]]:
        """Each worker's images, the newest first."""
        return self._images.by_worker

    @property
    def several(self) -> frozenset[WorkerId]:
        """Workers that have more than one image."""
        return self._images.several

    @property
    def taken(self) -> dict[WorkerId, float]:
        """When each worker's newest image was taken, seconds since the epoch."""
        return self._images.taken

    @property
    def holding(self) -> dict[NodeId, int]:
        """Bytes of images that each node holds; nodes that hold none aren't in it."""
        return self._images.held

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

    @cached_property
    def staying(self) -> tuple[NodeId, ...]:
        """All nodes that stay, in the order of ids."""
        going = self.going
        return tuple([name for name, node in self.nodes.items() if node.reachable and name not in going])

    @cached_property
    def room(self) -> Mapping[str | None, Counter[tuple[Role, ...]]]:
        """How many slots nodes that stay have, by the graph of the worker that has them (None: nobody has) and by the roles they take."""
        found: dict[str | None, Counter[tuple[Role, ...]]] = defaultdict(Counter)
        for slot in (slot for name in self.staying for slot in self.nodes[name].slots):
            if slot.worker is None:
                found[None][slot.roles] += 1
            elif (worker := self.workers.get(slot.worker)) is not None:
                found[worker.graph][slot.roles] += 1
        return found

    def leaving(self, worker: Worker) -> str | None:
        """Why nothing voluntary is done with a worker where it is: its node or its GPU is going, or what it has computed isn't to be
        trusted, so that it would come back from no image. None: none of it.
        """
        if worker.doubt:
            return f"nothing that it computed is to be trusted: {worker.doubt}"
        if worker.node is not None and not self.stays(worker.node):
            return f"{worker.node} is going, or doesn't answer"
        return f"a notice is open for a GPU of {worker.slot}" if worker.slot in self.failing else None

    def restorable(self, worker: WorkerId) -> Image | None:
        """The worker's newest image that is to be trusted, and that a node which answers holds, or can fetch from the archive; or None."""
        return next((i for i in self.trusted(worker) if self._held(i) or (i.archived and self.archive)), None)

    def trusted(self, worker: WorkerId) -> Sequence[Image]:
        """The worker's images against which nothing is known, the newest first."""
        return [i for i in self.images.get(worker, ()) if not i.doubt]

    def away_from_nodes(self, image: Image) -> bool:
        """The archive has it, and no node that answers does: whoever restores it has to fetch it."""
        return image.archived and not self._held(image)

    def _held(self, image: Image) -> bool:
        return any(self._answers(n) for n in image.nodes)

    @cached_property
    def archive(self) -> bool:
        """A node that answers has to do with the archive."""
        return any(n.archive and n.reachable for n in self.nodes.values())

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


def _newest_first(own: Sequence[Image]) -> tuple[Image, ...]:
    return tuple(sorted(own, key=_newest)) if len(own) > 1 else (own[0],)


def _taken(own: Sequence[Image]) -> float | None:
    return max([i.taken_at for i in own if not i.doubt], default=None)


def _moved(held: Mapping[NodeId, int], gone: Sequence[Image], new: Sequence[Image]) -> dict[NodeId, int]:
    """Bytes by node, once some images are gone and some are new. Nodes that hold none aren't in it."""
    found = dict(held)
    get = found.get
    for images, sign in ((gone, -1), (new, 1)):
        for image in images:
            size = sign * image.bytes
            for node in image.nodes:
                found[node] = get(node, 0) + size
    return {node: size for node, size in found.items() if size}
