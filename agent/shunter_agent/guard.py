"""Checks of an order against the journal before any effect. Pure: what was seen goes in, a refusal or nothing comes out.

Nothing here relies on the engine being right: an old leader, a late order or a wrong one is refused by what this agent knows itself.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from shunter.model.errors import Rejected, Retry

from shunter_agent.journal import Entry, Reservation, WorkerRow
from shunter_agent.refusals import rejected, retry


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An order's head. `incarnation` is the worker's before the operation."""

    operation: str
    epoch: int
    plan: str
    worker: str
    incarnation: int


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent knows when an order comes in. `steps` are the operation's own entries by step.

    `holding` says that this agent has the operation's frozen or held copy in its hands right now; `unsettled` that the worker was left
    standing still by an agent that died, and isn't known to run yet.
    """

    epoch: int
    steps: Mapping[str, Entry]
    worker: WorkerRow | None = None
    reservation: Reservation | None = None
    holding: bool = False
    unsettled: bool = False


OLD_LEADER: Final = "SH601"
AT_SOURCE: Final = frozenset({"fence", "freeze", "thaw", "release", "checkpoint", "drain", "retire"})
"""Steps about a worker that lives here."""
LAST: Final = frozenset({"checkpoint", "drain", "unfence"})
"""Steps after which, whatever comes of them, their operation has no more to do with its worker than to show it to the router again.

It may never do so: an Unfence that was put off is the last order of an operation that has ended, too (SH519). Another may have the worker.
"""


def check_head(asked: Asked, seen: Seen) -> None:
    """The order is whole, and from no old leader. Raises Rejected SH601, SH602."""
    if not asked.operation or not asked.worker:
        raise rejected("SH602", "the order names no operation or no worker", "This is a fault in the engine; report it")
    check_epoch(asked.epoch, seen.epoch)


def check_epoch(epoch: int, highest: int) -> None:
    """Raises Rejected SH601 for an epoch lower than the highest seen."""
    if epoch < highest:
        raise rejected(
            OLD_LEADER,
            f"the order has epoch {epoch}, but this agent has seen {highest}: it comes from an old leader",
            "Nothing to do here: the engine that leads now gives the orders. Stop the old one if it still runs",
        )


def answered(step: str, seen: Seen) -> bytes | None:
    """The answer that this step of this operation had already; None when it has to be carried out."""
    entry = seen.steps.get(step)
    return entry.reply if entry is not None and entry.state == "done" else None


def check_step(step: str, asked: Asked, seen: Seen) -> None:
    """The worker is the one meant, nothing else has it, and the step is legal now.

    Raises Rejected SH603 (not here), SH604 (another incarnation), SH606 (out of order); Retry SH605 (in another operation), SH613 (left
    standing still).
    """
    if step in AT_SOURCE or (step == "unfence" and "resume" not in seen.steps):
        _check_source(step, asked, seen)
    if step == "unfence" and "resume" in seen.steps:
        _check_resumed(asked, seen)
    if step in ("restore", "resume") and (seen.reservation is None or seen.reservation.worker_id != asked.worker):
        raise _out_of_order(step, "this agent has no slot reserved for it", "Order Prepare first")
    if step in _ORDER:
        _ORDER[step](seen)


def _check_source(step: str, asked: Asked, seen: Seen) -> None:
    row = seen.worker
    if row is None:
        raise rejected("SH603", "the worker doesn't live here", "Look where it is now, and plan again", asked.worker)
    if row.incarnation != asked.incarnation:
        raise rejected(
            "SH604",
            f"the order is for incarnation {asked.incarnation}, but the worker here is {row.incarnation}",
            "The worker was restored since; plan again",
            asked.worker,
        )
    if seen.unsettled:
        _check_unsettled(step, asked, row)
    elif refused := in_other_operation(asked, row.operation, row.epoch, seen.holding or row.state == "frozen"):
        raise refused


def _check_unsettled(step: str, asked: Asked, row: WorkerRow) -> None:
    """A worker that may never run again can be ended by whoever may, and asked after by the operation that has it."""
    if step == "retire" or (row.operation == asked.operation and step in ("thaw", "release")):
        return
    raise retry(
        "SH613",
        "the worker stood still when the agent before this one died, and isn't known to run yet",
        "Wait: it is put right as soon as what holds it lets go. The agent's log says what that is",
        asked.worker,
    )


def _check_resumed(asked: Asked, seen: Seen) -> None:
    row = seen.worker
    if row is None:
        raise rejected("SH603", "the restored worker isn't here any more", "Restore it again from its image", asked.worker)
    if row.incarnation != asked.incarnation + 1:
        raise rejected(
            "SH604",
            f"the operation made incarnation {asked.incarnation + 1}, but the worker here is {row.incarnation}",
            "The worker was restored since; plan again",
            asked.worker,
        )
    if refused := in_other_operation(asked, row.operation, row.epoch, row.state == "frozen"):
        raise refused


def in_other_operation(asked: Asked, operation: str, epoch: int, held: bool) -> Retry | None:
    """The refusal SH605 if another operation has the worker or slot; None if nobody has, or a newer leader takes it over.

    A newer leader may take over what an old one left behind, but not a copy that stands still: that one goes back by itself first.
    """
    if not operation or operation == asked.operation or (asked.epoch > epoch and not held):
        return None
    return retry(
        "SH605",
        f"operation {operation} has it",
        "Wait until that operation has ended, or its hold has",
        asked.worker,
    )


def _out_of_order(step: str, what: str, remedy: str) -> Rejected:
    return rejected("SH606", f"{step} was refused: {what}", remedy)


def _is(seen: Seen, step: str, *states: str) -> bool:
    entry = seen.steps.get(step)
    return entry is not None and entry.state in states


def _release(seen: Seen) -> None:
    if not seen.holding or not _is(seen, "freeze", "done"):
        raise _out_of_order(
            "release", "the worker isn't frozen by this operation; its hold has ended", "Leave the worker running, and plan again"
        )


def _freeze(seen: Seen) -> None:
    if _is(seen, "fence", "undone"):  # its engine was silent for too long, say: what comes to the worker now would be lost
        raise _out_of_order("freeze", "the router sees the worker again", "Fence it anew, or plan again")
    if seen.holding:
        raise _out_of_order("freeze", "the worker stands still already", "Thaw or release it")


def _thaw(seen: Seen) -> None:
    if not _is(seen, "freeze", "done", "undone", "failed", "begun"):
        raise _out_of_order("thaw", "this operation never froze it", "Nothing to do: the worker runs")


def _restore(seen: Seen) -> None:
    if seen.holding:
        raise _out_of_order("restore", "a held copy is here already", "Resume or abort it")


def _resume(seen: Seen) -> None:
    if not seen.holding or not _is(seen, "restore", "done"):
        raise _out_of_order("resume", "there is no held copy here; its hold has ended", "Order Restore again")


def _abort(seen: Seen) -> None:
    if _is(seen, "resume", "done"):
        raise _out_of_order("abort", "the copy runs already", "It is the worker now: move, park or drain it instead")


_ORDER: Final = {"release": _release, "freeze": _freeze, "thaw": _thaw, "restore": _restore, "resume": _resume, "abort": _abort}
