"""Images that the archive has: what they are good for when no node has them, and what becomes of them."""

from typing import Any

import pytest
from decide_world import GB, NOW, checkpoints, decide, ended, finding, image, kinds, node, notice, operation, ops, preemption, snap, worker
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.decide.profile import Profile
from shunter.decide.world import World
from shunter.model.finding import Verdict
from shunter.model.operation import Status
from shunter.model.plan import OperationKind
from shunter.model.policy import Keep
from shunter.model.snapshot import NoticeKind, WorkerState

LOST = worker("decode-0", state=WorkerState.LOST, incarnation=2)
RATES = Profile(restore_bytes_per_s=10e9, network_bytes_per_s=2e9, fixed_restore_s=0.0)


def back(*nodes: Any, **of_image: Any) -> Any:
    kept = image("i", LOST, *of_image.pop("on", ()), archived=True, **of_image)
    return decide([preemption()], snap([*nodes], [LOST], [kept]), profile=RATES)


def test_a_worker_whose_nodes_are_dead_comes_back_where_the_archive_is_known() -> None:
    result = back(node("a", ()), node("b"), node("c", archive=True), on=())
    restore = ops(result)["decode-0"]
    assert (restore.kind, restore.to_slot, restore.image) == (OperationKind.RESTORE, "c/0", "i")
    assert "in the archive alone" in restore.reason
    assert (restore.estimate.total, restore.estimate.bytes) == (1.0 + 5.0, 10 * GB)
    assert "fetched from the archive" in restore.estimate.basis


def test_a_silent_holder_is_as_good_as_none() -> None:
    result = back(node("a", (), reachable=False), node("c", archive=True), on=("a",))
    assert ops(result)["decode-0"].estimate.total == 6.0


def test_a_node_that_has_it_comes_before_the_archive() -> None:
    restore = ops(back(node("a", ()), node("b"), node("c", archive=True), on=("a",)))["decode-0"]
    assert restore.to_slot == "b/0", "what a node that answers has can be sent anywhere"
    assert restore.estimate.total == 1.0
    assert "archive" not in restore.estimate.basis


@pytest.mark.parametrize("nodes", [[node("b")], [node("b"), node("c", archive=True, reachable=False)]], ids=["none", "silent"])
def test_what_nobody_can_fetch_is_out_of_reach(nodes: Any) -> None:
    result = back(*nodes)
    assert kinds(result) == []
    found = finding(result, "decode-0")
    assert found.gate == "image"
    assert any("1 in the archive" in one.detail for one in found.evidence)


def test_without_a_place_that_knows_the_archive_it_is_held_there() -> None:
    result = back(node("b"), node("c", ("decode-9",), archive=True))
    assert kinds(result) == []
    assert (finding(result, "decode-0").gate, "no archive" in finding(result, "decode-0").reason) == ("move.to", True)


def test_a_worker_beside_it_whose_image_is_on_a_node_goes_where_it_can_not() -> None:
    """They need the same of a node, but for the archive."""
    other = worker("decode-1", state=WorkerState.LOST, incarnation=2)
    nodes = [node("a", ()), node("b", (None, None)), node("c", (), archive=True), node("d", (), runtime="pretend")]
    result = decide([preemption()], snap(nodes, [LOST, other], [image("i", LOST, "a", "d"), image("j", other, archived=True)]))
    assert {o.worker: o.to_slot for o in result.plan.operations} == {"decode-0": "b/0"}
    assert finding(result, "decode-1").gate == "move.to"


def test_the_newest_counts_wherever_it_is() -> None:
    images = [image("new", LOST, archived=True, at=NOW - 10), image("old", LOST, "b", at=NOW - 90)]
    result = decide([preemption()], snap([node("b", archive=True)], [LOST], images))
    assert ops(result)["decode-0"].image == "new"


HOLDERS = st.lists(st.sampled_from("abc"), unique=True).map(sorted)


