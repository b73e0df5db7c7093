"""After a worker has left its pool for another pool's: that one's new worker starts from a golden image, or natively where it can't.

Nothing here changes what the operation has done. The pool has its number already, and whoever keeps it starts a worker natively for each
that is missing: so what becomes of a golden start is told, and the operation has succeeded all the same.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from shunter.act.back import joined
from shunter.act.counting import reassigns
from shunter.act.housing import gone
from shunter.act.run import Run, Unresolved, problem
from shunter.model.errors import Problem
from shunter.model.ids import node_of
from shunter.model.operation import Status, Step
from shunter.model.plan import OperationKind
from shunter.model.pod import Started

T = TypeVar("T")
_FAILED: Final = ("SH571", "SH572", "SH573")
"""The image was tried, and in vain."""
_TOLD: Final = ("SH570", *_FAILED)
_CORDONED: Final = "node.kubernetes.io/unschedulable"
_NOBODY: Final = "this engine doesn't look after Dynamo's graphs and workers' pods"


async def over(run: Run, why: Problem | None, *, counted: bool = True) -> None:
    """The worker has left its pool: to STARTING, or to the end where nothing is to start so. `why`: what there is to tell of it. `counted`:
    the other pool is kept at one more, so that somebody is started at all.
    """
    if counted and run.planned.golden and reassigns(run.planned):
        if run.record.left is not None and run.parts.replicas is not None:
            run.step(Step.STARTING, why)
            return
        # nobody keeps numbers of what lives in no pod
        why = joined(_natively(run, "the worker lived in no pod, so nobody was asked for one more"), why)
    await gone(run)
    succeeded(run, why)


async def start(run: Run) -> None:
    """STARTING to the end. The new worker's pod is made before the one that is left goes, while nobody can have its GPU yet."""
    before = run.record.problem
    told = before if before is not None and before.code in _TOLD else None
    if told is None:
        try:
            why = await _begun(run)
        except Unresolved:
            await gone(run)  # what it has isn't held for what may not come
            raise
        await gone(run)
        why = why or await _served(run)
        if why is None:
            succeeded(run, before)
            return
        told = joined(why, before) or why
        run.step(Step.STARTING, told)  # durable before anything is removed: it isn't begun a second time
    else:
        before = None
        await gone(run)
    succeeded(run, await _removed(run, told, before))


def succeeded(run: Run, why: Problem | None) -> None:
    """It has left all the same."""
    run.finish(Status.SUCCEEDED, why, run.image if run.planned.kind is OperationKind.PARK else None)


async def _begun(run: Run) -> Problem | None:
    """Why it isn't begun; None: it is. Raises Unresolved."""
    starts = run.parts.starts
    if starts is None:
        return _natively(run, _NOBODY)
    if run.record.pod is not None:
        return None
    if why := _keeps_from(run) or _elsewhere(run):
        return _natively(run, why)
    found = await _asked(run, lambda: starts.begin(run.record, run.parts.still_leads))
    why = found.what if isinstance(found, Problem) else found
    return _natively(run, why) if why else None


def _keeps_from(run: Run) -> str:
    """Why nothing is to come of it any more; empty: it may go on."""
    stored = run.parts.store.get(run.record.id)
    if stored is not None and stored.cancelled is not None:
        return stored.cancelled.what
    return f"nothing has come of it within {run.times.serve:g} s" if _late(run) else ""


def _elsewhere(run: Run) -> str:
    """Why the node whose GPU is left is none to begin on; empty: it is."""
    slot = run.planned.from_slot or run.planned.expect.at
    if slot is None:
        return ""
    if run.parts.astray(msgspec.structs.replace(run.planned, to_slot=slot)):
        return f"a notice is open for {slot}"
    node = next((one for one in run.parts.fleet().nodes if one.id == node_of(slot)), None)
    cordoned = node is not None and any(taint.key == _CORDONED for taint in node.taints)
    return f"{node_of(slot)} is cordoned" if cordoned else ""


