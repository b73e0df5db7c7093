"""deploy/ci: each step of the pipelines for pull requests, run against a real Git repository and a forge on this machine."""

import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from forge_server import Forge, serve
from pipelines import ROOT, GitHubRun, Runner, commit, git, read
from shunter.app.recording import Recording, save
from shunter.cli.main import execute
from shunter.model.ids import NodeId, WorkerId, slot_id
from shunter.model.sample import Known
from shunter.model.snapshot import Fleet, Node, Samples, Slot, Snapshot, Worker, WorkerState

CI = ROOT / "deploy" / "ci"
GITHUB, GITLAB = CI / "github" / "shunter.yaml", CI / "gitlab" / "shunter.gitlab-ci.yml"
NOW = 1_800_000_000.0
MARK = "<!-- shunter: review of policies -->"
ADDED = """\
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: more-images}
spec:
  workers: {role: decode}
  every: 1m
"""
BROKEN = ADDED.replace("every: 1m", "evry: 1m")
FAILING = """\
fleet:
  nodes: {node-a: {slots: 2}}
  workers: {decode-0: {node: node-a}}
tests:
  - name: it acts without a notice
    expect:
      - findings: [{policy: save-sessions, subject: decode-0, verdict: act}]
"""


def fleet() -> Snapshot:
    """Two nodes, a decode worker on one of them."""

    def known(value: float) -> Known:
        return Known(value=value, unit="1", at=NOW - 1, query="q")

    at = NodeId("node-a")
    worker = Worker(
        id=WorkerId("decode-0"), role="decode", graph="tiny", engine="vllm", state=WorkerState.RUNNING, node=at,
        slot=slot_id(at, 0), incarnation=0, memory=10**9,
    )  # fmt: skip  # type: ignore[arg-type]
    nodes = (
        Node(id=at, slots=(Slot(id=slot_id(at, 0), worker=worker.id),), seen_at=NOW),
        Node(id=NodeId("node-b"), slots=(Slot(id=slot_id(NodeId("node-b"), 0)),), seen_at=NOW),
    )
    samples = {"decode-0": {name: known(0.5) for name in ("kvUsage", "waiting", "running")}}
    return Snapshot(at=NOW, fleet=Fleet(nodes=nodes, workers=(worker,)), samples=Samples(workers=samples))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The example's policies and a recorded fleet on `main`."""
    made = tmp_path / "repository"
    shutil.copytree(ROOT / "examples" / "policy-repo", made)
    git("init", "-q", at=made)
    (made / ".shunter").mkdir()
    save(Recording.of(fleet()), made / ".shunter" / "fleet.json")
    commit(made, "Policies")
    return made


def proposed(repository: Path, **files: str | None) -> tuple[str, str]:
    """A branch with these changes of policies, and its merge checked out, as GitHub does. The base's and the branch's commits."""
    base = git("rev-parse", "HEAD", at=repository)
    git("checkout", "-q", "-b", "change", at=repository)
    for name, text in files.items():
        path = repository / "policies" / f"{name}.yaml"
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    (repository / "README.md").write_text("changed\n")
    head = commit(repository, "Change")
    git("checkout", "-q", "main", at=repository)
    git("merge", "-q", "--no-ff", "--no-edit", "change", at=repository)
    return base, head


@pytest.fixture
def forge(request: pytest.FixtureRequest) -> Iterator[Forge]:
    made = Forge(getattr(request, "param", "github"))
    made.knows_me = made.kind == "gitlab"
    stop = serve(made)
    yield made
    stop()


def run(
    repository: Path, forge: Forge, folder: Path, *, fork: bool = False, jobs: tuple[str, ...] = ("review", "comment", "scan")
) -> tuple[GitHubRun, dict[str, str]]:
    """All jobs in their order, or the first ones of them."""
    context = {
        "github.server_url": "https://github.example.com",
        "github.repository": "team/policies",
        "github.run_id": "99",
        "github.api_url": forge.url,
        "github.token": "good",
        "github.event.pull_request.number": "12",
    }
    ran = GitHubRun(read(GITHUB), repository, folder, context, fork=fork)
    assert list(ran.workflow["jobs"]) == ["review", "comment", "scan"]
    return ran, {name: ran.job(name) for name in jobs}


def test_a_change_is_shown_and_the_comment_kept_up_to_date(repository: Path, forge: Forge, tmp_path: Path) -> None:
    proposed(repository, more=ADDED)
    ran, ended = run(repository, forge, tmp_path / "run")
    assert ended == {"review": "success", "comment": "success", "scan": "success"}, ran.runner.output
    (body,) = forge.bodies()
    assert re.match(rf"{re.escape(MARK)}\n### Shunter: \d+ differences? in outcome\n", body)
    assert "checkpoint decode-0" in body
    assert "`more-images`" in body
    assert "[All of it](https://github.example.com/team/policies/actions/runs/99)" in body
    assert ran.summary.read_text() == body
    git("reset", "-q", "--hard", "HEAD^1", at=repository)
    git("branch", "-q", "-D", "change", at=repository)
    proposed(repository)
    run(repository, forge, tmp_path / "again")
    (body,) = forge.bodies()
    assert "no difference in outcome" in body


