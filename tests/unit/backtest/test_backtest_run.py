"""A backtest over made-up samples: what is decided happens, and is priced, counted and drawn."""

import io
import os
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console
from shunter.backtest.outcome import settled
from shunter.backtest.price import Defaults, Prices
from shunter.backtest.run import Run
from shunter.backtest.world import Simulated
from shunter.decide.profile import Profile
from shunter.lang.cel import CelRules
from shunter.lang.load import load
from shunter.model.backtest import Act, Backtest, Instead
from shunter.model.finding import Verdict
from shunter.model.ids import Commit, Digest, Incarnation, NodeId, NoticeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import EngineState, Status
from shunter.model.plan import Estimate, OperationKind, Plan, PlannedOperation, Preconditions
from shunter.model.policy import PolicySet
from shunter.model.sample import Known, Missing, Sample
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Samples, Slot, Worker, WorkerState
from shunter.model.source import Revision, SourceFile
from shunter.report.backtest import backtest_json, backtest_markdown, backtest_text
from shunter.report.drawing import svg
from shunter.report.markdown import LIMIT
from shunter.report.timeline import timeline

GOLDEN = Path(__file__).parents[2] / "golden"
NOW, STEP, GB = 1_800_000_000.0, 30.0, 10**9
HEAD = "apiVersion: shunter.dev/v1alpha1\nkind: "
SAVE = HEAD + "PreemptionPolicy\nmetadata: {name: save}\nspec: {workers: {graph: g}, notices: [preemption]}\n"
EMPTY = (
    HEAD + 'RebalancePolicy\nmetadata: {name: empty-a}\nspec:\n  workers: {role: decode}\n  when: node.id == "a"\n  for: 1m\n'
    '  cooldown: 1h\n  step: 3\n  to: {where: node.id != "a"}\n'
)
PROFILE = Profile(gpu_restore_floor_s=0.0)


def policies(*texts: str) -> PolicySet:
    data = "---\n".join(texts).encode()
    found = load(Revision(commit=Commit("c" * 40), committed_at=None, files=(SourceFile(path="a.yaml", blob="b", data=data),)), None)
    assert not found.problems, found.problems
    return found


def worker(name: str, slot: str | None, state: WorkerState = WorkerState.RUNNING) -> Worker:
    return Worker(
        id=WorkerId(name), role="prefill" if name[0] == "p" else "decode", graph="g", engine="vllm", state=state,
        node=NodeId(slot[0]) if slot else None, slot=SlotId(slot) if slot else None, incarnation=Incarnation(0), memory=10 * GB,
    )  # fmt: skip


def fleet(*workers: Worker, images: tuple[Image, ...] = ()) -> Fleet:
    held = {w.slot: w.id for w in workers}
    nodes = tuple(
        Node(
            id=NodeId(n),
            slots=tuple(Slot(id=SlotId(f"{n}/{k}"), gpus=8, gpu_model="B200", worker=held.get(SlotId(f"{n}/{k}"))) for k in range(2)),
        )
        for n in "abc"
    )
    return Fleet(nodes=nodes, workers=tuple(sorted(workers, key=lambda w: w.id)), images=images)


BEGUN = fleet(worker("d0", "a/0"), worker("d1", "a/1"), worker("d2", "b/0"), worker("p0", "c/0"))


def samples(at: float, **given: float | None) -> Samples:
    def one(value: float | None, name: str) -> Sample:
        return Missing(reason="no data") if value is None else Known(value=value, unit="1", at=at, query=name)

    figures = {"sessions": 4.0, "kvTokens": 100_000.0, "waiting": 1.0, "kvUsage": 0.5, "running": 1.0} | given
    return Samples(workers={w: {name: one(value, name) for name, value in figures.items()} for w in ("d0", "d1", "d2", "p0")})


def run(
    set_: PolicySet, steps: int, *, notices: tuple[Notice, ...] = (), begun: Fleet = BEGUN, **given: float | None
) -> tuple[Run, Backtest]:
    made = Run(set_, begun, notices, CelRules(), PROFILE, begin=NOW, end=NOW + (steps - 1) * STEP, step=STEP)
    for n in range(steps):
        made.step(NOW + n * STEP, samples(NOW + n * STEP, **given))
    return made, made.result(("A remark",))


