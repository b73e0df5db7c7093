"""A plan is carried out in the world that it was made for, and in no other: any changed precondition is refused, and said."""

from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.app.exact import ExactPlan
from shunter.app.recheck import Now, moved
from shunter.app.recording import Recording
from shunter.decide.allowed import not_allowed
from shunter.model.finding import Lane
from shunter.model.ids import Digest, Epoch, Incarnation, OperationId, WorkerId, node_of
from shunter.model.operation import EngineState, OperationRecord
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.policy import DisruptionBudget, PolicySet
from shunter.model.snapshot import Fleet, Node, Notice, NoticeKind, Slot, Snapshot, Worker, WorkerState
from test_decide import NOW, PROFILE, SITUATIONS, Threshold, run, situation_of

POLICIES = PolicySet(commit="c", digest="sha256:p")


def exact_of(situation: Any) -> tuple[ExactPlan, Now]:
    """A plan, and the world that it was made in."""
    _, series, state = situation
    plan = run(*situation).plan
    snapshot: Snapshot = series[-1]
    now = Now(at=NOW + 1, policies=POLICIES, fleet=snapshot.fleet, notices=snapshot.notices, active=state.active)
    return ExactPlan.of(plan, Recording.of(snapshot), now=NOW + 1), now


def asking(situation: Any) -> Any:
    """What `Now.budgets` is in the engine, in the world of the situation."""
    policies, series, state = situation
    given_ = PolicySet(commit="c", digest="sha256:p", policies=tuple(policies))
    return lambda operations: not_allowed(operations, given_, series, state, NOW, Threshold(), PROFILE)


def never(_: OperationId) -> bool:
    return False


def codes(exact: ExactPlan, now: Now, begun: Any = never) -> set[tuple[str, str]]:
    return {(p.code, p.subject) for p in moved(exact, now, begun)}


def silent_only(exact: ExactPlan, now: Now) -> bool:
    """What the unchanged world may be refused for: a node that didn't answer when it was planned either."""
    return all(p.code == "SH957" and "doesn't answer" in p.what for p in moved(exact, now, never))


@given(SITUATIONS)
@settings(max_examples=300, deadline=None)
def test_the_world_that_it_was_made_in_is_accepted(situation):
    exact, now = exact_of(situation)
    answering = Fleet(
        nodes=tuple(msgspec.structs.replace(n, reachable=True) for n in now.fleet.nodes), workers=now.fleet.workers, images=now.fleet.images
    )
    assert silent_only(exact, now)
    assert moved(exact, msgspec.structs.replace(now, fleet=answering), never) == ()


def changes(operation: PlannedOperation, fleet: Fleet, dice: Random) -> list[Fleet]:
    """The fleet with one of the operation's preconditions changed, each in turn."""
    expect, found = operation.expect, []
    worker = next((w for w in fleet.workers if w.id == operation.worker), None)

    def with_worker(**fields: Any) -> Fleet:
        workers = tuple(msgspec.structs.replace(w, **fields) if w.id == operation.worker else w for w in fleet.workers)
        return msgspec.structs.replace(fleet, workers=workers)

    def with_slot(slot_id: str, **fields: Any) -> Fleet:
        nodes = tuple(
            msgspec.structs.replace(n, slots=tuple(msgspec.structs.replace(s, **fields) if s.id == slot_id else s for s in n.slots))
            for n in fleet.nodes
        )
        return msgspec.structs.replace(fleet, nodes=nodes)

    if worker is not None and operation.kind is not OperationKind.DISCARD:
        found.append(with_worker(incarnation=Incarnation(expect.incarnation + dice.choice([1, 7]))))
    if expect.at is not None:
        found.append(with_worker(slot=dice.choice([None, "elsewhere/0"])))
        found.append(with_worker(state=dice.choice([WorkerState.PARKED, WorkerState.LOST])))
        found.append(msgspec.structs.replace(fleet, workers=tuple(w for w in fleet.workers if w.id != operation.worker)))
    if expect.absent and worker is not None:
        found.append(with_worker(state=dice.choice([WorkerState.RUNNING, WorkerState.FENCED, WorkerState.FROZEN])))
    if expect.free is not None:
        found.append(with_slot(expect.free, worker=WorkerId("a stranger")))
        found.append(with_slot(expect.free, reserved_by="another-operation"))
        found.append(msgspec.structs.replace(fleet, nodes=tuple(n for n in fleet.nodes if not any(s.id == expect.free for s in n.slots))))
    if expect.image is not None:
        found.append(msgspec.structs.replace(fleet, images=tuple(i for i in fleet.images if i.id != expect.image)))
    about = {slot.partition("/")[0] for slot in (operation.from_slot, operation.to_slot, expect.at, expect.free) if slot}
    for node in sorted({*about, *operation.copies}):
        nodes = tuple(msgspec.structs.replace(n, reachable=False) if n.id == node else n for n in fleet.nodes)
        found.append(msgspec.structs.replace(fleet, nodes=nodes))
    return found


@given(SITUATIONS, st.integers(0, 2**32 - 1))
@settings(max_examples=300, deadline=None)
def test_any_changed_precondition_is_refused_and_names_its_operation(situation, seed):
    exact, now = exact_of(situation)
    dice = Random(seed)
    for operation in exact.operations:
        for fleet in changes(operation, now.fleet, dice):
            assert ("SH957", operation.id) in codes(exact, msgspec.structs.replace(now, fleet=fleet))


