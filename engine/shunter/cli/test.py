"""`shunter test`: run the tests that stand beside policies."""

import enum
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from shunter.cases.coverage import Coverage, coverage
from shunter.cases.junit import junit
from shunter.cases.read import is_test_file
from shunter.cases.run import FileResult, passed, run_file
from shunter.cases.text import report_text
from shunter.lang.cel import CelRules
from shunter.lang.load import check_text, is_policy_file
from shunter.model.canon import plain
from shunter.model.policy import Policy


class Format(enum.StrEnum):
    """Forms of the report."""

    TEXT = "text"
    JSON = "json"
    JUNIT = "junit"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What all tests came to."""

    passed: bool
    files: tuple[FileResult, ...]
    coverage: tuple[Coverage, ...]


def run_tests(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Test files, or folders to search for *_test.yaml; without any, this folder.")
    ] = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="text for people, json for programs, junit for CI.")] = Format.TEXT,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Name the tests that passed as well.")] = False,
) -> None:
    """Run the policy tests: a small fleet, values over simulated time, and what must be found and planned then.

    Decides with the same function as the engine, and acts on nothing. Exit status: 0 all passed, 1 a test failed or is wrong, 2 when there
    is no test or a path can't be read.
    """
    try:
        report = run_all(paths or [Path()])
    except OSError as error:
        typer.echo(f"shunter test: {error.filename}: {error.strerror or 'it cannot be read'}. Check the path", err=True)
        raise typer.Exit(2) from None
    if not report.files:
        typer.echo("shunter test: there is no *_test.yaml. Write one beside your policies: see docs/how-to/test-a-policy.md", err=True)
        raise typer.Exit(2)
    typer.echo(written(report, output, colour=sys.stdout.isatty(), verbose=verbose), nl=False)
    raise typer.Exit(0 if report.passed else 1)


def written(report: Report, output: Format, *, colour: bool = False, verbose: bool = False) -> str:
    """The report in a form, with a newline at its end."""
    if output is Format.JUNIT:
        return junit(report.files)
    if output is Format.JSON:
        files = [{**plain(f), "passed": f.passed, "results": [{**plain(r), "passed": r.passed} for r in f.results]} for f in report.files]
        body = {"passed": report.passed, "files": files, "coverage": plain(report.coverage)}
        return msgspec.json.format(msgspec.json.encode(body, order="sorted"), indent=2).decode() + "\n"
    return report_text(report.files, report.coverage, colour=colour, verbose=verbose) + "\n"


def run_all(paths: Iterable[Path]) -> Report:
    """Run every test file among `paths` and in their folders, once each, in the order of their names. Raises OSError for a path that can't
    be read.
    """
    places = list(paths)
    files = _test_files(places)
    folders = dict.fromkeys([f for place in places if place.is_dir() for f in _folders(place)] + [file.parent for file in files])
    beside = {folder: _beside(folder) for folder in folders}
    rules = CelRules()
    results = tuple(run_file(file.as_posix(), file.read_bytes(), beside[file.parent], rules) for file in files)
    policies = [policy for folder, there in beside.items() for policy in _policies(folder, there)]
    return Report(passed=passed(results), files=results, coverage=coverage(results, policies))


def _test_files(paths: Iterable[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in paths:
        inside = [f for folder in _folders(path) for f in sorted(folder.iterdir()) if is_test_file(f.name)] if path.is_dir() else [path]
        for file in inside:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _folders(path: Path) -> list[Path]:
    """The folder and those below it, hidden ones left out."""
    below = sorted(f for f in path.rglob("*") if f.is_dir())
    return [path, *(f for f in below if not any(part.startswith(".") for part in f.relative_to(path).parts))]


def _beside(folder: Path) -> dict[str, bytes]:
    files = sorted(f for f in folder.iterdir() if is_policy_file(f.name) and f.is_file())
    return {file.name: file.read_bytes() for file in files}


def _policies(folder: Path, files: Mapping[str, bytes]) -> list[Policy]:
    found = [check_text((folder / name).as_posix(), data)[0] for name, data in files.items()]
    return [policy for policies in found for policy in policies]
