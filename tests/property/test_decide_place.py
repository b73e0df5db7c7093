"""Placing against every possibility there is, on thousands of small cases; and against its own bound on large ones."""

import itertools
import math
import sys
from math import inf
from pathlib import Path
from random import Random

import msgspec
import pytest
from shunter.decide import pack as packing
from shunter.decide import place as placing
from shunter.decide.assign import assign
from shunter.decide.jobs import Job, Option
from shunter.decide.lanes import Slots, Task, choose, menu
from shunter.decide.place import place, timetable
from shunter.decide.rooms import Left

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from placement import NOW as BENCH_NOW
from placement import FixedRooms, instance, relaxed, with_room

NOW = 1000.0


def case(dice: Random) -> tuple[list[Job], dict[str, dict[str, Option]], dict[str, float]]:
    """Up to seven workers of one to three kinds on up to three lanes of their own rates and times left."""
    slots = [f"s/{i}" for i in range(dice.randint(1, 5))]
    kinds = [
        {
            s: Option(
                doubtful=dice.choice([0, 0, 1, 2]),
                shunned=dice.choice([0, 0, 1]),
                prefer=dice.choice([None, 0.0, 1.0, 2.5]),
                load=dice.randint(0, 3),
            )
            for s in own
        }
        for own in (dice.sample(slots, dice.randint(0, len(slots))) for _ in range(dice.randint(1, 3)))
    ]
    rates = {lane: dice.choice([0.5, 1.0, 1.7]) for lane in "abc"}
    jobs, options = [], {}
    for n in range(dice.randint(1, 7)):
        lane = dice.choice(["a", "a", "b", "c", None])
        jobs.append(
            Job(
                worker=f"w{n}",
                value=float(dice.choice([0, 0, 1, 2, 3, 5, 8])),
                lane=lane,
                occupy=dice.randint(1, 9) / rates[lane or "a"],
                tail=dice.uniform(0, 5),
                limit=dice.choice([None, NOW + 8, NOW + 12, NOW + 20]),
            )
        )
        options[f"w{n}"] = dice.choice(kinds)
    return jobs, options, {"a": float(dice.choice([0, 3]))}


def matched(jobs: tuple[Job, ...], options: dict[str, dict[str, Option]], taken: frozenset[str] = frozenset()) -> bool:
    if not jobs:
        return True
    return any(matched(jobs[1:], options, taken | {s}) for s in options[jobs[0].worker] if s not in taken)


def in_time(jobs: tuple[Job, ...], lanes: dict[str, float]) -> bool:
    """By trying every order on every lane."""
    for lane in {j.lane for j in jobs}:
        own = [j for j in jobs if j.lane == lane]
        orders = itertools.permutations(own) if lane else [[j] for j in own]
        if lane and not any(_one_order(order, lanes.get(lane, 0.0)) for order in orders):
            return False
        if not lane and not all(_one_order(order, 0.0) for order in orders):
            return False
    return True


def _one_order(order, clock: float) -> bool:
    for job in order:
        clock += job.occupy
        if job.limit is not None and NOW + clock + job.tail > job.limit + 1e-9:
            return False
    return True


def most(jobs, options, lanes) -> tuple[float, int]:
    """The most value, and then the most workers, over every set of workers."""
    best = (0.0, 0)
    for size in range(len(jobs) + 1):
        for chosen in itertools.combinations(jobs, size):
            worth = (sum(j.value for j in chosen), size)
            if worth > best and matched(chosen, options) and in_time(chosen, lanes):
                best = worth
    return best


def worth_of(jobs, result) -> tuple[float, int]:
    placed = [j for j in jobs if j.worker in result.slots]
    return sum(j.value for j in placed), len(placed)


