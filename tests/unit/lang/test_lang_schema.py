"""The schema file, and its agreement with what the loader takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from lang_documents import ALL, CHECKPOINT, REASSIGN
from shunter.lang.schema import KINDS, policy_schema, rendered

ROOT = Path(__file__).resolve().parents[3]


def test_it_is_a_sound_schema_that_takes_sound_policies():
    Draft202012Validator.check_schema(policy_schema())
    validator = Draft202012Validator(policy_schema())
    for text in ALL:
        assert list(validator.iter_errors(yaml.safe_load(text))) == []


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (REASSIGN, "graph: tiny", "grph: tiny"),
        (REASSIGN, "for: 5s", "for: 5"),
        (REASSIGN, "cooldown: 60s", "cooldown: 60MB"),
        (REASSIGN, "step: 1", "step: 0"),
        (REASSIGN, "{graph: tiny}", "{}"),
        (REASSIGN, "kind: ReassignmentPolicy", "kind: CheckpointPolicy"),
        (CHECKPOINT, "name: recent-images", "name: Recent"),
        (CHECKPOINT, "apiVersion: shunter.dev/v1alpha1\n", ""),
    ],
)
def test_editors_see_the_same_faults(text, old, new):
    assert old in text
    assert list(Draft202012Validator(policy_schema()).iter_errors(yaml.safe_load(text.replace(old, new))))


def test_it_tells_editors_what_keys_mean():
    defs = policy_schema()["$defs"]
    assert set(KINDS) <= set(defs)
    assert "Slack kept before the deadline" in defs["PreemptionSpec"]["properties"]["reserve"]["description"]
    assert defs["ReassignmentSpec"]["properties"]["cooldown"]["default"] == "5m"
    assert "decides, logs and audits" in defs["CheckpointSpec"]["properties"]["mode"]["description"]


def test_the_committed_file_is_the_generated_one(tmp_path):
    committed = ROOT / "schemas" / "policy.v1alpha1.json"
    assert committed.read_text(encoding="utf-8") == rendered(), "run scripts/generate-schemas and commit it"
    script = [sys.executable, str(ROOT / "scripts" / "generate-schemas"), "--folder", str(tmp_path)]
    assert subprocess.run([*script, "--check"], capture_output=True, check=False).returncode == 1
    subprocess.run(script, check=True)
    assert subprocess.run([*script, "--check"], capture_output=True, check=False).returncode == 0
    changed = json.loads((tmp_path / "policy.v1alpha1.json").read_text())
    changed["title"] = "other"
    (tmp_path / "policy.v1alpha1.json").write_text(json.dumps(changed))
    said = subprocess.run([*script, "--check"], capture_output=True, text=True, check=False)
    assert (said.returncode, "generate-schemas" in said.stderr) == (1, True)
