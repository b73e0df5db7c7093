"""Agents' reports merged into one fleet."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.model.canon import encode
from shunter.model.errors import Severity
from shunter.model.ids import Epoch, ImageId, Incarnation, NodeId, NoticeId, WorkerId, slot_id
from shunter.model.pod import Pod
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Slot, Worker, WorkerState
from shunter.model.view import NodeView
from shunter.observe.inventory import Inventory, merge

NOW = 1000.0
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
W, V = WorkerId("w"), WorkerId("v")
IMAGE = ImageId("i")


def node(name: NodeId, *occupants: WorkerId | None) -> Node:
    return Node(id=name, slots=tuple(Slot(id=slot_id(name, i), worker=w) for i, w in enumerate(occupants)), seen_at=NOW)


def worker(name: WorkerId, at: NodeId, state: WorkerState = WorkerState.RUNNING, incarnation: int = 0) -> Worker:
    return Worker(
        id=name,
        role="decode",
        graph="g",
        engine="vllm",
        state=state,
        node=at,
        slot=slot_id(at, 0),
        incarnation=Incarnation(incarnation),
        labels={"tier": "gold"},
    )


def image(of: WorkerId, *holders: NodeId, name: ImageId = IMAGE, size: int = 10, incarnation: int = 0) -> Image:
    return Image(
        id=name,
        worker=of,
        incarnation=Incarnation(incarnation),
        taken_at=NOW,
        bytes=size,
        nodes=holders,
        role="decode",
        graph="g",
        engine="vllm",
    )


def notice(about: NodeId, kind: NoticeKind = NoticeKind.PREEMPTION, deadline: float | None = None, name: str = "x") -> Notice:
    return Notice(id=NoticeId(name), kind=kind, node=about, seen_at=NOW - 100, deadline=deadline)


def view(
    name: NodeId, *workers: Worker, images: tuple[Image, ...] = (), notices: tuple[Notice, ...] = (), slots: int = 2, at: float = NOW
) -> NodeView:
    occupants = [w.id for w in workers][:slots]
    padding: list[WorkerId | None] = [None] * (slots - len(occupants))
    return NodeView(node=node(name, *occupants, *padding), workers=workers, images=images, notices=notices, epoch=Epoch(1), at=at)


BOTH = (A, B)
FIRST = merge([view(A, worker(W, A), images=(image(W, A),)), view(B, images=(image(W, B),))], None, (), BOTH, NOW)


def only(inventory: Inventory, name: WorkerId = W) -> Worker:
    (found,) = [w for w in inventory.fleet.workers if w.id == name]
    return found


def by_node(inventory: Inventory) -> dict[NodeId, Node]:
    return {n.id: n for n in inventory.fleet.nodes}


def test_reports_are_merged_sorted_and_images_by_holder() -> None:
    assert [n.id for n in FIRST.fleet.nodes] == [A, B]
    assert all(n.reachable for n in FIRST.fleet.nodes)
    assert only(FIRST) == worker(W, A)
    assert [(i.id, i.nodes) for i in FIRST.fleet.images] == [(IMAGE, (A, B))]
    assert FIRST.problems == ()


def test_the_order_of_reports_makes_no_difference() -> None:
    views = [
        view(A, worker(W, A), notices=(notice(A, name="2"), notice(A, name="1"))),
        view(B, worker(V, B), images=(image(V, B),)),
        view(C),
    ]
    merged = {encode(merge(list(order), None, (), (C, A, B), NOW)) for order in itertools.permutations(views)}
    assert len(merged) == 1


def test_the_newest_of_two_reports_of_a_node_counts() -> None:
    old, new = view(A, worker(W, A), at=NOW - 1), view(A, at=NOW)
    for order in ((old, new), (new, old)):
        assert merge(order, None, (), (A,), NOW).fleet.workers == ()


def test_a_silent_node_keeps_what_was_last_known() -> None:
    told = merge([view(A, worker(W, A), images=(image(W, A),), notices=(notice(A, NoticeKind.REBALANCE),)), view(B)], None, (), BOTH, NOW)
    silent = merge([view(B)], told.fleet, told.notices, BOTH, NOW + 1000)
    assert by_node(silent)[A] == msgspec.structs.replace(by_node(told)[A], reachable=False)
    assert only(silent) == worker(W, A)
    assert silent.fleet.images == told.fleet.images
    assert silent.notices == told.notices
    back = merge([view(A, worker(W, A)), view(B)], silent.fleet, silent.notices, BOTH, NOW + 2000)
    assert by_node(back)[A].reachable
    assert back.notices == (), "a notice that its node no longer reports is over"
    assert back.fleet.images == ()


def test_an_expected_node_that_never_answered_is_there_without_slots() -> None:
    inventory = merge([view(A)], None, (), (A, C), NOW)
    assert by_node(inventory)[C] == Node(id=C, slots=(), reachable=False)


@pytest.mark.parametrize("state", [WorkerState.RUNNING, WorkerState.FENCED, WorkerState.FROZEN])
def test_a_worker_whose_node_answers_without_it_is_lost(state: WorkerState) -> None:
    before = merge([view(A, worker(W, A, state)), view(B)], None, (), BOTH, NOW)
    lost = only(merge([view(A), view(B)], before.fleet, (), BOTH, NOW))
    assert lost == msgspec.structs.replace(worker(W, A), state=WorkerState.LOST, node=None, slot=None)


def test_a_worker_that_was_ended_is_parked_if_an_image_is_left_and_else_gone() -> None:
    kept = merge([view(A), view(B, images=(image(W, B),))], FIRST.fleet, (), BOTH, NOW, ended=frozenset({W}))
    assert only(kept) == msgspec.structs.replace(worker(W, A), state=WorkerState.PARKED, node=None, slot=None)
    drained = merge([view(A), view(B)], FIRST.fleet, (), BOTH, NOW, ended=frozenset({W}))
    assert drained.fleet.workers == ()
    later = merge([view(A), view(B, images=(image(W, B),))], kept.fleet, (), BOTH, NOW)
    assert only(later).state is WorkerState.PARKED, "also when the operation that parked it is long over"
    bereft = merge([view(A), view(B)], kept.fleet, (), BOTH, NOW, ended=frozenset({W}))
    assert only(bereft).state is WorkerState.LOST, "parked, and its images are gone"
    assert only(merge([view(A), view(B)], bereft.fleet, (), BOTH, NOW, ended=frozenset({W}))).state is WorkerState.LOST


def test_a_parked_worker_that_runs_again_is_where_it_runs() -> None:
    parked = merge([view(A), view(B, images=(image(W, B),))], FIRST.fleet, (), BOTH, NOW, ended=frozenset({W}))
    again = merge([view(A), view(B, worker(W, B, incarnation=1), images=(image(W, B),))], parked.fleet, (), BOTH, NOW)
    assert only(again) == worker(W, B, incarnation=1)
    crashed = merge([view(A), view(B, images=(image(W, B),))], again.fleet, (), BOTH, NOW)
    assert only(crashed).state is WorkerState.LOST


def test_a_worker_on_its_way_is_frozen_and_not_lost() -> None:
    between = merge([view(A), view(B)], FIRST.fleet, (), BOTH, NOW, busy=frozenset({W}))
    assert only(between) == worker(W, A, WorkerState.FROZEN)
    arrived = merge([view(A), view(B, worker(W, B, incarnation=1))], between.fleet, (), BOTH, NOW)
    assert only(arrived) == worker(W, B, incarnation=1)
    failed = merge([view(A), view(B)], between.fleet, (), BOTH, NOW)
    assert only(failed).state is WorkerState.LOST


GONE = [
    (notice(A, NoticeKind.GONE), True),
    (notice(A, NoticeKind.PREEMPTION, NOW - 5.1), True),
    (notice(A, NoticeKind.MAINTENANCE, NOW - 5.1), False),
    (notice(A, NoticeKind.PREEMPTION, NOW - 5), False),
    (notice(A, NoticeKind.PREEMPTION, NOW + 60), False),
    (notice(A, NoticeKind.PREEMPTION, None), False),
    (notice(A, NoticeKind.REBALANCE, NOW - 500), False),
    (notice(A, NoticeKind.DRAIN, NOW - 500), False),
    (notice(A, NoticeKind.GPU_FAILING, NOW - 500), False),
    (notice(B, NoticeKind.GONE), False),
]


def heard(seconds_ago: float, *, reachable: bool) -> Fleet:
    """The fleet of a round whose nodes last answered so long ago."""
    nodes = tuple(msgspec.structs.replace(n, seen_at=NOW - seconds_ago, reachable=reachable) for n in FIRST.fleet.nodes)
    return msgspec.structs.replace(FIRST.fleet, nodes=nodes)


DUE = (notice(A, NoticeKind.PREEMPTION, NOW - 500),)


@pytest.mark.parametrize("before", [heard(1, reachable=True), heard(1, reachable=False), heard(500, reachable=True)])
def test_one_answer_missed_after_the_deadline_is_no_death(before: Fleet) -> None:
    """A postponed preemption, an agent that restarts, or a clock that was set must not make a second copy of its workers."""
    merged = merge([view(B)], before, DUE, BOTH, NOW)
    assert merged.gone == frozenset()
    assert only(merged) == worker(W, A)


def test_where_silence_is_measured_no_clock_on_a_wall_counts() -> None:
    for before in (heard(500, reachable=False), heard(0, reachable=True)):
        assert merge([view(B)], before, DUE, BOTH, NOW, silent_s={}).gone == frozenset()
        assert merge([view(B)], before, DUE, BOTH, NOW, silent_s={A: 5.0}).gone == frozenset()
        assert merge([view(B)], before, DUE, BOTH, NOW, silent_s={A: 5.1}).gone == {A}


@pytest.mark.parametrize("wrong", [-70.0, -6.0, 6.0, 70.0])
def test_an_agents_clock_doesnt_say_when_it_answered_and_is_told(wrong: float) -> None:
    off = msgspec.structs.replace(view(A, worker(W, A), at=NOW + wrong), node=msgspec.structs.replace(node(A, W), seen_at=NOW + wrong))
    merged = merge([off, view(B, at=NOW + 4)], None, (), BOTH, NOW)
    assert [n.seen_at for n in merged.fleet.nodes] == [NOW, NOW]
    ((about, told),) = merged.clocks.items()
    assert (about, told.code, told.subject) == (A, "SH312", A)
    assert f"{NOW + wrong:.0f} there and 1000 here" in told.what
    assert ("behind" if wrong < 0 else "ahead of") in told.what
    silent = merge([view(B)], merged.fleet, DUE, BOTH, NOW + 3, gone_after_s=65.0)
    assert silent.gone == frozenset()
    assert only(silent).state is WorkerState.RUNNING


@pytest.mark.parametrize(("told", "gone"), GONE)
def test_a_silent_node_is_gone_only_by_a_notice_that_is_due(told: Notice, gone: bool) -> None:
    before = heard(6, reachable=False)
    merged = merge([view(B, images=(image(W, B),))], before, (told,), BOTH, NOW)
    assert merged.gone == ({A} if gone else set())
    lost = only(merged)
    silent = by_node(merged)[A]
    assert not silent.reachable
    if gone:
        assert (lost.state, lost.node, lost.slot) == (WorkerState.LOST, None, None)
        assert silent.slots == ()
        assert merged.fleet.images[0].nodes == (B,)
    else:
        assert lost == worker(W, A)
        assert silent.slots
        assert merged.fleet.images[0].nodes == (A, B)


def test_a_node_that_answers_is_not_gone_whatever_was_announced() -> None:
    due = notice(A, NoticeKind.PREEMPTION, NOW - 500)
    alive = merge([view(A, worker(W, A), notices=(due,)), view(B)], FIRST.fleet, (due,), BOTH, NOW)
    assert only(alive).state is WorkerState.RUNNING
    assert alive.notices == (due,)
    leaving = merge([view(A, notices=(due,)), view(B)], alive.fleet, (due,), BOTH, NOW, busy=frozenset({W}))
    assert only(leaving) == worker(W, A, WorkerState.FROZEN)


def test_a_node_stays_gone_round_after_round_and_may_come_back() -> None:
    due = (notice(A, NoticeKind.GONE),)
    round_ = FIRST
    notices: tuple[Notice, ...] = due
    for _ in range(3):
        round_ = merge([view(B, images=(image(W, B),))], round_.fleet, notices, BOTH, NOW)
        notices = round_.notices
        assert only(round_).state is WorkerState.LOST
        assert round_.fleet.images[0].nodes == (B,)
    back = merge([view(A), view(B, worker(W, B, incarnation=1))], round_.fleet, notices, BOTH, NOW)
    assert by_node(back)[A].slots
    assert back.notices == ()
    assert back.problems == ()


def test_an_image_whose_only_holder_is_gone_is_gone() -> None:
    before = merge([view(A, worker(W, A), images=(image(W, A),)), view(B)], None, (), BOTH, NOW)
    merged = merge([view(B)], before.fleet, (notice(A, NoticeKind.GONE),), BOTH, NOW)
    assert merged.fleet.images == ()
    assert only(merged).state is WorkerState.LOST


def test_two_live_copies_take_the_worker_out_of_action() -> None:
    merged = merge([view(A, worker(W, A)), view(B, worker(W, B, incarnation=1))], FIRST.fleet, (), BOTH, NOW)
    assert only(merged) == worker(W, B, WorkerState.FROZEN, incarnation=1)
    (problem,) = merged.problems
    assert (problem.code, problem.subject, problem.severity) == ("SH310", W, Severity.ERROR)
    assert "a (running, incarnation 0)" in problem.what
    assert "b (running, incarnation 1)" in problem.what
    assert by_node(merged)[A].slots[0].worker == W, "neither slot is free"
    assert by_node(merged)[B].slots[0].worker == W


def test_two_workers_of_one_name_in_two_namespaces_arent_called_copies_that_somebody_is_to_end() -> None:
    def lives(node: NodeId, namespace: str) -> Worker:
        return msgspec.structs.replace(worker(W, node), pod=Pod(namespace=namespace, name="w", uid=namespace))

    merged = merge([view(A, lives(A, "dynamo")), view(B, lives(B, "other"))], FIRST.fleet, (), BOTH, NOW)
    (problem,) = merged.problems
    assert problem.code == "SH310"
    assert "dynamo/w on a, other/w on b" in problem.what
    assert "end all copies" not in problem.remedy
    same = merge([view(A, lives(A, "dynamo")), view(B, lives(B, "dynamo"))], FIRST.fleet, (), BOTH, NOW)
    assert "more than one node" in same.problems[0].what


class TestNamesakes:
    """A worker of the engine's own, and one of its name in a pod of another namespace."""

    OURS = msgspec.structs.replace(worker(W, A), pod=Pod(namespace="dynamo", name="w", uid="ours"))
    OTHERS = msgspec.structs.replace(worker(W, B, incarnation=1), pod=Pod(namespace="other", name="w", uid="others"))
    SAVED = image(W, B)

    def both(self) -> Inventory:
        return merge([view(A, self.OURS), view(B, self.OTHERS, images=(self.SAVED,))], FIRST.fleet, (), BOTH, NOW)

    def after(self, before: Inventory, *views: NodeView, **more: Any) -> Inventory:
        return merge(views, before.fleet, more.pop("notices", before.notices), BOTH, NOW, namesakes=before.namesakes, **more)

    def test_nothing_is_decided_on_the_one_that_answers_while_the_other_doesnt(self) -> None:
        """It was decided on as if it were the engine's own, for as long as that one's agent was away."""
        for own, at, away in ((self.OURS, A, "b"), (self.OTHERS, B, "a")):
            left = self.after(self.both(), view(at, own))
            assert (only(left).state, only(left).node) == (WorkerState.FROZEN, at)
            (problem,) = left.problems
            assert problem.code == "SH310"
            assert f"{away} doesn't answer" in problem.what
            again = self.after(left, view(A, self.OURS), view(B, self.OTHERS))
            assert only(again).state is WorkerState.FROZEN

    def test_the_end_of_the_one_is_no_loss_of_the_other_whose_node_is_silent(self) -> None:
        """It was taken for lost and restored from its image, while it ran on the node that didn't answer."""
        ended = self.after(self.both(), view(B, images=(self.SAVED,)))
        assert only(ended).state is WorkerState.FROZEN
        still = self.after(ended, view(B, images=(self.SAVED,)))
        assert only(still).state is WorkerState.FROZEN
        back = self.after(still, view(A, self.OURS), view(B, images=(self.SAVED,)))
        assert only(back) == self.OURS
        assert (back.problems, back.namesakes) == ((), {})

    def test_silence_that_changes_sides_leaves_neither_to_be_decided_on(self) -> None:
        """Only who was silent was remembered: once it was back, and the other one away, it was taken for the engine's own."""
        for first, then in (((A, self.OURS), (B, self.OTHERS)), ((B, self.OTHERS), (A, self.OURS))):
            left = self.after(self.both(), view(*first))
            left = self.after(self.after(left, view(*first)), view(*then))
            assert (only(left).state, [p.code for p in left.problems]) == (WorkerState.FROZEN, ["SH310"])
            neither = self.after(left)
            assert only(neither).state is WorkerState.FROZEN
            assert only(self.after(neither, view(*first))).state is WorkerState.FROZEN

    def test_one_of_three_that_ends_leaves_the_others_in_doubt(self) -> None:
        third = msgspec.structs.replace(worker(W, C), pod=Pod(namespace="third", name="w", uid="third"))
        left = self.after(self.after(self.both(), view(A, self.OURS), view(B, self.OTHERS), view(C, third)), view(C, third))
        assert left.namesakes == {W: frozenset({A, B, C})}
        left = self.after(left, view(C))
        assert left.namesakes == {W: frozenset({A, B})}
        left = self.after(left, view(A, self.OURS), view(B), view(C))
        assert (only(left), left.namesakes) == (self.OURS, {})

    def test_a_copy_of_whose_pod_nothing_is_said_for_a_moment_is_forgotten_by_nobody(self) -> None:
        bare = msgspec.structs.replace(self.OTHERS, pod=None)
        left = self.after(self.after(self.both(), view(A, self.OURS), view(B, bare)), view(B, self.OTHERS))
        assert only(left).state is WorkerState.FROZEN

    def test_a_node_that_is_gone_is_waited_for_no_longer(self) -> None:
        gone = self.after(self.both(), view(B, self.OTHERS), notices=(notice(A, NoticeKind.GONE),))
        assert only(gone) == self.OTHERS
        assert (gone.problems, gone.namesakes) == ((), {})
        lost = self.after(self.both(), view(B, images=(self.SAVED,)), notices=(notice(A, NoticeKind.GONE),))
        assert only(lost).state is WorkerState.LOST

    def test_what_an_operation_has_ended_on_purpose_is_put_away_as_ever(self) -> None:
        parked = self.after(self.both(), view(B, images=(self.SAVED,)), ended=frozenset({W}))
        assert only(parked).state is WorkerState.PARKED

    def test_the_source_of_a_move_that_falls_silent_leaves_no_doubt(self) -> None:
        """Both ends are pods of one namespace."""
        source = msgspec.structs.replace(self.OURS, state=WorkerState.FROZEN)
        there = msgspec.structs.replace(self.OTHERS, pod=Pod(namespace="dynamo", name="w-2", uid="new"), incarnation=Incarnation(1))
        merged = self.after(merge([view(A, source), view(B, there)], FIRST.fleet, (), BOTH, NOW), view(B, there))
        assert only(merged) == there