def sound(jobs, options, lanes, result) -> None:
    """Each has a slot of its own that it may have, all are over in time, and everybody is spoken of once."""
    assert len(set(result.slots.values())) == len(result.slots)
    assert all(slot in options[worker] for worker, slot in result.slots.items())
    placed = [j for j in jobs if j.worker in result.slots]
    assert timetable(placed, lanes, NOW) == result.ends
    assert all(j.limit is None or result.ends[j.worker] <= j.limit for j in placed)
    told = [*result.slots, *result.late, *result.without]
    assert sorted(told) == sorted(j.worker for j in jobs)


@pytest.mark.parametrize("seeds", [range(at, at + 500) for at in range(0, 2000, 500)])
def test_small_cases_are_the_best_there_are(seeds):
    for seed in seeds:
        jobs, options, lanes = case(Random(seed))
        result = place(jobs, options, lanes, NOW)
        sound(jobs, options, lanes, result)
        best = most(jobs, options, lanes)
        assert worth_of(jobs, result) == pytest.approx(best), seed
        assert result.most == pytest.approx(best[0])


def test_what_is_done_for_many_is_near_the_best_and_its_bound_holds(monkeypatch):
    """The way for large cases, on cases small enough to know the best."""
    monkeypatch.setattr(placing, "EXACT_SET", 0)
    monkeypatch.setattr(placing, "EXACT_SLOTS", 0)
    exact, bounded, total, had = 0, 0, 0.0, 0.0
    for seed in range(1000):
        jobs, options, lanes = case(Random(seed))
        result = place(jobs, options, lanes, NOW)
        sound(jobs, options, lanes, result)
        best = most(jobs, options, lanes)
        value = worth_of(jobs, result)[0]
        assert value <= best[0] + 1e-9
        assert result.most is not None
        assert result.most >= best[0] - 1e-9, seed
        exact += math.isclose(value, best[0])
        bounded += math.isclose(result.most, value, abs_tol=1e-6)
        total, had = total + best[0], had + value
    assert exact >= 990
    assert bounded >= 900
    assert had >= 0.999 * total


@pytest.mark.parametrize(("seed", "free"), [(1, 0.75), (2, 0.75), (3, 0.35), (4, 0.2), (5, 1.5)])
def test_500_workers_that_leave_60_nodes_are_within_two_percent_of_the_bound(seed, free):
    jobs, options, lanes = instance(seed, free=free)
    result = place(jobs, options, lanes, BENCH_NOW)
    value = sum(j.value for j in jobs if j.worker in result.slots)
    assert result.most is not None
    assert 0.98 * result.most <= value <= result.most * (1 + 1e-9)
    assert len(set(result.slots.values())) == len(result.slots) > 80
    assert all(slot in options[worker] for worker, slot in result.slots.items())
    assert timetable([j for j in jobs if j.worker in result.slots], lanes, BENCH_NOW) == result.ends


def roomed(dice: Random, jobs, options):
    """The case with sizes, on up to three nodes with room for a part of them. Slots that are made empty for a worker free something."""
    slots = sorted({s for own in options.values() for s in own})
    of = {s: f"{dice.choice('xyz')}/{n}" for n, s in enumerate(slots)}
    kinds = {id(own): own for own in options.values()}
    renamed = {
        who: {
            of[s]: msgspec.structs.replace(o, prefer=o.prefer or 0.0, freed=dice.choice([0, 0, 3]), kept=dice.choice([0, 0, 2]))
            for s, o in own.items()
        }
        for who, own in kinds.items()
    }
    sized = [msgspec.structs.replace(j, bytes=dice.choice([0, 2, 3, 5, 7])) for j in jobs]
    left = {node: Left(dice.choice([inf, 3.0, 7.5, 12.0]), dice.choice([inf, inf, 8.0])) for node in "xyz"}
    return sized, {worker: renamed[id(own)] for worker, own in options.items()}, FixedRooms(left)


