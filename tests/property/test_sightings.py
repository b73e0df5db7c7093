"""A preview that knows nothing but what was kept decides on `for` as the engine that has looked all the time."""

import contextlib
import sqlite3
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.app import pictures
from shunter.app.looking import Seen, during, history_of, past
from shunter.app.pictures import Pictures
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
from shunter.model.sample import Known
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
    'worker.images > 0 && node.id == "a"',
    'worker.images == 1 && node.id == "a"',
    'worker.imageAge < 30.0 && node.id == "a"',
    'worker.imageAge > 5.0 && node.id == "a"',
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
IMAGES = st.lists(st.tuples(st.integers(0, LENGTH), st.sampled_from(["d0", "d0", "d1"]), st.integers(1, 60)), max_size=8)
"""At which tick there is a new image of which worker, and for how many ticks."""
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


def with_images(looks: list[Snapshot], images: list, doubted: frozenset[int] = frozenset()) -> list[Snapshot]:
    """Each look with the images that there were then; of each four those of these numbers aren't to be trusted."""
    found = []
    for look in looks:
        tick = int((look.at - BEGIN) / TICK)
        there = [
            image(f"i{n}", worker, BEGIN + begin * TICK, "XID 31" if n % 4 in doubted else "")
            for n, (begin, worker, lasts) in enumerate(images)
            if 0 <= tick - begin < lasts
        ]
        found.append(msgspec.structs.replace(look, fleet=msgspec.structs.replace(look.fleet, images=tuple(there))))
    return found


def image(name: str, of: str, taken_at: float, doubt: str = "") -> Image:
    return Image(
        id=ImageId(name), worker=WorkerId(of), incarnation=Incarnation(0), taken_at=taken_at, bytes=1, nodes=(NodeId("b"),),
        role="decode", graph="g", engine="vllm", doubt=doubt,
    )  # fmt: skip


def begins(evaluation: Evaluation) -> set[tuple[str, str, str | None]]:
    return {(o.kind.value, o.worker, o.to_slot) for o in evaluation.plan.operations}


def lasted(evaluation: Evaluation) -> set[str]:
    """Workers for which `when` has held for long enough, whatever else is against their going."""
    return {f.subject for f in evaluation.findings if f.verdict is Verdict.ACT or f.gate not in ("when", "for", "workers.where")}


def previewed(folder: Path, policies: PolicySet, live: Snapshot) -> Recording:
    """As `look` puts it together."""
    times = past(live.at, horizon(policies), TICK)
    kept = series(folder, times[0], live.at, TICK)
    instants = [*times, live.at]
    history = history_of(times, live.at, during(kept, instants), kept.pictured(instants), [Samples()] * len(instants))
    return Recording.of(live, history, sightings=kept.sightings)