def test_the_two_ends_of_a_move_are_no_fault() -> None:
    ends = [view(A, worker(W, A, WorkerState.FROZEN)), view(B, worker(W, B, WorkerState.FROZEN, 1))]
    merged = merge(ends, FIRST.fleet, (), BOTH, NOW, busy=frozenset({W}))
    assert only(merged).state is WorkerState.FROZEN
    assert merged.problems == ()
    serving = merge([ends[0], view(B, worker(W, B, incarnation=1))], FIRST.fleet, (), BOTH, NOW)
    assert only(serving).state is WorkerState.FROZEN
    assert [p.severity for p in serving.problems] == [Severity.WARNING]


def test_a_copy_on_a_silent_node_gives_way_to_one_that_is_reported() -> None:
    merged = merge([view(B, worker(W, B, incarnation=1))], FIRST.fleet, (), BOTH, NOW)
    assert only(merged) == worker(W, B, incarnation=1)
    assert merged.problems == ()


def test_copies_that_differ_are_not_one_image() -> None:
    merged = merge([view(A, images=(image(W, A, size=10),)), view(B, images=(image(W, B, size=11),))], None, (), BOTH, NOW)
    assert merged.fleet.images == ()
    assert [(p.code, p.subject) for p in merged.problems] == [("SH311", IMAGE)]


