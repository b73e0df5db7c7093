"""Which workers are saved, and where each goes.

The set is chosen first: the most value, then the most workers, such that each has a slot of its own and each node's dumps, one after the
other, end in time. Then the slots: the fewest doubtful ones, the fewest on nodes that had rather be spared, the highest preference, the
widest spread. Only where a node then gets more workers than it has memory or disk for, is it done again with an eye on that (see `pack`):
otherwise what is best without that limit is best with it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from typing import Final

import msgspec

from shunter.decide.assign import assign
from shunter.decide.jobs import Job, Option, Options
from shunter.decide.lanes import MOST_CLASSES, Slots, Task, choose, menu
from shunter.decide.pack import Loads, pack
from shunter.decide.rooms import Rooms, short
from shunter.model.ids import NodeId, SlotId, WorkerId, node_of

EXACT_SET = 16
"""Up to so many workers that compete for time the set is the best there is; above, the better of two greedy ones."""
EXACT_SLOTS = 64
"""Up to so many workers the slots are the best there are; above, any that fit, the preferred ones tried first."""
_FINE = 10**9
"""Preferences are compared to this part of their range."""


_NO_OPTIONS: Final[Mapping[SlotId, Option]] = {}


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """`slots` of the placed; `ends` is when each is expected to be over; `late` had a slot but no time, `without` no slot, or none that has
    room beside the others. `most` is a value that no placement could exceed, None where it isn't known.
    """

    slots: dict[WorkerId, SlotId]
    ends: dict[WorkerId, float]
    late: tuple[WorkerId, ...]
    without: tuple[WorkerId, ...]
    most: float | None = None


def place(jobs: Sequence[Job], options: Options, lanes: Mapping[NodeId, float], now: float, rooms: Rooms | None = None) -> Placement:
    """Place what can be placed. `lanes` are seconds for which a node's lane is still occupied, `rooms` what nodes have left for who comes
    to them (None: enough).
    """
    if not jobs:
        return Placement(slots={}, ends={}, late=(), without=(), most=0.0)
    queue = sorted(jobs, key=lambda j: (-j.value, j.worker))
    chosen, most = _choose(queue, options, lanes, now)
    slots = _slots(chosen, options)
    if rooms is not None and not Loads(rooms).have_room(chosen, slots, options):
        able = [j for j in queue if options.get(j.worker) and timetable([j], lanes, now) is not None]
        slots = pack(able, options, _costs_of(able, options), partial(_lane_in_time, lanes, now), rooms, [chosen])
        chosen = [j for j in queue if j.worker in slots]
    ids = {j.worker for j in chosen}
    own = _by_lane(chosen)
    left = [j for j in queue if j.worker not in ids]
    late = [j.worker for j in left if options.get(j.worker) and timetable([*own[j.lane], j] if j.lane else [j], lanes, now) is None]
    ends = timetable(chosen, lanes, now)
    assert ends is not None, "only what fits was chosen"
    some = frozenset(late)
    without = tuple(j.worker for j in left if j.worker not in some)
    return Placement(slots=slots, ends=ends, late=tuple(late), without=without, most=most)


def beside(rooms: Rooms, size: int, options: Mapping[SlotId, Option], placed: Placement) -> str:
    """Why the slots that nobody got won't do for a worker of `size` bytes, with both values; empty where there are none, or there is room.
    Ask once what is placed is planned.
    """
    taken = set(placed.slots.values())
    nodes = sorted({node_of(slot) for slot in options if slot not in taken})
    roomiest = max(nodes, key=lambda n: rooms.left(n).bytes, default=None)
    if roomiest is None or rooms.left(roomiest).bytes >= size:
        return ""
    return f", and of the nodes with a slot left {roomiest} has the most room: {short(rooms.left(roomiest), size)}"


def timetable(jobs: Sequence[Job], lanes: Mapping[NodeId, float], now: float) -> dict[WorkerId, float] | None:
    """When each job is over if every lane takes its own in the order of due times, or None if one would be late.

    The earliest due time first, due at `limit - tail`, finds a feasible order whenever there is one (Jackson 1955).
    """
    clocks: dict[NodeId, float] = dict(lanes)
    ends: dict[WorkerId, float] = {}
    for job in sorted(jobs, key=_due):
        begins = clocks.get(job.lane, 0.0) if job.lane else 0.0
        if job.lane:
            clocks[job.lane] = begins + job.occupy
        over = now + begins + job.occupy + job.tail
        if job.limit is not None and over > job.limit:
            return None
        ends[job.worker] = over
    return ends


def _lane_in_time(lanes: Mapping[NodeId, float], now: float, jobs: Sequence[Job]) -> bool:
    return timetable(jobs, lanes, now) is not None


def _due(job: Job) -> tuple[float, float, WorkerId]:
    return float("inf") if job.limit is None else job.limit - job.tail, -job.value, job.worker


def _by_lane(jobs: Iterable[Job]) -> defaultdict[NodeId | None, list[Job]]:
    own: defaultdict[NodeId | None, list[Job]] = defaultdict(list)
    for job in jobs:
        own[job.lane].append(job)
    return own


class _Tried:
    """The order in which a worker's slots are tried: the least doubtful, the preferred ones, the emptiest nodes first."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lists: dict[int, list[SlotId]] = {}

    def of(self, worker: WorkerId) -> tuple[int, list[SlotId]]:
        """Its slots in that order, and a number that is the same for all workers with the same mapping of options."""
        own = self._options.get(worker, _NO_OPTIONS)
        found = self._lists.get(id(own))
        if found is None:
            found = self._lists[id(own)] = [slot for slot, _ in sorted(own.items(), key=_trial)]
        return id(own), found


