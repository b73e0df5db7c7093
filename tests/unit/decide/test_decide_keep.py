"""Which nodes hold an image, against sorting all of them each time."""

from collections import Counter
from itertools import combinations
from random import Random

from decide_world import NOW, begun, node, notice, snap, worker
from shunter.decide.conflict import Ledger
from shunter.decide.keep import Holding
from shunter.decide.world import World
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.snapshot import ZONE_LABEL, Snapshot


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


def test_what_is_kept_of_the_order_is_true_of_each_decision():
    """Of one fleet, with other notices and other operations under way each time."""
    for seed in range(100):
        dice, world = Random(seed), None
        names = [f"n{n}" for n in range(dice.randint(1, 9))]
        fleet = snap([node(n, [None] * dice.randint(0, 3), reachable=dice.random() < 0.9) for n in names]).fleet
        slots = [s.id for n in fleet.nodes for s in n.slots]
        for turn in range(4):
            notices = [notice(n, slot=dice.choice([None, f"{n}/{dice.randint(0, 2)}"])) for n in names if dice.random() < 0.3]
            world = World(Snapshot(at=NOW, fleet=fleet, notices=tuple(notices)), world)
            dice.shuffle(slots)
            under_way = dice.randint(0, len(slots))
            ledger = Ledger([begun(taking(s, n)) for n, s in enumerate(slots[:under_way])], world.vacant, world.failing)
            for n, slot in enumerate(s for s in slots[under_way:] if s not in world.failing and dice.random() < 0.3):
                ledger.take(taking(slot, 100 + n))
            asked = (dice.randint(1, 9), {n for n in names if dice.random() < 0.8}.__contains__, dice.choice([*names, None]))
            assert Holding(world, ledger, {}).first(*asked) == sorted_out(world, ledger, {}, *asked), (seed, turn)


def most_zones(world, able, number, but) -> int:
    """Beside that of `but`, of any so many nodes."""
    zones = {n: z for n in world.nodes if (z := world.nodes[n].labels.get(ZONE_LABEL))}
    picks = combinations(able, min(number, len(able)))
    return max(len({zones[n] for n in picked if n in zones} - {zones.get(but)}) for picked in picks)


def test_copies_go_to_as_many_zones_as_there_are():
    spread = 0
    for seed in range(300):
        dice = Random(seed)
        names = [f"n{n}" for n in range(dice.randint(1, 7))]
        zone = {n: dice.choice(["", "a", "b", "c"]) for n in names}
        nodes = [node(n, [None] * dice.randint(0, 2), labels={ZONE_LABEL: zone[n]} if zone[n] else {}) for n in names]
        world = World(snap(nodes, [worker("decode-0")]))
        holding = Holding(world, Ledger([], world.vacant), {n: dice.randint(0, 3) for n in names})
        fit, room = {n for n in names if dice.random() < 0.7}, {n for n in names if dice.random() < 0.8}
        number, but = dice.randint(1, 3), dice.choice(names)
        found = holding.first(number, fit.__contains__, but, room.__contains__, apart=True)
        assert len(set(found)) == len(found) == min(number, len(room - {but}))
        assert but not in found
        assert room.issuperset(found), "a node without room holds nothing"
        zones = {zone[n] for n in found if zone[n]} - {zone[but]}
        if world.zones:
            assert len(zones) == most_zones(world, sorted(room - {but}), number, but), seed
        else:
            assert found == holding.first(number, fit.__contains__, but, room.__contains__), "one zone is none"
        spread += len(zones) > 1
    assert spread > 30


def test_zones_come_before_what_fits_and_what_fits_before_the_order():
    zoned = [node(n, labels={ZONE_LABEL: z}) for n, z in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"))]
    world = World(snap(zoned, []))
    holding = Holding(world, Ledger([], world.vacant), {"b1": 1, "b2": 2})
    assert holding.first(1, lambda _n: True, "a1", apart=True) == ("b1",)
    assert holding.first(1, lambda n: n != "b1", "a1", apart=True) == ("b2",)
    assert holding.first(1, lambda n: n == "a2", "a1", apart=True) == ("b1",), "a copy that outlives the zone, wherever it is restored"
    assert holding.first(2, lambda _n: True, "a1", apart=True) == ("b1", "a2"), "a zone twice is no reason for a copy less"
    assert holding.first(1, lambda _n: True, "a1") == ("a2",), "unless asked, zones don't count"


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
