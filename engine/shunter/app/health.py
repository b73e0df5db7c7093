"""The engine about itself: metrics for Prometheus, liveness, and a readiness that depends on the age of what it decides on.

A process that runs but no longer learns anything isn't ready: the ages of policies, metrics and inventory decide, not the process. One
whose disk is full is ready, as it goes on with what is involuntary, but says so. The age of policies is the time since those in force were
last known to be the source's newest: it grows while the source is away, and as well while what it offers is refused.
"""

import json
import threading
from collections.abc import Callable, Iterable
from importlib.metadata import version
from itertools import product
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from shunter.app.degraded import FULL, VOLATILE, Condition
from shunter.app.gauges import CertificateGauges, FleetGauges
from shunter.app.settings import HealthSettings
from shunter.model.errors import Problem
from shunter.model.operation import UNDER_WAY, Status
from shunter.model.plan import OperationKind

_TICKS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_STOPS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds."""


class Metrics:
    """The engine's own metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tick_seconds = Histogram(
            "shunter_tick_seconds", "A whole tick: look, measure, decide, record", buckets=_TICKS, registry=self.registry
        )
        self.decide_seconds = Histogram("shunter_decide_seconds", "evaluate() alone", buckets=_TICKS, registry=self.registry)
        self.findings = Gauge("shunter_findings", "Findings of the last tick", ["verdict"], registry=self.registry)
        self.operations = Counter("shunter_operations_total", "Ended operations", ["kind", "status"], registry=self.registry)
        for kind, status in product(OperationKind, set(Status) - UNDER_WAY):
            self.operations.labels(kind.value, status.value)  # a series that begins with 1 has no increase
        self.stopped = Histogram(
            "shunter_worker_stopped_seconds",
            "Time that a worker stood still for an operation",
            ["kind"],
            buckets=_STOPS,
            registry=self.registry,
        )
        self.age = Gauge("shunter_input_age_seconds", "Age of what is decided on; +Inf: never seen", ["input"], registry=self.registry)
        self.limit = Gauge("shunter_input_age_limit_seconds", "Age from which the engine is not ready", ["input"], registry=self.registry)
        self.epoch = Gauge("shunter_epoch", "The engine's leadership number", registry=self.registry)
        self.problems = Gauge("shunter_policy_problems", "Problems of refused policy files", registry=self.registry)
        self.degraded = Gauge(
            "shunter_degraded",
            "1: nothing voluntary starts, as the engine's disk is full (reserve: durable) or takes no writes (memory: not durable)",
            ["on"],
            registry=self.registry,
        )
        self.told = Counter("shunter_problems_total", "Problems told, each once for as long as it lasts", ["code"], registry=self.registry)
        self.build = Gauge("shunter_build_info", "1, with the engine's version", ["version"], registry=self.registry)
        self.build.labels(version("shunter")).set(1)
        self.fleet = FleetGauges(self.registry)
        self.certificates = CertificateGauges(self.registry)
        self.unwritten = Gauge("shunter_unwritten", "What is in memory only, as the disk takes no writes", ["what"], registry=self.registry)


class Health:
    """Ages by input name (seconds, None: never), as the engine last set them; thread-safe since they are swapped whole."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._ages: dict[str, float | None] = {"policies": None, "inventory": None, "metrics": None}
        self._why: dict[str, Callable[[], Problem | None]] = {}
        self.limit(HealthSettings())
        self.degraded: str | None = None
        """What is wrong with the engine's disk, for people; None: nothing."""
        self.stands_by = False
        """Another engine leads: this one is ready to, and nothing else is asked of it but that it knows who does."""
        self.lease: Callable[[], float | None] = lambda: 0.0
        """How old that knowledge is, in seconds; None: it never knew."""
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

    def limit(self, limits: HealthSettings) -> None:
        """Set from which ages on an input is late."""
        self._limits = limits
        for name in self._ages:
            self._metrics.limit.labels(name).set(float(getattr(limits, name)))

    def explain(self, name: str, why: Callable[[], Problem | None]) -> None:
        """Have an input's lateness explained by what is wrong with it at that moment, if anything is known to be."""
        self._why[name] = why

    def late(self) -> dict[str, float | None]:
        """Inputs that are too old to be called ready; empty: ready."""
        if self.stands_by:
            age = self.lease()
            return {} if age is not None and age <= self._limits.lease else {"lease": age}
        return {name: age for name, age in self._ages.items() if age is None or age > getattr(self._limits, name)}

    def reasons(self, late: Iterable[str]) -> dict[str, str]:
        """For each of these inputs, a sentence for people: how old it is, how old it may be, and what is wrong with it."""
        return {name: self._reason(name) for name in late}

    def _reason(self, name: str) -> str:
        age, limit = self.lease() if name == "lease" else self._ages[name], getattr(self._limits, name)
        problem = self._why[name]() if name in self._why else None
        said = f"never seen since the start; it may be {limit:g} s old" if age is None else f"{age:.1f} s old, and may be {limit:g} s"
        return f"{said}: {problem}" if problem else said


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
        told = {"late": late, "reasons": health.reasons(late), "degraded": health.degraded, "standsBy": health.stands_by}
        status = "404 Not Found" if path not in ("/healthz", "/readyz") else "503 Service Unavailable" if late else "200 OK"
        start(status, [("Content-Type", "application/json")])
        return [json.dumps(told).encode() + b"\n"]

    host, _, port = listen.rpartition(":")
    server = make_server(host, int(port), app, ThreadingWSGIServer, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
