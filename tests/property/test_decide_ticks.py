"""What one decision leaves to the next spares time and changes nothing: ticks that share it decide as if each were the first."""

from random import Random
from typing import Any

import msgspec
import pytest
from shunter.decide.evaluate import evaluate
from shunter.decide.memory import Memory
from shunter.lang.bulk import BulkCelRules
from shunter.lang.cel import CelRules
from shunter.model.canon import encode
from shunter.model.operation import EngineState
from shunter.model.policy import Policy, PolicySet
from shunter.model.snapshot import Fleet, Snapshot
from test_decide import NOW, PROFILE, situation_of
from test_decide_bulk import awkward, awkward_fleet


def ticks(dice: Random) -> list[tuple[list[Policy], list[Snapshot], EngineState]]:
    """Decisions one after the other: snapshots come and go, policies change, and of the fleet and the records some parts are the very same
    as before, some are alike, and some are others.
    """
    policies, series, state = situation_of(dice)
    if dice.random() < 0.5:
        policies = [awkward(dice, p) for p in policies]
        series = [awkward_fleet(dice, s, policies) for s in series]
    mixed: list[Snapshot] = []
    for snapshot in series:
        fleet = snapshot.fleet
        if mixed and dice.random() < 0.6:
            before = mixed[-1].fleet
            images = tuple(i for i in before.images if dice.random() < 0.8) + tuple(i for i in fleet.images if dice.random() < 0.3)
            distinct = {i.id: i for i in images}
            kept: dict[str, Any] = {"nodes": before.nodes, "workers": before.workers, "images": tuple(distinct.values())}
            fleet = Fleet(**{k: v if dice.random() < 0.7 else getattr(fleet, k) for k, v in kept.items()})
        mixed.append(msgspec.structs.replace(snapshot, fleet=fleet))
    found, recent = [], list(state.recent)
    for end in range(1, len(mixed) + 1):
        begin = dice.randint(0, max(0, end - 3))
        in_force = [p for p in policies if dice.random() < 0.9]
        now = msgspec.structs.replace(state, recent=tuple(recent[dice.randint(0, 1) :])) if dice.random() < 0.5 else state
        found.append((in_force, mixed[begin:end], now))
    return found


@pytest.mark.parametrize("seeds", [range(at, at + 40) for at in range(0, 160, 40)])
def test_with_it_and_without_the_same_is_decided(seeds: range) -> None:
    operations = 0
    for seed in seeds:
        memory, rules = Memory(), BulkCelRules()
        for policies, series, state in ticks(Random(seed)):
            held = PolicySet(commit="c", digest="sha256:p", policies=tuple(policies))  # type: ignore[arg-type]
            together = evaluate(held, series, state, NOW, rules, PROFILE, memory)
            alone = evaluate(held, series, state, NOW, CelRules(), PROFILE)
            assert encode(together) == encode(alone), seed
            operations += len(alone.plan.operations)
    assert operations > 40


def test_what_left_the_history_is_not_kept() -> None:
    policies, series, state = next(t for t in ticks(Random(3)) if len(t[1]) > 1)
    held = PolicySet(commit="c", digest="sha256:p", policies=tuple(policies))  # type: ignore[arg-type]
    memory = Memory()
    for kept in (series, series[-1:]):
        evaluate(held, kept, state, NOW, CelRules(), PROFILE, memory)
    assert [world.snapshot for world, _ in memory._seen.values()] == series[-1:]
