"""What an agent does at its start: find out what its predecessor left, put it right, and only then take orders.

Each worker is put right by itself, under its own lock: one that hangs keeps no other waiting, nor the agent from taking orders about the
others. What isn't settled when the start's time is over goes on being tried (see `orders.settling`, `orders.holds`).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec
from shunter.model.errors import Rejected, Retry, ShunterError, Stalled, Unknown
from shunter.wire import agent_pb2 as pb

from shunter_agent.guard import LAST
from shunter_agent.journal import Entry, Reservation, WorkerRow
from shunter_agent.node import Node
from shunter_agent.orders import settling
from shunter_agent.orders.destination import Destination
from shunter_agent.orders.turns import Turn
from shunter_agent.refusals import retry
from shunter_agent.runtime.port import Held, Process, WorkerSpec

DYING_S: Final = 3.0
"""Seconds that a copy may still take to die whose release or resume had begun: its driver may be ending it this very moment."""
AGAIN_S: Final = 0.2
"""Seconds between looks at a copy that its driver is still about to let go."""
START_S: Final = 10.0
"""Seconds after which an agent takes orders, whatever worker isn't settled by then. Most are within milliseconds."""
UNWRITTEN_S: Final = 1.0
"""Seconds between tries to settle a worker about which the journal takes no writes, once orders about the others are taken."""
PATIENCE_S: Final = 30.0
"""Seconds for which a copy that may be all that there is of a worker is tried again where something refused. After that an engine decides:
it has the image, and no orders come through meanwhile."""
LOOK_S: Final = 0.05
STOOD_STILL: Final = ("freeze", "checkpoint", "thaw", "release")
"""Steps that are begun while a worker stands still, or is about to."""


async def recover(node: Node, destination: Destination, wait: Callable[[float], None] = time.sleep, within_s: float = START_S) -> None:
    """Settle every worker, reservation and step that the journal has open: all at once, each under its worker's lock, for `within_s`
    seconds at most. What takes longer goes on by itself. Raises Stalled when the journal can't be written within that time; what it
    doesn't take later is tried again until it does, as nobody else would.
    """
    journal = node.journal
    for row in journal.workers().values():
        if stood_still(node, row):
            settling.doubt(node, row.spec.worker, row.operation)
    names = set(journal.workers())
    names |= {kept.worker_id for kept in journal.reservations().values()} | {entry.worker for entry in journal.open_steps()}
    started = asyncio.Event()
    tasks = {asyncio.create_task(_one(node, destination, name, wait, started), name=f"settle {name}") for name in sorted(names)}
    if not tasks:
        return
    done, late = await asyncio.wait(tasks, timeout=within_s)
    started.set()
    for task in late:
        node.log.error("not settled yet, others don't wait for it", worker=task.get_name().removeprefix("settle "))
        node.keep(task)
    for task in done:
        task.result()


async def start_missing(node: Node) -> None:
    """Start the workers of the settings that were never started here. Raises nothing: one that can't be started is logged."""
    for worker in node.settings.workers:
        if not worker.start or node.journal.started(worker.worker) or node.journal.worker(worker.worker):
            continue
        slot = next(name for name, settings in node.settings.slot_ids().items() if settings.index == worker.slot)
        try:
            _check_free(node, worker.worker, slot)
            await _start(node, node.placed(worker.spec, slot), slot)
        except ShunterError as error:
            node.log.problem(error.problem, worker=worker.worker)


def _check_free(node: Node, worker: str, slot: str) -> None:
    """Another may have come to its slot before it could be started. Raises Retry SH664."""
    kept = node.journal.reservations().get(slot)
    other = node.occupied().get(slot) or (kept.worker_id if kept is not None else None)
    if other is not None:
        what = f"{slot} has {other}, or is kept for it: {worker} isn't started there"
        raise retry("SH664", what, "Give it another slot in the settings, or start the agent anew once that one has left", worker)


