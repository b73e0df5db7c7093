"""A worker is where its newest move has brought it, also while nobody has seen it there."""

import msgspec
from shunter.app.settled import settled, unseen
from shunter.model.ids import Digest, Epoch, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import EngineState, OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.pod import Pod
from shunter.model.snapshot import Fleet, Node, Worker, WorkerState
from shunter.model.view import NodeView
from shunter.observe.inventory import merge

A, B, W = NodeId("a"), NodeId("b"), WorkerId("w")
AT_A = Worker(
    id=W, role="decode", graph="g", engine="vllm", state=WorkerState.FROZEN, node=A, slot=SlotId("a/0"), incarnation=Incarnation(0)
)
FLEET = Fleet(nodes=(Node(id=A, slots=()), Node(id=B, slots=())), workers=(AT_A,))


def record(status: Status, kind: OperationKind = OperationKind.MOVE) -> OperationRecord:
    planned = PlannedOperation(
        id=OperationId("move-1"), kind=kind, worker=W, lane="involuntary", policy=PolicyName("p"), reason="",
        expect=Preconditions(incarnation=Incarnation(0)), from_slot=SlotId("a/0"), to_slot=SlotId("b/0"),
    )  # fmt: skip
    return OperationRecord(planned=planned, plan=Digest(""), epoch=Epoch(1), created_at=1.0, outcome=Outcome(status=status, at=2.0))


def test_a_moved_worker_is_at_its_destination() -> None:
    (worker,) = settled(FLEET, [record(Status.SUCCEEDED)]).workers
    assert (worker.node, worker.slot, worker.state, worker.incarnation) == (B, "b/0", WorkerState.RUNNING, 1)


def test_it_lives_in_the_pod_that_was_made_for_it() -> None:
    left, came = Pod(namespace="n", name="w", uid="u0"), Pod(namespace="n", name="w-1", uid="u1")
    there = msgspec.structs.replace(FLEET, workers=(msgspec.structs.replace(AT_A, pod=left),))
    moved = msgspec.structs.replace(record(Status.SUCCEEDED), pod=came, left=left)
    assert settled(there, [moved]).workers[0].pod == came


def test_what_failed_or_isnt_an_arrival_changes_nothing() -> None:
    for one in (record(Status.ROLLED_BACK), record(Status.SUCCEEDED, OperationKind.CHECKPOINT)):
        assert settled(FLEET, [one]) == FLEET


def test_what_succeeded_and_cant_be_seen_yet_counts_as_under_way() -> None:
    parked, moved = record(Status.SUCCEEDED, OperationKind.PARK), record(Status.SUCCEEDED)
    failed = record(Status.ROLLED_BACK, OperationKind.PARK)
    imaged = record(Status.SUCCEEDED, OperationKind.CHECKPOINT)  # its worker is where it was, and may have to leave at once
    for one, seen in ((parked, False), (moved, True), (failed, True), (imaged, True)):
        found = unseen(EngineState(recent=(one,)), [one])
        assert (len(found.active), len(found.recent)) == ((0, 1) if seen else (1, 0))
        assert all(r.outcome is None for r in found.active)
    assert unseen(EngineState(recent=(parked,)), []) == EngineState(recent=(parked,))


def test_only_what_cant_be_seen_yet_is_hidden_whatever_ended_beside_it() -> None:
    def ended(number: int, at: float, kind: OperationKind) -> OperationRecord:
        made = record(Status.SUCCEEDED, kind)
        planned = msgspec.structs.replace(made.planned, id=OperationId(f"o-{number}"))
        return msgspec.structs.replace(made, planned=planned, outcome=Outcome(status=Status.SUCCEEDED, at=at))

    kinds = (OperationKind.PARK, OperationKind.CHECKPOINT, OperationKind.DRAIN, OperationKind.MOVE)
    recent = tuple(ended(n, float(n // 3), kinds[n % 4]) for n in range(24))  # three at one time
    under_way = msgspec.structs.replace(recent[4], outcome=None)
    for some in ((recent[16],), (recent[20], recent[8]), recent[12:], (ended(99, 1.0, OperationKind.PARK),)):
        found = unseen(EngineState(active=(under_way,), recent=recent), some)
        hidden = {r.id for r in some if r.planned.kind in (OperationKind.PARK, OperationKind.DRAIN)}
        assert [r.id for r in found.recent] == [r.id for r in recent if r.id not in hidden]
        assert {r.id for r in found.active} == hidden | {under_way.id}


def test_a_destination_that_falls_silent_right_after_the_move_doesnt_make_its_worker_lost() -> None:
    """The last look was in the middle of the move, and the next one gets no answer from the destination."""
    source = NodeView(node=Node(id=A, slots=()), workers=(), images=(), notices=(), epoch=Epoch(1), at=3.0)
    without = merge([source], FLEET, (), (A, B), 3.0)
    assert without.fleet.workers[0].state is WorkerState.LOST, "this is what it would be taken for"
    merged = merge([source], settled(FLEET, [record(Status.SUCCEEDED)]), (), (A, B), 3.0)
    assert merged.fleet.workers == (
        msgspec.structs.replace(AT_A, state=WorkerState.RUNNING, node=B, slot=SlotId("b/0"), incarnation=Incarnation(1)),
    )
