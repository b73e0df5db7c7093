"""How long after a taint is put on a node its agent knows: a real API server, list and watch over TLS, the parser and the source's thread.

    .venv/bin/python tests/bench/taint.py

Prints the time from the beginning of the request that puts a taint on or off to the source's word, in milliseconds.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "apiserver"))
from control_plane import ControlPlane, asset, until  # pyright: ignore[reportMissingImports]
from shunter_agent.notices import listwatch, nodewatch
from shunter_agent.notices.gpus import Gpus
from shunter_agent.notices.port import Notice

TIMES = 500
TAINT = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}


class Told:
    """Waits until as many notices are open as wanted."""

    def __init__(self) -> None:
        self.wanted, self.at, self.now = 0, 0.0, -1
        self.news = threading.Event()

    def __call__(self, found: Mapping[str, Notice]) -> None:
        self.now = len(found)
        if self.now == self.wanted:
            self.at = time.perf_counter()
            self.news.set()


def measure(plane: ControlPlane) -> list[float]:
    """Seconds, ascending."""
    plane.must("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {}})
    access = listwatch.Access(server=plane.url, ca=plane.ca, cert=plane.folder / "admin.crt", key=plane.folder / "admin.key")
    told, took = Told(), []
    source = nodewatch.source(access, "a", "a", Gpus())
    source.start(told)
    try:
        for number in range(TIMES + 1):
            told.wanted = 1 - number % 2
            told.news.clear()
            began = time.perf_counter()
            body = {"spec": {"taints": [TAINT] * told.wanted}}
            plane.must("PATCH", "/api/v1/nodes/a", body, "application/merge-patch+json")
            if not told.news.wait(10):
                raise SystemExit("the taint wasn't heard of in 10 s")
            took.append(told.at - began)
    finally:
        source.stop()
    return sorted(took[1:])  # the first has the list and the connection in it


def main() -> None:
    """Measure and print."""
    server = asset("kube-apiserver")
    if server is None:
        raise SystemExit("no kube-apiserver: run scripts/install-apiserver")
    with tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane(Path(folder), server)
        try:
            plane.start()
            until(lambda: plane.ask("GET", "/api/v1/nodes")[0] == 200)
            took = measure(plane)
        finally:
            plane.stop()
    print(f"p50 {took[TIMES // 2] * 1e3:.1f} ms, p99 {took[TIMES * 99 // 100] * 1e3:.1f} ms, longest {took[-1] * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
