"""Workers that an agent left standing still when it died: let run, given their network back, and shown to the router again, in this order.

A worker that isn't known to run is `frozen` for everybody who asks. Who holds it may take a while to let go, or hang: it is tried again
until it runs, and nothing else on the node waits for that. Each function wants the worker's lock held.
"""

from typing import Final

from shunter.model.errors import Rejected, Retry, ShunterError
from shunter.wire import agent_pb2 as pb

from shunter_agent.journal import Entry, WorkerRow
from shunter_agent.node import HUNG, Hidden, Node, Unsettled
from shunter_agent.runtime.port import Network

TRAFFIC_S: Final = 15.0
"""Seconds that it may take, all in all, to take a worker out of the router's sight or to put it back."""
AGAIN_S: Final = 1.0
"""Seconds between tries to let a worker run that a dead agent left standing still."""
SHOW_AGAIN_S: Final = 5.0
"""Seconds after which a router that didn't take a worker back is asked again."""
WHY: Final = "the agent died, which let the worker run on"
SILENT: Final = "no order came for so long that it was shown to the router again"
_HIDING: Final = ("fence", "drain", "resume")
"""Steps after which a worker is out of the router's sight until something else is ordered."""


def doubt(node: Node, worker: str, operation: str) -> None:
    """From here on nobody takes the worker for running, or gives an order about it, until `settle` has made sure."""
    node.unsettled[worker] = Unsettled(operation, node.elapsed(), node.elapsed())


def left_hidden(node: Node, row: WorkerRow) -> str | None:
    """The operation that has hidden a worker which runs, and of which nobody has said anything for as long as nobody may stand still: its
    engine is dead, say. None: it isn't hidden, or is to stay so: since a standing order says so, or because its node is about to go. One
    that was to go and is there still keeps nobody hidden.
    """
    worker = row.spec.worker
    silent_s = node.elapsed() - node.spoken.get(worker, node.began)
    if worker in node.hidden or worker in node.unsettled or worker in node.frozen or silent_s < node.settings.hold:
        return None
    if any(notice.deadline is not None and node.clock() < notice.deadline for notice in node.notices.values()):
        return None
    last = node.journal.last_of(worker, _HIDING)
    if row.state == "frozen" or (row.state == "running" and not may_hide(last)):
        return None
    operation = row.operation or (last.operation if last is not None else "")
    return operation if operation not in node.journal.stood() else None


def may_hide(last: Entry | None) -> bool:
    """A step that was begun and of which nobody knows how far it came: it may have hidden a worker that is said to run in traffic."""
    return last is not None and last.state == "begun" and last.step in ("fence", "drain")


def show_soon(node: Node, worker: str, operation: str, why: str) -> None:
    """Show a worker to the router as soon as that can be done. Raises Stalled SH610."""
    node.change(worker, state="fenced")
    node.hidden[worker] = Hidden(operation, why, node.elapsed())


async def settle(node: Node, worker: str) -> None:
    """Make sure that it runs. It is put back where it was before its operation.

    Raises ShunterError while it doesn't run: it is to be tried again at `Unsettled.at`.
    """
    left, row = node.unsettled.get(worker), node.journal.worker(worker)
    if left is None:
        return
    if row is None:
        node.unsettled.pop(worker)
        return
    stopped = row.stopped if left.operation else None
    try:
        network = await _found(node, row)
        if not left.operation:
            await node.in_thread(network.connect)
        elif await _lives_elsewhere(node, row, network):
            return
        await node.in_thread(node.runtime.settle, row.process, network, stopped, node.elapsed() - left.since)
        await node.in_thread(network.connect)  # only now: were it being ended, nothing of that may reach its peers
    except Rejected:
        if await node.in_thread(node.runtime.find, row.process):
            raise
        node.unsettled.pop(worker)
        gone(node, row)
        return
    finally:
        if worker in node.unsettled:
            node.unsettled[worker] = Unsettled(left.operation, left.since, node.elapsed() + AGAIN_S)
    if left.operation:
        _runs(node, row)
    node.unsettled.pop(worker)
    if left.operation:
        node.log.info("a worker that was left standing still runs", worker=worker, operation=left.operation)
        node.hidden[worker] = Hidden(left.operation, WHY, node.elapsed())
        await show(node, worker)


async def _found(node: Node, row: WorkerRow) -> Network:
    """The network that it lives in. Raises Retry."""
    worker = row.spec.worker
    if worker not in node.networks:
        node.adopt(worker, row.process, await node.in_thread(node.runtime.network, row.spec, row.process))
        node.log.info("worker found again", worker=worker, pid=row.process.pid, slot=row.slot)
    return node.network(worker)


