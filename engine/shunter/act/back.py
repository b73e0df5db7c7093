"""Ways back: to the frozen copy in place while it lives, to its image once it doesn't."""

from typing import Final

from shunter.act.housing import arrived, arrived_soon, gone, room_again, shown_soon
from shunter.act.port import CopyView
from shunter.act.resolve import arrived_at
from shunter.act.run import Run, Unresolved, problem, spec_of
from shunter.model.errors import Problem, Rejected, Retry, ShunterError, Stalled, Unknown
from shunter.model.ids import ImageId, NodeId, SlotId, node_of
from shunter.model.operation import Status, Step
from shunter.model.plan import OperationKind
from shunter.wire import agent_pb2 as pb

_TRIES: Final = 2
"""How often an image is restored in one slot before that is given up."""


async def thaw_back(run: Run, source: SlotId, destination: SlotId | None) -> None:
    """Nothing was committed: end the held copy, let the source run on in place, show it to the router again."""
    if destination is not None:
        await _abort_if_possible(run, destination)
    view = await _source_when_known(run, source)
    if view is None:
        if may_be_fenced(run):
            # It may be fenced, and nobody but us puts it back: left active, this is settled once its agent answers or it is declared gone.
            raise Unresolved(unanswered(node_of(source)))
        run.finish(Status.ROLLED_BACK, joined(run.record.problem, _untouched(node_of(source))))
        return
    if run.had(Step.FENCED) and view.copy != "none":
        await run.insist(lambda: run.at(source).thaw(run.order, run.bulk))
        view = await must_view(run, source)
    if view.copy == "none":
        if destination is not None and await arrived_after_all(run, destination):
            return
        image = await _image_left(run, view, destination)
        if image is not None:
            await gone(run)  # the worker is in its image: what its pod starts again isn't it
        run.finish(Status.FAILED, joined(run.record.problem, _died(run)), image)
        return
    if run.had(Step.FENCED) and view.copy != "running":
        raise Unresolved(problem("SH514", f"the source's copy is {view.copy}, not running", "It is asked again", run.planned.worker))
    await shown_soon(run, shown=True)
    alive, wrong = await show(run, source) if may_be_fenced(run) else (True, None)
    image = None if alive else await _image_left(run, view, destination)
    if image is not None:
        await gone(run)  # as above
    run.finish(Status.ROLLED_BACK if alive else Status.FAILED, joined(run.record.problem, wrong), image)


async def arrived_after_all(run: Run, destination: SlotId) -> bool:
    """Whether the worker has come to its destination although that isn't in the record: it is then, and the operation goes on from there.

    Raises Unresolved where only the destination could say it.
    """
    there = await run.view(destination)
    if there is None and run.taken_up and run.planned.lane == "involuntary":
        raise Unresolved(unanswered(node_of(destination)))
    step = arrived_at(run.record, there)
    if step is not None:
        run.step(step)
    return step is not None


async def thaw_soon(run: Run, source: SlotId) -> None:
    """Let the source's copy run on, once, if that can be said now: `thaw_back` sees to it again."""
    try:
        await run.ask(run.at(source).thaw(run.order, run.bulk))
    except Stalled:
        raise
    except ShunterError:
        return


def may_be_fenced(run: Run) -> bool:
    """Whether the source may have been told to fence it: of a move that can't wait, before it is known to be prepared."""
    hurried = run.planned.kind is OperationKind.MOVE and run.planned.lane == "involuntary"
    return run.had(Step.PREPARED) or (hurried and not run.untouched)


async def bring(run: Run, slot: SlotId) -> pb.ResumeReply:
    """Restore the operation's image in `slot` and let it run. The copies that the operation itself made must be known dead.

    Raises Rejected SH510 if the worker lives on another node: an engine that died with later operations in memory only left that behind.
    Else raises Rejected, Retry or Unknown as the agent does.
    """
    await nowhere_alive(run, but=node_of(slot))
    agent = run.at(slot)
    spec = spec_of(await agent.report(run.times.quick), run)
    pod = await room_again(run, slot, spec)
    await run.ask(agent.prepare(run.order, slot, spec, run.times.quick, pod))
    await run.ask(agent.restore(run.order, slot, run.image, run.times.hold, run.bulk, pod))
    return await run.ask(agent.resume(run.order, run.times.quick))


async def nowhere_alive(run: Run, but: NodeId | None = None) -> None:
    """Raises Rejected SH510 if an agent that answers has a live process of the worker. Those that don't answer are the planner's business:
    it says `absent`. `but` isn't asked.
    """
    for node in sorted(run.parts.agents):
        if node == but or run.parts.gone(node):
            continue
        try:
            report = await run.agent(node).report(run.times.quick)
        except ShunterError:
            continue
        states = [worker.state for worker in report.workers if worker.spec.worker == run.planned.worker]
        if any(state not in ("lost", "parked") for state in states):
            raise Rejected(problem("SH510", f"the worker is alive on {node}", "Leave it there, and plan again", run.planned.worker))


async def end_copy(run: Run, slot: SlotId) -> bool:
    """Make sure that the slot's node has no held copy, nor will have one run by an order that is still on its way.

    True when its copy turns out to run already. Raises Unresolved while the agent doesn't say.
    """
    if run.parts.gone(node_of(slot)):
        return False
    await run.insist(lambda: run.at(slot).abort(run.order, run.times.quick))
    view = await must_view(run, slot)
    if view.copy in ("held", "frozen"):
        raise Unresolved(problem("SH514", f"a copy of it on {node_of(slot)} won't end", "It is asked again", run.planned.worker))
    return view.copy == "running"