@given(CHANGES, IMAGES, st.sampled_from(WHENS), st.sampled_from([10, 40, 90]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_preview_agrees_with_the_engine_that_looked_all_the_time(changes, images, when, lasts, always):
    policies = wanting(when, f"{lasts}s")
    looks = with_images(seen_by_engine(changes, always), images, frozenset({0, 3}))
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
    live = with_images([snapshot(BEGIN, ("a", "a"), False, "x")], [(-10, "d0", 99)])[0]
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


def test_new_images_of_workers_that_run_are_no_new_fleet_and_conditions_on_them_have_held(tmp_path: Path) -> None:
    """They come every few minutes from each worker, and are kept track of by themselves."""
    live = snapshot(BEGIN, ("a", ""), False, "x")

    def at(after: float, of: str) -> Snapshot:
        images = (image(f"i{after}", of, BEGIN + after),)
        return msgspec.structs.replace(live, at=BEGIN + after, fleet=msgspec.structs.replace(live.fleet, images=images))

    engine = Sightings(tmp_path, TICK)
    for after in range(60):
        engine.note(at(after, "d0"), 0.0)
    assert len(series(tmp_path, BEGIN, BEGIN + 60, TICK).sightings) == 1
    for when, gate in (
        ("worker.images >= 1", ""),
        ("worker.imageAge < 1.0", ""),
        ("worker.imageAge > 0.0", "when"),
        ("worker.images > 1", "when"),
    ):
        policies = wanting(f'{when} && node.id == "a"', "30s")
        shown = decided(policies, Seen(recording=previewed(tmp_path, policies, at(60, "d0"))), rules=RULES)
        (found,) = [f for f in shown.evaluation.findings if f.subject == "d0"]
        assert (found.gate == gate) if gate else (found.verdict is Verdict.ACT), (when, found)
        assert not shown.remarks
    engine.note(at(60, "d1"), 0.0)
    engine.close()
    assert len(series(tmp_path, BEGIN, BEGIN + 60, TICK).sightings) == 2, "one that is lost can be brought back from its image"


def test_of_the_past_too_an_image_that_isnt_to_be_trusted_counts_as_none(tmp_path: Path) -> None:
    live = snapshot(BEGIN, ("a", ""), False, "x")
    images = (image("good", "d0", BEGIN - 50.0), image("bad", "d0", BEGIN - 1.0, "XID 31"))

    def at(after: float) -> Snapshot:
        return msgspec.structs.replace(live, at=BEGIN + after, fleet=msgspec.structs.replace(live.fleet, images=images))

    engine = Sightings(tmp_path, TICK)
    for after in range(60):
        engine.note(at(after), 0.0)
    engine.close()
    policies = wanting('worker.images == 1 && worker.imageAge > 49.0 && node.id == "a"', "30s")
    shown = decided(policies, Seen(recording=previewed(tmp_path, policies, at(60))), rules=RULES)
    (found,) = [f for f in shown.evaluation.findings if f.subject == "d0"]
    assert found.verdict is Verdict.ACT, found


@pytest.mark.parametrize("when", ["worker.images > 0", "worker.imageAge < 3000.0"])
def test_where_nobody_kept_track_of_images_it_is_said_which_conditions_count_from_when(tmp_path: Path, when: str) -> None:
    """As in a folder of an engine that knew nothing of it: its fleets are there."""
    live = with_images([snapshot(BEGIN + 100, ("a", "a"), False, "x")], [(0, "d0", 999)])[0]
    engine = Sightings(tmp_path, TICK)
    for tick in range(100):
        engine.note(msgspec.structs.replace(live, at=BEGIN + tick), 60.0)
    engine.close()
    with contextlib.closing(sqlite3.connect(sightings_path(tmp_path))) as db:
        db.executescript("DROP TABLE images; DROP TABLE images_known")
    policies = wanting(f'{when} && node.id == "a"', "30s")
    shown = decided(policies, Seen(recording=previewed(tmp_path, policies, live)), rules=RULES)
    assert not begins(shown.evaluation)
    (remark,) = shown.remarks
    assert remark.startswith("How many images workers had at 2027-01-15 08:01:39 UTC and before")
    assert "(leave)" in remark
    (found,) = [f for f in shown.evaluation.findings if f.subject == "d0"]
    assert found.gate == "for"
    assert "it was undecided before (no value for worker.image" in found.evidence[-1].detail
    assert not decided(wanting('node.id == "a"', "30s"), Seen(recording=previewed(tmp_path, policies, live)), rules=RULES).remarks


def test_images_of_before_a_gap_or_a_new_engine_are_known_for_as_long_as_it_looked(tmp_path: Path) -> None:
    live = snapshot(BEGIN, ("a", "a"), False, "x")
    for first, last in ((0, 30), (31, 60), (80, 99)):  # the second begins where the first ends, the third after a gap
        engine = Sightings(tmp_path, TICK)
        for tick in range(first, last + 1):
            looked = with_images([msgspec.structs.replace(live, at=BEGIN + tick)], [(0, "d0", 90), (20, "d0", 20), (35, "d1", 40)])[0]
            assert engine.note(looked, 60.0) is None
        engine.close()
    kept = series(tmp_path, BEGIN, BEGIN + 99, TICK)
    known = kept.pictured([BEGIN + tick for tick in (0, 10, 25, 50, 60, 85, 95)])
    assert [one[-1] if one else None for one in known] == [
        {"d0": (1, 0.0)},
        {"d0": (1, 10.0)},
        {"d0": (2, 5.0)},
        {"d0": (1, 50.0), "d1": (1, 15.0)},
        {"d0": (1, 60.0), "d1": (1, 25.0)},
        {"d0": (1, 85.0)},
        {},
    ]
    assert known[3] is not None
    of_d0 = [layer["d0"] for layer in known[3][:-1]]
    assert of_d0 == [(2, 10.0), (2, 11.0), (2, 19.0), (1, 40.0)], (
        "as engines ended and began, when one was there last, and when it was gone"
    )
    assert Pictures().during([BEGIN]) == [None]


@pytest.mark.parametrize(("without", "acts"), [((0, 0), True), ((0, 90), False), ((60, 75), False), ((10, 30), True)])
@pytest.mark.parametrize("query", ["DynamoGraphDeployment ns/g: decode", "desired_replicas"])
def test_what_a_resource_wanted_of_pools_is_known_of_the_past(tmp_path: Path, query: str, without: tuple[int, int], acts: bool) -> None:
    """Prometheus has what planners publish, and nothing of what stands in a resource."""
    text = (
        "apiVersion: shunter.dev/v1alpha1\nkind: ReassignmentPolicy\nmetadata: {name: follow}\n"
        "spec: {workers: {all: true}, from: decode, to: prefill, follow: planner, for: 60s, sessions: park}\n"
    )
    files = (SourceFile(path="a.yaml", blob="b", data=text.encode()),)
    policies = load_policies(Revision(commit=Commit("c" * 40), committed_at=None, files=files), None)
    live = snapshot(BEGIN, ("a", ""), False, "x")
    away = msgspec.structs.replace(live.fleet.workers[1], role="prefill", state=WorkerState.PARKED)
    fleet = msgspec.structs.replace(live.fleet, workers=(live.fleet.workers[0], away), images=(image("i", "d1", BEGIN - 9),))

    def look(tick: int) -> Snapshot:
        wanted = {"g/decode": 1.0, "g/prefill": 0.0 if without[0] <= tick < without[1] else 1.0}
        pools = {p: {"desired": Known(value=v, unit="workers", at=BEGIN + tick, query=query)} for p, v in wanted.items()}
        return msgspec.structs.replace(live, at=BEGIN + tick, fleet=fleet, samples=Samples(pools=pools))

    looks = [look(tick) for tick in range(101)]
    engine = Sightings(tmp_path, TICK)
    for one in looks[:-1]:
        assert engine.note(one, 60.0) is None
    engine.close()
    shown = decided(policies, Seen(recording=previewed(tmp_path, policies, looks[-1])), rules=RULES).evaluation
    said = evaluate(policies, looks, EngineState(), looks[-1].at, RULES)
    assert bool(begins(said)) is acts
    if query.startswith("Dynamo"):
        assert begins(shown) == begins(said)
    else:
        assert not begins(shown), "here Prometheus had no history of it"


def test_no_more_images_are_kept_track_of_than_a_limit_allows_and_what_is_forgotten_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MOST", 50)
    engine, live = Sightings(tmp_path, TICK), snapshot(BEGIN, ("a", "a"), False, "x")
    for tick in range(200):
        at = BEGIN + tick
        fleet = msgspec.structs.replace(live.fleet, images=(image(f"i{tick}", "d0", at),))
        engine.note(msgspec.structs.replace(live, at=at, fleet=fleet), 0.0)
    engine.close()
    with contextlib.closing(sqlite3.connect(sightings_path(tmp_path))) as db:
        (count,) = db.execute("SELECT count(*) FROM images").fetchone()
    assert count <= 50 + 60, "swept once a minute"
    kept = series(tmp_path, BEGIN, BEGIN + 200, TICK).pictured([BEGIN + tick for tick in (0, 50, 150, 199)])
    assert kept[:2] == [None, None]
    assert kept[3] is not None
    assert kept[3][-1] == {"d0": (1, 0.0)}


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
