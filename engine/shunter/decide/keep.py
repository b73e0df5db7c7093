"""Whose turn it is to be checkpointed, and which nodes hold the images: those that hold the least first, then those with the most free
slots.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from shunter.decide.conflict import Ledger
from shunter.decide.world import World
from shunter.model.ids import NodeId, PoolId, node_of
from shunter.model.snapshot import Worker


class Turns:
    """How many checkpoints are under way or planned, by node and by pool."""

    def __init__(self) -> None:
        self.nodes: defaultdict[NodeId, int] = defaultdict(int)
        self.pools: defaultdict[PoolId, int] = defaultdict(int)

    def count(self, worker: Worker) -> None:
        """Count one."""
        if worker.node is not None:
            self.nodes[worker.node] += 1
        self.pools[worker.pool] += 1


Key: TypeAlias = tuple[int, int, NodeId]
"""Bytes held, less the free slots, node."""
_EMPTIEST: Final = "keys of nodes in which nothing is held, in order"


class Holding:
    """What each node that stays holds, in order. The order follows what is added here and what the ledger gives away."""

    def __init__(self, world: World, ledger: Ledger, used: Mapping[NodeId, int]) -> None:
        """`used` are bytes that nodes hold already; a node that isn't in it holds nothing."""
        self._begin(_Order(world, ledger, used))

    def _begin(self, base: "_Order") -> None:
        self._base, self._changes = base, base.follow()
        self._added: dict[NodeId, int] = {}
        self._moved: list[Key] = []

    def copy(self) -> "Holding":
        """Another one to which nothing was added yet."""
        other = object.__new__(Holding)
        other._begin(self._base)
        return other

    def add(self, node: NodeId, size: int) -> None:
        """The node is given `size` bytes more."""
        self._follow()
        if not size or node not in self._base.by_node:
            return
        if node in self._added:
            del self._moved[bisect_left(self._moved, self._key(node))]
        self._added[node] = self._added.get(node, 0) + size
        insort(self._moved, self._key(node))

    def first(
        self,
        number: int,
        fits: Callable[[NodeId], bool],
        but: NodeId | None,
        has_room: Callable[[NodeId], bool] = lambda _node: True,
        *,
        apart: bool = False,
    ) -> tuple[NodeId, ...]:
        """Up to `number` nodes other than `but` that have room: those that fit first, each in order. `apart`: before all, as far as there
        are such, nodes in zones in which neither `but` nor another of them is.
        """
        self._follow()
        spread = _Spread(number, self._base.zones if apart else {}, self._base.different if apart else 0, but)
        for node in self._in_order() if number else ():
            if node != but and has_room(node) and spread.take(node, fit=fits(node)):
                break
        return spread.chosen()

    def _in_order(self) -> Iterator[NodeId]:
        moved = iter(self._moved)
        after = next(moved, None)
        for key in self._base.order:
            if key[2] in self._added:
                continue
            while after is not None and after < key:
                yield after[2]
                after = next(moved, None)
            yield key[2]
        while after is not None:
            yield after[2]
            after = next(moved, None)

    def _follow(self) -> None:
        changes = self._base.follow()
        if changes != self._changes:
            self._moved, self._changes = sorted(self._key(node) for node in self._added), changes

    def _key(self, node: NodeId) -> Key:
        used, free, _ = self._base.by_node[node]
        return used + self._added[node], free, node


class _Spread:
    """Nodes for copies, taken in order: the first of each zone, those that fit, the rest."""

    def __init__(self, number: int, zones: Mapping[NodeId, str], different: int, own: NodeId | None) -> None:
        """There are so many `different` zones."""
        self._number, self._zones, self._all = number, zones, different
        self._used: set[str] = {zones[own]} if own is not None and own in zones else set()
        self._first: list[NodeId] = []
        self._apart: list[NodeId] = []
        self._fit: list[NodeId] = []
        self._rest: list[NodeId] = []

    def take(self, node: NodeId, *, fit: bool) -> bool:
        """The next node. True: those that come after it change nothing any more."""
        apart = bool(self._zones) and node in self._zones and self._zones[node] not in self._used
        if apart and fit:
            self._first.append(node)
            self._used.add(self._zones[node])
        else:
            (self._apart if apart else self._fit if fit else self._rest).append(node)
        have = len(self._first)
        return have == self._number or (len(self._used) == self._all and have + len(self._fit) >= self._number)

    def chosen(self) -> tuple[NodeId, ...]:
        """As many as were asked for, if there are."""
        for node in self._apart:
            if self._zones[node] not in self._used:
                self._first.append(node)
                self._used.add(self._zones[node])
        left = (*self._fit, *self._apart, *self._rest)
        return (*self._first, *(node for node in left if node not in self._first))[: self._number] if self._first else left[: self._number]


class _Order:
    """The nodes that stay as they are without what is added, kept in order while slots are given away."""

    def __init__(self, world: World, ledger: Ledger, used: Mapping[NodeId, int]) -> None:
        self._ledger, self._seen = ledger, len(ledger.changes)
        self.zones = world.zones
        self.different = len(set(self.zones.values()))
        self.by_node: dict[NodeId, Key] = {n: (used.get(n, 0), -ledger.vacancies(n), n) for n in world.staying} if used else {}
        self.order = sorted(self.by_node.values())
        """The first to be asked first."""
        if not used:
            self._begin(world)

    def _begin(self, world: World) -> None:
        """Where nothing is used, from what it would be without notices, and without what is under way: that is kept."""
        kept = world.answers_of_nodes
        if _EMPTIEST not in kept:
            keys = ((0, -len(world.empty.get(name, ())), name) for name, node in world.nodes.items() if node.reachable)
            kept[_EMPTIEST] = {key[2]: key for key in sorted(keys)}
        self.by_node = kept[_EMPTIEST].copy()
        self.order = list(self.by_node.values())
        for node in world.going & self.by_node.keys():
            del self.order[bisect_left(self.order, self.by_node.pop(node))]
        for node in {*map(node_of, world.failing), *self._ledger.begun, *self._ledger.changes}:
            self._renew(node)

    def follow(self) -> int:
        """Catch up with the ledger. The answer is how many of its changes were taken in so far."""
        for node in self._ledger.changes[self._seen :]:
            self._renew(node)
        self._seen = len(self._ledger.changes)
        return self._seen

    def _renew(self, node: NodeId) -> None:
        if (before := self.by_node.get(node)) is not None:
            del self.order[bisect_left(self.order, before)]
            self.by_node[node] = after = (before[0], -self._ledger.vacancies(node), node)
            insort(self.order, after)
