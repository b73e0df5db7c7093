"""A plan as a pull request's comment: the verdict, the counts, the ten changes that matter most, and the rest folded."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from shunter.model.errors import Problem
from shunter.model.finding import Finding, Verdict
from shunter.model.plan import Evaluation, OperationKind, PlannedOperation
from shunter.model.snapshot import Snapshot
from shunter.report.kept import Rate, kept, kept_line
from shunter.report.markdown import LIMIT, code, escaped, page, table
from shunter.report.marks import Marks
from shunter.report.plan import budget_lines, headline
from shunter.report.words import count, moment, short, span

MARK: Final = "<!-- shunter: plan -->"
"""First line of the comment: by it, whoever posts finds the one that is to be updated."""
_MOST: Final = 10
_PROBLEMS: Final = 10
WEIGHT: Final = {
    kind: n
    for n, kind in enumerate(
        (
            OperationKind.DRAIN,
            OperationKind.PARK,
            OperationKind.MOVE,
            OperationKind.REASSIGN,
            OperationKind.RESTORE,
            OperationKind.DISCARD,
            OperationKind.CHECKPOINT,
        )
    )
}
"""What loses or stops the most comes first."""
_WIDTH: Final = 300
"""Characters of a reason that are shown: what can't be cut has to stay bounded."""


def plan_markdown(
    evaluation: Evaluation,
    snapshot: Snapshot,
    *,
    problems: Sequence[Problem] = (),
    remarks: Sequence[str] = (),
    link: str = "",
    again: Mapping[str, Rate] | None = None,
    limit: int = LIMIT,
) -> str:
    """At most `limit` bytes of Markdown. `problems` are of policy files and of silent nodes; `link` leads to the whole; `again` as in
    `kept`.
    """
    plan, marks = evaluation.plan, Marks(snapshot.fleet)
    real = [o for o in plan.operations if not o.preview]
    before = [MARK, f"### Shunter: {_verdict(real)}", ""]
    before += [f"Policies at {code(short(plan.commit))}, fleet and metrics at {moment(plan.at)}, snapshot {code(snapshot.id[:19])}.", ""]
    before += [_counts(evaluation)]
    before += ["", alive] if (alive := kept_line(kept(real, snapshot, again))) else []
    for remark in remarks[:_PROBLEMS]:
        before += ["", f"> {escaped(_cut(remark))}."]
    if marks.nodes:
        before += ["", f"> Nothing really moves on {count(len(marks.nodes), 'node')} that only pretend."]
    before += _problems(problems)
    before += _budgets(evaluation)
    if plan.operations:
        first = sorted(plan.operations, key=lambda o: (o.preview, o.lane == "voluntary", WEIGHT[o.kind]))[:_MOST]
        title = "What changes" if len(plan.operations) <= _MOST else f"The {_MOST} most important of {len(plan.operations):,} changes"
        rows = [(_headed(marks, o), escaped(_cut(o.reason)), code(o.policy), span(o.estimate.total)) for o in first]
        before += ["", f"**{title}**", "", *table(("operation", "why", "policy", "time"), rows)]
    middle = [_line(marks, o) for o in plan.operations if len(plan.operations) > _MOST]
    middle += [_finding(f) for f in evaluation.findings if f.verdict in (Verdict.HOLD, Verdict.INCONCLUSIVE)]
    after = [f"Plan {code(plan.digest[:19])}, {count(len(plan.operations), 'operation')}, {count(len(evaluation.findings), 'finding')}."]
    after += [f"[All of it]({link})"] if link else []
    return page(before, middle, after, title="All operations, and what is held back and why", limit=limit)


def _verdict(real: Sequence[PlannedOperation]) -> str:
    if not real:
        return "nothing would be done now"
    urgent = sum(o.lane == "involuntary" for o in real)
    because = f", {urgent:,} of them because a node is going" if urgent else ""
    return f"{count(len(real), 'operation')} would be carried out now{because}"


def _counts(evaluation: Evaluation) -> str:
    """What each policy says, in a table: the busiest ones, the others together."""
    said: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for finding in evaluation.findings:
        said[finding.policy][finding.verdict.value] += 1
    for operation in evaluation.plan.operations:
        said[operation.policy]["operations"] += 1
    if not said:
        return "No policy covers anything."
    busiest = sorted(said, key=lambda p: (-said[p]["operations"], -said[p][Verdict.HOLD.value], p))
    names = (*(v.value for v in Verdict), "operations")

    def row(title: str, policies: Sequence[str]) -> tuple[str, ...]:
        return (title, *(f"{sum(said[p][name] for p in policies):,}" for name in names))

    rows = [row(code(p), [p]) for p in busiest[:_MOST]]
    if len(busiest) > _MOST:
        rows.append(row(f"{len(busiest) - _MOST:,} more", busiest[_MOST:]))
    return "\n".join(table(("policy", *names), [*rows, row("**all**", busiest)]))


def _budgets(evaluation: Evaluation) -> list[str]:
    lines = budget_lines(evaluation.findings)
    shown = [f"- {escaped(_cut(line))}" for line in lines[:_MOST]]
    if len(lines) > _MOST:
        shown.append(f"- and {len(lines) - _MOST:,} more")
    return ["", "**Budgets**", "", *shown] if shown else []


def _problems(problems: Sequence[Problem]) -> list[str]:
    lines = [f"- {code(str(p.place or p.subject))} {p.code}: {escaped(_cut(p.what))}" for p in problems[:_PROBLEMS]]
    if len(problems) > _PROBLEMS:
        lines.append(f"- and {len(problems) - _PROBLEMS:,} more")
    return ["", f"**{count(len(problems), 'problem')}**", "", *lines] if lines else []


def _headed(marks: Marks, operation: PlannedOperation) -> str:
    return escaped(marks.of_operation(operation)) + code(headline(operation))


def _line(marks: Marks, operation: PlannedOperation) -> str:
    return f"- {_headed(marks, operation)} by {code(operation.policy)}: {escaped(_cut(operation.reason))}"


def _finding(finding: Finding) -> str:
    told = {Verdict.HOLD: "held", Verdict.INCONCLUSIVE: "inconclusive"}[finding.verdict]
    gate = f" at {code(finding.gate)}" if finding.gate else ""
    return f"- {told}: {code(finding.subject)} by {code(finding.policy)}{gate}: {escaped(_cut(finding.reason))}"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
