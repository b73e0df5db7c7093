"""One revision of a repository on this machine: a branch, a tag, a commit, or what a pull request checked out.

The repository's objects are lent to an empty bare clone of our own, and read there as `source.git` reads its cache: no fetch, no checkout,
none of the repository's settings, hooks or filters, and every file checked against its object id. Shallow and linked work trees will do.
"""

import os
from pathlib import Path
from typing import Final, NoReturn

from shunter.model.errors import Problem, Rejected
from shunter.model.source import Revision
from shunter.source.git import MARK, GitSource
from shunter.source.limits import Limits

_PATH_OF: Final = ("--path-format=absolute", "--git-path")
_LENT: Final = "lent"
"""The name that the revision has in the clone."""


def repository_around(path: Path) -> Path:
    """The root of the work tree, or the bare repository, that `path` is in. Raises Rejected SH218 when it is in none."""
    absolute = path.absolute()
    for folder in (absolute, *absolute.parents):
        if (folder / ".git").exists() or _is_git_folder(folder):
            return folder
    raise Rejected(
        Problem(
            code="SH218", what="there is no Git repository here or above", remedy="Name one with --repository", subject=str(path)
        )
    )  # fmt: skip


def read_revision(repository: Path, revision: str, folder: str, scratch: Path, *, limits: Limits | None = None) -> Revision:
    """All policy files of `folder` (empty: the root) at `revision`, as `git rev-parse` understands it. `scratch` is a folder for the clone.

    Raises Rejected: SH218 `repository` is none, SH217 it has no such revision, SH219 objects of it are missing (a partial clone), SH202 or
    SH215 no such folder, SH213 more than may be read.
    """
    return _Lent(repository, folder, scratch, limits).at(revision)


class _Lent(GitSource):
    """A cache that was never fetched: it borrows the repository's objects."""

    def __init__(self, repository: Path, folder: str, scratch: Path, limits: Limits | None) -> None:
        super().__init__("file:///dev/null", _LENT, folder, scratch, limits=limits)
        self.where = str(repository)
        self._folder_of_git = _git_folder(repository)

    def at(self, revision: str) -> Revision:
        """The files at a revision."""
        commit = (
            self._ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}") if revision.isprintable() else ""
        )
        if not commit:
            remedy = "Name a branch, a tag or a commit of it; in a shallow clone, fetch it first"
            raise Rejected(Problem(code="SH217", what=f"the repository has no revision {revision!r}", remedy=remedy, subject=self.where))
        self._borrow("sha256" if len(commit) == 64 else "sha1")
        return self.read(commit)

    def _borrow(self, hashes: str) -> None:
        self._cache.mkdir(parents=True, mode=0o700)
        self._must(self._git("init", "--quiet", "--bare", "--template=", f"--object-format={hashes}"))
        (self._cache / MARK).touch()
        (self._cache / "objects" / "info").mkdir(parents=True, exist_ok=True)
        (self._cache / "objects" / "info" / "alternates").write_bytes(os.fsencode(self._ask("rev-parse", *_PATH_OF, "objects")) + b"\n")
        shallow = Path(self._ask("rev-parse", *_PATH_OF, "shallow"))
        if shallow.is_file():
            (self._cache / "shallow").write_bytes(shallow.read_bytes())

    def _ask(self, *arguments: str) -> str:
        """One line of the repository's own answer; empty when it fails. The path is given outright, so whoever owns it is no obstacle."""
        ended = self._git(*arguments, cache=self._folder_of_git)
        return ended.output.decode("utf-8", "surrogateescape").strip() if ended.code == 0 else ""

    def _rebuild(self) -> NoReturn:
        """There is nothing to rebuild it from."""
        what = "objects of the revision are missing or damaged"
        remedy = "Fetch them (`git fetch --refetch` in a partial clone), and look at `git fsck`"
        raise Rejected(Problem(code="SH219", what=what, remedy=remedy, subject=self.where))


def _git_folder(repository: Path) -> Path:
    """Where the repository's own files are: `.git`, what a `.git` file names (a linked work tree, a submodule), or the folder itself."""
    dot = repository / ".git"
    if dot.is_file():
        said, _, named = dot.read_text(errors="replace").strip().partition("gitdir: ")
        if not said and _is_git_folder(folder := repository / named):
            return folder
    for folder in (dot, repository):
        if _is_git_folder(folder):
            return folder
    raise Rejected(
        Problem(code="SH218", what="it is not a Git repository", remedy="Name its folder with --repository", subject=str(repository))
    )


def _is_git_folder(folder: Path) -> bool:
    """A linked work tree has its objects elsewhere and says where."""
    return (folder / "HEAD").is_file() and ((folder / "objects").is_dir() or (folder / "commondir").is_file())
