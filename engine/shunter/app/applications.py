"""The engine's side of `shunter apply`: look at each request once, carry its plan out or say what moved, and never twice.

A plan that is carried out is decided again first, from the very inputs that came with it: so the audit has them, and nothing is done that
the policies don't say of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from shunter.app.exact import ExactPlan
from shunter.app.inbox import Answer, Request, Ticket, tidy, waiting
from shunter.app.preview import Preview
from shunter.app.recheck import Now, moved
from shunter.app.recording import Recording
from shunter.model.canon import plain
from shunter.model.errors import Problem, Rejected, ShunterError, Stalled
from shunter.model.ids import Digest, OperationId
from shunter.model.operation import OperationRecord
from shunter.model.plan import Plan
from shunter.model.policy import PolicySet
from shunter.report.words import count


class Remembers(Protocol):
    """What is asked of the engine's store."""

    def get(self, operation: OperationId) -> OperationRecord | None:
        """None when there never was one."""
        ...

    def consumed(self, plan: Digest) -> bool:
        """The plan was carried out, or begun to be."""
        ...


class Weighed(NamedTuple):
    """What a request is worth: `again` is its plan's decision made again; None where that wasn't done, as `problem` says, or since other
    policies are in force (or none). `request` None: it can't be read.
    """

    request: Request | None
    again: Preview | None = None
    problem: Problem | None = None


class Applications:
    """`decide` makes a decision from a recording; `note` records one that is about to be carried out, and keeps what it was made on.
    `accept` consumes a plan and makes the intents of all its operations durable, at once; it raises Rejected SH503, SH504 where one of them
    was before, and Stalled. `tell` records what became of a request.
    """

    def __init__(
        self,
        state: Path,
        store: Remembers,
        decide: Callable[[PolicySet, Recording], Preview],
        note: Callable[[Preview], None],
        accept: Callable[[Plan], object],
        tell: Callable[[Digest, str, dict[str, object]], None],
    ) -> None:
        self._state, self._store, self._decide, self._note, self._accept, self._tell = state, store, decide, note, accept, tell
        self._weighed: dict[str, Weighed] = {}

    def wait(self) -> bool:
        """There are requests to look at."""
        return bool(waiting(self._state))

    def weigh(self, policies: PolicySet | None) -> None:
        """Read all requests that wait, and make their plans' decisions again, with the policies in force. That can take as long as it took
        then; it changes nothing, and may be done in another thread than the rest.
        """
        self._weighed = {ticket.name: self._weigh(ticket, policies) for ticket in waiting(self._state)}

    def _weigh(self, ticket: Ticket, policies: PolicySet | None) -> Weighed:
        request: Request | None = None
        try:
            request = ticket.read()
            exact = request.exact
            if policies is None or (policies.commit, policies.digest) != (exact.plan.commit, exact.plan.policy_set):
                return Weighed(request)
            again = self._decide(policies, exact.basis())
        except Rejected as refused:
            return Weighed(request, problem=refused.problem)
        except Exception as error:
            return Weighed(request, problem=_undecidable(ticket.name, f"{type(error).__name__}: {error}"))
        return Weighed(request, again, _other_plan(exact, again.evaluation.plan))

    def settle(self, now: Now) -> None:
        """Answer all requests that were weighed. Raises Stalled when store or audit take no writes, and SH959, after the others, when one
        can't be answered: it stays for a later tick.
        """
        stuck: Stalled | None = None
        weighed, self._weighed = self._weighed, {}
        for ticket in waiting(self._state):
            if ticket.name not in weighed:
                continue
            try:
                self._one(ticket, weighed[ticket.name], now)
            except OSError as error:
                stuck = stuck or _unanswerable(ticket, error)
        tidy(self._state, now.at)
        if stuck is not None:
            raise stuck

    def _one(self, ticket: Ticket, weighed: Weighed, now: Now) -> None:
        request = weighed.request
        if request is None:
            assert weighed.problem is not None
            ticket.settle(Answer(at=now.at, problems=(weighed.problem,)))
            return
        plan = request.exact.plan
        if ticket.taken and self._store.consumed(plan.digest):
            # An engine before us accepted it and ended before it could say so. It looked whether the plan was consumed before it took it.
            ticket.settle(Answer(at=now.at))
            return
        problems = self._against(request, now) or ((weighed.problem,) if weighed.problem is not None else ())
        if not problems:
            assert weighed.again is not None  # by the policies in force, or `_against` had said that others are
            ticket.take()
            self._note(weighed.again)
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


def _other_plan(exact: ExactPlan, again: Plan) -> Problem | None:
    """None: it is the same, byte for byte."""
    if again.digest == exact.digest:
        return None
    what = f"the policies in force make another plan ({again.digest[7:19]}) of what it was decided on"
    return Problem(
        code="SH948",
        what=what,
        remedy="Plan again, with the version of Shunter that the engine has; a plan isn't edited",
        subject=exact.digest,
    )


def _undecidable(name: str, why: str) -> Problem:
    what = f"nothing can be decided on what came with the plan: {why}"
    return Problem(code="SH953", what=what, remedy="Write a new one: shunter plan --out FILE; a plan isn't edited", subject=name)


def _unanswerable(ticket: Ticket, error: OSError) -> Stalled:
    return Stalled(
        Problem(
            code="SH959",
            what=f"a plan that was handed over can't be answered: {error.strerror}",
            remedy="Free the disk or mend the permissions",
            subject=ticket.name,
        )
    )