def much_alike(dice: Random):
    """Nodes whose slots are of two makes, and workers of two kinds: many ways to place them come to the same, and some only nearly."""
    made = {node: [dice.choice("pq") for _ in range(dice.randint(1, 3))] for node in "xyz"}
    mind = {(kind, make): Option(prefer=dice.choice([0.0, 1.0]), load=dice.randint(0, 1)) for kind in "ab" for make in "pq"}
    can = {"a": dice.choice(["pq", "p"]), "b": dice.choice(["pq", "q"])}
    kinds = {
        kind: {f"{node}/{n}": mind[kind, make] for node, own in made.items() for n, make in enumerate(own) if make in can[kind]}
        for kind in "ab"
    }
    whose = {f"w{n}": kinds[dice.choice("ab")] for n in range(dice.randint(3, 5))}
    jobs = [Job(worker=w, value=float(dice.choice([1, 2, 3])), bytes=dice.choice([2, 3, 5])) for w in whose]
    return jobs, whose, FixedRooms({node: Left(dice.choice([5.0, 5.0, 7.0])) for node in "xyz"})


def have_room(placed, rooms) -> bool:
    """`placed`: each job with the slot and the option that it has."""
    for node in {slot.split("/")[0] for _, slot, _ in placed}:
        own = [(j, o) for j, slot, o in placed if slot.split("/")[0] == node and j.bytes]
        if sum(max(0, j.bytes - o.freed) for j, o in own) > rooms.left(node).memory:
            return False
        if sum(j.bytes + o.kept for j, o in own) > rooms.left(node).disk:
            return False
    return True


def reluctance(placed) -> tuple[int, int, float, int]:
    """As the cost: doubt, taints, preference, spread, each before the next."""
    options = [o for _, _, o in placed]
    return (
        sum(o.doubtful for o in options),
        sum(o.shunned for o in options),
        -sum(o.prefer or 0.0 for o in options),
        sum(o.load for o in options),
    )


def everything(jobs, options, lanes, rooms):
    """The best of all ways to place any of the jobs that have room: value, number, and then whatever is least reluctant."""
    best: list = [(0.0, 0), (0, 0, 0.0, 0)]

    def descend(at, placed, taken):
        worth = (sum(j.value for j, _, _ in placed), len(placed))
        left = jobs[at:]
        if (worth[0] + sum(j.value for j in left), worth[1] + len(left)) < best[0] or not have_room(placed, rooms):
            return
        if worth >= best[0] and in_time(tuple(j for j, _, _ in placed), lanes) and (worth > best[0] or reluctance(placed) < best[1]):
            best[:] = [worth, reluctance(placed)]
        if at == len(jobs):
            return
        for slot, option in options[jobs[at].worker].items():
            if slot not in taken:
                descend(at + 1, [*placed, (jobs[at], slot, option)], taken | {slot})
        descend(at + 1, placed, taken)

    descend(0, [], frozenset())
    return best


def placed_by(jobs, options, result):
    return [(j, result.slots[j.worker], options[j.worker][result.slots[j.worker]]) for j in jobs if j.worker in result.slots]


@pytest.mark.parametrize("seeds", [range(at, at + 300) for at in range(0, 1200, 300)])
def test_small_cases_are_the_best_there_are_where_nodes_have_little_room(seeds):
    tight = 0
    for seed in seeds:
        dice = Random(seed)
        jobs, options, lanes = case(dice)
        jobs, options, rooms = roomed(dice, jobs[:6], options) if seed % 3 else much_alike(dice)
        result = place(jobs, options, lanes, NOW, rooms)
        sound(jobs, options, lanes, result)
        placed = placed_by(jobs, options, result)
        assert have_room(placed, rooms), seed
        best = everything(jobs, options, lanes, rooms)[0]
        assert worth_of(jobs, result) == pytest.approx(best), seed
        assert reluctance(placed) == pytest.approx(everything([j for j, _, _ in placed], options, lanes, rooms)[1], abs=1e-6), seed
        assert result.most is None or result.most >= best[0] - 1e-9, seed
        tight += worth_of(jobs, result) < worth_of(jobs, place(jobs, options, lanes, NOW))
    assert tight > 20, "the room mattered"


