"""A checkpoint: an image of a worker that runs on, its copies on other nodes, and one in the archive."""

from shunter.act.back import joined
from shunter.act.copies import archive, send_copies
from shunter.act.drive import Machine
from shunter.act.move import source_of
from shunter.act.run import Run, problem
from shunter.model.errors import Problem
from shunter.model.ids import NodeId, node_of
from shunter.model.operation import Status, Step


def _others(run: Run) -> tuple[NodeId, ...]:
    home = node_of(source_of(run))
    return tuple(n for n in run.planned.copies if n != home)


async def _dump(run: Run) -> None:
    slot = source_of(run)
    await run.preflight(slot, destination=False, facts={}, size=0)
    run.may_go_on()
    reply = await run.ask(run.at(slot).checkpoint(run.order, run.image, run.bulk))
    stopped = max(0.0, reply.thawed_at - reply.frozen_at) if reply.thawed_at and reply.frozen_at else None
    run.step(Step.DUMPED, measured=run.measure(stopped=stopped, dump=reply.dump_s, bytes=reply.image.bytes))


async def _copy(run: Run) -> None:
    missing = await send_copies(run, node_of(source_of(run)), _others(run))
    if missing is not None:
        run.finish(Status.FAILED, missing, run.image)
        return
    run.step(Step.COPIED)


async def _done(run: Run) -> None:
    """One that can't be put into the archive is an image all the same: the outcome says so."""
    why = await archive(run, source_of(run)) if run.planned.archive else None
    run.finish(Status.SUCCEEDED, why, run.image)


async def _roll_back(run: Run) -> None:
    """There is nothing to take back: an agent lets the worker run on whatever becomes of its image. What there is decides how it ended."""
    view = await run.view(source_of(run))
    if view is None:
        run.finish(Status.ROLLED_BACK, joined(run.record.problem, _unknown(run)))
    elif run.image in view.images:
        run.step(Step.DUMPED)  # it was refused, and done all the same
    elif view.copy == "none":
        died = problem("SH516", "the worker died before its image was taken", "It is restored from its newest image", run.planned.worker)
        run.finish(Status.FAILED, joined(run.record.problem, died))
    else:
        run.finish(Status.ROLLED_BACK, run.record.problem)


def _unknown(run: Run) -> Problem:
    node = node_of(source_of(run))
    return problem("SH514", f"{node} doesn't answer: whether the worker runs on, and has an image, isn't known", "Look at the node", node)


async def _refused(run: Run, why: Problem) -> None:
    run.finish(Status.FAILED, why, run.image)


CHECKPOINT = Machine(
    {Step.INTENDED: _dump, Step.DUMPED: _copy, Step.COPIED: _done, Step.ROLLING_BACK: _roll_back},
    committed=frozenset({Step.DUMPED, Step.COPIED}),
    refused=_refused,
    source=source_of,
    destination=lambda _run: None,
)