def notice(lead: float | None = 120.0, node: str = "a", at: float = NOW + 60) -> Notice:
    deadline = None if lead is None else at + lead
    return Notice(id=NoticeId(f"n-{node}"), kind=NoticeKind.PREEMPTION, node=NodeId(node), seen_at=at, deadline=deadline)


def acts(found: Backtest) -> list[tuple[float, str, str]]:
    return [(a.at - NOW, a.operation.kind.value, a.operation.worker) for a in found.acts]


def test_a_worker_that_was_moved_is_not_moved_again() -> None:
    made, found = run(policies(SAVE), 20, notices=(notice(),))
    assert acts(found) == [(60.0, "move", "d0"), (60.0, "move", "d1")]
    where = {w.id: (w.node, w.state, w.incarnation) for w in made.world.fleet.workers}
    assert where["d0"][0] != "a"
    assert where["d0"][1:] == (WorkerState.RUNNING, 1)
    assert found.lost == ()
    assert found.kept == (8.0, 200_000.0, 0)
    assert not next(n for n in made.world.fleet.nodes if n.id == "a").slots


def test_who_is_left_at_the_deadline_is_lost() -> None:
    crowded = fleet(*(worker(f"d{n}", slot) for n, slot in enumerate(("a/0", "a/1", "b/0", "b/1", "c/0"))))
    _, found = run(
        policies(HEAD + "PreemptionPolicy\nmetadata: {name: save}\nspec: {workers: {graph: g}, notices: [preemption], otherwise: []}\n"),
        20,
        notices=(notice(),),
        begun=crowded,
    )
    assert [a[2] for a in acts(found)] == ["d0"]
    assert [(gone.worker, gone.node, gone.sessions) for gone in found.lost] == [("d1", "a", 4.0)]


def test_without_notices_nothing_is_saved_and_without_values_nothing_voluntary_is_done() -> None:
    _, found = run(policies(SAVE, EMPTY), 10, sessions=None)
    assert [t.policy for t in found.tallies] == ["empty-a", "save"]
    when = HEAD + "CheckpointPolicy\nmetadata: {name: i}\nspec: {workers: {all: true}, every: 5m, when: worker.kvUsage > 0.1}\n"
    _, blind = run(policies(when), 10, kvUsage=None)
    assert blind.acts == ()
    tally = blind.tallies[0]
    assert tally.steps == {Verdict.INCONCLUSIVE: 10}
    assert tally.inputs_missing == ("when",)
    _, sighted = run(policies(when), 10)
    assert {a[1] for a in acts(sighted)} == {"checkpoint"}


def test_a_policy_in_preview_is_shown_once_and_changes_nothing() -> None:
    set_ = policies(SAVE.replace("spec: {", "spec: {mode: preview, "))
    made, found = run(set_, 5, notices=(notice(),))
    assert [(a.operation.preview, a.operation.worker) for a in found.acts] == [(True, "d0"), (True, "d1")]
    assert next(w for w in made.world.fleet.workers if w.id == "d0").slot == "a/0"
    assert found.kept == (0.0, 0.0, 0)
    assert found.prices[0].acts == 0


def operation(kind: OperationKind, of: str = "d0", after: tuple[str, ...] = (), **more) -> PlannedOperation:
    fields = {"lane": "voluntary", "policy": PolicyName("p"), "reason": "r", "estimate": Estimate(stopped=10.0, total=20.0)} | more
    return PlannedOperation(
        id=OperationId(f"{kind.value}-{of}"),
        kind=kind,
        worker=WorkerId(of),
        expect=Preconditions(incarnation=Incarnation(0)),
        after=tuple(OperationId(a) for a in after),
        **fields,  # type: ignore[arg-type]
    )


def plan(*operations: PlannedOperation) -> Plan:
    return Plan(at=NOW, commit=Commit("c"), policy_set=Digest("sha256:p"), snapshot=Digest("sha256:s"), operations=operations)


