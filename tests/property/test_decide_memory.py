"""What is carried over from one decision to the next is what would be worked out anew."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.decide.deciding import Deciding
from shunter.decide.evaluate import evaluate
from shunter.decide.history import Ended, History
from shunter.decide.memory import Memory
from shunter.decide.profile import Profile
from shunter.decide.world import Images, World
from shunter.lang.bulk import BulkCelRules
from shunter.lang.cel import CelRules
from shunter.lang.load import load
from shunter.model.canon import encode
from shunter.model.expression import Expression, Scope, Undecided
from shunter.model.ids import Commit, Digest, Epoch, ImageId, Incarnation, NodeId, NoticeId, OperationId, PolicyName, WorkerId, slot_id
from shunter.model.operation import EngineState, Measured, OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Slot, Snapshot, Worker, WorkerState
from shunter.model.source import Revision, SourceFile

NOW = 1_800_000_000.0


def record(dice: random.Random, number: int) -> OperationRecord:
    planned = PlannedOperation(
        id=OperationId(f"o-{dice.randrange(10**9)}-{number}"),
        kind=dice.choice((OperationKind.CHECKPOINT, OperationKind.CHECKPOINT, OperationKind.MOVE)),
        worker=WorkerId(f"w{dice.randrange(4)}"),
        lane="voluntary",
        policy=PolicyName(dice.choice("pq")),
        reason="r",
        expect=Preconditions(incarnation=Incarnation(dice.randrange(2))),
    )
    status = dice.choice((Status.SUCCEEDED, Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED, Status.UNKNOWN, Status.SUPERSEDED))
    measured = Measured(bytes=dice.choice((None, None, 10, 20)), dump=dice.choice((None, 2.0)))
    return OperationRecord(
        planned=planned,
        plan=Digest("d"),
        epoch=Epoch(1),
        created_at=NOW + dice.randrange(20),
        outcome=Outcome(status=status, at=NOW + number, measured=measured),
    )


def all_of(ended: Ended) -> tuple[object, ...]:
    return ended.recent, ended.records, ended.unknown, ended.of_worker, ended.dumped, ended.measured, ended.of_policy


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_what_ended_is_indexed_alike_whether_at_once_or_one_after_the_other(seed: int) -> None:
    dice = random.Random(seed)
    recent: tuple[OperationRecord, ...] = ()
    ended = Ended(recent)
    for step in range(12):
        forgotten = dice.randrange(0, 3)
        recent = (*recent[forgotten:], *(record(dice, 10 * step + n) for n in range(dice.randrange(0, 5))))
        if dice.random() < 0.2 and recent:  # an engine's state may change in any way
            place = dice.randrange(len(recent))
            recent = (
                (*recent[:place], *recent[place + 1 :])
                if dice.random() < 0.5
                else (*recent[:place], msgspec.structs.replace(recent[place], epoch=Epoch(2)), *recent[place + 1 :])
            )
        before, was = ended, all_of(ended)
        ended = ended.then(recent)
        assert all_of(ended) == all_of(Ended(recent))
        assert all_of(before) == was, "what was handed out stays as it is"


def test_a_history_has_the_operations_of_a_policy_in_the_order_in_which_they_began() -> None:
    dice = random.Random(7)
    records = [record(dice, n) for n in range(30)]
    active = tuple(msgspec.structs.replace(r, outcome=None) for r in records[20:])
    history = History(EngineState(active=active, recent=tuple(records[:20])))
    wanted = sorted((*active, *records[:20]), key=lambda r: (r.created_at, r.id))
    assert [r for r in wanted if r.planned.policy == "p" and r.status is not Status.SUPERSEDED] == history.of_policy(PolicyName("p"))
    assert len(history.active) == 10 + sum(r.status is Status.UNKNOWN for r in records[:20])


def image(dice: random.Random, number: int) -> Image:
    return Image(
        id=ImageId(f"i{number}"),
        worker=WorkerId(f"w{dice.randrange(4)}"),
        incarnation=Incarnation(dice.randrange(2)),
        taken_at=NOW + dice.randrange(50),
        bytes=dice.choice((0, 5, 7)),
        nodes=tuple(NodeId(n) for n in "abc" if dice.random() < 0.5),
        role="decode",
        graph="g",
        engine="vllm",
    )


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_images_are_indexed_alike_whether_at_once_or_one_after_the_other(seed: int) -> None:
    dice = random.Random(seed)
    held = {n: image(dice, n) for n in range(dice.randrange(0, 12))}
    images = Images(tuple(held.values()))
    for step in range(10):
        for number in dice.sample(sorted(held), min(len(held), dice.randrange(0, 3))):
            del held[number]
        held |= {n: image(dice, n) for n in range(100 * step, 100 * step + dice.randrange(0, 3))}
        images = images.then(tuple(held.values()))
        anew = Images(tuple(held.values()))
        if dice.random() < 0.7:  # what was never asked for is never worked out
            assert images.by_worker == anew.by_worker
            assert images.taken == anew.taken
            assert images.several == anew.several
        if dice.random() < 0.7:
            assert images.held == anew.held


def snapshot(dice: random.Random, at: float, before: Fleet | None) -> Snapshot:
    """Of the fleet before some parts, or none, are others."""
    nodes = tuple(Node(id=NodeId(n), slots=(Slot(id=slot_id(NodeId(n), 0)), Slot(id=slot_id(NodeId(n), 1)))) for n in "abc")
    workers = tuple(
        Worker(
            id=WorkerId(f"w{n}"), role=dice.choice(("prefill", "decode")), graph=dice.choice("gh"), engine="vllm",
            state=dice.choice((WorkerState.RUNNING, WorkerState.PARKED)), node=None, slot=None, incarnation=Incarnation(0),
        )
        for n in range(4)
    )  # fmt: skip
    images = tuple(image(dice, n) for n in range(3))
    if before is not None:
        nodes, workers, images = (
            old if dice.random() < 0.6 else new
            for old, new in zip((before.nodes, before.workers, before.images), (nodes, workers, images), strict=True)
        )  # type: ignore[assignment]
    return Snapshot(at=at, fleet=Fleet(nodes=nodes, workers=workers, images=images))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_worlds_that_share_say_what_each_would_say_alone(seed: int) -> None:
    dice = random.Random(seed)
    memory, kept = Memory(), list[Snapshot]()
    for step in range(8):
        kept = [*kept[-2:], snapshot(dice, NOW + step, kept[-1].fleet if kept else None)]
        for (shared, scopes), one in zip(memory.worlds(kept), kept, strict=True):
            alone = World(one)
            assert shared.snapshot is one
            assert scopes.now == one.at
            for name in ("nodes", "workers", "pools", "graphs", "away", "slots", "vacant", "images", "taken", "several", "holding"):
                assert getattr(shared, name) == getattr(alone, name), name
            assert shared.among("g", "decode") == alone.among("g", "decode")
            assert shared.among(None, "prefill") == alone.among(None, "prefill")


def test_a_memory_does_not_grow_with_the_number_of_decisions() -> None:
    """Also where rules aren't able to answer in bulk by themselves, and are wrapped anew each time."""
    text = (
        "apiVersion: shunter.dev/v1alpha1\nkind: CheckpointPolicy\nmetadata: {name: i}\nspec:\n"
        "  workers: {where: 'worker.engine == \"vllm\"'}\n  every: 1s\n"
    )
    files = (SourceFile(path="a.yaml", blob="b", data=text.encode()),)
    policies = load(Revision(commit=Commit("c" * 40), committed_at=None, files=files), None)
    assert not policies.problems
    node = NodeId("a")
    held = Worker(
        id=WorkerId("w"), role="decode", graph="g", engine="vllm", state=WorkerState.RUNNING, node=node, slot=slot_id(node, 0),
        incarnation=Incarnation(0),
    )  # fmt: skip
    fleet = Fleet(nodes=(Node(id=node, slots=(Slot(id=slot_id(node, 0), worker=held.id),)),), workers=(held,))
    for rules, kept in ((CelRules(), 0), (BulkCelRules(), 1)):
        memory = Memory()
        for step in range(5):
            found = evaluate(policies, [Snapshot(at=NOW + step, fleet=fleet)], EngineState(), NOW + step, rules, memory=memory)
            assert [o.worker for o in found.plan.operations] == ["w"]
            ((world, _),) = memory._seen.values()
            assert len(world.answers) == kept


