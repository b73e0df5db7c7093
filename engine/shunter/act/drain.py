"""A drain: out of the router, until nothing is served, then the end. No image is taken, so the worker ends only once it is idle."""

from shunter.act.back import fenced, joined, must_view, show
from shunter.act.counting import changed, may_change
from shunter.act.drive import Machine
from shunter.act.housing import home_of, shown_soon
from shunter.act.move import fence, source_of
from shunter.act.port import CopyView
from shunter.act.run import Run, late_problem, problem, row_of
from shunter.act.starting import over, start
from shunter.model.errors import Problem, Rejected
from shunter.model.operation import Status, Step


async def _begin(run: Run) -> None:
    if run.parts.places is not None:
        left = home_of(run, row_of(await run.at(source_of(run)).report(run.times.quick), run))
        await may_change(run, left)
        if left is not None:
            run.step(Step.INTENDED, left=left)
    await fence(run)


async def _drain(run: Run) -> None:
    now = run.parts.clock()
    left = run.planned.deadline - now if run.planned.deadline is not None else run.times.drain
    if left <= 0:
        raise Rejected(late_problem(run.record.id))
    await run.ask(run.at(source_of(run)).drain(run.order, left))
    run.step(Step.RELEASED)


async def _done(run: Run) -> None:
    """Where its pool can't be kept at one less, the worker has left all the same, and another is started in its place."""
    why = await changed(run)
    await over(run, why, counted=why is None)


async def _roll_back(run: Run) -> None:
    """Back to the router, unless its node is going: new requests would only be lost there."""
    slot = source_of(run)
    view = await must_view(run, slot)
    if view.copy == "none" and view.steps.get("drain") == "done":
        run.step(Step.RELEASED)  # it was refused, and done all the same
        return
    if view.copy == "none":
        died = problem("SH516", "the worker died before it was drained", "It is restored from its newest image", run.planned.worker)
        run.finish(Status.FAILED, joined(run.record.problem, died))
        return
    if run.planned.lane == "voluntary":
        await shown_soon(run, shown=True)
    alive, wrong = await show(run, slot) if run.planned.lane == "voluntary" else (True, _left_out(run, view))
    run.finish(Status.ROLLED_BACK if alive else Status.FAILED, joined(run.record.problem, wrong))


def _left_out(run: Run, view: CopyView) -> Problem | None:
    if not fenced(view):
        return None
    what = "the worker runs, but the router doesn't see it: its node is going, and new requests would be lost there"
    return problem("SH519", what, "Nothing to do while the node is going; else restart the worker's registration", run.planned.worker)


async def _refused(run: Run, why: Problem) -> None:
    run.finish(Status.SUCCEEDED, why)


DRAIN = Machine(
    {Step.INTENDED: _begin, Step.FENCED: _drain, Step.RELEASED: _done, Step.STARTING: start, Step.ROLLING_BACK: _roll_back},
    committed=frozenset({Step.RELEASED, Step.STARTING}),
    refused=_refused,
    source=source_of,
    destination=lambda _run: None,
)
