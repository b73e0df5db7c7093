"""Who can be saved in time: each node dumps one worker after the other, and whoever is dumped needs a slot.

A lane's *menu* is the most value that can be had of it in time for each number of workers of each class, where a class are workers that can
have the same slots. Finding one is scheduling a machine with due times, 1 || sum w U: the jobs are gone through in the order of their due
times, keeping for each number only what nothing else beats in both time and value (Lawler and Moore, "A functional equation and its
application to resource allocation and sequencing problems", Management Science 16(1), 1969).

Then one entry is chosen from each menu so that there are slots for all (Hall's condition on every set of classes). Slots that are too few
get prices, which makes the lanes independent again: the best entries at some prices, plus what all slots are worth at them, are more than
any choice can reach (Lagrange's relaxation; it is as tight as the linear program over whole schedules, and tighter than the one over
workers). So how far the choice is from the best at most is known.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Final, NamedTuple, TypeAlias

MOST_CLASSES: Final = 6
"""Sets of classes are gone through one by one: 63 of them."""
_MOST_STATES: Final = 1000
"""Of a lane with more partial schedules than this some are left out."""
_ROUNDS, _HALVINGS = 12, 24

Counts: TypeAlias = tuple[int, ...]
"""A number for each class."""


class Task(NamedTuple):
    """One worker in its lane: its dump takes `occupy` seconds, what follows elsewhere `tail`; all must be over by `limit` (None: whenever).
    `group` is its class.
    """

    occupy: float
    tail: float
    limit: float | None
    value: float
    group: int


class Entry(NamedTuple):
    """A part of a lane's workers, by their numbers in it, that can be dumped in time."""

    value: float
    counts: Counts
    tasks: tuple[int, ...]


class Choice(NamedTuple):
    """An entry for each menu, and a value that no choice can exceed."""

    entries: list[Entry]
    bound: float


class Menu(NamedTuple):
    """What can be had of a lane. `whole`: nothing that might be better was left out."""

    entries: list[Entry]
    whole: bool


class _State(NamedTuple):
    time: float
    value: float
    tasks: tuple[int, ...]


def menu(tasks: Sequence[Task], busy: float, now: float, classes: int) -> Menu:
    """What can be had of a lane that is free in `busy` seconds. `tasks` are in the order of their due times."""
    if _all_in_time(tasks, busy, now):
        return Menu(_unhurried(tasks, classes), True)
    states: dict[Counts, list[_State]] = {(0,) * classes: [_State(busy, 0.0, ())]}
    whole = True
    for n, task in enumerate(tasks):
        states = _with(states, n, task, now)
        number = sum(map(len, states.values()))
        if number > _MOST_STATES:
            whole = False
            states = {counts: _thinned(found, number) for counts, found in states.items()}
    return Menu([Entry(found[-1].value, counts, found[-1].tasks) for counts, found in states.items()], whole)


