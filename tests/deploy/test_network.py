"""deploy/kubernetes/base/network.yaml: the engine gets wherever its settings can send it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from shunter.app.settings import load

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"


@pytest.fixture(scope="module")
def engine() -> Any:
    found = yaml.safe_load_all((KUBERNETES / "base" / "network.yaml").read_text())
    return next(one for one in found if one["metadata"]["name"] == "shunter-engine")


@pytest.mark.parametrize(
    ("port", "what"),
    [
        (53, "names"),
        (443, "the API server's service, a forge"),
        (6443, "the API server"),
        (22, "a forge by ssh"),
        (5432, "[audit] database"),
        (4318, "[audit] otlp"),
    ],
)
def test_what_settings_lead_to_by_its_usual_port(engine: Any, port: int, what: str) -> None:
    assert port in ports(engine), what


def test_what_the_example_leads_to(engine: Any) -> None:
    settings = load(KUBERNETES / "example" / "engine.toml")
    wanted = {agent.address for agent in settings.agents} | {settings.prometheus.url}
    assert {int(one.rpartition(":")[2]) for one in wanted} <= ports(engine)


def test_only_names_are_asked_of_one_namespace_alone(engine: Any) -> None:
    """Where Prometheus and databases are is for each cluster to say."""
    held = [rule for rule in engine["spec"]["egress"] if "to" in rule]
    assert [{(port["port"], port["protocol"]) for port in rule["ports"]} for rule in held] == [{(53, "UDP"), (53, "TCP")}]
    assert [rule["to"] for rule in held] == [[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]]


def test_it_is_about_the_engines_pods_and_all_else_gets_nowhere(engine: Any) -> None:
    pods = list(yaml.safe_load_all((KUBERNETES / "base" / "engine.yaml").read_text()))
    (its,) = [one["spec"]["template"]["metadata"]["labels"] for one in pods if one and one["kind"] == "StatefulSet"]
    assert engine["spec"]["podSelector"]["matchLabels"].items() <= its.items()
    (asked,) = engine["spec"]["ingress"]
    assert asked["ports"] == [{"port": int(load(KUBERNETES / "example" / "engine.toml").listen.rpartition(":")[2]), "protocol": "TCP"}]
    by_default = next(yaml.safe_load_all((KUBERNETES / "base" / "network.yaml").read_text()))["spec"]
    assert by_default == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def ports(policy: Any) -> set[int]:
    return {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"] if port["protocol"] == "TCP"}
