"""What one agent has in its hands: journal, runtime, images, live networks, and the copies that stand still until the next order."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import msgspec
from shunter.model.errors import Problem, Stalled
from shunter.wire import agent_pb2 as pb

from shunter_agent.busy import BusyImages
from shunter_agent.convert import notice_message
from shunter_agent.depot import Depot
from shunter_agent.events import Events
from shunter_agent.exits import Exits
from shunter_agent.gpus import domains
from shunter_agent.guard import Asked, Seen
from shunter_agent.journal import Journal, WorkerRow
from shunter_agent.log import Log
from shunter_agent.notices.doubts import Doubting, doubted
from shunter_agent.notices.port import Notice, NoticeSource
from shunter_agent.promises import Promises
from shunter_agent.refusals import not_on_disk, retry
from shunter_agent.runtime.port import Frozen, Gpu, Held, Network, Process, Runtime, WorkerSpec
from shunter_agent.runtime.proven import Proven
from shunter_agent.serving.port import Serving
from shunter_agent.settings import Settings

T = TypeVar("T")
PROGRESS_S: Final = 0.2
"""At most one progress event per step in this time."""
THREADS: Final = 256
"""Blocking calls at once. Few are ever needed, but however many wait for other nodes or for a disk, the one that lets a worker run on must
not wait for them."""
SYNC_S: Final = 2.0
"""Seconds until an image is brought to the disk, and between looks whether it can be now."""
GIVE_WAY_S: Final = 0.02
"""Seconds between looks whether a worker still stands still."""
SYNC_LATEST_S: Final = 60.0
"""Seconds after which an image is brought to the disk whatever stands still. By then the kernel has written most of it by itself."""
SYNC_AGAIN_S: Final = 15.0
"""Seconds after which an image that the disk didn't take is brought to it again."""
HUNG: Final = "SH614"
"""The refusal after a call that hung: whether it has done anything isn't known."""
Probing = Callable[[WorkerSpec, Callable[[], bool], float], str]
"""`serving.probe.Probe`: spec, is the process alive, seconds; returns evidence, raises Rejected."""


@dataclass
class Pace:
    """How fast bytes of one thing go, of `total` (0: not known), since `at` (by `Node.elapsed`)."""

    total: int
    at: float
    rate: float = 0.0
    """Bytes per second: what was seen last counts half, what was before that a quarter, and so on. 0: not known yet."""
    _bytes: int = 0

    def seen(self, count: int, now: float) -> bool:
        """So many have gone by now. False when that was to be told too short a time ago."""
        passed = now - self.at
        if passed < PROGRESS_S:
            return False
        latest = (count - self._bytes) / passed
        self.rate = (self.rate + latest) / 2 if self.rate else latest
        self.at, self._bytes = now, count
        return True

    def left_s(self, count: int) -> float:
        """About how many seconds it takes from here; 0: not known."""
        return (self.total - count) / self.rate if self.rate > 0 and self.total > count else 0.0


@dataclass
class FrozenCopy:
    """A worker of this node that stands still, until `until` by `Node.elapsed`: no clock that is set has a say. `fenced`: it was before."""

    operation: str
    frozen: Frozen
    until: float
    fenced: bool
    image: str
    hold_s: float = 0.0
    """How long it may stand still after an order is done."""


@dataclass
class HeldCopy:
    """A restored copy before its first instruction, until `until` (by `Node.elapsed`)."""

    operation: str
    held: Held
    until: float
    image: str


@dataclass(frozen=True)
class Hidden:
    """A worker that runs on since its hold ended, and that the router hasn't taken back: to be tried again at `at` (by `Node.elapsed`)."""

    operation: str
    why: str
    at: float


@dataclass(frozen=True)
class Unsettled:
    """A worker that stood still when the agent before this one died, or may have, and isn't known to run yet.

    `operation` had it; empty: none, but it may lack its GPU memory. `since` is when this agent began to put it right, `at` when that is
    tried again (by `Node.elapsed`).
    """

    operation: str
    since: float
    at: float


