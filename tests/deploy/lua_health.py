"""A resource's health as argocd-cm.yaml has it judged, by a real Lua with the libraries taken away that Argo CD takes away."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKS = Path(__file__).resolve().parents[2] / "deploy" / "argocd" / "argocd-cm.yaml"
LUA = shutil.which("lua5.1")


def table(value: Any) -> str:
    """JSON as Lua. Numbers become floats, as in Argo CD's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{table(key)}] = {table(part)}" for key, part in value.items() if part is not None) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(table(part) for part in value) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return '"' + "".join(c if c.isalnum() or c in " .,:;-_/()" else "".join(f"\\{byte:03}" for byte in c.encode()) for c in value) + '"'


def judge(one: dict[str, Any], scratch: Path) -> tuple[str, str]:
    """Status and message. `scratch` is a folder for the files that Lua reads."""
    if LUA is None:
        assert os.environ.get("CI") != "true", "lua5.1 isn't there: run scripts/system"
        pytest.skip("no lua5.1 (Debian: lua5.1)")
    group = one["apiVersion"].partition("/")[0]
    check = yaml.safe_load(CHECKS.read_text())["data"][f"resource.customizations.health.{group}_{one['kind']}"]
    (scratch / "check.lua").write_text(check)
    (scratch / "resource.lua").write_text(f"return {table(json.loads(json.dumps(one)))}\n")
    words = [LUA, Path(__file__).with_name("argo.lua"), scratch / "check.lua", scratch / "resource.lua"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=10)
    assert ended.returncode == 0, ended.stderr
    found, _, message = ended.stdout.partition("\n")
    return found, message.rstrip("\n")
