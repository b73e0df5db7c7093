"""Where a worker or an image can go: hard limits first, then the policy's own words."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from shunter.decide.conflict import Ledger
from shunter.decide.place import Option
from shunter.decide.scope import Destinations, Scopes, alike
from shunter.decide.world import STANDING, World
from shunter.model.expression import BulkRules, Scope
from shunter.model.ids import NodeId, SlotId, node_of
from shunter.model.policy import Destination
from shunter.model.snapshot import Image, Node, Role, Slot, Worker

FACTS: Final = ("arch", "cpu", "criu", "cuda", "driver", "kernel")
"""Node facts that must be equal where both sides have them."""
_SAID = 3
_OF_NODE: Final = "node."


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a destination must offer. Empty or None: not known, so that it can't be refused for it here; the agents look again."""

    role: Role
    gpu_model: str = ""
    gpus: int | None = None
    runtime: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    """Those of `FACTS` that are known, in that order."""


def needs_of_worker(world: World, worker: Worker) -> Needs:
    """What a live worker needs: what it has now."""
    slot = world.slots.get(worker.slot) if worker.slot else None
    node = world.nodes.get(worker.node) if worker.node else None
    return Needs(
        role=worker.role,
        gpu_model=slot.gpu_model if slot else "",
        gpus=slot.gpus if slot else None,
        runtime=node.runtime if node else "",
        facts=_known(node.facts) if node else (),
    )


def needs_of_image(world: World, image: Image) -> Needs:
    """What an image needs: the facts of where it was taken, and the runtime if all its holders have the same one."""
    runtimes = {world.nodes[n].runtime for n in image.nodes if n in world.nodes}
    return Needs(role=image.role, runtime=runtimes.pop() if len(runtimes) == 1 else "", facts=_known(image.facts))


