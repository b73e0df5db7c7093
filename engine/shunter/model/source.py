"""Policy files as a source gives them: bytes with provenance, not yet parsed."""

import msgspec

from shunter.model.errors import Problem
from shunter.model.ids import Commit


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file. `path` is relative to the policy folder, with forward slashes; `blob` identifies its content (Git's object id, or
    sha256 hex).
    """

    path: str
    blob: str
    data: bytes


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """All policy files at one commit, sorted by path. `problems` are entries that were refused unread (a symlink, a file too large)."""

    commit: Commit
    committed_at: float | None
    """Committer time, seconds since the epoch; None for a directory."""
    files: tuple[SourceFile, ...] = ()
    problems: tuple[Problem, ...] = ()
    signed_by: str = ""
    """Who signed the commit, for people; empty where signatures aren't checked."""
