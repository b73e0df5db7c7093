"""Whose turn it is to be checkpointed, and which nodes hold the images: those that hold the least first, then those with the most free
slots.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

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
        self._ledger, self._used = ledger, dict(used)
        self._seen = len(ledger.changes)
        self._keys = {node: self._key(node) for node in world.nodes if world.stays(node)}
        self._order = sorted(self._keys.values())

    def copy(self) -> "Holding":
        """Another one that is the same now and goes its own way."""
        self._follow()
        other = object.__new__(Holding)
        other._ledger, other._used, other._seen = self._ledger, dict(self._used), self._seen
        other._keys, other._order = dict(self._keys), list(self._order)
        return other

    def add(self, node: NodeId, size: int) -> None:
        """The node is given `size` bytes more."""
        if not size:
            return
        self._used[node] = self._used.get(node, 0) + size
        self._sort(node)

    def first(self, number: int, fits: Callable[[NodeId], bool], but: NodeId | None) -> tuple[NodeId, ...]:
        """Up to `number` nodes other than `but`: those that fit first, each in order."""
        self._follow()
        chosen: list[NodeId] = []
        others: list[NodeId] = []
        for node in self._nodes():
            if len(chosen) >= number:
                break
            if node != but:
                (chosen if fits(node) else others).append(node)
        return tuple([*chosen, *others][:number])

    def _nodes(self) -> Iterator[NodeId]:
        return (node for _, _, node in self._order)

    def _key(self, node: NodeId) -> tuple[int, int, NodeId]:
        return self._used.get(node, 0), -self._ledger.vacancies(node), node

    def _follow(self) -> None:
        changes = self._ledger.changes
        for node in changes[self._seen :]:
            self._sort(node)
        self._seen = len(changes)

    def _sort(self, node: NodeId) -> None:
        before = self._keys.get(node)
        if before is None:
            return
        del self._order[bisect_left(self._order, before)]
        self._keys[node] = self._key(node)
        insort(self._order, self._keys[node])