def test_an_error_fails_the_check_and_is_in_all_reports(repository: Path, forge: Forge, tmp_path: Path) -> None:
    proposed(repository, more=BROKEN)
    ran, ended = run(repository, forge, tmp_path / "run")
    assert ended == {"review": "failure", "comment": "success", "scan": "success"}
    (body,) = forge.bodies()
    assert "1 error: these policies wouldn't come into force" in body
    assert "`policies/more.yaml:" in body
    assert "SH111" in body
    report = ran.artifacts["shunter"]
    results = json.loads((report / "validate.sarif").read_text())["runs"][0]["results"]
    where = results[0]["locations"][0]["physicalLocation"]
    assert (results[0]["ruleId"], where["artifactLocation"]["uri"], where["region"]["startLine"]) == ("SH111", "policies/more.yaml", 6)
    suites = ET.parse(report / "validate.junit.xml").getroot()
    assert [case.get("name") for case in suites.iter("testcase") if case.find("failure") is not None] == ["policies/more.yaml"]


def test_a_test_of_the_policies_that_fails_fails_the_check(repository: Path, forge: Forge, tmp_path: Path) -> None:
    proposed(repository, preemption_test=FAILING)
    ran, ended = run(repository, forge, tmp_path / "run", jobs=("review",))
    assert ended["review"] == "failure"
    body = ran.summary.read_text()
    assert "### Shunter: 1 test of the policies failed" in body
    assert "`policies/preemption_test.yaml:7` it acts without a notice: expected" in body
    failed = [c.get("name") for c in ET.parse(ran.artifacts["shunter"] / "tests.junit.xml").iter("testcase") if len(c)]
    assert failed == ["it acts without a notice"]


def test_a_fork_gets_the_check_and_the_summary_alone_and_cannot_choose_the_fleet_that_it_is_compared_on(
    repository: Path, forge: Forge, tmp_path: Path
) -> None:
    calm = msgspec.structs.replace(fleet(), fleet=Fleet(), samples=Samples())
    base = git("rev-parse", "HEAD", at=repository)
    git("checkout", "-q", "-b", "change", at=repository)
    save(Recording.of(calm), repository / ".shunter" / "fleet.json")
    (repository / "policies" / "more.yaml").write_text(ADDED)
    commit(repository, "Hide it")
    git("checkout", "-q", "main", at=repository)
    git("merge", "-q", "--no-ff", "--no-edit", "change", at=repository)
    assert git("rev-parse", "HEAD^1", at=repository) == base
    ran, ended = run(repository, forge, tmp_path / "run", fork=True)
    assert ended == {"review": "success", "comment": "skipped", "scan": "skipped"}
    assert "checkpoint decode-0" in ran.summary.read_text()
    assert forge.asked == []


@pytest.mark.parametrize(("folder", "status", "said"), [("policies", 0, "there is no recorded fleet"), ("nowhere", 1, "SH215")])
def test_the_verb_without_a_recording_or_without_policies(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str, status: int, said: str
) -> None:
    proposed(repository, more=ADDED)
    out = tmp_path / "out"
    assert execute(["review", "HEAD^1", "--repository", str(repository), "--folder", folder, "--out", str(out)]) == status
    shown = capsys.readouterr()
    assert said in shown.out + shown.err
    assert (out / "comment.md").exists() == (status == 0)


def test_policies_that_come_with_the_change_are_compared_with_none(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "first").mkdir()
    (repository / "first" / "more.yaml").write_text(ADDED)
    os.symlink("more.yaml", repository / "first" / "link.yaml")
    commit(repository, "The first policies of this folder")
    fleet = repository / ".shunter" / "fleet.json"
    words = ["review", "HEAD^", "--repository", str(repository), "--folder", "first", "--snapshot", str(fleet), "--out", str(tmp_path)]
    assert execute(words) == 1
    assert "first/link.yaml: SH211" in capsys.readouterr().out
    (repository / "first" / "link.yaml").unlink()
    commit(repository, "No link")
    words[1] = "HEAD~2"
    assert execute(words) == 2
    assert "checkpoint decode-0" in (tmp_path / "comment.md").read_text()


