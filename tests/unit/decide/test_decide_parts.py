"""The parts of deciding on their own: `for`, scopes, assignment, ids, explanations."""

import msgspec
import pytest
from decide_world import (
    NOW,
    PyRules,
    begun,
    checkpoints,
    decide,
    ex,
    finding,
    image,
    node,
    notice,
    operation,
    policy_set,
    preemption,
    reassignment,
    snap,
    worker,
)
from shunter.decide.assign import assign
from shunter.decide.conflict import Ledger
from shunter.decide.evaluate import evaluate
from shunter.decide.explain import explain
from shunter.decide.hold import held, tolerance
from shunter.decide.jobs import Job, Option
from shunter.decide.place import place, timetable
from shunter.decide.plan import operation_id, round_of
from shunter.decide.scope import Scopes
from shunter.decide.world import World
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState
from shunter.model.plan import OperationKind
from shunter.model.policy import WorkerSelector
from shunter.model.sample import Known, Missing, Stale
from shunter.model.snapshot import WorkerState
from shunter.model.vocabulary import VARIABLES


@pytest.mark.parametrize(
    ("answers", "needed", "since", "remaining"),
    [
        ([(0, True), (2, True), (4, True)], 4, 0, 0),
        ([(0, True), (2, True), (4, True)], 5, 0, 1),
        ([(0, False), (2, True), (4, True)], 4, 2, 2),
        ([(0, None), (2, True), (4, True)], 2, 2, 0),
        ([(0, True), (2, True), (4, False)], 0, None, 0),
        ([(4, True)], 0, 4, 0),
        ([(4, None)], 0, None, 0),
        ([], 3, None, 3),
        ([(0, True), (2, True), (4, True), (6, True), (20, True), (22, True)], 10, 20, 8),
        ([(0, True), (5, True)], 5, 0, 0),
    ],
)
def test_held(answers, needed, since, remaining):
    result = held(answers, answers[-1][0] if answers else 0, needed)
    assert (result.since, result.remaining) == (since, remaining)


def test_what_was_not_looked_at_has_not_held():
    answers = [(0.0, True), (2.0, True), (4.0, True)]
    assert held(answers, 30.0, 4).remaining == 4
    assert "more than 6 s old" in held(answers, 30.0, 4).why


def test_a_gap_is_three_median_steps_but_never_under_five_seconds():
    assert tolerance([0, 1, 2, 3]) == 5
    assert tolerance([0, 30, 60, 90]) == 90


def scope_of(snapshot, policy=None):
    return Scopes(World(snapshot)).worker(policy or preemption(), snapshot.fleet.workers[0], notice=next(iter(snapshot.notices), None))


def test_scopes_bind_exactly_the_vocabulary():
    full = dict.fromkeys(("running", "waiting", "kvUsage", "sessions", "kvTokens"), 1)
    bound = scope_of(snap([node("a", ("decode-0",))], [worker("decode-0", "a/0")], notices=[notice("a")], samples={"decode-0": full}))
    assert set(bound) == set(VARIABLES)


def test_pool_figures():
    workers = [
        worker("decode-0", "a/0"),
        worker("decode-1", "a/1"),
        worker("decode-2", "a/2", state=WorkerState.FENCED),
        worker("decode-3", "a/3", state=WorkerState.FROZEN),
        worker("decode-4"),
        worker("decode-5"),
        worker("decode-6", graph="other"),
    ]
    samples = {"decode-0": {"waiting": 3, "kvUsage": 0.2}, "decode-1": {"waiting": 4, "kvUsage": 0.6}}
    fleet = [node("a", ("decode-0", "decode-1", "decode-2", "decode-3", None))]
    scope = scope_of(snap(fleet, workers, [image("i", workers[4], "a"), image("i2", workers[6], "a")], samples=samples))
    assert (scope["pool.workers"], scope["pool.parked"]) == (3, 1)
    assert (scope["pool.waiting"].value, scope["pool.kvUsage"].value) == (7, pytest.approx(0.4))
    assert scope["pools.decode.waiting"] == scope["pool.waiting"]
    assert scope["pools.prefill.waiting"].value == 0, "a pool without workers has nothing waiting"
    assert isinstance(scope["pools.prefill.kvUsage"], Missing), "but no usage"
    assert isinstance(scope["pool.sessions"], Missing)
    assert scope["node.freeSlots"] == 1
    stale = {**samples, "decode-1": {"waiting": Stale(value=4, age=99, max_age=30, query="q")}}
    assert "decode-1: stale" in scope_of(snap(fleet, workers, samples=stale))["pool.waiting"].reason


