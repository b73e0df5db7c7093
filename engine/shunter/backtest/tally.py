"""What each policy said over time, counted as it is said: findings themselves aren't kept."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from shunter.model.backtest import Act, BudgetUse, Tally
from shunter.model.finding import Brief, Finding, Verdict, chapters
from shunter.model.ids import PolicyName
from shunter.model.policy import DisruptionBudget, PolicySet

_SHOWN = 5


class Tallies:
    """Counts for each policy, and for each group of each budget."""

    def __init__(self, policies: PolicySet) -> None:
        self._names = tuple(p.name for p in policies.policies if p.acts and p.mode != "off")
        self._budgets = frozenset(p.name for p in policies.policies if isinstance(p.document, DisruptionBudget))
        self._last: defaultdict[PolicyName, dict[str, Verdict]] = defaultdict(dict)
        self._before: dict[PolicyName, tuple[Sequence[str], list[Verdict]]] = {}
        """What was said at the last step: of whom, and what."""
        self._steps: defaultdict[PolicyName, Counter[Verdict]] = defaultdict(Counter)
        self._acted: Counter[PolicyName] = Counter()
        self._flips: Counter[PolicyName] = Counter()
        self._operations: Counter[PolicyName] = Counter()
        self._undone: Counter[PolicyName] = Counter()
        self._missing: defaultdict[PolicyName, Counter[str]] = defaultdict(Counter)
        self._held: dict[tuple[PolicyName, str], tuple[int, int, str]] = {}

    def said(self, findings: Sequence[Finding]) -> Mapping[PolicyName, Counter[Verdict]]:
        """Count a step's findings. Returns how many subjects each policy said what of."""
        said: dict[PolicyName, Counter[Verdict]] = {}
        for policy, subjects, briefs, tell in chapters(findings):
            if policy in self._budgets:
                for place in range(len(subjects)):
                    self._budget(tell(place))
                continue
            verdicts = [brief.verdict for brief in briefs]
            said[policy] = Counter(verdicts)
            self._steps[policy].update(said[policy].keys())
            before = self._before.get(policy)
            if before is None or before != (subjects, verdicts):  # most steps say what the one before said
                self._follow(policy, subjects, briefs)
                self._before[policy] = subjects, verdicts
        return said

    def begun(self, acts: Iterable[Act]) -> None:
        """Count a step's operations."""
        for act in acts:
            self._operations[act.operation.policy] += 1
            self._undone[act.operation.policy] += act.undoes

    def result(self) -> tuple[Tally, ...]:
        """One for each policy that can act, in the order of names, also for those that never said anything."""
        return tuple(
            Tally(
                policy=name,
                steps=dict(self._steps[name]),
                acted=self._acted[name],
                flips=self._flips[name],
                operations=self._operations[name],
                undone=self._undone[name],
                inputs_missing=tuple(gate for gate, _ in self._missing[name].most_common(_SHOWN)),
            )
            for name in sorted(self._names)
        )

    def budgets(self) -> tuple[BudgetUse, ...]:
        """One for each budget and group."""
        return tuple(
            BudgetUse(policy=policy, group=group, held=held, told=told) for (policy, group), (held, _, told) in sorted(self._held.items())
        )

    def _follow(self, policy: PolicyName, subjects: Sequence[str], briefs: Sequence[Brief]) -> None:
        last = self._last[policy]
        for subject, brief in zip(subjects, briefs, strict=True):
            before, verdict = last.get(subject), brief.verdict
            if verdict is before:
                continue
            last[subject] = verdict
            self._acted[policy] += verdict is Verdict.ACT
            self._flips[policy] += before is not None
            if verdict is Verdict.INCONCLUSIVE:
                self._missing[policy][brief.gate or brief.reason] += 1

    def _budget(self, finding: Finding) -> None:
        """The words of the step at which it was used the most."""
        key = (finding.policy, finding.subject)
        used = max((i.value for e in finding.evidence for i in e.inputs if i.name == "used" and isinstance(i.value, int)), default=0)
        held, most, told = self._held.get(key, (0, -1, ""))
        holds = finding.verdict is Verdict.HOLD
        if used > most or (used == most and holds and held == 0):
            most, told = used, finding.reason
        self._held[key] = (held + holds, most, told)