def _late(run: Run, times: float = 1.0) -> bool:
    """It has had its time, or as often as that. Counted from when it could begin, whoever led meanwhile."""
    since = next(at for step, at in run.record.history if step is Step.STARTING)
    return run.parts.clock() >= since + times * run.times.serve


async def _served(run: Run) -> Problem | None:
    """Wait until it serves; None then, else what became of it. Raises Unresolved."""
    while True:
        found = await _look(run)
        if found.pod is not None and run.record.pod != found.pod:
            run.step(Step.STARTING, run.record.problem, pod=found.pod)
        if found.state == "serves":
            return None
        if found.state == "instead":
            return _natively(run, found.why)
        if found.state == "failed":
            return _in_vain(run, found.why)
        if _late(run):
            return _too_late(run, found.why) if found.reached else _natively(run, f"{found.why}, for {run.times.serve:g} s")
        if why := _keeps_from(run):
            return _natively(run, why)
        await run.parts.sleep(run.times.look)


async def _look(run: Run) -> Started:
    """Raises Unresolved, but not once its time is over."""
    starts = run.parts.starts
    if starts is None:
        return Started(state="instead", why=_NOBODY)
    try:
        found = await _asked(run, lambda: starts.look(run.record))
    except Unresolved as lost:
        if not _late(run):
            raise
        found = lost.problem
    return Started(state="instead", why=f"it can't be seen: {found.what}") if isinstance(found, Problem) else found


async def _removed(run: Run, told: Problem, before: Problem | None) -> Problem | None:
    """What there is to tell in the end: `told` once its pod is gone, and `before`, which was known before, if it serves by now and stays.
    Raises Unresolved.
    """
    starts = run.parts.starts
    if starts is None:
        return _stays(run, told, _NOBODY) if told.code in _FAILED else told
    try:
        found = await _asked(run, lambda: starts.end(run.record, run.parts.still_leads))
    except Unresolved as lost:
        if not _late(run, 2.0):
            raise
        found = lost.problem
    if isinstance(found, Problem):
        return _stays(run, told, found.what)
    if found:
        return told
    now = await _look(run)
    return before if now.state == "serves" else _stays(run, told, f"it is ready, and {now.why or 'stays'}")


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
    what = (
        f"golden image {run.planned.golden} couldn't be started from (pod{_in_pod(run) or ' unknown'}): {why}; a worker of "
        f"{run.planned.hands_to} starts natively once that is gone"
    )
    remedy = "Look at the PodSnapshot and at the log of Dynamo Snapshot's agent on that node; it isn't tried again within the hour"
    return problem("SH571", what, remedy, run.planned.golden)


def _too_late(run: Run, why: str) -> Problem:
    what = (
        f"the worker that was started from golden image {run.planned.golden} (pod{_in_pod(run) or ' unknown'}) didn't serve within "
        f"{run.times.serve:g} s ({why}); one of {run.planned.hands_to} starts natively once that is gone"
    )
    remedy = "Look at the pod's events and at the log of Dynamo Snapshot's agent on that node; it isn't tried again within the hour"
    return problem("SH572", what, remedy, run.planned.golden)


def _stays(run: Run, told: Problem, why: str) -> Problem:
    """Its pod isn't known to be gone. Where the image wasn't tried, that is what is told first."""
    what = f"its pod{_in_pod(run) or ', if there is one,'} wasn't removed: {why}"
    remedy = "See whether that pod serves, and delete it if it doesn't: its controller makes a native one then"
    left = problem("SH573", what, remedy, run.planned.golden)
    both = joined(told, left) or left
    return msgspec.structs.replace(both, code=left.code if told.code in _FAILED else told.code, remedy=left.remedy)


def _in_pod(run: Run) -> str:
    pod = run.record.pod
    return f" {pod} ({pod.uid})" if pod is not None else ""
