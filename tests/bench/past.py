"""A backtest of a day over a real Prometheus: `backtest_24h`. As a program it is the backtest alone, so that its own memory is measured.

The samples are made up and written into blocks beforehand: five gauges of each worker every 30 s, with a queue in one graph for an hour.
"""

import asyncio
import contextlib
import json
import math
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import large
import msgspec
from shunter.app.backtest import Past, Span, backtest
from shunter.decide.profile import Profile
from shunter.model.snapshot import Fleet
from shunter.observe.catalog import Catalog
from shunter.observe.prometheus import Prometheus

BEGIN = large.NOW - 86400.0
"""The beginning of the day, seconds since the epoch."""
WORKERS, GRAPHS, SCRAPE_S = 1_000, 5, 30.0
_BLOCK_S = 7200.0
_GAUGES = {
    "vllm:num_requests_running": lambda n, t: 8 + n % 7,
    "vllm:num_requests_waiting": lambda n, t: 20 if n < large.PER_GRAPH and 30000 <= t < 33600 else 1,
    "vllm:kv_cache_usage_perc": lambda n, t: round(0.45 + 0.25 * math.sin(t / 7000 + n), 4),
    "shunter_worker_sessions": lambda n, t: (n + int(t) // 600) % 90,
    "shunter_worker_kv_tokens": lambda n, t: 100_000 + n % 997,
}


def fleet() -> Fleet:
    """The first thousand workers of the large fleet, on their nodes."""
    whole = large.snapshot(BEGIN).fleet
    nodes = WORKERS // large.PER_NODE
    return Fleet(nodes=whole.nodes[:nodes], workers=whole.workers[:WORKERS])


def measure(hours: float) -> dict[str, float]:
    """Seconds, seconds of CPU with the start of the process, and the peak of the backtest's own resident memory in bytes."""
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        raise SystemExit("backtest_24h needs prometheus and promtool")
    with tempfile.TemporaryDirectory() as folder, _serving(Path(folder), hours) as url:
        ended = subprocess.run([sys.executable, __file__, url, str(hours)], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


@contextlib.contextmanager
def _serving(folder: Path, hours: float) -> Iterator[str]:
    names = [w.id for w in fleet().workers]
    for begin in range(0, math.ceil(hours * 3600), int(_BLOCK_S)):
        _write(folder / "made.om", names, begin, min(begin + _BLOCK_S, hours * 3600 + SCRAPE_S))
        fill(folder)
    with started(folder) as url:
        yield url


def fill(folder: Path) -> None:
    """Make blocks of `made.om` in the folder, which goes."""
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(folder / "made.om"), str(folder / "tsdb")]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "made.om").unlink()


@contextlib.contextmanager
def started(folder: Path, *, last: bool = False) -> Iterator[str]:
    """A Prometheus over the blocks in the folder; gives its URL. `last`: whatever else wants the processors goes before it."""
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error", "--storage.tsdb.retention.time=50y"]
    process = subprocess.Popen([*(("nice", "-n", "19") if last else ()), *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while not _ready(url):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def _ready(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/-/ready", trust_env=False).status_code == 200
    return False


def _write(path: Path, names: list[str], begin: float, end: float) -> None:
    times = [begin + n * SCRAPE_S for n in range(int((end - begin) / SCRAPE_S))]
    with path.open("w") as file:
        for gauge, value in _GAUGES.items():
            file.write(f"# TYPE {gauge} gauge\n")
            for n, name in enumerate(names):
                labels = f'{gauge}{{worker="{name}",engine="0",model_name="m",instance="10.0.{n // 250}.{n % 250}:8000",job="workers"}}'
                file.writelines(f"{labels} {value(n, t)} {BEGIN + t - n % 30:.3f}\n" for t in times)
        file.write("# EOF\n")


async def _run(url: str, hours: float) -> tuple[float, int, int]:
    span = Span(begin=BEGIN + 60, end=BEGIN + hours * 3600, step=30.0)
    what = Past(fleet(), (), span, Catalog(), Profile())
    async with Prometheus(url, deadline_s=60) as server:
        begun = time.perf_counter()
        (found,) = await backtest(server, [large.policies(GRAPHS)], what)
        return time.perf_counter() - begun, found.steps, len(found.acts)


if __name__ == "__main__":
    seconds, steps, acts = asyncio.run(_run(sys.argv[1], float(sys.argv[2])))
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = {"seconds": seconds, "cpu": used.ru_utime + used.ru_stime, "bytes": used.ru_maxrss * 1024, "steps": steps, "operations": acts}
    sys.stdout.buffer.write(msgspec.json.encode(found))
