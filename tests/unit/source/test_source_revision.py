"""Revisions of repositories on this machine, made with the real git command."""

import os
import subprocess
from pathlib import Path

import pytest
from shunter.model.errors import Rejected
from shunter.source.limits import Limits
from shunter.source.revision import read_revision, repository_around

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **{f"GIT_{who}_{what}": f"{who}@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(path: Path, *arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=path, env=ENV, check=True, capture_output=True, text=True).stdout.strip()


def commit(path: Path, **files: str) -> str:
    for name, content in files.items():
        file = path / "policies" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    git(path, "add", ".")
    git(path, "commit", "-qm", "x")
    return git(path, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    commit(path, a="first")
    git(path, "tag", "-a", "v1", "-m", "x")
    commit(path, a="second", b="new")
    (path / "policies" / "a.yaml").write_text("not committed")
    return path


def read(path: Path, revision: str, scratch: Path, folder: str = "policies", **more) -> dict[str, str]:
    found = read_revision(path, revision, folder, scratch / f"lent-{len(list(scratch.iterdir()))}.git", **more)
    assert len(found.commit) in (40, 64)
    return {f.path: f.data.decode() for f in found.files}


@pytest.mark.parametrize(
    ("revision", "files"),
    [
        ("HEAD", {"a.yaml": "second", "b.yaml": "new"}),
        ("main", {"a.yaml": "second", "b.yaml": "new"}),
        ("HEAD~1", {"a.yaml": "first"}),
        ("v1", {"a.yaml": "first"}),
    ],
)
def test_branches_tags_and_ancestors_and_never_the_work_tree(repository: Path, tmp_path: Path, revision: str, files: dict[str, str]):
    assert read(repository, revision, tmp_path) == files


def test_a_commit_on_no_branch(repository: Path, tmp_path: Path):
    git(repository, "checkout", "-q", "--detach")
    alone = commit(repository, c="alone")
    git(repository, "checkout", "-qf", "main")
    assert "c.yaml" in read(repository, alone, tmp_path)
    assert "c.yaml" in read(repository, alone[:10], tmp_path)


def test_shallow_clones_bare_ones_linked_work_trees_and_both_hashes(repository: Path, tmp_path: Path):
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "shallow")
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare")
    git(repository, "worktree", "add", "-q", str(tmp_path / "linked"), "v1")
    other = tmp_path / "sha256"
    other.mkdir()
    git(other, "init", "-q", "--object-format=sha256")
    commit(other, a="in sha256")
    assert read(tmp_path / "shallow", "HEAD", tmp_path)["a.yaml"] == "second"
    assert read(tmp_path / "bare", "HEAD", tmp_path)["a.yaml"] == "second"
    assert read(tmp_path / "linked", "HEAD", tmp_path)["a.yaml"] == "first"
    assert read(other, "HEAD", tmp_path) == {"a.yaml": "in sha256"}
    with pytest.raises(Rejected, match="SH217"):
        read(tmp_path / "shallow", "HEAD~1", tmp_path)


def test_nothing_of_the_repository_is_run_or_followed(repository: Path, tmp_path: Path):
    trap = tmp_path / "trapped"
    for name in ("core.fsmonitor", "core.pager", "core.sshCommand", "uploadpack.packObjectsHook", "filter.x.smudge", "diff.external"):
        git(repository, "config", name, f"touch {trap}")
    (repository / ".gitattributes").write_text("* filter=x\n")
    (repository / "policies" / "link.yaml").symlink_to("/etc/passwd")
    subprocess.run(
        ("git", "-c", "core.fsmonitor=false", "-c", "filter.x.smudge=cat", "-c", "filter.x.clean=cat", "add", "."),
        cwd=repository,
        env=ENV,
        check=True,
    )
    tree = git(repository, "-c", "core.fsmonitor=false", "write-tree")
    made = git(repository, "commit-tree", tree, "-m", "x")
    trap.unlink(missing_ok=True)
    found = read_revision(repository, made, "policies", tmp_path / "lent.git")
    assert [p.code for p in found.problems] == ["SH211"]
    assert not trap.exists()
    assert not (tmp_path / "lent.git" / "hooks").exists()


@pytest.mark.parametrize(
    ("revision", "folder", "code"),
    [
        ("nothing", "policies", "SH217"),
        ("--output=x", "policies", "SH217"),
        ("HEAD\n", "policies", "SH217"),
        ("", "policies", "SH217"),
        ("HEAD", "elsewhere", "SH215"),
        ("HEAD", "../x", "SH202"),
    ],
)
def test_what_is_not_there_is_refused(repository: Path, tmp_path: Path, revision: str, folder: str, code: str):
    with pytest.raises(Rejected, match=code):
        read(repository, revision, tmp_path, folder)


def test_missing_objects_are_said_to_be_missing(repository: Path, tmp_path: Path):
    blob = git(repository, "rev-parse", "HEAD:policies/b.yaml")
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(Rejected, match="SH219"):
        read(repository, "HEAD", tmp_path)
    assert read(repository, "v1", tmp_path) == {"a.yaml": "first"}


def test_limits_hold(repository: Path, tmp_path: Path):
    with pytest.raises(Rejected, match="SH213"):
        read(repository, "HEAD", tmp_path, limits=Limits(files=1))


def test_the_repository_around_a_path(repository: Path, tmp_path: Path):
    assert repository_around(repository / "policies") == repository
    assert repository_around(repository) == repository
    with pytest.raises(Rejected, match="SH218"):
        repository_around(tmp_path)
    with pytest.raises(Rejected, match="SH218"):
        read(tmp_path, "HEAD", tmp_path)
