"""deploy/monitoring: rules that Prometheus' own tool takes and tests, and nothing in rules or dashboard that the engine doesn't show."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from shunter.app.engine import Engine
from shunter.app.health import Metrics
from shunter.app.policies import PolicyFeed
from shunter.app.settings import PoliciesSettings, PrometheusSettings, Settings, TlsSettings
from shunter.app.sources import source_of

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "deploy" / "monitoring"
TARGET = {"namespace", "job", "instance", "le"}
"""Labels that a scrape or a histogram brings."""
PROMTOOL = shutil.which("promtool")


@pytest.fixture
def promtool() -> str:
    if PROMTOOL is None:
        assert os.environ.get("CI") != "true", "promtool isn't there: run scripts/system"
        pytest.skip("no promtool (Debian: prometheus)")
    return PROMTOOL


def run(*words: str, at: Path = HERE) -> tuple[int, str]:
    ended = subprocess.run(words, cwd=at, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout + ended.stderr


def rules(name: str = "alerts.yaml") -> Any:
    return yaml.safe_load((HERE / name).read_text())


def alerts() -> dict[str, Any]:
    return {rule["alert"]: rule for group in rules()["groups"] for rule in group["rules"]}


def test_the_rules_are_rules_and_fire_when_they_should(promtool: str) -> None:
    status, said = run(promtool, "check", "rules", "alerts.yaml")
    assert (status, f"SUCCESS: {len(alerts())} rules found" in said) == (0, True), said
    status, said = run(promtool, "test", "rules", "alerts_test.yaml")
    assert status == 0, said


def test_each_alert_is_tested_both_ways() -> None:
    """So that one which can never fire, or always does, fails the test above."""
    fires, silent = set(), set()
    for one in yaml.safe_load((HERE / "alerts_test.yaml").read_text())["tests"]:
        for expected in one["alert_rule_test"]:
            (fires if expected["exp_alerts"] else silent).add(expected["alertname"])
    assert (fires, silent) == (set(alerts()), set(alerts()))


def test_the_operators_resource_has_the_same_rules() -> None:
    resource = rules("prometheus-rule.yaml")
    assert resource["kind"] == "PrometheusRule"
    assert resource["spec"] == rules()


def test_each_alert_says_how_bad_it_is_and_where_to_read_on() -> None:
    page = (ROOT / "docs" / "how-to" / "watch-the-engine.md").read_text()
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert rule["annotations"]["summary"], name
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (ROOT / path).name == "watch-the-engine.md"
        assert anchor == name.lower()
        assert f"### {name}\n" in page


# -- what the engine shows


@cache
def shown() -> str:
    """/metrics of an engine that runs: real policies, no agent, a Prometheus that is away."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def scrape(folder: Path) -> str:
        ticked, stop = asyncio.Event(), asyncio.Event()
        given = Settings(
            state=folder / "state",
            listen=f"127.0.0.1:{port}",
            policies=PoliciesSettings(directory=ROOT / "policies"),
            prometheus=PrometheusSettings(url="http://127.0.0.1:9"),
            tls=TlsSettings(ca=folder, cert=folder, key=folder),
            agents=(),
        )
        feed = PolicyFeed(source_of(given.policies, folder), time.time)
        engine = Engine(given, feed, on_tick=lambda _told: ticked.set())
        running = asyncio.create_task(engine.run(stop))
        await asyncio.wait_for(ticked.wait(), 30)
        async with httpx.AsyncClient(trust_env=False) as client:
            page = await client.get(f"http://127.0.0.1:{port}/metrics")
        stop.set()
        await running
        return page.text

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(scrape(Path(folder)))


def series() -> set[str]:
    """Names that a query can ask for."""
    found: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", shown(), re.MULTILINE):
        found |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return found


def labels(name: str) -> set[str]:
    registry = Metrics().registry
    collector = registry._names_to_collectors[name]
    return set(collector._labelnames) | TARGET  # type: ignore[attr-defined]


def queries() -> Iterator[tuple[str, str]]:
    for name, rule in alerts().items():
        yield name, rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def dashboard() -> Any:
    return json.loads((HERE / "dashboard.json").read_text())


