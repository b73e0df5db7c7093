"""A whole tick over a real Prometheus with 10,000 workers: `tick`. As a program it is the tick alone, so that its own memory is measured.

What it leaves out: asking 1,250 agents for their nodes (the fleet is given), and what is then written and ordered.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import large
import msgspec
import past
from shunter.app.world import World
from shunter.audit.decisions import Tracker
from shunter.decide.evaluate import evaluate
from shunter.lang.bulk import BulkCelRules
from shunter.model.ids import Epoch
from shunter.model.operation import EngineState
from shunter.model.plan import Evaluation
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Fleet, Snapshot
from shunter.observe.catalog import Catalog
from shunter.observe.prometheus import Prometheus

GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "shunter_worker_sessions",
    "shunter_worker_kv_tokens",
    "vllm:num_requests_swapped",
    "vllm:cpu_cache_usage_perc",
    "vllm:gpu_prefix_cache_hit_rate",
    "vllm:avg_prompt_throughput_toks_per_s",
    "vllm:avg_generation_throughput_toks_per_s",
    "vllm:lora_requests_info",
    "dynamo_component_uptime_seconds",
)
"""What each worker exposes: the catalog reads the first five."""
SCRAPES, SCRAPE_S = 8, 15.0
TICKS = 3


def measure() -> dict[str, float]:
    """Seconds of processor and of the clock, the peak of its own resident memory in bytes, and what was found."""
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder) / "made.om")
        past.fill(Path(folder))
        with past.started(Path(folder)) as url:
            ended = subprocess.run([sys.executable, __file__, url], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def _write(path: Path) -> None:
    with path.open("w") as file:
        for k, gauge in enumerate(GAUGES):
            file.write(f"# TYPE {gauge} gauge\n")
            for n in range(large.WORKERS):
                where = f'instance="10.{n // 62500}.{n // 250 % 250}.{n % 250}:8000",job="workers",engine="0",model_name="m"'
                for scrape in range(SCRAPES):
                    at = large.NOW - 1 - (SCRAPES - 1 - scrape) * SCRAPE_S - n % 10
                    file.write(f'{gauge}{{worker="worker-{n:05d}",{where}}} {(n * 7 + k + scrape) % 90 / 100} {at:.3f}\n')
        file.write("# EOF\n")


async def _run(url: str) -> dict[str, float]:
    fleet, policies, rules = large.snapshot().fleet, large.policies(), BulkCelRules()
    best: dict[str, float] = {}
    tracker = Tracker()
    async with Prometheus(url, deadline_s=60) as server:
        world = World({}, server, Catalog())
        for _ in range(TICKS):
            cpu, wall = time.process_time(), time.perf_counter()
            tracker, evaluation = await _tick(world, fleet, policies, rules, tracker)
            taken = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
            if not best or taken["cpu"] < best["cpu"]:
                best = {**taken, "findings": len(evaluation.findings), "operations": len(evaluation.plan.operations)}
    return best


async def _tick(world: World, fleet: Fleet, policies: PolicySet, rules: BulkCelRules, tracker: Tracker) -> tuple[Tracker, Evaluation]:
    samples = await world.measure(fleet, policies, large.NOW, within_s=60.0)
    snapshot = Snapshot(at=large.NOW, fleet=fleet, samples=samples)
    evaluation = evaluate(policies, [snapshot], EngineState(), large.NOW, rules)
    after, _ = tracker.observe(evaluation, large.NOW, Epoch(1), fleet)
    return after, evaluation


if __name__ == "__main__":
    found = asyncio.run(_run(sys.argv[1]))
    found["bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.buffer.write(msgspec.json.encode(found))
