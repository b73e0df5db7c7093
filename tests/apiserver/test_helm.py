"""deploy/helm in a real API server, by Helm's own code: installed, upgraded, rolled back, uninstalled. No controller and no kubelet is
behind the server, so that nothing waits for pods.
"""

import copy
import importlib.util
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import APPLY, needed, running
from control_plane import ROOT, ControlPlane, until

ASIDE = ROOT / ".assets" / "helm"
CHART = ROOT / "deploy" / "helm" / "shunter"
pytestmark = pytest.mark.skipif(not (ASIDE / "ready").is_file(), reason="no Helm: run scripts/install-helm")
SAID = """
import json, sys
from helm_python.config import Config
asked = json.load(sys.stdin)
with Config(kubeconfig_path=sys.argv[1], namespace="shunter") as config:
    print(json.dumps(getattr(config, asked["verb"])(*asked["words"], **asked["more"])))
"""
ENGINE = "apis/apps/v1/namespaces/shunter/statefulsets/shunter-engine"
POLICIES = "/apis/shunter.dev/v1alpha1/preemptionpolicies"
AGENTS = "apis/apps/v1/namespaces/shunter-agents/daemonsets/shunter-agent"


class Helm:
    """Helm's actions on one server, in a process of their own."""

    def __init__(self, plane: ControlPlane) -> None:
        self._config = plane.folder / "kubeconfig.json"
        cluster = {"server": plane.url, "certificate-authority": str(plane.ca)}
        user = {"client-certificate": str(plane.folder / "admin.crt"), "client-key": str(plane.folder / "admin.key")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self._config.write_text(json.dumps(document))

    def __call__(self, verb: str, *words: object, **more: object) -> Any:
        asked = json.dumps({"verb": verb, "words": [str(w) if isinstance(w, Path) else w for w in words], "more": more})
        command = [ASIDE / "venv" / "bin" / "python", "-c", SAID, self._config]
        ended = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    needed("kubectl")
    yield from running(tmp_path_factory.mktemp("helm"))


def values() -> dict[str, Any]:
    """What the example's overlay says, in the chart's words; the namespaces are there before, as the how-to has it."""
    spec = importlib.util.spec_from_file_location("chart_tests", ROOT / "tests" / "deploy" / "test_chart.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {**module.example(), "namespaces": {"create": False}}


def paths(plane: ControlPlane, manifest: str) -> list[str]:
    """Where the server has the objects of a manifest."""
    found = []
    for one in yaml.safe_load_all(manifest):
        if one:
            version, space = one["apiVersion"], one["metadata"].get("namespace")
            root = f"api/{version}" if version == "v1" else f"apis/{version}"
            (plural,) = [r["name"] for r in plane.must("GET", f"/{root}")["resources"] if r["kind"] == one["kind"] and "/" not in r["name"]]
            found.append(f"{root}/{f'namespaces/{space}/' if space else ''}{plural}/{one['metadata']['name']}")
    return found


def test_the_chart_through_its_life(plane: ControlPlane) -> None:
    for name in ("shunter", "shunter-policies", "shunter-agents", "dynamo"):
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        plane.must("PATCH", f"/api/v1/namespaces/{name}?fieldManager=test&force=true", document, APPLY)
    helm, given = Helm(plane), values()
    installed = helm("install", CHART, "shunter", given)
    assert (installed["status"], installed["revision"]) == ("deployed", 1)
    everything = paths(plane, installed["manifest"])
    assert {ENGINE, AGENTS} <= set(everything)
    assert len({path.rsplit("/", 2)[1] for path in everything}) >= 8, "roles, bindings, accounts, policies of the network and so on"
    first = {path: plane.must("GET", f"/{path}") for path in everything}
    engine, agents = first[ENGINE], first[AGENTS]
    until(lambda: plane.ask("GET", POLICIES)[0] == 200, 20, "the kinds to be served")

    changed = copy.deepcopy(given)
    changed["engine"] |= {"replicas": 1, "settings": given["engine"]["settings"] + "\n# another\n"}
    assert helm("upgrade", CHART, "shunter", changed)["revision"] == 2
    second = plane.must("GET", f"/{ENGINE}")
    assert (engine["spec"]["replicas"], second["spec"]["replicas"]) == (2, 1)
    assert second["spec"]["template"] != engine["spec"]["template"], "its pods read settings when they start, so they are replaced"
    assert second["metadata"]["uid"] == engine["metadata"]["uid"]
    assert plane.must("GET", f"/{AGENTS}")["metadata"]["generation"] == agents["metadata"]["generation"], "nobody touches the agents"

    helm("rollback", "shunter", version=1)
    third = plane.must("GET", f"/{ENGINE}")
    assert (third["spec"]["replicas"], third["spec"]["template"]) == (2, engine["spec"]["template"])

    policy = {
        "apiVersion": "shunter.dev/v1alpha1",
        "kind": "PreemptionPolicy",
        "metadata": {"name": "save", "namespace": "shunter-policies"},
        "spec": {"workers": {"graph": "g"}, "notices": ["preemption"], "move": {}},
    }
    plane.must("POST", "/apis/shunter.dev/v1alpha1/namespaces/shunter-policies/preemptionpolicies", policy)
    helm("uninstall", "shunter")
    assert [path for path in everything if plane.ask("GET", f"/{path}")[0] != 404] == []
    kept = plane.must("GET", POLICIES)
    assert [one["metadata"]["name"] for one in kept["items"]] == ["save"], "kinds and policies stay"


def test_a_value_that_the_chart_does_not_know_installs_nothing(plane: ControlPlane) -> None:
    with pytest.raises(AssertionError, match="properties 'engin' not allowed"):
        Helm(plane)("install", CHART, "wrong", {**values(), "engin": {}})
    secrets = plane.must("GET", "/api/v1/namespaces/shunter/secrets")["items"]
    assert [one["metadata"]["name"] for one in secrets if "wrong" in one["metadata"]["name"]] == [], "no release of it is noted anywhere"
    assert plane.ask("GET", f"/{ENGINE}")[0] == 404