def test_what_is_done_for_many_is_near_the_best_where_nodes_have_little_room(monkeypatch):
    """The way for large cases, on cases small enough to know the best."""
    monkeypatch.setattr(packing, "EXACT", 0)
    exact, total, had = 0, 0.0, 0.0
    for seed in range(400):
        dice = Random(seed)
        jobs, options, lanes = case(dice)
        jobs, options, rooms = roomed(dice, jobs[:6], options)
        result = place(jobs, options, lanes, NOW, rooms)
        sound(jobs, options, lanes, result)
        assert have_room(placed_by(jobs, options, result), rooms), seed
        best = everything(jobs, options, lanes, rooms)[0]
        value = worth_of(jobs, result)[0]
        assert value <= best[0] + 1e-9
        exact += math.isclose(value, best[0])
        total, had = total + best[0], had + value
    print(exact, had / total)
    assert exact >= 380
    assert had >= 0.99 * total


def test_500_workers_fill_nodes_with_little_memory_as_well_as_nodes_with_enough():
    """Against what could be had if memory were no matter; how far it is from the linear relaxation with it, the bench says."""
    (jobs, options, lanes), rooms = with_room(instance(2, free=0.35), 2, 150e9)
    result = place(jobs, options, lanes, BENCH_NOW, rooms)
    assert have_room(placed_by(jobs, options, result), rooms)
    assert result.most is not None
    assert 0.94 * result.most <= sum(j.value for j in jobs if j.worker in result.slots) <= result.most
    assert not have_room(placed_by(jobs, options, place(jobs, options, lanes, BENCH_NOW)), rooms), "the room mattered"
    assert timetable([j for j in jobs if j.worker in result.slots], lanes, BENCH_NOW) == result.ends


def test_of_many_slots_those_that_had_rather_be_spared_come_last(monkeypatch):
    monkeypatch.setattr(placing, "EXACT_SLOTS", 0)
    options = {"s/0": Option(prefer=9.0, shunned=1), "s/1": Option(prefer=0.0), "s/2": Option(prefer=9.0, doubtful=1)}
    jobs = [Job(worker=f"w{n}") for n in range(3)]
    for count, taken in ((1, {"s/1"}), (2, {"s/1", "s/0"}), (3, set(options))):
        some = jobs[:count]
        assert set(place(some, {j.worker: options for j in some}, {}, NOW).slots.values()) == taken


def test_the_bound_is_no_looser_than_the_relaxation_over_single_workers():
    pytest.importorskip("scipy", reason="scipy is not installed: the linear relaxation isn't solved")
    jobs, options, lanes = instance(3, free=0.35)
    bound = relaxed(jobs, options, lanes)
    assert bound is not None
    most_there_is = place(jobs, options, lanes, BENCH_NOW).most
    assert most_there_is is not None
    assert most_there_is <= bound * (1 + 1e-9)


def test_a_menu_has_the_best_of_each_number_and_nothing_that_is_late():
    for seed in range(300):
        dice = Random(seed)
        tasks = [
            Task(dice.randint(1, 5), dice.randint(0, 3), dice.choice([None, 106.0, 110.0]), float(dice.randint(0, 9)), dice.randint(0, 1))
            for _ in range(dice.randint(1, 6))
        ]
        tasks.sort(key=lambda t: math.inf if t.limit is None else t.limit - t.tail)
        found = {e.counts: e for e in menu(tasks, 2.0, 100.0, 2).entries}
        best: dict[tuple[int, int], float] = {}
        for size in range(len(tasks) + 1):
            for chosen in itertools.combinations(range(len(tasks)), size):
                clock, late = 2.0, False
                for n in chosen:
                    clock += tasks[n].occupy
                    late |= tasks[n].limit is not None and 100.0 + clock + tasks[n].tail > tasks[n].limit
                counts = (sum(tasks[n].group == 0 for n in chosen), sum(tasks[n].group == 1 for n in chosen))
                if not late:
                    best[counts] = max(best.get(counts, 0.0), sum(tasks[n].value for n in chosen))
        assert {counts: e.value for counts, e in found.items()} == best
        assert all(sum(tasks[n].value for n in e.tasks) == e.value for e in found.values())


