"""Where policies are: the rights follow a patch of an overlay, as docs/how-to/run-in-kubernetes.md has it."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_argocd import ROOT, rendered

PAGE = ROOT / "docs" / "how-to" / "run-in-kubernetes.md"


def patches() -> Any:
    (found,) = [
        yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if "patches:" in block
    ]
    return found["patches"]


@pytest.mark.parametrize("namespace", ["team-policies", "shunter"])
def test_the_engines_rights_follow_policies_to_another_namespace(tmp_path: Path, namespace: str) -> None:
    """`shunter`: where they were before they had a namespace of their own."""
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(ROOT / "deploy" / "kubernetes" / "example", tmp_path)],
        "patches": patches(),
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay).replace("team-policies", namespace))
    found = rendered(tmp_path)
    assert [one["kind"] for one in found if one["metadata"].get("namespace") == "shunter-policies"] == []
    moved = {one["kind"]: one for one in found if one["metadata"]["name"] == "shunter-engine-policies"}
    assert {kind: one["metadata"]["namespace"] for kind, one in moved.items()} == {"Role": namespace, "RoleBinding": namespace}
    assert moved["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": "shunter-engine", "namespace": "shunter"}]
    assert moved["RoleBinding"]["roleRef"]["name"] == "shunter-engine-policies"
