"""After a worker has left its pool for another pool's: that one's new worker starts from a golden image, or natively where it can't.

Nothing here changes what the operation has done. The pool has its number already, and whoever keeps it starts a worker natively for each
that is missing: so what becomes of a golden start is told, and the operation has succeeded all the same.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from shunter.act.counting import reassigns
from shunter.act.housing import gone
from shunter.act.run import Run, problem
from shunter.model.errors import Problem
from shunter.model.operation import Status, Step
from shunter.model.plan import OperationKind
from shunter.model.pod import Started

T = TypeVar("T")
_FAILED: Final = ("SH571", "SH572")
_TOLD: Final = ("SH570", *_FAILED)


async def over(run: Run, why: Problem | None, *, counted: bool = True) -> None:
    """The worker has left its pool: to STARTING, or to the end where nothing is to start so. `why`: what there is to tell of it. `counted`:
    the other pool is kept at one more, so that somebody is started at all.
    """
    if counted and run.planned.golden and reassigns(run.planned):
        run.step(Step.STARTING, why)
        return
    await gone(run)
    succeeded(run, why)


async def start(run: Run) -> None:
    """STARTING to the end. The new worker's pod is made before the one that is left goes, while nobody can have its GPU yet."""
    before = run.record.problem
    told = known = before if before is not None and before.code in _TOLD else None
    if known is None:
        told = await _begun(run)
    await gone(run)
    if told is None:
        told = await _served(run)
    if told is not None and known is None:
        run.step(Step.STARTING, told)  # durable before anything is removed: it isn't begun a second time
    if told is not None and told.code in _FAILED and not await _removed(run):
        told = None
    succeeded(run, told or (before if before is not known else None))


def succeeded(run: Run, why: Problem | None) -> None:
    """It has left all the same."""
    run.finish(Status.SUCCEEDED, why, run.image if run.planned.kind is OperationKind.PARK else None)


async def _begun(run: Run) -> Problem | None:
    """Why it isn't begun; None: it is. Raises Unresolved."""
    starts = run.parts.starts
    if starts is None:
        return _natively(run, "this engine doesn't look after Dynamo's graphs and workers' pods")
    found = await _asked(run, lambda: starts.begin(run.record, run.parts.still_leads))
    why = found.what if isinstance(found, Problem) else found
    return _natively(run, why) if why else None


async def _served(run: Run) -> Problem | None:
    """Wait until it serves; None then, else what became of it. Raises Unresolved."""
    since = next(at for step, at in run.record.history if step is Step.STARTING)
    while True:
        found = await _look(run)
        if found.state == "serves":
            return None
        if found.state == "instead":
            return _natively(run, found.why)
        if found.state == "failed":
            return _in_vain(run, found.why)
        if run.parts.clock() >= since + run.times.serve:
            return _too_late(run, found.why)
        await run.parts.sleep(run.times.look)


async def _look(run: Run) -> Started:
    starts = run.parts.starts
    if starts is None:
        return Started(state="instead", why="this engine doesn't look after Dynamo's graphs and workers' pods")
    found = await _asked(run, lambda: starts.look(run.record))
    return Started(state="failed", why=found.what) if isinstance(found, Problem) else found


async def _removed(run: Run) -> bool:
    """Remove it, unless it serves by now: then it stays, and that is False. Raises Unresolved."""
    starts = run.parts.starts
    return starts is None or await _asked(run, lambda: starts.end(run.record, run.parts.still_leads)) is not False


async def _asked(run: Run, call: Callable[[], Awaitable[T]]) -> T | Problem:
    """The answer, or why it was refused. Raises Unresolved when neither is had in time."""
    found: list[T] = []

    async def once() -> None:
        run.parts.still_leads()
        found.append(await call())

    refused = await run.insist(once)
    return found[-1] if refused is None else refused


def _natively(run: Run, why: str) -> Problem:
    what = f"a worker of {run.planned.hands_to} starts natively, and not from golden image {run.planned.golden}: {why}"
    return problem("SH570", what, "Nothing to do: it serves later than it could", run.planned.golden)


def _in_vain(run: Run, why: str) -> Problem:
    what = f"golden image {run.planned.golden} couldn't be started from: {why}; a worker of {run.planned.hands_to} starts natively instead"
    remedy = "Look at the PodSnapshot and at the log of Dynamo Snapshot's agent on that node; it isn't tried again within the hour"
    return problem("SH571", what, remedy, run.planned.golden)


def _too_late(run: Run, why: str) -> Problem:
    what = (
        f"the worker that was started from golden image {run.planned.golden} didn't serve within {run.times.serve:g} s ({why}); one of "
        f"{run.planned.hands_to} starts natively instead"
    )
    remedy = "Look at the pod's events and at the log of Dynamo Snapshot's agent on that node; it isn't tried again within the hour"
    return problem("SH572", what, remedy, run.planned.golden)
