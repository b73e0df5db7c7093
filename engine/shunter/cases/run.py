"""Running test files: each test against its own world, all in one report."""

from collections.abc import Mapping, Sequence

import msgspec

from shunter.cases.compare import Failure, Shown, compare
from shunter.cases.read import read
from shunter.cases.scenario import Scenario, scenarios
from shunter.cases.simulate import simulate
from shunter.model.errors import Place, Problem, Severity
from shunter.model.expression import Rules


class TestResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How one test went. `shown` is what its met expectations prove, `seen` what policies said at any step of it, expected or not."""

    __test__ = False  # not a test of pytest's

    name: str
    place: Place
    steps: int
    checks: int
    failures: tuple[Failure, ...]
    shown: tuple[Shown, ...]
    seen: tuple[Shown, ...]
    policies: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Every expectation was met."""
        return not self.failures


class FileResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One test file. `problems` say which tests couldn't be run, and why."""

    path: str
    results: tuple[TestResult, ...]
    problems: tuple[Problem, ...]

    @property
    def passed(self) -> bool:
        """Every test was run and passed."""
        return all(r.passed for r in self.results) and not any(p.severity is Severity.ERROR for p in self.problems)


def run_file(path: str, data: bytes, beside: Mapping[str, bytes], rules: Rules) -> FileResult:
    """Run a test file's tests. `beside` are the files of its folder by name, policies among them. Never raises for what stands in them."""
    found, problems = read(path, data)
    if found is None:
        return FileResult(path=path, results=(), problems=problems)
    folder = path.rpartition("/")[0]
    ready, more = scenarios(found, f"{folder}/" if folder else "", beside)
    return FileResult(path=path, results=tuple(run(one, rules) for one in ready), problems=(*problems, *more))


def run(scenario: Scenario, rules: Rules) -> TestResult:
    """Run one test to its last expectation."""
    failures: list[Failure] = []
    shown: dict[Shown, None] = {}
    seen: dict[Shown, None] = {}
    checks = 0
    for moment in simulate(scenario, rules):
        for finding in moment.evaluation.findings:
            seen[Shown(policy=finding.policy, verdict=finding.verdict, gate=finding.gate)] = None
        for due in (one for one in scenario.expect if one.step == moment.step):
            outcomes = compare(due, moment, scenario.begins, scenario.policies.policies)
            checks += len(outcomes) or 1
            failures += [one for one in outcomes if isinstance(one, Failure)]
            shown |= dict.fromkeys(one for one in outcomes if isinstance(one, Shown))
    return TestResult(
        name=scenario.name,
        place=scenario.place,
        steps=scenario.steps + 1,
        checks=checks,
        failures=tuple(failures),
        shown=_sorted(shown),
        seen=_sorted(seen),
        policies=tuple(p.name for p in scenario.policies.policies),
    )


def _sorted(entries: Mapping[Shown, None]) -> tuple[Shown, ...]:
    return tuple(sorted(entries, key=lambda s: (s.policy, s.verdict.value, s.gate)))


def passed(files: Sequence[FileResult]) -> bool:
    """Every file passed, and there was a test in them."""
    return all(f.passed for f in files) and any(f.results for f in files)
