"""What images of one model take of a disk: three checkpoints of one worker, and one of another, by a real CRIU.

scripts/lab .venv/bin/python tests/bench/kept.py FOLDER [--weights-mb N] [--cache-mb N] [--on-the-heap]

FOLDER is on the file system that is asked about, with nobody else writing there. A worker holds weights, which are the same in all of its
model, and a cache, of which a quarter is written between its checkpoints. The weights are a mapping of their own, which begins where a MiB
does, or, on the heap, at an address that is another in each process.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from shunter_agent.images.manifest import ImageInfo
from shunter_agent.images.store import ImageStore
from shunter_agent.runtime.criu import CriuRuntime
from shunter_agent.runtime.network import Uplink
from shunter_agent.runtime.port import WorkerSpec

CRIU = Path(os.environ.get("SHUNTER_CRIU") or "/opt/shunter/criu/bin/criu")
WORKER = """
import mmap, os, random, sys, time
model = random.Random("model")
if sys.argv[5] == "mapped":
    weights = mmap.mmap(-1, int(sys.argv[2]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for _ in range(int(sys.argv[2])):
        weights.write(model.randbytes(1 << 20))
else:
    weights = b"".join([model.randbytes(1 << 20) for _ in range(int(sys.argv[2]))])
own, size = random.Random(sys.argv[1]), int(sys.argv[3]) << 20
cache, at = bytearray(own.randbytes(size)), 0
while True:
    open(sys.argv[4], "w").write("ready")
    while os.path.exists(sys.argv[4]):
        time.sleep(0.02)
    cache[at:at + size // 4] = own.randbytes(size // 4)
    at = (at + size // 4) % size
"""


def used(folder: Path) -> int:
    """Bytes of the file system that are in use, with all on the disk."""
    subprocess.run(["sync", "-f", folder], check=True)
    stat = os.statvfs(folder)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


class Worker:
    """One process, which waits for its next checkpoint whenever its file is there."""

    def __init__(self, runtime: CriuRuntime, name: str, weights: int, cache: int, *, mapped: bool) -> None:
        self.runtime = runtime
        self.ready = Path(f"/run/kept-{name}")
        where = "mapped" if mapped else "heap"
        command = (sys.executable, "-c", WORKER, name, str(weights), str(cache), str(self.ready), where)
        self.spec = WorkerSpec(worker=name, role="decode", graph="g", engine="test", address="127.0.0.1:9", command=command)
        self.network = runtime.network(self.spec)
        self.process = runtime.start(self.spec, self.network).resume()

    def checkpoint(self, store: ImageStore, image: str) -> dict[str, object]:
        """Take one when it is ready for it, let it go on, and say what the image has and what the disk took for it."""
        while not self.ready.exists() or not self.ready.read_text():
            if not self.runtime.find(self.process):
                raise SystemExit("the worker has ended")
            time.sleep(0.02)
        before = used(store.root)
        frozen = self.runtime.freeze(self.process, self.spec, self.network, store.begin(image), lambda _at: None)
        frozen.thaw()
        info = ImageInfo(id=image, spec=self.spec, incarnation=1, taken_at=time.time(), runtime="criu")
        size = store.commit(info).bytes
        written, began = used(store.root), time.monotonic()
        store.sync(image)
        took = time.monotonic() - began
        self.ready.unlink()
        return {
            "image": image,
            "mb": round(size / 1e6, 1),
            "written_mb": round((written - before) / 1e6, 1),
            "kept_mb": round((used(store.root) - before) / 1e6, 1),
            "sharing_s": round(took, 2),
        }


def main() -> None:
    """Print one JSON object for each image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights-mb", type=int, default=256)
    parser.add_argument("--cache-mb", type=int, default=64)
    parser.add_argument("--on-the-heap", action="store_true")
    asked = parser.parse_args()
    runtime, root = CriuRuntime(CRIU, Uplink(bridge="none")), asked.folder / f"kept-{random.randrange(10**9)}"
    workers = [Worker(runtime, name, asked.weights_mb, asked.cache_mb, mapped=not asked.on_the_heap) for name in ("one", "other")]
    try:
        store = ImageStore(root)
        for worker, image in ((workers[0], "one-1"), (workers[0], "one-2"), (workers[0], "one-3"), (workers[1], "other-1")):
            print(json.dumps(worker.checkpoint(store, image)))
            assert store.verify(image) == ()
    finally:
        for worker in workers:
            runtime.end(worker.process)
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