@given(
    images=st.lists(st.tuples(HOLDERS, st.booleans()), max_size=4),
    answering=st.sets(st.sampled_from("abc")),
    knowing=st.sets(st.sampled_from("abc")),
)
@settings(max_examples=200, deadline=None)
def test_restorable_is_the_newest_that_somebody_who_answers_has_or_can_fetch(
    images: list[tuple[list[str], bool]], answering: set[str], knowing: set[str]
) -> None:
    """By a definition that is as plain as can be."""
    nodes = [node(n, reachable=n in answering, archive=n in knowing) for n in "abc"]
    made = [image(f"i{k}", LOST, *on, archived=kept, at=NOW - k) for k, (on, kept) in enumerate(images)]
    world = World(snap(nodes, [LOST], made))
    wanted = [k for k, (on, kept) in enumerate(images) if set(on) & answering or (kept and answering & knowing)]
    found = world.restorable(LOST.id)
    assert (found.id if found else None) == (f"i{wanted[0]}" if wanted else None)
    if found is not None and world.away_from_nodes(found):
        result = decide([preemption()], world.snapshot)
        assert {o.to_slot for o in result.plan.operations} <= {f"{n}/0" for n in answering & knowing}


D0 = worker("decode-0", "a/0")


def test_a_checkpoint_goes_to_the_archive_where_its_node_knows_it() -> None:
    known = decide([checkpoints(archive=True)], snap([node("a", ("decode-0",), archive=True)], [D0]))
    assert ops(known)["decode-0"].archive
    unknown = decide([checkpoints(archive=True)], snap([node("a", ("decode-0",))], [D0]))
    assert not ops(unknown)["decode-0"].archive
    assert "not in the archive, of which a doesn't know" in finding(unknown, "decode-0").reason
    unasked = decide([checkpoints()], snap([node("a", ("decode-0",), archive=True)], [D0]))
    assert not ops(unasked)["decode-0"].archive


def discarded(images: Any, **of_node: Any) -> Any:
    nodes = [node("a", ("decode-0",), **of_node)]
    return ops(decide([checkpoints(keep=Keep(last=1))], snap(nodes, [D0], images)), OperationKind.DISCARD)


def test_what_is_not_kept_any_more_goes_from_the_archive() -> None:
    images = [image("new", D0, "a", at=NOW - 5), image("old", D0, archived=True, at=NOW - 90)]
    assert discarded(images, archive=True)["decode-0"].image == "old"
    assert discarded(images) == {}, "nobody can be told to delete it"


def test_an_image_in_the_archive_alone_is_no_reason_to_discard_one_on_a_node() -> None:
    images = [image("new", D0, archived=True, at=NOW - 5), image("old", D0, "a", at=NOW - 90)]
    assert discarded(images, archive=True) == {}


def test_it_is_held_while_too_many_restores_from_there_failed() -> None:
    """As with any other image: what is in the archive may not be what it was."""
    world = snap([node("c", archive=True)], [LOST], [image("i", LOST, archived=True)], [notice("x", kind=NoticeKind.GONE)])
    planned = ops(decide([preemption()], world))["decode-0"]
    records = tuple(
        ended(operation(OperationKind.RESTORE, "decode-0", cause=planned.cause, policy="save", id=f"o{k}"), Status.FAILED, at=NOW - 10 + k)
        for k in range(5)
    )
    from shunter.model.operation import EngineState

    result = decide([preemption()], world, EngineState(recent=records))
    assert kinds(result) == []
    assert "it needs a person" in finding(result, "decode-0").reason


def test_a_worker_that_finds_no_slot_to_come_back_to_is_told_with_all_that_was_seen():
    found = finding(back(node("b", ("decode-9",)), on=("b",)), "decode-0")
    assert (found.verdict, found.gate) == (Verdict.HOLD, "move.to")
    assert [(e.gate, e.result) for e in found.evidence] == [("worker.state", True), ("image", True), ("move.to", False)]
    assert found.evidence[-1].detail == "b: no free slot"
