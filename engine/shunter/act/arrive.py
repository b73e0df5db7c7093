"""Arriving in a slot: what a move and a restore have in common once an image is there, up to the router's seeing the worker again."""

from shunter.act.back import ENDED, bring, end_copy, joined, lost_with, show
from shunter.act.housing import arrived, arrived_soon, gone
from shunter.act.run import Run, problem
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import SlotId, node_of
from shunter.model.operation import Status, Step
from shunter.wire import agent_pb2 as pb


def destination_of(run: Run) -> SlotId:
    """The slot that the worker comes to. Raises Rejected SH510 for an operation that names none."""
    if run.planned.to_slot is None:
        raise Rejected(problem("SH510", "it doesn't say which slot the worker is to come to", "Plan again", run.record.id))
    return run.planned.to_slot


async def restore(run: Run) -> None:
    """To HELD: the copy is there, and doesn't run."""
    slot = destination_of(run)
    reply = await run.ask(run.at(slot).restore(run.order, slot, run.image, run.times.hold, run.bulk, run.record.pod))
    run.step(Step.HELD, measured=run.measure(restore=reply.restore_s))


async def commit(run: Run) -> None:
    """HELD to COMMITTING."""
    run.step(Step.COMMITTING)


async def resume(run: Run) -> None:
    """To RESUMED: the copy runs. No other one may be able to. Raises Rejected SH515 when the node is gone, and what the agent says."""
    slot = destination_of(run)
    if run.parts.gone(node_of(slot)):
        raise Rejected(problem("SH515", "the destination is gone", "The image is restored where there still is one", node_of(slot)))
    _resumed(run, await run.ask(run.at(slot).resume(run.order, run.times.quick)))


async def once_more(run: Run, why: Problem) -> Problem | None:
    """The copy wouldn't run: restore it there once more.

    None when it runs, which is durable then. Otherwise why it doesn't, `why` first, and no copy is left there. Raises Unresolved, Unknown.
    """
    slot = destination_of(run)
    if await end_copy(run, slot):
        _resumed(run, None)
        return None
    if run.parts.gone(node_of(slot)):
        return why
    try:
        reply = await bring(run, slot)
    except (Rejected, Retry) as again:
        if await end_copy(run, slot):
            _resumed(run, None)
            return None
        return joined(why, again.problem if again.problem != why else None)
    _resumed(run, reply)
    return None


async def unfence(run: Run) -> None:
    """RESUMED to UNFENCED, or to the end when the worker died there meanwhile or the router won't see it."""
    slot = destination_of(run)
    if lost := lost_with(run, slot):
        await gone(run)
        run.finish(Status.FAILED, lost, run.image)
        return
    await arrived_soon(run)
    alive, wrong = await show(run, slot)
    if wrong is not None and wrong.code != ENDED:
        await (arrived(run) if alive else gone(run))
        run.finish(Status.SUCCEEDED if alive else Status.FAILED, wrong, run.image)
        return
    run.step(Step.UNFENCED, wrong)


async def done(run: Run) -> None:
    """UNFENCED to the end. The image stays, on every node that has it: one of them may not have it on its disk yet."""
    await arrived(run)
    told = run.record.problem
    run.finish(Status.SUCCEEDED, told if told is not None and told.code == ENDED else None, run.image)


def _resumed(run: Run, reply: pb.ResumeReply | None) -> None:
    """`reply` is None when it runs, but never said since when."""
    frozen = run.record.frozen_at
    stopped = max(0.0, reply.running_at - frozen) if reply and frozen is not None and reply.running_at else None
    run.step(Step.RESUMED, measured=run.measure(stopped=stopped))
