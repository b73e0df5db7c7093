"""The fleet that a test begins with, in the model's terms."""

from collections.abc import Sequence
from typing import Final

import msgspec

from shunter.cases.document import GivenFleet, GivenImage, GivenNode, GivenWorker
from shunter.cases.marks import Marks, Path
from shunter.cases.series import Series
from shunter.model.ids import ImageId, Incarnation, NodeId, SlotId, WorkerId, slot_id
from shunter.model.snapshot import Fleet, Image, Node, Role, Slot, Worker, WorkerState
from shunter.model.vocabulary import WORKER_METRICS

AWAY: Final = (WorkerState.PARKED, WorkerState.LOST)
UNKNOWN: Final = "unknown"
GRAPH: Final = "demo"
MOST_SLOTS: Final = 1_000
_ROLES: Final[dict[str, Role]] = {"prefill": "prefill", "decode": "decode"}
_FIELDS: Final = tuple(zip((v.name for v in WORKER_METRICS), ("running", "waiting", "kv_usage", "sessions", "kv_tokens"), strict=True))


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at the beginning, and what its workers' own entries say of their metrics."""

    fleet: Fleet
    samples: dict[str, dict[str, Series]]


def begin(marks: Marks, parts: Sequence[tuple[Path, GivenFleet]], at: float) -> Begun:
    """The fleet of all `parts`, each with its path; a later one's nodes and workers take the place of an earlier one's of the same name.

    `at` is when the test begins, in seconds since the epoch. What contradicts itself becomes a problem in `marks`, and is left out.
    """
    return _Builder(marks, parts, at).build()


class _Builder:
    def __init__(self, marks: Marks, parts: Sequence[tuple[Path, GivenFleet]], at: float) -> None:
        self.marks, self.at = marks, at
        self.nodes: dict[str, tuple[Path, GivenNode]] = {}
        self.workers: dict[str, tuple[Path, GivenWorker]] = {}
        self.graph = GRAPH
        for path, part in parts:
            self.graph = part.graph or self.graph
            self.nodes |= {name: ((*path, "nodes", name), given) for name, given in part.nodes.items()}
            self.workers |= {name: ((*path, "workers", name), given) for name, given in part.workers.items()}
        self.taken: dict[SlotId, WorkerId] = {}
        self.made: list[Worker] = []
        self.images: list[Image] = []

    def build(self) -> Begun:
        for name, (path, node) in self.nodes.items():
            self._sound_node(name, path, node)
        exact = [name for name, (_, w) in self.workers.items() if w.node is not None and "/" in w.node]
        for name in (*exact, *(n for n in self.workers if n not in exact)):
            self._worker(name, *self.workers[name])
        fleet = Fleet(
            nodes=tuple(self._node(name, self.nodes[name][1]) for name in sorted(self.nodes)),
            workers=tuple(sorted(self.made, key=lambda w: w.id)),
            images=tuple(sorted(self.images, key=lambda i: i.id)),
        )
        return Begun(fleet=fleet, samples={name: self._samples(*given) for name, given in self.workers.items()})

    def _sound_node(self, name: str, path: Path, node: GivenNode) -> None:
        if not 0 <= node.slots <= MOST_SLOTS or node.gpus < 0:
            self.marks.add("SH165", path, f"{name} can't have {node.slots} slots of {node.gpus} GPUs", f"Write 0 to {MOST_SLOTS} slots")
        if "/" in name or not name:
            self.marks.add("SH165", path, f"\"{name}\" can't be a node's name", "Write one without a slash: node-a/1 is a slot", key=True)

    def _node(self, name: str, given: GivenNode) -> Node:
        ids = [slot_id(NodeId(name), index) for index in range(min(max(given.slots, 0), MOST_SLOTS))]
        slots = tuple(
            Slot(id=one, roles=given.roles, gpu_model=given.gpu_model, gpus=given.gpus, worker=self.taken.get(one)) for one in ids
        )
        return Node(
            id=NodeId(name),
            slots=slots,
            labels=given.labels,
            reachable=given.reachable,
            seen_at=self.at,
            runtime=given.runtime,
            facts=given.facts,
            archive=given.archive,
        )

    def _worker(self, name: str, path: Path, given: GivenWorker) -> None:
        role: Role | None = given.role or _ROLES.get(name.split("-")[0])
        if role is None or name in _ROLES:
            self.marks.add("SH165", path, f"it isn't clear which role {name} has", "Add role: prefill or role: decode", key=True)
            return
        state = given.state or (WorkerState.PARKED if given.node is None else WorkerState.RUNNING)
        if (state in AWAY) == (given.node is not None):
            remedy = "Remove the node" if given.node else "Say which node it runs on"
            self.marks.add("SH165", path, f"a worker that is {state.value} {'has no' if given.node else 'needs a'} node", remedy)
            return
        slot = self._slot(name, (*path, "node"), given.node, role) if given.node is not None else None
        if given.node is not None and slot is None:
            return
        memory = None if given.memory == UNKNOWN else self.marks.size((*path, "memory"), given.memory)
        worker = Worker(
            id=WorkerId(name),
            role=role,
            graph=given.graph or self.graph,
            engine=given.engine,
            state=state,
            node=NodeId(given.node.partition("/")[0]) if given.node else None,
            slot=slot,
            incarnation=Incarnation(given.incarnation),
            labels=given.labels,
            memory=memory,
        )
        self.made.append(worker)
        self.images += [self._image(worker, (*path, "images", index), index, one) for index, one in enumerate(given.images)]

    def _slot(self, name: str, path: Path, where: str, role: Role) -> SlotId | None:
        node, slash, index = where.partition("/")
        if not self.marks.known(path, node, self.nodes, "node"):
            return None
        given = self.nodes[node][1]
        if role not in given.roles:
            self.marks.add("SH165", path, f"{node} takes no {role} worker", "Name another node, or change its roles")
            return None
        ids = [slot_id(NodeId(node), k) for k in range(min(max(given.slots, 0), MOST_SLOTS))]
        free = [one for one in ids if one not in self.taken]
        wanted = [one for one in free if not slash or one == f"{node}/{index}"]
        if not wanted:
            what = f"{where} is taken or isn't there" if slash else f"{node} has no free slot for {name}: it has {len(ids)}"
            self.marks.add("SH165", path, what, f"Give {node} more slots, or name another node")
            return None
        self.taken[wanted[0]] = WorkerId(name)
        return wanted[0]

    def _image(self, worker: Worker, path: Path, index: int, given: GivenImage) -> Image:
        nodes = [n for k, n in enumerate(given.nodes) if self.marks.known((*path, "nodes", k), n, self.nodes, "node")]
        size = self.marks.size((*path, "size"), given.size) if given.size else worker.memory
        source = self.nodes[nodes[0]][1] if nodes else GivenNode()
        return Image(
            id=ImageId(f"{worker.id}-image-{index}"),
            worker=worker.id,
            incarnation=worker.incarnation,
            taken_at=self.at - given.age,
            bytes=size or 0,
            nodes=tuple(NodeId(n) for n in sorted(nodes)),
            role=worker.role,
            graph=worker.graph,
            engine=worker.engine,
            facts=source.facts,
            archived=given.archived,
        )

    def _samples(self, path: Path, given: GivenWorker) -> dict[str, Series]:
        found = {}
        for name, attribute in _FIELDS:
            values = getattr(given, attribute)
            if values is not None and (one := self.marks.series((*path, name), values)) is not None:
                found[name] = one
        return found
