"""How much of an image goes over when it is moved, and how long a first one takes, beside a plain copy over the same link.

scripts/lab .venv/bin/python tests/bench/moved.py [--weights-mb N] [--between N] [--copies N] [--suffix S]

Real parts: the nodes, agents and worker of the local fleet, CRIU, and a client that streams from the worker. `second_move_bytes` is
what was sent for a worker's second move, over what of its image isn't the first one's: pages of memory by address, and all other files that
differ.
`first_image_over_cp` is the time of sending an image to a node that holds nothing, over that of sending the same files from one node to the
other through a bare TCP connection, and writing them there: over links that are held to a rate by a token bucket at both ends (10 Gbit/s;
`_1g`: 1 Gbit/s), and over none, where both ends' cores are all that is measured (`_unbounded`). `--suffix` ends the names, where more than
one size is measured. The fastest of each are compared: where a virtual machine's host has taken memory back, whoever gets it next takes up
to five times as long, ours or not.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import stopped
from fleet import Fleet, wait_for  # pyright: ignore[reportMissingImports]
from shunter.wire import agent_pb2 as pb
from shunter_agent.images.cutting import pagemaps_of, pages_name
from shunter_agent.images.manifest import MANIFEST, belongs
from shunter_agent.images.pagemap import PAGE

RATES = {"": 10.0, "_5g": 5.0, "_2_5g": 2.5, "_1g": 1.0, "_unbounded": None}
"""Gbit/s by what the figure's name ends with."""
RECEIVE = """
import os, socket, sys
listener = socket.create_server((sys.argv[1], 9555))
print("ready", flush=True)
link, _ = listener.accept()
stream = link.makefile("rb", buffering=1 << 20)
buffer = memoryview(bytearray(1 << 20))
while line := stream.readline():
    name, size = line.split()
    left = int(size)
    with open(os.path.join(sys.argv[2], name.decode()), "wb", buffering=0) as file:
        while left:
            count = stream.readinto(buffer[: min(left, len(buffer))])
            file.write(buffer[:count])
            left -= count
link.sendall(b"1")
"""
SEND = """
import os, socket, sys, time
began = time.perf_counter()
link = socket.create_connection((sys.argv[1], 9555))
for name in sorted(os.listdir(sys.argv[2])):
    path = os.path.join(sys.argv[2], name)
    link.sendall(f"{name} {os.path.getsize(path)}\\n".encode())
    with open(path, "rb") as file:
        link.sendfile(file)
link.shutdown(socket.SHUT_WR)
link.recv(1)
print(time.perf_counter() - began)
"""


def images(fleet: Fleet, node: str) -> Path:
    """Where a node keeps its images."""
    return fleet.nodes[node].folder / "state" / "images"


def pages(folder: Path) -> dict[tuple[str, int], bytes]:
    """Every page of an image by its pagemap's name and address."""
    found = {}
    for name, pagemap in pagemaps_of(folder).items():
        data, at = (folder / pages_name(pagemap)).read_bytes(), 0
        for run in pagemap.own:
            for n in range(run.pages):
                found[name, run.vaddr + n * PAGE] = data[at : at + PAGE]
                at += PAGE
    return found


def changed(old: Path, new: Path) -> int:
    """Bytes of the new image that aren't in the old one."""
    before, after = pages(old), pages(new)
    memory = sum(PAGE for place, page in after.items() if before.get(place) != page)
    others = [path for path in new.iterdir() if belongs(path.name) and not path.name.startswith("pages-")]
    return memory + sum(path.stat().st_size for path in others if not _same(old / path.name, path))


def _same(old: Path, new: Path) -> bool:
    return old.exists() and old.read_bytes() == new.read_bytes()


async def second_move(fleet: Fleet, between: float) -> dict[str, float]:
    """There and back again, with `between` seconds of work between."""
    bench = stopped.Bench(fleet)
    bench.connect()
    first, second = list(fleet.nodes)
    await bench.move(first, second, keep=True)
    one = bench.image
    there = images(fleet, second)
    began = time.monotonic()
    await asyncio.to_thread(wait_for, "the first image to be joined", lambda: not (there / one / "whole").exists(), 60)
    await asyncio.sleep(max(0.0, began + between - time.monotonic()))
    move = await bench.move(second, first, keep=True)
    differ = await asyncio.to_thread(changed, there / one, there / bench.image)
    return {"sent": move["sent"], "changed": float(differ), "bytes": move["bytes"], "ratio": move["sent"] / differ}


@contextlib.contextmanager
def held_to(fleet: Fleet, gbit: float | None) -> Iterator[None]:
    """The nodes' links at a rate. None: as they are."""
    if gbit is None:
        yield
        return
    burst = max(256_000, round(gbit * 1e9 / 8 * 0.001))  # a ms of it, and no less than a few of the packets that leave a host at once
    shape = ["root", "tbf", "rate", f"{gbit:g}gbit", "burst", f"{burst}b", "latency", "20ms"]
    for node in fleet.nodes:
        subprocess.run([*inside(fleet, node), "tc", "qdisc", "replace", "dev", "uplink", *shape], check=True)
    try:
        yield
    finally:
        for node in fleet.nodes:
            subprocess.run([*inside(fleet, node), "tc", "qdisc", "del", "dev", "uplink", "root"], check=True)


