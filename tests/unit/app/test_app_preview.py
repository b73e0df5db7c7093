"""What a preview assumes and how far it looks back."""

from pathlib import Path

import msgspec
import pytest
from shunter.app import looking, roster
from shunter.app.assumed import Assumed, assumed
from shunter.app.looking import STEPS, past
from shunter.app.settings import AgentSettings, PoliciesSettings, PrometheusSettings, Settings, TlsSettings
from shunter.app.sightings import Sightings
from shunter.model.errors import Rejected
from shunter.model.ids import Commit, Digest, Epoch, ImageId, Incarnation, NodeId, NoticeId, WorkerId, slot_id
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Slot, Snapshot, Worker, WorkerState
from shunter.model.view import NodeView

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node-a=preemption:120s", Assumed(node=NodeId("node-a"), kind=NoticeKind.PREEMPTION, lead=120.0)),
        ("node-a=gone", Assumed(node=NodeId("node-a"), kind=NoticeKind.GONE, lead=None)),
        ("rack.7/n=gpu-failing:1m30s", Assumed(node=NodeId("rack.7/n"), kind=NoticeKind.GPU_FAILING, lead=90.0)),
        ("node-a=maintenance:0s", Assumed(node=NodeId("node-a"), kind=NoticeKind.MAINTENANCE, lead=0.0)),
    ],
)
def test_a_notice_that_is_asked_about(text: str, expected: Assumed) -> None:
    assert assumed(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the node is missing"),
        ("=preemption:120s", "the node is missing"),
        ("node-a", "is not a valid NoticeKind"),
        ("node-a=preemtion:120s", "'preemtion' is not a valid NoticeKind"),
        ("node-a=preemption:120", "write a number with a unit"),
        ("node-a=preemption:-5s", "is not a duration"),
        ("node-a=preemption:", "is not a duration"),
    ],
)
def test_a_notice_that_is_none_says_how_to_write_one(text: str, why: str) -> None:
    with pytest.raises(Rejected) as caught:
        assumed(text)
    problem = caught.value.problem
    assert problem.code == "SH912"
    assert why in problem.what
    assert "node-a=preemption:120s" in problem.remedy
    assert "gpu-failing" in problem.remedy


@pytest.mark.parametrize(
    ("reach", "tick", "count"), [(5.0, 1.0, 6), (60.0, 1.0, STEPS), (3600.0, 1.0, STEPS), (0.5, 1.0, 1), (300.0, 60.0, 6)]
)
def test_past_instants_reach_back_far_enough_and_are_not_too_many(reach: float, tick: float, count: int) -> None:
    times = past(NOW, reach, tick)
    assert len(times) <= STEPS
    assert len(times) == count
    assert times == sorted(times)
    assert times[0] <= NOW - reach
    assert times[-1] < NOW
    steps = {round(b - a, 6) for a, b in zip([*times], [*times[1:], NOW], strict=True)}
    assert len(steps) == 1
    assert min(steps) >= tick


@pytest.mark.parametrize("reach", [0.0, -1.0])
def test_nothing_is_looked_up_when_no_policy_looks_back(reach: float) -> None:
    assert past(NOW, reach, 1.0) == []


def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[bool], images: tuple[Image, ...] = ()) -> Settings:
    """Settings of a fleet of one empty node, whose agent is played and notes how it was asked; without a Prometheus."""

    class Client:
        def __init__(self, _node: NodeId, _address: str, _tls: object, *, looks_on: bool = False, **_: object) -> None:
            self.looks_on = looks_on

        async def view(self) -> NodeView:
            asked.append(self.looks_on)
            return NodeView(node=Node(id=NodeId("node-a"), slots=()), workers=(), images=images, notices=(), epoch=Epoch(0), at=100.0)

        async def close(self) -> None:
            pass

    monkeypatch.setattr(roster, "AgentClient", Client)
    return Settings(
        state=tmp_path,
        policies=PoliciesSettings(directory=tmp_path),
        prometheus=PrometheusSettings(url="http://127.0.0.1:9"),
        tls=TlsSettings(ca=tmp_path, cert=tmp_path, key=tmp_path),
        agents=(AgentSettings(node="node-a", address="127.0.0.1:9"),),
    )


async def test_to_the_nodes_a_look_is_no_engine_that_was_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    settings = played(tmp_path, monkeypatch, asked)
    fleet, problems = await looking.look_at_fleet(settings, 100.0)
    assert ([n.id for n in fleet.nodes], problems, asked) == (["node-a"], (), [True])


def taken(name: str, of: str, at: float) -> Image:
    return Image(
        id=ImageId(name), worker=WorkerId(of), incarnation=Incarnation(0), taken_at=at, bytes=1, nodes=(NodeId("node-a"),), role="decode",
        graph="g", engine="vllm",
    )  # fmt: skip


@pytest.mark.parametrize("ago", [0.0, 30.0, 90.0, 400.0])
async def test_of_a_past_instant_the_fleet_is_what_an_engine_saw_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ago: float) -> None:
    """It looked from 120 s ago to 20 s ago; 60 s ago a worker was lost, and since then its node has become empty."""
    slot = slot_id(NodeId("node-a"), 0)
    there = Worker(
        id=WorkerId("w"), role="decode", graph="g", engine="vllm", state=WorkerState.RUNNING, node=NodeId("node-a"), slot=slot,
        incarnation=Incarnation(0),
    )  # fmt: skip
    lost = msgspec.structs.replace(there, state=WorkerState.LOST, slot=None)
    notice = Notice(id=NoticeId("n"), kind=NoticeKind.DRAIN, node=NodeId("node-a"), seen_at=NOW - 120)
    engine = Sightings(tmp_path, 1.0)
    for tick in range(-120, -19):
        now = there if tick < -60 else lost
        holder = Node(id=NodeId("node-a"), slots=(Slot(id=slot, worker=now.id if now.slot else None),))
        fleet = Fleet(nodes=(holder,), workers=(now,), images=(taken("first", "w", NOW - 130),))
        engine.note(Snapshot(at=NOW + tick, fleet=fleet, notices=(notice,)), 0.0)
    engine.close()
    images = (taken("between", "w", NOW - 70), taken("late", "w", NOW - 10))
    settings = played(tmp_path, monkeypatch, [], images)
    nothing = PolicySet(commit=Commit("c"), digest=Digest("sha256:p"))
    (seen,) = await looking.look(settings, [nothing], now=NOW, at=NOW - ago if ago else None)
    workers = [(w.id, w.state) for w in seen.recording.fleet.workers]
    assert workers == [("w", WorkerState.RUNNING if ago == 90 else WorkerState.LOST)], (
        "of a worker that only has images it is known that it was"
    )
    had = {30.0: ["between", "first"], 90.0: [], 0.0: ["between", "late"]}
    assert [i.id for i in seen.recording.fleet.images] == had.get(ago, [])
    assert [n.id for n in seen.recording.notices] == (["n"] if ago in (30.0, 90.0) else [])
    (remark,) = seen.remarks or ("",)
    assert ("as the engine saw it" in remark, "the one of now" in remark) == (ago in (30.0, 90.0), ago == 400.0)
