"""An operation's progress, one line a step."""

from shunter.model.operation import Measured, OperationRecord, Sending, Status, Step
from shunter.report.marks import mark
from shunter.report.plan import headline
from shunter.report.words import clock, safe, size, span

_ENDED = {
    Status.SUCCEEDED: "done",
    Status.ROLLED_BACK: "rolled back: the worker runs on where it was",
    Status.FAILED: "failed: the worker is not running",
    Status.SUPERSEDED: "never started",
    Status.UNKNOWN: "not known yet: the agents are asked",
    Status.ACTIVE: "",
}


def operation_line(record: OperationRecord, *, pretend: bool = False) -> str:
    """One line: when, what, how far it has come and how long after its start; once it has ended, how, what was measured, and why if it
    failed.

    `pretend` marks the line: nothing really moved.
    """
    at = _at(record)
    waiting = f"waits for {', '.join(record.planned.after)}" if record.planned.after else "waits for its turn"
    told = _outcome(record) if record.outcome else waiting if record.waits else _standing(record)
    marks = mark(preview=record.planned.preview, pretend=pretend)
    return safe(f"{clock(at)}  {marks}{headline(record.planned)}: {told} (+{span(at - record.created_at)})")


def _standing(record: OperationRecord) -> str:
    if record.outstanding is None:
        return record.step.value
    why = record.outstanding.problem
    return f"{Status.UNKNOWN.value} after {record.step.value}, the agents are asked: {why.code} {why.what}"


def _at(record: OperationRecord) -> float:
    if record.outcome:
        return record.outcome.at
    return record.history[-1][1] if record.history else record.created_at


def _outcome(record: OperationRecord) -> str:
    outcome = record.outcome
    assert outcome is not None, "asked for only then"
    parts = [_ENDED[outcome.status], *measured(outcome.measured)]
    if outcome.code or outcome.reason:
        reached = "" if record.step is Step.INTENDED else f" after {record.step.value}"
        parts.append(f"{outcome.code} {outcome.reason}{reached}".strip())
    if outcome.status is Status.FAILED and outcome.image:
        parts.append(f"its image {outcome.image} remains")
    return ", ".join(parts)


def sending_line(sending: Sending, now: float) -> str:
    """How far its image is on its way, and about how long that still takes from `now` on."""
    gone = size(sending.bytes) if sending.total is None else f"{size(sending.bytes)} of about {size(max(sending.total, sending.bytes))}"
    parts = [f"sent {gone}"]
    if sending.rate is not None:
        parts.append(f"{size(round(sending.rate))} a second")
    if sending.left is not None:
        parts.append(f"about {span(max(0.0, sending.left - (now - sending.at)))} left")
    return ", ".join(parts)


def measured(figures: Measured) -> list[str]:
    """What there is of an operation's measured figures, in words."""
    parts = [f"stood still {span(figures.stopped)}"] if figures.stopped is not None else []
    return [*parts, *([size(figures.bytes)] if figures.bytes is not None else [])]
