"""A restore: a parked or lost worker comes back from an image. There is no other copy, so what matters is that there never are two."""

from shunter.act.back import bring, end_copy, joined, lost_with, show
from shunter.act.copies import holder_of, send
from shunter.act.drive import Machine
from shunter.act.move import destination_of
from shunter.act.run import Run, problem, spec_of
from shunter.model.errors import Problem, Rejected, Retry, ShunterError, Stalled
from shunter.model.ids import NodeId, node_of
from shunter.model.operation import Status, Step


async def _prepare(run: Run) -> None:
    slot = destination_of(run)
    node = node_of(slot)
    await _nowhere_alive(run)
    holder = await holder_of(run, node)
    report = await run.agent(holder).report(run.times.quick)
    info = next(i for i in report.images if i.id == run.image)
    await run.preflight(slot, destination=True, facts=dict(info.facts), size=info.bytes)
    if holder != node:
        await send(run, holder, node)
    await run.ask(run.at(slot).prepare(run.order, slot, spec_of(report, run), run.times.quick))
    run.step(Step.PREPARED, measured=run.measure(bytes=info.bytes if holder != node else 0))


async def _nowhere_alive(run: Run) -> None:
    """No agent that answers has a live process of the worker. Those that don't answer are the planner's business: it says `absent`."""
    for node in sorted(run.parts.agents):
        if run.parts.gone(node):
            continue
        try:
            report = await run.agent(node).report(run.times.quick)
        except ShunterError:
            continue
        _refuse_if_alive(run, node, [w.state for w in report.workers if w.spec.worker == run.planned.worker])


def _refuse_if_alive(run: Run, node: NodeId, states: list[str]) -> None:
    if any(state not in ("lost", "parked") for state in states):
        raise Rejected(problem("SH510", f"the worker is alive on {node}", "Leave it there, and plan again", run.planned.worker))


async def _restore(run: Run) -> None:
    slot = destination_of(run)
    reply = await run.ask(run.at(slot).restore(run.order, slot, run.image, run.times.hold, run.bulk))
    run.step(Step.HELD, measured=run.measure(restore=reply.restore_s))


async def _commit(run: Run) -> None:
    run.step(Step.COMMITTING)


async def _resume(run: Run) -> None:
    slot = destination_of(run)
    if run.parts.gone(node_of(slot)):
        raise Rejected(problem("SH515", "the destination is gone", "It is restored somewhere else", node_of(slot)))
    await run.ask(run.at(slot).resume(run.order, run.times.quick))
    run.step(Step.RESUMED)


async def _unfence(run: Run) -> None:
    if lost := lost_with(run, destination_of(run)):
        run.finish(Status.FAILED, lost, run.image)
        return
    alive, wrong = await show(run, destination_of(run))
    if wrong is not None:
        run.finish(Status.SUCCEEDED if alive else Status.FAILED, wrong, run.image)
        return
    run.step(Step.UNFENCED)


async def _done(run: Run) -> None:
    run.finish(Status.SUCCEEDED, image=run.image)


async def _roll_back(run: Run) -> None:
    """It was never told to run: a held copy that can't be ended now dies when its hold ends. The image stays."""
    slot = destination_of(run)
    try:
        await run.ask(run.at(slot).abort(run.order, run.times.quick))
    except Stalled:
        raise
    except ShunterError:
        pass
    run.finish(Status.FAILED, run.record.problem, run.image)


async def _refused(run: Run, why: Problem) -> None:
    """The copy wouldn't run: restore it once more, and leave it in its image if that fails too."""
    slot = destination_of(run)
    if await end_copy(run, slot):
        run.step(Step.RESUMED)
        return
    try:
        if run.parts.gone(node_of(slot)):
            raise Rejected(why)
        await bring(run, slot)
    except (Rejected, Retry) as again:
        if await end_copy(run, slot):
            run.step(Step.RESUMED)
            return
        run.finish(Status.FAILED, joined(why, again.problem if again.problem != why else None), run.image)
        return
    run.step(Step.RESUMED)


RESTORE = Machine(
    {
        Step.INTENDED: _prepare,
        Step.PREPARED: _restore,
        Step.HELD: _commit,
        Step.COMMITTING: _resume,
        Step.RESUMED: _unfence,
        Step.UNFENCED: _done,
        Step.ROLLING_BACK: _roll_back,
    },
    committed=frozenset({Step.COMMITTING, Step.RESUMED, Step.UNFENCED}),
    refused=_refused,
    source=lambda _run: None,
    destination=destination_of,
)