def test_after_a_restart_workers_are_known_by_their_images_once_every_node_has_spoken() -> None:
    images = (image(W, B), image(V, B, name=ImageId("j"), incarnation=3))
    waiting = merge([view(B, images=images)], None, (), BOTH, NOW)
    assert waiting.fleet.workers == (), "one of them may be alive on the node that is silent"
    merged = merge([view(A), view(B, images=images)], None, (), BOTH, NOW, ended=frozenset({W}))
    assert [(w.id, w.state, w.incarnation, w.node) for w in merged.fleet.workers] == [
        (V, WorkerState.LOST, 3, None),
        (W, WorkerState.PARKED, 0, None),
    ]
    gone = merge([view(B, images=images)], None, (notice(A, NoticeKind.GONE),), BOTH, NOW)
    assert {w.state for w in gone.fleet.workers} == {WorkerState.LOST}
    restoring = merge([view(A), view(B, images=images)], None, (), BOTH, NOW, busy=frozenset({W}))
    assert [w.id for w in restoring.fleet.workers] == [V]


def test_a_worker_that_its_agent_reports_as_ended_is_not_alive() -> None:
    told = worker(W, A, WorkerState.LOST)
    merged = merge([view(A, told), view(B)], None, (), BOTH, NOW)
    assert (only(merged).state, only(merged).node) == (WorkerState.LOST, None)
    elsewhere = merge([view(A, told), view(B, worker(W, B, incarnation=1))], None, (), BOTH, NOW)
    assert only(elsewhere) == worker(W, B, incarnation=1)


