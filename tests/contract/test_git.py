"""The Git source against the real git command, with repositories made here."""

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from shunter.model.errors import Rejected, Retry, Severity, Stalled
from shunter.source.git import GOOD, GitSource
from shunter.source.limits import Limits

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "c",
    "GIT_COMMITTER_EMAIL": "c@example.com",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
}


class Repository:
    """A repository with a working tree, which the source only ever sees as a remote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str, given: bytes = b"") -> str:
        return (
            subprocess.run(("git", *arguments), cwd=self.path, env=ENV, input=given, check=True, capture_output=True)
            .stdout.decode()
            .strip()
        )

    def write(self, path: str, text: str | bytes) -> None:
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)

    def commit(self, **files: str | bytes) -> str:
        for path, text in files.items():
            self.write(path.replace("__", "/") + ".yaml", text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "change")
        return self.git("rev-parse", "HEAD")


def loose(cache: Path, blob: str) -> Path:
    """The file of one object in a clone, whose packs are taken apart for it."""
    for pack in (cache / "objects" / "pack").glob("*.pack"):
        data = pack.read_bytes()
        for file in pack.parent.iterdir():
            file.unlink()
        subprocess.run(("git", f"--git-dir={cache}", "unpack-objects", "-q"), input=data, env=ENV, check=True)
    return cache / "objects" / blob[:2] / blob[2:]


@pytest.fixture
def remote(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "remote")


def source(remote: Repository | str, tmp_path: Path, **options: object) -> GitSource:
    url = remote if isinstance(remote, str) else str(remote.path)
    options.setdefault("folder", "policies")
    return GitSource(url, "main", cache=tmp_path / "cache", **options)  # type: ignore[arg-type]


def code(caught: pytest.ExceptionInfo[Rejected] | pytest.ExceptionInfo[Retry] | pytest.ExceptionInfo[Stalled]) -> str:
    return caught.value.problem.code


def test_reads_the_policies_of_the_newest_commit_and_follows_updates(remote: Repository, tmp_path: Path) -> None:
    first = remote.commit(policies__b="b: 1", policies__deep__a="a: 1", elsewhere__c="c: 1")
    git = source(remote, tmp_path)
    assert git.fetch() == first
    revision = git.read()
    assert revision.commit == first
    assert revision.committed_at == 1767323045
    assert [(f.path, f.data) for f in revision.files] == [("b.yaml", b"b: 1"), ("deep/a.yaml", b"a: 1")]
    assert revision.files[0].blob == remote.git("rev-parse", "HEAD:policies/b.yaml")
    assert revision.problems == ()

    second = remote.commit(policies__b="b: 2")
    assert git.read().commit == first, "an update counts only once it was fetched"
    assert git.fetch() == second
    assert git.read("main").files[0].data == b"b: 2"
    assert git.read(first).files[0].data == b"b: 1", "older commits stay readable"
    assert git.read(first[:12]).commit == first


def test_the_whole_repository_and_text_in_any_encoding(remote: Repository, tmp_path: Path) -> None:
    content = bytes(range(256)) + "$Id$ é\r\n".encode()
    remote.write(".gitattributes", "*.yaml -text ident")
    remote.commit(one=content, other__two="")
    remote.write("not-a-policy.txt", "x")
    git = source(remote, tmp_path, folder="")
    git.fetch()
    assert [(f.path, f.data) for f in git.read().files] == [("one.yaml", content), ("other/two.yaml", b"")]


def test_branch_missing_then_pushed(remote: Repository, tmp_path: Path) -> None:
    remote.commit(policies__a="1")
    remote.git("branch", "-m", "trunk")
    git = source(remote, tmp_path)
    with pytest.raises(Retry) as caught:
        git.fetch()
    assert code(caught) == "SH205"
    assert "branch main" in caught.value.problem.what
    with pytest.raises(Retry) as unread:
        git.read()
    assert code(unread) == "SH209"
    remote.git("branch", "-m", "main")
    assert git.fetch() == git.read().commit


def test_a_deleted_branch_keeps_the_last_good_commit(remote: Repository, tmp_path: Path) -> None:
    good = remote.commit(policies__a="1")
    git = source(remote, tmp_path)
    git.fetch()
    remote.git("checkout", "-q", "--detach")
    remote.git("branch", "-D", "main")
    with pytest.raises(Retry) as caught:
        git.fetch()
    assert code(caught) == "SH205"
    assert git.read().commit == good


def test_a_default_branch_that_was_renamed_is_named(remote: Repository, tmp_path: Path) -> None:
    good = remote.commit(policies__a="1")
    git = source(remote, tmp_path)
    git.fetch()
    remote.git("branch", "-m", "trunk")
    with pytest.raises(Retry) as caught:
        git.fetch()
    assert (code(caught), git.read().commit) == ("SH205", good)
    assert "its default branch is trunk" in caught.value.problem.what
    newer = remote.commit(policies__a="2")
    renamed = GitSource(str(remote.path), "trunk", "policies", tmp_path / "cache")
    assert renamed.fetch() == newer, "it goes on from where main was"


def test_a_tag_is_never_taken_for_the_branch(remote: Repository, tmp_path: Path) -> None:
    old = remote.commit(policies__a="1")
    remote.git("tag", "main")
    remote.git("tag", "-a", "-m", "x", "v1")
    newest = remote.commit(policies__a="2")
    git = source(remote, tmp_path)
    assert git.fetch() == newest == git.read("main").commit
    with pytest.raises(Rejected) as caught:
        git.read("v1")
    assert code(caught) == "SH214"
    for name in ("v1", "refs/tags/main"):
        with pytest.raises(Retry) as missing:
            GitSource(str(remote.path), name, "policies", tmp_path / "other").fetch()
        assert code(missing) == "SH205"
    assert git.read(old).commit == old


def test_a_branch_that_names_no_commit(remote: Repository, tmp_path: Path) -> None:
    """Git itself refuses to make one; a server can be set up by hand."""
    good = remote.commit(policies__a="1")
    git = source(remote, tmp_path)
    git.fetch()
    remote.git("tag", "-a", "-m", "x", "v1")
    (remote.path / ".git/refs/heads/main").write_text(remote.git("rev-parse", "refs/tags/v1") + "\n")
    with pytest.raises(Retry) as caught:
        git.fetch()
    assert (code(caught), git.read().commit) == ("SH206", good)
    assert "but a tag" in caught.value.problem.what


def test_remote_away_then_back(remote: Repository, tmp_path: Path) -> None:
    good = remote.commit(policies__a="1")
    git = source(remote, tmp_path)
    git.fetch()
    hidden = remote.path.rename(tmp_path / "hidden")
    with pytest.raises(Retry) as caught:
        git.fetch()
    assert code(caught) == "SH203"
    assert "last good commit stays" in caught.value.problem.remedy
    assert git.read().commit == good, "what was good stays readable"
    hidden.rename(remote.path)
    newer = remote.commit(policies__a="2")
    assert git.fetch() == newer


def test_a_rewritten_branch_stalls_and_names_both_commits(remote: Repository, tmp_path: Path) -> None:
    remote.commit(policies__a="1")
    good = remote.commit(policies__a="2")
    git = source(remote, tmp_path)
    git.fetch()
    remote.git("reset", "-q", "--hard", "HEAD~1")
    rewritten = remote.commit(policies__a="3")
    with pytest.raises(Stalled) as caught:
        git.fetch()
    assert code(caught) == "SH207"
    assert good in caught.value.problem.what
    assert rewritten in caught.value.problem.what
    assert git.read().commit == good

    remote.git("merge", "-q", "-s", "ours", "-m", "contain it again", good)
    mended = remote.git("rev-parse", "HEAD")
    assert git.fetch() == mended == git.read().commit


def test_a_branch_set_back_to_an_older_commit_stalls_too(remote: Repository, tmp_path: Path) -> None:
    remote.commit(policies__a="1")
    good = remote.commit(policies__a="2")
    git = source(remote, tmp_path)
    git.fetch()
    remote.git("reset", "-q", "--hard", "HEAD~1")
    with pytest.raises(Stalled):
        git.fetch()
    assert git.read().commit == good
    back = remote.git("rev-parse", "HEAD")
    allowed = source(remote, tmp_path, allow_rewind=True)
    assert allowed.fetch() == back == allowed.read().commit
    (told,) = allowed.read().problems
    assert (told.code, told.severity, good in told.what) == ("SH222", Severity.WARNING, True)


def test_oversized_files_are_told_and_never_loaded(remote: Repository, tmp_path: Path) -> None:
    remote.commit(policies__fits="x" * 1000, policies__big=os.urandom(1001))
    git = source(remote, tmp_path, limits=Limits(file_bytes=1000))
    git.fetch()
    blob = remote.git("rev-parse", "HEAD:policies/big.yaml")
    body = loose(tmp_path / "cache", blob)
    body.chmod(0o644)
    body.write_bytes(body.read_bytes()[:-8])  # its size can still be told, its content can't: reading it would fail
    remote.path.rename(tmp_path / "hidden")
    revision = git.read()
    assert [f.path for f in revision.files] == ["fits.yaml"]
    assert [(p.code, p.subject) for p in revision.problems] == [("SH212", "big.yaml")]
    assert "1,001 bytes" in revision.problems[0].what


@pytest.mark.parametrize(
    ("limits", "word"), [(Limits(files=2), "policy files"), (Limits(total_bytes=5), "bytes"), (Limits(entries=3), "entries")]
)
def test_too_much_is_refused_as_a_whole(remote: Repository, tmp_path: Path, limits: Limits, word: str) -> None:
    remote.commit(policies__a="12", policies__b="34", policies__c="56")
    git = source(remote, tmp_path, limits=limits)
    git.fetch()
    with pytest.raises(Rejected) as caught:
        git.read()
    assert code(caught) == "SH213"
    assert word in caught.value.problem.what


def test_links_and_submodules_are_never_followed(remote: Repository, tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("password: hunter2")
    remote.commit(policies__a="1", outside="2")
    (remote.path / "policies/secret.yaml").symlink_to(secret)
    (remote.path / "policies/inside.yaml").symlink_to("a.yaml")
    (remote.path / "policies/team").symlink_to("..")
    remote.git("add", "-A")
    head = remote.git("rev-parse", "HEAD")
    remote.git("update-index", "--add", "--cacheinfo", f"160000,{head},policies/module")
    remote.git("commit", "-q", "-m", "links")
    git = source(remote, tmp_path)
    git.fetch()
    revision = git.read()
    assert [f.path for f in revision.files] == ["a.yaml"]
    assert [(p.code, p.subject, p.severity) for p in revision.problems] == [
        ("SH211", "inside.yaml", Severity.ERROR),
        ("SH211", "module", Severity.WARNING),
        ("SH211", "secret.yaml", Severity.ERROR),
        ("SH211", "team", Severity.WARNING),
    ]
    with pytest.raises(Rejected) as caught:
        source(remote, tmp_path, folder="policies/team").read()
    assert code(caught) == "SH215"


def test_evil_names_are_refused_one_by_one(remote: Repository, tmp_path: Path) -> None:
    remote.commit(policies__a="1")
    blob = remote.git("hash-object", "-w", "--stdin", given=b"x")
    names = [b"new\nline.yaml", b"tab\t.yaml", b"not-\xff-text.yaml", b"back\\slash.yaml", "right‮left.yaml".encode(), b"--help.yaml"]
    records = b"".join(b"100644 blob " + blob.encode() + b"\t" + name + b"\0" for name in names)
    inner = remote.git("mktree", "-z", given=records)
    top = remote.git("mktree", given=f"040000 tree {inner}\tpolicies\n".encode())
    commit = remote.git("commit-tree", top, "-p", "HEAD", "-m", "evil")
    remote.git("update-ref", "refs/heads/main", commit)
    git = source(remote, tmp_path)
    git.fetch()
    revision = git.read()
    assert [f.path for f in revision.files] == ["--help.yaml"]
    assert {p.code for p in revision.problems} == {"SH210"}
    assert len(revision.problems) == 5
    assert all(p.subject.isprintable() for p in revision.problems)


def test_a_tree_that_climbs_out_is_refused_at_the_door(remote: Repository, tmp_path: Path) -> None:
    good = remote.commit(policies__a="1")
    git = source(remote, tmp_path)
    git.fetch()
    blob = remote.git("hash-object", "-w", "--stdin", given=b"x")
    entry = b"100644 ..\0" + bytes.fromhex(blob)
    tree = remote.git("hash-object", "-t", "tree", "--literally", "-w", "--stdin", given=entry)
    commit = remote.git("commit-tree", tree, "-p", "HEAD", "-m", "climb")
    remote.git("update-ref", "refs/heads/main", commit)
    with pytest.raises(Retry) as caught:
        git.fetch()
    assert code(caught) == "SH206"
    assert "hasDotdot" in caught.value.problem.what or "'..'" in caught.value.problem.what
    assert git.read().commit == good


def test_no_hook_runs_and_no_working_tree_appears(remote: Repository, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    remote.commit(policies__a="1")
    git = source(remote, tmp_path)
    git.fetch()
    hooks = tmp_path / "cache" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "post-merge", "reference-transaction", "post-update", "pre-auto-gc"):
        hook = hooks / name
        hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
        hook.chmod(0o755)
    remote.commit(policies__a="2")
    git.fetch()
    assert git.read().files[0].data == b"2"
    assert not mark.exists()
    assert not list((tmp_path / "cache").rglob("*.yaml"))


@pytest.mark.parametrize(
    "url",
    [
        "--upload-pack=touch${IFS}EXECUTED",
        "-oProxyCommand=touch EXECUTED",
        "ext::sh -c touch% EXECUTED",
        "fd::17",
        "ssh://-oProxyCommand=touch/x",
        "ssh://-oProxyCommand=touch@host/x",
        "http://example.com/x.git",
        "git://example.com/x.git",
        "https://example.com/x.git\n[core]",
        "https:///x.git",
        "https://[::1/x",
        "relative/path",
        "",
    ],
)
def test_urls_that_would_be_taken_for_something_else(url: str, tmp_path: Path) -> None:
    with pytest.raises(Rejected) as caught:
        source(url, tmp_path)
    assert code(caught) == "SH201"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("branch", ["-x", "a..b", "a b", "a:b", "a^", "x.lock", "a@{1}", "/a", "a/", "", "a\nb", "*"])
def test_branches_that_are_none(branch: str, tmp_path: Path) -> None:
    with pytest.raises(Rejected) as caught:
        GitSource("https://example.com/x.git", branch, "", tmp_path)
    assert code(caught) == "SH202"


def test_a_revision_is_never_an_option(remote: Repository, tmp_path: Path) -> None:
    remote.commit(policies__a="1")
    git = source(remote, tmp_path)
    git.fetch()
    for revision in ("--help", "-x", "nope", "0" * 40, "", "a\0b"):
        with pytest.raises(Rejected) as caught:
            git.read(revision)
        assert code(caught) == "SH214"


def test_a_password_in_the_url_stays_out_of_messages_and_off_the_disk(tmp_path: Path) -> None:
    git = source("https://user:hunter2@127.0.0.1:9/x.git", tmp_path)
    with pytest.raises(Retry) as caught:
        git.fetch()
    assert code(caught) == "SH203"
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1:9" in str(caught.value)
    for file in (tmp_path / "cache").rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes()


def test_a_remote_that_hangs_is_given_up_with_all_its_helpers(tmp_path: Path) -> None:
    """`ssh` is replaced by something that starts a child and never answers."""
    fake = tmp_path / "bin" / "ssh"
    fake.parent.mkdir()
    pids = tmp_path / "pids"
    fake.write_text(f"#!/bin/sh\nsleep 60 &\necho $$ $! >> {pids}\nwait\n")
    fake.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
        git = source("ssh://example.invalid/x.git", tmp_path, timeout_s=0.7)
        with pytest.raises(Retry) as caught:
            git.fetch()
    assert code(caught) == "SH203"
    assert "0.7 s" in caught.value.problem.what
    deadline = time.monotonic() + 5
    for pid in pids.read_text().split():
        while _alive(int(pid)):
            assert time.monotonic() < deadline, f"process {pid} outlived its command"
            threading.Event().wait(0.01)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("damage", ["objects", "blob", "HEAD", "flipped", "lock"])
def test_a_broken_clone_is_made_again(remote: Repository, tmp_path: Path, damage: str) -> None:
    good = remote.commit(policies__a="a: 1")
    git = source(remote, tmp_path)
    git.fetch()
    cache = tmp_path / "cache"
    blob = remote.git("rev-parse", "HEAD:policies/a.yaml")
    file_of_blob = loose(cache, blob)
    if damage == "objects":
        for file in (cache / "objects").rglob("*"):
            if file.is_file():
                file.unlink()
    elif damage == "blob":
        file_of_blob.unlink()
    elif damage == "HEAD":
        (cache / "HEAD").unlink()
    elif damage == "flipped":
        other = remote.git("hash-object", "-w", "--stdin", given=b"a: 2")
        file_of_blob.chmod(0o644)
        file_of_blob.write_bytes((remote.path / ".git/objects" / other[:2] / other[2:]).read_bytes())
    else:
        remote.commit(policies__b="b: 1")
        (cache / "refs/shunter/incoming.lock").touch()
    newest = git.fetch()
    revision = git.read()
    assert revision.commit == newest == remote.git("rev-parse", "HEAD")
    assert revision.files[0].data == b"a: 1"
    assert git.read(good).files[0].data == b"a: 1"


def test_a_broken_clone_with_the_remote_away_says_so(remote: Repository, tmp_path: Path) -> None:
    remote.commit(policies__a="1")
    git = source(remote, tmp_path)
    git.fetch()
    blob = remote.git("rev-parse", "HEAD:policies/a.yaml")
    loose(tmp_path / "cache", blob).unlink()
    hidden = remote.path.rename(tmp_path / "hidden")
    with pytest.raises(Retry) as caught:
        git.read()
    assert code(caught) == "SH203"
    hidden.rename(remote.path)
    assert git.read().files[0].data == b"1"


def test_a_folder_with_other_things_is_not_taken_for_a_cache(remote: Repository, tmp_path: Path) -> None:
    remote.commit(policies__a="1")
    precious = tmp_path / "cache" / "precious"
    precious.parent.mkdir()
    precious.write_text("mine")
    with pytest.raises(Rejected) as caught:
        source(remote, tmp_path).fetch()
    assert code(caught) == "SH208"
    assert precious.read_text() == "mine"


def test_settings_of_the_user_and_the_system_do_not_reach_git(remote: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote.commit(policies__a="1")
    mark = tmp_path / "executed"
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f'[url "ext::touch {mark} "]\n\tinsteadOf = {remote.path}\n[core]\n\tfsmonitor = touch {mark}\n')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_SSH", "/bin/false")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    git = source(remote, tmp_path)
    assert git.fetch() == git.read().commit
    assert not mark.exists()


def test_the_accepted_commit_survives_a_new_process(remote: Repository, tmp_path: Path) -> None:
    good = remote.commit(policies__a="1")
    source(remote, tmp_path).fetch()
    remote.path.rename(tmp_path / "hidden")
    assert source(remote, tmp_path).read().commit == good
    assert (tmp_path / "cache" / GOOD).exists()
