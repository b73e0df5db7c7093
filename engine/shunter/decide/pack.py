"""Placing where nodes lack memory or disk for all who could come: each worker in a slot, and no node with more than it has room for.

That is packing, which nobody knows how to do both exactly and soon. Workers are packed in several orders, and the best of that is bettered.
Few of them are then gone through by branch and bound: of half a dozen the best is found, of more the best within a number of steps.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from shunter.decide.jobs import Job, Option, Options
from shunter.decide.rooms import Left, Rooms
from shunter.model.ids import NodeId, SlotId, WorkerId, node_of

EXACT: Final = 16
"""Up to so many workers all ways are gone through, as far as the steps go."""
_STEPS: Final = 20_000
_EXCHANGES: Final = 20_000

Costs = Mapping[int, Mapping[SlotId, int]]
"""What a slot costs, by the `id` of the mapping of options that a worker has."""
InTime = Callable[[Sequence[Job]], bool]


class Loads:
    """What nodes are given, against what they have left."""

    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms
        self._left: dict[NodeId, Left] = {}

    def left(self, node: NodeId) -> Left:
        """What the node has left."""
        found = self._left.get(node)
        if found is None:
            found = self._left[node] = self.rooms.left(node)
        return found

    def fits(self, node: NodeId, job: Job, option: Option) -> bool:
        """There is room for the worker; it isn't asked of one whose size isn't known."""
        left = self.left(node)
        return not job.bytes or (job.bytes - option.freed <= left.memory and job.bytes + option.kept <= left.disk)

    def add(self, node: NodeId, job: Job, option: Option, times: int = 1) -> None:
        """The worker comes to the node; `times` -1: it doesn't, after all."""
        left = self.left(node)
        if job.bytes:
            self._left[node] = Left(left.memory - times * max(0, job.bytes - option.freed), left.disk - times * (job.bytes + option.kept))

    def have_room(self, jobs: Iterable[Job], slots: Mapping[WorkerId, SlotId], options: Options) -> bool:
        """There is room for them all in these slots."""
        for job in jobs:
            slot = slots[job.worker]
            node, option = node_of(slot), options[job.worker][slot]
            if not self.fits(node, job, option):
                return False
            self.add(node, job, option)
        return True


class Kind(NamedTuple):
    """Slots of one node that mean the same to everybody. `of` is the option that workers have there, by the `id` of their mappings; `shape`
    is equal for kinds of different nodes that mean the same.
    """

    node: NodeId
    slots: tuple[SlotId, ...]
    of: Mapping[int, tuple[int, Option]]
    shape: int


def pack(
    able: Sequence[Job], options: Options, costs: Costs, in_time: InTime, rooms: Rooms, starts: Iterable[Sequence[Job]]
) -> dict[WorkerId, SlotId]:
    """A slot for each who is placed, of the most value, then the most workers, then the least cost that is found. `able` have an option and
    are in time alone, the most valuable first. `starts` are who would be placed if there were room enough.
    """
    kinds = _kinds(able, options, costs)
    firsts = [[*chosen, *_others(able, chosen)] for chosen in starts]
    orders = [*firsts, able, sorted(able, key=lambda j: (-j.value / max(j.occupy, 1e-9), j.worker)), sorted(able, key=_by_size)]
    found = [_filled(order, options, kinds, in_time, rooms) for order in orders]
    best = max(found, key=lambda p: p.worth)
    best.better(able)
    if len(able) <= EXACT:
        return _Search(able, options, kinds, in_time, best).run()
    best.cheaper()
    return best.slots()


def _by_size(job: Job) -> tuple[float, WorkerId]:
    return -job.value / max(job.bytes, 1), job.worker


def _others(able: Sequence[Job], chosen: Sequence[Job]) -> list[Job]:
    there = {j.worker for j in chosen}
    return [j for j in able if j.worker not in there]


def _kinds(able: Sequence[Job], options: Options, costs: Costs) -> list[Kind]:
    """The slots that anybody can have, those together that are alike."""
    different = {id(options[j.worker]): options[j.worker] for j in able}
    alike: defaultdict[tuple[NodeId, tuple[tuple[int, int, int, int], ...]], list[SlotId]] = defaultdict(list)
    for slot in sorted({s for own in different.values() for s in own}):
        means = tuple((who, costs[who][slot], own[slot].freed, own[slot].kept) for who, own in different.items() if slot in own)
        alike[node_of(slot), means].append(slot)
    shapes = {means: n for n, means in enumerate(dict.fromkeys(means for _, means in alike))}
    return [
        Kind(node, tuple(slots), {who: (cost, different[who][slots[0]]) for who, cost, _, _ in means}, shapes[means])
        for (node, means), slots in alike.items()
    ]