SHIFTS = "---\n".join(
    "apiVersion: shunter.dev/v1alpha1\nkind: ReassignmentPolicy\n"
    f"metadata: {{name: {name}}}\nspec:\n  workers: {{all: true}}\n  from: decode\n  to: prefill\n  when: {when}\n  for: 3s\n"
    for name, when in (("one", "pools.decode.workers > 1"), ("other", "pools.prefill.workers > 1"))
)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_what_a_condition_was_before_is_asked_once_and_told_alike(seed: int) -> None:
    """Of two policies, two conditions of each and two graphs, while snapshots roll on."""
    dice = random.Random(seed)
    files = (SourceFile(path="a.yaml", blob="b", data=SHIFTS.encode()),)
    policies = load(Revision(commit=Commit("c" * 40), committed_at=None, files=files), None)
    conditions = [Expression(text=f"pools.{pool}.workers > {n}") for pool in ("decode", "prefill") for n in (0, 1)]
    rules, memory, kept = _Counting(), Memory(), list[Snapshot]()
    for step in range(6):
        kept = [*kept[-2:], snapshot(dice, NOW + step, kept[-1].fleet if kept else None)]
        known = Deciding(policies, kept, EngineState(), NOW + step, rules, Profile(), memory)
        anew = Deciding(policies, kept, EngineState(), NOW + step, BulkCelRules(), Profile())
        for _ in range(2):
            for policy in policies.policies:
                for graph in "gh":
                    for when in conditions:
                        assert known.earlier(policy, graph, when) == anew.earlier(policy, graph, when)
    assert rules.asked == 5 * len(policies.policies) * 2 * len(conditions), "each of the five earlier snapshots once"


