"""Git repositories whose commits are signed with real keys, for tests of who may change policies."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **{f"GIT_{who}_{what}": f"{who.lower()}@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


class Key:
    """A key to sign with: an SSH key file, or an OpenPGP key in a home of its own."""

    def __init__(self, who: str, folder: Path, *, home: Path | None = None) -> None:
        self.who, self.home = who, home
        if home is None:
            self.file = folder / who
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", who, "-f", self.file], check=True)
            self.public = self.file.with_suffix(".pub").read_text().strip()
        else:
            self.public = gpg(home, "--export", "--armor", who)

    @property
    def signer(self) -> str:
        """A line of allowed_signers."""
        return f"{self.who} {self.public}\n"

    @property
    def settings(self) -> tuple[str, ...]:
        """Git's settings that sign with it."""
        if self.home is None:
            return ("-c", "gpg.format=ssh", "-c", f"user.signingkey={self.file}")
        return ("-c", "gpg.format=openpgp", "-c", f"user.signingkey={self.who}")

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.home is None else {"GNUPGHOME": str(self.home)}


def gpg(home: Path, *arguments: str, given: str = "") -> str:
    """Run gpg in a home."""
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "", *arguments]
    return subprocess.run(command, input=given, check=True, capture_output=True, text=True).stdout


@contextmanager
def openpgp_keys(home: Path, *who: str, expires: str = "never", conf: str = "") -> Iterator[list[Key]]:
    """Keys in a new home with these settings of gpg's; its agent ends with the block."""
    home.mkdir(mode=0o700)
    (home / "gpg.conf").write_text(conf)
    try:
        for name in who:
            gpg(home, "--quick-gen-key", name, "ed25519", "sign", expires)
        yield [Key(name, home, home=home) for name in who]
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "gpg-agent"], check=True)


class Repository:
    """A repository with a working tree, which a source only ever sees as a remote. `by` is who signs; None: nobody."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str, given: bytes = b"", by: Key | None = None) -> str:
        command = ("git", *(by.settings if by else ()), *arguments)
        environment = ENV | (by.environment if by else {})
        ended = subprocess.run(command, cwd=self.path, env=environment, input=given, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout.decode().strip()

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def commit(self, by: Key | None = None, name: str = "a", text: str = "") -> str:
        """Change one policy file and commit."""
        file = self.path / "policies" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        with file.open("a") as out:
            out.write(text or f"# {len(self.git('rev-list', '--all'))}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change", *(("-S",) if by else ()), by=by)
        return self.head

    def branch(self, name: str, *signers: Key | None) -> str:
        """A branch off main with one commit by each; ends on main again."""
        self.git("checkout", "-q", "-b", name)
        for signer in signers:
            self.commit(signer, name)
        tip = self.head
        self.git("checkout", "-q", "main")
        return tip

    def merge(self, name: str, by: Key | None, *options: str) -> str:
        """Merge a branch into main, as `by`."""
        self.git("merge", "-q", "--no-ff", "-m", f"merge {name}", *options, *(("-S",) if by else ()), name, by=by)
        return self.head

    def forge(self, tree: str, parents: tuple[str, ...], by: Key) -> str:
        """Set main to a commit with just this tree and these parents, signed."""
        named = [word for parent in parents for word in ("-p", parent)]
        made = self.git("commit-tree", "-S", tree, *named, "-m", "made", by=by)
        self.git("reset", "-q", "--hard", made)
        return made