def test_what_operations_do_to_the_world() -> None:
    world = Simulated(BEGUN, EngineState())
    chain = (
        operation(OperationKind.PARK, "p0", from_slot="c/0", copies=("b",)),
        operation(OperationKind.MOVE, "d0", ("park-p0",), from_slot="a/0", to_slot="c/0"),
        operation(OperationKind.CHECKPOINT, "d2", copies=("a", "b")),
        operation(OperationKind.DRAIN, "d1", from_slot="a/1"),
    )
    assert world.begin(plan(*chain), NOW) == list(chain)
    assert world.begin(plan(*chain), NOW + 1) == [], "begun once"
    assert [r.waits for r in world.state(NOW).active] == [False, True, False, False]
    world.advance(NOW + 20)
    workers = {w.id: w for w in world.fleet.workers}
    assert workers["p0"].state is WorkerState.PARKED
    assert workers["d0"].slot == "a/0", "its turn came when the slot was free, and it takes what it stands still for"
    assert "d1" not in workers
    world.advance(NOW + 30)
    assert {w.id: w.slot for w in world.fleet.workers} == {"d0": "c/0", "d2": "b/0", "p0": None}
    assert sorted((i.worker, i.nodes) for i in world.fleet.images) == [("d2", ("a", "b")), ("p0", ("b",))]
    held = {s.id: s.worker for n in world.fleet.nodes for s in n.slots if s.worker}
    assert held == {"b/0": "d2", "c/0": "d0"}
    assert {r.status for r in world.state(NOW + 30).recent} == {Status.SUCCEEDED}
    assert world.state(NOW + 30 + 3601).recent == ()
    discard = operation(OperationKind.DISCARD, "d2", image=world.fleet.images[0].id)
    world.begin(plan(discard), NOW + 40)
    world.advance(NOW + 100)
    assert len(world.fleet.images) == 1
    world.state(NOW + 9000)
    assert world.begin(plan(discard), NOW + 9000) == [], "an id is used once, however long ago"


def test_a_node_that_is_taken_away_takes_its_workers_images_and_operations() -> None:
    image = Image(
        id="i",
        worker=WorkerId("d2"),
        incarnation=Incarnation(0),
        taken_at=NOW,
        bytes=1,
        nodes=(NodeId("a"), NodeId("b")),
        role="decode",
        graph="g",
        engine="e",
    )  # type: ignore[arg-type]
    world = Simulated(
        msgspec.structs.replace(
            BEGUN,
            images=(
                image,
                msgspec.structs.replace(image, id="j", nodes=(NodeId("a"),)),
                msgspec.structs.replace(image, id="k", nodes=(NodeId("a"),), archived=True),
            ),
        ),
        EngineState(),
    )
    chain = (
        operation(OperationKind.PARK, "d0", from_slot="a/0", copies=("b",)),
        operation(OperationKind.MOVE, "d2", ("park-d0",), to_slot="a/0"),
    )
    world.begin(plan(*chain), NOW)
    assert [w.id for w in world.take_away(NodeId("a"), NOW + 5)] == ["d0", "d1"]
    assert [(i.id, i.nodes) for i in world.fleet.images] == [("i", ("b",)), ("k", ())]
    assert {r.id: r.status for r in world.state(NOW + 5).recent} == {"park-d0": Status.FAILED, "move-d2": Status.SUPERSEDED}
    world.advance(NOW + 100)
    assert {w.id: w.state for w in world.fleet.workers}["d0"] is WorkerState.LOST


