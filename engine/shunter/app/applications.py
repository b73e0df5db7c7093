"""The engine's side of `shunter apply`: look at each request once, carry its plan out or say what moved, and never twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from shunter.app.inbox import Answer, Request, Ticket, tidy, waiting
from shunter.app.recheck import Now, moved
from shunter.model.canon import plain
from shunter.model.errors import Problem, Rejected, ShunterError, Stalled
from shunter.model.ids import Digest, OperationId
from shunter.model.operation import OperationRecord
from shunter.model.plan import Plan
from shunter.report.words import count


class Remembers(Protocol):
    """What is asked of the engine's store."""

    def get(self, operation: OperationId) -> OperationRecord | None:
        """None when there never was one."""
        ...

    def consumed(self, plan: Digest) -> bool:
        """The plan was carried out, or begun to be."""
        ...


class Applications:
    """`accept` consumes a plan and makes the intents of all its operations durable, at once; it raises Rejected SH503, SH504 where one of
    them was before, and Stalled. `tell` records what became of a request.
    """

    def __init__(
        self, state: Path, store: Remembers, accept: Callable[[Plan], object], tell: Callable[[Digest, str, dict[str, object]], None]
    ) -> None:
        self._state, self._store, self._accept, self._tell = state, store, accept, tell

    def settle(self, now: Now) -> None:
        """Look at all requests that wait. Raises Stalled when store or audit take no writes, and SH959, after the others, when one can't be
        answered: it stays for a later tick.
        """
        stuck: Stalled | None = None
        for ticket in waiting(self._state):
            try:
                self._one(ticket, now)
            except OSError as error:
                stuck = stuck or _unanswerable(ticket, error)
        tidy(self._state, now.at)
        if stuck is not None:
            raise stuck

    def _one(self, ticket: Ticket, now: Now) -> None:
        try:
            request = ticket.read()
        except Rejected as unreadable:
            ticket.settle(Answer(at=now.at, problems=(unreadable.problem,)))
            return
        plan = request.exact.plan
        if ticket.taken and self._store.consumed(plan.digest):
            # An engine before us accepted it and ended before it could say so. It looked whether the plan was consumed before it took it.
            ticket.settle(Answer(at=now.at))
            return
        problems = self._against(request, now)
        if not problems:
            ticket.take()
            problems = self._carry_out(request)
        said = f"refused: {'; '.join(p.what for p in problems[:3])}" if problems else f"applied: {count(len(plan.operations), 'operation')}"
        self._tell(plan.digest, said, {"by": request.by, "expires_at": request.exact.expires_at, "problems": plain(problems)})
        ticket.settle(Answer(at=now.at, problems=problems))

    def _against(self, request: Request, now: Now) -> tuple[Problem, ...]:
        digest = request.exact.digest
        if self._store.consumed(digest):
            what = "this plan was carried out before"
            return (Problem(code="SH960", what=what, remedy="Plan again: the fleet isn't what it was when it was made", subject=digest),)
        return moved(request.exact, now, lambda operation: self._store.get(operation) is not None)

    def _carry_out(self, request: Request) -> tuple[Problem, ...]:
        exact = request.exact
        try:
            self._accept(exact.plan)
        except Stalled:
            raise
        except ShunterError as error:
            return (error.problem,)
        return ()


def _unanswerable(ticket: Ticket, error: OSError) -> Stalled:
    return Stalled(
        Problem(
            code="SH959",
            what=f"a plan that was handed over can't be answered: {error.strerror}",
            remedy="Free the disk or mend the permissions",
            subject=ticket.name,
        )
    )