async def _start(node: Node, spec: WorkerSpec, slot: str) -> None:
    """It is in the journal before anything of it runs: should the agent die in the midst of this, the next one must not start a second one.

    Raises ShunterError: it doesn't run.
    """
    worker, journal = spec.worker, node.journal
    network = await node.in_thread(node.runtime.network, spec)
    try:
        await node.in_thread(network.connect)
        held: Held = await node.in_thread(node.runtime.start, spec, network)
        try:
            with journal.batch():
                journal.note_started(worker)
                journal.put_worker(WorkerRow(spec=spec, process=held.process, slot=slot, incarnation=0, begun=False))
        except BaseException:
            await node.in_thread(held.abort)
            raise
    except BaseException:
        await node.in_thread(network.destroy)
        raise
    node.adopt(worker, held.process, network)
    try:
        await node.in_thread(held.resume)
    except ShunterError:
        node.worker_ended(worker, -1)
        raise
    node.log.info("worker started", worker=worker, slot=slot, pid=held.process.pid)
    node.change(worker, begun=True)


def stood_still(node: Node, row: WorkerRow) -> bool:
    """Whether an order had stopped the worker when the agent died, or may have."""
    if not row.operation:
        return False
    steps = {entry.step: entry.state for entry in node.journal.entries(row.operation)}
    return row.state == "frozen" or any(steps.get(step) == "begun" for step in STOOD_STILL)


async def _one(node: Node, destination: Destination, worker: str, wait: Callable[[float], None], started: asyncio.Event) -> None:
    """All that there is of a worker. Raises Stalled until the agent has `started`: then it is told, and tried again. All of that is under
    the worker's lock: what an order does meanwhile must not be taken for what the agent before this one has left. A try during which this
    is cancelled keeps the lock until it has ended.
    """
    freed: set[str] = set()
    until = node.elapsed() + PATIENCE_S
    async with Turn(destination.orders.lock(worker)) as turn:
        try:
            while True:
                try:
                    await turn.do(_put_right(node, destination, worker, wait, freed, until))
                except Stalled as error:
                    if not started.is_set():
                        raise
                    node.trouble(f"settle {worker}", msgspec.structs.replace(error.problem, subject=worker))
                    await asyncio.sleep(UNWRITTEN_S)
                except (Retry, Unknown) as error:
                    node.trouble(f"settle {worker}", msgspec.structs.replace(error.problem, subject=worker))
                    await node.in_thread(wait, AGAIN_S)
                else:
                    return
        finally:  # whatever ended it: nobody tries it any more
            node.trouble(f"settle {worker}", None)


async def _put_right(
    node: Node, destination: Destination, worker: str, wait: Callable[[float], None], freed: set[str], until: float
) -> None:
    """Raises Stalled, and `until` then (`elapsed`) Retry and Unknown where a copy may be all that there is of the worker: another try is to
    find that out. What else goes wrong is logged, and tried again if that can help (see `orders.holds`). `freed` are the slots whose
    network an earlier try has removed.
    """
    open_steps = [entry for entry in node.journal.open_steps() if entry.worker == worker]
    try:
        row = node.journal.worker(worker)
        if row is not None:
            await _worker(node, row, wait)
        for kept in [kept for kept in node.journal.reservations().values() if kept.worker_id == worker]:
            await _reservation(node, destination, kept, wait, freed)
    except Stalled:
        raise
    except ShunterError as error:
        node.log.problem(error.problem, worker=worker)
        if isinstance(error, Retry | Unknown) and node.elapsed() < until and _may_be_all(node, worker):
            raise
    for entry in open_steps if worker not in node.unsettled else ():  # else what they come to shows when it is settled
        _undone(node, entry)


def _may_be_all(node: Node, worker: str) -> bool:
    """A copy whose resume had begun may run, and the worker isn't here otherwise."""
    kept = [one for one in node.journal.reservations().values() if one.worker_id == worker]
    steps = [(one, node.journal.entry(one.operation, "resume")) for one in kept]
    begun = [one.process for one, resume in steps if one.process is not None and resume is not None and resume.state == "begun"]
    return node.journal.worker(worker) is None and any(node.may_live(process) for process in begun)