def test_undoing_is_counted() -> None:
    made = Run(policies(SAVE), BEGUN, (), CelRules(), PROFILE, begin=NOW, end=NOW + 10, step=STEP)

    def act(at: float, kind: OperationKind, **more) -> Act:
        planned = operation(kind, **more)
        found = Act(at=at, operation=planned, sessions=None, tokens=None, undoes=made._undoes(planned, at))
        made._note([found])
        return found

    assert not act(NOW, OperationKind.MOVE, from_slot="a/0", to_slot="b/1").undoes
    assert not act(NOW + 10, OperationKind.MOVE, from_slot="b/1", to_slot="c/1").undoes
    assert act(NOW + 20, OperationKind.MOVE, from_slot="c/1", to_slot="a/0").undoes
    assert not act(NOW + 30, OperationKind.MOVE, from_slot="a/0", to_slot="b/1", lane="involuntary").undoes, "it had to"
    assert not act(NOW + 4000, OperationKind.PARK, from_slot="b/1").undoes
    assert act(NOW + 4010, OperationKind.RESTORE, to_slot="b/1").undoes
    assert not act(NOW + 8000, OperationKind.PARK, from_slot="b/1").undoes, "an hour is long enough"


def priced(
    tokens: float | None = 100_000.0,
    kind: OperationKind = OperationKind.MOVE,
    stopped: float | None = 10.0,
    instead: Instead = "teardown",
    **more,
) -> dict[str, tuple]:
    planned = msgspec.structs.replace(operation(kind, **more), estimate=Estimate(stopped=stopped))
    act = Act(
        at=NOW, operation=planned, sessions=1.0, tokens=tokens, gpus=8, gpu_model="B200", instead=instead, still=stopped, idle=stopped
    )
    figures = Defaults(native_start=400.0, peer_start=100.0, flip=1.0, prefill_rate_per_gpu=1000.0, stored=0.9)
    return {p.baseline: (p.spent, p.instead, p.acts, p.unpriced) for p in Prices((), PROFILE, figures).of([act])}


def test_prices_against_the_four_ways() -> None:
    again = 100_000 / 8_000
    assert priced() == {
        "cold start": (80.0, pytest.approx(8 * (400 + again)), 1, 0),
        "weights and artifacts from a peer": (80.0, pytest.approx(8 * (100 + again)), 1, 0),
        "KV store and cold start": (80.0, pytest.approx(8 * (400 + 0.1 * again)), 1, 0),
        "flip in place": (0.0, 0.0, 0, 1),
        "doing nothing": (0.0, 0.0, 0, 0),
        "taking no images": (0.0, 0.0, 0, 0),
    }
    assert priced(kind=OperationKind.PARK)["flip in place"] == (80.0, pytest.approx(8 * (1 + again)), 1, 0)
    assert priced(kind=OperationKind.PARK, lane="involuntary")["flip in place"][2:] == (0, 1)


def test_images_cost_what_workers_stood_still_for_them_and_save_nothing_that_is_known() -> None:
    found = priced(kind=OperationKind.CHECKPOINT, stopped=3.0, instead="nothing")
    assert found.pop("taking no images") == (24.0, 0.0, 1, 0)
    assert {p for p in found.values()} == {(0.0, 0.0, 0, 0)}, "nobody was carried elsewhere"
    assert priced(kind=OperationKind.CHECKPOINT, stopped=None)["taking no images"] == (0.0, 0.0, 0, 1)


@pytest.mark.parametrize("lacking", [{"tokens": None}, {"stopped": None}])
def test_what_is_not_known_is_not_priced(lacking: dict) -> None:
    assert {p[2:] for way, p in priced(**lacking).items() if way not in ("doing nothing", "taking no images")} == {(0, 1)}
    assert {p[:2] for p in priced(**lacking).values()} == {(0.0, 0.0)}


def test_what_nobody_would_have_touched_is_not_saved_by_moving_it() -> None:
    _, found = run(policies(EMPTY), 20)
    moves = [a for a in found.acts if a.operation.kind is OperationKind.MOVE]
    assert len(moves) == 2
    assert {a.instead for a in moves} == {"nothing"}
    assert found.kept == (0.0, 0.0, 0)
    *four, nothing, _ = found.prices
    assert [(p.acts, p.spent, p.saved) for p in four] == [(0, 0.0, 0.0)] * 4
    spent = sum(8 * (a.operation.estimate.stopped or 0.0) for a in moves)
    assert spent > 0
    assert (nothing.acts, nothing.saved) == (2, pytest.approx(-spent))
    out = io.StringIO()
    backtest_text([found], Console(file=out, width=140))
    assert "0 sessions with 0 tokens of context kept; 2 workers carried elsewhere by choice would have lost nothing" in out.getvalue()


