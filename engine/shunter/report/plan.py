"""A plan for people: what moves from where to where, why, in what time; and what isn't done, and why."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from shunter.model.finding import Evidence, Finding, Input, Verdict
from shunter.model.ids import OperationId
from shunter.model.plan import Evaluation, OperationKind, PlannedOperation
from shunter.model.sample import say
from shunter.model.snapshot import Snapshot
from shunter.report.kept import Rate, kept, kept_line
from shunter.report.marks import Marks
from shunter.report.words import Page, count, moment, short, size, span

_STYLES: Final = {"involuntary": "bold yellow", "voluntary": "bold cyan"}
_TITLES: Final = {
    ("involuntary", False): "Because nodes are going",
    ("voluntary", False): "By choice",
    ("involuntary", True): "Because nodes are going, if it weren't a preview",
    ("voluntary", True): "By choice, if it weren't a preview",
}

_MOST: Final = 50
"""Findings of one verdict that are shown in full."""


def plan_text(evaluation: Evaluation, snapshot: Snapshot, console: Console, again: Mapping[str, Rate] | None = None) -> None:
    """Write the plan to the console. What a preview policy decides, and what is on nodes that only pretend, is marked on its line. `again`
    as in `kept`.
    """
    page, marks, plan = Page(console), Marks(snapshot.fleet), evaluation.plan
    page.title(f"Plan at {moment(plan.at)}, policies at {short(plan.commit)}")
    page.line(_counts(evaluation), indent=2, hang=2)
    if alive := kept_line(kept((o for o in plan.operations if not o.preview), snapshot, again)):
        page.line(alive, indent=2, hang=2)
    if marks.nodes:
        page.line(f"pretend: nothing really moves on {', '.join(sorted(marks.nodes))}", indent=2, hang=2, style="yellow")
    numbers = _numbers(plan.operations)
    for (lane, preview), title in _TITLES.items():
        operations = [o for o in plan.operations if o.lane == lane and o.preview == preview]
        if operations:
            page.blank()
            page.title(title)
        for operation in operations:
            _operation(page, marks, numbers, operation, plan.at)
    _budgets(page, evaluation.findings)
    others = [f for f in evaluation.findings if not _is_budget(f)]
    for verdict, title in ((Verdict.HOLD, "Held back"), (Verdict.INCONCLUSIVE, "Inconclusive: nothing is done for lack of an input")):
        _findings(page, marks, title, [f for f in others if f.verdict is verdict])
    if not plan.operations:
        page.blank()
        page.line("Nothing is to be done.", style="green")


def summary_table(evaluation: Evaluation) -> Table:
    """How often each policy said what, and what it planned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("policy")
    for name in (*(v.value for v in Verdict), "operations"):
        table.add_column(name, justify="right")
    said: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for finding in evaluation.findings:
        said[finding.policy][finding.verdict.value] += 1
    for operation in evaluation.plan.operations:
        said[operation.policy]["operations"] += 1
    for policy in sorted(said):
        table.add_row(policy, *(str(said[policy][v.value]) for v in Verdict), str(said[policy]["operations"]))
    return table


def _counts(evaluation: Evaluation) -> str:
    kinds = Counter(o.kind for o in evaluation.plan.operations if not o.preview)
    parts = [count(kinds[kind], kind.value) for kind in OperationKind if kinds[kind]]
    shown = sum(o.preview for o in evaluation.plan.operations)
    if shown:
        parts.append(f"{count(shown, 'operation')} of preview policies (never carried out)")
    verdicts = Counter(f.verdict for f in evaluation.findings)
    said = ((Verdict.HOLD, "held"), (Verdict.INCONCLUSIVE, "inconclusive"), (Verdict.PASS, "with nothing to do"))
    parts += [f"{verdicts[verdict]:,} {name}" for verdict, name in said if verdicts[verdict]]
    return ", ".join(parts) or "no policy covers anything"


def _operation(page: Page, marks: Marks, numbers: Mapping[OperationId, int], operation: PlannedOperation, at: float) -> None:
    tag = marks.of_operation(operation)
    page.line(f"{numbers[operation.id]:>3}  {tag}{headline(operation)}", hang=5, style=_STYLES[operation.lane])
    page.field("why", operation.reason, indent=5)
    page.field("policy", operation.policy, indent=5)
    page.field("time", _time(operation, at), indent=5)
    page.field("estimate", _estimate(operation), indent=5)
    if operation.after:
        page.field("after", ", ".join(str(numbers.get(one, one)) for one in operation.after), indent=5)
    if operation.attempt:
        page.field("attempt", f"{operation.attempt + 1}: earlier ones failed", indent=5)


