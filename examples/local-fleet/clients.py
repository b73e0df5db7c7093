"""Clients of the local fleet: streams from the decode workers, each token checked, and prefill jobs at a rate that can be changed.

    clients.py --discovery DIR --workers 3 --spread 4,4,2 --tokens 2000 --control FILE --report FILE

Waits until that many decode workers are in discovery, and spreads the streams over them. `--control` is a file with the prefill jobs per
second; it is read again every half second. Ends when every stream has ended, or on SIGTERM. The report (JSON) is written every second and
at the end, atomically.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from discovery import instances
from tokens import Session, weights


@dataclass
class Stream:
    """What one client saw."""

    session: str
    worker: str
    wanted: int
    got: int = 0
    lost: int = 0
    duplicated: int = 0
    corrupt: int = 0
    longest_pause_s: float = 0.0
    paused_at: float = 0.0
    error: str = ""
    ended: bool = False

    def take(self, line: bytes, mirror: Session) -> None:
        """Check one line against what it must be."""
        number_text, _, value = line.decode().strip().partition(" ")
        number = int(number_text)
        if number < self.got:
            self.duplicated += 1
            return
        self.lost += number - self.got
        for _ in range(number - self.got):
            mirror.step()
        self.corrupt += mirror.step() != value
        self.got = number + 1


async def stream(seen: Stream, model: bytes, within_s: float = 60.0) -> None:
    """Read one session's tokens to the end, each within so many seconds; what went wrong is in `seen`, never raised."""
    mirror = Session(seen.session, model)
    host, port = seen.worker.split(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /v1/stream?session={seen.session}&tokens={seen.wanted} HTTP/1.1\r\nHost: {seen.worker}\r\n\r\n".encode())
        while (await reader.readline()).strip():
            pass
        last = time.monotonic()
        while line := await asyncio.wait_for(reader.readline(), within_s):
            now = time.monotonic()
            if now - last > seen.longest_pause_s:
                seen.longest_pause_s, seen.paused_at = now - last, time.time()
            last = now
            seen.take(line, mirror)
        writer.close()
    except (OSError, TimeoutError, ValueError) as error:
        seen.error = f"{type(error).__name__}: {error}"
    seen.ended = True


class Prefill:
    """Open-loop prefill traffic: jobs start at the given rate whether or not earlier ones have ended."""

    def __init__(self, discovery: Path, control: Path) -> None:
        self.discovery, self.control = discovery, control
        self.done = 0
        self.failed = 0
        self._jobs: set[asyncio.Task[None]] = set()

    async def job(self, worker: str) -> None:
        """One job, on a connection of its own."""
        host, port = worker.split(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"POST /v1/prefill HTTP/1.1\r\nHost: {worker}\r\nContent-Length: 0\r\n\r\n".encode())
            ok = b"200" in await asyncio.wait_for(reader.readline(), 150)
            writer.close()
        except (OSError, TimeoutError):
            ok = False
        self.done += ok
        self.failed += not ok

    def rate(self) -> float:
        """Jobs per second wanted now."""
        try:
            return float(self.control.read_text())
        except (OSError, ValueError):
            return 0.0

    async def run(self) -> None:
        """Start jobs until cancelled."""
        for turn in itertools.count():
            rate = self.rate()
            workers = instances(self.discovery, "prefill")
            if rate > 0 and workers:
                task = asyncio.create_task(self.job(workers[turn % len(workers)]))
                self._jobs.add(task)
                task.add_done_callback(self._jobs.discard)
            await asyncio.sleep(1 / rate if rate > 0 else 0.5)


def report(path: Path, streams: list[Stream], prefill: Prefill) -> None:
    """Write what was seen so far, atomically."""
    partial = path.with_suffix(".partial")
    partial.write_text(
        json.dumps({"streams": [asdict(s) for s in streams], "prefill_done": prefill.done, "prefill_failed": prefill.failed})
    )
    partial.replace(path)


async def main(options: argparse.Namespace) -> None:
    """Run all clients."""
    model = weights(options.weights_mb << 20)
    deadline = time.monotonic() + 30
    while len(workers := instances(options.discovery, "backend")) < options.workers and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    if len(workers) != len(options.spread):
        raise SystemExit(f"streams were asked for on {len(options.spread)} decode workers, but {len(workers)} are in discovery")
    # the first workers get more than their share, so that one stays lightly loaded
    spread = list(itertools.chain.from_iterable([w] * n for w, n in zip(workers, options.spread, strict=True)))
    streams = [Stream(f"session-{n}", worker, options.tokens) for n, worker in enumerate(spread)]
    prefill = Prefill(options.discovery, options.control)
    tasks = [asyncio.create_task(stream(s, model)) for s in streams]
    traffic = asyncio.create_task(prefill.run())
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    stopping = asyncio.create_task(stop.wait())
    while not stop.is_set() and not all(task.done() for task in tasks):
        report(options.report, streams, prefill)
        await asyncio.wait([stopping, *tasks], timeout=1, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            break
        await asyncio.sleep(0.2)
    for task in (*tasks, traffic, stopping):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    report(options.report, streams, prefill)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--discovery", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=3, help="decode workers to wait for")
    parser.add_argument("--spread", type=lambda text: [int(n) for n in text.split(",")], default=[4, 4, 2], help="streams on each of them")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--weights-mb", type=int, default=128)
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    asyncio.run(main(parser.parse_args()))
