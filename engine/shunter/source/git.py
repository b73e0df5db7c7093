"""Policies at a commit: the git command on a bare clone of our own, never a checkout.

Nothing of a repository is ever executed or followed: there is no working tree, hooks are off, submodules and symbolic links are only
counted, every object is checked when it arrives, and every file's content is checked against its object id when it is read.
"""

import base64
import os
import shlex
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from shunter.model.errors import Problem, Rejected, Retry, Stalled
from shunter.model.ids import Commit
from shunter.model.source import Revision, SourceFile
from shunter.source import tree
from shunter.source.address import check_branch, check_url, clean_folder, password, shown
from shunter.source.limits import Limits
from shunter.source.process import Ended, run

GOOD: Final = "refs/shunter/good"
"""Where the last accepted commit of the branch is kept in the cache."""
INCOMING: Final = "refs/shunter/incoming"
MARK: Final = "shunter-cache"
"""The file that marks a cache folder as ours."""

_SETTINGS: Final = (
    ("core.hooksPath", "/dev/null"),
    ("core.bigFileThreshold", "1m"),  # larger blobs are streamed, never held in memory
    ("fetch.fsckObjects", "true"),
    ("transfer.fsckObjects", "true"),
    ("http.followRedirects", "false"),  # a redirect would carry credentials to whoever it names
    ("credential.helper", ""),
    ("gc.autoDetach", "false"),  # housekeeping ends with its command
    ("protocol.version", "2"),
)


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Files that give access to the repository, each read anew at every fetch, so that replacing one is enough. None: not used.

    `token` holds `user:token`, or a token alone, for https. `ssh_key` and `known_hosts` are for ssh; without `known_hosts` the user's own
    is used. Host keys are always checked.
    """

    token: Path | None = None
    ssh_key: Path | None = None
    known_hosts: Path | None = None


class _CacheBroken(Exception):
    """The clone can't be trusted any more and is to be made again."""


