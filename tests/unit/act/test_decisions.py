"""The pure parts: what to do about an unknown outcome, and preconditions."""

import itertools

import msgspec
import pytest
from shunter.act.chain import dumped, dumps_on, linked
from shunter.act.expect import unmet
from shunter.act.port import CopyView, copy_view
from shunter.act.resolve import Action, resolve
from shunter.model.ids import Digest, Epoch, ImageId, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.snapshot import Fleet, Image, Node, Slot, Worker, WorkerState
from shunter.wire import agent_pb2 as pb

IMAGE = ImageId("image-op")
PLANNED = PlannedOperation(
    id=OperationId("op"),
    kind=OperationKind.MOVE,
    worker=WorkerId("w"),
    lane="voluntary",
    policy=PolicyName("p"),
    reason="r",
    expect=Preconditions(incarnation=Incarnation(1), at=SlotId("a/0"), free=SlotId("b/0")),
    from_slot=SlotId("a/0"),
    to_slot=SlotId("b/0"),
)
PATH = [Step.INTENDED, Step.PREPARED, Step.FENCED, Step.FROZEN, Step.HELD, Step.COMMITTING, Step.RELEASED, Step.RESUMED, Step.UNFENCED]
COPIES = ("running", "frozen", "held", "none")
PROBING = CopyView(copy="running", steps={"resume": "begun"})
ENDING = CopyView(copy="frozen", images=frozenset({IMAGE}), steps={"release": "begun"})
VIEWS = [None, *(CopyView(copy=c, images=i) for c in COPIES for i in (frozenset[ImageId](), frozenset({IMAGE})))]


def at(step: Step, kind: OperationKind = OperationKind.MOVE) -> OperationRecord:
    reached = PATH[: PATH.index(step) + 1] if step in PATH else [Step.INTENDED, Step.FENCED, step]
    return OperationRecord(
        planned=msgspec.structs.replace(PLANNED, kind=kind),
        plan=Digest("d"),
        epoch=Epoch(1),
        created_at=0,
        step=step,
        history=tuple((s, 0.0) for s in reached),
    )


def view(copy: str, *images: str) -> CopyView:
    return CopyView(copy=copy, images=frozenset(ImageId(i) for i in images))  # type: ignore[arg-type]


def test_a_move_goes_on_to_resume_only_when_the_source_is_known_dead() -> None:
    tried = 0
    for step, source, destination in itertools.product(PATH[:6], VIEWS, VIEWS):
        found = resolve(at(step), source, destination)
        tried += 1
        if found.action is Action.GO_ON and found.step is Step.RELEASED:
            assert source is not None
            assert source.copy == "none"
        if found.action is Action.WAIT:
            assert step is Step.COMMITTING
            assert source is None, "it waits only for an answer that decides"
    assert tried == 6 * 9 * 9


def test_once_released_a_move_never_goes_back_by_itself() -> None:
    for step, source, destination in itertools.product(PATH[6:], VIEWS, VIEWS):
        assert resolve(at(step), source, destination).action is not Action.ROLL_BACK


@pytest.mark.parametrize(
    ("step", "source", "destination", "action", "then"),
    [
        (Step.FENCED, view("running"), view("none"), Action.ROLL_BACK, None),
        (Step.HELD, view("frozen", IMAGE), view("held", IMAGE), Action.GO_ON, Step.HELD),
        (Step.HELD, view("frozen", IMAGE), view("none", IMAGE), Action.ROLL_BACK, None),
        (Step.HELD, None, view("held", IMAGE), Action.ROLL_BACK, None),
        (Step.FROZEN, view("none"), view("none", IMAGE), Action.GO_ON, Step.RELEASED),
        (Step.FROZEN, view("none"), view("none", "another"), Action.ROLL_BACK, None),
        (Step.COMMITTING, view("frozen", IMAGE), view("held", IMAGE), Action.GO_ON, Step.COMMITTING),
        (Step.COMMITTING, view("frozen", IMAGE), view("none", IMAGE), Action.ROLL_BACK, None),
        (Step.COMMITTING, view("frozen", IMAGE), None, Action.ROLL_BACK, None),
        (Step.COMMITTING, ENDING, view("none", IMAGE), Action.WAIT, None),
        (Step.COMMITTING, ENDING, view("held", IMAGE), Action.GO_ON, Step.COMMITTING),
        (Step.COMMITTING, view("running"), view("held", IMAGE), Action.ROLL_BACK, None),
        (Step.COMMITTING, view("none"), None, Action.GO_ON, Step.RELEASED),
        (Step.COMMITTING, None, view("held", IMAGE), Action.WAIT, None),
        (Step.RELEASED, None, view("running"), Action.GO_ON, Step.RESUMED),
        (Step.RELEASED, None, PROBING, Action.WAIT, None),
        (Step.RELEASED, None, view("held"), Action.GO_ON, Step.RELEASED),
        (Step.RELEASED, view("none", IMAGE), None, Action.WAIT, None),
        (Step.ROLLING_BACK, None, None, Action.GO_ON, Step.ROLLING_BACK),
    ],
)
def test_moves(step: Step, source: CopyView | None, destination: CopyView | None, action: Action, then: Step | None) -> None:
    found = resolve(at(step), source, destination)
    assert (found.action, found.step) == (action, then)
    assert found.why


