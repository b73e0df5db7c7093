"""1,000 policies as custom resources: how long until an engine that starts has them in force, until each has its status, and memory.

    .venv/bin/python tests/bench/cluster_policies.py [NUMBER]

The server is the one of tests/apiserver, on loopback. Reading and checking are what an engine does before its first decision.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "apiserver"))
from conftest import admin, install
from control_plane import ControlPlane, asset, until
from shunter.cluster.api import Api
from shunter.cluster.kinds import collection
from shunter.cluster.policies import ClusterSource
from shunter.lang.load import load
from shunter.model.finding import Finding, Verdict
from shunter.model.ids import PolicyName
from shunter.model.policy import API_VERSION

KIND = "CheckpointPolicy"


def policies(number: int) -> Iterator[dict[str, object]]:
    """Each with a condition of its own."""
    for index in range(number):
        spec = {
            "mode": "preview", "workers": {"graph": f"llama-{index % 50}", "where": f"worker.kvUsage < 0.{index % 90 + 10}"},
            "every": "5m", "when": f"worker.sessions > {index} || worker.imageAge > 300.0", "keep": {"last": 2}, "copies": 2,
        }  # fmt: skip
        yield {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": f"policy-{index:04d}"}, "spec": spec}


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(plane: ControlPlane, number: int) -> None:
    where = collection(KIND, "default")
    for one in policies(number):
        plane.must("POST", where, one)
    before, began, spent = megabytes(), time.perf_counter(), time.process_time()
    source = ClusterSource(lambda: Api(admin(plane)), "default", settle_s=0.1, quiet_s=0.0)
    try:
        revision = source.read(source.fetch())
        read_at = time.perf_counter()
        found = load(revision, None)
        assert len(found.policies) == number, found.problems[:3]
        loaded = time.perf_counter()
        print(f"{number:,} policies: {read_at - began:.2f} s to read, {loaded - read_at:.2f} s to check", end="")
        print(f" ({time.process_time() - spent:.2f} s of a core), {megabytes() - before:.0f} MB more")
        findings = [
            Finding(policy=PolicyName(p.name), subject=f"w{k}", verdict=Verdict.PASS, lane="voluntary", reason="nothing to do")
            for p in found.policies
            for k in range(10)
        ]
        began, spent = time.perf_counter(), time.process_time()
        source.report(found, findings, time.time())
        until(lambda: source._running is not None and source._running.writer.writes >= number, 300)
        took, spent = time.perf_counter() - began, time.process_time() - spent
        print(f"their statuses: {took:.2f} s ({spent:.2f} s of a core), {megabytes() - before:.0f} MB more in all")
    finally:
        source.close()


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    server = asset("kube-apiserver")
    if server is None:
        sys.exit("no kube-apiserver: run scripts/install-apiserver")
    with tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane(Path(folder), server)
        try:
            plane.start()
            install(plane)
            measure(plane, number)
        finally:
            plane.stop()


if __name__ == "__main__":
    main()