def lost_with(run: Run, slot: SlotId) -> Problem | None:
    """What to say when the worker ran in `slot`, whose node is now gone for good; None while it isn't."""
    if not run.parts.gone(node_of(slot)):
        return None
    return problem(
        "SH515", f"the worker ran on {node_of(slot)}, which is gone", "It is restored from an image that is left", run.planned.worker
    )


ENDED: Final = "SH574"


async def show(run: Run, slot: SlotId) -> tuple[bool, Problem | None]:
    """Let the router see the worker again: whether it lives, and what is wrong, None if nothing is. Raises Unresolved."""
    said = pb.Done()

    async def unfence() -> None:
        nonlocal said
        said = await run.at(slot).unfence(run.order, run.times.quick)

    refused = await run.insist(unfence)
    view = await must_view(run, slot)  # the answer may be an old one, from before it died
    because = f": {refused.code} {refused.what}" if refused else ""
    if view.copy == "none":
        what = f"the worker died on {node_of(slot)} before it was known that the router sees it again{because}"
        return False, problem("SH516", what, "It is restored from its newest image", run.planned.worker)
    if refused is None or not fenced(view):
        return True, _ended(run, said)
    return True, problem("SH519", f"the worker runs, but the router doesn't see it{because}", refused.remedy, run.planned.worker)


def _ended(run: Run, said: pb.Done) -> Problem | None:
    """SH574: nothing that the worker was doing goes on, as far as can be seen. It is the worker all the same, and there is nothing to go
    back to. Where anything goes on, one that ended may have been idle for too long.
    """
    if not said.ended or said.moved:
        return None
    what = f"it runs, but nothing goes on: {said.ended} of its {said.connections} connections had ended before anything went over them"
    remedy = "Look whether their clients gave up while it stood still, or were told that it was gone"
    return problem("SH574", what, remedy, run.planned.worker)


def fenced(view: CopyView) -> bool:
    """Whether the operation keeps its worker out of the router's sight, or may: a fence that failed may have come half-way."""
    if view.steps.get("unfence") == "done":
        return False
    return "resume" in view.steps or view.steps.get("fence") not in (None, "undone")


def joined(first: Problem | None, second: Problem | None) -> Problem | None:
    """Two things that went wrong as one: the first one's code, both texts."""
    if first is None or second is None:
        return first or second
    return problem(first.code, f"{first.what}. Then: {second.what}", first.remedy, first.subject)


async def image_back(run: Run, source: SlotId) -> None:
    """The source was released and the destination can't run it (its copy is known dead): restore the image at the source.

    A second time, too, if need be.
    """
    wait = run.waits()
    refusals = 0
    while True:
        if lost := lost_with(run, source):
            run.finish(Status.FAILED, _nowhere(run, lost), image=run.image)
            return
        view = await must_view(run, source)
        if view.copy == "running":
            break
        try:
            if view.copy == "held":
                await run.ask(run.at(source).resume(run.order, run.times.quick))
            else:
                await bring(run, source)
        except Rejected as refused:
            if await end_copy(run, source):
                break
            refusals += 1
            if refusals == _TRIES:
                run.finish(Status.FAILED, _nowhere(run, refused.problem), image=run.image)
                return
        except (Retry, Unknown) as missing:
            await wait(missing.problem)
    await arrived_soon(run)
    alive, wrong = await show(run, source)
    if alive:
        await arrived(run)
    run.finish(Status.ROLLED_BACK if alive else Status.FAILED, joined(run.record.problem, wrong), None if alive else run.image)


async def _abort_if_possible(run: Run, destination: SlotId) -> None:
    """Ask once. If it isn't heard, the held copy still dies when its hold ends: it was never told to run."""
    try:
        await run.ask(run.at(destination).abort(run.order, run.times.quick))
    except Stalled:
        raise
    except ShunterError:
        return


async def _source_when_known(run: Run, source: SlotId) -> CopyView | None:
    """The source's view, waited for until its hold must have ended; None if it didn't answer even then."""
    until = _rolling_since(run) + run.times.hold + run.times.margin
    pause = run.times.pause
    while True:
        view = await run.view(source)
        if view is not None or run.parts.clock() >= until:
            return view
        await run.parts.sleep(pause)
        pause = min(2 * pause, 5.0)


async def must_view(run: Run, slot: SlotId) -> CopyView:
    """What the slot's node says, waited for. Raises Unresolved."""
    wait = run.waits()
    while (view := await run.view(slot)) is None:
        await wait(unanswered(node_of(slot)))
    return view


def _rolling_since(run: Run) -> float:
    return next((at for step, at in reversed(run.record.history) if step is Step.ROLLING_BACK), run.parts.clock())


def unanswered(node: NodeId) -> Problem:
    """An agent owes the answer that everything depends on."""
    return problem(
        "SH514",
        f"the agent of {node} hasn't said what became of the last order",
        "Bring the agent back; if the node is dead for good, declare it: `shunter gone NODE`",
        node,
    )


def _untouched(node: NodeId) -> Problem:
    return problem("SH515", "the source's agent doesn't answer; nothing had been asked of its worker yet", "Look at the node", node)


async def _image_left(run: Run, source: CopyView, destination: SlotId | None) -> ImageId | None:
    """The operation's image, if the dead worker left one that is whole on a node which says so."""
    if run.had(Step.FROZEN) or run.image in source.images:
        return run.image
    there = await run.view(destination)
    return run.image if there is not None and run.image in there.images else None


def _died(run: Run) -> Problem:
    return problem(
        "SH516",
        "the worker died at its source before the operation was committed",
        "It is restored from its newest image",
        run.planned.worker,
    )


def _nowhere(run: Run, last: Problem) -> Problem:
    return problem(
        "SH517",
        f"it could be restored neither at the destination nor at the source ({last.code} {last.what}); image {run.image} is kept",
        "Mend what was refused, then restore the image",
        run.planned.worker,
    )
