"""What was announced for each node, by whom, what is done about it now, and what would be if no engine were there."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from rich.console import Console

from shunter.model.finding import Finding, Verdict
from shunter.model.ids import NoticeId, WorkerId
from shunter.model.plan import Evaluation, PlannedOperation
from shunter.model.snapshot import Node, Notice, Snapshot
from shunter.report.marks import Marks, mark
from shunter.report.plan import headline
from shunter.report.words import Page, count, moment, span

Alone: TypeAlias = Mapping[NoticeId, Mapping[WorkerId, str]]
"""By notice and worker, what the node would do by itself while no engine is there (see `decide.standing.alone`)."""
_NONE: Final[Alone] = MappingProxyType({})


def notices_text(evaluation: Evaluation, snapshot: Snapshot, console: Console, alone: Alone = _NONE) -> None:
    """Write it: each node's sources and what is wrong with them, its open notices, and for each what is planned or held back, and why, and
    what its node would do by itself.
    """
    page, marks = Page(console), Marks(snapshot.fleet)
    nodes = snapshot.fleet.nodes
    page.title(f"At {moment(snapshot.at)}: {count(len(snapshot.notices), 'notice')} on {count(len(nodes), 'node')}")
    for node in nodes:
        page.blank()
        tag = mark(pretend=node.id in marks.nodes)
        page.line(f"{tag}{node.id}: {_sources(node)}", style="bold")
        if node.reachable and node.sources:
            page.line(f"{tag}{_tried(node, snapshot.at)}", indent=2, hang=2)
        for problem in node.problems:
            page.line(f"{tag}{problem}", indent=2, hang=2, style="red")
        for notice in (n for n in snapshot.notices if n.node == node.id):
            _notice(page, marks, evaluation, snapshot, notice)
            for worker, does in sorted(alone.get(notice.id, {}).items()):
                page.line(f"{marks.of_subject(worker)}{worker}, with the engine away: {does}", indent=4, hang=2)


def notices_document(evaluation: Evaluation, snapshot: Snapshot, alone: Alone = _NONE) -> dict[str, object]:
    """The same as values for JSON: `at`, and `nodes` with `sources`, `canaries` (by source, when it was last tried out), `problems` and
    `notices`, each with its `operations` and `held`, and `alone`: by worker, what its node would do while no engine is there.
    """
    return {
        "at": snapshot.at,
        "nodes": [
            {
                "id": node.id,
                "reachable": node.reachable,
                "sources": node.sources,
                "canaries": node.canaries,
                "problems": node.problems,
                "notices": [
                    {
                        "notice": n,
                        "operations": _done(evaluation, n),
                        "held": _held(evaluation, snapshot, n),
                        "alone": dict(alone.get(n.id, {})),
                    }
                    for n in snapshot.notices
                    if n.node == node.id
                ],
            }
            for node in snapshot.fleet.nodes
        ],
    }


def _sources(node: Node) -> str:
    if not node.reachable:
        return "doesn't answer; what follows is what it said last"
    return f"watches {', '.join(node.sources)}" if node.sources else "watches nothing: it won't be heard of before it is gone"


def _tried(node: Node, now: float) -> str:
    """When each source's code was last tried out with a notice that was none, and which have yet to be."""
    heard = [f"{name} {span(max(0.0, now - at))} ago" for name, at in sorted(node.canaries.items()) if name in node.sources]
    never = [name for name in node.sources if name not in node.canaries]
    told = [f"heard their canaries: {', '.join(heard)}"] if heard else []
    return "; ".join([*told, *([f"not tried out: {', '.join(never)}"] if never else [])])


def _notice(page: Page, marks: Marks, evaluation: Evaluation, snapshot: Snapshot, notice: Notice) -> None:
    about = f" of {notice.slot}" if notice.slot is not None else ""
    left = "no deadline" if notice.deadline is None else f"{span(notice.deadline - snapshot.at)} left"
    told = f", from {notice.source}" if notice.source else ""
    detail = f": {notice.detail}" if notice.detail else ""
    page.line(f"{notice.kind.value}{about}, {left}{told}, seen {moment(notice.seen_at)}{detail}", indent=2, hang=2, style="yellow")
    done, held = _done(evaluation, notice), _held(evaluation, snapshot, notice)
    for operation in done:
        page.line(f"{marks.of_operation(operation)}{headline(operation)} [{operation.policy}]", indent=4, hang=2)
    for finding in held:
        page.line(
            f"{marks.of_subject(finding.subject)}{finding.subject}: {finding.verdict.value}, {finding.reason} [{finding.policy}]",
            indent=4,
            hang=2,
        )
    if not done and not held:
        here = any(w.node == notice.node and notice.slot in (None, w.slot) for w in snapshot.fleet.workers)
        page.line("no policy answers to it" if here else "no worker is there", indent=4)


def _done(evaluation: Evaluation, notice: Notice) -> list[PlannedOperation]:
    return [o for o in evaluation.plan.operations if o.notice == notice.id]


def _held(evaluation: Evaluation, snapshot: Snapshot, notice: Notice) -> list[Finding]:
    """Workers that it is about for which an involuntary policy wants to act and can't. One of another kind's notice isn't among them."""
    about = {str(w.id) for w in snapshot.fleet.workers if w.node == notice.node and notice.slot in (None, w.slot)}
    return [
        f
        for f in evaluation.findings
        if f.lane == "involuntary"
        and f.subject in about
        and f.verdict in (Verdict.HOLD, Verdict.INCONCLUSIVE)
        and f.since == notice.seen_at
    ]
