"""What can go wrong with the audit's files, as problems that say what to do."""

import errno
import sqlite3
from pathlib import Path

from shunter.audit.key import KEY_UNUSABLE
from shunter.model.errors import Problem, Rejected, Stalled

FULL, BUSY, CORRUPT, CUT, CLOSED, NO_RECORD, VERSION = "SH901", "SH902", "SH903", "SH904", "SH905", "SH906", "SH907"
BAD_HEADS = "SH972"

_FULL = {sqlite3.SQLITE_FULL}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def is_corrupt(error: sqlite3.Error) -> bool:
    """SQLite says that the file itself is damaged."""
    return _code(error) in _CORRUPT


def unreadable(error: sqlite3.Error) -> bool:
    """The file is damaged, or what is in a column can't be what was put there: then the module has an error of its own, without a code."""
    return _code(error) in {*_CORRUPT, 0}


def of_sqlite(error: sqlite3.Error, path: Path | str) -> Stalled:
    """SQLite's error as a Stalled with the code of its class."""
    code = _code(error)
    if code in _FULL:
        return full(path)
    if code in _BUSY:
        return busy(path)
    if code in _CORRUPT:
        return damaged(path, str(error))
    return unusable(path, str(error))


def damaged(path: Path | str, why: str) -> Stalled:
    """The file isn't what was written."""
    return stalled(
        CORRUPT,
        f"the audit is damaged: {why}",
        "Keep a copy of the file, restore the last good one from a backup, and check it with `shunter audit verify`",
        path,
    )


def full(path: Path | str) -> Stalled:
    """There is no room left for a record."""
    return stalled(
        FULL, "the disk that holds the audit is full", "Free some space; nothing voluntary starts until records can be written", path
    )


def busy(path: Path | str) -> Stalled:
    """Another process has it."""
    return stalled(
        BUSY, "another process writes this audit", "Stop the other engine, or give this one a state folder of its own with `state`", path
    )


def cut(path: Path | str, what: str) -> Stalled:
    """The database and its head file disagree."""
    return stalled(
        CUT,
        what,
        "Records were removed, or an older copy was put back. Keep both files as evidence; then restore the newest copy of both, or move "
        "both away to begin a new chain",
        path,
    )


def no_key(path: Path | str) -> Stalled:
    """The audit was signed before, and the key isn't there."""
    return stalled(
        KEY_UNUSABLE,
        "there is no key there, and the audit can't be signed without it",
        "Put the key back, or name it with `key` under [audit]; if it is lost, move the audit's files away to begin a new chain",
        path,
    )


def foreign(path: Path | str, name: str) -> Stalled:
    """The audit's heads aren't signed by the key at hand."""
    return stalled(
        KEY_UNUSABLE,
        f"the audit isn't signed with the key {name}",
        "Give the key that it was begun with; if that was always this one, the audit was forged: keep its files as evidence",
        path,
    )


def bad_heads(path: Path | str, why: str) -> Rejected:
    """A file of exported heads, or an archive, can't be read."""
    return Rejected(
        Problem(
            code=BAD_HEADS, what=f"it can't be used to check the audit: {why}", remedy="Take another copy of the file", subject=str(path)
        )
    )


def of_system(error: OSError, path: Path | str) -> Stalled:
    """The system's error as a Stalled."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return full(path)
    if error.errno == errno.ENOENT:
        remedy = "Name the engine's state folder with --state: the one that `state` in its settings names"
        return stalled(CLOSED, f"the audit can't be used: {error.strerror}", remedy, path)
    return unusable(path, error.strerror or str(error))


def unusable(path: Path | str, reason: str) -> Stalled:
    """The file can't be opened, read or written, for a reason of the system's."""
    return stalled(
        CLOSED, f"the audit can't be used: {reason}", "Check that the path exists and that this user may read and write it", path
    )


def version(path: Path | str, found: int, known: int) -> Stalled:
    """The file was made by another version."""
    return stalled(
        VERSION, f"the audit has layout {found}, and this version reads layout {known}", "Use the version of Shunter that wrote it", path
    )


def stalled(code: str, what: str, remedy: str, path: Path | str) -> Stalled:
    """A Stalled about the audit at `path`."""
    return Stalled(Problem(code=code, what=what, remedy=remedy, subject=str(path)))


def _code(error: sqlite3.Error) -> int:
    """The primary result code; 0 for errors of the sqlite3 module itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