async def first_image(fleet: Fleet, copies: int, gbit: float | None = None) -> dict[str, float]:
    """An image of a worker that runs, sent to a node that holds none; and the bare copy, in turn."""
    bench = stopped.Bench(fleet)
    bench.connect()
    with held_to(fleet, gbit):
        return await _first_image(fleet, bench, copies)


async def _first_image(fleet: Fleet, bench: stopped.Bench, copies: int) -> dict[str, float]:
    there, here = list(fleet.nodes)  # the worker is back where it began
    here, there = there, here
    agent, peer = bench.agents[here], bench.agents[there]
    report = await agent.Inventory(pb.InventoryRequest(), timeout=10)
    (worker,) = report.workers
    ours, bare = [], []
    for _ in range(copies):
        order = pb.Order(operation=str(uuid.uuid4()), epoch=1, plan="bench", worker=worker.spec.worker, incarnation=worker.incarnation)
        image = str(uuid.uuid4())
        await agent.Checkpoint(pb.CheckpointOrder(order=order, image=image), timeout=60)
        for held in (await peer.Inventory(pb.InventoryRequest(), timeout=10)).images:
            await peer.Discard(pb.DiscardOrder(order=order, image=held.id), timeout=10)
        node = fleet.nodes[there]
        to = pb.Peer(node=there, address=f"{node.address}:{node.port(1)}")

        # the bare copy first: an agent brings what it has received to the disk afterwards, and would hold up who comes next
        subprocess.run(["sync"], check=True)
        bare.append(await asyncio.to_thread(copy, fleet, here, there, images(fleet, here) / image))
        subprocess.run(["sync"], check=True)
        ours.append((await agent.Send(pb.SendOrder(order=order, image=image, to=to), timeout=120)).send_s)
        for each in (agent, peer):
            await each.Discard(pb.DiscardOrder(order=order, image=image), timeout=10)
        print(f"first image: ours {ours[-1]:.3f} s, bare {bare[-1]:.3f} s", flush=True)
    return {"ours": round(min(ours), 3), "bare": round(min(bare), 3), "ratio": round(min(ours) / min(bare), 2)}


def inside(fleet: Fleet, node: str) -> list[str]:
    """Before a command that is to run in a node's network."""
    agent = fleet.nodes[node].agent
    assert agent is not None
    return ["nsenter", f"--net=/proc/{agent.pid}/ns/net", "--"]


def copy(fleet: Fleet, here: str, there: str, folder: Path) -> float:
    """Seconds that the same files take from node to node through a bare TCP connection."""
    plain = fleet.folder / "plain"
    plain.mkdir()
    files = fleet.folder / "files"
    files.mkdir()
    for path in folder.iterdir():
        if belongs(path.name) or path.name == MANIFEST:
            (files / path.name).hardlink_to(path)
    address = fleet.nodes[there].address
    receiver = subprocess.Popen([*inside(fleet, there), sys.executable, "-c", RECEIVE, address, str(plain)], stdout=subprocess.PIPE)
    assert receiver.stdout
    receiver.stdout.readline()
    done = subprocess.run(
        [*inside(fleet, here), sys.executable, "-c", SEND, address, str(files)], check=True, capture_output=True, text=True
    )
    receiver.wait(30)
    receiver.stdout.close()
    shutil.rmtree(plain)
    shutil.rmtree(files)
    return float(done.stdout)


def main() -> None:
    """Print a JSON object for each figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--weights-mb", type=int, default=128)
    parser.add_argument("--between", type=float, default=10.0, help="seconds between the two moves")
    parser.add_argument("--copies", type=int, default=5)
    parser.add_argument("--suffix", default="")
    options = parser.parse_args()

    def figure(name: str, value: float, target: float, how: str) -> dict[str, object]:
        """A line as tests/bench/run.py prints."""
        named = f"{name}{options.suffix}"
        return {"name": named, "value": round(value, 2), "unit": "ratio", "target": target, "met": value <= target, "how": how}

    with (
        tempfile.TemporaryDirectory(prefix="shunter-bench-") as folder,
        Fleet(Path(folder), weights_mb=options.weights_mb, nodes=stopped.NODES) as fleet,
    ):
        fleet.start_nodes()
        stopped.stream(fleet, 100_000)
        second = asyncio.run(second_move(fleet, options.between))
        sent, differ, every = (second[key] / 1e6 for key in ("sent", "changed", "bytes"))
        how = f"{sent:.2f} MB sent, {differ:.2f} MB changed in {options.between:g} s, of {every:.1f} MB"
        print(json.dumps(figure("second_move_bytes", second["ratio"], 1.2, how)), flush=True)
        for name, gbit in RATES.items():
            first = asyncio.run(first_image(fleet, options.copies, gbit))
            at = f"at {gbit:g} Gbit/s" if gbit else "as fast as the cores go"
            how = f"{every:.0f} MB {at}, the fastest of {options.copies} each: {first['ours']} s, {first['bare']} s"
            print(json.dumps(figure(f"first_image_over_cp{name}", first["ratio"], 1.25, how)), flush=True)


if __name__ == "__main__":
    main()