@dataclass(frozen=True)
class Leaving:
    """A worker that an order has ended for certain, and which leaves the journal as soon as that can be written.

    `incarnation` tells it from the same worker come back: the process alone doesn't where a runtime brings the very same one back.
    """

    process: Process
    incarnation: int
    operation: str
    step: str
    detail: str


@dataclass
class Node:
    """Everything that orders share. All of it belongs to the event loop's thread; only blocking calls leave it (`in_thread`)."""

    settings: Settings
    runtime: Runtime
    depot: Depot
    journal: Journal
    serving: Serving
    probe: Probing
    log: Log
    clock: Callable[[], float] = time.time
    elapsed: Callable[[], float] = time.monotonic
    """Seconds since some moment, never set back: for how long something has taken."""
    events: Events = field(default_factory=Events)
    networks: dict[str, Network] = field(default_factory=dict)
    frozen: dict[str, FrozenCopy] = field(default_factory=dict)
    held: dict[str, HeldCopy] = field(default_factory=dict)
    streams: dict[str, Mapping[int, int]] = field(default_factory=dict)
    """Of copies that were restored, what their connections had moved before they ran. See `orders.streams`."""
    hidden: dict[str, Hidden] = field(default_factory=dict)
    spoken: dict[str, float] = field(default_factory=dict)
    """When the last order about each worker ended, by `Node.elapsed`. Without any: see `began`."""
    leaving: dict[str, Leaving] = field(default_factory=dict)
    unsettled: dict[str, Unsettled] = field(default_factory=dict)
    notices: dict[str, Notice] = field(default_factory=dict)
    sources: tuple[NoticeSource, ...] = ()
    """Where notices come from, for their names and what is wrong with them."""
    rehearsals: tuple[NoticeSource, ...] = ()
    """Their canaries, for what is wrong with them."""
    telling: Callable[[Mapping[str, Notice]], None] = lambda _found: None
    """Is called with all open notices before any is told."""
    canaries: dict[str, float] = field(default_factory=dict)
    """By source, when its canary was last heard; seconds since the epoch."""
    facts: dict[str, str] = field(default_factory=dict)
    slot_gpus: Mapping[str, tuple[Gpu, ...]] = field(default_factory=dict)
    """The GPUs of each slot, as the driver showed them at the start, with those that it has shown since the machine's start."""
    proven: Proven | None = None
    """Whether its runtime works here. None: there is nothing to try."""
    busy_images: BusyImages = field(default_factory=BusyImages)
    """Images that orders in progress read or write."""

    def __post_init__(self) -> None:
        self.began = self.elapsed()
        self.exits = Exits(self.worker_ended)
        self.promises = Promises(self.journal, self.elapsed)
        self._threads = ThreadPoolExecutor(THREADS, "blocking")
        self._background: set[asyncio.Task[None]] = set()
        self._finishing = False
        self._kept: set[asyncio.Task[None]] = set()
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._to_sync: set[str] = set()
        self._troubles: dict[str, Problem] = {}

    async def in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        """A blocking call, out of the loop's way."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *arguments))

    def in_background(self, call: Callable[..., object], *arguments: object) -> "asyncio.Task[None]":
        """A blocking call that no order waits for; its failure is logged."""

        async def run() -> None:
            try:
                await self.in_thread(call, *arguments)
            except Exception as error:
                self.log.error("background work failed", error=f"{type(error).__name__}: {error}")

        task = asyncio.create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def keep(self, task: "asyncio.Task[None]") -> None:
        """A task that nobody waits for: its failure is logged. It is cancelled when the agent ends."""
        self._kept.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._kept.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log.error("background work failed", task=task.get_name(), error=f"{type(error).__name__}: {error}")

    async def in_time(
        self, within_s: float, what: str, call: Callable[..., T], *arguments: object, late: Callable[[T], object] = lambda _: None
    ) -> T:
        """A blocking call that others wait for no longer than `within_s` seconds. One that hangs can't be ended: should it come back after
        all, `late` is called with what it gave, in a thread as well, to take it back. Raises what the call does, and Retry SH614."""
        going = asyncio.create_task(self.in_thread(call, *arguments))
        await asyncio.wait((going,), timeout=within_s)
        if going.done():
            return going.result()

        async def take_back() -> None:
            await self.in_thread(late, await going)

        task = asyncio.create_task(take_back(), name=f"take back {what}")
        self.keep(task)
        raise retry(
            "SH614",
            f"{what} took longer than {within_s:g} s, and was given up",
            "Look for what hangs on this node: a disk, a shared folder, the worker itself",
        )

    def trouble(self, about: str, problem: Problem | None) -> None:
        """What is wrong here now and is still being tried: logged when it changes, and in this node's report until it is over (None)."""
        if problem is None:
            self._troubles.pop(about, None)
        elif self._troubles.get(about) != problem:
            self._troubles[about] = problem
            self.log.problem(problem)

    @property
    def troubles(self) -> tuple[Problem, ...]:
        """All of it that isn't over."""
        return tuple(self._troubles.values())

    def remove_network(self, worker: str) -> None:
        """Remove the network of a worker that was ended, while its next copy already comes to life elsewhere."""
        network = self.networks.pop(worker, None)
        if network is not None:
            self._removing[worker] = self.in_background(network.destroy)

    async def network_removed(self, worker: str) -> None:
        """Wait until the worker's former network is gone: a new one has the same names."""
        removing = self._removing.pop(worker, None)
        if removing is not None:
            await removing

    async def finish_background(self) -> None:
        """Wait for all of it, but for what is kept (see `keep`), which is cancelled: call it once nobody looks after holds any more."""
        kept = tuple(self._kept)
        for task in kept:
            task.cancel()
        await asyncio.gather(*kept, return_exceptions=True)
        self._finishing = True
        try:
            while self._background:
                await asyncio.wait(tuple(self._background))
        finally:
            self._finishing = False

    def sync_later(self, image: str) -> None:
        """Bring an image to the disk, but not while its worker stands still and waits, here or elsewhere: a disk that is busy with
        gigabytes would keep the journals of both nodes waiting. An image that is discarded meanwhile is never written at all.

        A node on which something always stands still puts it off for `SYNC_LATEST_S` seconds and no longer; so long it also waits in the
        middle of it, when a worker comes to stand still meanwhile. An image that an order reads is
        left as it is until that is over: it may have to be joined first (see `images.spread`), which takes files away from it.

        Engines count on it: what fails is told (SH682), and tried again until it is done or the image is discarded.
        """
        if image not in self._to_sync:
            self._to_sync.add(image)
            self._look_again(image, self.elapsed() + SYNC_LATEST_S)

    def _look_again(self, image: str, latest: float) -> None:
        asyncio.get_running_loop().call_later(SYNC_S, self._sync_once_quiet, image, latest)

    def _sync_once_quiet(self, image: str, latest: float) -> None:
        busy = self.frozen or self.held or self.journal.reservations()
        if image in self.busy_images or (busy and self.elapsed() < latest):
            self._look_again(image, latest)
        else:
            self._to_sync.discard(image)  # from here on it may have become another one of the same name
            self.in_background(self._sync, image, latest, asyncio.get_running_loop())

    def _sync(self, image: str, latest: float, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self.depot.sync(image, partial(self._give_way, image, latest))
        except Exception as error:  # whatever it is: engines take it for durable in the end
            loop.call_soon_threadsafe(self._unsynced, image, error)
        else:
            loop.call_soon_threadsafe(self.trouble, f"sync {image}", None)

    def _unsynced(self, image: str, error: Exception) -> None:
        self.trouble(f"sync {image}", not_on_disk(image, error))
        asyncio.get_running_loop().call_later(SYNC_AGAIN_S, self.sync_later, image)

    def _give_way(self, image: str, latest: float) -> None:
        """Called from the thread that brings the image to the disk: wait while a worker stands still here, unless somebody needs it."""
        while (self.frozen or self.held) and image not in self.busy_images and self.elapsed() < latest and not self._finishing:
            time.sleep(GIVE_WAY_S)

    def seen(self, asked: Asked) -> Seen:
        """What is known of an order's operation, for the guard."""
        copy = self.frozen.get(asked.worker) or self.held.get(asked.worker)
        return Seen(
            epoch=self.journal.epoch,
            steps={entry.step: entry for entry in self.journal.entries(asked.operation)},
            worker=self.journal.worker(asked.worker),
            reservation=self.journal.reservation(asked.operation),
            holding=copy is not None and copy.operation == asked.operation,
            unsettled=asked.worker in self.unsettled,
        )

    def row(self, worker: str) -> WorkerRow:
        """A worker that the guard has found to live here."""
        row = self.journal.worker(worker)
        assert row is not None
        return row

    def change(self, worker: str, **changes: object) -> None:
        """Change a worker's row; nothing if it left meanwhile."""
        row = self.journal.worker(worker)
        if row is not None:
            self.journal.put_worker(msgspec.structs.replace(row, **changes))

    def doubted(self, row: WorkerRow) -> WorkerRow:
        """A worker's row with what is known against it by now, which is remembered. A disk that takes no writes keeps nothing from being
        known.
        """
        known = [doubt for source in self.sources if isinstance(source, Doubting) for doubt in source.doubts()]
        settings = self.settings.slot_ids().get(row.slot)
        named = bool(self.slot_gpus.get(row.slot) or (settings is not None and (settings.pci or settings.uuids)))
        found = doubted(row, known, own_gpus=named)
        if found is not row:
            self.log.error("nothing that a worker computes is to be trusted any more", worker=row.spec.worker, why=found.doubt)
            try:
                self.change(row.spec.worker, doubt=found.doubt, doubted=found.doubted)
            except Stalled as error:
                self.log.problem(error.problem, worker=row.spec.worker)
        return found

    def settle(self, operation: str, worker: str) -> None:
        """A worker that runs in traffic is in no operation, once no order of it is being carried out."""
        row = self.journal.worker(worker)
        if row is not None and row.state == "running" and row.operation == operation:
            self.journal.put_worker(msgspec.structs.replace(row, operation=""))

    def part(self, operation: str, worker: str) -> None:
        """The operation may be over, and nobody tells this agent so: another may have the worker, unless it stands still for this one."""
        row = self.journal.worker(worker)
        if row is not None and row.operation == operation and row.state != "frozen" and worker not in self.frozen:
            self.journal.put_worker(msgspec.structs.replace(row, operation=""))

    def network(self, worker: str) -> Network:
        """The network of a worker that is here, or on its way here."""
        return self.networks[worker]

    def placed(self, spec: WorkerSpec, slot: str) -> WorkerSpec:
        """The spec of a worker in this slot: it names the slot's GPUs, and whether NVLink connects them, as far as that is known."""
        own, found = self.slot_gpus.get(slot, ()), self.domains(slot)
        linked = None if len(own) == 1 else len(found) == 1 if found and own else spec.linked
        return msgspec.structs.replace(spec, gpus=tuple(gpu.pci for gpu in own), linked=linked)

    def domains(self, slot: str) -> tuple[str, ...]:
        """The NVLink domains of a slot's GPUs, sorted; empty: not known."""
        settings = self.settings.slot_ids().get(slot)
        return domains(self.settings.node, settings.domain if settings is not None else "", self.slot_gpus.get(slot, ()))

    def occupied(self) -> dict[str, str]:
        """Slot to the worker in it."""
        return {row.slot: row.spec.worker for row in self.journal.workers().values()}

    def progress(self, operation: str, step: str, total: int = 0) -> Callable[[int], None]:
        """A callback for any thread that publishes bytes as progress, now and then, of about `total` (0: nobody knows)."""
        loop, pace = asyncio.get_running_loop(), Pace(total, self.elapsed())

        def tell(count: int) -> None:
            if self.elapsed() - pace.at >= PROGRESS_S:  # else the loop would be woken, and take turns with who sends, for each MiB
                loop.call_soon_threadsafe(self._tell, operation, step, count, pace)

        return tell

    def step_event(self, operation: str, step: str) -> None:
        """Tell that a step has come this far."""
        self.events.publish(pb.Event(progress=pb.Progress(operation=operation, step=step, at=self.clock())))

    def _tell(self, operation: str, step: str, count: int, pace: Pace) -> None:
        if pace.seen(count, self.elapsed()):
            told = pb.Progress(operation=operation, step=step, bytes=count, at=self.clock(), total=pace.total)
            told.rate, told.left_s = pace.rate, pace.left_s(count)
            self.events.publish(pb.Event(progress=told))

    # -- workers that end by themselves

    def adopt(self, worker: str, process: Process, network: Network) -> None:
        """A live worker is here: keep its network, and notice its end."""
        self.networks[worker] = network
        self.exits.watch(worker, process)

    def _is_in_an_image(self, row: WorkerRow) -> bool:
        """It stood still, and its image is whole: that is the worker now. What its container starts again is another, under its name."""
        frozen = self.journal.entry(row.operation, "freeze") if row.spec.worker in self.frozen else None
        return frozen is not None and frozen.state == "done"

    def worker_ended(self, worker: str, status: int) -> None:
        """Its process ended, and no order did it: it leaves this node. Where the runtime finds it, or can't tell, it stays."""
        row = self.journal.worker(worker)
        if row is None:
            return
        if self.may_live(row.process):  # reaps it, if it is dead and was this agent's child
            self.log.error("worker said to have ended, but may live", worker=worker, pid=row.process.pid)
            self.exits.watch_again(worker, row.process)
            return
        try:
            with self.journal.batch():
                self.journal.drop_worker(worker)
                if row.spec.pod is not None and not self._is_in_an_image(row):
                    self.journal.forget_started(f"pod/{row.spec.pod.uid}")  # its container may be started again (see `residents`)
                if not row.begun:
                    self.journal.forget_started(worker)  # it couldn't be let run
                if row.operation:
                    self.journal.undo(row.operation, ("fence", "freeze", "resume"), self.clock(), "the worker's process ended by itself")
        except Stalled as error:  # the disk is full: it is known no later than that it takes writes again
            self.log.problem(error.problem, worker=worker)
            self.exits.watch_again(worker, row.process)
            return
        self.frozen.pop(worker, None)
        self.unsettled.pop(worker, None)
        network = self.networks.pop(worker, None)
        if network is not None:
            for undo in (network.disconnect, network.destroy):  # what can't be cut off can go all the same
                try:
                    undo()
                except Exception as error:  # the worker is dead, whatever is left of its network
                    self.log.error("network not removed", worker=worker, error=f"{type(error).__name__}: {error}")
        self.log.error("worker ended", worker=worker, status=status)
        self.events.publish(pb.Event(exit=pb.WorkerExit(worker=worker, status=status)))

    def empty(self) -> bool:
        """No worker is here any more, in whatever state, nor anything of one that is on its way."""
        return not (self.journal.workers() or self.frozen or self.held or self.leaving or self.busy_images)

    def homes(self) -> dict[str, str]:
        """The slots of the workers that live in pods, by the pod's uid."""
        return {row.spec.pod.uid: row.slot for row in self.journal.workers().values() if row.spec.pod is not None}

    def may_live(self, process: Process) -> bool:
        """The runtime finds it, or can't tell."""
        try:
            return self.runtime.find(process)
        except OSError:  # for want of descriptors, say
            return True

    # -- notices

    def notices_changed(self, found: dict[str, Notice]) -> None:
        """All open notices, as their source sees them now: report first, work after."""
        self.canaries = {n.source: n.seen_at for n in found.values() if n.canary}
        found = {key: n for key, n in found.items() if not n.canary}  # from here on nothing can take one for a notice
        self.telling(found)
        before, self.notices = self.notices, found
        for key, notice in found.items():
            if before.get(key) != notice:
                self.events.publish(pb.Event(notice=notice_message(notice)))
        for key in before:
            if key not in found:
                self.events.publish(pb.Event(notice_withdrawn=key))
