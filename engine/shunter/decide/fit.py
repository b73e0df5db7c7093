"""Where a worker or an image can go: hard limits first, then the policy's own words."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from shunter.decide.conflict import Ledger
from shunter.decide.jobs import Option
from shunter.decide.rooms import Rooms, Size, short
from shunter.decide.scope import UNCHANGING_OF_NODES, Scopes
from shunter.decide.sheet import Destinations, alike
from shunter.decide.world import World
from shunter.model.expression import BulkRules, Expression, Scope
from shunter.model.ids import NodeId, SlotId, node_of
from shunter.model.policy import Destination
from shunter.model.snapshot import Image, Node, Role, Slot, Taint, Toleration, Worker
from shunter.model.units import Bytes

FACTS: Final = ("arch", "cpu", "criu", "cuda", "driver", "kernel")
"""Node facts that must be equal where both sides have them."""
OF_GPUS: Final = frozenset({"cuda", "driver"})
"""Those that matter to workers with GPUs alone."""
UNSIZED: Final = Size()
_NOTHING: Final[frozenset[str]] = frozenset()
_SAID = 3
_OF_NODE: Final = "node."
_PROMISED: Final = 1000
"""A slot that voluntary work waits for is taken after all that are as good and that nobody waits for."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a destination must offer. Empty or None: not known, so that it can't be refused for it here; the agents look again."""

    role: Role
    gpu_model: str = ""
    gpus: int | None = None
    runtime: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    """Those of `FACTS` that are known, in that order."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of a node that don't matter. Where nobody said what the worker tolerates: those of the node that it is on."""
    linked: bool = False
    """Its GPUs have to be in one NVLink domain."""
    models: str = ""
    """The models of its GPUs as the driver calls them."""
    gpus_all: int = 0
    """As many GPUs as the driver wants to see on the node, whoever uses them. 0: not known, or none."""
    archive: bool = False
    """The node has to fetch the image from the archive: no node that answers has it."""


def needs_of_worker(world: World, worker: Worker) -> Needs:
    """What a live worker needs: what it has now. One in a slot without GPUs doesn't care which driver the node has for its others."""
    slot = world.slots.get(worker.slot) if worker.slot else None
    node = world.nodes.get(worker.node) if worker.node else None
    without = OF_GPUS if slot is not None and not slot.gpus else _NOTHING
    return Needs(
        role=worker.role,
        gpu_model=slot.gpu_model if slot else "",
        gpus=slot.gpus if slot else None,
        runtime=node.runtime if node else "",
        facts=_known(node.facts, without) if node else (),
        tolerations=_tolerations(worker.tolerations, (node,) if node else ()),
        linked=slot is not None and slot.gpus > 1 and len(slot.domains) == 1,
        gpus_all=_number(node.facts, "gpus_all") or 0 if node and not without else 0,
    )


def needs_of_image(world: World, image: Image) -> Needs:
    """What an image needs: the facts of where it was taken, and the runtime if all its holders have the same one. What its worker
    tolerates is asked of the worker as it was last known, then of the image, then of its holders.
    """
    holders = [world.nodes[n] for n in image.nodes if n in world.nodes]
    runtimes = {node.runtime for node in holders}
    worker = world.workers.get(image.worker)
    said = worker.tolerations if worker is not None and worker.tolerations is not None else image.tolerations
    return Needs(
        role=image.role,
        gpus=_number(image.facts, "gpus"),
        runtime=runtimes.pop() if len(runtimes) == 1 else "",
        facts=_known(image.facts),
        tolerations=_tolerations(said, holders),
        linked=bool(image.linked),
        models=image.facts.get("gpu", ""),
        archive=world.away_from_nodes(image),
        gpus_all=_number(image.facts, "gpus_all") or 0,
    )


def _tolerations(said: tuple[Toleration, ...] | None, beside: Sequence[Node]) -> tuple[Toleration, ...]:
    """What is tolerated. Where nobody said: the taints that all these nodes have, on which it is or was kept."""
    if said is not None:
        return said
    if not beside or not all(node.taints for node in beside):
        return ()
    common = set.intersection(*(set(node.taints) for node in beside))
    return tuple(Toleration(key=t.key, value=t.value, effect=t.effect) for t in sorted(common, key=str))


def _number(facts: Mapping[str, str], name: str) -> int | None:
    text = facts.get(name, "")
    return int(text) if text.isdecimal() else None


def _known(facts: Mapping[str, str], without: Set[str] = _NOTHING) -> tuple[tuple[str, str], ...]:
    return tuple([(fact, value) for fact in FACTS if (value := facts.get(fact)) and fact not in without])


