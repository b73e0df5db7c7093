"""What is decided the moment a notice is heard: the same as a tick would, and without a worker or a slot being given away twice."""

import asyncio
import tempfile
from pathlib import Path
from random import Random

import msgspec
from fleet_in_memory import CrashingStore, World
from gated_executor import Gated, op, plan, settle
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.act.scheduler import Scheduler, subjects
from shunter.app import heeding
from shunter.app.digests import Digests
from shunter.app.heeding import concerned, involuntary
from shunter.decide.evaluate import evaluate
from shunter.model.canon import encode
from shunter.model.ids import Commit, Digest
from shunter.model.operation import EngineState, Status
from shunter.model.policy import Policy, PolicySet
from shunter.model.snapshot import Fleet, Samples, Snapshot
from test_decide import NOW, PROFILE, SITUATIONS, Threshold


@given(SITUATIONS)
@settings(max_examples=400)
def test_what_is_done_because_of_a_notice_is_the_same_at_once_as_in_a_tick(
    situation: tuple[list[Policy], list[Snapshot], EngineState],
) -> None:
    policies, series, state = situation
    whole = PolicySet(commit=Commit("c"), digest=Digest("sha256:p"), policies=tuple(policies))
    tick = evaluate(whole, series, state, NOW, Threshold(), PROFILE).plan
    at_once = evaluate(concerned(involuntary(whole), series[-1]), series[-1:], state, NOW, Threshold(), PROFILE).plan
    urgent = [o for o in tick.operations if o.lane == "involuntary" and not o.preview]
    assert encode(at_once.operations) == encode(urgent)
    assert list(tick.operations[: len(urgent)]) == urgent, "and comes first in it"


@given(SITUATIONS)
@settings(max_examples=100)
def test_what_is_told_of_a_plan_knows_its_workers_and_no_others(situation: tuple[list[Policy], list[Snapshot], EngineState]) -> None:
    policies, series, state = situation
    whole = PolicySet(commit=Commit("c"), digest=Digest("sha256:p"), policies=tuple(policies))
    found = evaluate(whole, series[-1:], state, NOW, Threshold(), PROFILE)
    fleet = series[-1].fleet
    fleet = msgspec.structs.replace(fleet, workers=tuple(sorted(fleet.workers, key=lambda w: w.id)))
    planned = {o.worker for o in found.plan.operations}
    assert heeding._about(found, fleet).workers == tuple(w for w in fleet.workers if w.id in planned)


@given(SITUATIONS, st.booleans())
@settings(max_examples=100)
def test_a_digest_of_parts_is_the_snapshots_own(situation: tuple[list[Policy], list[Snapshot], EngineState], same_fleet: bool) -> None:
    digests = Digests()
    first, second = situation[1][0], situation[1][-1]
    if not same_fleet:
        second = msgspec.structs.replace(second, fleet=Fleet(workers=second.fleet.workers))
    for snapshot in (first, second, msgspec.structs.replace(second, samples=Samples(), notices=()), Snapshot(at=1.0, fleet=Fleet())):
        assert digests.take(snapshot) == msgspec.structs.replace(snapshot).id == snapshot.id


def test_a_digest_of_many_pieces_is_the_same() -> None:
    fleet, samples = situation_of_many()
    snapshot = Snapshot(at=NOW, fleet=fleet, samples=samples)
    assert Digests().take(snapshot) == msgspec.structs.replace(snapshot).id


def test_what_is_laid_out_for_a_digest_can_stand_still_between_its_parts() -> None:
    fleet, samples = situation_of_many()
    asked = list[None]()
    digests = Digests(lambda: asked.append(None))
    digests.take(Snapshot(at=NOW, fleet=fleet, samples=samples))
    parts = len(asked)
    assert parts > 20
    digests.take(Snapshot(at=NOW + 1, fleet=fleet, samples=samples))
    assert len(asked) == parts, "what is laid out already isn't again"
    digests.copy().take(Snapshot(at=NOW + 1, fleet=msgspec.structs.replace(fleet), samples=samples))
    assert len(asked) > parts


def situation_of_many() -> tuple[Fleet, Samples]:
    from test_decide import fleets, samples

    made = [fleets(Random(seed)) for seed in range(300)]
    whole = Fleet(
        nodes=tuple(n for f in made for n in f.nodes),
        workers=tuple(msgspec.structs.replace(w, id=f"{k}-{w.id}") for k, f in enumerate(made) for w in f.workers),
        images=tuple(i for f in made for i in f.images),
    )
    assert len(whole.workers) > 1000
    return whole, samples(Random(1), whole)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_ticks_and_notices_never_give_a_worker_or_a_slot_away_twice(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(interleave(Random(seed), Path(folder)))


async def interleave(dice: Random, folder: Path) -> None:
    """Plans of ticks and of notices in any order, over the same few workers and slots, while operations end in any order."""
    world = World(CrashingStore(folder / "s.db"))
    executor = Gated(world)
    scheduler = Scheduler(executor, voluntary=3)
    number = 0
    for at in range(12):
        whole = dice.random() < 0.5
        lanes = ["voluntary", "involuntary"] if whole else ["involuntary"]
        operations = []
        for worker in dice.sample(range(5), dice.randint(1, 4)):
            number += 1
            slot, to = f"n{worker % 3}/{worker}", f"m/{dice.randint(0, 2)}"
            operations.append(op(f"o{number}", f"w{worker}", dice.choice(lanes), from_slot=slot, to_slot=dice.choice([None, to])))
        before = {o.id: o for o in scheduler.waiting}
        scheduler.offer(plan(*operations, at=float(at)), whole=whole)
        await settle()
        taken = [subject for running in scheduler.running for subject in subjects(running)]
        assert len(taken) == len(set(taken)), "two at one worker or slot"
        if not whole:
            wanted = {s for o in operations for s in subjects(o)}
            lost = set(before) - {o.id for o in scheduler.waiting} - set(executor.started)
            assert all(wanted & subjects(before[name]) for name in lost), "a notice has dropped what isn't in its way"
        for name in dice.sample(sorted(o.id for o in scheduler.running), dice.randint(0, len(scheduler.running))):
            await executor.end(name, dice.choice([Status.SUCCEEDED, Status.ROLLED_BACK]))
    assert len(executor.started) == len(set(executor.started)), "one was begun twice"
    await scheduler.stop()
    world.store.close()
