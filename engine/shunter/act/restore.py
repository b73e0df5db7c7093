"""A restore: a parked or lost worker comes back from an image. There is no other copy, so what matters is that there never are two."""

from shunter.act.arrive import commit, destination_of, done, once_more, restore, resume, unfence
from shunter.act.back import arrived_after_all, nowhere_alive
from shunter.act.copies import find, send
from shunter.act.counting import change, may_change, taken_back
from shunter.act.drive import Machine
from shunter.act.housing import room, withdrawn
from shunter.act.run import Run
from shunter.model.errors import Problem, ShunterError, Stalled
from shunter.model.ids import node_of
from shunter.model.operation import Status, Step


async def _prepare(run: Run) -> None:
    slot = destination_of(run)
    node = node_of(slot)
    await nowhere_alive(run)
    found = await find(run, node)
    info, spec = found.info, found.spec
    needed = info.privileges if info.HasField("privileges") else None
    await run.preflight(slot, destination=True, facts=dict(info.facts), size=info.bytes, spec=spec, privileges=needed)
    await may_change(run, None)
    run.may_go_on()
    if found.holder not in (node, None):
        await send(run, found.holder, node)
    pod = await room(run, slot, None, spec)
    await run.ask(run.at(slot).prepare(run.order, slot, spec, run.times.quick, pod))
    run.step(Step.PREPARED, measured=run.measure(bytes=info.bytes if found.holder != node else 0), pod=pod)


async def _commit(run: Run) -> None:
    """Counted before it runs: a pod too many is one that goes."""
    await change(run)
    await commit(run)


async def _roll_back(run: Run) -> None:
    """A held copy that can't be ended now dies when its hold ends, unless it was told to run. The image stays."""
    slot = destination_of(run)
    try:
        await run.ask(run.at(slot).abort(run.order, run.times.quick))
    except Stalled:
        raise
    except ShunterError:
        pass
    if await arrived_after_all(run, slot):
        return
    if run.had(Step.HELD):
        await taken_back(run)
    run.finish(Status.FAILED, run.record.problem, run.image)
    await withdrawn(run)


async def _refused(run: Run, why: Problem) -> None:
    """The copy wouldn't run. When it won't the second time either, it is left in its image."""
    still = await once_more(run, why)
    if still is not None:
        await taken_back(run)
        run.finish(Status.FAILED, still, run.image)
        await withdrawn(run)


RESTORE = Machine(
    {
        Step.INTENDED: _prepare,
        Step.PREPARED: restore,
        Step.HELD: _commit,
        Step.COMMITTING: resume,
        Step.RESUMED: unfence,
        Step.UNFENCED: done,
        Step.ROLLING_BACK: _roll_back,
    },
    committed=frozenset({Step.COMMITTING, Step.RESUMED, Step.UNFENCED}),
    refused=_refused,
    source=lambda _run: None,
    destination=destination_of,
)
