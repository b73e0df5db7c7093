"""Which workers are saved, and where each goes.

The set is chosen first: the most value, then the most workers, such that each has a slot of its own and each node's dumps, one after the
other, end in time. Then the slots: the fewest doubtful ones, the highest preference, the widest spread.
"""

from collections.abc import Mapping, Sequence

import msgspec

from shunter.decide.assign import assign
from shunter.model.ids import NodeId, SlotId, WorkerId

EXACT_SET = 16
"""Up to so many workers that compete for time the set is the best there is; above, the better of two greedy ones."""
EXACT_SLOTS = 64
"""Up to so many workers the slots are the best there are; above, any that fit, the preferred ones tried first."""
_FINE = 10**9
"""Preferences are compared to this part of their range."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A worker to be placed. Its node's lane is occupied for `occupy` seconds, then `tail` seconds pass elsewhere; all must be over by
    `limit` (None: whenever). `value` is not negative.
    """

    worker: WorkerId
    value: float = 0.0
    lane: NodeId | None = None
    occupy: float = 0.0
    tail: float = 0.0
    limit: float | None = None


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that a worker may have. `doubtful`: an earlier attempt failed there (2), or a condition on it has no answer (1).

    `load` counts the workers that its node would have before it.
    """

    doubtful: int = 0
    prefer: float | None = None
    load: int = 0


Options = Mapping[WorkerId, Mapping[SlotId, Option]]


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """`slots` of the placed; `ends` is when each is expected to be over; `late` had a slot but no time, `without` no slot."""

    slots: dict[WorkerId, SlotId]
    ends: dict[WorkerId, float]
    late: tuple[WorkerId, ...]
    without: tuple[WorkerId, ...]


def place(jobs: Sequence[Job], options: Options, lanes: Mapping[NodeId, float], now: float) -> Placement:
    """Place what can be placed. `lanes` are seconds for which a node's lane is still occupied."""
    queue = sorted(jobs, key=lambda j: (-j.value, j.worker))
    chosen = _choose(queue, options, lanes, now)
    ids = {j.worker for j in chosen}
    left = [j for j in queue if j.worker not in ids]
    late = tuple(j.worker for j in left if options.get(j.worker) and timetable([*chosen, j], lanes, now) is None)
    ends = timetable(chosen, lanes, now)
    assert ends is not None, "only what fits was chosen"
    return Placement(slots=_slots(chosen, options), ends=ends, late=late, without=tuple(j.worker for j in left if j.worker not in late))


def timetable(jobs: Sequence[Job], lanes: Mapping[NodeId, float], now: float) -> dict[WorkerId, float] | None:
    """When each job is over if every lane takes its own in the order of due times, or None if one would be late.

    The earliest due time first, due at `limit - tail`, finds a feasible order whenever there is one (Jackson 1955).
    """
    clocks: dict[str, float] = {str(node): busy for node, busy in lanes.items()}
    ends: dict[WorkerId, float] = {}
    for job in sorted(jobs, key=lambda j: (float("inf") if j.limit is None else j.limit - j.tail, -j.value, j.worker)):
        begins = clocks.get(job.lane, 0.0) if job.lane else 0.0
        if job.lane:
            clocks[job.lane] = begins + job.occupy
        over = now + begins + job.occupy + job.tail
        if job.limit is not None and over > job.limit:
            return None
        ends[job.worker] = over
    return ends


class _Matching:
    """Slots given to workers so far; enlarged along augmenting paths, so that a worker fits whenever it can fit at all."""

    def __init__(self, options: Options) -> None:
        self._tried = {
            w: sorted(own, key=lambda s: (own[s].doubtful, -(own[s].prefer or 0.0), own[s].load, s)) for w, own in options.items()
        }
        self.owner: dict[SlotId, WorkerId] = {}

    def add(self, worker: WorkerId) -> bool:
        return self._seek(worker, set())

    def _seek(self, worker: WorkerId, seen: set[SlotId]) -> bool:
        for slot in self._tried.get(worker, ()):
            if slot not in seen:
                seen.add(slot)
                holder = self.owner.get(slot)
                if holder is None or self._seek(holder, seen):
                    self.owner[slot] = worker
                    return True
        return False


def _choose(queue: Sequence[Job], options: Options, lanes: Mapping[NodeId, float], now: float) -> list[Job]:
    best = _greedy(queue, options, lanes, now)
    # Without a shortage of time, taking the most valuable first is the optimum: sets of workers that can have slots form a matroid.
    able = [j for j in queue if options.get(j.worker) and timetable([j], lanes, now) is not None]
    if len(best) == len(able) or timetable(able, lanes, now) is not None:
        return best
    if len(able) <= EXACT_SET:
        return _search(able, options, lanes, now, best)
    dense = _greedy(sorted(able, key=lambda j: (-j.value / max(j.occupy, 1e-9), j.worker)), options, lanes, now)
    return max(best, dense, key=_worth)


def _worth(jobs: Sequence[Job]) -> tuple[float, int]:
    return sum(j.value for j in jobs), len(jobs)


def _greedy(queue: Sequence[Job], options: Options, lanes: Mapping[NodeId, float], now: float) -> list[Job]:
    matching = _Matching(options)
    chosen: list[Job] = []
    for job in queue:
        if timetable([*chosen, job], lanes, now) is not None and matching.add(job.worker):
            chosen.append(job)
    return chosen


def _search(able: Sequence[Job], options: Options, lanes: Mapping[NodeId, float], now: float, best: list[Job]) -> list[Job]:
    """Branch and bound over the sets, the most valuable first, cut off where all that is left can't beat the best."""
    slots = len({s for j in able for s in options[j.worker]})

    def fits(jobs: list[Job]) -> bool:
        if timetable(jobs, lanes, now) is None:
            return False
        matching = _Matching(options)
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
        matching = _Matching(options)
        for job in chosen:
            matching.add(job.worker)
        return {w: s for s, w in sorted(matching.owner.items())}
    rows = sorted(j.worker for j in chosen)
    columns = sorted({s for w in rows for s in options[w]})
    costs = _costs(rows, columns, options)
    found = assign(costs)
    assert found is not None, "every chosen worker can have a slot"
    return {w: columns[c] for w, c in zip(rows, found, strict=True)}


def _costs(rows: Sequence[WorkerId], columns: Sequence[SlotId], options: Options) -> list[list[int | None]]:
    """Doubt, preference and spread in one whole number each, no sum of the lesser ever outweighing one of the greater."""
    known = [o.prefer for w in rows for o in options[w].values() if o.prefer is not None]
    top, span = max(known, default=0.0), (max(known) - min(known)) if known else 0.0
    spread = 1 + len(rows) * max((o.load for w in rows for o in options[w].values()), default=0)
    liking = 1 + len(rows) * _FINE

    def cost(option: Option | None) -> int | None:
        if option is None:
            return None
        short = round((top - option.prefer) / span * _FINE) if span and option.prefer is not None else 0
        return (option.doubtful * liking + short) * spread + option.load

    return [[cost(options[w].get(s)) for s in columns] for w in rows]
