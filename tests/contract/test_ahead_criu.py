"""Workers whose memory is copied ahead, dumped by a real CRIU, and restored by it from an image on top of the copy."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shunter_agent.images import spread
from shunter_agent.images.store import ImageStore
from shunter_agent.runtime.criu import CriuRuntime
from shunter_agent.runtime.network import Uplink
from shunter_agent.runtime.port import WorkerSpec
from test_chunks_sent import Moves
from test_images_sealed import sealed
from test_transfer import Pair, until

pytestmark = pytest.mark.lab

TREE = """
import hashlib, os, random, sys, time
# 24 MB that all three share until they write; each writes other pages, for ever, and knows what must be in all of them
memory = bytearray(random.Random(1).randbytes(24 << 20))
known = hashlib.blake2b(memory).hexdigest()
if os.fork() and os.fork():
    who = "root"
else:
    who = "child%d" % os.getpid()
rounds, grown, scratch = 0, [], bytearray(4 << 20)
file = open(os.path.join(sys.argv[1], who), "wb", buffering=0)  # of one name and size for ever: an image of any moment fits it
while True:
    rounds += 1
    at = rounds * 4096 * 7 % len(scratch)
    scratch[at] = rounds % 251
    if rounds % 20 == 0:
        grown.append(bytes([rounds % 251]) * 9000)
    right = all(set(part) == {(n + 1) * 20 % 251} for n, part in enumerate(grown[-50:], max(0, len(grown) - 50)))
    if rounds % 50 == 0:
        right = right and hashlib.blake2b(memory).hexdigest() == known
    if not right:
        os._exit(9)
    os.pwrite(file.fileno(), b"%012d" % rounds, 0)
    time.sleep(0.005)
"""


def rounds(folder: Path) -> dict[str, int]:
    return {path.name: int(path.read_text() or 0) for path in folder.iterdir()}


@pytest.fixture(params=["plain", "sealed"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Sealed: what is plain is on the lab's tmpfs."""

    def store(root: Path, _authority: object, _tls: object) -> ImageStore:
        return sealed(root, work=Path("/run") / f"work-{root.name}") if request.param == "sealed" else ImageStore(root)

    made = Pair(tmp_path, stores=store)
    with contextlib.closing(made.server):
        yield made


def test_a_tree_of_processes_goes_on_from_an_image_on_top_of_its_copy(criu: Path, pair: Pair, tmp_path: Path) -> None:
    runtime, moves, told = CriuRuntime(criu, Uplink(bridge="none")), Moves(pair), tmp_path / "told"
    told.mkdir()
    command = (sys.executable, "-c", TREE, str(told))
    spec = WorkerSpec(worker="w1", role="decode", graph="g", engine="test", address="127.0.0.1:9", command=command)
    network = runtime.network(spec)
    worker = runtime.start(spec, network).resume()
    try:
        until(lambda: len(rounds(told)) == 3 and min(rounds(told).values()) > 60, "all three work", 30)
        folder, sending = moves.begin("i1")
        memories = runtime.live(worker)
        assert len(memories) == 3
        assert sending.copy(memories, 30) == ""
        for memory in memories:
            memory.close()
        copied = sending.bytes
        at = rounds(told)
        until(lambda: all(rounds(told)[who] > at[who] + 40 for who in at), "they have changed since", 30)
        frozen = runtime.freeze(worker, spec, network, folder, lambda _at: None)
        moves.finish("i1", sending)
        frozen.release()
        at, there = rounds(told), pair.there.open_to_restore("i1")
        assert copied > 24 << 20
        assert sending.bytes - copied < 16 << 20, "what hadn't changed wasn't sent again"
        assert spread.is_spread(there)
        worker = runtime.restore(spec, network, there).resume()
        pair.there.close("i1")
        until(lambda: all(rounds(told)[who] > at[who] + 60 for who in at), "all three go on, and find their memory as it was", 30)
        runtime.end(worker)
        at = rounds(told)
        pair.there.sync("i1")
        assert not pair.there.is_spread("i1")
        assert pair.there.verify("i1") == pair.here.verify("i1") == ()
        assert pair.there.get("i1") == pair.here.get("i1")
        assert pair.there.unsealed() == ()
        worker = runtime.restore(spec, network, pair.there.open_to_restore("i1")).resume()
        pair.there.close("i1")
        until(lambda: all(rounds(told)[who] != at[who] for who in at), "they go on from the joined image, too", 30)
    finally:
        runtime.end(worker)
