"""`shunter comment`: a report in a pull request's one comment."""

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from shunter.app.forges import github, gitlab
from shunter.app.forges.http import Api
from shunter.app.forges.port import put
from shunter.model.errors import Problem, Rejected
from shunter.report.markdown import LIMIT

TOKEN: Final = "SHUNTER_FORGE_TOKEN"  # noqa: S105  (the variable's name)
_MARK: Final = re.compile(r"<!-- shunter: [^<>\n]+ -->(?=\r?\n)")
_PUBLIC: Final = "https://api.github.com"


class Kind(StrEnum):
    """Forges that are known."""

    GITHUB = "github"
    GITLAB = "gitlab"


def comment(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The comment, as `shunter review --out` or --format markdown writes it.")],
    forge: Annotated[Kind, typer.Option("--forge", help="Whose API it is.")],
    number: Annotated[int | None, typer.Option("--number", help="The pull request's number; else that of GitLab's pipeline.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="NAME", help="owner/name, or GitLab's id; else the pipeline's own.")
    ] = None,
    api: Annotated[str | None, typer.Option("--api", metavar="URL", help="The base of the forge's API; else the pipeline's own.")] = None,
    author: Annotated[
        str | None, typer.Option("--author", metavar="LOGIN", help="GitHub: who the token writes as, where it may not ask.")
    ] = None,
) -> int:
    """Post the file as a comment on a pull request, or bring the one up to date that is there.

    The token is in SHUNTER_FORGE_TOKEN. The file's first line says which comment it is; one that somebody else wrote is never touched.
    Exit status: 0 it is there, 1 refused (the token's rights, a fork, a file that is none of ours), 2 the forge gave no answer.
    """
    mark, body = _read(file)
    base, named, at = _where(forge, api, project, number)
    token = os.environ.get(TOKEN, "")
    if not token:
        remedy = "Set it to a token that may comment; a pipeline of a fork has none, and goes without a comment"
        raise Rejected(Problem(code="SH987", what=f"{TOKEN} isn't set", remedy=remedy, subject=forge.value))
    headers = github.headers(token) if forge is Kind.GITHUB else gitlab.headers(token)
    with Api(base, headers) as http:
        there = github.GitHub(http, named, at, author) if forge is Kind.GITHUB else gitlab.GitLab(http, named, at)
        outcome = put(there, mark, body)
    typer.echo(f"{named}#{at}: {outcome}")
    return 0


def _read(file: Path) -> tuple[str, str]:
    """The mark, and all of the file. Raises Rejected SH988."""
    try:
        data = file.read_bytes()
        body = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise _unfit(file, f"it can't be read: {why}") from error
    if len(data) > LIMIT:
        raise _unfit(file, f"it has {len(data):,} bytes, and a comment may have {LIMIT:,}")
    mark = _MARK.match(body)
    if mark is None:
        raise _unfit(file, "its first line doesn't say which comment it is")
    return mark.group(), body


def _unfit(file: Path, why: str) -> Rejected:
    remedy = "Give what `shunter review --out` writes as comment.md"
    return Rejected(Problem(code="SH988", what=f"this can't be a comment: {why}", remedy=remedy, subject=str(file)))


def _where(forge: Kind, api: str | None, project: str | None, number: int | None) -> tuple[str, str, int]:
    """The API's base, the project, and the number, as far as they aren't given from the pipeline's own variables. Raises Rejected SH989."""
    seen = os.environ
    if forge is Kind.GITHUB:
        base, named, at = seen.get("GITHUB_API_URL", _PUBLIC), seen.get("GITHUB_REPOSITORY"), None
    else:
        base, named, at = seen.get("CI_API_V4_URL", ""), seen.get("CI_PROJECT_ID"), seen.get("CI_MERGE_REQUEST_IID")
    base, named = api or base, project or named
    found = number if number is not None else int(at) if at and at.isdigit() else None
    missing = [name for name, value in (("--api", base), ("--project", named), ("--number", found)) if not value]
    if missing or not named or found is None:
        what = f"it isn't known where to comment: no pipeline's variables stand for {', '.join(missing)}"
        raise Rejected(Problem(code="SH989", what=what, remedy=f"Give {', '.join(missing)}", subject=forge.value))
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", named, re.ASCII):
        raise Rejected(Problem(code="SH989", what=f"{named!r} isn't a project", remedy="Write owner/name, or an id", subject=forge.value))
    return base, named, found