def test_a_worker_that_is_carried_to_and_fro_costs_more_each_time() -> None:
    """Also by policies that change roles, whose single steps would have replaced teardowns."""
    there, back = {"from_slot": "a/0", "to_slot": "b/0"}, {"from_slot": "b/0", "to_slot": "a/0"}
    found = outcomes(*((600 * n, OperationKind.MOVE, back if n % 2 else there) for n in range(8)))
    assert found == [("nothing", 10.0)] * 8


def outcomes(*given: tuple[float, OperationKind, dict], shifts: tuple[str, ...] = ("p",)) -> list[tuple[str, float | None]]:
    """What became of acts on one worker within two hours; `undoes` as `run` would have found it."""
    made = Run(policies(SAVE), BEGUN, (), CelRules(), PROFILE, begin=NOW, end=NOW + 7200, step=STEP)
    for after, kind, more in given:
        planned = operation(kind, **more)
        made._note([Act(at=NOW + after, operation=planned, sessions=1.0, tokens=1.0, undoes=made._undoes(planned, NOW + after))])
    return [(a.instead, a.still) for a in settled(made._acts, NOW + 7200, {PolicyName(s) for s in shifts})]


def test_a_change_of_roles_replaces_a_teardown_unless_it_is_taken_back() -> None:
    park, restore = (OperationKind.PARK, {"from_slot": "a/0"}), (OperationKind.RESTORE, {"to_slot": "a/0"})
    assert outcomes((0, *park)) == [("teardown", 7200.0)], "parked to the end: it stands still to the end"
    assert outcomes((0, *park), (4000, *restore)) == [("teardown", 4020.0), ("teardown", 0.0)]
    assert outcomes((0, *park), (600, *restore)) == [("nothing", 620.0), ("nothing", 0.0)], "a flap"
    assert outcomes((0, *park), shifts=()) == [("nothing", 7200.0)]
    going = {"from_slot": "a/0", "lane": "involuntary"}
    assert outcomes((0, OperationKind.PARK, going), (60, *restore)) == [("loss", 80.0), ("teardown", 0.0)]
    assert outcomes((0, OperationKind.MOVE, {**going, "to_slot": "b/0"}), shifts=()) == [("loss", 10.0)]


def idled(*given: tuple[float, OperationKind, str, dict]) -> list[float | None]:
    """For how long GPUs did nothing for each of these acts, each on a worker, within two hours."""
    acts = [Act(at=NOW + after, operation=operation(kind, name, **more), sessions=1.0, tokens=1.0) for after, kind, name, more in given]
    return [a.idle for a in settled(acts, NOW + 7200, frozenset())]


def test_gpus_of_a_parked_worker_do_nothing_until_their_slot_serves_another() -> None:
    park, restore = OperationKind.PARK, OperationKind.RESTORE
    left = {"from_slot": "a/0"}
    assert idled((0, park, "d0", left)) == [7200.0], "nobody came"
    came = {"to_slot": "a/0"}
    assert idled((0, park, "d0", left), (0, restore, "p0", came)) == [20.0, 0.0], "the other is there once it is restored"
    assert idled((0, park, "d0", left), (0, restore, "p0", {**came, "after": ("park-d0",)})) == [30.0, 0.0], "it waits for the park first"
    assert idled((0, park, "d0", left), (300, OperationKind.MOVE, "d1", {"to_slot": "a/0"})) == [320.0, 10.0]
    assert idled((0, park, "d0", left), (300, restore, "p0", {"to_slot": "b/0"})) == [7200.0, 0.0], "that was another slot"
    assert idled((600, restore, "p0", {"to_slot": "a/0"}), (900, park, "d0", left)) == [0.0, 6300.0], "that was before"
    going = {"from_slot": "a/0", "lane": "involuntary"}
    assert idled((0, park, "d0", going), (500, restore, "d0", {"to_slot": "b/0"})) == [30.0, 0.0], "its GPUs are gone with the node"
    assert idled((0, park, "d0", going)) == [10.0]


