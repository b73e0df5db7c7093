"""Policies at a commit: the git command on a bare clone of our own, never a checkout.

Nothing of a repository is ever executed or followed: there is no working tree, hooks are off, submodules and symbolic links are only
counted, every object is checked when it arrives, and every file's content is checked against its object id when it is read.
"""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem, Rejected, Retry, Severity, Stalled
from shunter.model.ids import Commit
from shunter.model.source import Revision, SourceFile
from shunter.source import tree
from shunter.source.address import check_branch, check_url, clean_folder, shown
from shunter.source.command import Access, Git
from shunter.source.limits import Limits, printable
from shunter.source.memory import Memory, Remembered
from shunter.source.process import Ended
from shunter.source.trust import Judge, Trust

GOOD: Final = "refs/shunter/good"
"""Where the last accepted commit of the branch is kept in the cache."""
INCOMING: Final = "refs/shunter/incoming"
TRUSTED: Final = "refs/shunter/trusted"
"""The same where signatures are checked: what was accepted without that doesn't count as good there."""
MARK: Final = "shunter-cache"
"""The file that marks a cache folder as ours."""


class _CacheBroken(Exception):
    """The clone can't be trusted any more and is to be made again."""


class GitSource:
    """One folder of one branch of one repository.

    `cache` is a folder that belongs to this source alone, as does `<cache>.keep` beside it: made when missing, made again when broken.
    `timeout_s` bounds every single git command. Calls block; use them from a thread. They may come from several threads, and are done one
    after the other.
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
        trust: Trust | None = None,
    ) -> None:
        """Raises Rejected SH201 or SH202 for a URL, branch or folder that can't be one, SH246 for a trust that contradicts itself. Touches
        neither disk nor network.
        """
        check_url(url)
        check_branch(branch)
        self.branch = branch
        self.folder = clean_folder(folder)
        self.where = shown(url)
        """The repository for messages: its URL without credentials."""
        self._cache = cache
        self._timeout_s = timeout_s
        self._limits = limits or Limits()
        self._allow_rewind = allow_rewind
        self._command = Git(url, cache, timeout_s, access or Access())
        self._git = self._command.run
        beside = cache.with_name(cache.name + ".keep")
        self._judge = Judge(self._command, trust or Trust(), beside / "keys", branch)
        self._good = TRUSTED if self._judge.wanted else GOOD
        self._memory = Memory(beside / "memory.json")
        self._signers: dict[Commit, str] = {}
        self._rewound: dict[Commit, Commit] = {}
        self._lock = threading.Lock()

    def fetch(self) -> Commit:
        """Bring the branch's newest commit here and return its id.

        Raises Retry when the remote doesn't answer (SH203), refuses us (SH204) or has no such branch (SH205), or when what it sends isn't
        sound (SH206); Stalled SH207 when the branch was rewritten; Rejected SH208 when the cache folder holds something else. After any of
        them the last good commit stays readable. Where signatures are checked, raises what `Judge.judge` does as well.
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
                if self._commit_of(self._good) is None:
                    self._accept()
                return self._read(revision)

    def remembered(self) -> Remembered | None:
        """What an earlier process had in force, by what it gave to `remember`; None when there is no commit that could be read."""
        with self._lock:
            known = self._memory.load()
            if known is not None or not (self._cache / MARK).exists():
                return known
            good = self._commit_of(self._good)
            return Remembered(commit=good) if good else None

    def remember(self, remembered: Remembered) -> None:
        """Keep this for the next process. Never raises for a disk that is full."""
        self._memory.save(remembered)

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
        old = self._commit_of(self._good)
        if new is None:
            raise self._retry("SH206", "the fetch brought no commit", "Look at the repository with git fsck")
        kind = self._git("cat-file", "-t", new).output.decode().strip()
        if kind != "commit":
            raise self._retry(
                "SH206", f"branch {self.branch} names no commit, but a {kind or 'thing that is missing'}", "Set the branch right"
            )
        if old is not None and old != new and not self._descends(new, old):
            if not self._allow_rewind:
                raise Stalled(
                    Problem(
                        code="SH207",
                        what=f"branch {self.branch} was rewritten: {new} doesn't descend from {old}, which stays in force",
                        remedy=f"Push a branch that contains {old}, or allow the rewind in the settings if it is meant",
                        subject=new,
                    )
                )
            self._rewound = {new: old}
        if self._judge.wanted:
            self._signers = {new: self._judged(new, old)}
        if old != new:
            self._mark_good(new, self._cache)
        return new

    def _mark_good(self, commit: Commit, cache: Path) -> None:
        for ref in sorted({GOOD, self._good}):
            self._must(self._git("update-ref", "--no-deref", ref, commit, cache=cache))

    def _judged(self, new: Commit, old: Commit | None) -> str:
        try:
            return self._judge.judge(new, old)
        except tree.Unsound as error:
            what = f"commit {error} can't be read whole, so that its signature can't be checked"
            raise self._retry("SH206", what, "Look at the repository with git fsck; the last good commit stays in force") from error

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
        wanted = f"refs/heads/{self.branch}"
        asked = self._git("ls-remote", "--quiet", "--symref", "--", "origin", wanted, "HEAD", remote=True, standalone=True)
        if asked.code != 0:
            raise self._away(asked)
        lines = [line.split("\t") for line in asked.output.decode(errors="replace").splitlines()]
        if [wanted] not in [line[1:] for line in lines]:
            default = next((line[0] for line in lines if line[0].startswith("ref: refs/heads/")), "").removeprefix("ref: refs/heads/")
            what = f"the repository has no branch {self.branch}" + (f"; its default branch is {printable(default)}" if default else "")
            raise self._retry("SH205", what, "Push the branch, or name another in the settings; the last good commit stays in force")
        return True

    def _away(self, ended: Ended) -> Retry:
        said = self._command.said(ended)
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
        good = self._commit_of(self._good)
        fresh = self._cache.with_name(self._cache.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            self._ensure(fresh)
            ended = self._transfer(fresh)
            if ended.code != 0:
                self._remote_has_branch(ended)
                raise self._retry(
                    "SH206",
                    f"the branch can't be fetched into a new clone either: {self._command.said(ended)}",
                    "Run git fsck on the repository, and look at this machine's disk; the last good commit stays in force",
                )
            if good is not None and self._git("cat-file", "-e", f"{good}^{{commit}}", cache=fresh).code == 0:
                self._mark_good(good, fresh)
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
        return Revision(
            commit=commit,
            committed_at=self._time(commit),
            files=files,
            problems=(*self._told_of(commit), *problems),
            signed_by=self._signers.get(commit, ""),
        )

    def _told_of(self, commit: Commit) -> Iterator[Problem]:
        """That this commit took the place of one that it doesn't descend from."""
        if commit in self._rewound:
            what = f"branch {self.branch} was rewritten: {commit} doesn't descend from {self._rewound[commit]}, which was in force before"
            remedy = "Nothing, if it is meant; else push the branch again, and take allow_rewind out of the settings"
            yield Problem(code="SH222", what=what, remedy=remedy, severity=Severity.WARNING)

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
            good = self._commit_of(self._good)
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
        commit = Commit(found.output.decode().strip())
        trusted = self._commit_of(TRUSTED) if self._judge.wanted else None
        if self._judge.wanted and (trusted is None or not self._descends(trusted, commit)):
            what = f"commit {commit} is in nothing that was trusted"
            raise Rejected(Problem(code="SH247", what=what, remedy="Have an author sign it, and fetch", subject=self.where))
        return commit

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
            raise self._retry(
                "SH216", f"the clone can't be written: {self._command.said(ended)}", "Check the cache folder's disk and permissions"
            )

    def _retry(self, code: str, what: str, remedy: str) -> Retry:
        return Retry(Problem(code=code, what=what, remedy=remedy, subject=self.where))
