"""A park: like a move up to the commit, but the worker then waits in its image."""

from shunter.act.back import thaw_back, thaw_soon
from shunter.act.copies import send_copies
from shunter.act.counting import change, changed, may_change, taken_back
from shunter.act.drive import Machine
from shunter.act.housing import home_of, remembered
from shunter.act.move import fence, freeze, leaving, release, release_refused, source_of
from shunter.act.run import Run
from shunter.act.starting import over, start, succeeded
from shunter.model.errors import Problem
from shunter.model.ids import NodeId, node_of
from shunter.model.operation import Step


def _first(run: Run) -> NodeId | None:
    """The node that the image goes to while it is written; None when it is to stay where it is."""
    home = node_of(source_of(run))
    first = run.planned.copies[0] if run.planned.copies else home
    return None if first == home else first


async def _check(run: Run) -> None:
    source = source_of(run)
    left = home_of(run, (await leaving(run, source)).worker)
    await may_change(run, left)
    if left is not None:
        await remembered(run, left)
    run.step(Step.PREPARED, left=left)


async def _freeze(run: Run) -> None:
    await freeze(run, _first(run))


async def _copy(run: Run) -> None:
    """A further copy that can't be made doesn't keep the worker from being parked: the first one is whole. The outcome says so."""
    home = node_of(source_of(run))
    missing = await send_copies(run, home, tuple(n for n in run.planned.copies[1:] if n != home))
    run.step(Step.COPIED, missing)


async def _commit(run: Run) -> None:
    run.step(Step.COMMITTING, run.record.problem)


async def _release(run: Run) -> None:
    short = run.record.problem if run.record.problem and run.record.problem.code == "SH518" else None
    await change(run)
    await release(run)
    await over(run, short)


async def _done(run: Run) -> None:
    """Also for a worker that died before it was ended: it has left all the same."""
    why = await changed(run)
    await over(run, why, counted=why is None)


async def _roll_back(run: Run) -> None:
    if run.had(Step.COMMITTING):
        await thaw_soon(run, source_of(run))  # whoever keeps the pool's number may take its time
        await taken_back(run)
    await thaw_back(run, source_of(run), None)


async def _refused(run: Run, why: Problem) -> None:
    if run.record.step is Step.STARTING:
        succeeded(run, why)
    else:
        await release_refused(run, why)


PARK = Machine(
    {
        Step.INTENDED: _check,
        Step.PREPARED: fence,
        Step.FENCED: _freeze,
        Step.FROZEN: _copy,
        Step.COPIED: _commit,
        Step.COMMITTING: _release,
        Step.RELEASED: _done,
        Step.STARTING: start,
        Step.ROLLING_BACK: _roll_back,
    },
    committed=frozenset({Step.COMMITTING, Step.RELEASED, Step.STARTING}),
    refused=_refused,
    source=source_of,
    destination=lambda _run: None,
)
