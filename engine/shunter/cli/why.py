"""`shunter why SUBJECT`: what each policy makes of a worker, what a policy makes of all, or what goes on at a node; always with the first
gate that decided, and what would have to be otherwise.
"""

import asyncio
import enum
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from shunter.app.assumed import assumed
from shunter.app.preview import Preview, preview
from shunter.app.settings import load
from shunter.decide.explain import Explanation, NodeAccount, PolicyAccount, explain, explain_node, explain_policy
from shunter.lang.diagnostics import nearest
from shunter.model.canon import plain
from shunter.model.errors import Problem, Rejected
from shunter.model.finding import Verdict
from shunter.model.ids import NodeId, PolicyName, WorkerId
from shunter.model.plan import PlannedOperation
from shunter.model.snapshot import Worker
from shunter.report.marks import Marks, mark
from shunter.report.plan import headline
from shunter.report.words import Page, moment, short, span


class Format(enum.StrEnum):
    """Forms of the answer."""

    TEXT = "text"
    JSON = "json"


_SAID = {
    Verdict.ACT: "acts",
    Verdict.HOLD: "holds back",
    Verdict.INCONCLUSIVE: "can't tell",
    Verdict.PASS: "does nothing",
}
_STYLES = {Verdict.ACT: "bold green", Verdict.HOLD: "bold yellow", Verdict.INCONCLUSIVE: "bold yellow", Verdict.PASS: ""}


def why(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="SUBJECT",
            help="A worker's id, as `shunter status` shows it; or worker/ID, policy/NAME or node/ID.",
        ),
    ],
    config: Annotated[Path, typer.Option("--config", "-c", help="The engine's settings file (TOML).")] = Path("engine.toml"),
    notice: Annotated[
        list[str] | None,
        typer.Option(
            "--notice", metavar="NODE=KIND:LEAD", help="Ask what would be if this notice came, as in node-a=preemption:120s. Repeatable."
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="Text for people, or JSON.")] = Format.TEXT,
) -> None:
    """Say for each policy why it acts on a worker or doesn't: the first gate that decided, its value, since when, and what would have to be
    otherwise.

    Of a policy it says what it makes of all its subjects, of a node what each policy makes of the workers on it, and what comes and goes.
    Looks and decides once, as `shunter plan` does. Exit status: 0; 1 when there is no such worker, policy or node.
    """
    settings = load(config)
    notices = [assumed(text) for text in notice or ()]
    with tempfile.TemporaryDirectory(prefix="shunter-why-") as folder:
        seen = asyncio.run(preview(settings, Path(folder) / "policies.git", notices))
    for problem in (*seen.policies.problems, *seen.unreachable):
        typer.echo(f"warning: {problem}", err=True)
    for remark in seen.remarks:
        typer.echo(f"note: {remark}", err=True)
    kind, name = _kind(seen, subject)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    if kind == "policy":
        account = explain_policy(
            seen.evaluation, seen.policies, PolicyName(_one_of("policy", name, (p.name for p in seen.policies.policies)))
        )
        typer.echo(_json(seen, account), nl=False) if output is Format.JSON else policy_text(seen, account, console)
    elif kind == "node":
        node = NodeId(_one_of("node", name, (n.id for n in seen.snapshot.fleet.nodes)))
        there = explain_node(seen.evaluation, seen.policies, seen.snapshot, node)
        typer.echo(_json(seen, there), nl=False) if output is Format.JSON else node_text(seen, there, console)
    else:
        known = _known(seen, name)
        answers = explain(seen.evaluation, seen.policies, seen.snapshot, known.id)
        typer.echo(why_json(seen, known, answers), nl=False) if output is Format.JSON else why_text(seen, known, answers, console)


def _kind(seen: Preview, subject: str) -> tuple[str, str]:
    """What the subject is, and its name. A worker's own id comes first, whatever it begins with."""
    kind, slash, name = subject.partition("/")
    if slash and kind in ("worker", "policy", "node") and all(w.id != subject for w in seen.snapshot.fleet.workers):
        return kind, name
    return "worker", subject


def _known(seen: Preview, name: str) -> Worker:
    """Raises Rejected SH940 for a worker that isn't in the fleet."""
    workers = {w.id: w for w in seen.snapshot.fleet.workers}
    return workers[WorkerId(_one_of("worker", name, workers))]


def _one_of(kind: str, name: str, names: Iterable[str]) -> str:
    """The name, if it is one of these. Raises Rejected SH940."""
    known = list(names)
    if name in known:
        return name
    near = nearest(name, known)
    where = "in the set" if kind == "policy" else "in the fleet"
    remedy = f'Did you mean "{near}"?' if near else "`shunter status` lists the workers, and says which nodes don't answer"
    raise Rejected(Problem(code="SH940", what=f"there is no {kind} {name} {where}", remedy=remedy, subject=name))