def _undone(node: Node, begun: Entry) -> None:
    """A step that nobody is at any more, unless it was found to be done."""
    row = node.journal.worker(begun.worker)
    with node.journal.batch():
        if settling.may_hide(begun) and row is not None and row.state == "running":
            node.change(begun.worker, state="fenced")  # it may be: whoever speaks of it next shows it, or time does
        found = node.journal.entry(begun.operation, begun.step)
        if found is not None and found.state == "begun":
            why = "the agent died while it was done; what it had done was taken back"
            node.journal.undo(begun.operation, (begun.step,), node.clock(), why)
        if begun.step in LAST:
            node.part(begun.operation, begun.worker)


async def _worker(node: Node, row: WorkerRow, wait: Callable[[float], None]) -> None:
    """A worker that lives here, by the journal. Raises ShunterError: it is tried again."""
    worker = row.spec.worker
    release = node.journal.entry(row.operation, "release") if row.operation else None
    releasing = release is not None and release.state == "begun"
    if not await node.in_thread(_alive, node, row.process, DYING_S if releasing else 0.0, wait):
        node.unsettled.pop(worker, None)
        settling.gone(node, row)
        return
    if worker in node.unsettled and row.state != "frozen":
        node.change(worker, state="frozen")
    if worker not in node.unsettled:
        settling.doubt(node, worker, "")  # an agent before the last one may have left it without its GPU
    if not row.begun:
        node.change(worker, begun=True)
    await settling.settle(node, worker)
    resume = node.journal.entry(row.operation, "resume") if row.operation else None
    if resume is not None and resume.state == "begun":
        _resumed(node, row)


def _alive(node: Node, process: Process, patience_s: float, wait: Callable[[float], None]) -> bool:
    left = patience_s
    while node.runtime.find(process):
        if left <= 0:
            return True
        wait(LOOK_S)
        left -= LOOK_S
    return False


async def _runs(node: Node, reservation: Reservation, process: Process, wait: Callable[[float], None]) -> bool:
    """Whether a copy whose resume had begun does: nobody holds it any more, and it isn't one that nobody ever will let run.

    A driver that is still at it is waited for, and ended when it takes too long.
    """
    if not await node.in_thread(_alive, node, process, DYING_S, wait):
        return False
    began, network = node.elapsed(), node.networks.get(reservation.worker_id)  # an earlier try may have found it
    if network is None:
        network = await node.in_thread(node.runtime.network, reservation.spec, process)
    while not await node.in_thread(node.runtime.stillborn, process):
        try:
            await node.in_thread(node.runtime.settle, process, network, (), node.elapsed() - began)
        except Rejected:
            return False
        except (Retry, Unknown) as error:
            node.log.problem(error.problem, worker=reservation.worker_id)
            await node.in_thread(wait, AGAIN_S)
        else:
            await node.in_thread(network.connect)
            node.adopt(reservation.worker_id, process, network)
            return True
    return False


def _resumed(node: Node, row: WorkerRow) -> None:
    """It ran already when the agent died, and lives here; only its probe and the answer were missing."""
    reply = pb.ResumeReply(running_at=node.clock(), probe="process alive when the agent came back")
    node.journal.done(row.operation, "resume", row.spec.worker, node.clock(), reply.SerializeToString(), reply.probe)


async def _reservation(
    node: Node, destination: Destination, reservation: Reservation, wait: Callable[[float], None], freed: set[str]
) -> None:
    """A held copy dies with its agent, unless it was just let run: then it is the worker."""
    worker, process = reservation.spec.worker, reservation.process
    resume = node.journal.entry(reservation.operation, "resume")
    begun = resume is not None and resume.state == "begun"
    row = node.journal.worker(worker)
    if row is None and process is not None and begun and await _runs(node, reservation, process, wait):
        destination.settle_in(reservation, process)
        _resumed(node, node.row(worker))
        node.log.info("resumed worker found running", worker=worker, operation=reservation.operation)
        return
    if row is None and worker not in node.networks and reservation.slot not in freed:  # else it is there, or was
        try:
            node.networks[worker] = await node.in_thread(node.runtime.network, reservation.spec)
        except ShunterError as error:
            node.log.problem(error.problem, worker=worker)
    freed.add(reservation.slot)
    # its driver ends a held copy too, but nobody may ever find it running
    await destination.free(reservation, "the agent died, and the held copy with it")
