"""`shunter review`: all that a pull request's pipeline has to say of a change of the policies, in one run."""

import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

import msgspec
import typer

from shunter.app.differing import compare
from shunter.app.looking import look_again
from shunter.app.recording import load as load_recording
from shunter.app.revisions import Revisions
from shunter.cases.junit import junit as tests_junit
from shunter.cases.read import is_test_file
from shunter.cases.run import FileResult, run_file
from shunter.cli.main import complain
from shunter.cli.validate import TITLES, Report, check, ends
from shunter.lang.cel import CelRules
from shunter.lang.load import is_policy_file, load
from shunter.model.difference import Compared
from shunter.model.errors import Problem, Rejected, Severity, ShunterError, Stalled
from shunter.model.ids import Commit
from shunter.model.policy import PolicySet
from shunter.model.source import Revision
from shunter.report.diff import diff_json
from shunter.report.junit import junit
from shunter.report.review import FailedTest, Review, review_markdown, review_text
from shunter.report.sarif import sarif
from shunter.source.revision import read_revision, repository_around

CHANGES: Final = 2
FAILED: Final = 1
_NO_RECORDING: Final = "What would change wasn't compared: there is no recorded fleet (`shunter snapshot`) to compare on."


def review(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The revision that the change would go onto.")],
    head: Annotated[str, typer.Argument(metavar="HEAD", help="The revision with the change.")] = "HEAD",
    repository: Annotated[
        Path | None, typer.Option("--repository", metavar="PATH", help="The Git repository; else the one around this folder.")
    ] = None,
    folder: Annotated[str, typer.Option("--folder", help="Where policies are in it; its root without it.")] = "",
    snapshot: Annotated[
        list[Path] | None,
        typer.Option("--snapshot", metavar="FILE", help="Compare on what `shunter snapshot` recorded. Repeatable; none: not compared."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write the comment and the reports into this folder.")] = None,
    link: Annotated[str, typer.Option("--link", metavar="URL", help="Where all of it is, for the comment.")] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are errors.")] = False,
) -> int:
    """Check, test and compare a change of the policies, as a pull request's pipeline does.

    Reads both revisions from the repository, not from the work tree. With --out, writes comment.md (a pull request's comment, at most
    60,000 bytes), validate.sarif, validate.junit.xml, tests.junit.xml and diff.json. Exit status: 0 all is well and nothing differs in
    outcome, 2 all is well and something does, 1 there are errors, tests that failed, or revisions that can't be read.
    """
    try:
        found, reports = _run(base, head, repository, folder, snapshot or [], link, strict=strict)
        for line in review_text(found):
            typer.echo(line)
        if out is not None:
            _write(out, reports)
    except ShunterError as error:
        complain(error.problem)
        return FAILED
    if not found.sound:
        return FAILED
    return CHANGES if found.changes else 0


def _run(
    base: str, head: str, repository: Path | None, folder: str, snapshots: list[Path], link: str, *, strict: bool
) -> tuple[Review, dict[str, bytes]]:
    """What was found out, and the reports by their files' names."""
    root = repository_around(repository or Path.cwd())
    with tempfile.TemporaryDirectory(prefix="shunter-review-") as scratch:
        revision = read_revision(root, head, folder, Path(scratch) / "head.git")
        revisions = Revisions(None, root, folder, Path(scratch))
        sets = (_base(revisions, base), revisions.revision(head))
    files = _paths(revision, folder)
    refused = [msgspec.structs.replace(p, subject=f"{_prefix(folder)}{p.subject}") for p in revision.problems]
    report = check(_policies(files), strict=strict, problems=refused)
    tests = _tested(files)
    compared = _compared(sets, snapshots) if report.valid else []
    found = _review(sets, folder, report, tests, compared, recorded=bool(snapshots))
    reach = ends(_policies(files), report.problems)
    return found, {
        "comment.md": review_markdown(found, link=link).encode(),
        "diff.json": diff_json(compared),
        "validate.junit.xml": junit(report.paths, report.problems),
        "validate.sarif": sarif(report.problems, TITLES, version=version("shunter"), ends=reach),
        "tests.junit.xml": tests_junit(tests).encode(),
    }


def _base(revisions: Revisions, name: str) -> PolicySet:
    """Without any policy where the folder comes with the change."""
    try:
        return revisions.revision(name)
    except Rejected as error:
        if error.problem.code != "SH215":
            raise
        return load(Revision(commit=Commit(name), committed_at=None), None)


def _prefix(folder: str) -> str:
    return f"{folder.strip('/')}/" if folder.strip("/") else ""


def _paths(revision: Revision, folder: str) -> dict[str, bytes]:
    """All files by their path from the repository's root; those in hidden folders left out, as in a work tree."""
    prefix = _prefix(folder)
    return {f"{prefix}{f.path}": f.data for f in revision.files if not any(part.startswith(".") for part in PurePosixPath(f.path).parts)}


def _policies(files: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    return [(path, data) for path, data in files.items() if is_policy_file(path)]


def _tested(files: Mapping[str, bytes]) -> tuple[FileResult, ...]:
    rules = CelRules()
    return tuple(run_file(path, data, _beside(path, files), rules) for path, data in files.items() if is_test_file(path))


def _beside(path: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    here = PurePosixPath(path).parent
    return {PurePosixPath(p).name: d for p, d in files.items() if PurePosixPath(p).parent == here and is_policy_file(p)}


def _compared(sets: tuple[PolicySet, PolicySet], snapshots: list[Path]) -> list[Compared]:
    """One for each recording: they are large, so each is let go before the next."""
    return [compare(*sets, look_again(load_recording(path), sets, [])) for path in snapshots]


def _review(
    sets: tuple[PolicySet, PolicySet],
    folder: str,
    report: Report,
    tests: tuple[FileResult, ...],
    compared: list[Compared],
    *,
    recorded: bool,
) -> Review:
    return Review(
        base=sets[0].commit,
        head=sets[1].commit,
        folder=folder,
        policies=report.policies,
        problems=report.problems,
        tests=sum(len(file.results) + _broken(file) for file in tests),
        failed=tuple(failed for file in tests for failed in _failed(file)),
        compared=tuple(compared),
        uncompared="" if compared else _NO_RECORDING if not recorded else "What would change wasn't compared, because of the errors.",
    )


def _broken(file: FileResult) -> bool:
    """Something kept tests of the file from being run."""
    return any(problem.severity is Severity.ERROR for problem in file.problems)


def _failed(file: FileResult) -> list[FailedTest]:
    whole = [p for p in file.problems if p.severity is Severity.ERROR][:1]
    found = [FailedTest(file=file.path, name="", why=f"{p.code} {p.what}") for p in whole]
    for result in file.results:
        if result.failures:
            first = result.failures[0]
            why = f"expected {first.expected or 'nothing'}, found {first.found or 'nothing'}"
            found.append(FailedTest(file=f"{file.path}:{first.place.line}", name=result.name, why=why))
    return found


def _write(out: Path, reports: Mapping[str, bytes]) -> None:
    """Raises Stalled SH981 when it can't."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in reports.items():
            (out / name).write_bytes(data)
    except OSError as error:
        what = f"the reports can't be written: {error.strerror}"
        raise Stalled(
            Problem(code="SH981", what=what, remedy="Name another folder with --out, or free the disk", subject=str(out))
        ) from error
