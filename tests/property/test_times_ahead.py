"""Whoever is copied ahead for all of the time that it is given makes nobody late."""

from hypothesis import given
from hypothesis import strategies as st
from shunter.decide.ahead import PART, Leave, with_ahead
from shunter.model.ids import Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions

NOW = 1000.0
A = NodeId("a")
SECONDS = st.floats(0, 100)


@st.composite
def leaves(draw: st.DrawFn, *, limited: bool = True) -> Leave:
    limit = draw(st.floats(NOW, NOW + 1000)) if limited and draw(st.booleans()) else None
    begins = NOW + draw(SECONDS) if draw(st.booleans()) else 0.0
    return Leave(occupy=draw(SECONDS), tail=draw(SECONDS), limit=limit, sized=True, begins=begins)


LANES = st.lists(st.tuples(st.sampled_from([OperationKind.MOVE, OperationKind.PARK]), leaves()), min_size=1, max_size=8)


def operation(number: int, kind: OperationKind) -> PlannedOperation:
    return PlannedOperation(
        id=OperationId(f"o{number}"),
        kind=kind,
        worker=WorkerId(f"w{number}"),
        lane="involuntary",
        policy=PolicyName("p"),
        reason="a test",
        expect=Preconditions(incarnation=Incarnation(0)),
        from_slot=SlotId(f"a/{number}"),
    )


def ends(lane: list[tuple[OperationKind, Leave]], busy: float, ahead: float) -> list[float]:
    """When each is over if every move is copied for so long before its dump, one after the other."""
    at, found = NOW + busy, list[float]()
    for kind, leave in lane:
        at = max(at, leave.begins) + (ahead if kind is OperationKind.MOVE else 0.0) + leave.occupy
        found.append(at + leave.tail)
    return found


def times(lane: list[tuple[OperationKind, Leave]], busy: float) -> list[float | None]:
    operations = [operation(n, kind) for n, (kind, _) in enumerate(lane)]
    known = {o.id: leave for o, (_, leave) in zip(operations, lane, strict=True)}
    return [o.ahead for o in with_ahead(operations, known, {A: busy}, NOW)]


@given(LANES, SECONDS)
def test_nobody_is_late_for_the_sake_of_others_who_are_copied(lane: list[tuple[OperationKind, Leave]], busy: float) -> None:
    found = times(lane, busy)
    moves = [n for n, (kind, _) in enumerate(lane) if kind is OperationKind.MOVE]
    assert all(found[n] is None for n in range(len(lane)) if n not in moves), "what is parked is in no hurry to run again"
    if all(leave.limit is None for _, leave in lane):
        assert found == [None] * len(lane)
        return
    given = [seconds for n in moves if (seconds := found[n]) is not None]
    assert len(given) == len(moves)
    share = max(given, default=0.0)
    before, after = ends(lane, busy, 0.0), ends(lane, busy, share / PART)
    for was, now, (_, leave) in zip(before, after, lane, strict=True):
        if leave.limit is not None and was <= leave.limit:
            assert now <= leave.limit + 0.05, "rounded to milliseconds, eight times"


@given(LANES, SECONDS)
def test_all_of_the_time_is_given_of_which_there_is_some(lane: list[tuple[OperationKind, Leave]], busy: float) -> None:
    """With a second more for each somebody would be late, where nobody waits for anything but the node."""
    lane = [(kind, Leave(occupy=one.occupy, tail=one.tail, limit=one.limit, sized=True)) for kind, one in lane]
    share = max((seconds for seconds in times(lane, busy) if seconds is not None), default=None)
    if share is None:
        return
    more = ends(lane, busy, share / PART + 1.0)
    bound = [end for n, (end, (_, leave)) in enumerate(zip(more, lane, strict=True)) if leave.limit is not None and end > leave.limit]
    first = next((n for n, (kind, _) in enumerate(lane) if kind is OperationKind.MOVE), len(lane))
    assert bound or all(leave.limit is None for _, leave in lane[first:])


@given(LANES, SECONDS)
def test_where_a_size_is_not_known_nobody_knows_what_time_there_is(lane: list[tuple[OperationKind, Leave]], busy: float) -> None:
    kind, one = lane[-1]
    blind = Leave(occupy=one.occupy, tail=one.tail, limit=NOW + 900, sized=False)
    assert set(times([*lane[:-1], (kind, blind)], busy)) <= {0.0, None}
