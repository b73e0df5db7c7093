"""What was previewed is what any other command decides: the same snapshot and policies give the same plan, byte for byte."""

import tempfile
from pathlib import Path
from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.app.looking import look_again
from shunter.app.preview import decided
from shunter.app.recording import Past, Recording, load, save
from shunter.app.sightings import Sighting
from shunter.backtest.diff import difference
from shunter.decide.evaluate import evaluate
from shunter.model.canon import decode, encode
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Snapshot
from test_decide import PROFILE, SITUATIONS, Threshold


def as_read(series: list[Snapshot]) -> list[Snapshot]:
    """As read from a file: floats that are floats."""
    return [decode(encode(s), Snapshot) for s in series]


def recorded(series: list[Snapshot], state) -> Recording:
    """Each past instant with the fleet that there was then."""
    history = tuple(Past(at=s.at, samples=s.samples, seen=n) for n, s in enumerate(series[:-1]))
    sightings = tuple(Sighting(fleet=s.fleet, notices=s.notices) for s in series[:-1])
    return Recording.of(series[-1], history, state, PROFILE, sightings)


@given(SITUATIONS)
@settings(max_examples=150, deadline=None)
def test_a_recording_gives_the_plan_that_was_made_when_it_was_recorded(situation):
    given_, series, state = situation[0], as_read(situation[1]), situation[2]
    policies = PolicySet(commit="c", digest="sha256:p", policies=tuple(given_))
    live = evaluate(policies, series, state, series[-1].at, Threshold(), PROFILE)
    with tempfile.TemporaryDirectory() as folder:
        save(recorded(series, state), Path(folder) / "r.json")
        again = load(Path(folder) / "r.json")
    for _ in range(2):
        (seen,) = look_again(again, [policies])
        shown = decided(policies, seen, rules=Threshold())
        assert shown.snapshot.id == series[-1].id
        assert encode(shown.evaluation) == encode(live)


@given(SITUATIONS, st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_two_recordings_of_one_snapshot_are_one_file(situation, seed):
    """Equal worlds make equal files, whatever order their samples were put together in."""
    _, series, state = situation
    made = recorded(series, state)
    dice = Random(seed)
    mixed = dict(dice.sample(list(made.samples.workers.items()), len(made.samples.workers)))
    other = msgspec.structs.replace(made, samples=msgspec.structs.replace(made.samples, workers=mixed))
    assert encode(other) == encode(made)
    assert other.snapshots()[-1].id == made.snapshots()[-1].id


@given(SITUATIONS, st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_a_difference_accounts_for_every_operation_and_its_mirror_image_for_the_same(situation, seed):
    given_, series, state = situation
    dice = Random(seed)
    sets = [[p for p in given_ if dice.random() < 0.7] for _ in range(2)]
    base, head = (
        evaluate(PolicySet(commit="c", digest="sha256:p", policies=tuple(s)), series, state, series[-1].at, Threshold(), PROFILE)
        for s in sets
    )
    there, back = difference(base, head), difference(head, base)
    assert not difference(base, base)
    assert (there.added, there.removed) == (back.removed, back.added)
    assert [(f.policy, f.subject, f.before, f.after) for f in there.flipped] == [
        (f.policy, f.subject, f.after, f.before) for f in back.flipped
    ]
    kept = {o.id for o in head.plan.operations} - {o.id for o in there.added}
    assert {o.id for o in base.plan.operations} - {o.id for o in there.removed} == kept or there.changed
    assert len(head.plan.operations) - len(there.added) == len(base.plan.operations) - len(there.removed)
    if not there and not back:
        said = [(f.policy, f.subject, f.verdict) for f in base.findings if f.verdict.value != "pass"]
        assert said == [(f.policy, f.subject, f.verdict) for f in head.findings if f.verdict.value != "pass"]