def _trial(choice: tuple[SlotId, Option]) -> tuple[int, int, float, int, SlotId]:
    slot, option = choice
    return option.doubtful, option.shunned, -(option.prefer or 0.0), option.load, slot


class _Matching:
    """Slots given to workers so far; enlarged along augmenting paths, so that a worker fits whenever it can fit at all.

    Workers with the same mapping of options are alike: where one has found nothing, no other will.
    """

    def __init__(self, tried: _Tried) -> None:
        self._tried = tried
        self._next: dict[int, Iterator[SlotId]] = {}
        self._full: set[int] = set()
        self.owner: dict[SlotId, WorkerId] = {}

    def add(self, worker: WorkerId) -> bool:
        """Give the worker a slot if there is a way."""
        alike, slots = self._tried.of(worker)
        if alike in self._full:
            return False
        # a slot that has an owner always will, so that one look through the list finds all that are free
        slot = next((s for s in self._next.setdefault(alike, iter(slots)) if s not in self.owner), None)
        if slot is not None:
            self.owner[slot] = worker
        elif not self._seek(worker):
            self._full.add(alike)
            return False
        return True

    def _seek(self, worker: WorkerId) -> bool:
        """Depth first. Those that are alike go on in one list where the one before has stopped: what it has passed has been tried."""
        lists: dict[int, Iterator[SlotId]] = {}
        seen: set[SlotId] = set()
        path: list[WorkerId] = [worker]
        by: list[SlotId] = []
        while path:
            slot = next((s for s in self._list(path[-1], lists) if s not in seen), None)
            if slot is None:
                path.pop()
                del by[-1:]
                continue
            seen.add(slot)
            by.append(slot)
            holder = self.owner.get(slot)
            if holder is None:
                self.owner.update(zip(by, path, strict=True))
                return True
            path.append(holder)
        return False

    def _list(self, worker: WorkerId, lists: dict[int, Iterator[SlotId]]) -> Iterator[SlotId]:
        alike, slots = self._tried.of(worker)
        return lists.setdefault(alike, iter(slots))


class _Classes:
    """Workers that can have the same slots, together. `of` is None when there are too many kinds of them."""

    def __init__(self, jobs: Sequence[Job], options: Options) -> None:
        sets = {id(options[j.worker]): frozenset(options[j.worker]) for j in {id(options[j.worker]): j for j in jobs}.values()}
        number = {own: n for n, own in enumerate(dict.fromkeys(sets.values()))}
        self.count = len(number)
        self.of = {j.worker: number[sets[id(options[j.worker])]] for j in jobs}
        self._sets = list(number)

    def slots(self) -> Slots:
        """How many there are for each set of classes."""
        who: defaultdict[SlotId, list[int]] = defaultdict(list)
        for n, own in enumerate(self._sets):
            for slot in own:
                who[slot].append(n)
        return Slots(Counter(frozenset(classes) for classes in who.values()), self.count)


def _choose(queue: Sequence[Job], options: Options, lanes: Mapping[NodeId, float], now: float) -> tuple[list[Job], float | None]:
    """Who is saved, and a value that no choice can exceed, None where it isn't known."""
    # Without a shortage of time, taking the most valuable first is the optimum: sets of workers that can have slots form a matroid.
    able = [j for j in queue if options.get(j.worker) and timetable([j], lanes, now) is not None]
    tried = _Tried(options)
    best = _greedy(able, tried, lanes, now)
    if len(best) == len(able) or timetable(able, lanes, now) is not None:
        return best, _worth(best)[0]
    if len(able) <= EXACT_SET:
        best = _search(able, options, tried, lanes, now, best)
        return best, _worth(best)[0]
    dense = _greedy(sorted(able, key=lambda j: (-j.value / max(j.occupy, 1e-9), j.worker)), tried, lanes, now)
    priced, most = _priced(able, options, lanes, now)
    return max(best, dense, priced, key=_worth), most


def _worth(jobs: Sequence[Job]) -> tuple[float, int]:
    return sum(j.value for j in jobs), len(jobs)


def _greedy(queue: Sequence[Job], tried: _Tried, lanes: Mapping[NodeId, float], now: float) -> list[Job]:
    matching = _Matching(tried)
    chosen: list[Job] = []
    own: defaultdict[NodeId | None, list[Job]] = defaultdict(list)
    for job in queue:
        there = [*own[job.lane], job] if job.lane else [job]
        if timetable(there, lanes, now) is not None and matching.add(job.worker):
            chosen.append(job)
            own[job.lane] = there
    return chosen