def _known(facts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((fact, value) for fact in FACTS if (value := facts.get(fact)))


def unfit_node(world: World, needs: Needs, node: Node) -> str | None:
    """Why nothing with these needs can go to the node, in words, or None."""
    if not node.reachable:
        return "it doesn't answer"
    if world.notices.get(node.id):
        return "a notice is open for it"
    if needs.runtime and node.runtime != needs.runtime:
        return f"its runtime is {node.runtime}, not {needs.runtime}"
    for fact, here in needs.facts:
        there = node.facts.get(fact)
        if there and here != there:
            return f"its {fact} is {there}, not {here}"
    return None


class Fitness:
    """`unfit_node`, asked once for what is alike: it depends on the node, the runtime and the facts alone."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], dict[NodeId, str | None]] = defaultdict(dict)

    def of(self, needs: Needs) -> Callable[[NodeId], str | None]:
        """Why things with these needs can't go to a node of the fleet, in words, or None."""
        known, world = self._known[needs.runtime, needs.facts], self._world

        def unfit(node: NodeId) -> str | None:
            if node not in known:
                known[node] = unfit_node(world, needs, world.nodes[node])
            return known[node]

        return unfit


def unfit_slot(needs: Needs, slot: Slot) -> str | None:
    """Why nothing with these needs can occupy the slot, free or not, in words, or None."""
    if needs.role not in slot.roles:
        return f"it takes no {needs.role} worker"
    if needs.gpu_model and slot.gpu_model != needs.gpu_model:
        return f"its GPUs are {slot.gpu_model or 'none'}, not {needs.gpu_model}"
    if needs.gpus is not None and slot.gpus != needs.gpus:
        return f"it has {slot.gpus} GPUs, not {needs.gpus}"
    return None


class Found:
    """Slots that will do, and, for each node without one, why. Both are shared by all that look for the same: don't change them."""

    def __init__(self, options: Mapping[SlotId, Option], refused: Mapping[NodeId, str], leaving: NodeId | None) -> None:
        self.options, self._refused, self._leaving = options, refused, leaving

    def why(self) -> str:
        """The reasons in one line: the first few by name, the rest by number."""
        return self._why

    @cached_property
    def _why(self) -> str:
        refused = [(node, why) for node, why in self._refused.items() if node != self._leaving]
        told = [f"{node}: {why}" for node, why in refused[:_SAID]]
        rest = Counter(why for _, why in refused[_SAID:])
        return "; ".join([*told, *(f"{n} more: {why}" for why, n in rest.most_common(_SAID))]) or "there is no node"


class Wish(NamedTuple):
    """What a policy says of a node as a destination: why not, or how doubtful and how preferred it is."""

    against: str | None = None
    doubtful: int = 0
    prefer: float | None = None


Fitting = list[tuple[Node, list[Slot]]]
_NO_WISH: Final = Wish()


class Finder:
    """Looks for slots in one world. `ledger` says how many workers a node is getting already.

    Whoever needs the same, and whose policy reads the same values of it, gets the same answer: it is worked out once, for as long as the
    slots are those of the same mapping and nothing was planned.
    """

    def __init__(self, world: World, scopes: Scopes, rules: BulkRules, ledger: Ledger) -> None:
        self._world, self._scopes, self._rules, self._ledger = world, scopes, rules, ledger
        self._fitness = Fitness(world)
        self._free: Mapping[NodeId, Sequence[Slot]] = {}
        self._arrivals = 0
        self._fitting: dict[Needs, tuple[Fitting, dict[NodeId, str]]] = {}
        self._offers: dict[Hashable, tuple[dict[SlotId, Option], dict[NodeId, str]]] = {}
        self._found: dict[Hashable, Found] = {}

    @cached_property
    def _standing(self) -> Counter[NodeId | None]:
        return Counter(w.node for w in self._world.workers.values() if w.slot and w.state in STANDING)

    def fits(self, needs: Needs) -> Callable[[NodeId], bool]:
        """Whether things with these needs could be restored on a node of the fleet, if it had a slot."""
        unfit = self._fitness.of(needs)
        return lambda node: unfit(node) is None

    def find(
        self,
        needs: Needs,
        free: Mapping[NodeId, Sequence[Slot]],
        *,
        scope: Scope,
        to: Destination | None = None,
        avoid: frozenset[NodeId] = frozenset(),
        leaving: NodeId | None = None,
    ) -> Found:
        """The slots among `free` (by node, in order) that will do. `avoid` are nodes where an earlier attempt failed: the last resort.

        A destination's condition without an answer excludes nothing, but is sorted last: an involuntary move doesn't wait for a metric.
        """
        if self._free is not free or self._arrivals != self._ledger.arrivals:
            self._free, self._arrivals = free, self._ledger.arrivals
            self._fitting, self._offers, self._found = {}, {}, {}
        key = (needs, avoid, *self._asked(to, scope))
        found = self._found.get((key, leaving))
        if found is None:
            options, refused = self._offer(key, needs, to, scope, avoid)
            if leaving is not None and leaving not in refused:
                options = {slot: option for slot, option in options.items() if node_of(slot) != leaving}
            found = self._found[key, leaving] = Found(options, refused, leaving)
        return found

    def _asked(self, to: Destination | None, scope: Scope) -> Iterator[Hashable]:
        """What of the policy and of the scope a destination is chosen by, but for the destination's own variables."""
        for expression in (to.where, to.prefer) if to else ():
            yield expression.text if expression else None
            for name in self._rules.inputs(expression) if expression else ():
                if not name.startswith(_OF_NODE):
                    yield alike(scope.get(name))

    def _offer(
        self, key: Hashable, needs: Needs, to: Destination | None, scope: Scope, avoid: frozenset[NodeId]
    ) -> tuple[dict[SlotId, Option], dict[NodeId, str]]:
        """The options, and why the other nodes have none."""
        if key in self._offers:
            return self._offers[key]
        fitting, unfit = self._fit(needs)
        options: dict[SlotId, Option] = {}
        unwanted: dict[NodeId, str] = {}
        for (node, slots), wish in zip(fitting, self._wishes(to, scope, [node for node, _ in fitting]), strict=True):
            if wish.against is not None:
                unwanted[node.id] = wish.against
                continue
            base = self._standing[node.id] + self._ledger.arriving(node.id)
            doubt = 2 if node.id in avoid else wish.doubtful
            options.update({s.id: Option(doubtful=doubt, prefer=wish.prefer, load=base + rank) for rank, s in enumerate(slots)})
        refused = {node: why for node in self._world.nodes if (why := unfit.get(node) or unwanted.get(node))} if unwanted else unfit
        self._offers[key] = options, refused
        return options, refused

    def _fit(self, needs: Needs) -> tuple[Fitting, dict[NodeId, str]]:
        """The nodes with free slots that fit, with those; and why the other nodes have none."""
        if needs in self._fitting:
            return self._fitting[needs]
        fitting: Fitting = []
        refused: dict[NodeId, str] = {}
        unfit = self._fitness.of(needs)
        for node in self._world.nodes.values():
            there = self._free.get(node.id, ())
            slots = [] if (why := unfit(node.id)) else [s for s in there if unfit_slot(needs, s) is None]
            if slots:
                fitting.append((node, slots))
            else:
                refused[node.id] = why or (unfit_slot(needs, there[0]) if there else None) or "no free slot"
        self._fitting[needs] = fitting, refused
        return fitting, refused

    def _wishes(self, to: Destination | None, scope: Scope, nodes: Sequence[Node]) -> Iterable[Wish]:
        if to is None or (to.where is None and to.prefer is None):
            return [_NO_WISH] * len(nodes)
        sheet = Destinations(self._scopes, scope, nodes)
        where = self._rules.test_all(to.where, sheet) if to.where else [True] * len(nodes)
        prefer: Sequence[float | None] = self._rules.measure_all(to.prefer, sheet) if to.prefer else [None] * len(nodes)
        against = f"`move.to.where` is false there: {to.where.text}" if to.where else ""
        return (
            Wish(against=against)
            if answer is False
            else Wish(doubtful=1 if answer is None or (to.prefer and value is None) else 0, prefer=value)
            for answer, value in zip(where, prefer, strict=True)
        )
