"""What the tests show of each policy, and which policies they say nothing of."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from shunter.cases.compare import Shown
from shunter.cases.run import FileResult, TestResult
from shunter.model.finding import Verdict
from shunter.model.policy import BudgetSpec, FleetProfile, Policy, RebalanceSpec


class Coverage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One policy. `tests` are those that show something of it; `verdicts` says for each verdict how many of them do. `failing` are those
    that expect something of it, and show none of that, since it isn't so.

    `gates` are those that tests show. `unshown` are those that decided at some step of a test, but that no expectation names or depends on,
    and the limits that a budget has and the bounds of a rebalancing policy, whether or not they ever decided.
    """

    policy: str
    file: str
    tests: int
    failing: int
    verdicts: dict[str, int]
    gates: tuple[str, ...]
    unshown: tuple[str, ...]


def coverage(files: Sequence[FileResult], policies: Iterable[Policy]) -> tuple[Coverage, ...]:
    """One entry for each policy, by file and name. A test counts for the policies that lie in its own folder. A profile says nothing, and
    has no entry.
    """
    results: defaultdict[str, list[TestResult]] = defaultdict(list)
    for file in files:
        results[_folder(file.path)] += file.results
    speaking = (p for p in policies if not isinstance(p.document, FleetProfile))
    ordered = sorted(speaking, key=lambda p: (p.place.file, p.name))
    return tuple(_of(policy, results[_folder(policy.place.file)]) for policy in ordered)


def _of(policy: Policy, results: Sequence[TestResult]) -> Coverage:
    own = [[s for s in r.shown if s.policy == policy.name] for r in results]
    about = [shown for shown in own if shown]
    gates = {s.gate for shown in about for s in shown if s.gate}
    seen = {s.gate for r in results for s in r.seen if s.policy == policy.name and s.gate}
    return Coverage(
        policy=policy.name,
        file=policy.place.file,
        tests=len(about),
        failing=sum(not shown and _fails(policy, r) for shown, r in zip(own, results, strict=True)),
        verdicts={v.value: _showing(about, v) for v in Verdict},
        gates=tuple(sorted(gates)),
        unshown=tuple(sorted((seen | _own(policy)) - gates)),
    )


def _fails(policy: Policy, result: TestResult) -> bool:
    """The test expects something of the policy, as far as can be told, that isn't so."""
    return any(policy.name in (f.policy, *(() if f.policy else result.policies)) for f in result.failures)


def _own(policy: Policy) -> set[str]:
    """Gates at which a policy is certain to be able to hold something."""
    spec = policy.document.spec
    if isinstance(spec, BudgetSpec):
        limits = {"maxConcurrent": spec.max_concurrent, "maxPerWindow": spec.max_per_window, "windows": spec.windows or None}
        return {gate for gate, limit in limits.items() if limit is not None}
    if isinstance(spec, RebalanceSpec):
        bounds = {"for": spec.for_ or None, "gain": spec.gain, "cooldown": spec.cooldown or None}
        return {gate for gate, bound in bounds.items() if bound is not None}
    return set()


def _showing(tests: Sequence[Sequence[Shown]], verdict: Verdict) -> int:
    return sum(any(s.verdict is verdict for s in shown) for shown in tests)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