def unfit_node(world: World, needs: Needs, node: Node) -> str | None:
    """Why nothing with these needs can go to the node, in words, or None."""
    return _leaves(world, node) or _unfit(needs, node)


def _leaves(world: World, node: Node) -> str | None:
    if not node.reachable:
        return "it doesn't answer"
    return "a notice is open for it" if node.id in world.going else None


def _unfit(needs: Needs, node: Node) -> str | None:
    """Why nothing with these needs can go to a node that stays."""
    if needs.archive and not node.archive:
        return "it knows of no archive, and nobody else has the image"
    if needs.runtime and node.runtime != needs.runtime:
        return f"its runtime is {node.runtime}, not {needs.runtime}"
    for fact, here in needs.facts:
        there = node.facts.get(fact)
        if there and here != there:
            return f"its {fact} is {there}, not {here}"
    return (_intolerable(needs, node) if node.taints else None) or (_unlike(needs, node) if needs.gpus_all or needs.models else None)


def _intolerable(needs: Needs, node: Node) -> str | None:
    for taint in node.taints:
        if taint.hard and not tolerated(needs, taint):
            return f"it is tainted with {taint}, and the worker tolerates {', '.join(map(str, needs.tolerations)) or 'no taint'}"
    return None


def tolerated(needs: Needs, taint: Taint) -> bool:
    """Whether something with these needs doesn't mind the taint."""
    return any(one.tolerates(taint) for one in needs.tolerations)


def _unlike(needs: Needs, node: Node) -> str | None:
    """What the driver would refuse, by all GPUs of the node."""
    here = _number(node.facts, "gpus_all")
    if here is not None and here < needs.gpus_all:
        return f"it has {here} GPUs in all, not {needs.gpus_all}, all of which the driver asks for"
    models = node.facts.get("gpu", "")
    if needs.models and models and not set(needs.models.split(", ")) <= set(models.split(", ")):
        return f"its GPUs are {models}, not {needs.models}"
    return None


class Fitness:
    """`unfit_node`, asked once for what is alike: but for whether it stays it depends on the node and on what `_key` takes of the needs. A
    notice, which says who is going, changes nothing of that.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._fit: dict[Hashable, list[Node]] = {}

    def of(self, needs: Needs) -> Callable[[NodeId], str | None]:
        """Why things with these needs can't go to a node of the fleet, in words, or None."""
        known, world = self._world.answers_of_nodes.setdefault(("fit", _key(needs)), {}), self._world
        nodes = world.nodes

        def unfit(name: NodeId) -> str | None:
            node = nodes[name]
            if (leaves := _leaves(world, node)) is not None:
                return leaves
            if name not in known:
                known[name] = _unfit(needs, node)
            found: str | None = known[name]
            return found

        return unfit

    def nodes(self, needs: Needs) -> Sequence[Node]:
        """The nodes to which things with these needs can go, in order."""
        key = _key(needs)
        if key not in self._fit:
            going = self._world.going
            self._fit[key] = [node for node in self.lasting(needs) if node.id not in going]
        return self._fit[key]

    def lasting(self, needs: Needs) -> Sequence[Node]:
        """The same if none were going."""
        nodes = self._world.nodes
        known = self._world.answers_of_nodes.setdefault(("fit", _key(needs)), {})
        if len(known) < len(nodes):
            known |= {name: _unfit(needs, node) for name, node in nodes.items() if name not in known}
        return [node for name, node in nodes.items() if known[name] is None and node.reachable]

    def slots(self, needs: Needs) -> Mapping[NodeId, frozenset[SlotId]]:
        """The slots of each node of the fleet that things with these needs can occupy, free or not."""
        kept = self._world.answers_of_nodes
        key = ("slots", needs.role, needs.gpu_model, needs.gpus, needs.linked)
        if key not in kept:
            nodes = self._world.nodes.items()
            kept[key] = {name: frozenset([s.id for s in node.slots if unfit_slot(needs, s) is None]) for name, node in nodes}
        return kept[key]


def _key(needs: Needs) -> Hashable:
    return needs.runtime, needs.facts, needs.tolerations, needs.models, needs.gpus_all, needs.archive