STATES = st.sampled_from([WorkerState.RUNNING, WorkerState.FENCED, WorkerState.FROZEN])
NAMES = st.sampled_from([WorkerId(x) for x in "uvw"])


@st.composite
def rounds(draw: st.DrawFn) -> list[NodeView]:
    views = []
    for name in draw(st.sets(st.sampled_from([A, B, C]))):
        workers = tuple(worker(w, name, draw(STATES), draw(st.integers(0, 2))) for w in sorted(draw(st.sets(NAMES))))
        images = tuple(image(w, name, name=ImageId(f"i-{w}")) for w in sorted(draw(st.sets(NAMES))))
        kind = draw(st.sampled_from([None, *NoticeKind]))
        views.append(view(name, *workers, images=images, notices=(notice(name, kind, NOW),) if kind else (), slots=3))
    return views


@settings(max_examples=150, deadline=None)
@given(history=st.lists(rounds(), min_size=1, max_size=5), ended=st.frozensets(NAMES), busy=st.frozensets(NAMES))
def test_whatever_is_reported(history: list[list[NodeView]], ended: frozenset[WorkerId], busy: frozenset[WorkerId]) -> None:
    fleet: Fleet | None = None
    notices: tuple[Notice, ...] = ()
    for number, views in enumerate(history):
        now = NOW + 10 * number
        merged = merge(views, fleet, notices, (A, B, C), now, ended=ended, busy=busy)
        ids = [w.id for w in merged.fleet.workers]
        assert ids == sorted(set(ids)), "each worker once"
        assert [n.id for n in merged.fleet.nodes] == [A, B, C]
        assert {n.id for n in merged.fleet.nodes if n.reachable} == {v.node.id for v in views}
        reported = {w.id for v in views for w in v.workers}
        assert reported <= set(ids), "nothing that is reported is forgotten"
        for found in merged.fleet.workers:
            away = found.state in (WorkerState.PARKED, WorkerState.LOST)
            assert (found.node is None) == away
            assert not (away and found.id in reported)
            # one with an operation under way is as it was until that is over
            assert found.state is not WorkerState.PARKED or found.id in busy or any(i.worker == found.id for i in merged.fleet.images)
        assert all(i.nodes for i in merged.fleet.images)
        if fleet is not None:
            silent_homes = {n.id for n in merged.fleet.nodes if not n.reachable and n.slots}
            for was in fleet.workers:
                if was.node in silent_homes and was.id not in reported | ended | busy:
                    assert was in merged.fleet.workers, "silence proves nothing"
        fleet, notices = merged.fleet, merged.notices


