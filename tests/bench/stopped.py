"""How long a worker stands still when it is moved, step by step, and beside it the same move by hand with criu and cp.

scripts/lab .venv/bin/python tests/bench/stopped.py [--moves N] [--weights-mb N]

Two nodes are built as in the demo; a worker that a client streams from goes back and forth between them, by the engine's own orders in the
protocol's order. Moves by hand are taken in turn with ours, so that both see the same machine, each with nothing left to write to its disk.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import grpc.aio
from shunter.wire import agent_pb2 as pb
from shunter.wire import agent_pb2_grpc as rpc

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "local-fleet"))
from byhand import move_by_hand  # pyright: ignore[reportMissingImports]
from fleet import ANY, HERE, Fleet, NodePlan, WorkerPlan, wait_for  # pyright: ignore[reportMissingImports]

NODES = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
)


COUNTS = ("bytes", "sent")


class Bench:
    """The orders of a move, timed."""

    def __init__(self, fleet: Fleet) -> None:
        certs = fleet.folder / "certs"
        ca, key, cert = ((certs / name).read_bytes() for name in ("ca.pem", "engine.key", "engine.pem"))
        self.credentials = grpc.ssl_channel_credentials(ca, key, cert)
        self.fleet = fleet
        self.agents: dict[str, Any] = {}
        self.image = ""
        """The last move's."""

    def connect(self) -> None:
        """To be called in the event loop."""
        for name, node in self.fleet.nodes.items():
            options = (("grpc.ssl_target_name_override", f"{name}.agent.shunter"),)
            channel = grpc.aio.secure_channel(f"{node.address}:{node.port(0)}", self.credentials, options)
            self.agents[name] = rpc.AgentStub(channel)

    async def move(self, source: str, to: str, *, keep: bool = False) -> dict[str, float]:
        """Move the worker; seconds of each part. `dump` begins when it stands still; `total` ends when its copy runs. `sent` is how many
        bytes went over. The image is discarded afterwards, unless it is to be kept, as an engine does until there is a newer one.
        """
        here, there = self.agents[source], self.agents[to]
        report = await here.Inventory(pb.InventoryRequest(), timeout=10)
        (worker,) = report.workers
        order = pb.Order(operation=str(uuid.uuid4()), epoch=1, plan="bench", worker=worker.spec.worker, incarnation=worker.incarnation)
        image, step = str(uuid.uuid4()), pb.StepOrder(order=order)
        self.image = image
        began = time.time()
        host = self.fleet.nodes[to]
        await there.Prepare(pb.PrepareOrder(order=order, slot=f"{to}/0", spec=worker.spec), timeout=10)
        await here.Fence(step, timeout=10)
        peer = pb.Peer(node=to, address=f"{host.address}:{host.port(1)}")
        frozen = await here.Freeze(pb.FreezeOrder(order=order, image=image, to=peer, hold_s=20), timeout=60)
        marks = [time.time()]
        for call in (
            lambda: there.Restore(pb.RestoreOrder(order=order, slot=f"{to}/0", image=image, hold_s=20), timeout=60),
            lambda: here.Release(step, timeout=60),
            lambda: there.Resume(step, timeout=60),
        ):
            reply = await call()
            marks.append(time.time())
        await there.Unfence(step, timeout=10)
        journal = await here.Journal(pb.JournalRequest(operation=order.operation), timeout=10)
        (detail,) = [entry.detail for entry in journal.entries if entry.step == "freeze"]
        for agent in () if keep else (here, there):
            await agent.Discard(pb.DiscardOrder(order=order, image=image), timeout=10)
        spent = [after - before for before, after in itertools.pairwise(marks)]
        running = reply.running_at
        return {
            "dump": frozen.dump_s,
            "send": frozen.send_s - frozen.dump_s,
            "freeze": marks[0] - frozen.frozen_at,
            "restore": spent[0],
            "release": spent[1],
            "resume": running - marks[2],
            "total": running - frozen.frozen_at,
            "before": frozen.frozen_at - began,
            "bytes": float(frozen.image.bytes),
            "sent": float(detail.split(", ")[1].split()[0]),
        }


def stream(fleet: Fleet, tokens: int) -> Path:
    """A client that streams from the worker while it is moved; returns where it writes what it saw."""
    control, report = fleet.folder / "rate", fleet.folder / "clients.json"
    control.write_text("0")
    arguments = ["--discovery", str(fleet.discovery), "--workers", "1", "--spread", "1", "--tokens", str(tokens)]
    arguments += ["--weights-mb", str(fleet.weights_mb), "--control", str(control), "--report", str(report)]
    fleet.run(sys.executable, str(HERE / "clients.py"), *arguments, log="clients.log")
    wait_for("the client's stream", lambda: report.exists() and '"got": 0' not in report.read_text(), 60)
    return report


async def measure(fleet: Fleet, moves: int, by_hand: bool) -> tuple[list[dict[str, float]], list[float]]:
    """Ours and those by hand, in turn."""
    bench, ours, hand = Bench(fleet), [], []
    bench.connect()
    names = list(fleet.nodes)
    for number in range(moves):
        await asyncio.to_thread(os.sync)  # neither pays for what the other has written
        ours.append(await bench.move(names[number % 2], names[(number + 1) % 2]))
        print(f"{number:3}  ", "  ".join(f"{key} {value:.3f}" for key, value in ours[-1].items() if key not in COUNTS), flush=True)
        if by_hand:
            folder = fleet.folder / "by-hand"
            await asyncio.to_thread(os.sync)
            megabytes = round(ours[0]["bytes"] / 2**20) - 12  # 12 MB: the interpreter itself
            hand.append(await asyncio.to_thread(move_by_hand, folder, fleet.criu, megabytes))
            shutil.rmtree(folder)
            print(f"     by hand {hand[-1]:.3f}", flush=True)
    return ours, hand


def summary(values: list[float]) -> dict[str, float]:
    """Median, least and most, in seconds."""
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


def main() -> None:
    """Print each move and, as the last line, a JSON object of the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--moves", type=int, default=10)
    parser.add_argument("--weights-mb", type=int, default=128)
    parser.add_argument("--no-by-hand", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="shunter-bench-") as folder,
        Fleet(Path(folder), weights_mb=options.weights_mb, nodes=NODES) as fleet,
    ):
        fleet.start_nodes()
        stream(fleet, 100_000)
        ours, hand = asyncio.run(measure(fleet, options.moves, not options.no_by_hand))
    figures: dict[str, object] = {
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "image_mb": round(ours[0]["bytes"] / 1e6, 1),
        "sent_mb": round(statistics.median(move["sent"] for move in ours) / 1e6, 1),
        "moves": len(ours),
        **{part: summary([move[part] for move in ours]) for part in ours[0] if part not in COUNTS},
    }
    if hand:
        figures["by_hand"] = summary(hand)
        figures["ratio"] = round(statistics.median(move["total"] for move in ours) / statistics.median(hand), 2)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
