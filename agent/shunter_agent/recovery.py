"""What an agent does at its start: find out what its predecessor left, put it right, and only then take orders."""

import time
from collections.abc import Callable
from typing import Final

from shunter.model.errors import ShunterError
from shunter.wire import agent_pb2 as pb

from shunter_agent.guard import LAST
from shunter_agent.journal import Reservation, WorkerRow
from shunter_agent.node import Node
from shunter_agent.orders.destination import Destination
from shunter_agent.runtime.port import Process

DYING_S: Final = 3.0
"""Seconds that a copy may still take to die whose release or resume had begun: its driver may be ending it this very moment."""


async def recover(node: Node, destination: Destination, wait: Callable[[float], None] = time.sleep) -> None:
    """Settle every worker, reservation and step that the journal has open. Raises Stalled when the journal can't be written."""
    for row in tuple(node.journal.workers().values()):
        await _worker(node, row, wait)
    for reservation in tuple(node.journal.reservations().values()):
        await _reservation(node, destination, reservation, wait)
    for entry in node.journal.open_steps():
        with node.journal.batch():
            node.journal.undo(
                entry.operation, (entry.step,), node.clock(), "the agent died while it was done; what it had done was taken back"
            )
            if entry.step in LAST:
                node.part(entry.operation, entry.worker)


async def start_missing(node: Node) -> None:
    """Start the workers of the settings that were never started here. Raises nothing: one that can't be started is logged."""
    for worker in node.settings.workers:
        if not worker.start or node.journal.started(worker.worker) or node.journal.worker(worker.worker):
            continue
        slot = next(name for name, settings in node.settings.slot_ids().items() if settings.index == worker.slot)
        spec = node.placed(worker.spec, slot)
        try:
            network = await node.in_thread(node.runtime.network, spec)
            await node.in_thread(network.connect)
            process: Process = await node.in_thread(node.runtime.start, spec, network)
        except ShunterError as error:
            node.log.problem(error.problem, worker=worker.worker)
            continue
        with node.journal.batch():
            node.journal.note_started(worker.worker)
            node.journal.put_worker(WorkerRow(spec=spec, process=process, slot=slot, incarnation=0))
        node.adopt(worker.worker, process, network)
        node.log.info("worker started", worker=worker.worker, slot=slot, pid=process.pid)


async def _worker(node: Node, row: WorkerRow, wait: Callable[[float], None]) -> None:
    worker = row.spec.worker
    release = node.journal.entry(row.operation, "release") if row.operation else None
    releasing = release is not None and release.state == "begun"
    if not await node.in_thread(_alive, node, row.process, DYING_S if releasing else 0.0, wait):
        _gone(node, row, released=releasing)
        return
    network = await node.in_thread(node.runtime.network, row.spec, row.process)
    await node.in_thread(network.connect)
    node.adopt(worker, row.process, network)
    freeze = node.journal.entry(row.operation, "freeze") if row.operation else None
    frozen = row.state == "frozen" or (freeze is not None and freeze.state == "begun")
    if frozen:
        await _thawed(node, row)
    resume = node.journal.entry(row.operation, "resume") if row.operation else None
    if resume is not None and resume.state == "begun":
        await _resumed(node, row)
    node.log.info("worker found again", worker=worker, pid=row.process.pid, slot=row.slot)


def _alive(node: Node, process: Process, patience_s: float, wait: Callable[[float], None]) -> bool:
    left = patience_s
    while node.runtime.find(process):
        if left <= 0:
            return True
        wait(0.05)
        left -= 0.05
    return False


def _gone(node: Node, row: WorkerRow, *, released: bool) -> None:
    worker = row.spec.worker
    with node.journal.batch():
        node.journal.drop_worker(worker)
        if released:
            reply = pb.Done(at=node.clock(), detail="found ended when the agent came back")
            node.journal.done(row.operation, "release", worker, node.clock(), reply.SerializeToString(), reply.detail)
        elif row.operation:
            node.journal.undo(
                row.operation, ("fence", "freeze", "resume"), node.clock(), "the worker's process was gone when the agent came back"
            )
    try:
        node.runtime.network(row.spec).destroy()
    except ShunterError as error:
        node.log.problem(error.problem, worker=worker)
    if released:
        node.log.info("release found finished", worker=worker, operation=row.operation)
        return
    node.log.error("worker lost while the agent was away", worker=worker)
    node.events.publish(pb.Event(exit=pb.WorkerExit(worker=worker, status=-1)))


async def _thawed(node: Node, row: WorkerRow) -> None:
    """The agent's death ended its hold: the worker runs in place. Put it back into traffic, where it was before the operation."""
    worker, why = row.spec.worker, "the agent died, which let the worker run on"
    reply = pb.Done(at=node.clock(), detail=why)
    with node.journal.batch():
        node.journal.undo(row.operation, ("freeze", "release"), node.clock(), why)
        node.journal.done(row.operation, "thaw", worker, node.clock(), reply.SerializeToString(), why)
        node.change(worker, state="fenced")
    if row.spec.control:
        try:
            await node.in_thread(node.serving.unfence, row.spec)
        except ShunterError as error:
            node.log.problem(error.problem, worker=worker, operation=row.operation)
            return
    with node.journal.batch():
        node.journal.undo(row.operation, ("fence",), node.clock(), why)
        node.change(worker, state="running", operation="")


async def _resumed(node: Node, row: WorkerRow) -> None:
    """It ran already when the agent died, and lives here; only its probe and the answer were missing."""
    reply = pb.ResumeReply(running_at=node.clock(), probe="process alive when the agent came back")
    node.journal.done(row.operation, "resume", row.spec.worker, node.clock(), reply.SerializeToString(), reply.probe)


async def _reservation(node: Node, destination: Destination, reservation: Reservation, wait: Callable[[float], None]) -> None:
    """A held copy dies with its agent, unless it was just let run: then it is the worker."""
    worker, process = reservation.spec.worker, reservation.process
    resume = node.journal.entry(reservation.operation, "resume")
    begun = resume is not None and resume.state == "begun"
    row = node.journal.worker(worker)
    if row is None and process is not None and begun and await node.in_thread(_alive, node, process, DYING_S, wait):
        network = await node.in_thread(node.runtime.network, reservation.spec, process)
        await node.in_thread(network.connect)
        destination.settle_in(reservation, process)
        node.adopt(worker, process, network)
        await _resumed(node, node.row(worker))
        node.log.info("resumed worker found running", worker=worker, operation=reservation.operation)
        return
    if row is None:  # else the network is that of the worker that lives here
        try:
            node.networks[worker] = await node.in_thread(node.runtime.network, reservation.spec)
        except ShunterError as error:
            node.log.problem(error.problem, worker=worker)
    # its driver ends a held copy too, but nobody may ever find it running
    await destination.free(reservation, "the agent died, and the held copy with it")
