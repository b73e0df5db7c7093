"""Where a worker or an image can go: hard limits first, then the policy's own words."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from shunter.decide.place import Option
from shunter.decide.scope import Scopes
from shunter.decide.world import STANDING, World
from shunter.model.expression import Rules, Scope, Undecided
from shunter.model.ids import NodeId, SlotId
from shunter.model.policy import Destination
from shunter.model.snapshot import Image, Node, Role, Slot, Worker

FACTS: Final = ("arch", "cpu", "criu", "cuda", "driver", "kernel")
"""Node facts that must be equal where both sides have them."""
_SAID = 3


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a destination must offer. Empty or None: not known, so that it can't be refused for it here; the agents look again."""

    role: Role
    gpu_model: str = ""
    gpus: int | None = None
    runtime: str = ""
    facts: dict[str, str] = {}


def needs_of_worker(world: World, worker: Worker) -> Needs:
    """What a live worker needs: what it has now."""
    slot = world.slots.get(worker.slot) if worker.slot else None
    node = world.nodes.get(worker.node) if worker.node else None
    return Needs(
        role=worker.role,
        gpu_model=slot.gpu_model if slot else "",
        gpus=slot.gpus if slot else None,
        runtime=node.runtime if node else "",
        facts=node.facts if node else {},
    )


def needs_of_image(world: World, image: Image) -> Needs:
    """What an image needs: the facts of where it was taken, and the runtime if all its holders have the same one."""
    runtimes = {world.nodes[n].runtime for n in image.nodes if n in world.nodes}
    return Needs(role=image.role, runtime=runtimes.pop() if len(runtimes) == 1 else "", facts=image.facts)


def unfit_node(world: World, needs: Needs, node: Node) -> str | None:
    """Why nothing with these needs can go to the node, in words, or None."""
    if not node.reachable:
        return "it doesn't answer"
    if world.notices.get(node.id):
        return "a notice is open for it"
    if needs.runtime and node.runtime != needs.runtime:
        return f"its runtime is {node.runtime}, not {needs.runtime}"
    for fact in FACTS:
        here, there = needs.facts.get(fact), node.facts.get(fact)
        if here and there and here != there:
            return f"its {fact} is {there}, not {here}"
    return None


def unfit_slot(needs: Needs, slot: Slot) -> str | None:
    """Why nothing with these needs can occupy the slot, free or not, in words, or None."""
    if needs.role not in slot.roles:
        return f"it takes no {needs.role} worker"
    if needs.gpu_model and slot.gpu_model != needs.gpu_model:
        return f"its GPUs are {slot.gpu_model or 'none'}, not {needs.gpu_model}"
    if needs.gpus is not None and slot.gpus != needs.gpus:
        return f"it has {slot.gpus} GPUs, not {needs.gpus}"
    return None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Slots that will do, and, for each node without one, why."""

    options: dict[SlotId, Option]
    refused: dict[NodeId, str]

    def why(self) -> str:
        """The reasons in one line: the first few by name, the rest by number."""
        told = [f"{node}: {why}" for node, why in list(self.refused.items())[:_SAID]]
        rest = Counter(list(self.refused.values())[_SAID:])
        return "; ".join([*told, *(f"{n} more: {why}" for why, n in rest.most_common(_SAID))]) or "there is no node"


class Finder:
    """Looks for slots in one world. `free` says which slots count as empty; `load` how many workers a node is getting already."""

    def __init__(self, world: World, scopes: Scopes, rules: Rules, load: Callable[[NodeId], int]) -> None:
        self._world, self._scopes, self._rules, self._load = world, scopes, rules, load
        self._standing = Counter(w.node for w in world.workers.values() if w.slot and w.state in STANDING)

    def find(
        self,
        needs: Needs,
        free: Mapping[NodeId, Iterable[Slot]],
        *,
        scope: Scope,
        to: Destination | None = None,
        avoid: frozenset[NodeId] = frozenset(),
        leaving: NodeId | None = None,
    ) -> Found:
        """The slots among `free` (by node, in order) that will do. `avoid` are nodes where an earlier attempt failed: the last resort.

        A destination's condition without an answer excludes nothing, but is sorted last: an involuntary move doesn't wait for a metric.
        """
        options: dict[SlotId, Option] = {}
        refused: dict[NodeId, str] = {}
        for node in self._world.nodes.values():
            if node.id == leaving:
                continue
            why, slots = self._slots(needs, node, free.get(node.id, ()))
            doubtful, prefer = 0, None
            if why is None:
                why, doubtful, prefer = self._wish(to, scope, node)
            if why is not None:
                refused[node.id] = why
                continue
            base = self._standing[node.id] + self._load(node.id)
            doubt = 2 if node.id in avoid else doubtful
            options.update({s.id: Option(doubtful=doubt, prefer=prefer, load=base + rank) for rank, s in enumerate(slots)})
        return Found(options=options, refused=refused)

    def _slots(self, needs: Needs, node: Node, free: Iterable[Slot]) -> tuple[str | None, list[Slot]]:
        if (why := unfit_node(self._world, needs, node)) is not None:
            return why, []
        there = list(free)
        fitting = [s for s in there if unfit_slot(needs, s) is None]
        if fitting:
            return None, fitting
        return (unfit_slot(needs, there[0]) if there else "no free slot"), []

    def _wish(self, to: Destination | None, scope: Scope, node: Node) -> tuple[str | None, int, float | None]:
        if to is None or (to.where is None and to.prefer is None):
            return None, 0, None
        there = self._scopes.at(scope, node)
        doubtful, prefer = 0, None
        if to.where is not None:
            answer = self._rules.test(to.where, there)
            if answer is False:
                return f"`move.to.where` is false there: {to.where.text}", 0, None
            doubtful = 1 if isinstance(answer, Undecided) else 0
        if to.prefer is not None:
            value = self._rules.measure(to.prefer, there)
            doubtful, prefer = (1, None) if isinstance(value, Undecided) else (doubtful, value)
        return None, doubtful, prefer
