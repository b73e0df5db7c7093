"""`shunter validate`: every problem of every file, with the line, the column and what to do."""

import contextlib
import enum
import gc
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from shunter.cli import files as sources
from shunter.cli.main import complain
from shunter.lang.diagnostics import CODES
from shunter.lang.extent import end_columns
from shunter.lang.load import check_text, duplicates, zeros
from shunter.lang.whole import Engine, Texts, check_fleet, check_set
from shunter.model.errors import Problem, Severity, ShunterError
from shunter.model.policy import Policy
from shunter.model.snapshot import Snapshot

_RED, _YELLOW, _BOLD, _FAINT, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"

TITLES: Final = {
    **CODES,
    "SH210": "a path that can't be accepted",
    "SH211": "a link, a submodule or a special file",
    "SH212": "a file that is too large",
}
"""Every code that this verb can find, and what it means in a few words."""


class Format(enum.StrEnum):
    """How problems are written."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    JUNIT = "junit"


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What `--format json` prints, as one object. `paths` are all files that were checked."""

    valid: bool
    files: int
    policies: int
    errors: int
    warnings: int
    problems: tuple[Problem, ...]
    paths: tuple[str, ...] = ()


def validate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files, folders (searched for *.yaml and *.yml), or - for standard input. With --revision: from the root."),
    ] = None,
    output: Annotated[
        Format, typer.Option("--format", help="text for people, json for programs, sarif for code scanning, junit for CI.")
    ] = Format.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are errors.")] = False,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="REV", help="Check a branch, tag or commit of a Git repository, not the work tree.")
    ] = None,
    repository: Annotated[
        Path | None, typer.Option("--repository", metavar="PATH", help="The repository of --revision; else the one around this folder.")
    ] = None,
    fleet: Annotated[
        Path | None, typer.Option("--fleet", metavar="SNAPSHOT", help="A recorded snapshot (JSON): check that the policies fit its fleet.")
    ] = None,
) -> None:
    """Check policy files: YAML, keys, types, units, names and expressions, and whether they work together; all problems in one run.

    Tests (*_test.yaml) are skipped in folders. Exit status: 0 valid, 1 invalid, 2 when something can't be read.
    """
    if not paths and revision is None:
        raise typer.BadParameter("name files or folders, or a --revision", param_hint="PATHS")
    if repository is not None and revision is None:
        raise typer.BadParameter("it goes with --revision", param_hint="--repository")
    try:
        found = sources.from_paths(paths or []) if revision is None else sources.from_revision(paths or [], revision, repository)
        snapshot = _snapshot(fleet) if fleet else None
    except OSError as error:
        reason = error.strerror or "it can't be read"
        typer.echo(f"shunter validate: {error.filename}: {reason}. Check the path", err=True)
        raise typer.Exit(2) from None
    except ShunterError as error:
        complain(error.problem)
        raise typer.Exit(2) from None
    with _uncollected():
        report = check(found.files, strict=strict, snapshot=snapshot, problems=found.problems)
    _write(report, found, output)
    raise typer.Exit(0 if report.valid else 1)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Nothing of a check refers back to itself, and most of it is kept to its end: looking for cycles would be in vain."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _snapshot(path: Path) -> Snapshot:
    from shunter.observe.recorded import load

    return load(path)


def _write(report: Report, found: sources.Files, output: Format) -> None:
    match output:
        case Format.TEXT:
            typer.echo(text(report, colour=sys.stdout.isatty()))
        case Format.JSON:
            typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
        case Format.JUNIT:
            from shunter.report.junit import junit

            typer.echo(junit(report.paths, report.problems), nl=False)
        case Format.SARIF:
            from importlib.metadata import version

            from shunter.report.sarif import sarif

            reach = ends(found.files, report.problems)
            given = sarif(report.problems, TITLES, version=version("shunter"), ends=reach, relative=found.from_root)
            typer.echo(given, nl=False)


def ends(files: Iterable[tuple[str, bytes]], problems: Iterable[Problem]) -> dict[Problem, int]:
    """For each problem that stands at a place of `files`, as far as that can be told, the column after its end."""
    of_file: dict[str, list[Problem]] = {}
    for problem in problems:
        if problem.place is not None:
            of_file.setdefault(problem.place.file, []).append(problem)
    return {problem: end for path, data in files if path in of_file for problem, end in end_columns(path, data, of_file[path]).items()}


