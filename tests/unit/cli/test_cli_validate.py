"""`shunter validate` beyond single files: revisions, other forms, a fleet. What is checked in a file is tested with the language."""

import json
import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from shunter.cli.main import execute
from shunter.model.ids import NodeId, WorkerId, slot_id
from shunter.model.snapshot import Fleet, Node, Slot, Snapshot, Worker, WorkerState
from shunter.observe.recorded import save

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **{f"GIT_{who}_{what}": f"{who}@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
POLICY = """\
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: recent-images}
spec:
  workers: {role: decode}
  every: 5m
  when: worker.kvUsage < 0.9
"""
BROKEN = POLICY.replace("kvUsage", "kvUsge")


def git(path: Path, *arguments: str) -> None:
    subprocess.run(("git", *arguments), cwd=path, env=ENV, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sound at HEAD, broken in the work tree, which the test stands in."""
    path = tmp_path / "repository"
    (path / "team" / "policies").mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    (path / "team" / "policies" / "a.yaml").write_text(POLICY)
    (path / "team" / "policies" / "a_test.yaml").write_text("{")
    (path / ".github").mkdir()
    (path / ".github" / "ci.yaml").write_text("on: push\n")
    git(path, "add", ".")
    git(path, "commit", "-qm", "x")
    (path / "team" / "policies" / "a.yaml").write_text(BROKEN)
    monkeypatch.chdir(path / "team")
    return path


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = execute(["validate", *arguments])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_a_revision_is_read_instead_of_the_work_tree(repository: Path, capsys: pytest.CaptureFixture[str]):
    sound = "1 file, 1 valid policy, 0 errors, 0 warnings\n"
    assert outcome(capsys, "policies")[0] == 1
    for paths in ([], ["team/policies"], ["team"], ["team/policies/a.yaml"], ["team", "team/policies/a.yaml"]):
        assert outcome(capsys, "--revision", "HEAD", *paths) == (0, sound, "")
    git(repository, "commit", "-qam", "broken")
    status, out, _ = outcome(capsys, "--revision", "main")
    assert (status, out.splitlines()[0]) == (1, "team/policies/a.yaml:7:9: SH131 worker.kvUsge is not a variable")


def test_another_repository(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    assert outcome(capsys, "--revision", "HEAD", "--repository", "repository")[0] == 0
    assert outcome(capsys, "--revision", "HEAD", "--repository", "repository/team")[0] == 0
    status, out, err = outcome(capsys, "--revision", "HEAD")
    assert (status, out) == (2, "")
    assert "SH218" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name files or folders"),
        (["policies", "--repository", "."], "it goes with --revision"),
        (["--revision", "nothing"], "SH217"),
        (["--revision", "HEAD", "nothing"], "SH215"),
        (["--revision", "HEAD", "team/policies/b.yaml"], "SH215"),
        (["policies", "--fleet", "nothing.json"], "SH321"),
        (["policies", "--format", "xml"], "xml"),
    ],
)
def test_what_cannot_be_run_exits_2(repository: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    status, out, err = outcome(capsys, *arguments)
    assert (status, out) == (2, "")
    assert said in err


def test_refused_entries_of_a_revision_are_problems_of_their_own(repository: Path, capsys: pytest.CaptureFixture[str]):
    (repository / "team" / "policies" / "link.yaml").symlink_to("a.yaml")
    git(repository, "checkout", "-q", "team/policies/a.yaml")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "link")
    status, out, _ = outcome(capsys, "--revision", "HEAD", "team/policies")
    assert (status, out.splitlines()[0]) == (
        1,
        "team/policies/link.yaml: SH211 it is a symbolic link, which is never followed; it is not read",
    )
    (run,) = json.loads(outcome(capsys, "--revision", "HEAD", "team/policies", "--format", "sarif")[1])["runs"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "team/policies/link.yaml"


@pytest.mark.parametrize("given", ["policies", "policies/a.yaml", "../team/policies"])
def test_sarif_names_files_from_the_root_of_their_repository(repository: Path, given: str, capsys: pytest.CaptureFixture[str]):
    status, out, _ = outcome(capsys, given, "--format", "sarif")
    (run,) = json.loads(out)["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (status, result["ruleId"], place["artifactLocation"]["uri"]) == (1, "SH131", "team/policies/a.yaml")
    assert place["region"] == {"startLine": 7, "startColumn": 9, "endColumn": 22}
    assert run["tool"]["driver"]["rules"][0]["shortDescription"]["text"] == "An unknown variable"


def test_sarif_outside_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "b.yaml").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    (run,) = json.loads(outcome(capsys, "b.yaml", "--format", "sarif")[1])["runs"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "b.yaml"


def test_junit_has_sound_files_too(repository: Path, capsys: pytest.CaptureFixture[str]):
    (repository / "team" / "policies" / "b.yaml").write_text(POLICY)
    status, out, _ = outcome(capsys, "policies", "--format", "junit")
    suites = ET.fromstring(out)
    assert status == 1
    assert [(case.get("name"), case.find("failure") is not None) for case in suites.iter("testcase")] == [
        ("policies/a.yaml", True),
        ("policies/b.yaml", False),
    ]


def recorded(path: Path, graph: str, role: str) -> Path:
    slot = slot_id(NodeId("node-a"), 0)
    worker = Worker(
        id=WorkerId("w"), role=role, graph=graph, engine="vllm", state=WorkerState.RUNNING, node=NodeId("node-a"), slot=slot, incarnation=0
    )
    save(
        Snapshot(at=1.0, fleet=Fleet(nodes=(Node(id=NodeId("node-a"), slots=(Slot(id=slot, worker=worker.id),)),), workers=(worker,))), path
    )
    return path


def test_a_fleet_that_the_policies_do_not_fit(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fits, not_so = recorded(tmp_path / "a.json", "tiny", "decode"), recorded(tmp_path / "b.json", "tiny", "prefill")
    assert outcome(capsys, "--revision", "HEAD", "--fleet", str(fits), "--strict")[0] == 0
    status, out, _ = outcome(capsys, "--revision", "HEAD", "--fleet", str(not_so))
    assert (status, "SH143 warning: the fleet has no decode worker" in out) == (0, True)
    assert outcome(capsys, "--revision", "HEAD", "--fleet", str(not_so), "--strict")[0] == 1


def test_json_lists_what_was_checked(repository: Path, capsys: pytest.CaptureFixture[str]):
    assert json.loads(outcome(capsys, "policies", "--format", "json")[1])["paths"] == ["policies/a.yaml"]


def test_a_budget_with_an_error_says_what_that_means_for_its_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = POLICY.replace("CheckpointPolicy", "DisruptionBudget").replace("every: 5m", "maxConcurent: 1").replace("  when:", "# ")
    (tmp_path / "limits.yaml").write_text(text)
    status, out, _ = outcome(capsys, str(tmp_path))
    assert status == 1
    assert (
        "limits.yaml:3:18: SH129 warning: recent-images is a budget that can't be read, so it counts as zero for workers of role dec" in out
    )
    assert out.endswith("1 error, 1 warning\n")