def test_image_age_is_unknown_without_an_image():
    w = worker("decode-0", "a/0")
    assert isinstance(scope_of(snap([node("a")], [w]))["worker.imageAge"], Missing)
    aged = scope_of(snap([node("a")], [w], [image("i", w, "a", at=NOW - 7), image("j", w, "a", at=NOW - 9)]))
    assert (aged["worker.imageAge"], aged["worker.images"]) == (7, 2)


def test_assignment_is_the_cheapest_and_respects_what_may_not_be():
    assert assign([[4, 1, 3], [2, 0, 5], [3, 2, 2]]) == [1, 0, 2]
    assert assign([[1, None], [1, 5]]) == [0, 1]
    assert assign([[1, None], [1, None]]) is None
    assert assign([[1], [2]]) is None
    assert assign([]) == []


def test_a_few_small_workers_beat_one_large_one_if_they_are_worth_more():
    options = {w: {s: Option() for s in ("x/0", "x/1", "x/2")} for w in ("big", "s1", "s2")}
    jobs = [
        Job(worker="big", value=10, lane="a", occupy=60, limit=NOW + 60),
        Job(worker="s1", value=8, lane="a", occupy=30, limit=NOW + 60),
        Job(worker="s2", value=8, lane="a", occupy=30, limit=NOW + 60),
    ]
    result = place(jobs, options, {}, NOW)
    assert set(result.slots) == {"s1", "s2"}
    assert result.late == ("big",)


def test_the_shortest_restore_goes_last():
    jobs = [Job(worker="a", lane="n", occupy=10, tail=1, limit=NOW + 40), Job(worker="b", lane="n", occupy=10, tail=20, limit=NOW + 40)]
    assert timetable(jobs, {}, NOW) == {"b": NOW + 30, "a": NOW + 21}
    assert timetable(jobs, {"n": 15}, NOW) is None


def test_a_slot_is_cleared_for_a_worker_that_fits_nowhere_else():
    options = {"w1": {"x/0": Option(prefer=9), "y/0": Option(prefer=1)}, "w2": {"x/0": Option(prefer=9)}}
    result = place([Job(worker="w1", value=2), Job(worker="w2", value=1)], options, {}, NOW)
    assert result.slots == {"w1": "y/0", "w2": "x/0"}


def test_the_ledger_refuses_a_second_claim():
    ledger = Ledger([begun(operation(OperationKind.MOVE, "w1", from_slot="a/0", to_slot="b/0"))])
    for bad in (
        operation(OperationKind.PARK, "w1"),
        operation(OperationKind.RESTORE, "w2", to_slot="b/0"),
        operation(OperationKind.RESTORE, "w2", to_slot="a/0"),
    ):
        with pytest.raises(ValueError, match=r"taken|busy"):
            ledger.take(bad)
    leave = operation(OperationKind.PARK, "w3", from_slot="c/0")
    ledger.take(leave)
    with pytest.raises(ValueError, match="c/0 is taken"):
        ledger.take(operation(OperationKind.RESTORE, "w4", to_slot="c/0"))
    ledger.take(operation(OperationKind.RESTORE, "w4", to_slot="c/0", after=(leave.id,)))
    assert ledger.blocked("w4") == "outranked by other"