async def _lives_elsewhere(node: Node, row: WorkerRow, network: Network) -> bool:
    """Of a worker whose release had begun: its engine had written down that the destination's copy counts, and may have had this node
    declared gone since. If that copy runs, the one here is ended, as was ordered. It has been out of touch with everybody since then.

    Raises Unknown SH707.
    """
    release = node.journal.entry(row.operation, "release")
    if release is None or release.state != "begun":
        return False
    await node.in_thread(network.disconnect)  # the agent may have died before it came to that
    if not await node.in_thread(network.elsewhere):
        return False
    worker = row.spec.worker
    node.log.error("the worker answers on another node: the copy here is ended, as was ordered", worker=worker, operation=row.operation)
    node.exits.forget(worker)
    await node.in_thread(node.runtime.end, row.process)
    node.unsettled.pop(worker, None)
    gone(node, row)
    return True


def _runs(node: Node, row: WorkerRow) -> None:
    """It runs in place, out of the router's sight."""
    worker, journal = row.spec.worker, node.journal
    with journal.batch():
        journal.undo(row.operation, ("freeze", "release", "checkpoint"), node.clock(), WHY)
        if journal.entry(row.operation, "freeze") is not None:
            journal.done(row.operation, "thaw", worker, node.clock(), pb.Done(at=node.clock(), detail=WHY).SerializeToString(), WHY)
        node.change(worker, state="fenced")


def _left(node: Node, row: WorkerRow) -> bool:
    """An order may have ended it, or its image is whole: it lives elsewhere, or is to."""
    steps = {entry.step: entry.state for entry in node.journal.entries(row.operation)} if row.operation else {}
    return steps.get("freeze") == "done" or any(steps.get(step) in ("begun", "done") for step in ("release", "drain", "retire"))


def gone(node: Node, row: WorkerRow) -> None:
    """A worker whose process is dead leaves this node; one that was being released has been."""
    worker, journal = row.spec.worker, node.journal
    release = journal.entry(row.operation, "release") if row.operation else None
    released = release is not None and release.state == "begun"
    with journal.batch():
        journal.drop_worker(worker)
        if row.spec.pod is not None and not _left(node, row):
            journal.forget_started(f"pod/{row.spec.pod.uid}")  # its container may be started again (see `residents`)
        if not row.begun:
            journal.forget_started(worker)  # the agent died when it was about to let it run for the first time
        if released:
            reply = pb.Done(at=node.clock(), detail="found ended when the agent came back")
            journal.done(row.operation, "release", worker, node.clock(), reply.SerializeToString(), reply.detail)
        elif row.operation:
            what = "the worker's process was gone when the agent came back"
            journal.undo(row.operation, ("fence", "freeze", "resume"), node.clock(), what)
    node.exits.forget(worker)
    try:
        (node.networks.pop(worker, None) or node.runtime.network(row.spec)).destroy()
    except ShunterError as error:
        node.log.problem(error.problem, worker=worker)
    if released:
        node.log.info("release found finished", worker=worker, operation=row.operation)
        return
    node.log.error("worker lost while the agent was away", worker=worker)
    node.events.publish(pb.Event(exit=pb.WorkerExit(worker=worker, status=-1)))


async def hide(node: Node, operation: str, row: WorkerRow) -> str:
    """Take a worker out of the router's sight; the evidence in words. Of a try that hung nobody knows what came: then it is shown again as
    soon as that can be done.

    Raises what `Serving.fence` does; Retry SH614.
    """
    worker = row.spec.worker
    try:
        return await node.in_time(TRAFFIC_S, "to take the worker out of the router's sight", node.serving.fence, row.spec)
    except Retry as error:
        if error.problem.code == HUNG:
            show_soon(node, worker, operation, error.problem.what)
        raise


async def show(node: Node, worker: str) -> None:
    """Put a worker that runs on without an order back into traffic; what fails is tried again later.

    Where it has controls, the worker itself is asked to register again: one that doesn't answer isn't shown. An order that had to do with
    it meanwhile has the last word.
    """
    hidden = node.hidden.get(worker)
    row = node.journal.worker(worker)
    if hidden is None or row is None or row.state != "fenced" or row.operation not in ("", hidden.operation):
        node.hidden.pop(worker, None)
        return
    try:
        await node.in_time(TRAFFIC_S, "to show the worker to the router", node.serving.unfence, row.spec)
    except ShunterError as error:
        node.hidden[worker] = Hidden(hidden.operation, hidden.why, node.elapsed() + SHOW_AGAIN_S)
        node.log.problem(error.problem, worker=worker, operation=hidden.operation)
        return
    with node.journal.batch():
        node.change(worker, state="running", operation="")
        node.journal.undo(hidden.operation, ("fence",), node.clock(), hidden.why)
    node.hidden.pop(worker)
    node.log.info("shown to the router again", worker=worker, operation=hidden.operation, why=hidden.why)