QUERIES = list(queries())


def wrong(query: str) -> list[str]:
    """What a query asks for and the engine doesn't show."""
    found = []
    names = re.findall(r"shunter_\w+", query)
    for name, selector in re.findall(r"(shunter_\w+)(\{[^}]*\})?", query):
        if name not in series():
            found.append(name)
            continue
        found += [f"{name}{{{label}}}" for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector) if label not in labels(name)]
    if not found:
        for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query):
            found += [label for label in re.split(r"\s*,\s*", group) if not any(label in labels(name) for name in names)]
    return found if names else ["no metric"]


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[f"{n}-{q[0]}" for n, q in enumerate(QUERIES)])
def test_each_query_asks_for_what_the_engine_shows(where: str, query: str) -> None:
    assert wrong(query) == []


@pytest.mark.parametrize(
    "query",
    [
        "shunter_tick_seconds > 1",
        "shunter_age",
        'shunter_workers{rol="decode"}',
        "sum by (nod) (shunter_agent_up)",
        "up",
        "shunter_problems",
    ],
)
def test_a_query_that_asks_for_something_else_is_noticed(query: str) -> None:
    assert wrong(query) != []


def test_a_look_shows_the_fleet() -> None:
    for line in ('shunter_workers{role="decode",state="lost"} 0.0', 'shunter_operations_active{lane="voluntary"} 0.0', "shunter_epoch 1.0"):
        assert line in shown().splitlines()


def test_whatever_the_engine_shows_is_told() -> None:
    page = (ROOT / "docs" / "how-to" / "watch-the-engine.md").read_text()
    told = set(re.findall(r"^\| `(shunter_\w+)(?:\{[\w, ]*\})?` \|", page, re.MULTILINE))
    assert told == {name for name in re.findall(r"^# TYPE (shunter_\S+)", shown(), re.MULTILINE) if not name.endswith("_created")}


def test_labels_are_told_as_they_are() -> None:
    page = (ROOT / "docs" / "how-to" / "watch-the-engine.md").read_text()
    for name, said in re.findall(r"^\| `(shunter_\w+)(?:\{([\w, ]*)\})?` \|", page, re.MULTILINE):
        assert {label for label in said.split(", ") if label} == labels(name) - TARGET, name


# -- the dashboard and the monitor


def test_the_dashboards_queries_are_queries(promtool: str, tmp_path: Path) -> None:
    exprs = [t["expr"] for panel in dashboard()["panels"] for t in panel.get("targets", ())]
    assert len(exprs) >= 15
    plain = [e.replace("$__rate_interval", "5m").replace("$namespace", ".*").replace("$job", ".*") for e in exprs]
    assert [e for e in plain if "$" in e] == []
    groups = [{"name": "dashboard", "rules": [{"record": f"q:{n}", "expr": e} for n, e in enumerate(plain)]}]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    status, said = run(promtool, "check", "rules", "rules.yaml", at=tmp_path)
    assert status == 0, said


def test_the_dashboard_can_be_imported_as_it_is() -> None:
    made = dashboard()
    ids = [panel["id"] for panel in made["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    variables = {one["name"] for one in made["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(made["panels"]))) - {"__rate_interval"}
    assert used == variables


def test_the_monitor_finds_the_engines_service_and_may_scrape_it() -> None:
    base = ROOT / "deploy" / "kubernetes" / "base"
    found = [one for file in sorted(base.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text()) if one]
    monitor = yaml.safe_load((HERE / "service-monitor.yaml").read_text())
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [one for one in found if one["kind"] == "Service" and wanted <= one["metadata"]["labels"].items()]
    assert [one["metadata"]["namespace"] for one in services] == [monitor["metadata"]["namespace"]]
    (port,) = [p for p in services[0]["spec"]["ports"] if p["name"] == monitor["spec"]["endpoints"][0]["port"]]
    policies = [one["spec"] for one in found if one["kind"] == "NetworkPolicy" and one["spec"].get("ingress")]
    assert port["port"] in {p["port"] for policy in policies for rule in policy["ingress"] for p in rule["ports"]}
