"""What a worker is allowed is told by its node and its images, and must be possible where it goes; as must be its memory."""

from pathlib import Path

import msgspec
import pytest
from agent_fakes import Bench
from shunter.wire import agent_pb2 as pb
from shunter_agent.convert import image_message
from shunter_agent.images.manifest import ImageInfo, ImageManifest, manifest_of
from shunter_agent.images.signing import Statement, _differences, entries_of
from shunter_agent.inventory import report
from shunter_agent.preflight import Room, preflight, room_of
from shunter_agent.runtime import hostmemory, privileges
from shunter_agent.runtime.port import MemoryLimit, Privileges, WorkerSpec

PTRACE, ADMIN = 1 << 19, 1 << 21
NEEDED = Privileges(capabilities=PTRACE | ADMIN)
SPEC = WorkerSpec(worker="w", role="decode", graph="g", engine="e", address="10.0.0.1:1")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def empty(tmp_path: Path) -> Bench:
    return Bench(tmp_path, worker=False)


async def refused(bench: Bench, needed: pb.Privileges | None) -> list[str]:
    order = pb.PreflightOrder(order=bench.order(), destination=True, slot="n/0", privileges=needed)
    return [one.code for one in (await preflight(bench.node, order, lambda _node: Room(disk=None, memory=None))).refusals]


async def test_a_source_tells_what_the_worker_has(bench: Bench) -> None:
    assert not (await preflight(bench.node, pb.PreflightOrder(order=bench.order()))).HasField("privileges")
    bench.runtime.allowed = NEEDED
    reply = await preflight(bench.node, pb.PreflightOrder(order=bench.order()))
    assert reply.privileges == pb.Privileges(capabilities=PTRACE | ADMIN)
    assert not reply.refusals


async def test_a_destination_refuses_what_its_agent_cannot_give(empty: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privileges, "own", lambda: Privileges(capabilities=PTRACE, no_new_privs=True))
    assert await refused(empty, None) == [], "an engine that doesn't know it says nothing"
    assert await refused(empty, pb.Privileges(capabilities=PTRACE, no_new_privs=True)) == []
    assert await refused(empty, pb.Privileges(capabilities=PTRACE | ADMIN)) == ["SH764", "SH765"]
    assert empty.node.promises.of("op") == 0, "no memory is kept for who won't come"
    monkeypatch.setattr(privileges, "own", lambda: None)
    assert await refused(empty, pb.Privileges(capabilities=PTRACE | ADMIN)) == []


async def test_images_keep_it(bench: Bench) -> None:
    bench.runtime.allowed = NEEDED
    await bench.source.checkpoint(pb.CheckpointOrder(order=bench.order(), image="i"))
    assert bench.depot.whole["i"].privileges == NEEDED
    assert image_message(bench.depot.whole["i"]).privileges == pb.Privileges(capabilities=PTRACE | ADMIN)
    assert not image_message(msgspec.structs.replace(bench.depot.whole["i"], privileges=None)).HasField("privileges")


def test_a_release_that_does_not_know_it_may_have_passed_the_image_on() -> None:
    """Its manifest, signed with it, is then without it. One with another is not what was signed."""
    info = ImageInfo(id="i", spec=SPEC, incarnation=0, taken_at=1.0, runtime="criu", privileges=NEEDED)
    made = manifest_of(info, ())
    said = Statement(by="n", at=1.0, entries=entries_of(made), manifest=made)

    def differing(found: ImageManifest) -> list[str]:
        return [field for field, _signed, _found in _differences(said, found)]

    assert made.privileges == NEEDED
    assert differing(made) == []
    assert differing(msgspec.structs.replace(made, privileges=None)) == []
    assert differing(msgspec.structs.replace(made, privileges=Privileges(capabilities=0))) == ["privileges"]
    assert differing(msgspec.structs.replace(made, pause_s=1.0)) == ["pause_s"]


async def test_workers_beside_their_agent_share_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in pods don't, but for what their own pods say."""
    tight = [MemoryLimit(path="/cg/agent/memory.max", most=99, left=5)]
    monkeypatch.setattr(hostmemory, "limits_of", lambda pid: tight if pid == "self" else [])
    bench = Bench(tmp_path, worker=False)
    assert (room_of(bench.node).memory, room_of(bench.node).limit) == (5, "/cg/agent/memory.max")
    assert (await report(bench.node)).memory == 5
    order = pb.PreflightOrder(order=bench.order(), destination=True, slot="n/0", bytes=5)
    (refused,) = (await preflight(bench.node, order)).refusals
    assert (refused.code, refused.what.rpartition(", ")[2]) == ("SH657", "/cg/agent/memory.max leaves 5B")
    for name in ("housed", "residents", "remarks", "memory_limits", "unfit"):
        monkeypatch.setattr(bench.runtime, name, lambda *_: (), raising=False)
    assert (room_of(bench.node).memory or 0) > 5
    assert not (await preflight(bench.node, order)).refusals
