"""How a repository is reached: a real sshd whose host key changes, and a real https server whose token does."""

import base64
import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest
from git_servers import SSHD, Https, Sshd
from shunter.model.errors import Retry
from shunter.source.command import Access
from shunter.source.git import GitSource
from signing import Key, Repository


@pytest.fixture
def remote(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "remote")


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    if SSHD is None:
        pytest.skip("no sshd here (Debian: openssh-server)")
    with Sshd(tmp_path / "sshd") as server:
        yield server


class Shell:
    """A source that goes by ssh, with its files where ssh would stumble over their names."""

    def __init__(self, folder: Path, sshd: Sshd, remote: Repository) -> None:
        self.files = folder / "100%i of it"
        self.files.mkdir()
        self.known_hosts, self.key = self.files / "known_hosts", self.files / "key"
        self.use(Key("deploy", self.files), sshd)
        self.known_hosts.write_text(sshd.start())
        access = Access(ssh_key=self.key, known_hosts=self.known_hosts)
        url = f"ssh://{getpass.getuser()}@127.0.0.1:{sshd.port}{remote.path}"
        self.git = GitSource(url, "main", "policies", folder / "cache", access=access)

    def use(self, key: Key, sshd: Sshd) -> None:
        sshd.authorized.write_text(key.public + "\n")
        key.file.rename(self.key)


def refused(git: GitSource, good: str) -> str:
    with pytest.raises(Retry) as caught:
        git.fetch()
    assert (caught.value.problem.code, git.read().commit) == ("SH204", good)
    assert "last good commit stays in force" in caught.value.problem.remedy
    return caught.value.problem.what


def test_a_host_key_that_was_rotated_is_never_accepted_by_itself(remote: Repository, sshd: Sshd, tmp_path: Path) -> None:
    good = remote.commit()
    shell = Shell(tmp_path, sshd, remote)
    assert shell.git.fetch() == good
    known = shell.known_hosts.read_text()
    sshd.stop()
    rotated = sshd.start()
    newer = remote.commit()
    assert "Host key verification failed" in refused(shell.git, good)
    assert "Host key verification failed" in refused(shell.git, good), "nor the second time"
    assert shell.known_hosts.read_text() == known
    shell.known_hosts.write_text(rotated)
    assert shell.git.fetch() == newer, "without a restart"


def test_a_host_that_is_not_known_is_not_accepted(remote: Repository, sshd: Sshd, tmp_path: Path) -> None:
    remote.commit()
    shell = Shell(tmp_path, sshd, remote)
    shell.known_hosts.write_text("")
    with pytest.raises(Retry) as caught:
        shell.git.fetch()
    assert caught.value.problem.code == "SH204"
    assert shell.known_hosts.read_text() == ""


def test_an_ssh_key_that_is_replaced_is_used_at_the_next_fetch(remote: Repository, sshd: Sshd, tmp_path: Path) -> None:
    good = remote.commit()
    shell = Shell(tmp_path, sshd, remote)
    shell.git.fetch()
    other = Key("other", tmp_path)
    sshd.authorized.write_text(other.public + "\n")
    newer = remote.commit()
    assert "Permission denied" in refused(shell.git, good)
    shell.use(other, sshd)
    assert shell.git.fetch() == newer


@pytest.fixture
def https(tmp_path: Path, remote: Repository) -> Iterator[Https]:
    with Https(remote.path.parent, tmp_path / "https") as server:
        yield server


def test_a_token_that_is_replaced_is_used_at_the_next_fetch(remote: Repository, https: Https, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("reader:first\n")
    good = remote.commit()
    access = Access(token=token, ca=https.ca)
    git = GitSource(f"{https.url}/remote", "main", "policies", tmp_path / "cache", access=access)
    assert git.fetch() == good
    https.password = "x-access-token:second"
    newer = remote.commit()
    said = refused(git, good)
    assert "first" not in said
    token.unlink()
    assert "token's file" in refused(git, good)
    token.write_text("second")
    assert git.fetch() == newer


def test_a_server_whose_certificate_is_not_known_gets_no_token(remote: Repository, https: Https, tmp_path: Path) -> None:
    remote.commit()
    token = tmp_path / "token"
    token.write_text("reader:first")
    asked = []
    https.on_request = lambda: asked.append(1)
    git = GitSource(f"{https.url}/remote", "main", "policies", tmp_path / "cache", access=Access(token=token))
    with pytest.raises(Retry):
        git.fetch()
    assert not asked


@pytest.mark.parametrize("how", ["token", "url", "user"])
def test_no_listing_of_processes_and_no_file_shows_a_secret(remote: Repository, https: Https, tmp_path: Path, how: str) -> None:
    """While git talks to the server, all command lines and environments of the machine are searched, and the clone afterwards."""
    secret = "hunter2-is-secret"
    https.password = f"{secret}:" if how == "user" else f"reader:{secret}"
    shapes = [secret.encode(), base64.b64encode(https.password.encode())]
    token = tmp_path / "token"
    token.write_text(https.password)
    seen: list[Path] = []
    processes = set()

    def search() -> None:
        for process in Path("/proc").glob("[0-9]*"):
            for part in ("cmdline", "environ"):
                try:
                    data = (process / part).read_bytes()
                except OSError:
                    continue
                if b"git-remote-https" in data:
                    processes.add(process)
                seen.extend(process / part for shape in shapes if shape in data)

    https.on_request = search
    remote.commit()
    userinfo = {"token": "", "url": f"reader:{secret}@", "user": f"{secret}@"}[how]
    url = https.url.replace("https://", f"https://{userinfo}")
    access = Access(token=token if how == "token" else None, ca=https.ca)
    git = GitSource(f"{url}/remote", "main", "policies", tmp_path / "cache", access=access)
    assert git.fetch() == remote.head
    assert processes, "git was looked at while it ran"
    https.password = "reader:other"
    with pytest.raises(Retry) as caught:
        git.fetch()
    assert secret not in str(caught.value)
    assert not seen
    held = [file for file in (tmp_path / "cache").rglob("*") if file.is_file() and any(shape in file.read_bytes() for shape in shapes)]
    assert not held
