"""What became of one operation, told from its audit records for somebody who doesn't know the engine."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import Console

from shunter.model.operation import Measured, Status
from shunter.model.record import Record, RecordKind, Sealed
from shunter.report.marks import mark
from shunter.report.words import Page, moment, short, size, span

_WANTED: Final = {
    "move": "should go on {to} with all it held, and leave {from}",
    "park": "should leave {from}, kept as an image until there is a place for it",
    "restore": "should come back on {to} from its image",
    "checkpoint": "should be copied to an image, and run on",
    "drain": "should finish what it had and end",
    "reassign": "should change its role where it stands",
    "discard": "had an image that needn't be kept any longer",
}
_STEPS: Final = {
    "intended": "it was written down that this would be tried, before anybody was asked",
    "prepared": "both sides were found fit, and the place was reserved",
    "fenced": "the router sent it nothing new; what it was answering went on",
    "frozen": "it was stopped; its image is whole where it goes",
    "held": "it was restored there, and didn't run yet",
    "committing": "it was decided that the copy there is the one that counts",
    "released": "the copy where it came from was ended",
    "starting": "a worker of the other pool was to start from a golden image in its place",
    "resumed": "it ran on there, and was found healthy",
    "unfenced": "the router sent it work again",
    "dumped": "its image was whole on its own node",
    "copied": "the image was whole on the other nodes",
    "rolling-back": "something went wrong, and it was brought back to where it was",
}
_ENDS: Final = {
    Status.SUCCEEDED: "it was done",
    Status.ROLLED_BACK: "it failed, and the worker ran on where it was",
    Status.FAILED: "it failed, and the worker wasn't running",
    Status.SUPERSEDED: "it was never begun",
    Status.UNKNOWN: "its end wasn't known yet",
    Status.ACTIVE: "it went on",
}
_LANES: Final = {
    "involuntary": "It couldn't wait: a node was going, so that budgets and windows don't count.",
    "voluntary": "It could have waited: budgets, windows and missing values would have held it back.",
}


class Because(msgspec.Struct, frozen=True, kw_only=True):
    """Records that say why; each None where there is none (it was dropped, or the operation was applied by hand)."""

    notice: Record | None = None
    finding: Record | None = None
    plan: Sealed | None = None


def account_text(operation: str, records: Sequence[Sealed], because: Because, console: Console) -> None:
    """Why, what, step by step, and how it ended, in sentences; `records` are the operation's own, oldest first, at least one."""
    page, first = Page(console), records[0].record
    page.title(f"{mark(pretend=any(s.record.pretend for s in records))}What became of {operation}")
    for line in _why(first, because):
        page.line(line, indent=2, hang=2)
    day = moment(first.at).partition(" ")[0]
    page.line(f"On {day} (times in UTC):", indent=2)
    for sealed in records:
        r = sealed.record
        if r.kind is not RecordKind.OUTCOME:
            page.line(f"{_time(r.at)}  {_step(r)}", indent=4, hang=10)
    for line in _end(records):
        page.line(line, indent=2, hang=2)
    page.line(f"Records {', '.join(str(s.seq) for s in records)} say so; each is shown below.", indent=2, hang=2)


def _why(first: Record, because: Because) -> Iterator[str]:
    notice = because.notice.body.get("notice") if because.notice else None
    if because.notice and isinstance(notice, Mapping):
        deadline = notice.get("deadline")
        until = f", by {_time(deadline)} UTC" if isinstance(deadline, int | float) else ""
        yield f"{because.notice.subject} was to go ({notice.get('kind')}{until}), as was heard at {_time(because.notice.at)} UTC."
    body = first.body
    where = because.finding.commit if because.finding else because.plan.record.commit if because.plan else first.commit
    at = f" ({body['policy_at']})" if "policy_at" in body else ""
    by = f"The policy {body.get('policy')}{at}" + (f", as of commit {short(where)}," if where else "")
    wanted = _WANTED.get(str(body.get("kind")), "was to be acted on")
    places = {name: str(body.get(name) or "its place") for name in ("from", "to")}
    yield f"{by} said that {first.subject} {wanted.format_map(places)}: {body.get('reason')}."
    if because.finding and because.finding.body.get("reason") != body.get("reason"):
        yield f"It had found: {because.finding.body.get('reason')}."
    if str(body.get("lane")) in _LANES:
        yield _LANES[str(body["lane"])]
    if because.plan:
        yield f"It came into the plan with record {because.plan.seq}: `shunter audit replay {because.plan.seq}` makes that decision again."


def _step(r: Record) -> str:
    if r.kind is RecordKind.INTENT:
        return _STEPS["intended"]
    outstanding = r.body.get("outstanding")
    if isinstance(outstanding, Mapping) and isinstance(missing := outstanding.get("problem"), Mapping):
        return f"an answer was outstanding, and the agents were asked what had happened ({missing.get('what')})"
    problem = r.body.get("problem")
    wrong = f" ({problem.get('what')})" if isinstance(problem, Mapping) else ""
    return _STEPS.get(str(r.body.get("step")), r.what) + wrong


def _end(records: Sequence[Sealed]) -> Iterator[str]:
    ended = next((s.record for s in records if s.record.kind is RecordKind.OUTCOME), None)
    outcome = ended.body.get("outcome") if ended else None
    if ended is None or not isinstance(outcome, Mapping):
        yield "The audit has no end of it: it goes on, or the engine has yet to find out."
        return
    why = " ".join(str(outcome.get(name) or "") for name in ("code", "reason")).strip()
    took = span(ended.at - records[0].record.at)
    yield f"At {_time(ended.at)}, {took} after the decision, {_ENDS[Status(str(outcome.get('status')))]}{f': {why}' if why else ''}."
    figures = msgspec.convert(outcome.get("measured") or {}, Measured)
    if figures.stopped is not None:
        yield f"The worker stood still for {span(figures.stopped)} of it."
    if figures.bytes:  # a restore where the image was already moved none
        ahead = f", of which {size(figures.copied)} went ahead while it ran" if figures.copied else ""
        yield f"Its image had {size(figures.bytes)}{ahead}."


def _time(at: float) -> str:
    return moment(at).partition(" ")[2].removesuffix(" UTC")
