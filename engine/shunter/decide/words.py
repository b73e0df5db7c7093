"""How quantities, times and notices read in a reason."""

import datetime

from shunter.model.expression import Scope
from shunter.model.sample import Known
from shunter.model.snapshot import Notice, NoticeKind, Worker

_HAPPENS = {
    NoticeKind.PREEMPTION: "is preempted",
    NoticeKind.MAINTENANCE: "goes into maintenance",
    NoticeKind.REBALANCE: "may be preempted",
    NoticeKind.DRAIN: "is drained",
    NoticeKind.GPU_FAILING: "has a failing GPU",
    NoticeKind.GONE: "is gone",
}


def clock(at: float) -> str:
    """A time of day in UTC: unlike "in 5 s" it doesn't change from tick to tick."""
    return f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%H:%M:%S} UTC"


def happens(notice: Notice, now: float | None = None) -> str:
    """`node-a is preempted in 118 s`; with `now` None the deadline as a time of day."""
    told = f"{notice.node} {_HAPPENS[notice.kind]}"
    if notice.deadline is None:
        return told
    if now is None:
        return f"{told} at {clock(notice.deadline)}"
    lead = notice.deadline - now
    return f"{told} in {lead:.0f} s" if lead >= 0 else f"{told}, {-lead:.0f} s past its deadline"


def holds(worker: Worker, scope: Scope) -> str:
    """`decode-0 holds 3 sessions (5,120 tokens)`, as far as it is known."""
    sessions, tokens = scope.get("worker.sessions"), scope.get("worker.kvTokens")
    if not isinstance(sessions, Known):
        return f"{worker.id} holds {tokens.value:,.0f} tokens" if isinstance(tokens, Known) else f"what {worker.id} holds isn't known"
    context = f" ({tokens.value:,.0f} tokens)" if isinstance(tokens, Known) else ""
    return f"{worker.id} holds {count(sessions.value, 'session')}{context}"


def count(number: float, noun: str) -> str:
    """`1 session`, `3 sessions`."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"
