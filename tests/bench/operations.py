"""What it costs to have operations in an API server: a step, 500 intents at once, a new leader's beginning, and the fleet in a ConfigMap.

    .venv/bin/python tests/bench/operations.py

The server is the one of tests/apiserver, on loopback, with an etcd that doesn't wait for its disk.
"""

import base64
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "apiserver"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "property"))
from conftest import install
from control_plane import ControlPlane, asset
from shunter.act.beyond import Remembered
from shunter.act.store import Store
from shunter.model.canon import encode
from shunter.model.ids import Incarnation, NodeId, OperationId, SlotId, WorkerId
from shunter.model.operation import Outcome, Status, Step
from shunter.model.snapshot import Fleet, Node, Slot, Worker, WorkerState
from test_operations import Site, intent

STEPS = (Step.PREPARED, Step.FENCED, Step.FROZEN, Step.HELD, Step.COMMITTING, Step.RELEASED, Step.RESUMED, Step.UNFENCED)
MOVES = 50
AT_ONCE = 500


def fleet(workers: int) -> Fleet:
    """Nodes of eight slots, each occupied, with labels and facts as real ones have them."""
    rnd = random.Random(1)
    nodes, found = [], []
    for number in range(workers // 8):
        node = NodeId(f"gpu-node-{number:05d}.cluster.example.com")
        slots = tuple(
            Slot(id=SlotId(f"{node}/{k}"), gpu_model="B200", gpus=1, worker=WorkerId(f"decode-{number * 8 + k:05d}")) for k in range(8)
        )
        facts = {"driver": "580.95.05", "kernel": "6.8.0-60-generic", "cuda": "13.0"}
        nodes.append(Node(id=node, slots=slots, seen_at=1.8e9, labels={"zone": f"z{number % 3}"}, facts=facts))
        found += [
            Worker(
                id=slot.worker, role="decode", graph="llama-70b", engine="vllm", state=WorkerState.RUNNING, node=node, slot=slot.id,
                incarnation=Incarnation(rnd.randrange(5)), labels={"tier": "gold", "team": "inference"},
                address=f"10.{number >> 8}.{number & 255}.{slot.id[-1]}:8000", memory=rnd.randrange(10**11),
            )
            for slot in slots
            if slot.worker is not None
        ]  # fmt: skip
    return Fleet(nodes=tuple(nodes), workers=tuple(found))


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def carry(store: Store, name: str) -> list[float]:
    """A move's writes, and how long each step took; seconds."""
    operation = OperationId(name)
    store.insert([intent(name, 1)])
    steps = [timed(lambda step=step: store.advance(operation, step, time.time())) for step in STEPS]  # type: ignore[misc]
    store.finish(operation, Outcome(status=Status.SUCCEEDED, at=time.time()))
    return steps


def measure(plane: ControlPlane, folder: Path) -> None:
    first = Site(plane, "default", folder / "first", 1)
    alone = Store(folder / "alone.db")
    there = [seconds for number in range(MOVES) for seconds in carry(first.store, f"move-{number}")]
    here = [seconds for number in range(MOVES) for seconds in carry(alone, f"move-{number}")]
    for name, found in (("API server and disk", there), ("disk alone", here)):
        print(f"a step, {name}: median {1e3 * statistics.median(found):.1f} ms, p99 {1e3 * sorted(found)[int(0.99 * len(found))]:.1f} ms")
    batch = [intent(f"many-{number}", 1, waits=number > 0) for number in range(AT_ONCE)]
    print(f"{AT_ONCE} intents at once: {timed(lambda: first.store.insert(batch)):.2f} s")
    time.sleep(5.0)  # for their statuses, which come later
    first.close()
    began = time.perf_counter()
    second = Site(plane, "default", folder / "second", 2)
    took = time.perf_counter() - began
    print(f"a new leader's beginning with {len(second.store.active())} under way, its epoch in each: {took:.2f} s")
    second.close()
    alone.close()


def main() -> None:
    for workers in (1_000, 10_000, 20_000):
        body = encode(Remembered(at=1.8e9, fleet=fleet(workers)))
        began = time.process_time()
        packed = base64.b64encode(zlib.compress(body, 6))
        print(f"a fleet of {workers:,} workers: {len(packed):,} bytes in a ConfigMap, {time.process_time() - began:.2f} s to pack")
    server = asset("kube-apiserver")
    if server is None:
        sys.exit("no kube-apiserver: run scripts/install-apiserver")
    with tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane(Path(folder), server)
        try:
            plane.start()
            install(plane)
            time.sleep(5.0)  # a new kind's first creation has to wait
            measure(plane, Path(folder))
        finally:
            plane.stop()


if __name__ == "__main__":
    main()