class _Packing:
    """Who is placed so far, and where. Nodes go by number here: they are looked at very often."""

    def __init__(self, options: Options, kinds: Sequence[Kind], in_time: InTime, rooms: Rooms) -> None:
        self.kinds, self.rooms, self._in_time, self._options = kinds, rooms, in_time, options
        self.free = [len(kind.slots) for kind in kinds]
        number = {node: n for n, node in enumerate(dict.fromkeys(kind.node for kind in kinds))}
        self.node = [number[kind.node] for kind in kinds]
        self.memory = [rooms.left(node).memory for node in number]
        self.disk = [rooms.left(node).disk for node in number]
        self.at: dict[WorkerId, int] = {}
        self.jobs: dict[WorkerId, Job] = {}
        self.lanes: defaultdict[NodeId | None, list[Job]] = defaultdict(list)
        self.value, self.cost = 0.0, 0
        self._for: dict[int, list[_Choice]] = {}

    @property
    def worth(self) -> tuple[float, int, int]:
        """The more, the better."""
        return self.value, len(self.at), -self.cost

    def choices(self, job: Job) -> "list[_Choice]":
        """What it can have, the cheapest first."""
        alike = id(self._options[job.worker])
        if alike not in self._for:
            mine = [(kind.of[alike], n, len(kind.of)) for n, kind in enumerate(self.kinds) if alike in kind.of]
            self._for[alike] = sorted(_Choice(cost, n, self.node[n], o.freed, o.kept, breadth) for (cost, o), n, breadth in mine)
        return self._for[alike]

    def fits(self, job: Job, choice: "_Choice") -> bool:
        """There is a slot of the kind, and room on its node."""
        _, kind, node, freed, kept, _ = choice
        has_room = not job.bytes or (job.bytes - freed <= self.memory[node] and job.bytes + kept <= self.disk[node])
        return self.free[kind] > 0 and has_room

    def punctual(self, job: Job) -> bool:
        """Its node can still dump it in time."""
        return self._in_time([*self.lanes[job.lane], job] if job.lane else [job])

    def put(self, job: Job, choice: "_Choice") -> None:
        """Place it."""
        self._change(job, choice, 1)
        self.at[job.worker], self.jobs[job.worker] = choice.kind, job
        self.lanes[job.lane].append(job)

    def take(self, job: Job) -> "_Choice":
        """Take it out again. The answer is where it was."""
        kind = self.at.pop(job.worker)
        del self.jobs[job.worker]
        choice = next(c for c in self.choices(job) if c.kind == kind)
        self._change(job, choice, -1)
        self.lanes[job.lane].remove(job)
        return choice

    def _change(self, job: Job, choice: "_Choice", sign: int) -> None:
        if job.bytes:
            self.memory[choice.node] -= sign * max(0, job.bytes - choice.freed)
            self.disk[choice.node] -= sign * (job.bytes + choice.kept)
        self.free[choice.kind] -= sign
        self.value += sign * job.value
        self.cost += sign * choice.cost

    def tightest(self, job: Job, node: int | None = None) -> "_Choice | None":
        """Where it leaves the least room unused, in a slot that the fewest others can have, of one node or of all; None: nowhere."""
        best, least = None, (0, 0.0)
        memory, disk, free, size = self.memory, self.disk, self.free, job.bytes
        for choice in self.choices(job):
            _, kind, at, freed, kept, breadth = choice
            if not free[kind] or (node is not None and at != node):
                continue
            if size and (size - freed > memory[at] or size + kept > disk[at]):
                continue
            rank = breadth, min(memory[at], disk[at])
            if best is None or rank < least:
                best, least = choice, rank
        return best

    def better(self, able: Sequence[Job]) -> None:
        """Place who isn't in place of somebody who is worth less, as long as that gains something."""
        tries = _EXCHANGES
        for job in able:
            if job.worker in self.at or tries < 0:
                continue
            somewhere = self.tightest(job)
            # where there is room for it, its node has no time for it
            others = self.lanes[job.lane] if somewhere is not None else self.jobs.values()
            for other in sorted(others, key=lambda j: (j.value, j.worker)):
                tries -= 1
                if other.value >= job.value or tries < 0 or self._instead(job, other, somewhere):
                    break

    def _instead(self, job: Job, other: Job, somewhere: "_Choice | None") -> bool:
        """Exchange them; the other one may have a place elsewhere."""
        if other.lane != job.lane and not self.punctual(job):
            return False
        before = self.take(other)
        choice = (somewhere or self.tightest(job, before.node)) if self.punctual(job) else None
        if choice is None:
            self.put(other, before)
            return False
        self.put(job, choice)
        elsewhere = self.tightest(other) if self.punctual(other) else None
        if elsewhere is not None:
            self.put(other, elsewhere)
        return True

    def cheaper(self) -> None:
        """Bring each to the cheapest place that is left."""
        for job in sorted(self.jobs.values(), key=lambda j: j.worker):
            before = self.take(job)
            self.put(job, next(c for c in self.choices(job) if c == before or self.fits(job, c)))

    def slots(self) -> dict[WorkerId, SlotId]:
        """A slot of its own for each."""
        left: dict[int, Iterator[SlotId]] = {n: iter(kind.slots) for n, kind in enumerate(self.kinds)}
        return {worker: next(left[self.at[worker]]) for worker in sorted(self.at)}