def unfit_slot(needs: Needs, slot: Slot) -> str | None:
    """Why nothing with these needs can occupy the slot, free or not, in words, or None."""
    if needs.role not in slot.roles:
        return f"it takes no {needs.role} worker"
    if needs.gpu_model and slot.gpu_model != needs.gpu_model:
        return f"its GPUs are {slot.gpu_model or 'none'}, not {needs.gpu_model}"
    if needs.gpus is not None and slot.gpus != needs.gpus:
        return f"it has {slot.gpus} GPUs, not {needs.gpus}"
    if needs.linked and len(slot.domains) > 1:
        return f"its GPUs are in {len(slot.domains)} NVLink domains ({', '.join(slot.domains)}), not in one"
    return None


class Found:
    """Slots that will do, and, for each node without one, why. The options are shared by all that look for the same: don't change them."""

    def __init__(self, options: Mapping[SlotId, Option], refused: Callable[[], Mapping[NodeId, str]], leaving: NodeId | None) -> None:
        self.options, self._refused, self._leaving = options, refused, leaving
        self._ranks: tuple[list[float], list[int]] | None = None
        self._changes = -1
        self._narrow: dict[tuple[int, int], dict[SlotId, Option]] = {}

    def why(self) -> str:
        """The reasons in one line: the first few by name, the rest by number."""
        return self._why

    @cached_property
    def _why(self) -> str:
        refused = [(node, why) for node, why in self._refused().items() if node != self._leaving]
        told = [f"{node}: {why}" for node, why in refused[:_SAID]]
        rest = Counter(why for _, why in refused[_SAID:])
        return "; ".join([*told, *(f"{n} more: {why}" for why, n in rest.most_common(_SAID))]) or "there is no node"

    def within(self, size: Size, rooms: Rooms, slots: Mapping[SlotId, Slot]) -> "Found":
        """Only what has room for a worker of this size. Whoever is of about the same size shares the options."""
        nodes, gpus = self._rooms(rooms, slots)
        # all that have room for the one and for no more than the other have the same slots
        rank = bisect_left(nodes, size.bytes) if size.bytes else 0, bisect_left(gpus, size.gpu)
        if rank == (0, 0):
            return self
        if rank not in self._narrow:
            self._narrow[rank] = {s: o for s, o in self.options.items() if _cramped(size, rooms, slots[s]) is None}
        options = self._narrow[rank]
        return Found(options, partial(self._cramped, size, rooms, slots, options), self._leaving)

    def _rooms(self, rooms: Rooms, slots: Mapping[SlotId, Slot]) -> tuple[list[float], list[int]]:
        """What the nodes have left, and the memory of the slots' GPUs: each that there is, sorted."""
        if self._ranks is None or self._changes != rooms.changes:
            nodes = {rooms.left(node).bytes for node in {node_of(slot) for slot in self.options}}
            self._ranks = sorted(nodes), sorted({m for s in self.options if (m := slots[s].gpu_memory) is not None})
            self._changes, self._narrow = rooms.changes, {}
        return self._ranks

    def _cramped(self, size: Size, rooms: Rooms, slots: Mapping[SlotId, Slot], options: Container[SlotId]) -> dict[NodeId, str]:
        refused = dict(self._refused())
        some = {node_of(slot) for slot in self.options if slot in options}
        for slot in self.options:
            if (node := node_of(slot)) not in some and (why := _cramped(size, rooms, slots[slot])) is not None:
                refused.setdefault(node, why)
        return dict(sorted(refused.items()))


def _cramped(size: Size, rooms: Rooms, slot: Slot) -> str | None:
    """Why a worker of this size has no room in the slot, with both values; None where it has."""
    if slot.gpu_memory is not None and slot.gpu_memory < size.gpu:
        return f"a GPU of {slot.id} has {Bytes(slot.gpu_memory)}, not {Bytes(size.gpu)}"
    left = rooms.left(node_of(slot.id))
    return short(left, size.bytes) if size.bytes and left.bytes < size.bytes else None


Options: TypeAlias = dict[SlotId, Option]


class Search(NamedTuple):
    """What is looked for. `avoid` are nodes where an earlier attempt failed: the last resort."""

    needs: Needs
    to: Destination | None
    scope: Scope
    avoid: frozenset[NodeId]


class Offer:
    """What there is for all that look for the same: the options, by node too, and why the other nodes have none."""

    def __init__(self, nodes: dict[NodeId, Options], options: Options, refused: Callable[[], Mapping[NodeId, str]], changes: int) -> None:
        """`changes` are those of the ledger that it has taken in."""
        self.nodes, self.options, self.changes = nodes, options, changes
        self._refused, self._found = refused, dict[NodeId | None, Found]()

    def found(self, leaving: NodeId | None) -> Found:
        """The same for whoever leaves this node."""
        if leaving not in self._found:
            left = self.nodes.get(leaving, {}) if leaving is not None else {}
            options = {slot: option for slot, option in self.options.items() if slot not in left} if left else self.options
            self._found[leaving] = Found(options, self._refused, leaving)
        return self._found[leaving]


