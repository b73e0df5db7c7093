"""Placement at scale: 500 workers of two roles and two GPU models leave 60 nodes at once, and neither time nor slots are enough for all.

What is placed is compared with two upper bounds: the one that placing gives itself, and, where scipy is installed, the linear relaxation
over workers and slots, solved by HiGHS. `python tests/bench/placement.py` prints the figures as JSON objects.
"""

import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from shunter.decide.jobs import Job, Option
from shunter.decide.place import place
from shunter.decide.rooms import Left, Rooms
from shunter.model.ids import NodeId, SlotId, WorkerId, node_of, slot_id

NOW, NODES, WORKERS, ELSEWHERE = 1_800_000_000.0, 60, 500, 220
DUMP, NETWORK, RESTORE, FIXED = 5e9, 40e9, 9e9, 1.0
"""Bytes a second, as `decide.profile` plans with, and seconds."""
GIVEN, RESERVE = 120.0, 10.0
"""Seconds from the notice to the end, and the slack before it."""

Instance = tuple[list[Job], dict[WorkerId, Mapping[SlotId, Option]], dict[NodeId, float]]


def instance(seed: int = 1, *, free: float = 0.75) -> Instance:
    """Eight or nine workers a node, 5 to 180 GB each, at different rates; `free` is how many slots there are for each worker."""
    dice = random.Random(seed)
    kinds = [(role, model) for role in ("prefill", "decode") for model in ("B200", "H200")]
    options: dict[tuple[str, str], dict[SlotId, Option]] = {kind: {} for kind in kinds}
    for n in range(ELSEWHERE):
        node, model = NodeId(f"other-{n:03d}"), dice.choice(["B200", "B200", "H200"])
        roles = dice.choice([("prefill", "decode"), ("prefill", "decode"), ("decode",)])
        for k in range(round(dice.uniform(0, 2 * free * WORKERS / ELSEWHERE))):
            option = Option(prefer=float(dice.randint(0, 3)), load=dice.randint(0, 8) + k)
            for role in roles:
                options[role, model][slot_id(node, k)] = option
    rates = [DUMP * dice.uniform(0.6, 1.4) for _ in range(NODES)]
    jobs, whose = [], {}
    for n in range(WORKERS):
        lane, size = n % NODES, dice.uniform(5e9, 180e9)
        worker, kind = WorkerId(f"worker-{n:03d}"), (dice.choice(["prefill", "decode", "decode"]), "B200" if lane % 3 else "H200")
        jobs.append(
            Job(
                worker=worker,
                value=float(dice.randint(0, 400_000)) if kind[0] == "decode" else 0.0,
                lane=NodeId(f"node-{lane:02d}"),
                occupy=FIXED + max(size / rates[lane], size / NETWORK),
                tail=max(20.0, FIXED + size / RESTORE),
                limit=NOW + GIVEN - RESERVE,
            )
        )
        whose[worker] = options[kind]
    return jobs, whose, {NodeId("node-07"): 30.0}


class FixedRooms(Rooms):
    """What nodes have left, as given."""

    def __init__(self, left: Mapping[NodeId, Left]) -> None:
        self._left = dict(left)


def with_room(made: Instance, seed: int, each: float) -> tuple[Instance, FixedRooms]:
    """The instance with the workers' sizes, and nodes with memory for about `each` bytes, a third to five thirds of it."""
    jobs, options, lanes = made
    dice = random.Random(seed)
    nodes = sorted({node_of(slot) for own in options.values() for slot in own})
    sized = [msgspec.structs.replace(job, bytes=int(dice.uniform(5e9, 180e9))) for job in jobs]
    return (sized, options, lanes), FixedRooms({node: Left(memory=dice.uniform(1 / 3, 5 / 3) * each) for node in nodes})