class _Choice(NamedTuple):
    """A kind of slots that a worker can have, on a node by its number. `breadth`: how many mappings of options have it."""

    cost: int
    kind: int
    node: int
    freed: int
    kept: int
    breadth: int


def _filled(order: Sequence[Job], options: Options, kinds: Sequence[Kind], in_time: InTime, rooms: Rooms) -> _Packing:
    packing = _Packing(options, kinds, in_time, rooms)
    for job in order:
        if packing.punctual(job) and (choice := packing.tightest(job)) is not None:
            packing.put(job, choice)
    return packing


class _Search:
    """Branch and bound over who goes where, the most valuable first, cut off where all that is left can't beat the best."""

    def __init__(self, able: Sequence[Job], options: Options, kinds: Sequence[Kind], in_time: InTime, best: _Packing) -> None:
        self._able, self._steps = able, _STEPS
        self._best, self._slots = best.worth, best.slots()
        self._packing = _Packing(options, kinds, in_time, best.rooms)
        self._slots_in_all = sum(len(kind.slots) for kind in kinds)
        self._sums = [0.0]
        for job in able:
            self._sums.append(self._sums[-1] + job.value)
        least = [self._packing.choices(job)[0].cost for job in able]
        self._least = [sum(least[n:]) for n in range(len(able) + 1)]
        self._of_node: defaultdict[int, list[int]] = defaultdict(list)
        for kind, node in enumerate(self._packing.node):
            self._of_node[node].append(kind)

    def run(self) -> dict[WorkerId, SlotId]:
        """The best that was found."""
        self._descend(0)
        return self._slots

    def _descend(self, at: int) -> None:
        packing, self._steps = self._packing, self._steps - 1
        if packing.worth > self._best:
            self._best, self._slots = packing.worth, packing.slots()
        if at == len(self._able) or self._steps < 0 or self._hopeless(at):
            return
        job = self._able[at]
        for choice in self._branches(job) if packing.punctual(job) else ():
            packing.put(job, choice)
            self._descend(at + 1)
            packing.take(job)
        self._descend(at + 1)

    def _hopeless(self, at: int) -> bool:
        """Whether not even all that can still have a slot would beat the best."""
        value, count, cost = self._packing.worth
        rest = min(len(self._able) - at, self._slots_in_all - count)
        dearest = self._least[at] if rest == len(self._able) - at else 0
        return (value + self._sums[at + rest] - self._sums[at], count + rest, cost - dearest) <= self._best

    def _branches(self, job: Job) -> Iterator[_Choice]:
        """Where it fits now; of nodes that are alike, as they are filled now, only one."""
        packing, tried = self._packing, set[tuple[object, ...]]()
        for choice in packing.choices(job):
            if not packing.fits(job, choice):
                continue
            there = tuple((packing.kinds[n].shape, packing.free[n]) for n in self._of_node[choice.node])
            state = (packing.kinds[choice.kind].shape, packing.memory[choice.node], packing.disk[choice.node], there)
            if state not in tried:
                tried.add(state)
                yield choice
