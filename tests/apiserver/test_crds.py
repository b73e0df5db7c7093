"""Our kinds in a real API server: it takes and refuses what `shunter validate` does, and changes nothing of what Git says."""

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import APPLY, CRDS
from control_plane import ROOT, ControlPlane
from corpus import ONLY_SERVER, ONLY_VALIDATE, WHOLE, Case, bad, good
from shunter.lang.load import check_text
from shunter.model.errors import Severity

PLURALS = {
    found["spec"]["names"]["kind"]: found["spec"]["names"]["plural"] for found in (yaml.safe_load(path.read_text()) for path in CRDS)
}


def refused_by_validate(case: Case) -> list[str]:
    _, problems = check_text("policy.yaml", json.dumps(case.document, indent=1).encode())  # PyYAML's text would need other quotes
    return [str(problem) for problem in problems if problem.severity is Severity.ERROR]


def refused_by_server(plane: ControlPlane, case: Case) -> str:
    """Empty: it would be taken."""
    path = f"/apis/shunter.dev/v1alpha1/namespaces/default/{PLURALS[case.document['kind']]}/{case.document['metadata']['name']}"
    status, answer = plane.ask("PATCH", f"{path}?dryRun=All&fieldManager=test&fieldValidation=Strict", case.document, APPLY)
    message = "" if status < 300 else str(answer["message"])
    # what is of another type altogether can't even be merged, which server-side apply calls an internal error
    assert status in (200, 201, 400, 422) or "failed to create typed patch object" in message, (case, answer)
    return message


def test_the_corpus_has_every_key_of_every_kind() -> None:
    """What it lacks nobody has compared."""
    missing = []
    for path in CRDS:
        definition = yaml.safe_load(path.read_text())["spec"]
        if (kind := definition["names"]["kind"]) == "WorkerOperation":
            continue
        spec = definition["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        documents = [*(case.document for case in good()), *(case.document for case in ONLY_SERVER)]
        missing += [f"{kind}: {key}" for key in absent(spec, [d["spec"] for d in documents if d["kind"] == kind])]
    assert missing == []


def absent(schema: dict[str, Any], values: list[Any], path: str = "spec") -> Iterator[str]:
    """Keys of a schema that none of these has."""
    for key, below in schema.get("properties", {}).items():
        found = [value[key] for value in values if isinstance(value, dict) and key in value]
        if not found:
            yield f"{path}.{key}"
        yield from absent(below, found, f"{path}.{key}")
    if "items" in schema:
        yield from absent(schema["items"], [one for value in values if isinstance(value, list) for one in value], f"{path}[]")
    if isinstance(each := schema.get("additionalProperties"), dict):
        yield from absent(each, [one for value in values if isinstance(value, dict) for one in value.values()], f"{path}.*")


def test_what_is_good_is_good_to_both(plane: ControlPlane) -> None:
    cases = list(good())
    assert len(cases) > 40
    assert [(c.name, found) for c in cases if (found := refused_by_validate(c))] == []
    assert [(c.name, found) for c in cases if (found := refused_by_server(plane, c))] == []


def test_what_is_bad_is_bad_to_both(plane: ControlPlane) -> None:
    cases = list(bad())
    assert len(cases) > 400
    assert [c.name for c in cases if not refused_by_validate(c)] == []
    assert [c.name for c in cases if not refused_by_server(plane, c)] == []


def test_what_only_one_of_them_can_say_is_what_the_docs_list(plane: ControlPlane) -> None:
    for case in ONLY_VALIDATE:
        assert refused_by_validate(case), case.name
        assert not refused_by_server(plane, case), case.name
    for case in ONLY_SERVER:
        assert not refused_by_validate(case), case.name
        assert refused_by_server(plane, case), case.name


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_is_added_to_what_git_says(plane: ControlPlane, name: str) -> None:
    """Else Argo CD would find it OutOfSync for good. The barest policy of the kind shows whether there are defaults."""
    document = copy.deepcopy(WHOLE[name])
    document["metadata"]["name"] = f"as-it-is-{name}"
    path = f"/apis/shunter.dev/v1alpha1/namespaces/default/{PLURALS[document['kind']]}/{document['metadata']['name']}"
    made = plane.must("PATCH", f"{path}?fieldManager=argocd-controller&force=true", document, APPLY)
    assert made["spec"] == document["spec"]
    assert "status" not in made
    again = plane.must("PATCH", f"{path}?fieldManager=argocd-controller&force=true", document, APPLY)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert again["metadata"]["generation"] == 1
    plane.must("DELETE", path)


def test_a_policy_is_one_statement(plane: ControlPlane) -> None:
    """What is taken out in Git is gone, also when another manager had a say."""
    path = "/apis/shunter.dev/v1alpha1/namespaces/default/checkpointpolicies/one-statement"
    document = {**copy.deepcopy(WHOLE["images"]), "metadata": {"name": "one-statement"}}
    plane.must("PATCH", f"{path}?fieldManager=kubectl", document, APPLY)
    document["spec"] = {"workers": {"all": True}, "every": "1h"}
    made = plane.must("PATCH", f"{path}?fieldManager=argocd-controller&force=true", document, APPLY)
    assert made["spec"] == document["spec"]
    plane.must("DELETE", path)


def test_the_server_says_what_is_wrong_in_our_words(plane: ControlPlane) -> None:
    case = Case("", copy.deepcopy(WHOLE["shift"]))
    case.document["spec"]["workers"]["role"] = "prefill"
    assert "no worker can be picked" in refused_by_server(plane, case)


def test_they_can_be_listed_together_and_by_their_short_names(plane: ControlPlane) -> None:
    found = plane.must("GET", "/apis/shunter.dev/v1alpha1")["resources"]
    kinds = {one["kind"]: one for one in found if "/" not in one["name"]}
    assert set(kinds) == {*(document["kind"] for document in WHOLE.values()), "WorkerOperation"}
    assert all(one["namespaced"] and one["categories"] == ["shunter"] for one in kinds.values())
    short = [name for one in kinds.values() for name in one["shortNames"]]
    assert len(set(short)) == len(kinds)
    assert {one["name"] for one in found if one["name"].endswith("/status")} == {f"{plural}/status" for plural in PLURALS.values()}


def test_definitions_are_small_and_whole(plane: ControlPlane) -> None:
    """A client that applies keeps a copy in an annotation, which has a limit of 262,144 bytes."""
    for path in CRDS:
        assert path.stat().st_size < 100_000
        found: Any = plane.must("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{path.stem}")
        wrong = [c for c in found["status"]["conditions"] if c["type"] == "NonStructuralSchema" or c["status"] != "True"]
        assert wrong == []


def test_a_change_of_the_model_must_reach_the_definitions(tmp_path: Path) -> None:
    def generate(*options: str) -> int:
        command = [sys.executable, str(ROOT / "scripts" / "generate-crds"), "--folder", str(tmp_path), *options]
        return subprocess.run(command, capture_output=True, timeout=60).returncode

    assert generate() == 0
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in (ROOT / "schemas" / "crds").iterdir()}
    for path in tmp_path.glob("*.shunter.dev.yaml"):
        whole = path.read_text()
        path.write_text(whole.replace("type: string", "type: integer", 1))
        assert generate("--check") == 1, path
        path.write_text(whole)
