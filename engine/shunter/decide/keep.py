"""Whose turn it is to be checkpointed, and which nodes hold the images: those that hold the least first, then those with the most free
slots.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import merge
from typing import TypeAlias

from shunter.decide.conflict import Ledger
from shunter.decide.world import World
from shunter.model.ids import NodeId, PoolId
from shunter.model.snapshot import Worker


class Turns:
    """How many checkpoints are under way or planned, by node and by pool."""

    def __init__(self) -> None:
        self.nodes: Counter[NodeId] = Counter()
        self.pools: Counter[PoolId] = Counter()

    def count(self, worker: Worker) -> None:
        """Count one."""
        if worker.node is not None:
            self.nodes[worker.node] += 1
        self.pools[worker.pool] += 1


class Holding:
    """What each node that stays holds, in order. The order follows what is added here and what the ledger gives away."""

    def __init__(self, world: World, ledger: Ledger, used: Mapping[NodeId, int]) -> None:
        """`used` are bytes that nodes hold already; a node that isn't in it holds nothing."""
        self._base, self._added = _Order(world, ledger, used), dict[NodeId, int]()

    def copy(self) -> "Holding":
        """Another one to which nothing was added yet."""
        other = object.__new__(Holding)
        other._base, other._added = self._base, {}
        return other

    def add(self, node: NodeId, size: int) -> None:
        """The node is given `size` bytes more."""
        if size:
            self._added[node] = self._added.get(node, 0) + size

    def first(self, number: int, fits: Callable[[NodeId], bool], but: NodeId | None) -> tuple[NodeId, ...]:
        """Up to `number` nodes other than `but`: those that fit first, each in order."""
        base, added = self._base, self._added
        moved = sorted((used + more, free, node) for node, more in added.items() if (key := base.key(node)) for used, free in [key[:2]])
        chosen: list[NodeId] = []
        others: list[NodeId] = []
        for _, _, node in merge((key for key in base.order() if key[2] not in added), moved):
            if len(chosen) >= number:
                break
            if node != but:
                (chosen if fits(node) else others).append(node)
        return tuple([*chosen, *others][:number])


Key: TypeAlias = tuple[int, int, NodeId]
"""Bytes held, free slots less than none, node."""


class _Order:
    """The nodes that stay as they are without what is added, kept in order while slots are given away."""

    def __init__(self, world: World, ledger: Ledger, used: Mapping[NodeId, int]) -> None:
        self._ledger, self._seen = ledger, len(ledger.changes)
        self._by_node: dict[NodeId, Key] = {n: (used.get(n, 0), -ledger.vacancies(n), n) for n in world.nodes if world.stays(n)}
        self._order = sorted(self._by_node.values())

    def order(self) -> Sequence[Key]:
        """All of them, the first to be asked first."""
        self._follow()
        return self._order

    def key(self, node: NodeId) -> Key | None:
        """The node's; None when it doesn't stay."""
        self._follow()
        return self._by_node.get(node)

    def _follow(self) -> None:
        changes = self._ledger.changes
        for node in changes[self._seen :] if len(changes) > self._seen else ():
            if (before := self._by_node.get(node)) is not None:
                del self._order[bisect_left(self._order, before)]
                self._by_node[node] = after = (before[0], -self._ledger.vacancies(node), node)
                insort(self._order, after)
        self._seen = len(changes)