def _thinned(states: list[_State], number: int) -> list[_State]:
    """A part of the states, from the soonest over to the most valuable, so that half as many as are allowed are left in all."""
    step = -(-2 * number // _MOST_STATES)
    return [*states[:-1:step], states[-1]]


def in_time(task: Task, begins: float, now: float) -> bool:
    """Whether the task is over by its limit if its lane takes it `begins` seconds from now."""
    return task.limit is None or now + begins + task.occupy + task.tail <= task.limit


def _all_in_time(tasks: Iterable[Task], clock: float, now: float) -> bool:
    for task in tasks:
        if not in_time(task, clock, now):
            return False
        clock += task.occupy
    return True


def _unhurried(tasks: Sequence[Task], classes: int) -> list[Entry]:
    """A lane that has time for all: of each class the most valuable ones."""
    own: list[list[int]] = [[] for _ in range(classes)]
    for n in sorted(range(len(tasks)), key=lambda n: (-tasks[n].value, n)):
        own[tasks[n].group].append(n)
    found = []
    for counts in product(*(range(len(members) + 1) for members in own)):
        chosen = tuple(n for members, count in zip(own, counts, strict=True) for n in members[:count])
        found.append(Entry(sum(tasks[n].value for n in chosen), counts, chosen))
    return found


def _with(states: Mapping[Counts, list[_State]], n: int, task: Task, now: float) -> dict[Counts, list[_State]]:
    """The states without the task and with it."""
    both: defaultdict[Counts, list[_State]] = defaultdict(list)
    for counts, found in states.items():
        both[counts] += found
        later = [_State(s.time + task.occupy, s.value + task.value, (*s.tasks, n)) for s in found if in_time(task, s.time, now)]
        if later:
            both[(*counts[: task.group], counts[task.group] + 1, *counts[task.group + 1 :])] += later
    return {counts: _undominated(found) for counts, found in both.items()}


def _undominated(states: list[_State]) -> list[_State]:
    """Those that nothing beats: the later one is over, the more it is worth."""
    kept: list[_State] = []
    for state in sorted(states, key=lambda s: (s.time, -s.value, s.tasks)):
        if not kept or state.value > kept[-1].value:
            kept.append(state)
    return kept


class Slots:
    """How many workers of each class can have slots at once."""

    def __init__(self, usable: Mapping[frozenset[int], int], classes: int) -> None:
        """`usable`: how many slots there are that exactly these classes can have."""
        sets = [frozenset(c) for size in range(1, classes + 1) for c in combinations(range(classes), size)]
        self.room: Final = [(s, sum(n for who, n in usable.items() if who & s)) for s in sets]

    def suffice(self, counts: Sequence[int]) -> bool:
        """There is a slot for each."""
        return all(sum(counts[c] for c in among) <= room for among, room in self.room)

    def shortest(self, counts: Sequence[int]) -> int | None:
        """The set of classes that lacks the most slots, by its number; None when there are enough."""
        lacking = [sum(counts[c] for c in among) - room for among, room in self.room]
        worst = max(range(len(lacking)), key=lacking.__getitem__)
        return worst if lacking[worst] > 0 else None


def choose(menus: Sequence[Sequence[Entry]], slots: Slots, classes: int) -> Choice:
    """An entry of each menu, with slots for all, worth as much as can be found."""
    market = _Market(menus, slots, classes)
    market.settle()
    return Choice(_improved(menus, market.feasible, slots), market.bound)


class _Market:
    """Prices for sets of classes, raised until what the lanes want has slots."""

    def __init__(self, menus: Sequence[Sequence[Entry]], slots: Slots, classes: int) -> None:
        self._menus, self._slots, self._classes = menus, slots, classes
        self._prices = [0.0] * len(slots.room)
        self.feasible = [min(m, key=lambda e: sum(e.counts)) for m in menus]
        """The dearest choice seen so far that has slots for all."""
        self.bound = float("inf")
        self._top = max((e.value for m in menus for e in m), default=0.0) + 1.0

    def settle(self) -> None:
        """Price one set after the other, the one that lacks the most slots first."""
        for _ in range(_ROUNDS):
            short = self._slots.shortest(_total(self._wanted(), self._classes))
            if short is None:
                return
            self._price(short)

    def _price(self, which: int) -> None:
        """The least price, to within a halving, at which the lanes want no more of the set than has slots."""
        among, room = self._slots.room[which]
        before, self._prices[which] = self._prices[which], 0.0
        each = self._each()
        best: list[dict[int, float]] = []
        for entries in self._menus:
            own: dict[int, float] = {}
            for entry in entries:
                number = sum(entry.counts[c] for c in among)
                own[number] = max(_gain(entry, each), own.get(number, 0.0))
            best.append(own)
        low, high = before, self._top
        for _ in range(_HALVINGS):
            price = (low + high) / 2
            wanted = sum(max(own, key=lambda n: (own[n] - price * n, -n)) for own in best)
            low, high = (price, high) if wanted > room else (low, price)
        self._prices[which] = high

    def _each(self) -> list[float]:
        """The price of a slot for a worker of each class."""
        return [sum(p for (among, _), p in zip(self._slots.room, self._prices, strict=True) if c in among) for c in range(self._classes)]

    def _wanted(self) -> list[Entry]:
        """What each lane takes at these prices. The bound and the best choice are kept up to date."""
        each = self._each()
        wanted = [max(entries, key=lambda e: (_gain(e, each), -sum(e.counts))) for entries in self._menus]
        worth = sum(p * room for (_, room), p in zip(self._slots.room, self._prices, strict=True))
        self.bound = min(self.bound, sum(_gain(e, each) for e in wanted) + worth)
        if self._slots.suffice(_total(wanted, self._classes)) and _value(wanted) > _value(self.feasible):
            self.feasible = wanted
        return wanted


def _gain(entry: Entry, each: Sequence[float]) -> float:
    return entry.value - sum(p * n for p, n in zip(each, entry.counts, strict=True))


def _improved(menus: Sequence[Sequence[Entry]], chosen: Sequence[Entry], slots: Slots) -> list[Entry]:
    """Exchange one lane's entry for a better one, the greatest gain first, until none has slots for all."""
    chosen, counts = list(chosen), _total(chosen, len(menus[0][0].counts)) if menus else []
    while True:
        best: tuple[float, int, int, Entry] | None = None
        for lane, entries in enumerate(menus):
            before = chosen[lane]
            for entry in entries:
                gain = (entry.value - before.value, sum(entry.counts) - sum(before.counts), -lane)
                if gain[:2] <= (0.0, 0) or (best is not None and gain <= best[:3]):
                    continue
                if slots.suffice([n - b + e for n, b, e in zip(counts, before.counts, entry.counts, strict=True)]):
                    best = (*gain, entry)
        if best is None:
            return chosen
        lane = -best[2]
        counts = [n - b + e for n, b, e in zip(counts, chosen[lane].counts, best[3].counts, strict=True)]
        chosen[lane] = best[3]


def _total(entries: Iterable[Entry], classes: int) -> list[int]:
    totals = [0] * classes
    for entry in entries:
        for c, n in enumerate(entry.counts):
            totals[c] += n
    return totals


def _value(entries: Iterable[Entry]) -> tuple[float, int]:
    value, number = 0.0, 0
    for entry in entries:
        value += entry.value
        number += sum(entry.counts)
    return value, number
