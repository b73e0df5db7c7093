"""A preview that knows nothing but what was kept decides on `for` as the engine that has looked all the time."""

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.app.looking import Seen, during, history_of, past
from shunter.app.preview import decided
from shunter.app.recording import Recording, load, save
from shunter.app.sightings import MOST, Sightings, series, sightings_path, slack
from shunter.decide.evaluate import evaluate
from shunter.decide.hold import horizon
from shunter.lang.cel import CelRules
from shunter.lang.load import load as load_policies
from shunter.model.finding import Verdict
from shunter.model.ids import Commit, ImageId, Incarnation, NodeId, NoticeId, SlotId, WorkerId
from shunter.model.operation import EngineState
from shunter.model.plan import Evaluation
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.model.source import Revision, SourceFile

BEGIN, LENGTH, TICK = 1_800_000_000.0, 100, 1.0
WHENS = (
    'node.id == "a"',
    'node.id == "a" && !node.noticed',
    'node.freeSlots < 3 && node.id == "a"',
    'pools.decode.workers > 1 && node.id == "a"',
    'worker.slot == "a/0"',
    'node.labels["zone"] == "x" && node.id == "a"',
)
RULES = CelRules()


def wanting(when: str, lasts: str) -> PolicySet:
    text = (
        "apiVersion: shunter.dev/v1alpha1\nkind: RebalancePolicy\nmetadata: {name: leave}\nspec:\n"
        f"  workers: {{all: true}}\n  when: '{when}'\n  for: {lasts}\n  cooldown: 0s\n  to: {{where: 'node.id == \"b\"'}}\n"
    )
    files = (SourceFile(path="a.yaml", blob="b", data=text.encode()),)
    found = load_policies(Revision(commit=Commit("c" * 40), committed_at=None, files=files), None)
    assert not found.problems
    return found


def snapshot(at: float, where: tuple[str, str], noticed: bool, zone: str) -> Snapshot:
    names = ("d0", "d1")
    workers = tuple(
        Worker(
            id=WorkerId(name), role="decode", graph="g", engine="vllm", state=WorkerState.RUNNING if node else WorkerState.LOST,
            node=NodeId(node) if node else None, slot=SlotId(f"{node}/{n}") if node else None, incarnation=Incarnation(0), memory=10**9,
        )
        for n, (name, node) in enumerate(zip(names, where, strict=True))
    )  # fmt: skip
    nodes = tuple(
        Node(
            id=NodeId(n), labels={"zone": zone}, seen_at=at,
            slots=tuple(
                Slot(id=SlotId(f"{n}/{k}"), worker=next((w.id for w in workers if w.slot == f"{n}/{k}"), None)) for k in range(4)
            ),
        )
        for n in ("a", "b", "c")
    )  # fmt: skip
    notice = Notice(id=NoticeId("n"), kind=NoticeKind.REBALANCE, node=NodeId("c"), seen_at=BEGIN)
    mine = Notice(id=NoticeId("m"), kind=NoticeKind.REBALANCE, node=NodeId("a"), seen_at=BEGIN)
    return Snapshot(at=at, fleet=Fleet(nodes=nodes, workers=workers), notices=(notice, mine) if noticed else (notice,))


PLACES = st.sampled_from(["a", "a", "a", "b", "c", ""])
CHANGES = st.lists(
    st.tuples(st.integers(0, LENGTH), st.tuples(PLACES, PLACES), st.booleans(), st.sampled_from("xxxy"), st.booleans()), max_size=8
)
"""At which tick the fleet becomes what, and whether the engine looks from then on until the next."""


def seen_by_engine(changes: list, always: bool) -> list[Snapshot]:
    """A look each tick, but while the engine is stopped; the last is the one at the end."""
    by_tick = sorted(changes, key=lambda c: c[0])
    found = []
    for tick in range(LENGTH + 1):
        _, where, noticed, zone, looks = next((c for c in reversed(by_tick) if c[0] <= tick), (0, ("a", "a"), False, "x", True))
        if always or looks or tick == LENGTH:
            found.append(snapshot(BEGIN + tick * TICK, where, noticed, zone))
    return found


def begins(evaluation: Evaluation) -> set[tuple[str, str, str | None]]:
    return {(o.kind.value, o.worker, o.to_slot) for o in evaluation.plan.operations}


def lasted(evaluation: Evaluation) -> set[str]:
    """Workers for which `when` has held for long enough, whatever else is against their going."""
    return {f.subject for f in evaluation.findings if f.verdict is Verdict.ACT or f.gate not in ("when", "for", "workers.where")}


def previewed(folder: Path, policies: PolicySet, live: Snapshot) -> Recording:
    """As `look` puts it together."""
    times = past(live.at, horizon(policies), TICK)
    kept = series(folder, times[0], live.at, TICK)
    history = history_of(times, live.at, during(kept, [*times, live.at]), [Samples()] * (len(times) + 1))
    return Recording.of(live, history, sightings=kept.sightings)


