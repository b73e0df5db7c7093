"""What of a tree is a policy file, and what is refused unread: the same rules for Git and for directories."""

import unicodedata
from pathlib import PurePosixPath
from typing import Final

import msgspec

from shunter.model.errors import Problem, Severity

SUFFIXES: Final = (".yaml", ".yml")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what is read: bytes of one file, number of files, bytes of all files together, and entries of any kind."""

    file_bytes: int = 256 * 1024
    files: int = 5_000
    total_bytes: int = 64 * 2**20
    entries: int = 200_000


def is_policy(path: str) -> bool:
    """The path has a suffix of policy files. What hasn't is none of our business: it is neither read nor a problem."""
    return path.endswith(SUFFIXES)


def printable(path: str) -> str:
    """The path on one line, with control characters and undecodable bytes escaped, for messages."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in path)


def refuse_path(path: str) -> Problem | None:
    """A problem (SH210) for a path that isn't what it looks like: bytes that are no text, control characters, `..` or empty components."""
    parts = path.split("/")
    if any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in path) or "\\" in path:
        why = "it holds control characters, backslashes or bytes that aren't UTF-8"
    elif {"", ".", ".."} & set(parts) or PurePosixPath(path).is_absolute():
        why = "it has empty, `.` or `..` components"
    else:
        return None
    return Problem(
        code="SH210",
        what=f"the path isn't acceptable: {why}; the file is not read",
        remedy="Rename the file",
        subject=printable(path),
    )


def not_regular(path: str, kind: str) -> Problem:
    """SH211: the entry is a `kind` (a symbolic link, a submodule), which is never followed. A warning where no policy file is expected."""
    return Problem(
        code="SH211",
        what=f"it is {kind}, which is never followed; it is not read",
        remedy="Put the file itself into the policy folder",
        subject=printable(path),
        severity=Severity.ERROR if is_policy(path) else Severity.WARNING,
    )


def too_large(path: str, size: int, limit: int) -> Problem:
    """SH212: the file is larger than a policy file may be. Sizes in bytes."""
    return Problem(
        code="SH212",
        what=f"the file has {size:,} bytes, and a policy file may have {limit:,}; it is not read",
        remedy="Split it into several files",
        subject=printable(path),
    )


def too_many(what: str, limit: int) -> Problem:
    """SH213: the source as a whole is larger than it may be, so none of it is read."""
    return Problem(
        code="SH213",
        what=f"the policy folder holds more than {limit:,} {what}",
        remedy="Point the source at the folder that holds policies only, or split the repository",
    )