def test_what_could_not_run_is_never_taken_for_a_difference(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("shunter.cli.review.read_revision", broken)
    assert execute(["review", "HEAD", "--repository", str(repository)]) == 1
    assert execute(["review", "--no-such-option"]) == 1


# -- the workflow as text


def workflow_steps() -> list[Any]:
    return [step for job in read(GITHUB)["jobs"].values() for step in job["steps"]]


def test_actions_are_pinned_by_their_commit() -> None:
    lines = [line for line in GITHUB.read_text().splitlines() if "uses:" in line]
    assert len(lines) == len([s for s in workflow_steps() if "uses" in s])
    assert [line for line in lines if not re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


def test_what_a_stranger_can_write_gets_into_no_shell() -> None:
    assert [step["run"] for step in workflow_steps() if "${{" in step.get("run", "")] == []


def test_it_runs_without_the_repositorys_secrets_and_each_job_with_the_least_rights() -> None:
    workflow = read(GITHUB)
    assert list(workflow["on"]) == ["pull_request"]
    assert workflow["permissions"] == {}
    rights = {name: job["permissions"] for name, job in workflow["jobs"].items()}
    assert rights["review"] == {"contents": "read"}
    assert rights["comment"] == {"pull-requests": "write"}
    assert {right for right, kind in rights["scan"].items() if kind == "write"} == {"security-events"}
    for name, job in workflow["jobs"].items():
        if "write" in rights[name].values():
            assert [s for s in job["steps"] if "checkout" in s.get("uses", "")] == [], name
    checkout = next(s for s in workflow_steps() if "checkout" in s.get("uses", ""))
    assert checkout["with"]["persist-credentials"] == "false" or checkout["with"]["persist-credentials"] is False
    assert "secrets." not in GITHUB.read_text()


def test_pipelines_install_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert read(GITHUB)["env"]["SHUNTER"] == read(GITLAB)["variables"]["SHUNTER"] == f"shunter[engine]=={version}"


# -- GitLab


class GitLabRun:
    """The two jobs for a merge request, in the folder that GitLab checks the branch out into."""

    def __init__(self, repository: Path, forge: Forge, folder: Path, base: str, head: str) -> None:
        self.pipeline = read(GITLAB)
        self.runner = Runner(folder)
        self.at = folder / "builds"
        git("clone", "-q", f"file://{repository}", str(self.at), at=folder)
        git("checkout", "-q", head, at=self.at)
        self.own = {
            "CI_MERGE_REQUEST_DIFF_BASE_SHA": base,
            "CI_COMMIT_SHA": head,
            "CI_JOB_URL": "https://gitlab.example.com/job/7",
            "CI_API_V4_URL": forge.url,
            "CI_PROJECT_ID": "42",
            "CI_MERGE_REQUEST_IID": "12",
        }

    def job(self, name: str, at: Path, **secret: str) -> int:
        job = {**self.pipeline[".shunter"], **self.pipeline[name]}
        env = {**self.pipeline["variables"], **job["variables"], **self.own, **secret}
        return self.runner.shell("\n".join([*job["before_script"], *job["script"]]), at, {k: str(v) for k, v in env.items()})


@pytest.mark.parametrize("forge", ["gitlab"], indirect=True)
def test_gitlab(repository: Path, forge: Forge, tmp_path: Path) -> None:
    base, head = proposed(repository, more=ADDED)
    ran = GitLabRun(repository, forge, tmp_path, base, head)
    assert ran.job("shunter-review", ran.at) == 2, ran.runner.output
    review = ran.pipeline["shunter-review"]
    assert review["allow_failure"] == {"exit_codes": 2}
    for pattern in (review["artifacts"]["reports"]["junit"], review["artifacts"]["paths"][0] + "comment.md"):
        assert list(ran.at.glob(pattern)), pattern
    elsewhere = tmp_path / "comment"
    shutil.copytree(ran.at / "shunter-report", elsewhere / "shunter-report")
    assert ran.job("shunter-comment", elsewhere, SHUNTER_FORGE_TOKEN="good") == 0, ran.runner.output
    (body,) = forge.bodies()
    assert body == (ran.at / "shunter-report" / "comment.md").read_text()
    assert body.startswith(MARK)
    assert "[All of it](https://gitlab.example.com/job/7)" in body
    assert ran.runner.installed() == ["-m pip install --quiet shunter[engine]==0.1.0"] * 2


def test_gitlab_comments_with_a_token_only_and_checks_nothing_out() -> None:
    job = read(GITLAB)["shunter-comment"]
    assert job["rules"] == [{"if": '$CI_PIPELINE_SOURCE == "merge_request_event" && $SHUNTER_FORGE_TOKEN', "when": "always"}]
    assert job["variables"] == {"GIT_STRATEGY": "none"}
    assert "SHUNTER_FORGE_TOKEN" not in read(GITLAB)["variables"]