def _priced(able: Sequence[Job], options: Options, lanes: Mapping[NodeId, float], now: float) -> tuple[list[Job], float | None]:
    """A choice by lanes as a whole, and a value that none can exceed, None where not all was looked at. Nobody is chosen where there are
    too many kinds of workers.
    """
    classes = _Classes(able, options)
    if classes.count > MOST_CLASSES:
        return [], None
    own = [sorted(jobs, key=_due) for lane, jobs in _by_lane(able).items() if lane] + [[j] for j in able if not j.lane]
    menus = [menu([_task(j, classes) for j in jobs], _busy(jobs, lanes), now, classes.count) for jobs in own]
    choice = choose([m.entries for m in menus], classes.slots(), classes.count)
    ids = {jobs[n].worker for jobs, entry in zip(own, choice.entries, strict=True) for n in entry.tasks}
    return [j for j in able if j.worker in ids], choice.bound if all(m.whole for m in menus) else None


def _task(job: Job, classes: _Classes) -> Task:
    return Task(occupy=job.occupy, tail=job.tail, limit=job.limit, value=job.value, group=classes.of[job.worker])


def _busy(jobs: Sequence[Job], lanes: Mapping[NodeId, float]) -> float:
    lane = jobs[0].lane
    return lanes.get(lane, 0.0) if lane else 0.0


def _search(able: Sequence[Job], options: Options, tried: _Tried, lanes: Mapping[NodeId, float], now: float, best: list[Job]) -> list[Job]:
    """Branch and bound over the sets, the most valuable first, cut off where all that is left can't beat the best."""
    slots = len({s for j in able for s in options[j.worker]})

    def fits(jobs: list[Job]) -> bool:
        lane = jobs[-1].lane
        if timetable([j for j in jobs if j.lane == lane] if lane else jobs[-1:], lanes, now) is None:
            return False
        matching = _Matching(tried)
        return all(matching.add(j.worker) for j in jobs)

    def descend(at: int, chosen: list[Job], best: list[Job]) -> list[Job]:
        if _worth(chosen) > _worth(best):
            best = chosen
        rest = able[at : at + slots - len(chosen)]
        if not rest or _worth([*chosen, *rest]) <= _worth(best):
            return best
        taken = [*chosen, able[at]]
        if fits(taken):
            best = descend(at + 1, taken, best)
        return descend(at + 1, chosen, best)

    return descend(0, [], best)


def _slots(chosen: Sequence[Job], options: Options) -> dict[WorkerId, SlotId]:
    if len(chosen) > EXACT_SLOTS:
        return _many_slots(chosen, options)
    rows = sorted(j.worker for j in chosen)
    columns, costs = _costs(rows, options)
    found = assign(costs)
    assert found is not None, "every chosen worker can have a slot"
    return {w: columns[c] for w, c in zip(rows, found, strict=True)}


def _many_slots(chosen: Sequence[Job], options: Options) -> dict[WorkerId, SlotId]:
    """Any that fit, the preferred ones tried first."""
    matching = _Matching(_Tried(options))
    for job in chosen:
        matching.add(job.worker)
    return {w: s for s, w in sorted(matching.owner.items())}


def _costs(rows: Sequence[WorkerId], options: Options) -> tuple[list[SlotId], list[list[int | None]]]:
    """Slots that are enough for all of them, and what each costs each: doubt, taints, preference and spread in one whole number, no sum of
    the lesser ever outweighing one of the greater.
    """
    kinds, cost = {id(options[w]): options[w] for w in rows}, _cost(rows, options)
    near = (nsmallest(len(rows), ((cost(option), slot) for slot, option in own.items())) for own in kinds.values())
    columns = sorted({slot for nearest in near for _, slot in nearest})
    costs = {alike: [cost(own[s]) if s in own else None for s in columns] for alike, own in kinds.items()}
    return columns, [costs[id(options[w])] for w in rows]


def _costs_of(jobs: Sequence[Job], options: Options) -> dict[int, dict[SlotId, int]]:
    """The same by the mappings of options that there are (by `id`), and by slot."""
    rows = [j.worker for j in jobs]
    cost = _cost(rows, options)
    different = {id(options[w]): options[w] for w in rows}
    return {alike: {s: cost(o) for s, o in own.items()} for alike, own in different.items()}


def _cost(rows: Sequence[WorkerId], options: Options) -> Callable[[Option], int]:
    different = {id(options[w]): options[w] for w in rows}
    known = [o.prefer for own in different.values() for o in own.values() if o.prefer is not None]
    top, span = max(known, default=0.0), (max(known) - min(known)) if known else 0.0
    spread = 1 + len(rows) * max((o.load for own in different.values() for o in own.values()), default=0)
    liking, doubt = 1 + len(rows) * _FINE, 1 + len(rows)
    short: dict[float | None, int] = {prefer: round((top - prefer) / span * _FINE) for prefer in set(known)} if span else {}

    def cost(option: Option) -> int:
        reluctance = option.doubtful * doubt + option.shunned
        return (reluctance * liking + short.get(option.prefer, 0)) * spread + option.load

    return cost
