"""10,000 workers' pods on 1,250 nodes and 1,000 policies: how long until an engine that starts has decided once, and memory.

    .venv/bin/python tests/bench/cluster_pods.py [PODS [POLICIES]]

The server is the one of tests/apiserver, on loopback; pods and policies are in it before the engine's parts begin. Agents' reports are made
up (each knows the workers of its node by their pods' uids) and take no time; Prometheus isn't asked. What is counted is what lies between a
process that has its imports and its first findings: nodes and pods listed and read, policies listed, read and checked, reports merged with
pods, and all decided. A tick's looking is told apart, as it comes again each second: merging, and joining with the pods.
"""

import contextlib
import gc
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "apiserver"))
from cluster_policies import KIND, megabytes, policies
from conftest import admin, install
from control_plane import ControlPlane, asset
from nodes_simulated import node, worker
from shunter.cluster.api import Api
from shunter.cluster.estate import Estate, Following, Where
from shunter.cluster.joined import joined, reported
from shunter.cluster.kinds import collection
from shunter.cluster.policies import ClusterSource
from shunter.decide.evaluate import evaluate
from shunter.lang.bulk import BulkCelRules
from shunter.lang.load import load
from shunter.model.ids import Epoch, Incarnation, NodeId, slot_id
from shunter.model.operation import EngineState
from shunter.model.snapshot import Node, Slot, Snapshot, Worker, WorkerState
from shunter.model.view import NodeView
from shunter.observe.inventory import merge

NAMESPACE = "dynamo"
PER_NODE = 8


def pods(number: int) -> Iterator[dict[str, Any]]:
    """Of 50 graphs, as many bytes each as such pods have: some 5 kB, with what servers note on who wrote which field."""
    for index in range(number):
        made = worker(f"llama-{index % 50}-{'decode' if index % 4 else 'prefill'}-{index:05d}", NAMESPACE, f"node-{index // PER_NODE:04d}")
        labels = made["metadata"]["labels"]
        labels |= {"nvidia.com/dynamo-graph-deployment-name": f"llama-{index % 50}", "pod-template-hash": f"{index % 50:05d}"}
        labels["nvidia.com/dynamo-sub-component-type"] = "decode" if index % 4 else "prefill"
        container = made["spec"]["containers"][0]
        container["env"] = [{"name": f"DYN_SETTING_{k}", "value": "v" * 40} for k in range(30)]
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]
        running = {"name": "main", "state": {"running": {}}, "ready": True, "restartCount": 0, "image": "i", "imageID": "i"}
        made["status"] = {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions, "containerStatuses": [running]}
        yield made


def fill(plane: ControlPlane, pods_number: int, policies_number: int) -> None:
    """All of it into the server; statuses apart, as servers want it."""
    plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": "shunter-agents"}})
    for index in range(-(-pods_number // PER_NODE)):
        plane.must("POST", "/api/v1/nodes", node(f"node-{index:04d}", zone="ab"[index % 2]))
    for one in policies(policies_number):
        plane.must("POST", collection(KIND, "default"), one)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    for one in pods(pods_number):
        status = one.pop("status")
        plane.must("POST", path, one)
        where = f"{path}/{one['metadata']['name']}/status"
        plane.must("PATCH", where, {"status": status}, "application/merge-patch+json")


def views(estate: Estate) -> list[NodeView]:
    """What agents would report, now."""
    now = time.time()
    found: dict[NodeId, list[Worker]] = {}
    for pod in estate.pods.values():
        assert pod.node is not None
        own = found.setdefault(pod.node, [])
        who = pod.resident
        own.append(
            Worker(
                id=who.id, role=who.role, graph=who.graph, engine=who.engine, state=WorkerState.RUNNING, node=pod.node,
                slot=slot_id(pod.node, len(own)), incarnation=Incarnation(0), pod=pod.pod, memory=80 * 10**9,
            )
        )  # fmt: skip
    made = []
    for name, own in sorted(found.items()):
        slots = tuple(Slot(id=slot_id(name, k), gpus=1, worker=own[k].id if k < len(own) else None) for k in range(PER_NODE + 1))
        made.append(NodeView(node=Node(id=name, slots=slots), workers=tuple(own), images=(), notices=(), epoch=Epoch(1), at=now))
    return made


class Clock:
    """Seconds on the wall and of a core since the last lap."""

    def __init__(self) -> None:
        self._last = time.perf_counter(), time.process_time()

    def lap(self) -> tuple[float, float]:
        """Since the one before."""
        now = time.perf_counter(), time.process_time()
        last, self._last = self._last, now
        return now[0] - last[0], now[1] - last[1]


def measure(plane: ControlPlane) -> None:
    gc.collect()
    before, clock = megabytes(), Clock()
    source = ClusterSource(lambda: Api(admin(plane)), "default", settle_s=0.1, quiet_s=0.0)
    following = Following(lambda: Api(admin(plane)), Where(namespace=NAMESPACE))
    try:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(lambda: load(source.read(source.fetch()), None))
            following.wait(300.0)
            found = reading.result()
        read = clock.lap()
        estate = following.estate()
        told = views(estate)  # agents' part: not counted
        clock.lap()
        merged = merge(told, None, (), [v.node.id for v in told], time.time())
        fleet = joined(merged.fleet, estate)
        looked = clock.lap()
        evaluation = evaluate(found, [Snapshot(at=time.time(), fleet=fleet)], EngineState(), time.time(), BulkCelRules())
        decided = clock.lap()
        print(f"{len(estate.pods):,} pods on {len(estate.nodes):,} nodes, {len(found.policies):,} policies: first decision after", end=" ")
        print(f"{read[0] + looked[0] + decided[0]:.2f} s ({read[1] + looked[1] + decided[1]:.2f} s of a core)")
        for what, (wall, core) in (("listed, read and checked", read), ("merged and joined", looked), ("decided", decided)):
            print(f"  {what}: {wall:.2f} s ({core:.2f})")
        more = megabytes() - before
        print(f"  {len(evaluation.plan.operations):,} operations; {more:.0f} MB more in all")
        there = f"{len(estate.pods):,} pods on {len(estate.nodes):,} nodes and {len(found.policies):,} policies"
        how = f"{there} in a real API server on loopback"
        _figure("cluster_start", read[0] + looked[0] + decided[0], "s", f"{how}: listed, read, checked, joined and decided once")
        _figure("cluster_memory", more, "MB", f"{how}: what they take in the engine's process")
        again = time.process_time()
        for _ in range(5):
            fleet = joined(merge(told, reported(fleet), (), [v.node.id for v in told], time.time()).fleet, estate)
        both = (time.process_time() - again) / 5
        again = time.process_time()
        for _ in range(5):
            merge(told, merged.fleet, (), [v.node.id for v in told], time.time())
        alone = (time.process_time() - again) / 5
        print(f"  each look: {1000 * both:.0f} ms of a core, {1000 * (both - alone):.0f} of them for pods")
    finally:
        following.close()
        source.close()


def _figure(name: str, value: float, unit: str, how: str) -> None:
    print(json.dumps({"name": name, "value": round(value, 2), "unit": unit, "target": None, "met": None, "how": how}))


def main() -> None:
    pods_number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    policies_number = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
    server = asset("kube-apiserver")
    if server is None:
        sys.exit("no kube-apiserver: run scripts/install-apiserver")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        plane = ControlPlane(Path(folder), server)
        stack.callback(plane.stop)
        plane.start()
        install(plane)
        fill(plane, pods_number, policies_number)
        measure(plane)


if __name__ == "__main__":
    main()
