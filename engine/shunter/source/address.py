"""What is accepted as the place of a Git repository, and how it is shown: never with a password."""

import re
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from shunter.model.errors import Problem, Rejected

_SCP_LIKE: Final = re.compile(r"(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9][A-Za-z0-9._-]*:(?!//)[^:]\S*")
_SCHEMES: Final = ("https", "ssh", "file")
_BAD_BRANCH: Final = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{|/\.|\.lock(/|$)|^[-/.]|[/.]$|^@$|^$")


def _refused(what: str, remedy: str) -> Rejected:
    return Rejected(Problem(code="SH201", what=what, remedy=remedy))


def check_url(url: str) -> None:
    """Accept https, ssh and file URLs, `user@host:path`, and absolute paths. Raises Rejected SH201 for all else, without showing the URL.

    Git would take `ext::sh -c ...` for a command to run and `--upload-pack=...` for an option; neither gets as far as Git.
    """
    remedy = "Give an https://, ssh:// or file:// URL, user@host:path, or an absolute path"
    if not url or url.startswith("-") or "::" in url:
        raise _refused("the repository's URL begins with a dash, holds `::`, or is empty", remedy)
    if any(not c.isprintable() or c.isspace() for c in url):
        raise _refused("the repository's URL holds spaces or control characters", remedy)
    if url.startswith("/"):
        return
    if "://" not in url:
        if not _SCP_LIKE.fullmatch(url):
            raise _refused("the repository's URL has no scheme", remedy)
        return
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise _refused(f"the repository's URL can't be read ({error})", remedy) from error
    if parts.scheme not in _SCHEMES:
        raise _refused(f"the repository's URL has the scheme {parts.scheme!r}, which is not used", remedy)
    if (parts.username or "").startswith("-") or host.startswith("-") or (not host and parts.scheme != "file"):
        raise _refused("the repository's URL has no host that could be one", remedy)


def password(url: str) -> str:
    """The password that is embedded in a URL, as it stands there; empty without one."""
    userinfo, found, _ = urlsplit(url).netloc.rpartition("@") if "://" in url else ("", "", "")
    return userinfo.partition(":")[2] if found else ""


def credentials(url: str) -> str:
    """`user:password` of an https URL, decoded; empty without. A user alone is taken for a token, with an empty password."""
    userinfo, found, _ = urlsplit(url).netloc.rpartition("@") if url.startswith("https://") else ("", "", "")
    user, _, word = userinfo.partition(":")
    return f"{unquote(user)}:{unquote(word)}" if found else ""


def shown(url: str) -> str:
    """The URL for messages: without user and password, query and fragment."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def check_branch(branch: str) -> None:
    """Accept what `git check-ref-format` accepts for a branch. Raises Rejected SH202."""
    if _BAD_BRANCH.search(branch) or not branch.isprintable():
        raise Rejected(Problem(code="SH202", what=f"{branch!r} can't be the name of a branch", remedy="Give a branch such as `main`"))


def clean_folder(folder: str) -> str:
    """The folder inside the repository without slashes around it; empty for the root. Raises Rejected SH202."""
    parts = PurePosixPath(folder).parts
    if folder.startswith("/") or ".." in parts or not folder.isprintable() or ":" in folder:
        raise Rejected(
            Problem(code="SH202", what=f"{folder!r} can't be a folder of the repository", remedy="Give a relative path, such as `policies`")
        )
    return "/".join(parts)