@given(CHANGES, st.sampled_from(WHENS), st.sampled_from([10, 40, 90]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_preview_agrees_with_the_engine_that_looked_all_the_time(changes, when, lasts, always):
    policies = wanting(when, f"{lasts}s")
    looks = seen_by_engine(changes, always)
    with tempfile.TemporaryDirectory() as folder:
        engine = Sightings(Path(folder), TICK)
        for look in looks[:-1]:
            assert engine.note(look, horizon(policies)) is None
        engine.close()
        made = previewed(Path(folder), policies, looks[-1])
        save(made, Path(folder) / "r.json")
        assert load(Path(folder) / "r.json") == made
    shown = decided(policies, Seen(recording=made), rules=RULES)
    now = looks[-1].at
    engine_says = evaluate(policies, looks, EngineState(), now, RULES)
    assert lasted(shown.evaluation) <= lasted(engine_says), "what the engine holds back for `for` is in no preview"
    assert bool(begins(shown.evaluation)) <= bool(begins(engine_says))
    if always:
        step = max(TICK, lasts / 59)
        surely = lasted(evaluate(wanting(when, f"{lasts + int(2 * step) + 1}s"), looks, EngineState(), now, RULES))
        assert surely <= lasted(shown.evaluation), "and what has held for surely long enough is in every one"


@pytest.mark.parametrize(("when", "lasted"), [*((when, False) for when in WHENS), ('worker.id == "d0"', True)])
def test_where_nobody_looked_nothing_has_held_that_is_about_the_fleet(tmp_path: Path, when: str, lasted: bool) -> None:
    policies = wanting(when, "10m")
    live = snapshot(BEGIN, ("a", "a"), False, "x")
    shown = decided(policies, Seen(recording=previewed(tmp_path, policies, live)), rules=RULES)
    assert not begins(shown.evaluation)
    assert [("isn't known" in r, "(leave)" in r) for r in shown.remarks] == ([] if lasted else [(True, True)])
    (found,) = (f for f in shown.evaluation.findings if f.subject == "d0")
    assert (found.gate == "for") is not lasted, "what is about the worker alone has held"


def test_only_what_changed_is_kept_and_no_more_than_so_much(tmp_path: Path) -> None:
    engine = Sightings(tmp_path, TICK)
    places = [("a", "a"), ("a", "b"), ("b", "b")]
    for tick in range(3 * 100):
        engine.note(snapshot(BEGIN + tick, places[tick // 100], False, "x"), 60.0)
    found = series(tmp_path, BEGIN, BEGIN + 300, TICK)
    assert [s.fleet.workers[1].node for s in found.sightings] == ["a", "b", "b"]
    assert found.during(BEGIN, BEGIN + 299) == (0, 1, 2)
    assert found.during(BEGIN + 120, BEGIN + 130) == (1,)
    assert found.during(BEGIN - 1, BEGIN + 130) is None
    assert found.during(BEGIN + 250, BEGIN + 300 + 2 * slack(TICK)) is None
    for tick in range(2 * MOST):
        engine.note(snapshot(BEGIN + 1000 + tick, places[tick % 3], False, "x"), 60.0)
    assert len(series(tmp_path, BEGIN, BEGIN + 9999, TICK).sightings) == MOST
    engine.close()
    assert sightings_path(tmp_path).stat().st_mode & 0o777 == 0o600


def test_new_images_of_workers_that_run_are_no_new_fleet_and_no_condition_on_them_has_held(tmp_path: Path) -> None:
    """They come every few minutes from each worker; what a preview says of them then is nothing."""
    live = snapshot(BEGIN, ("a", ""), False, "x")

    def at(after: float, of: str) -> Snapshot:
        image = Image(
            id=ImageId(f"i{after}"), worker=WorkerId(of), incarnation=Incarnation(0), taken_at=BEGIN + after, bytes=1, nodes=(NodeId("b"),),
            role="decode", graph="g", engine="vllm",
        )  # fmt: skip
        return msgspec.structs.replace(live, at=BEGIN + after, fleet=msgspec.structs.replace(live.fleet, images=(image,)))

    engine = Sightings(tmp_path, TICK)
    for after in range(60):
        engine.note(at(after, "d0"), 0.0)
    assert len(series(tmp_path, BEGIN, BEGIN + 60, TICK).sightings) == 1
    policies = wanting("worker.images >= 0", "30s")
    shown = decided(policies, Seen(recording=previewed(tmp_path, policies, at(60, "d0"))), rules=RULES)
    assert [f.gate for f in shown.evaluation.findings if f.subject == "d0"] == ["for"]
    engine.note(at(60, "d1"), 0.0)
    engine.close()
    assert len(series(tmp_path, BEGIN, BEGIN + 60, TICK).sightings) == 2, "one that is lost can be brought back from its image"


def test_a_file_that_is_spoilt_is_begun_anew(tmp_path: Path) -> None:
    sightings_path(tmp_path).write_bytes(b"no database at all" * 100)
    assert series(tmp_path, BEGIN, BEGIN + 1, TICK).sightings == ()
    engine, live = Sightings(tmp_path, TICK), snapshot(BEGIN, ("a", "a"), False, "x")
    problem = engine.note(live, 0.0)
    assert problem is not None
    assert problem.code == "SH534"
    later = snapshot(BEGIN + 120, ("a", "a"), False, "x")
    assert engine.note(later, 0.0) is None
    engine.close()
    assert len(series(tmp_path, BEGIN, BEGIN + 120, TICK).sightings) == 1
