"""The guard, over everything that an order and a journal can say."""

import pytest
from agent_fakes import PROCESS, SPEC
from hypothesis import given
from hypothesis import strategies as st
from shunter.model.errors import Rejected, Retry, ShunterError
from shunter_agent import guard
from shunter_agent.guard import Asked, Seen
from shunter_agent.journal import Entry, Reservation, WorkerRow

STEPS = ("prepare", "fence", "unfence", "freeze", "thaw", "release", "restore", "resume", "abort", "checkpoint", "drain")
STATES = ("begun", "done", "failed", "undone")
operations = st.sampled_from(["op", "other"])
small = st.integers(0, 3)


@st.composite
def seen(draw: st.DrawFn) -> Seen:
    steps = draw(st.dictionaries(st.sampled_from(STEPS), st.sampled_from(STATES)))
    row = draw(
        st.none()
        | st.builds(
            WorkerRow,
            spec=st.just(SPEC),
            process=st.just(PROCESS),
            slot=st.just("n/0"),
            incarnation=small,
            state=st.sampled_from(["running", "fenced", "frozen"]),
            operation=st.sampled_from(["", "op", "other"]),
            epoch=small,
        )
    )
    kept = st.builds(
        Reservation, slot=st.just("n/0"), operation=st.just("op"), epoch=small, spec=st.just(SPEC), incarnation=small, at=st.just(0.0)
    )
    return Seen(
        epoch=draw(small),
        steps={step: Entry(operation="op", step=step, state=state, at=0.0, worker="w", reply=b"r") for step, state in steps.items()},
        worker=row,
        reservation=draw(st.none() | kept),
        holding=draw(st.booleans()),
    )


asked = st.builds(Asked, operation=st.just("op"), epoch=small, plan=st.just("p"), worker=st.just("w"), incarnation=small)


def allowed(step: str, order: Asked, known: Seen) -> bool:
    try:
        guard.check_head(order, known)
        guard.check_step(step, order, known)
    except ShunterError:
        return False
    return True


@given(order=asked, known=seen(), step=st.sampled_from(STEPS))
def test_no_order_of_an_old_leader_gets_through(order: Asked, known: Seen, step: str) -> None:
    if order.epoch < known.epoch:
        with pytest.raises(Rejected, match="SH601"):
            guard.check_head(order, known)
        assert not allowed(step, order, known)
    else:
        guard.check_head(order, known)


@given(order=asked, known=seen())
def test_release_ends_only_a_copy_that_this_operation_holds_frozen(order: Asked, known: Seen) -> None:
    if allowed("release", order, known):
        assert known.holding
        assert known.steps["freeze"].state == "done"
        assert known.worker is not None
        assert known.worker.incarnation == order.incarnation


@given(order=asked, known=seen())
def test_resume_lets_only_a_held_copy_run(order: Asked, known: Seen) -> None:
    if allowed("resume", order, known):
        assert known.holding
        assert known.steps["restore"].state == "done"
        assert known.reservation is not None


@given(order=asked, known=seen(), step=st.sampled_from(sorted(guard.AT_SOURCE)))
def test_a_worker_that_stands_still_belongs_to_its_operation_alone(order: Asked, known: Seen, step: str) -> None:
    row = known.worker
    if row is not None and row.state == "frozen" and row.operation == "other":
        assert not allowed(step, order, known)


@given(order=asked, known=seen(), step=st.sampled_from(sorted(guard.AT_SOURCE)))
def test_another_operation_takes_over_only_with_a_newer_epoch(order: Asked, known: Seen, step: str) -> None:
    row = known.worker
    if row is not None and row.operation == "other" and allowed(step, order, known):
        assert order.epoch > row.epoch


@given(order=asked, known=seen(), step=st.sampled_from(sorted(guard.AT_SOURCE)))
def test_no_order_reaches_another_incarnation(order: Asked, known: Seen, step: str) -> None:
    if allowed(step, order, known):
        assert known.worker is not None
        assert known.worker.incarnation == order.incarnation


@given(known=seen(), step=st.sampled_from(STEPS))
def test_only_what_is_done_is_answered_from_the_journal(known: Seen, step: str) -> None:
    entry = known.steps.get(step)
    assert (guard.answered(step, known) is not None) == (entry is not None and entry.state == "done")


def test_the_ordinary_move_gets_through() -> None:
    order = Asked(operation="op", epoch=2, plan="p", worker="w", incarnation=1)
    row = WorkerRow(spec=SPEC, process=PROCESS, slot="n/0", incarnation=1)

    def entry(step: str) -> dict[str, Entry]:
        return {step: Entry(operation="op", step=step, state="done", at=0.0, worker="w")}

    assert allowed("fence", order, Seen(epoch=2, steps={}, worker=row))
    assert allowed("freeze", order, Seen(epoch=2, steps=entry("fence"), worker=row))
    assert allowed("release", order, Seen(epoch=2, steps=entry("freeze"), worker=row, holding=True))
    kept = Reservation(slot="n/0", operation="op", epoch=2, spec=SPEC, incarnation=2, at=0.0)
    assert allowed("restore", order, Seen(epoch=2, steps=entry("prepare"), reservation=kept))
    assert allowed("resume", order, Seen(epoch=2, steps=entry("restore"), reservation=kept, holding=True))
    arrived = WorkerRow(spec=SPEC, process=PROCESS, slot="n/0", incarnation=2, operation="op", epoch=2)
    assert allowed("unfence", order, Seen(epoch=2, steps=entry("resume"), worker=arrived))


def test_a_busy_worker_is_a_reason_to_try_again() -> None:
    row = WorkerRow(spec=SPEC, process=PROCESS, slot="n/0", incarnation=0, operation="other", epoch=2)
    with pytest.raises(Retry, match="SH605"):
        guard.check_step("fence", Asked(operation="op", epoch=2, plan="p", worker="w", incarnation=0), Seen(epoch=2, steps={}, worker=row))
