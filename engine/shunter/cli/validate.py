"""`shunter validate`: every problem of every file, with the line, the column and what to do."""

import enum
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from shunter.lang.load import check_text, duplicates, is_policy_file
from shunter.model.errors import Problem, Severity
from shunter.model.policy import Policy

_RED, _YELLOW, _BOLD, _FAINT, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"


class Format(enum.StrEnum):
    """How problems are written."""

    TEXT = "text"
    JSON = "json"


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What `--format json` prints, as one object."""

    valid: bool
    files: int
    policies: int
    errors: int
    warnings: int
    problems: tuple[Problem, ...]


def validate(
    paths: Annotated[list[Path], typer.Argument(help="Files, folders (searched for *.yaml and *.yml), or - for standard input.")],
    output: Annotated[Format, typer.Option("--format", help="text for people, json for programs.")] = Format.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are errors.")] = False,
) -> None:
    """Check policy files: YAML, keys, types, units, names and expressions, all problems in one run.

    Tests (*_test.yaml) are skipped in folders. Exit status: 0 valid, 1 invalid, 2 when a path can't be read.
    """
    try:
        files = list(_read(paths))
    except OSError as error:
        reason = error.strerror or "it can't be read"
        typer.echo(f"shunter validate: {error.filename}: {reason}. Check the path", err=True)
        raise typer.Exit(2) from None
    report = check(files, strict=strict)
    if output is Format.JSON:
        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        typer.echo(text(report, colour=sys.stdout.isatty()))
    raise typer.Exit(0 if report.valid else 1)


def check(files: Iterable[tuple[str, bytes]], *, strict: bool = False) -> Report:
    """Check files, given as (path, bytes), as one policy set: names must be unique over all of them."""
    problems: list[Problem] = []
    policies: list[Policy] = []
    lines: dict[str, list[str]] = {}
    count = 0
    for path, data in files:
        count += 1
        found, wrong = check_text(path, data)
        policies += found
        problems += wrong
        lines[path] = data.decode("utf-8", "replace").removeprefix("\ufeff").split("\n") if found else []
    for problem in duplicates(tuple(policies)):
        assert problem.place is not None
        excerpt = lines[problem.place.file][problem.place.line - 1].rstrip("\r")
        problems.append(msgspec.structs.replace(problem, excerpt=excerpt))
    if strict:
        problems = [msgspec.structs.replace(problem, severity=Severity.ERROR) for problem in problems]
    errors = sum(problem.severity is Severity.ERROR for problem in problems)
    return Report(
        valid=errors == 0,
        files=count,
        policies=len(policies),
        errors=errors,
        warnings=len(problems) - errors,
        problems=tuple(sorted(problems, key=_order)),
    )


def text(report: Report, *, colour: bool = False) -> str:
    """The report for people: each problem with its source line and a caret, and a line that counts."""
    blocks = [_block(problem, colour=colour) for problem in report.problems]
    counts = f"{_many(report.files, 'file')}, {_many(report.policies, 'valid policy', 'valid policies')}"
    blocks.append(f"{counts}, {_many(report.errors, 'error')}, {_many(report.warnings, 'warning')}")
    return "\n".join(blocks)


def _read(paths: list[Path]) -> Iterator[tuple[str, bytes]]:
    """Each file once, in the order asked for. Raises OSError for a path that isn't there."""
    seen: set[Path] = set()
    for path in paths:
        if str(path) == "-":
            yield "<stdin>", sys.stdin.buffer.read()
            continue
        for file in _below(path):
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file.as_posix(), file.read_bytes()


def _below(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    inside = sorted(file.relative_to(path) for file in path.rglob("*"))
    return [path / file for file in inside if not _hidden(file.parts) and is_policy_file(file.name) and (path / file).is_file()]


def _hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") for part in parts)


def _order(problem: Problem) -> tuple[str, int, int, str]:
    place = problem.place
    return (place.file, place.line, place.column, problem.code) if place else ("", 0, 0, problem.code)


def _block(problem: Problem, *, colour: bool) -> str:
    warning = problem.severity is Severity.WARNING
    code = f"{problem.code} warning:" if warning else problem.code
    if colour:
        code = f"{_YELLOW if warning else _RED}{code}{_PLAIN}"
    where = f"{problem.place}: " if problem.place else ""
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