def relaxed(
    jobs: Sequence[Job],
    options: Mapping[WorkerId, Mapping[SlotId, Option]],
    lanes: Mapping[NodeId, float],
    rooms: Rooms | None = None,
) -> float | None:
    """The value of the linear relaxation: parts of workers in parts of slots, each lane's dumps in time at every due time, each node's
    workers no larger than it has room for. None without scipy.
    """
    try:
        import numpy as np
        from scipy.optimize import linprog
        from scipy.sparse import coo_matrix
    except ImportError:
        return None
    wide = [(n, slot) for n, job in enumerate(jobs) for slot in options[job.worker]]
    pairs = [(n, slot) for n, slot in wide if rooms is None or jobs[n].bytes <= rooms.left(node_of(slot)).bytes]
    slots = {slot: i for i, slot in enumerate(sorted({slot for _, slot in pairs}))}
    entries: list[tuple[int, int, float]] = []
    limits: list[float] = []
    own: list[list[int]] = [[] for _ in jobs]
    for column, (n, slot) in enumerate(pairs):
        own[n].append(column)
        entries += [(n, column, 1.0), (len(jobs) + slots[slot], column, 1.0)]
    limits += [1.0] * (len(jobs) + len(slots))
    for lane in {j.lane for j in jobs}:
        there = sorted((n for n, j in enumerate(jobs) if j.lane == lane), key=lambda n: _due(jobs[n]))
        for count, last in enumerate(there, 1):
            entries += [(len(limits), column, jobs[n].occupy) for n in there[:count] for column in own[n]]
            limits.append(max(0.0, _due(jobs[last]) - lanes.get(lane, 0.0)))
    for node in {node_of(slot) for slot in slots} if rooms is not None else ():
        there = [c for c, (n, slot) in enumerate(pairs) if node_of(slot) == node]
        entries += [(len(limits), c, jobs[pairs[c][0]].bytes / 1e9) for c in there]
        limits.append(rooms.left(node).memory / 1e9 if rooms is not None else 0.0)
    rows, columns, values = zip(*entries, strict=True)
    matrix = coo_matrix((values, (rows, columns)), shape=(len(limits), len(pairs)))
    worth = np.array([-jobs[n].value for n, _ in pairs])
    upper = np.array([0.0 if jobs[n].occupy > _due(jobs[n]) - lanes.get(jobs[n].lane, 0.0) else 1.0 for n, _ in pairs])
    result = linprog(worth, A_ub=matrix.tocsr(), b_ub=np.array(limits), bounds=np.c_[np.zeros(len(pairs)), upper], method="highs")
    return -float(result.fun)


def _due(job: Job) -> float:
    assert job.limit is not None
    return job.limit - job.tail - NOW


def benches() -> list[dict[str, Any]]:
    """The time, and the gap to each bound."""
    figures = []
    for name, free in (("placement_500", 0.75), ("placement_500_few_slots", 0.35)):
        jobs, options, lanes = instance(free=free)
        taken = min(_timed(jobs, options, lanes) for _ in range(5))
        result = place(jobs, options, lanes, NOW)
        value = sum(j.value for j in jobs if j.worker in result.slots)
        slots = len({s for own in options.values() for s in own})
        how = (
            f"{len(jobs)} workers leave {NODES} nodes within {GIVEN - RESERVE:g} s, {slots} free slots: {len(result.slots)} placed; "
            "processor time"
        )
        figures.append(_figure(name, taken, "s", 0.1, f"{how}, best of 5"))
        if result.most is not None:
            figures.append(_figure(f"{name}_gap", 1 - value / result.most, "1", 0.02, "to the relaxation over whole schedules of a node"))
        if (bound := relaxed(jobs, options, lanes)) is not None:
            figures.append(_figure(f"{name}_gap_lp", 1 - value / bound, "1", None, "to the relaxation over single workers, by HiGHS"))
    return [*figures, *_little_memory()]


def _little_memory() -> list[dict[str, Any]]:
    """Nodes that have memory for two or three workers each: those that come to one share it."""
    name, each = "placement_500_little_memory", 150e9
    (jobs, options, lanes), rooms = with_room(instance(), 1, each)
    taken = min(_timed(jobs, options, lanes, rooms) for _ in range(5))
    result = place(jobs, options, lanes, NOW, rooms)
    value = sum(j.value for j in jobs if j.worker in result.slots)
    figures = [_figure(name, taken, "s", None, f"the same, nodes with memory for {each / 1e9:g} GB on average: {len(result.slots)} placed")]
    if result.most is not None:
        figures.append(_figure(f"{name}_gap", 1 - value / result.most, "1", 0.02, "to what would be placed if memory were no matter"))
    if (bound := relaxed(jobs, options, lanes, rooms)) is not None:
        figures.append(_figure(f"{name}_gap_lp", 1 - value / bound, "1", None, "to that over single workers and memory, by HiGHS"))
    return figures


def _timed(
    jobs: Sequence[Job], options: Mapping[WorkerId, Mapping[SlotId, Option]], lanes: Mapping[NodeId, float], rooms: Rooms | None = None
) -> float:
    began = time.process_time()
    place(jobs, options, lanes, NOW, rooms)
    return time.process_time() - began


def _figure(name: str, value: float, unit: str, target: float | None, how: str) -> dict[str, Any]:
    met = None if target is None else value <= target
    return {"name": name, "value": round(value, 4), "unit": unit, "target": target, "met": met, "how": how}


def main() -> int:
    for figure in benches():
        print(json.dumps(figure), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
