"""Whether the world is still the one that an exact plan was made for: what moved since, each with the two values. Pure.

The agents check each operation's preconditions once more when it is their turn, and the engine does before that: this is what must hold
before the first of them begins.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from shunter.act.chain import freed
from shunter.act.expect import unmet
from shunter.act.scheduler import subjects
from shunter.app.astray import astray
from shunter.app.exact import ExactPlan
from shunter.model.errors import Problem
from shunter.model.ids import Epoch, NodeId, OperationId, node_of
from shunter.model.operation import OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Fleet, Notice
from shunter.report.words import moment, short

_AGAIN = "Plan again, look at what it says now, and apply that"
_WAIT = "Apply it again when what is under way has ended, while the plan is good; or plan again, and it leaves out what has to wait"


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """The world as it is: `policies` are those in force (None: none could be read), `active` the operations under way.

    `budgets` says which of the operations of a plan would go beyond a budget now, and why.
    """

    at: float
    policies: PolicySet | None
    fleet: Fleet
    notices: tuple[Notice, ...] = ()
    active: tuple[OperationRecord, ...] = ()
    budgets: Callable[[Sequence[PlannedOperation]], Mapping[OperationId, str]] = lambda _operations: {}


def moved(exact: ExactPlan, now: Now, begun: Callable[[OperationId], bool]) -> tuple[Problem, ...]:
    """Everything that speaks against carrying it out; empty: nothing does. `begun` says whether an operation ever was.

    SH954 it has expired; SH955 other policies are in force; SH956 an operation was begun before, or one under way has its worker or slot;
    SH957 a precondition doesn't hold, or a notice is open for where it would go or leave a copy; SH958 its notice is gone; SH949 it would
    go beyond a budget.
    """
    found = [*_expired(exact, now), *_other_policies(exact, now)]
    done = {o.id: _as_done(o, exact) for o in exact.operations}
    open_notices = {n.id for n in now.notices}
    for operation in exact.operations:
        found += _taken(operation, now, begun)
        said = (
            unmet(operation, now.fleet, freed(operation, done.get))
            or _silent(operation, now.fleet)
            or astray(operation, now.notices, now.at)
        )
        if said:
            found.append(Problem(code="SH957", what=f"a precondition doesn't hold any more: {said}", remedy=_AGAIN, subject=operation.id))
        if operation.notice is not None and operation.notice not in open_notices:
            what = f"it answers the notice {operation.notice}, which isn't open any more"
            found.append(Problem(code="SH958", what=what, remedy=_AGAIN, subject=operation.id))
    if not found:  # else it would be about a world that the plan isn't of
        for operation_id, why in now.budgets(exact.operations).items():
            found.append(Problem(code="SH949", what=f"it would go beyond a budget: {why}", remedy=_WAIT, subject=operation_id))
    return tuple(found)


def _expired(exact: ExactPlan, now: Now) -> Iterator[Problem]:
    if now.at >= exact.expires_at:
        what = f"the plan was good until {moment(exact.expires_at)}, and it is {moment(now.at)}"
        yield Problem(code="SH954", what=what, remedy=_AGAIN, subject=exact.digest)


def _other_policies(exact: ExactPlan, now: Now) -> Iterator[Problem]:
    if now.policies is None:
        what = f"the plan was made at {short(exact.plan.commit)}, and no policies could be read"
        yield Problem(code="SH955", what=what, remedy="Look at the policy source, then apply it again", subject=exact.digest)
    elif now.policies.commit != exact.plan.commit:
        what = f"the plan was made at {short(exact.plan.commit)}, and the policies at {short(now.policies.commit)} are in force"
        yield Problem(code="SH955", what=what, remedy=_AGAIN, subject=exact.digest)
    elif now.policies.digest != exact.plan.policy_set:
        what = (
            f"the plan was made with policy set {exact.plan.policy_set[:19]}, and {now.policies.digest[:19]} is in force:"
            " of one commit, but with earlier versions of files that were refused"
        )
        yield Problem(
            code="SH955", what=what, remedy="Mend the files that are refused (`shunter validate`), and plan again", subject=exact.digest
        )


def _taken(operation: PlannedOperation, now: Now, begun: Callable[[OperationId], bool]) -> Iterator[Problem]:
    if begun(operation.id):
        what = f"{operation.kind.value} of {operation.worker} was begun before"
        yield Problem(code="SH956", what=what, remedy=_AGAIN, subject=operation.id)
        return
    own = subjects(operation)
    for record in now.active:
        shared = sorted(own & subjects(record.planned))
        if shared:
            what = f"{', '.join(shared)} belongs to {record.id}, which is under way"
            yield Problem(code="SH956", what=what, remedy="Let it end, then plan again", subject=operation.id)


def _silent(operation: PlannedOperation, fleet: Fleet) -> str:
    """A node that doesn't answer is as it was last known: nothing can be checked there."""
    answering = {n.id for n in fleet.nodes if n.reachable}
    slots = (operation.from_slot, operation.to_slot, operation.expect.at, operation.expect.free)
    about: set[NodeId] = {*(node_of(slot) for slot in slots if slot), *operation.copies}
    silent = sorted(about - answering)
    if silent:
        return f"{', '.join(silent)} doesn't answer, so what is there can't be said"
    wanted = operation.expect.image
    if wanted is None or operation.kind is OperationKind.DISCARD:
        return ""
    image = next((i for i in fleet.images if i.id == wanted), None)
    if image is None or answering.intersection(image.nodes):
        return ""  # that nobody has it is said by `unmet`
    if image.archived and any(n.archive for n in fleet.nodes if n.id in about):
        return ""
    return f"{wanted} is held by {image.holders} alone, which can't be reached from where it would go"


def _as_done(operation: PlannedOperation, exact: ExactPlan) -> OperationRecord:
    """As if it had succeeded: what comes after it counts on that."""
    outcome = Outcome(status=Status.SUCCEEDED, at=exact.plan.at)
    return OperationRecord(planned=operation, plan=exact.digest, epoch=Epoch(0), created_at=exact.plan.at, outcome=outcome)