def test_ids_differ_in_every_part():
    base = (OperationKind.MOVE, "w", 0, "c", 0)
    others = [(OperationKind.PARK, "w", 0, "c", 0), (OperationKind.MOVE, "v", 0, "c", 0), (OperationKind.MOVE, "w", 1, "c", 0)]
    others += [(OperationKind.MOVE, "w", 0, "d", 0), (OperationKind.MOVE, "w", 0, "c", 1)]
    assert len({operation_id(*parts) for parts in (base, *others)}) == 6
    assert operation_id(*base) == "move-" + operation_id(*base)[5:]
    assert (round_of("c", NOW, NOW + 3599), round_of("c", NOW, NOW + 3600)) == ("c", "c+1h")


def test_explain_gives_the_first_gate_its_value_and_since_when():
    workers = [worker("decode-0", "a/0"), worker("decode-1")]
    world = snap([node("a", ("decode-0",))], workers, [image("i", workers[0], "a", at=NOW - 12)], samples={"decode-0": {"sessions": 3}})
    policies = [
        checkpoints(),
        preemption("p-role", workers=WorkerSelector(role="prefill")),
        preemption("p-where", workers=WorkerSelector(where=ex('v("worker.sessions") > 5'))),
        preemption("q-notice"),
        preemption("r-off", mode="off"),
        reassignment("s-shift"),
    ]
    told = {e.policy: e for e in explain(decide(policies, world), policy_set(*policies), world, "decode-0")}
    assert {n: e.gate for n, e in told.items()} == {
        "images": "every",
        "p-role": "workers.role",
        "p-where": "workers.where",
        "q-notice": "notices",
        "r-off": "mode",
        "s-shift": "when",
    }
    assert "12 s old, every 30s" in told["images"].value
    assert (told["p-where"].expression, told["p-where"].value) == ('v("worker.sessions") > 5', "worker.sessions = 3")
    assert (told["s-shift"].subject, told["s-shift"].value) == ("tiny", "pools.prefill.waiting = 0 requests")
    with pytest.raises(KeyError):
        explain(decide(policies, world), policy_set(*policies), world, "nobody")


def test_explain_shows_what_is_done():
    world = snap([node("a", ("decode-0",)), node("b")], [worker("decode-0", "a/0")], notices=[notice("a")])
    (one,) = explain(decide([preemption()], world), policy_set(preemption()), world, "decode-0")
    assert (one.verdict, one.since, one.operations[0].to_slot) == (Verdict.ACT, NOW - 2, "b/0")


def test_evaluate_needs_snapshots_in_order():
    with pytest.raises(ValueError, match="no snapshot"):
        evaluate(policy_set(), [], EngineState(), NOW, PyRules())
    with pytest.raises(ValueError, match="order"):
        evaluate(policy_set(), [snap([], at=2), snap([], at=1)], EngineState(), NOW, PyRules())


def test_reasons_of_findings_do_not_change_from_tick_to_tick():
    workers = [worker("decode-0", "a/0"), worker("decode-1", "b/0"), worker("prefill-0")]
    fleet = [node("a", ("decode-0",)), node("b", ("decode-1",))]
    images = [image("i", workers[1], "b", at=NOW - 3)]
    policies = [preemption(mode="preview"), checkpoints(), reassignment(when=ex('v("pools.decode.waiting") > 1'))]

    def reasons(now):
        late = Missing(reason="Prometheus is away")
        world = snap(fleet, workers, images, [notice("a", 100)], samples={"decode-0": {"waiting": late}}, at=now)
        return [(f.policy, f.subject, f.reason) for f in decide(policies, world, now=now).findings]

    assert reasons(NOW) == reasons(NOW + 5)


def test_evidence_carries_the_samples_that_were_read():
    world = snap([], [worker("prefill-0", "a/0")], samples={"prefill-0": {"waiting": 4}})
    (seen,) = finding(decide([reassignment()], world), "tiny").evidence
    assert isinstance(seen.inputs[0].sample, Known)
    assert (seen.result, seen.expression, seen.inputs[0].sample.value) == (False, 'v("pools.prefill.waiting") > 30', 4)
    assert msgspec.json.decode(msgspec.json.encode(seen))["inputs"][0]["sample"]["is"] == "known"