@pytest.mark.parametrize(
    ("kind", "step", "source", "destination", "action", "then"),
    [
        (OperationKind.PARK, Step.COMMITTING, view("frozen"), None, Action.GO_ON, Step.COMMITTING),
        (OperationKind.PARK, Step.RELEASED, None, None, Action.GO_ON, Step.RELEASED),
        (OperationKind.RESTORE, Step.INTENDED, None, view("none"), Action.GO_ON, Step.INTENDED),
        (OperationKind.RESTORE, Step.INTENDED, None, view("running"), Action.ROLL_BACK, None),
        (OperationKind.RESTORE, Step.INTENDED, None, None, Action.ROLL_BACK, None),
        (OperationKind.RESTORE, Step.PREPARED, None, view("none"), Action.ROLL_BACK, None),
        (OperationKind.RESTORE, Step.HELD, None, None, Action.ROLL_BACK, None),
        (OperationKind.RESTORE, Step.COMMITTING, None, None, Action.WAIT, None),
        (OperationKind.RESTORE, Step.COMMITTING, None, PROBING, Action.WAIT, None),
        (OperationKind.RESTORE, Step.COMMITTING, None, view("running"), Action.GO_ON, Step.RESUMED),
        (OperationKind.CHECKPOINT, Step.INTENDED, view("running", IMAGE), None, Action.GO_ON, Step.DUMPED),
        (OperationKind.CHECKPOINT, Step.INTENDED, view("running", "another"), None, Action.ROLL_BACK, None),
        (OperationKind.CHECKPOINT, Step.INTENDED, None, None, Action.ROLL_BACK, None),
        (OperationKind.DRAIN, Step.FENCED, None, None, Action.WAIT, None),
        (OperationKind.DRAIN, Step.FENCED, view("running"), None, Action.GO_ON, Step.FENCED),
        (OperationKind.DRAIN, Step.FENCED, view("none"), None, Action.ROLL_BACK, None),
        (OperationKind.DRAIN, Step.FENCED, CopyView(steps={"drain": "done"}), None, Action.GO_ON, Step.RELEASED),
        (OperationKind.DISCARD, Step.INTENDED, None, None, Action.GO_ON, Step.INTENDED),
    ],
)
def test_other_kinds(
    kind: OperationKind, step: Step, source: CopyView | None, destination: CopyView | None, action: Action, then: Step | None
) -> None:
    found = resolve(at(step, kind), source, destination)
    assert (found.action, found.step) == (action, then)


def test_a_journal_that_makes_no_sense_is_refused() -> None:
    assert copy_view(pb.JournalReply(copy="held", images=["i"])).copy == "held"
    with pytest.raises(ValueError, match="zombie"):
        copy_view(pb.JournalReply(copy="zombie"))


WORKER = Worker(
    id=WorkerId("w"),
    role="decode",
    graph="g",
    engine="vllm",
    state=WorkerState.RUNNING,
    node=NodeId("a"),
    slot=SlotId("a/0"),
    incarnation=Incarnation(1),
)


def fleet(worker: Worker | None = WORKER, **slot: object) -> Fleet:
    free = Slot(id=SlotId("b/0"), **slot)  # type: ignore[arg-type]
    nodes = (Node(id=NodeId("a"), slots=(Slot(id=SlotId("a/0"), worker=WorkerId("w")),)), Node(id=NodeId("b"), slots=(free,)))
    image = Image(
        id=ImageId("i"), worker=WorkerId("w"), incarnation=Incarnation(1), taken_at=0, bytes=1, nodes=(NodeId("b"),), role="decode",
        graph="g", engine="vllm",
    )  # fmt: skip
    return Fleet(nodes=nodes, workers=(worker,) if worker else (), images=(image,))


