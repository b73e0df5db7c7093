"""The engine about itself: metrics for Prometheus, liveness, and a readiness that depends on the age of what it decides on.

A process that runs but no longer learns anything isn't ready: the ages of policies, metrics and inventory decide, not the process. One
whose disk is full is ready, as it goes on with what is involuntary, but says so.
"""

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from shunter.app.degraded import FULL, VOLATILE, Condition

READY_AGE_S = 30.0
"""Older inventory or metrics than this: not ready."""
POLICY_AGE_S = 300.0
"""A policy source that hasn't answered for longer than this: not ready."""


class Metrics:
    """The engine's own metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tick_seconds = Histogram("shunter_tick_seconds", "A whole tick: look, measure, decide, record", registry=self.registry)
        self.decide_seconds = Histogram("shunter_decide_seconds", "evaluate() alone", registry=self.registry)
        self.findings = Gauge("shunter_findings", "Findings of the last tick", ["verdict"], registry=self.registry)
        self.operations = Counter("shunter_operations_total", "Ended operations", ["kind", "status"], registry=self.registry)
        self.stopped = Histogram(
            "shunter_worker_stopped_seconds", "Time that a worker stood still for an operation", ["kind"], registry=self.registry
        )
        self.age = Gauge("shunter_input_age_seconds", "Age of what is decided on; +Inf: never seen", ["input"], registry=self.registry)
        self.epoch = Gauge("shunter_epoch", "The engine's leadership number", registry=self.registry)
        self.problems = Gauge("shunter_policy_problems", "Problems of refused policy files", registry=self.registry)
        self.degraded = Gauge(
            "shunter_degraded",
            "1: nothing voluntary starts, as the engine's disk is full (reserve: durable) or takes no writes (memory: not durable)",
            ["on"],
            registry=self.registry,
        )
        self.unwritten = Gauge("shunter_unwritten", "What is in memory only, as the disk takes no writes", ["what"], registry=self.registry)


class Health:
    """Ages by input name (seconds, None: never), as the engine last set them; thread-safe since they are swapped whole."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._ages: dict[str, float | None] = {"policies": None, "inventory": None, "metrics": None}
        self.degraded: str | None = None
        """What is wrong with the engine's disk, for people; None: nothing."""
        self.disk(None)

    def update(self, ages: dict[str, float | None]) -> None:
        """Set the ages of this moment."""
        self._ages = ages
        for name, age in ages.items():
            self._metrics.age.labels(name).set(float("inf") if age is None else age)

    def disk(self, wrong: Condition | None) -> None:
        """Set what is wrong with the engine's disk at this moment."""
        self.degraded = str(wrong.problem) if wrong is not None else None
        for on, code in (("reserve", FULL), ("memory", VOLATILE)):
            self._metrics.degraded.labels(on).set(wrong is not None and wrong.problem.code == code)
        for what, number in (("changes", wrong.changes if wrong else 0), ("records", wrong.records if wrong else 0)):
            self._metrics.unwritten.labels(what).set(number)

    def late(self) -> dict[str, float | None]:
        """Inputs that are too old to be called ready; empty: ready."""
        limits = {"policies": POLICY_AGE_S}
        return {name: age for name, age in self._ages.items() if age is None or age > limits.get(name, READY_AGE_S)}


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401  (the base class's signature)
        """Say nothing: a scrape a second isn't news."""


def serve(listen: str, metrics: Metrics, health: Health) -> Callable[[], None]:
    """Serve /metrics, /healthz and /readyz at `host:port` from a thread of its own; returns what stops it. Raises OSError."""
    exposition = make_wsgi_app(metrics.registry)

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            page: Iterable[bytes] = exposition(environ, start)
            return page
        late = health.late() if path == "/readyz" else {}
        status = "404 Not Found" if path not in ("/healthz", "/readyz") else "503 Service Unavailable" if late else "200 OK"
        start(status, [("Content-Type", "application/json")])
        return [json.dumps({"late": late, "degraded": health.degraded}).encode() + b"\n"]

    host, _, port = listen.rpartition(":")
    server = make_server(host, int(port), app, ThreadingWSGIServer, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
