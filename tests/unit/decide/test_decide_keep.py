"""Which nodes hold an image, against sorting all of them each time."""

from collections import Counter
from random import Random

from decide_world import node, snap, worker
from shunter.decide.conflict import Ledger
from shunter.decide.keep import Holding
from shunter.decide.world import World
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions


def taking(slot: str, n: int) -> PlannedOperation:
    return PlannedOperation(
        id=f"o{n}", kind=OperationKind.RESTORE, worker=f"x{n}", lane="voluntary", policy="p", reason="r", to_slot=slot,
        expect=Preconditions(incarnation=0),
    )  # fmt: skip


def sorted_out(world, ledger, used, number, fits, but):
    """The order as it is meant: fit, bytes held, free slots, name."""
    others = [n for n in world.nodes if n != but and world.stays(n)]
    free = {n: sum(ledger.free(s) for s in world.nodes[n].slots) for n in others}
    return tuple(sorted(others, key=lambda n: (not fits(n), used.get(n, 0), -free[n], n))[:number])


def test_the_first_nodes_are_those_that_sorting_all_gives():
    for seed in range(150):
        dice = Random(seed)
        names = [f"n{n}" for n in range(dice.randint(1, 9))]
        nodes = [node(n, [None] * dice.randint(0, 3), reachable=dice.random() < 0.9) for n in names]
        world = World(snap(nodes, [worker("decode-0")]))
        ledger = Ledger([], world.vacant)
        base = {n: dice.randint(0, 3) for n in names if dice.random() < 0.7}
        whole = Holding(world, ledger, base)
        holding, used = whole.copy(), dict(base)
        free = [s.id for slots in world.vacant.values() for s in slots]
        dice.shuffle(free)
        for step in range(20):
            fit = {n for n in names if dice.random() < 0.8}
            asked = (dice.randint(0, 3), fit.__contains__, dice.choice([*names, None]))
            assert holding.first(*asked) == sorted_out(world, ledger, used, *asked), (seed, step)
            assert whole.first(*asked) == sorted_out(world, ledger, base, *asked), "what is added to a copy stays there"
            at, size = dice.choice(names), dice.randint(0, 2)
            holding.add(at, size)
            used[at] = used.get(at, 0) + size
            if free and dice.random() < 0.4:
                ledger.take(taking(free.pop(), step))


def test_the_ledgers_vacant_slots_are_those_that_are_free():
    for seed in range(100):
        dice = Random(seed)
        nodes = [node(f"n{n}", [dice.choice([None, None, "w"]) for _ in range(3)]) for n in range(4)]
        world = World(snap(nodes, []))
        ledger = Ledger([], world.vacant)
        slots = [s.id for n in nodes for s in n.slots]
        before, there = ledger.vacant(), Counter[str]()
        kept = {n: [s.id for s in own] for n, own in before.items()}
        for n, slot in enumerate(dice.sample(slots, 5)):
            ledger.take(taking(slot, n))
            expected = {n.id: [s.id for s in n.slots if ledger.free(s)] for n in nodes}
            assert {n: [s.id for s in own] for n, own in ledger.vacant().items()} == {n: own for n, own in expected.items() if own}
            assert all(ledger.vacancies(n) == len(own) for n, own in expected.items())
            there[slot.split("/")[0]] += 1
            assert all(ledger.load[n.id] == there[n.id] for n in nodes)
        assert {n: [s.id for s in own] for n, own in before.items()} == kept, "what was lent doesn't change"
        assert ledger.vacant() is ledger.vacant()