def looked(name: NodeId, at: float, *archived: Image, images: tuple[Image, ...] = ()) -> NodeView:
    """A view of a node that knows the archive, and looked at `at` (0: not yet)."""
    seen = view(name, images=images)
    return msgspec.structs.replace(seen, node=msgspec.structs.replace(seen.node, archive=True), archive_looked=at, archived=tuple(archived))


def kept(name: str = IMAGE, **more: int) -> Image:
    return msgspec.structs.replace(image(W, name=ImageId(name), **more), archived=True)


def shown(inventory: Inventory) -> dict[str, tuple[tuple[NodeId, ...], bool]]:
    return {i.id: (i.nodes, i.archived) for i in inventory.fleet.images}


def test_an_image_that_no_node_has_is_known_by_the_archive() -> None:
    told = merge([looked(A, NOW, kept(), kept("other"), images=(image(W, A),)), view(B)], None, (), BOTH, NOW)
    assert shown(told) == {IMAGE: ((A,), True), "other": ((), True)}
    assert told.fleet.archive_looked == NOW
    assert only(told).state is WorkerState.LOST, "and so is its worker"


def test_a_worker_comes_to_be_known_again_when_all_nodes_that_had_it_are_gone() -> None:
    first = merge([view(A, worker(W, A), images=(image(W, A),)), looked(B, NOW, kept())], None, (), BOTH, NOW)
    gone = merge([looked(B, NOW + 60, kept())], first.fleet, (notice(A, NoticeKind.GONE),), BOTH, NOW + 60)
    assert shown(gone) == {IMAGE: ((), True)}
    assert only(gone).state is WorkerState.LOST