def check(
    files: Iterable[tuple[str, bytes]], *, strict: bool = False, snapshot: Snapshot | None = None, problems: Iterable[Problem] = ()
) -> Report:
    """Check files, given as (path, bytes), as one policy set: names must be unique over all of them, and they should work together.

    `snapshot` is a fleet that they should fit, None for no such check; `problems` are those of files that couldn't be had.
    """
    told: list[Problem] = list(problems)
    policies: list[Policy] = []
    texts: dict[str, str] = {}
    paths: list[str] = []
    for path, data in files:
        paths.append(path)
        found, wrong = check_text(path, data)
        policies += found
        told += wrong
        if any(problem.severity is Severity.ERROR for problem in wrong):
            told += zeros(path, data)
        if found:
            texts[path] = data.decode("utf-8", "replace").removeprefix("\ufeff")
    told += [_with_excerpt(problem, texts) for problem in duplicates(tuple(policies))]
    told += _together(policies, texts, snapshot)
    if strict:
        told = [msgspec.structs.replace(problem, severity=Severity.ERROR) for problem in told]
    errors = sum(problem.severity is Severity.ERROR for problem in told)
    return Report(
        valid=errors == 0,
        files=len(paths),
        policies=len(policies),
        errors=errors,
        warnings=len(told) - errors,
        problems=tuple(sorted(told, key=_order)),
        paths=tuple(paths),
    )


def _together(policies: list[Policy], texts: dict[str, str], snapshot: Snapshot | None) -> list[Problem]:
    """What the policies get wrong as a set. Of two with one name, the first counts."""
    first = tuple({policy.name: policy for policy in reversed(policies)}.values())
    where = Texts(texts)
    found = [*check_set(first, where)]
    if snapshot is not None:
        found += check_fleet(first, where, snapshot, _engine(snapshot))
    return found


def _engine(snapshot: Snapshot) -> Engine:
    from shunter.cli.fitting import Answers

    return Answers(snapshot)


def _with_excerpt(problem: Problem, texts: dict[str, str]) -> Problem:
    assert problem.place is not None
    line = texts[problem.place.file].split("\n")[problem.place.line - 1].rstrip("\r")
    return msgspec.structs.replace(problem, excerpt=line)


def text(report: Report, *, colour: bool = False) -> str:
    """The report for people: each problem with its source line and a caret, and a line that counts."""
    blocks = [_block(problem, colour=colour) for problem in report.problems]
    counts = f"{_many(report.files, 'file')}, {_many(report.policies, 'valid policy', 'valid policies')}"
    blocks.append(f"{counts}, {_many(report.errors, 'error')}, {_many(report.warnings, 'warning')}")
    return "\n".join(blocks)


def _order(problem: Problem) -> tuple[str, int, int, str]:
    place = problem.place
    return (place.file, place.line, place.column, problem.code) if place else (problem.subject, 0, 0, problem.code)


def _block(problem: Problem, *, colour: bool) -> str:
    warning = problem.severity is Severity.WARNING
    code = f"{problem.code} warning:" if warning else problem.code
    if colour:
        code = f"{_YELLOW if warning else _RED}{code}{_PLAIN}"
    where = f"{problem.place or problem.subject}: " if problem.place or problem.subject else ""
    lines = [f"{_BOLD}{where}{_PLAIN}{code} {problem.what}" if colour else f"{where}{code} {problem.what}"]
    if problem.excerpt is not None and problem.place is not None:
        lines += _excerpt(problem.excerpt, problem.place.column, colour=colour)
    return "\n".join([*lines, f"    {problem.remedy}"])


def _excerpt(line: str, column: int, *, colour: bool) -> list[str]:
    """The source line and a caret below its column; long lines are cut around it, and control characters made visible."""
    start = max(0, column - 60) if len(line) > 120 else 0
    piece = line[start : start + 120]
    safe = "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in piece)
    before = "".join("\t" if c == "\t" else " " for c in safe[: column - 1 - start])
    lead, tail = ("..." if start else ""), ("..." if start + 120 < len(line) else "")
    caret = f"    {' ' * len(lead)}{before}^"
    shown = f"    {lead}{safe}{tail}"
    return [f"{_FAINT}{shown}{_PLAIN}", f"{_RED}{caret}{_PLAIN}"] if colour else [shown, caret]


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"