def test_a_fleet_profile_gives_its_own_figures() -> None:
    profile = HEAD + "FleetProfile\nmetadata: {name: mine}\nspec: {gpuModel: B200, nativeStart: 100s, prefillRate: 50000}\n"
    act = Act(
        at=NOW,
        operation=operation(OperationKind.MOVE),
        sessions=1.0,
        tokens=100_000.0,
        gpus=8,
        gpu_model="B200",
        instead="loss",
        idle=10.0,
    )
    cold, peer, *_ = Prices(policies(profile).policies, PROFILE).of([act])
    assert cold.instead == pytest.approx(8 * (100 + 2))
    assert peer.instead == cold.instead, "nothing is slower from a peer"
    assert cold.saved == pytest.approx(8 * 102 - 80)


def test_what_a_budget_held_is_told_with_its_fullest_step() -> None:
    budget = HEAD + "DisruptionBudget\nmetadata: {name: gentle}\nspec: {workers: {all: true}, maxConcurrent: 1, per: all}\n"
    _, found = run(policies(EMPTY, budget), 20)
    (use,) = [u for u in found.budgets if u.policy == "gentle"]
    assert use.held > 0
    assert "1 of 1" in use.told
    assert {t.policy for t in found.tallies} == {"empty-a"}, "a budget doesn't act"


def same_as_golden(name: str, text: str) -> None:
    if os.environ.get("SHUNTER_GOLDEN") == "write":
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


@pytest.fixture(scope="module")
def shown() -> Backtest:
    budget = HEAD + "DisruptionBudget\nmetadata: {name: gentle}\nspec: {workers: {all: true}, maxConcurrent: 1, per: all}\n"
    images = HEAD + "CheckpointPolicy\nmetadata: {name: images}\nspec: {workers: {role: decode}, every: 5m, when: worker.kvUsage > 0.1}\n"
    return run(policies(SAVE, EMPTY, budget, images), 30, notices=(notice(node="b", at=NOW + 300),))[1]


def test_the_text_for_people(shown: Backtest) -> None:
    out = io.StringIO()
    backtest_text([shown], Console(file=out, width=140, color_system=None, force_terminal=False))
    same_as_golden("backtest.txt", out.getvalue())


def test_the_comment(shown: Backtest) -> None:
    same_as_golden("backtest.md", backtest_markdown([shown, shown], link="https://ci.example/7"))


def test_a_long_comment_is_cut(shown: Backtest) -> None:
    many = msgspec.structs.replace(shown, acts=shown.acts * 400)
    text = backtest_markdown([many])
    assert LIMIT * 0.98 < len(text.encode()) <= LIMIT
    assert "more lines left out here" in text


def test_json_has_all_but_the_picture(shown: Backtest) -> None:
    document = msgspec.json.decode(backtest_json([shown]))["backtests"][0]
    assert len(document["acts"]) == len(shown.acts)
    assert "points" not in document
    assert document["prices"][0]["saved"] == pytest.approx(shown.prices[0].saved)


def test_the_picture_is_whole_and_safe(shown: Backtest) -> None:
    nasty = msgspec.structs.replace(
        shown, tallies=tuple(msgspec.structs.replace(t, policy=PolicyName("<script>&\"'\x00")) for t in shown.tallies)
    )
    for one in (shown, nasty, msgspec.structs.replace(shown, points=(), acts=(), tallies=())):
        root = ElementTree.fromstring(svg(timeline(one)))
        assert {e.tag.rpartition("}")[2] for e in root.iter()} <= {"svg", "rect", "text", "polyline", "title"}
    titles = [e.text or "" for e in ElementTree.fromstring(svg(timeline(shown))).iter() if e.tag.endswith("title")]
    assert sum("move d" in t for t in titles) == sum(a.operation.kind is OperationKind.MOVE for a in shown.acts)
    assert len(svg(timeline(msgspec.structs.replace(shown, acts=shown.acts * 5000)))) < 2_000_000
