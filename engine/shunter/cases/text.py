"""A report for people: what failed, with what was expected, what was found and why; then what the tests show of each policy."""

from collections.abc import Iterator, Sequence
from typing import Final

from shunter.cases.compare import Failure
from shunter.cases.coverage import Coverage
from shunter.cases.run import FileResult, TestResult
from shunter.model.errors import Problem
from shunter.model.finding import Evidence, Verdict
from shunter.model.units import Duration

_RED, _GREEN, _YELLOW, _BOLD, _FAINT, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
_RESULTS: Final = {True: "yes", False: "no", None: "?"}


class Paint:
    """Colours, or none."""

    def __init__(self, colour: bool) -> None:
        self._on = colour

    def __call__(self, code: str, text: str) -> str:
        """The text in a colour."""
        return f"{code}{text}{_PLAIN}" if self._on else text


def report_text(files: Sequence[FileResult], covered: Sequence[Coverage], *, colour: bool = False, verbose: bool = False) -> str:
    """The report. `verbose` names the tests that passed as well."""
    paint = Paint(colour)
    lines: list[str] = []
    for file in files:
        lines += _file(paint, file, verbose=verbose)
    if covered:
        lines += ["", *_coverage(paint, covered)]
    return "\n".join([*lines, "", _counts(paint, files)])


def _file(paint: Paint, file: FileResult, *, verbose: bool) -> Iterator[str]:
    failed = [r for r in file.results if not r.passed]
    count = f"{len(file.results)} {'test' if len(file.results) == 1 else 'tests'}"
    mark = paint(_GREEN, "ok  ") if file.passed else paint(_RED, "FAIL")
    yield f"{mark}  {file.path}  {paint(_FAINT, f'({count})')}"
    for problem in file.problems:
        yield from _problem(paint, problem)
    for result in file.results if verbose else failed:
        yield from _result(paint, result)


def _problem(paint: Paint, problem: Problem) -> Iterator[str]:
    where = f"{problem.place}: " if problem.place else ""
    yield f"  {paint(_BOLD, where)}{paint(_RED, problem.code)} {problem.what}"
    if problem.excerpt is not None and problem.place is not None and len(problem.excerpt) <= 120:
        yield f"      {paint(_FAINT, problem.excerpt)}"
        yield f"      {' ' * (problem.place.column - 1)}{paint(_RED, '^')}"
    yield f"      {problem.remedy}"


def _result(paint: Paint, result: TestResult) -> Iterator[str]:
    mark = paint(_GREEN, "ok  ") if result.passed else paint(_RED, "FAIL")
    yield f"  {mark}  {result.name}  {paint(_FAINT, str(result.place))}"
    for failure in result.failures:
        yield from _failure(paint, failure)


def _failure(paint: Paint, failure: Failure) -> Iterator[str]:
    yield f"        at {Duration(failure.at)}, expected by {failure.place}:"
    if failure.expected:
        yield "          " + paint(_RED, f"- {failure.expected}")
    if failure.found:
        yield "          " + paint(_GREEN, f"+ {failure.found}")
    if failure.evidence:
        yield "            evidence:"
        width = max(len(e.gate) for e in failure.evidence)
        for evidence in failure.evidence:
            yield f"              {_RESULTS[evidence.result]:<4}{evidence.gate:<{width}}  {_said(evidence)}".rstrip()


def _said(evidence: Evidence) -> str:
    return "  ".join(part for part in (evidence.expression, f"({evidence.detail})" if evidence.expression else evidence.detail) if part)


def _coverage(paint: Paint, covered: Sequence[Coverage]) -> Iterator[str]:
    """A table. Numbers are tests that show the verdict."""
    width = max(len("policy"), *(len(c.policy) for c in covered))
    heads = ("tests", *(v.value for v in Verdict))
    yield paint(_BOLD, f"{'policy':<{width}}  {'  '.join(heads)}  gates shown (not shown)")
    for one in covered:
        numbers = (one.tests, *(one.verdicts[v.value] for v in Verdict))
        cells = "  ".join(f"{number or '-':>{len(head)}}" for number, head in zip(numbers, heads, strict=True))
        unshown = f" ({', '.join(one.unshown)})" if one.unshown else ""
        row = f"{one.policy:<{width}}  {cells}  {', '.join(one.gates)}{paint(_FAINT, unshown)}".rstrip()
        failing = (
            f"{one.failing} {'test' if one.failing == 1 else 'tests'} of it, and what {'it expects' if one.failing == 1 else 'they expect'}"
        )
        untold = f"{failing} isn't so" if one.failing else f"no test says anything of it ({one.file})"
        yield row if one.tests else paint(_YELLOW, f"{one.policy:<{width}}  {cells}  {untold}")


def _counts(paint: Paint, files: Sequence[FileResult]) -> str:
    results = [r for f in files for r in f.results]
    failed = sum(not r.passed for r in results)
    problems = sum(len(f.problems) for f in files)
    checks = sum(r.checks for r in results)
    told = [f"{len(results) - failed} passed", f"{failed} failed", f"{problems} {'problem' if problems == 1 else 'problems'}"]
    line = f"{', '.join(told)} ({checks:,} checks in {len(files)} {'file' if len(files) == 1 else 'files'})"
    return paint(_RED if failed or problems or not results else _GREEN, line)