def test_who_looked_last_knows_what_the_archive_has() -> None:
    told = merge([looked(A, NOW - 1, kept("deleted")), looked(B, NOW, kept("new"))], None, (), BOTH, NOW)
    assert shown(told) == {"new": ((), True)}


def test_what_was_seen_is_forgotten_for_nothing_that_was_seen_before() -> None:
    """The agent that put an image there dies right after: the others haven't looked since."""
    first = merge([looked(A, NOW, kept())], None, (), BOTH, NOW)
    older = merge([looked(B, NOW - 60)], first.fleet, (), BOTH, NOW + 1)
    assert shown(older) == {IMAGE: ((), True)}
    assert older.fleet.archive_looked == NOW
    not_yet = merge([looked(B, 0.0)], older.fleet, (), BOTH, NOW + 2)
    assert shown(not_yet) == {IMAGE: ((), True)}
    nobody = merge([], not_yet.fleet, (), BOTH, NOW + 3)
    assert shown(nobody) == {IMAGE: ((), True)}
    then = merge([looked(B, NOW + 30)], nobody.fleet, (), BOTH, NOW + 31)
    assert shown(then) == {}


def test_a_clock_that_is_ahead_hides_what_the_others_see_for_no_longer_than_that_look() -> None:
    first = merge([looked(A, NOW + 5000, kept())], None, (), BOTH, NOW)
    assert first.fleet.archive_looked == NOW
    assert shown(merge([looked(B, NOW + 60)], first.fleet, (), BOTH, NOW + 60)) == {}


