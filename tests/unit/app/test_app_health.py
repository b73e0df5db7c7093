"""Readiness by the age of what is decided on, and the pages that tell it."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest
from shunter.app.health import Health, Metrics, serve
from shunter.app.settings import HealthSettings
from shunter.model.errors import Problem
from shunter.model.units import Duration

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
        ({"inventory": 30.0}, []),
        ({"inventory": 30.1}, ["inventory"]),
        ({"metrics": 30.1}, ["metrics"]),
        ({"metrics": None}, ["metrics"]),
        ({"policies": 30.1}, []),
        ({"policies": 300.1}, ["policies"]),
        ({"policies": None, "inventory": 1e9}, ["policies", "inventory"]),
    ],
)
def test_what_is_too_old(metrics: Metrics, ages: dict[str, float | None], late: list[str]) -> None:
    health = Health(metrics)
    health.update(FRESH | ages)
    assert list(health.late()) == late


@pytest.mark.parametrize(("age", "late"), [(0.0, {}), (60.0, {}), (60.1, {"lease": 60.1}), (None, {"lease": None})])
def test_one_that_stands_by_has_to_know_who_leads_and_nothing_else(
    metrics: Metrics, age: float | None, late: dict[str, float | None]
) -> None:
    health = Health(metrics)
    health.stands_by, health.lease = True, lambda: age
    health.explain("lease", lambda: Problem(code="SH251", what="the API server gave no answer", remedy="Look", subject="lease"))
    assert health.late() == late
    assert all("may be 60 s" in said and "SH251" in said for said in health.reasons(late).values())
    health.stands_by = False
    assert set(health.late()) == {"policies", "inventory", "metrics"}, "who leads has no use for it"


@pytest.mark.parametrize("name", ["policies", "inventory", "metrics"])
def test_each_limit_can_be_set(metrics: Metrics, name: str) -> None:
    health = Health(metrics)
    health.limit(HealthSettings(**{name: Duration(2)}))
    health.update(FRESH | {name: 2.0})
    assert not health.late()
    health.update(FRESH | {name: 2.5})
    assert health.late() == {name: 2.5}
    assert metrics.registry.get_sample_value("shunter_input_age_limit_seconds", {"input": name}) == 2.0


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


def test_the_page_says_why_an_input_is_late(served: tuple[httpx.Client, Health]) -> None:
    client, health = served
    problem: list[Problem | None] = [Problem(code="SH204", what="the remote refused access", remedy="Check the host key")]
    health.explain("policies", lambda: problem[0])
    health.update(FRESH | {"policies": 700.25, "metrics": None})
    answer = client.get("/readyz")
    assert (answer.status_code, list(answer.json()["late"])) == (503, ["policies", "metrics"])
    assert answer.json()["reasons"] == {
        "policies": "700.2 s old, and may be 300 s: SH204 the remote refused access. Check the host key",
        "metrics": "never seen since the start; it may be 30 s old",
    }
    problem[0] = None
    assert client.get("/readyz").json()["reasons"]["policies"] == "700.2 s old, and may be 300 s"
    health.update(FRESH)
    assert (client.get("/readyz").status_code, client.get("/readyz").json()["reasons"]) == (200, {})


def test_a_port_that_is_taken(metrics: Metrics) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(OSError, match="in use"):
            serve(f"127.0.0.1:{holder.getsockname()[1]}", metrics, Health(metrics))
