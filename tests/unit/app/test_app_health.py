"""Readiness by the age of what is decided on, and the pages that tell it."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest
from shunter.app.health import POLICY_AGE_S, READY_AGE_S, Health, Metrics, serve

FRESH: dict[str, float | None] = {"policies": 1.0, "inventory": 1.0, "metrics": 1.0}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def test_an_engine_that_has_seen_nothing_is_not_ready(metrics: Metrics) -> None:
    assert Health(metrics).late() == {"policies": None, "inventory": None, "metrics": None}


@pytest.mark.parametrize(
    ("ages", "late"),
    [
        ({}, []),
        ({"inventory": READY_AGE_S}, []),
        ({"inventory": READY_AGE_S + 0.1}, ["inventory"]),
        ({"metrics": READY_AGE_S + 0.1}, ["metrics"]),
        ({"metrics": None}, ["metrics"]),
        ({"policies": READY_AGE_S + 0.1}, []),
        ({"policies": POLICY_AGE_S + 0.1}, ["policies"]),
        ({"policies": None, "inventory": 1e9}, ["policies", "inventory"]),
    ],
)
def test_what_is_too_old(metrics: Metrics, ages: dict[str, float | None], late: list[str]) -> None:
    health = Health(metrics)
    health.update(FRESH | ages)
    assert list(health.late()) == late


def test_ages_are_metrics_and_one_never_seen_is_infinite(metrics: Metrics) -> None:
    Health(metrics).update({**FRESH, "metrics": None, "inventory": 2.5})

    def age(name: str) -> float | None:
        return metrics.registry.get_sample_value("shunter_input_age_seconds", {"input": name})

    assert (age("policies"), age("inventory"), age("metrics")) == (1.0, 2.5, float("inf"))


@pytest.fixture
def served(metrics: Metrics) -> Iterator[tuple[httpx.Client, Health]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    health = Health(metrics)
    stop = serve(f"127.0.0.1:{port}", metrics, health)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10) as client:
        yield client, health
    stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False, timeout=10)


def test_the_pages(served: tuple[httpx.Client, Health]) -> None:
    client, health = served
    assert client.get("/healthz").status_code == 200  # alive, though it has seen nothing yet
    unready = client.get("/readyz")
    assert (unready.status_code, json.loads(unready.text)["late"]) == (503, {"policies": None, "inventory": None, "metrics": None})
    health.update(FRESH)
    assert (client.get("/readyz").status_code, client.get("/elsewhere").status_code) == (200, 404)
    assert 'shunter_input_age_seconds{input="policies"} 1.0' in client.get("/metrics").text


def test_a_port_that_is_taken(metrics: Metrics) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(OSError, match="in use"):
            serve(f"127.0.0.1:{holder.getsockname()[1]}", metrics, Health(metrics))