def test_clocks_that_are_set_back_keep_nobody_from_seeing_what_is_new() -> None:
    first = merge([looked(A, NOW, kept())], None, (), BOTH, NOW)
    back = merge([looked(A, NOW - 3610, kept("new"))], first.fleet, (), BOTH, NOW - 3600)
    assert shown(back) == {IMAGE: ((), True)}, "that was seen before, by what can be told"
    assert shown(merge([looked(A, NOW - 3590, kept("new"))], back.fleet, (), BOTH, NOW - 3580)) == {"new": ((), True)}


def test_without_an_archive_nothing_is_in_it() -> None:
    first = merge([looked(A, NOW, kept())], None, (), (A,), NOW)
    assert shown(merge([view(A)], first.fleet, (), (A,), NOW + 1)) == {}


def test_another_image_of_the_same_id_in_the_archive_is_not_trusted() -> None:
    told = merge([looked(A, NOW, kept(size=99), images=(image(W, A),))], None, (), (A,), NOW)
    assert shown(told) == {}
    (problem,) = told.problems
    assert problem.code == "SH311"
    assert "a, the archive hold different images" in problem.what


def test_a_merge_can_stand_still_every_some_images() -> None:
    asked = list[None]()
    images = tuple(image(W, A, name=ImageId(f"i-{n:04d}")) for n in range(5000))
    found = merge([view(A, worker(W, A), images=images)], None, (), [A], NOW, breathe=lambda: asked.append(None))
    assert len(found.fleet.images) == 5000
    assert len(asked) >= 10


def test_what_is_known_against_an_image_stays_known_whoever_is_left_to_say_it() -> None:
    bad = msgspec.structs.replace(image(W, A), doubt="XID 31")
    told = merge([view(A, worker(W, A), images=(bad,)), view(B, images=(image(W, B),))], None, (), BOTH, NOW)
    assert [(i.nodes, i.doubt) for i in told.fleet.images] == [((A, B), "XID 31")]
    silent = merge([view(B, images=(image(W, B),))], told.fleet, (), BOTH, NOW + 1)
    assert [(i.nodes, i.doubt) for i in silent.fleet.images] == [((A, B), "XID 31")]
    empty = merge([view(A), view(B, images=(image(W, B),))], silent.fleet, (), BOTH, NOW + 2)
    assert [(i.nodes, i.doubt) for i in empty.fleet.images] == [((B,), "XID 31")]