class GitSource:
    """One folder of one branch of one repository.

    `cache` is a folder that belongs to this source alone: made when missing, made again when broken. `timeout_s` bounds every single git
    command. Calls block; use them from a thread. They may come from several threads, and are done one after the other.
    """

    def __init__(
        self,
        url: str,
        branch: str,
        folder: str,
        cache: Path,
        *,
        timeout_s: float = 30.0,
        limits: Limits | None = None,
        allow_rewind: bool = False,
        access: Access | None = None,
    ) -> None:
        """Raises Rejected SH201 or SH202 for a URL, branch or folder that can't be one. Touches neither disk nor network."""
        check_url(url)
        check_branch(branch)
        self.branch = branch
        self.folder = clean_folder(folder)
        self.where = shown(url)
        """The repository for messages: its URL without credentials."""
        self._url = url
        self._cache = cache
        self._timeout_s = timeout_s
        self._limits = limits or Limits()
        self._allow_rewind = allow_rewind
        self._access = access or Access()
        self._lock = threading.Lock()

    def fetch(self) -> Commit:
        """Bring the branch's newest commit here and return its id.

        Raises Retry when the remote doesn't answer (SH203), refuses us (SH204) or has no such branch (SH205), or when what it sends isn't
        sound (SH206); Stalled SH207 when the branch was rewritten; Rejected SH208 when the cache folder holds something else. After any of
        them the last good commit stays readable.
        """
        with self._lock:
            return self._fetch()

    def read(self, revision: str | None = None) -> Revision:
        """All policy files of the folder at a commit of the cache; None and the branch's own name mean the last good commit.

        Raises Retry SH209 when nothing was fetched yet, Rejected SH214 for a revision that isn't here, SH215 for a folder that isn't, and
        SH213 for a folder that holds more than it may. A broken clone is made again on the way; when the remote is away just then, it
        raises what `fetch` would.
        """
        with self._lock:
            try:
                return self._read(revision)
            except _CacheBroken:
                self._rebuild()
                if self._commit_of(GOOD) is None:
                    self._accept()
                return self._read(revision)

    # -- fetching

    def _fetch(self) -> Commit:
        self._ensure(self._cache)
        ended = self._transfer(self._cache)
        if ended.code != 0 and self._remote_has_branch(ended):
            # The remote is fine and the branch is there: either the clone is broken, or what is sent is. A new clone tells.
            self._rebuild()
        return self._accept()

    def _accept(self) -> Commit:
        new = self._commit_of(INCOMING)
        old = self._commit_of(GOOD)
        if new is None:
            raise self._retry("SH206", "the fetch brought no commit", "Look at the repository with git fsck")
        if old is not None and old != new and not self._allow_rewind and not self._descends(new, old):
            raise Stalled(
                Problem(
                    code="SH207",
                    what=f"branch {self.branch} was rewritten: {new} doesn't descend from {old}, which stays in force",
                    remedy=f"Push a branch that contains {old}, or allow the rewind in the settings if it is meant",
                    subject=self.where,
                )
            )
        if old != new:
            self._must(self._git("update-ref", "--no-deref", GOOD, new))
        return new

    def _transfer(self, cache: Path) -> Ended:
        ended = self._git(
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-recurse-submodules",
            "--no-write-fetch-head",
            "--force",
            "--",
            "origin",
            f"+refs/heads/{self.branch}:{INCOMING}",
            cache=cache,
            remote=True,
        )
        if ended.timed_out:
            for part in (cache / "objects" / "pack").glob("tmp_*"):
                part.unlink(missing_ok=True)
        return ended

    def _remote_has_branch(self, failed: Ended) -> bool:
        """Raises Retry when the remote is at fault: it is away, or hasn't the branch."""
        if failed.timed_out:
            raise self._away(failed)
        asked = self._git("ls-remote", "--quiet", "--", "origin", f"refs/heads/{self.branch}", remote=True, standalone=True)
        if asked.code != 0:
            raise self._away(asked)
        if not asked.output.strip():
            raise self._retry("SH205", f"the repository has no branch {self.branch}", "Push the branch, or name another in the settings")
        return True

    def _away(self, ended: Ended) -> Retry:
        said = self._said(ended)
        if ended.timed_out:
            what = f"the remote didn't answer within {self._timeout_s:g} s"
            return self._retry("SH203", what, "Check that it can be reached; the last good commit stays in force")
        if any(
            word in said.lower()
            for word in ("host key", "authentication failed", "permission denied", "could not read username", "error: 401", "error: 403")
        ):
            remedy = (
                "Check the credentials and the known host key; host keys are never accepted unseen. The last good commit stays in force"
            )
            return self._retry("SH204", f"the remote refused access: {said}", remedy)
        return self._retry(
            "SH203", f"the remote can't be read: {said}", "Check that it can be reached; the last good commit stays in force"
        )

    def _rebuild(self) -> None:
        """Clone anew beside the cache, then put it in its place. The last good commit is kept if the new clone has it."""
        self._ensure(self._cache)
        good = self._commit_of(GOOD)
        fresh = self._cache.with_name(self._cache.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            self._ensure(fresh)
            ended = self._transfer(fresh)
            if ended.code != 0:
                self._remote_has_branch(ended)
                raise self._retry(
                    "SH206",
                    f"the branch can't be fetched into a new clone either: {self._said(ended)}",
                    "Run git fsck on the repository, and look at this machine's disk; the last good commit stays in force",
                )
            if good is not None and self._git("cat-file", "-e", f"{good}^{{commit}}", cache=fresh).code == 0:
                self._must(self._git("update-ref", "--no-deref", GOOD, good, cache=fresh))
            elif good is not None and not self._allow_rewind:
                raise self._retry(
                    "SH209",
                    f"the clone is broken, and {good} is no longer in the branch",
                    "Push it again, or remove the cache folder by hand",
                )
            shutil.rmtree(self._cache)
            fresh.rename(self._cache)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    # -- reading

    def _read(self, revision: str | None) -> Revision:
        commit = self._resolve(revision)
        top = f"{commit}:{self.folder}"
        kind = self._git("cat-file", "-t", top)
        if kind.output.strip() != b"tree":
            if self._git("cat-file", "-e", f"{commit}^{{tree}}").code != 0:
                raise _CacheBroken
            raise Rejected(
                Problem(
                    code="SH215",
                    what=f"commit {commit} has no folder {self.folder}",
                    remedy="Name the folder that holds the policies",
                    subject=self.where,
                )
            )
        listed = self._sound(self._git("ls-tree", "-r", "-l", "-z", top, output_bytes=self._limits.entries * 200))
        try:
            entries, problems = tree.parse(listed.output, self._limits)
            files = tuple(self._files(entries))
        except tree.Unsound as error:
            raise _CacheBroken from error
        return Revision(commit=commit, committed_at=self._time(commit), files=files, problems=problems)

    def _files(self, entries: tuple[tree.Entry, ...]) -> Iterator[SourceFile]:
        if not entries:
            return
        names = "".join(f"{e.blob}\n" for e in entries).encode()
        room = sum(e.size + 200 for e in entries)
        ended = self._sound(self._git("cat-file", "--batch", given=names, output_bytes=room))
        for entry, data in tree.contents(ended.output, entries):
            yield SourceFile(path=entry.path, blob=entry.blob, data=data)

    def _resolve(self, revision: str | None) -> Commit:
        if not (self._cache / MARK).exists():
            raise self._retry("SH209", "nothing was fetched yet", "Fetch first")
        if revision is None or revision == self.branch:
            good = self._commit_of(GOOD)
            if good is None:
                raise self._retry("SH209", "no commit was accepted yet", "Fetch first")
            return good
        found = (
            self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}") if revision.isprintable() else None
        )
        if found is None or found.code != 0:
            raise Rejected(
                Problem(
                    code="SH214",
                    what=f"revision {revision!r} isn't in branch {self.branch} as fetched",
                    remedy="Fetch, or give a commit id of this branch",
                    subject=self.where,
                )
            )
        return Commit(found.output.decode().strip())

    def _time(self, commit: Commit) -> float:
        shown_time = self._sound(self._git("show", "--no-patch", "--no-show-signature", "--format=%ct", commit))
        return float(shown_time.output.decode().strip())

    def _commit_of(self, ref: str) -> Commit | None:
        found = self._git("rev-parse", "--verify", "--quiet", ref)
        return Commit(found.output.decode().strip()) if found.code == 0 else None

    def _descends(self, new: Commit, old: Commit) -> bool:
        return self._git("merge-base", "--is-ancestor", old, new).code == 0

    # -- the command

    def _ensure(self, cache: Path) -> None:
        """Raises Rejected SH208 rather than touch a folder that isn't ours."""
        if cache.exists() and any(cache.iterdir()) and not (cache / MARK).exists():
            raise Rejected(
                Problem(
                    code="SH208",
                    what="the cache folder holds something that isn't a cache of policies",
                    remedy="Name a folder of its own for the cache",
                    subject=str(cache),
                )
            )
        if (cache / "HEAD").exists() and self._git("rev-parse", "--is-bare-repository", cache=cache).output.strip() == b"true":
            return
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True, mode=0o700)
        (cache / MARK).touch()
        self._must(self._git("init", "--quiet", "--bare", "--template=", "--initial-branch=unused", cache=cache))

    def _sound(self, ended: Ended) -> Ended:
        if ended.timed_out:
            raise self._retry("SH203", f"git took more than {self._timeout_s:g} s to read the clone", "Look at the load of this machine")
        if ended.cut:
            raise Rejected(
                Problem(code="SH213", what="the policy folder is larger than it may be", remedy="Name a smaller folder", subject=self.where)
            )
        if ended.code != 0:
            raise _CacheBroken
        return ended

    def _must(self, ended: Ended) -> None:
        if ended.code != 0:
            raise self._retry("SH216", f"the clone can't be written: {self._said(ended)}", "Check the cache folder's disk and permissions")

    def _retry(self, code: str, what: str, remedy: str) -> Retry:
        return Retry(Problem(code=code, what=what, remedy=remedy, subject=self.where))

    def _said(self, ended: Ended) -> str:
        """Git's own last words, with the URL and any secret blotted out."""
        lines = [line.strip() for line in ended.error.splitlines() if line.strip()]
        telling = [line for line in lines if line.startswith(("fatal:", "error:", "remote:")) or "denied" in line or "verification" in line]
        text = "; ".join((telling or lines)[:3]) or f"git ended with {ended.code}"
        for secret in filter(None, (self._url if self._url != self.where else "", password(self._url))):
            text = text.replace(secret, "***")
        return text

    def _git(
        self,
        *arguments: str,
        cache: Path | None = None,
        given: bytes = b"",
        output_bytes: int = 2**20,
        remote: bool = False,
        standalone: bool = False,
    ) -> Ended:
        """`standalone`: don't look at the clone at all, which may be what is broken."""
        place = Path("/dev/null") if standalone else (cache or self._cache)
        return run(
            ("git", f"--git-dir={place}", *arguments),
            env=self._environment(remote=remote),
            timeout_s=self._timeout_s,
            given=given,
            output_bytes=output_bytes,
        )

    def _environment(self, *, remote: bool) -> dict[str, str]:
        settings = list(_SETTINGS)
        if remote:
            # In the environment, since a command line can be read by everybody on the machine.
            settings.append(("remote.origin.url", self._url))
            settings += self._authorization()
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "SSH_AUTH_SOCK", "TMPDIR", "SSL_CERT_FILE") if name in os.environ}
        environment = {
            **kept,
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "https:ssh:file",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_SSH_COMMAND": self._ssh(),
            "GIT_CONFIG_COUNT": str(len(settings)),
        }
        for number, (key, value) in enumerate(settings):
            environment[f"GIT_CONFIG_KEY_{number}"] = key
            environment[f"GIT_CONFIG_VALUE_{number}"] = value
        return environment

    def _authorization(self) -> list[tuple[str, str]]:
        if self._access.token is None:
            return []
        try:
            text = self._access.token.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise self._retry("SH204", f"the token's file can't be read ({type(error).__name__})", f"Check {self._access.token}") from error
        pair = text if ":" in text else f"x-access-token:{text}"
        return [(f"http.{self.where}.extraHeader", "Authorization: Basic " + base64.b64encode(pair.encode()).decode())]

    def _ssh(self) -> str:
        words = ["ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes", f"-oConnectTimeout={max(1, int(self._timeout_s / 2))}"]
        if self._access.ssh_key is not None:
            words += ["-oIdentitiesOnly=yes", "-i", str(self._access.ssh_key)]
        if self._access.known_hosts is not None:
            words.append(f"-oUserKnownHostsFile={self._access.known_hosts}")
        return shlex.join(words)
