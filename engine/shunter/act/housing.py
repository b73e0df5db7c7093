"""What an operation on a worker in a pod has to see to beside the agents' orders: a pod to come to, and the end of the one that it leaves.

Before the worker is touched its new pod has to run; once the move is committed the old one has to go before the operation ends. Nothing
between the two waits for the API server. As before each order, it is asked before each effect whether we still lead: the next engine may
have the same pods in hand.
"""

import contextlib
from collections.abc import Awaitable, Callable

from shunter.act.run import Run, Unresolved, problem
from shunter.model.errors import Rejected, ShunterError
from shunter.model.ids import SlotId, node_of
from shunter.model.operation import Step
from shunter.model.plan import OperationKind
from shunter.model.pod import Pod, Resident
from shunter.wire import agent_pb2 as pb
from shunter.wire import convert


def home_of(run: Run, row: pb.WorkerReport | None) -> Pod | None:
    """The pod that the worker lives in, as its agent says; None: in none. Raises Rejected SH562 where this engine looks after no pods,
    SH564 where the pod isn't one of that node's workers: what an agent says has no pod deleted but such a one.
    """
    if row is None or not row.pod_uid:
        return None
    if run.parts.places is None:
        what = f"the worker lives in the pod {row.pod_namespace}/{row.pod_name}, and this engine looks after no pods"
        raise Rejected(problem("SH562", what, "Add [cluster.pods] to the engine's settings", run.planned.worker))
    pod = Pod(namespace=row.pod_namespace, name=row.pod_name, uid=row.pod_uid, container=row.pod_container)
    at = run.planned.from_slot or run.planned.expect.at
    if at is not None and (why := run.parts.places.strange(pod, node_of(at))):
        what = f"the agent of {node_of(at)} says that the worker lives in the pod {pod}, and {why}"
        raise Rejected(problem("SH564", what, "If it lasts, find out what runs as that node's agent", run.planned.worker))
    return pod


async def room(run: Run, slot: SlotId, left: Pod | None, spec: pb.WorkerSpec) -> Pod | None:
    """A pod in the slot's node that the worker can come to; None: it needs none. Raises as `Places.prepare` does."""
    if run.parts.places is None:
        return None

    def may_go_on() -> None:
        run.parts.still_leads()
        if run.record.step is Step.INTENDED:
            run.may_go_on()
            _in_time(run)

    who = Resident(id=run.planned.worker, role=convert.role(spec.role), graph=spec.graph, engine=spec.engine)
    return await run.parts.places.prepare(run.record, slot, left, who, may_go_on)


def _in_time(run: Run) -> None:
    """What can't wait doesn't wait for its pod until its node is dead: an image elsewhere may still be had. Raises Rejected SH513."""
    deadline, least = run.planned.deadline, run.planned.estimate.stopped
    if run.planned.lane == "involuntary" and deadline is not None and least is not None and run.parts.clock() + least > deadline:
        what = f"the pod that the worker was to come to didn't run early enough: the move itself takes {least:.0f} s, and less is left"
        raise Rejected(problem("SH513", what, "Have the worker's image on the nodes that it may come to", run.record.id))


async def remembered(run: Run, left: Pod) -> None:
    """How the pod was made is kept for when its worker comes back. Raises as `Places.remember` does."""
    if run.parts.places is not None:
        run.parts.still_leads()
        await run.parts.places.remember(run.record, left)


async def room_again(run: Run, slot: SlotId, spec: pb.WorkerSpec) -> Pod | None:
    """The same for an operation that is committed: where its worker came to is used up, or it is to come back. Durable then.

    Raises Unresolved, and as `Places.prepare` does.
    """
    if run.record.pod is None and run.record.left is None and run.planned.kind is not OperationKind.RESTORE:
        return None
    await gone(run)  # what it has of the node, its new pod is to have
    pod = await room(run, slot, run.record.left, spec)
    if pod is not None and pod != run.record.pod:
        run.step(run.record.step, run.record.problem, pod=pod)
    return pod


async def shown_soon(run: Run, *, shown: bool) -> None:
    """Have the pod that the worker lives in, or is leaving, be ready or not, once, if that can be said now."""
    places, left = run.parts.places, run.record.left
    if places is None or left is None:
        return
    with contextlib.suppress(ShunterError):
        run.parts.still_leads()
        await places.show(left, shown=shown)


async def arrived_soon(run: Run) -> None:
    """As `arrived` of the new pod, once: whoever looks for the worker in the router may look for a pod that is ready."""
    places, pod = run.parts.places, run.record.pod
    if places is None or pod is None:
        return
    with contextlib.suppress(ShunterError):
        run.parts.still_leads()
        await places.keep(run.record, pod)


async def arrived(run: Run) -> None:
    """The worker runs in its new pod, and has left the old one: see to both. Raises Unresolved while that can't be done."""
    places, pod = run.parts.places, run.record.pod
    if places is not None and pod is not None:
        await _insist(run, lambda: places.keep(run.record, pod))
    await gone(run)


async def gone(run: Run) -> None:
    """The worker has left its pod for good. Raises Unresolved while that can't be deleted."""
    places, left = run.parts.places, run.record.left
    if places is not None and left is not None:
        await _insist(run, lambda: places.retire(left))


async def gone_soon(run: Run) -> None:
    """The same, once, beside what can't wait: it is seen to again before the operation ends. What was killed in a pod is started again
    there unless the pod is deleted.
    """
    places, left = run.parts.places, run.record.left
    if places is None or left is None:
        return
    with contextlib.suppress(ShunterError):
        run.parts.still_leads()
        await places.retire(left)


async def withdrawn(run: Run) -> None:
    """What was made for a worker that doesn't come goes, if that can be done now: what is left is found later."""
    places = run.parts.places
    if places is None:
        return
    with contextlib.suppress(ShunterError):
        run.parts.still_leads()
        await places.withdraw(run.record)


async def _insist(run: Run, work: Callable[[], Awaitable[None]]) -> None:
    def led() -> Awaitable[None]:
        run.parts.still_leads()
        return work()

    refused = await run.insist(led)
    if refused is not None:
        raise Unresolved(refused)
