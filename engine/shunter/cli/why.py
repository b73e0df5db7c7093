"""`shunter why WORKER`: what each policy makes of one worker now, and the first gate that decided."""

import asyncio
import enum
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from shunter.app.assumed import assumed
from shunter.app.preview import Preview, preview
from shunter.app.settings import load
from shunter.decide.explain import Explanation, explain
from shunter.lang.diagnostics import nearest
from shunter.model.canon import plain
from shunter.model.errors import Problem, Rejected
from shunter.model.finding import Verdict
from shunter.model.ids import WorkerId
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
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="The worker's id, as `shunter status` shows it.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The engine's settings file (TOML).")] = Path("engine.toml"),
    notice: Annotated[
        list[str] | None,
        typer.Option(
            "--notice", metavar="NODE=KIND:LEAD", help="Ask what would be if this notice came, as in node-a=preemption:120s. Repeatable."
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="Text for people, or JSON.")] = Format.TEXT,
) -> None:
    """Say for each policy why it acts on a worker or doesn't: the first gate that decided, its value, and since when.

    Looks and decides once, as `shunter plan` does. Exit status: 0; 1 when there is no such worker.
    """
    settings = load(config)
    notices = [assumed(text) for text in notice or ()]
    with tempfile.TemporaryDirectory(prefix="shunter-why-") as folder:
        seen = asyncio.run(preview(settings, Path(folder) / "policies.git", notices))
    for problem in (*seen.policies.problems, *seen.unreachable):
        typer.echo(f"warning: {problem}", err=True)
    for remark in seen.remarks:
        typer.echo(f"note: {remark}", err=True)
    known = _known(seen, worker)
    answers = explain(seen.evaluation, seen.policies, seen.snapshot, known.id)
    if output is Format.JSON:
        typer.echo(why_json(seen, known, answers), nl=False)
        return
    why_text(seen, known, answers, Console(highlight=False, width=None if sys.stdout.isatty() else 140))


def _known(seen: Preview, name: str) -> Worker:
    """Raises Rejected SH940 for a worker that isn't in the fleet."""
    workers = {w.id: w for w in seen.snapshot.fleet.workers}
    if (found := workers.get(WorkerId(name))) is not None:
        return found
    near = nearest(name, workers)
    remedy = f'Did you mean "{near}"?' if near else "`shunter status` lists the workers, and says which nodes don't answer"
    raise Rejected(Problem(code="SH940", what=f"there is no worker {name} in the fleet", remedy=remedy, subject=name))


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


def _reasons(page: Page, answer: Explanation, at: float) -> None:
    page.field("gate", answer.gate or "none", indent=2)
    page.field("why", answer.reason, indent=2)
    if answer.expression:
        page.field("asks", answer.expression, indent=2)
    if answer.value and answer.value != answer.reason:
        page.field("value", answer.value, indent=2)
    if answer.since is not None:
        page.field("since", f"{moment(answer.since)}, for {span(at - answer.since)}", indent=2)