@given(SITUATIONS)
@settings(max_examples=100, deadline=None)
def test_time_policies_notices_and_other_operations_count_too(situation):
    exact, now = exact_of(situation)

    def also(**fields: Any) -> set[tuple[str, str]]:
        return codes(exact, msgspec.structs.replace(now, **fields))

    assert ("SH954", exact.digest) in also(at=exact.expires_at)
    assert ("SH954", exact.digest) not in also(at=exact.expires_at - 0.001)
    for other in (None, PolicySet(commit="d", digest="sha256:p"), PolicySet(commit="c", digest="sha256:q")):
        assert ("SH955", exact.digest) in also(policies=other)
    for operation in exact.operations:
        assert ("SH956", operation.id) in codes(exact, now, lambda one, own=operation.id: one == own)
        assert operation.notice is None or ("SH958", operation.id) in also(notices=())
        for notice in newer(operation):
            assert ("SH957", operation.id) in also(notices=(*now.notices, notice))
        mine = msgspec.structs.replace(operation, id=OperationId("someone-elses"))
        record = OperationRecord(planned=mine, plan=Digest("sha256:x"), epoch=Epoch(1), created_at=NOW)
        assert ("SH956", operation.id) in also(active=(record,))


def newer(operation: PlannedOperation) -> list[Notice]:
    """Notices for where it goes: the node, the slot, and each node that is to hold a copy."""
    copies = () if operation.kind is OperationKind.DISCARD else operation.copies
    nodes = {*copies, *(node_of(s) for s in (operation.to_slot,) if s)}
    slots = [s for s in (operation.to_slot,) if s]
    made = [Notice(id=f"new-{n}", kind=NoticeKind.PREEMPTION, node=n, seen_at=NOW) for n in sorted(nodes)]
    return made + [Notice(id="gpu", kind=NoticeKind.GPU_FAILING, node=node_of(s), slot=s, seen_at=NOW) for s in slots]


def test_what_is_refused_is_told_with_both_values() -> None:
    def slot(name: str, held: str | None = None) -> Slot:
        return Slot(id=name, worker=held)

    operation = PlannedOperation(
        id=OperationId("move-1"), kind=OperationKind.MOVE, worker=WorkerId("w"), lane=_lane(), policy="p", reason="r",
        expect=Preconditions(incarnation=1, at="a/0", free="b/0"), from_slot="a/0", to_slot="b/0",
    )  # fmt: skip
    worker = Worker(id="w", role="decode", graph="g", engine="e", state=WorkerState.RUNNING, node="a", slot="a/0", incarnation=1)
    fleet = Fleet(nodes=(Node(id="a", slots=(slot("a/0", "w"),)), Node(id="b", slots=(slot("b/0"),))), workers=(worker,))
    plan = msgspec.structs.replace(run([], [Snapshot(at=NOW, fleet=fleet)], EngineState()).plan, operations=(operation,), commit="c" * 40)
    exact = ExactPlan.of(plan, Recording(at=NOW, fleet=fleet), now=NOW)
    other = PolicySet(commit="d" * 40, digest="sha256:q")
    moved_on = msgspec.structs.replace(fleet, workers=(msgspec.structs.replace(worker, slot="b/0", incarnation=1),))
    said = [p.what for p in moved(exact, Now(at=NOW + 601, policies=other, fleet=moved_on), never)]
    assert said == [
        "the plan was good until 1970-01-01 14:03:20 UTC, and it is 1970-01-01 14:03:21 UTC",
        "the plan was made at cccccccccccc, and the policies at dddddddddddd are in force",
        "a precondition doesn't hold any more: w is in b/0 now, not in a/0",
    ]


def _lane() -> Lane:
    return "voluntary"


@given(SITUATIONS)
@settings(max_examples=300, deadline=None)
def test_what_was_just_planned_is_within_every_budget(situation):
    exact, _ = exact_of(situation)
    assert asking(situation)(exact.operations) == {}


@given(SITUATIONS)
@settings(max_examples=300, deadline=None)
def test_what_began_since_counts_and_what_is_involuntary_is_never_asked(situation):
    """The like of an operation has begun in its place: no more than that may go on where there is no budget, and in none forty times it."""
    policies, series, state = situation
    exact, _ = exact_of(situation)
    unbounded = not any(isinstance(p.document, DisruptionBudget) for p in policies)
    for one in exact.operations:
        like = [msgspec.structs.replace(one, id=OperationId(f"{one.id}-{n}")) for n in range(40)]
        begun = tuple(OperationRecord(planned=o, plan=exact.digest, epoch=Epoch(1), created_at=NOW) for o in like)

        def refused(many: int, one: PlannedOperation = one, begun: tuple[OperationRecord, ...] = begun) -> bool:
            busy = (policies, series, msgspec.structs.replace(state, active=(*state.active, *begun[:many])))
            return one.id in asking(busy)((one,))

        if one.lane == "involuntary" or one.kind in (OperationKind.RESTORE, OperationKind.DISCARD):
            assert not refused(40)
        elif unbounded and one.kind is not OperationKind.CHECKPOINT:
            assert refused(1)
        assert refused(40) or not refused(1), "more under way leaves no more"


def test_an_operation_beyond_a_budget_is_refused_in_words():
    exact, now = next(exact_of(s) for s in map(situation_of, map(Random, range(100))) if exact_of(s)[0].operations and exact_of(s)[1])
    one = exact.operations[0]
    answering = Fleet(
        nodes=tuple(msgspec.structs.replace(n, reachable=True) for n in now.fleet.nodes), workers=now.fleet.workers, images=now.fleet.images
    )
    spent = msgspec.structs.replace(now, fleet=answering, budgets=lambda _: {one.id: "budget b: 1 of 1 at once in pool:g/decode"})
    (problem,) = moved(exact, spent, never)
    assert (problem.code, problem.subject) == ("SH949", one.id)
    assert problem.what == "it would go beyond a budget: budget b: 1 of 1 at once in pool:g/decode"