def _json(seen: Preview, account: PolicyAccount | NodeAccount) -> bytes:
    """`at`, `commit`, `snapshot`, and the account as `decide.explain` gives it."""
    document = {"at": seen.snapshot.at, "commit": seen.policies.commit, "snapshot": seen.snapshot.id, **plain(account)}
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def policy_text(seen: Preview, account: PolicyAccount, console: Console) -> None:
    """What a policy says of all its subjects, those alike together."""
    page, at = Page(console), seen.snapshot.at
    page.title(f"{account.policy} ({account.kind}, mode {account.mode}) at {moment(at)}, policies at {short(seen.policies.commit)}")
    if not account.groups:
        page.line("It says nothing of anybody now.", indent=2)
    for group in account.groups:
        page.blank()
        example = group.example
        more = f", and {group.number - len(group.subjects)} more" if group.number > len(group.subjects) else ""
        page.line(f"{_SAID[example.verdict]} for {group.number}: {', '.join(group.subjects)}{more}", style=_STYLES[example.verdict])
        if group.number > 1:
            page.line(f"such as {example.subject}:", indent=2)
        _reasons(page, example, at)
    _operations(page, seen, "does", account.operations)


def node_text(seen: Preview, account: NodeAccount, console: Console) -> None:
    """What goes on at a node, and what each policy makes of the workers on it, but for those that have nothing to do with them."""
    page, at = Page(console), seen.snapshot.at
    page.title(f"{account.node} at {moment(at)}, policies at {short(seen.policies.commit)}")
    page.line(f"{account.free} free slots; {account.against or 'nothing is against a worker coming here'}", indent=2)
    _operations(page, seen, "comes", account.arriving)
    _operations(page, seen, "goes", account.leaving)
    for worker, answers in account.workers:
        page.blank()
        page.line(str(worker), style="bold")
        for answer in sorted(answers, key=lambda a: (list(_SAID).index(a.verdict), a.policy)):
            if answer.finding is not None:
                page.line(f"{answer.policy} ({answer.kind}) {_SAID[answer.verdict]}", indent=2, style=_STYLES[answer.verdict])
                _reasons(page, answer, at, indent=4)


def _operations(page: Page, seen: Preview, label: str, operations: Iterable[PlannedOperation]) -> None:
    marks = Marks(seen.snapshot.fleet)
    for operation in operations:
        page.field(label, f"{marks.of_operation(operation)}{headline(operation)}", indent=2)


def why_json(seen: Preview, worker: Worker, answers: tuple[Explanation, ...]) -> bytes:
    """`at`, `commit`, `snapshot`, the `worker`, and one entry of `policies` for each policy, as `decide.explain` gives them."""
    document = {
        "at": seen.snapshot.at,
        "commit": seen.policies.commit,
        "snapshot": seen.snapshot.id,
        "worker": plain(worker),
        "policies": plain(answers),
    }
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def why_text(seen: Preview, worker: Worker, answers: tuple[Explanation, ...], console: Console) -> None:
    """The answers for people: those that act first, then those that hold back, and those that have nothing to do last."""
    page, at = Page(console), seen.snapshot.at
    marks = Marks(seen.snapshot.fleet)
    page.title(f"{marks.of_subject(worker.id)}{worker.id} at {moment(at)}, policies at {short(seen.policies.commit)}")
    page.line(_standing(worker), indent=2)
    if worker.pod is not None:
        page.field("pod", str(worker.pod), indent=2)
    if worker.pinned:
        page.field("pinned", worker.pinned, indent=2)
    if not answers:
        page.line("There is no policy.", indent=2)
    modes = {p.name: p.mode for p in seen.policies.policies}
    for answer in sorted(answers, key=lambda a: (list(_SAID).index(a.verdict), a.policy)):
        page.blank()
        tag = mark(preview=modes[answer.policy] == "preview")
        subject = "" if answer.subject == worker.id else f" for {answer.subject}"
        page.line(f"{tag}{answer.policy} ({answer.kind}) {_SAID[answer.verdict]}{subject}", style=_STYLES[answer.verdict])
        _reasons(page, answer, at)
        for operation in answer.operations:
            page.field("does", f"{marks.of_operation(operation)}{headline(operation)}", indent=2)


def _standing(worker: Worker) -> str:
    where = f"in {worker.slot}" if worker.slot else "in no slot"
    return f"{worker.role} worker of {worker.graph}, {worker.engine}, {worker.state.value} {where}, incarnation {worker.incarnation}"


def _reasons(page: Page, answer: Explanation, at: float, *, indent: int = 2) -> None:
    page.field("gate", answer.gate or "none", indent=indent)
    page.field("why", answer.reason, indent=indent)
    if answer.expression:
        page.field("asks", answer.expression, indent=indent)
    if answer.value and answer.value != answer.reason:
        page.field("value", answer.value, indent=indent)
    if answer.since is not None:
        page.field("since", f"{moment(answer.since)}, for {span(at - answer.since)}", indent=indent)
    if answer.needed:
        page.field("needs", answer.needed, indent=indent)