def test_slots_suffice_when_every_set_of_classes_has_enough():
    slots = Slots({frozenset({0}): 1, frozenset({0, 1}): 2}, 2)
    assert slots.suffice([1, 2])
    assert slots.suffice([3, 0])
    assert not slots.suffice([0, 3])
    assert not slots.suffice([2, 2])


def test_scarce_slots_go_to_those_who_are_worth_most():
    menus = [menu([Task(1.0, 0.0, None, v, 0) for v in values], 0.0, 0.0, 1).entries for values in ([5.0, 1.0], [4.0, 3.0], [2.0])]
    choice = choose(menus, Slots({frozenset({0}): 3}, 1), 1)
    assert sum(e.value for e in choice.entries) == 12.0
    assert choice.bound == pytest.approx(12.0, abs=1e-3)


def test_leaving_distant_slots_out_changes_no_assignment():
    left_out = 0
    for seed in range(2000):
        dice = Random(seed)
        slots = [f"s/{i:02d}" for i in range(dice.randint(1, 14))]
        some = [dice.sample(slots, dice.randint(1, len(slots))) for _ in range(dice.randint(1, 3))]
        kinds = [{s: Option(doubtful=dice.choice([0, 0, 1]), load=dice.randint(0, dice.choice([1, 4]))) for s in own} for own in some]
        options = {f"w{n}": dice.choice(kinds) for n in range(dice.randint(1, 6))}
        cost = placing._cost(list(options), options)
        everything = [[cost(own[s]) if s in own else None for s in slots] for own in options.values()]
        near, costs = placing._costs(list(options), options)
        left_out += len(slots) - len(near)
        whole, narrow = assign(everything), assign(costs)
        assert (None if narrow is None else [near[n] for n in narrow]) == (None if whole is None else [slots[n] for n in whole])
    assert left_out > 2000


def test_a_long_chain_of_exchanges_is_found():
    """Each worker can have its own slot and the next one's; the last one only the first slot: all move up by one."""
    count = 2000
    options = {f"w{n:04d}": {f"s/{n}": Option(prefer=1.0), f"s/{n + 1}": Option(prefer=0.0)} for n in range(count)}
    options["x"] = {"s/0": Option()}
    jobs = [Job(worker=w, value=float(w != "x")) for w in options]
    result = place(jobs, options, {}, NOW)
    assert result.slots["x"] == "s/0"
    assert result.slots["w0000"] == "s/1"
    assert len(result.slots) == count + 1


def test_a_node_with_very_many_workers_is_gone_through_in_part():
    """A part of the schedules still gives nearly the best, and no bound is claimed."""
    dice = Random(3)
    tasks = [Task(dice.uniform(1, 9), dice.uniform(0, 5), 1100.0, dice.uniform(1, 99), dice.randint(0, 1)) for _ in range(40)]
    tasks.sort(key=lambda t: t.limit - t.tail)
    found = menu(tasks, 0.0, NOW, 2)
    assert not found.whole
    assert len(found.entries) < 1000
    # the most value for the time, with a part of one worker: no choice is better
    left, most_there_is = 100.0 - min(t.tail for t in tasks), 0.0
    for task in sorted(tasks, key=lambda t: -t.value / t.occupy):
        part = min(1.0, left / task.occupy)
        left, most_there_is = left - part * task.occupy, most_there_is + part * task.value
    assert max(e.value for e in found.entries) > 0.95 * most_there_is
    for entry in found.entries:
        clock = 0.0
        for n in entry.tasks:
            clock += tasks[n].occupy
            assert NOW + clock + tasks[n].tail <= 1100.0
