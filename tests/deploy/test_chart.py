"""deploy/helm: the chart is the Kustomize base, and with a Helm at hand what it renders is what Kustomize renders, object by object.

Helm is its own code as a module for Python, which scripts/install-helm puts aside, or `helm` on PATH. Without either the chart is compared
with what generates it alone. tests/apiserver/test_helm.py installs the chart into a real API server.
"""

import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "shunter"
EXAMPLE = ROOT / "deploy" / "kubernetes" / "example"
ASIDE = ROOT / ".assets" / "helm"
PYTHON = str(ASIDE / "venv" / "bin" / "python") if (ASIDE / "ready").is_file() else ""
HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(not PYTHON and HELM is None, reason="no Helm: run scripts/install-helm, or put helm on PATH")
SDK = """
import json, sys
from helm_python.chart import Chart, lint
values = json.load(sys.stdin)
chart = Chart.load(sys.argv[1])
chart.validate_schema(values)
report = lint(sys.argv[1], values, strict=True, namespace="shunter")
rendered = chart.render(values, name="shunter", namespace="shunter")
print(json.dumps({"lint": report, "rendered": "\\n---\\n".join(rendered.values())}))
"""


@cache
def generator() -> Any:
    path = str(ROOT / "scripts" / "generate-chart")
    spec = importlib.util.spec_from_loader("generate_chart", importlib.machinery.SourceFileLoader("generate_chart", path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kubectl() -> str:
    found = generator().kubectl()
    if found is None:
        assert os.environ.get("CI") != "true", "kubectl isn't there: run scripts/install-apiserver"
        pytest.skip("no kubectl: run scripts/install-apiserver")
    return str(found)


def test_the_chart_is_what_the_base_makes() -> None:
    kubectl()
    files = generator().made()
    there = {
        f.relative_to(CHART).as_posix() for part in generator().MADE for f in [CHART / part, *(CHART / part).rglob("*")] if f.is_file()
    }
    assert there == set(files), "run scripts/generate-chart"
    assert [name for name, text in files.items() if (CHART / name).read_text() != text] == [], "run scripts/generate-chart"


def test_values_fit_their_schema_and_a_slip_does_not() -> None:
    schema, values = json.loads((CHART / "values.schema.json").read_text()), yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema)
    for wrong in (
        {"engin": {}},
        {"engine": {"replicas": 0}},
        {"agents": {"settings": {"node-a": {"node": "a"}}}},
        {"engine": {"image": ""}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_each_value_is_used_and_each_that_is_used_is_there() -> None:
    text = "\n".join(file.read_text() for file in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([\w.]+)", text))
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def leaves(part: Any, path: str = "") -> set[str]:
        if path in used or not isinstance(part, dict):
            return {path}
        return {leaf for key, value in part.items() for leaf in leaves(value, f"{path}.{key}".lstrip("."))}

    assert leaves(values) == used


# -- rendered


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    if PYTHON:
        words = [PYTHON, "-c", SDK, str(CHART)]
        ended = subprocess.run(words, input=json.dumps(values), capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        said = json.loads(ended.stdout)
        assert said["lint"]["errors"] == []
        text = said["rendered"]
    else:
        assert HELM is not None
        words = [HELM, "template", "shunter", str(CHART), "--namespace", "shunter", "--values", "-"]
        text = subprocess.run(words, input=json.dumps(values), capture_output=True, text=True, timeout=60, check=True).stdout
    return [one for one in yaml.safe_load_all(text) if one]


def by_name(found: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Without what differs of itself: Kustomize's hashes in the names of ConfigMaps, and Helm's of what is in them."""
    plain = re.sub(r"(shunter-(?:engine|agent)-settings)-[a-z0-9]{10}\b", r"\1", json.dumps(found))
    whole = json.loads(plain)
    for one in whole:
        annotations = one.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations")
        if annotations and annotations.pop("checksum/settings", None) and not annotations:
            del one["spec"]["template"]["metadata"]["annotations"]
        if one["kind"] == "ConfigMap":
            one["metadata"].pop("labels", None)
            one["data"] = {name: text.rstrip("\n") for name, text in one["data"].items()}
    return {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in whole}


def example() -> dict[str, Any]:
    """The values that say what deploy/kubernetes/example does."""
    agents = {file.stem: file.read_text() for file in (EXAMPLE / "agents").iterdir()}
    return {"namespaces": {"create": True}, "engine": {"settings": (EXAMPLE / "engine.toml").read_text()}, "agents": {"settings": agents}}


@needs_helm
def test_what_helm_renders_is_what_kustomize_renders() -> None:
    made = subprocess.run([kubectl(), "kustomize", str(EXAMPLE)], check=True, capture_output=True, timeout=60).stdout
    wanted = by_name([one for one in yaml.safe_load_all(made) if one["kind"] != "CustomResourceDefinition"])
    found = by_name(rendered(example()))
    assert set(found) == set(wanted)
    for name, one in wanted.items():
        assert found[name] == one, name


@needs_helm
def test_with_all_its_components_too(tmp_path: Path) -> None:
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(EXAMPLE, tmp_path)],
        "components": [os.path.relpath(EXAMPLE.parent / "components" / name, tmp_path) for name in generator().CONDITIONS],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    made = subprocess.run([kubectl(), "kustomize", str(tmp_path)], check=True, capture_output=True, timeout=60).stdout
    wanted = by_name([one for one in yaml.safe_load_all(made) if one["kind"] != "CustomResourceDefinition"])
    found = by_name(rendered({**example(), "policies": {"preview": True}, "workers": {"namespace": "dynamo", "dynamo": True}}))
    assert ("ServiceAccount", "shunter-policies", "shunter-preview") in found
    assert found == wanted


@needs_helm
def test_policies_are_where_it_is_said_and_a_namespace_is_made_once() -> None:
    values = {**example(), "policies": {"namespace": "rules", "preview": True}, "workers": {"namespace": "dynamo"}}
    found = by_name(rendered(values))
    assert ("Namespace", "", "rules") in found
    assert {name for kind, space, name in found if (kind, space) == ("Role", "rules")} == {"shunter-engine-policies"}
    users = [s for one in found.values() for s in one.get("subjects", ()) if s["name"] == "shunter-preview"]
    assert {s["namespace"] for s in users} == {"rules"}
    assert not [one for one in found if "shunter-policies" in one[:2]]
    values["policies"] = {"namespace": "shunter"}  # as it was before policies had one of their own
    old = by_name(rendered(values))
    assert len([1 for kind, _, name in old if (kind, name) == ("Namespace", "shunter")]) == 1
    assert {name for kind, space, name in old if (kind, space) == ("Role", "shunter")} == {"shunter-engine", "shunter-engine-policies"}


@needs_helm
def test_what_can_be_chosen_is_chosen() -> None:
    values = example()
    values["engine"] |= {
        "image": "r/e@sha256:1",
        "replicas": 1,
        "storage": {"size": "5Gi", "class": "fast"},
        "resources": {"limits": {"memory": "1Gi"}},
    }
    values["agents"] |= {"namespace": "elsewhere", "nodeSelector": {"a": "b"}}
    found = by_name(rendered(values))
    engine = found["StatefulSet", "shunter", "shunter-engine"]["spec"]
    container = engine["template"]["spec"]["containers"][0]
    assert (engine["replicas"], container["image"], container["resources"]["limits"]) == (1, "r/e@sha256:1", {"memory": "1Gi"})
    claim = engine["volumeClaimTemplates"][0]["spec"]
    assert (claim["storageClassName"], claim["resources"]["requests"]["storage"]) == ("fast", "5Gi")
    agents = found["DaemonSet", "elsewhere", "shunter-agent"]["spec"]["template"]["spec"]
    assert agents["nodeSelector"] == {"a": "b", "shunter.dev/agent": "true"}, "Helm adds to a map"
    values["agents"]["enabled"] = False
    assert not {kind for kind, space, _ in by_name(rendered(values)) if space == "elsewhere"}


@needs_helm
def test_settings_change_the_pods_and_have_to_be_given() -> None:
    def checksum(values: dict[str, Any]) -> str:
        (one,) = [one for one in rendered(values) if one["kind"] == "StatefulSet"]
        return str(one["spec"]["template"]["metadata"]["annotations"]["checksum/settings"])

    values = example()
    before = checksum(values)
    values["engine"]["settings"] += "\n# another\n"
    assert checksum(values) != before
    with pytest.raises((AssertionError, subprocess.CalledProcessError)):
        rendered({})
