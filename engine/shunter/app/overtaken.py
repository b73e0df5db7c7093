"""What a notice overtakes: voluntary operations under way that would bring a worker to the wrong place, or too late. And what it leaves
behind when it is withdrawn.
"""

from collections.abc import Iterable, Sequence

from shunter.app.astray import concerns
from shunter.model.ids import OperationId
from shunter.model.operation import OperationRecord
from shunter.model.snapshot import Notice


def overtaken(active: Iterable[OperationRecord], notices: Sequence[Notice], now: float) -> list[tuple[OperationId, str]]:
    """Each operation to give up, and why in words: its worker still runs, so that what the notice asks for can be planned for it instead.

    That is so where it would go to a node that is going itself, or leaves a node that is going but wouldn't have ended by the deadline. By
    its estimate: an operation of which none is known, and a notice without a deadline, overtake nothing. One that has stopped its worker is
    let alone: it is the quickest way by then. One that waits for its turn hinders nothing.

    What answers a notice that isn't open any more is given up as long as it waits. What is under way ends: an agent that has just started
    anew has heard of nothing yet, and half a move is no safer than a whole one.
    """
    found, still = [], {notice.id for notice in notices}
    for record in active:
        if record.waits and record.cancelled is None and record.planned.notice is not None and record.planned.notice not in still:
            found.append((record.id, "the notice that it answers was withdrawn"))
            continue
        if record.planned.lane == "involuntary" or record.waits or record.frozen_at is not None:
            continue
        if record.cancelled is None and record.outcome is None and (why := _why(record, notices, now)) is not None:
            found.append((record.id, why))
    return found


def _why(record: OperationRecord, notices: Sequence[Notice], now: float) -> str | None:
    planned = record.planned
    source = planned.from_slot or planned.expect.at
    for notice in notices:
        if planned.to_slot is not None and concerns(notice, planned.to_slot):
            return f"a notice is open for where it would go ({notice.kind.value} of {notice.node})"
        if source is None or not concerns(notice, source) or notice.deadline is None or planned.estimate.stopped is None:
            continue
        late = now + planned.estimate.stopped - notice.deadline
        if late > 0:
            return f"it would end {late:.0f} s after the deadline of {notice.kind.value} of {notice.node}"
    return None
