"""A move: both copies stand still before the source's is ended, and the destination's runs only after that is confirmed."""

from shunter.act.back import bring, end_copy, image_back, joined, lost_with, must_view, show, thaw_back
from shunter.act.drive import Machine
from shunter.act.run import Run, problem, spec_of
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import NodeId, SlotId, node_of
from shunter.model.operation import Status, Step
from shunter.wire import agent_pb2 as pb


def source_of(run: Run) -> SlotId:
    """The slot that the worker leaves. Raises Rejected SH510 for an operation that names none."""
    slot = run.planned.from_slot or run.planned.expect.at
    if slot is None:
        raise Rejected(problem("SH510", "it doesn't say which slot the worker is in", "Plan again", run.record.id))
    return slot


def destination_of(run: Run) -> SlotId:
    """The slot that the worker comes to. Raises Rejected SH510 for an operation that names none."""
    if run.planned.to_slot is None:
        raise Rejected(problem("SH510", "it doesn't say which slot the worker is to come to", "Plan again", run.record.id))
    return run.planned.to_slot


async def _prepare(run: Run) -> None:
    source, destination = source_of(run), destination_of(run)
    report = await run.at(source).report(run.times.quick)
    spec = spec_of(report, run)
    checked = await run.preflight(source, destination=False, facts={}, size=0)
    await run.preflight(destination, destination=True, facts=dict(checked.facts or report.facts), size=checked.bytes)
    await run.ask(run.at(destination).prepare(run.order, destination, spec, run.times.quick))
    run.step(Step.PREPARED)


async def fence(run: Run) -> None:
    """PREPARED to FENCED, at the source."""
    await run.ask(run.at(source_of(run)).fence(run.order, run.times.quick))
    run.step(Step.FENCED)


async def freeze(run: Run, to: NodeId | None) -> None:
    """FENCED to FROZEN: the image is whole on node `to` (None: where the worker is)."""
    peer: pb.Peer | None = await run.peer(to) if to else None
    reply = await run.ask(run.at(source_of(run)).freeze(run.order, run.image, peer, run.times.hold, run.bulk))
    known = run.measure(dump=reply.dump_s, send=reply.send_s if to else None, bytes=reply.image.bytes)
    run.step(Step.FROZEN, frozen_at=reply.frozen_at or None, measured=known)


async def _freeze(run: Run) -> None:
    await freeze(run, node_of(destination_of(run)))


async def _restore(run: Run) -> None:
    slot = destination_of(run)
    reply = await run.ask(run.at(slot).restore(run.order, slot, run.image, run.times.hold, run.bulk))
    run.step(Step.HELD, measured=run.measure(restore=reply.restore_s))


async def _commit(run: Run) -> None:
    run.step(Step.COMMITTING)


async def release(run: Run) -> None:
    """COMMITTING to RELEASED: the source's copy is dead."""
    await run.ask(run.at(source_of(run)).release(run.order, run.times.quick))
    run.step(Step.RELEASED)


async def _resume(run: Run) -> None:
    slot = destination_of(run)
    if run.parts.gone(node_of(slot)):
        raise Rejected(problem("SH515", "the destination is gone", "The image is restored at the source", node_of(slot)))
    _resumed(run, await run.ask(run.at(slot).resume(run.order, run.times.quick)))


def _resumed(run: Run, reply: pb.ResumeReply | None) -> None:
    frozen = run.record.frozen_at
    stopped = max(0.0, reply.running_at - frozen) if reply and frozen is not None and reply.running_at else None
    run.step(Step.RESUMED, measured=run.measure(stopped=stopped))


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
    """Both nodes keep the image: the destination's agent brings its copy to the disk only after this. Retention takes it from both."""
    run.finish(Status.SUCCEEDED, image=run.image)


async def _roll_back(run: Run) -> None:
    if run.had(Step.RELEASED):
        await image_back(run, source_of(run))
    else:
        await thaw_back(run, source_of(run), destination_of(run))


async def release_refused(run: Run, why: Problem) -> None:
    """Nothing was ended by the refused order. Back, unless the worker died meanwhile: then its image is the worker."""
    view = await must_view(run, source_of(run))
    run.step(Step.RELEASED if view.copy == "none" else Step.ROLLING_BACK, why)


async def _refused(run: Run, why: Problem) -> None:
    if run.record.step is Step.COMMITTING:
        await release_refused(run, why)
    elif run.record.step is Step.RELEASED:
        await _once_more(run, why)
    else:
        raise ValueError(f"nothing is refused after {run.record.step.value}")


async def _once_more(run: Run, why: Problem) -> None:
    """The destination wouldn't run its copy: restore it there once more; if that fails too, go back to the source's image."""
    slot = destination_of(run)
    if await end_copy(run, slot):
        run.step(Step.RESUMED)
        return
    try:
        if run.parts.gone(node_of(slot)):
            raise Rejected(why)
        reply = await bring(run, slot)
    except (Rejected, Retry) as again:
        if await end_copy(run, slot):
            run.step(Step.RESUMED)
            return
        run.step(Step.ROLLING_BACK, joined(why, again.problem if again.problem != why else None))
        return
    _resumed(run, reply)


MOVE = Machine(
    {
        Step.INTENDED: _prepare,
        Step.PREPARED: fence,
        Step.FENCED: _freeze,
        Step.FROZEN: _restore,
        Step.HELD: _commit,
        Step.COMMITTING: release,
        Step.RELEASED: _resume,
        Step.RESUMED: _unfence,
        Step.UNFENCED: _done,
        Step.ROLLING_BACK: _roll_back,
    },
    committed=frozenset({Step.COMMITTING, Step.RELEASED, Step.RESUMED, Step.UNFENCED}),
    refused=_refused,
    source=source_of,
    destination=destination_of,
)