def test_preconditions_that_hold() -> None:
    assert unmet(PLANNED, fleet()) == ""
    assert unmet(PLANNED, fleet(reserved_by="op")) == "", "its own reservation is none against it"


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (fleet(None), "isn't in the fleet"),
        (fleet(msgspec.structs.replace(WORKER, incarnation=Incarnation(2))), "incarnation 2 now, not 1"),
        (fleet(msgspec.structs.replace(WORKER, slot=SlotId("c/0"))), "in c/0 now"),
        (fleet(msgspec.structs.replace(WORKER, state=WorkerState.LOST)), "lost"),
        (fleet(worker=WORKER, reserved_by="another"), "reserved by another"),
        (Fleet(workers=(WORKER,)), "no slot b/0"),
    ],
)
def test_preconditions_that_fail(now: Fleet, said: str) -> None:
    assert said in unmet(PLANNED, now)


def test_an_occupied_slot_and_a_missing_image() -> None:
    nodes = (Node(id=NodeId("b"), slots=(Slot(id=SlotId("b/0"), worker=WorkerId("x")),)),)
    assert "occupied by x" in unmet(PLANNED, Fleet(nodes=nodes, workers=(WORKER,)))
    gone = msgspec.structs.replace(PLANNED, kind=OperationKind.RESTORE, image=ImageId("z"))
    gone = msgspec.structs.replace(gone, expect=Preconditions(incarnation=Incarnation(1), absent=True, image=ImageId("z")))
    assert "alive on a" in unmet(gone, fleet())
    parked = msgspec.structs.replace(WORKER, state=WorkerState.PARKED, slot=None, node=None)
    assert "image z" in unmet(gone, fleet(parked))
    assert "no image" in unmet(msgspec.structs.replace(gone, image=None), fleet(parked))


def test_a_slot_that_its_worker_is_known_to_have_left() -> None:
    now = fleet(worker=WORKER)
    taken = msgspec.structs.replace(now, nodes=(now.nodes[0], Node(id=NodeId("b"), slots=(Slot(id=SlotId("b/0"), worker=WorkerId("x")),))))
    assert unmet(PLANNED, taken, {SlotId("b/0"): WorkerId("x")}) == ""
    assert "occupied by x" in unmet(PLANNED, taken, {SlotId("b/0"): WorkerId("y")}), "somebody else is there"
    assert "occupied by x" in unmet(PLANNED, taken, {SlotId("b/1"): WorkerId("x")}), "another slot was left"
    reserved = fleet(reserved_by="another")
    assert "reserved by another" in unmet(PLANNED, reserved, {SlotId("b/0"): WorkerId("x")})


def planned(name: str, *after: str) -> PlannedOperation:
    return msgspec.structs.replace(PLANNED, id=OperationId(name), after=tuple(OperationId(a) for a in after))


def test_chains_are_what_after_links_whatever_the_order() -> None:
    operations = [
        planned("a"),
        planned("b", "a"),
        planned("c"),
        planned("d", "b", "c"),
        planned("e"),
        planned("f", "gone"),
        planned("g", "gone"),
    ]
    for some in itertools.permutations(operations, len(operations)):
        found = {frozenset(c) for c in linked(some)}
        assert found == {frozenset("abcd"), frozenset("e"), frozenset({"f", "g", "gone"})}


@pytest.mark.parametrize(
    ("kind", "steps", "node", "over"),
    [
        (OperationKind.MOVE, [Step.INTENDED, Step.PREPARED, Step.FENCED], "a", False),
        (OperationKind.MOVE, [Step.INTENDED, Step.PREPARED, Step.FENCED, Step.ROLLING_BACK], "a", False),
        (OperationKind.MOVE, [Step.INTENDED, Step.FENCED, Step.FROZEN], "a", True),
        (OperationKind.MOVE, [Step.INTENDED, Step.FENCED, Step.FROZEN, Step.ROLLING_BACK], "a", True),
        (OperationKind.PARK, [Step.INTENDED, Step.FENCED, Step.RELEASED], "a", True),
        (OperationKind.CHECKPOINT, [Step.INTENDED], "a", False),
        (OperationKind.CHECKPOINT, [Step.INTENDED, Step.DUMPED], "a", True),
        (OperationKind.DRAIN, [Step.INTENDED], None, False),
        (OperationKind.RESTORE, [Step.INTENDED], None, False),
    ],
)
def test_which_node_dumps_and_until_when(kind: OperationKind, steps: list[Step], node: str | None, over: bool) -> None:
    record = msgspec.structs.replace(at(steps[0], kind), step=steps[-1], history=tuple((s, 0.0) for s in steps))
    assert dumps_on(record.planned) == node
    assert dumped(record) is over