class _Counting(BulkCelRules):
    asked = 0

    def test(self, expression: Expression, scope: Scope) -> bool | Undecided:
        self.asked += 1
        return super().test(expression, scope)


SAVING = """apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec:
  workers: {all: true}
  notices: [preemption, gone]
  move:
    to:
      where: 'WHERE'
      prefer: 'node.labels["good"] == "y" ? 2.0 : double(node.freeSlots)'
  otherwise: [drain]
"""


@pytest.mark.parametrize("where", ['!node.noticed && node.labels["zone"] != "c"', 'node.labels["zone"] == worker.labels["zone"]', "true"])
def test_one_notice_after_the_other_is_answered_as_if_it_were_the_first(where: str) -> None:
    """What is kept of the nodes is what no notice changes."""
    dice = random.Random(3)
    files = (SourceFile(path="a.yaml", blob="b", data=SAVING.replace("WHERE", where).encode()),)
    policies = load(Revision(commit=Commit("c" * 40), committed_at=None, files=files), None)
    assert not policies.problems
    names = [NodeId(f"n{k}") for k in range(8)]
    workers = tuple(
        Worker(
            id=WorkerId(f"w{k}"), role="decode", graph="g", engine="vllm", state=WorkerState.RUNNING, node=node, slot=slot_id(node, 0),
            incarnation=Incarnation(0), labels={"zone": dice.choice("abc")}, memory=10**9,
        )
        for k, node in enumerate(names)
    )  # fmt: skip
    nodes = tuple(
        Node(
            id=node, slots=tuple(Slot(id=slot_id(node, n), worker=WorkerId(f"w{k}") if n == 0 else None) for n in range(3)),
            labels={"zone": dice.choice("abc"), "good": dice.choice("yn")}, reachable=k != 5, facts={"kernel": dice.choice("67")},
        )
        for k, node in enumerate(names)
    )  # fmt: skip
    fleet, memory, moves = Fleet(nodes=nodes, workers=workers), Memory(), set[object]()
    for step in range(30):
        notices = tuple(
            Notice(id=NoticeId(f"x-{node}"), kind=NoticeKind.PREEMPTION, node=node, seen_at=NOW, deadline=NOW + 600)
            for node in dice.sample(names, dice.randint(1, 3))
        )
        seen = Snapshot(at=NOW + step, fleet=fleet, notices=tuple(sorted(notices, key=lambda n: n.id)))
        found, anew = (evaluate(policies, [seen], EngineState(), NOW + step, BulkCelRules(), memory=m) for m in (memory, None))
        assert encode(found.plan) == encode(anew.plan)
        moves |= {o.to_slot for o in found.plan.operations}
    assert len(moves - {None}) > 2, "they go to different places"


def test_what_another_memory_has_indexed_isnt_indexed_again() -> None:
    fleet = Fleet(workers=(), nodes=(Node(id=NodeId("n"), slots=()),))
    first, second = Snapshot(at=NOW, fleet=fleet), Snapshot(at=NOW + 1, fleet=fleet)
    history, other, memory = Snapshot(at=NOW - 5, fleet=Fleet()), Memory(), Memory()
    memory.worlds([history])
    ((world, _),) = other.worlds([first])
    memory.learn(other)
    (kept, _), (mine, _) = memory.worlds([history, second])
    assert mine._nodes is world._nodes
    assert mine._workers is world._workers
    assert kept.snapshot is history
    assert mine.snapshot is second