class Finder:
    """Looks for slots in one world. `ledger` says how many workers a node is getting already.

    Whoever needs the same, and whose policy reads the same values of it, gets the same answer. It is worked out once; where slots were
    given away since, only their nodes are looked at again.
    """

    def __init__(self, world: World, scopes: Scopes, rules: BulkRules, ledger: Ledger, rooms: Rooms) -> None:
        self._world, self._scopes, self._rules, self._ledger, self._rooms = world, scopes, rules, ledger, rooms
        self._fitness = Fitness(world)
        self._offers: dict[Hashable, Offer] = {}
        self._everywhere_asked: dict[Hashable, dict[NodeId, Any]] = {}

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
        size: Size = UNSIZED,
    ) -> Found:
        """The slots among `free` (by node, in order) that will do, and have room for `size`. `avoid` are nodes where an earlier attempt
        failed: the last resort.

        A destination's condition without an answer excludes nothing, but is sorted last: an involuntary move doesn't wait for a metric.
        """
        found = self._find(Search(needs, to, scope, avoid), free).found(leaving)
        if self._rooms.roomy(size.bytes) and size.gpu <= self._world.least_gpu:
            return found
        return found.within(size, self._rooms, self._world.slots)

    def _find(self, search: Search, free: Mapping[NodeId, Sequence[Slot]]) -> Offer:
        needs, to, scope, avoid = search
        changes = self._ledger.changes
        if free is not self._ledger.vacant():
            return self._offer(search, free, self._fitting(needs, free))
        key = (needs, avoid, *self._asked(to, scope))
        offer = self._offers.get(key)
        if offer is None:
            offer = self._offers[key] = self._begun(search, free)
        elif offer.changes < len(changes):
            offer = self._offers[key] = self._renewed(offer.nodes, offer.options, search, free, set(changes[offer.changes :]))
        return offer

    def _asked(self, to: Destination | None, scope: Scope) -> Iterator[Hashable]:
        """What of the policy and of the scope a destination is chosen by, but for the destination's own variables."""
        for expression in (to.where, to.prefer) if to else ():
            yield expression.text if expression else None
            for name in self._rules.inputs(expression) if expression else ():
                if not name.startswith(_OF_NODE):
                    yield alike(scope.get(name))

    def _begun(self, search: Search, free: Mapping[NodeId, Sequence[Slot]]) -> Offer:
        """The first one of this decision. What there would be without its notices, and without what is under way, is kept from one decision
        to the next; only the nodes that these concern are looked at.
        """
        needs, to = search.needs, search.to
        asked = [expression for expression in (to.where, to.prefer) if expression] if to else []
        if not all(UNCHANGING_OF_NODES.issuperset(self._rules.inputs(expression)) for expression in asked):
            return self._offer(search, free, self._fitness.nodes(needs))
        world, ledger, kept = self._world, self._ledger, self._world.offers
        key = (needs, *self._asked(to, search.scope))
        if key not in kept:
            found = self._look(search._replace(avoid=frozenset()), world.empty, self._fitness.lasting(needs), Ledger(()))
            kept[key] = found, _by_slot(found)
        slots = (*world.failing, *ledger.promised)
        changed = {*world.going, *map(node_of, slots), *search.avoid, *ledger.begun, *ledger.changes}
        return self._renewed(*kept[key], search, free, changed)

    def _offer(self, search: Search, free: Mapping[NodeId, Sequence[Slot]], nodes: Sequence[Node]) -> Offer:
        found = self._look(search, free, nodes, self._ledger)
        return self._offered(found, _by_slot(found), search, free)

    def _renewed(
        self,
        nodes: Mapping[NodeId, Options],
        options: Mapping[SlotId, Option],
        search: Search,
        free: Mapping[NodeId, Sequence[Slot]],
        changed: Set[NodeId],
    ) -> Offer:
        """The offer after something has changed on these nodes."""
        nodes, options = dict(nodes), dict(options)
        for node in changed:
            for slot in nodes.pop(node, ()):
                del options[slot]
        for node, own in self._look(search, free, self._fitting(search.needs, changed), self._ledger).items():
            nodes[node] = own
            options |= own
        return self._offered(nodes, options, search, free)

    def _fitting(self, needs: Needs, among: Iterable[NodeId]) -> list[Node]:
        unfit, nodes = self._fitness.of(needs), self._world.nodes
        return [nodes[node] for node in sorted(among) if node in nodes and unfit(node) is None]

    def _offered(self, nodes: dict[NodeId, Options], options: Options, search: Search, free: Mapping[NodeId, Sequence[Slot]]) -> Offer:
        against = f"`move.to.where` is false there: {search.to.where.text}" if search.to and search.to.where else ""
        refused = partial(_refused, self._world, self._fitness.of(search.needs), search.needs, free, nodes, against)
        return Offer(nodes, options, refused, len(self._ledger.changes))

    def _look(self, search: Search, free: Mapping[NodeId, Sequence[Slot]], nodes: Sequence[Node], ledger: Ledger) -> dict[NodeId, Options]:
        """The options on each of the nodes, which fit; those without any aren't in it."""
        needs, to, scope, avoid = search
        fit = self._fitness.slots(needs)
        slots = [[s for s in free.get(node.id, ()) if s.id in fit[node.id]] for node in nodes]
        fitting = [(node, own) for node, own in zip(nodes, slots, strict=True) if own]
        sheet = Destinations(self._scopes, scope, [node for node, _ in fitting])
        where: Sequence[bool | None] = self._test(to.where, sheet) if to and to.where else [True] * len(fitting)
        prefer: Sequence[float | None] = self._measure(to.prefer, sheet) if to and to.prefer else [None] * len(fitting)
        wished, standing, arriving = bool(to and to.prefer), self._world.standing, ledger.load
        promised = ledger.promised
        found: dict[NodeId, Options] = {}
        for (node, own), answer, liking in zip(fitting, where, prefer, strict=True):
            if answer is False:
                continue
            base = standing.get(node.id, 0) + arriving.get(node.id, 0)
            doubt = 2 if node.id in avoid else 1 if answer is None or (wished and liking is None) else 0
            shunned = int(any(not t.hard and not tolerated(needs, t) for t in node.taints)) if node.taints else 0
            found[node.id] = {s.id: Option(doubtful=doubt, shunned=shunned, prefer=liking, load=base + rank) for rank, s in enumerate(own)}
            for slot in promised & found[node.id].keys() if promised else ():
                found[node.id][slot] = msgspec.structs.replace(found[node.id][slot], load=_PROMISED)
        return found

    def _test(self, where: Expression, sheet: Destinations) -> Sequence[bool | None]:
        if not self._of_nodes_alone(where):
            return self._rules.test_all(where, sheet)
        known = self._answers("where", where, self._rules.test_all)
        return [known[n.id] for n in sheet.nodes]

    def _measure(self, prefer: Expression, sheet: Destinations) -> Sequence[float | None]:
        if not self._of_nodes_alone(prefer):
            return self._rules.measure_all(prefer, sheet)
        known = self._answers("prefer", prefer, self._rules.measure_all)
        return [known[n.id] for n in sheet.nodes]

    def _answers(self, asked: str, expression: Expression, ask: Callable[[Expression, Destinations], Sequence[Any]]) -> dict[NodeId, Any]:
        """An expression's answers on all nodes. What it reads may be nothing that a notice changes, nor what other workers do."""
        lasting = UNCHANGING_OF_NODES.issuperset(self._rules.inputs(expression))
        kept, key = self._world.answers_of_nodes if lasting else self._everywhere_asked, (asked, expression.text)
        found = kept.get(key)
        if found is None:
            nodes = self._everywhere.nodes
            found = kept[key] = {node.id: answer for node, answer in zip(nodes, ask(expression, self._everywhere), strict=True)}
        return found

    def _of_nodes_alone(self, expression: Expression) -> bool:
        """It says the same of a node whoever wants to go there."""
        return all(name.startswith(_OF_NODE) for name in self._rules.inputs(expression))

    @cached_property
    def _everywhere(self) -> Destinations:
        return Destinations(self._scopes, {}, tuple(self._world.nodes.values()))


def _by_slot(nodes: Mapping[NodeId, Options]) -> Options:
    return {slot: option for own in nodes.values() for slot, option in own.items()}


def _refused(
    world: World,
    unfit: Callable[[NodeId], str | None],
    needs: Needs,
    free: Mapping[NodeId, Sequence[Slot]],
    offered: Container[NodeId],
    against: str,
) -> dict[NodeId, str]:
    """Why each node that isn't offered isn't."""
    refused: dict[NodeId, str] = {}
    for node in world.nodes:
        if node in offered:
            continue
        slots = [unfit_slot(needs, slot) for slot in free.get(node, ())]
        refused[node] = unfit(node) or (against if None in slots else next(iter(slots), None) or "no free slot")
    return refused