def _numbers(plan: Sequence[PlannedOperation]) -> dict[OperationId, int]:
    """Operations counted from 1 in the order in which they are shown."""
    return {o.id: n for n, o in enumerate((o for lane, preview in _TITLES for o in plan if (o.lane, o.preview) == (lane, preview)), 1)}


def headline(operation: PlannedOperation) -> str:
    """`move decode-0 from node-a/0 to node-b/1`."""
    o = operation
    words = [o.kind.value, str(o.worker)]
    if o.kind is OperationKind.CHECKPOINT and o.expect.at:
        words.append(f"at {o.expect.at}")
    if o.kind in (OperationKind.RESTORE, OperationKind.DISCARD) and o.image:
        words.append(f"image {o.image}")
    words += [f"{word} {slot}" for word, slot in (("from", o.from_slot), ("to", o.to_slot)) if slot]
    to = (*o.copies, *(("the archive",) if o.archive else ()))
    return " ".join(words) + (f", image to {', '.join(to)}" if to else "")


def _time(operation: PlannedOperation, at: float) -> str:
    total, deadline = operation.estimate.total, operation.deadline
    takes = f"about {span(total)}" if total is not None else "how long isn't known"
    if deadline is None:
        return f"{takes}, no deadline"
    left = deadline - at
    if total is None:
        return f"{takes}, {span(left)} left"
    spare = left - total
    return f"{takes} of the {span(left)} left" + (f", {span(spare)} to spare" if spare >= 0 else f": {span(-spare)} too late")


def _estimate(operation: PlannedOperation) -> str:
    estimate = operation.estimate
    basis = f" ({estimate.basis})" if estimate.basis else ""
    still = "for an unknown time" if estimate.stopped is None else span(estimate.stopped)
    ahead = f", copied ahead for up to {span(operation.ahead)}" if operation.ahead else ""
    return f"stands still {still}{ahead}, image of {'unknown size' if estimate.bytes is None else size(estimate.bytes)}{basis}"


def _is_budget(finding: Finding) -> bool:
    """A budget says first for which group it speaks."""
    return bool(finding.evidence) and finding.evidence[0].gate == "per"


def budget_lines(findings: Iterable[Finding]) -> list[str]:
    """What may be disrupted at once: by each budget and group, those that hold something first; and where none counts."""
    found = list(findings)
    own = sorted((f for f in found if _is_budget(f)), key=lambda f: f.verdict is not Verdict.HOLD)
    lines = [f"{f.subject}, by {f.policy}: {f.reason}" for f in own]
    return lines + sorted({e.detail for f in found for e in f.evidence if e.gate == "budget.default"})


def _budgets(page: Page, findings: Iterable[Finding]) -> None:
    lines = budget_lines(findings)
    if lines:
        page.blank()
        page.title("Budgets")
    for line in lines[:_MOST]:
        page.line(line, indent=2, hang=4)
    if len(lines) > _MOST:
        page.line(f"and {len(lines) - _MOST:,} more: the JSON form has all of them", indent=2)


def _findings(page: Page, marks: Marks, title: str, findings: Iterable[Finding]) -> None:
    found = list(findings)
    if found:
        page.blank()
        page.title(title)
    for finding in found[:_MOST]:
        since = f", since {moment(finding.since)}" if finding.since is not None else ""
        page.line(f"{marks.of_subject(finding.subject)}{finding.subject}, by {finding.policy}{since}", indent=2, hang=4)
        page.field(finding.gate or "why", finding.reason, indent=5)
        for evidence in _telling(finding):
            page.field("", evidence, indent=5)
    if len(found) > _MOST:
        page.line(f"and {len(found) - _MOST:,} more: the JSON form has all of them", indent=2)


def _telling(finding: Finding) -> list[str]:
    """The expression that decided, with the value of what it read."""
    return [_evidence(e) for e in finding.evidence if e.gate == finding.gate and e.expression]


def _evidence(evidence: Evidence) -> str:
    read = ", ".join(f"{i.name} = {_input(i)}" for i in evidence.inputs)
    return f"`{evidence.expression}`" + (f" with {read}" if read else "")


def _input(given: Input) -> str:
    if given.sample is not None:
        return say(given.sample)
    return "unknown" if given.value is None else str(given.value)
