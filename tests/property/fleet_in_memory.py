"""A fleet whose agents follow the contract in memory: copies that run, stand still or are held, holds that end, images, journals.

It checks after every change that no worker has two copies that run or could run on by themselves, and that one can always be restored,
unless the worker died by itself before there was an image. What it leaves out: bytes, networks, and agents that run copies they mustn't.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from shunter.act.port import CopyView
from shunter.act.run import Parts, Times
from shunter.act.store import Store
from shunter.model.errors import Problem, Rejected, Retry, Unknown
from shunter.model.ids import Digest, Epoch, ImageId, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId, node_of
from shunter.model.operation import OperationRecord, Outcome, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.pod import Pod
from shunter.model.record import Record
from shunter.model.snapshot import Fleet, Image, Node, Slot, Worker, WorkerState
from shunter.wire import agent_pb2 as pb

FAULTS = (
    "before",
    "after",
    "refuse",
    "refuse-after",
    "retry",
    "restart",
    "restart-after",
    "cut",
    "cut-after",
    "undone",
    "slow",
    "slow-after",
    "dies",
    "unhealthy",
    "stopped",
)
"""What can happen at an order. `before` and `after`: the answer is lost, before or after the effect; `refuse-after`: it is done, and
answered as a refusal; `cut`: the node is away for 90 s; `undone`: it was tried and taken back; `slow`: it takes longer than a hold lasts,
before the effect or after it; `dies`: the worker dies by itself right before it; `unhealthy`: no copy of it passes its probe from now on;
`stopped`: the agent stands still with the order in hand, for longer than a hold, and carries it out when it wakes up.
"""
WORKER = WorkerId("w")
SPEC = pb.WorkerSpec(worker=WORKER, role="decode", graph="g", engine="vllm")
HOLD = 30.0
PLAN = Digest("sha256:plan")


class Crash(BaseException):
    """The engine dies here."""


def _problem(code: str, what: str) -> Problem:
    return Problem(code=code, what=what, remedy="none: this is a test")


class Copy:
    """One copy of the worker on one node."""

    def __init__(self, state: str, operation: str = "", until: float = float("inf"), fenced: bool = False) -> None:
        self.state, self.operation, self.until, self.fenced = state, operation, until, fenced
        self.dead = False
        """Held, and dead already: its agent finds out when it lets it run."""


class MemoryAgent:
    """One node. `faults` of the world are looked up by the running number of the order."""

    def __init__(self, world: "World", node: NodeId) -> None:
        self.world, self._node = world, node
        self.copy: Copy | None = None
        self.images: set[ImageId] = set()
        self.steps: dict[tuple[str, str], str] = {}
        self.replies: dict[tuple[str, str], object] = {}
        self.prepared: set[str] = set()
        self.contained: str | None = None
        """The image of the container that a worker lives in that it was prepared for, as it was told."""
        self.addresses = {"10.0.0.7"}
        """Its own, which its worker uses."""
        self.epoch = 0
        self.away_until = 0.0
        self.late: list[tuple[str, pb.Order, Callable[[], object]]] = []
        """Orders that it has in hand while it stands still."""
        self.dead = False

    @property
    def node(self) -> NodeId:
        return self._node

    def restart(self) -> None:
        """The agent dies and comes back: what was frozen runs on, what was held dies."""
        if self.copy and self.copy.state == "frozen":
            self._run_on(self.copy)
        elif self.copy and self.copy.state == "held":
            self._lose_held(self.copy)
        self.world.check()

    def wake(self) -> None:
        """Carry out what came before it stood still. What it answers nobody hears, and how late it is it doesn't know yet."""
        orders, self.late = self.late, []
        self.world.woken = True
        for step, order, effect in orders:
            if (order.operation, step) in self.steps and self.steps[(order.operation, step)] == "done":
                continue
            with contextlib.suppress(Rejected):
                self.replies[(order.operation, step)] = effect()
                self.steps[(order.operation, step)] = "done"
                self.world.check()

    def expire(self) -> None:
        if self.late:
            if self.world.now < self.away_until:
                return  # it ends no hold either
            self.wake()
        if self.copy and self.copy.until <= self.world.now:
            self.restart()

    def _run_on(self, copy: Copy) -> None:
        """Out of the router's sight, if it was before: a real agent tries to put it back when a hold ends, but it may not succeed."""
        self.steps[(copy.operation, "freeze")] = "undone"
        self.copy = Copy("running", fenced=copy.fenced)

    def die(self) -> None:
        """The copy ends by itself. The agent sees that at once, but of a held one."""
        assert self.copy is not None
        if self.copy.state == "held":
            self.copy.dead = True
            return
        for step in ("fence", "freeze", "resume"):
            if (self.copy.operation, step) in self.steps:
                self.steps[(self.copy.operation, step)] = "undone"
        self.copy = None

    def _lose_held(self, copy: Copy) -> None:
        for step in ("restore", "prepare", "resume"):
            self.steps[(copy.operation, step)] = "undone"
        self.prepared.discard(copy.operation)
        self.copy = None

    def _reachable(self) -> None:
        if self.dead or self.world.now < self.away_until:
            raise Unknown(_problem("SH520", f"{self.node} doesn't answer"))

    async def _order(self, step: str, order: pb.Order, effect: Callable[[], object]) -> object:
        fault = self.world.next_fault(self.node, step)
        await asyncio.sleep(0)
        self._befall(fault)
        if fault == "slow":
            await self.world.sleep(HOLD + 10.0)
        self._fail_before(fault, step)
        if order.epoch < self.epoch:
            raise Rejected(_problem("SH601", "old leader"))
        self.epoch = order.epoch
        if fault == "stopped":
            self.away_until = self.world.now + HOLD + 15.0
            self.late.append((step, order, effect))
            raise Unknown(_problem("SH520", f"{self.node} stands still"))
        self._refuse(fault, step)
        key = (order.operation, step)
        if self.steps.get(key) == "done":
            return self.replies[key]
        try:
            reply = effect()
        except Rejected:
            self._fail_after(fault, step)  # refusals get lost too
            raise
        self.steps[key], self.replies[key] = "done", reply
        self.world.check()
        if fault == "slow-after":
            await self.world.sleep(HOLD + 10.0)
        self._fail_after(fault, step)
        return reply

    def _befall(self, fault: str) -> None:
        if fault == "dies":
            self.world.die()
        if fault == "unhealthy":
            self.world.healthy = False

    def _fail_before(self, fault: str, step: str) -> None:
        if fault == "cut":
            self.away_until = self.world.now + 90.0
        if fault == "restart":
            self.restart()
        self._reachable()
        if fault in ("before", "restart"):
            raise Unknown(_problem("SH520", f"lost before {step}"))

    def _refuse(self, fault: str, step: str) -> None:
        if fault == "refuse":
            raise Rejected(_problem("SH999", f"{step} refused"))
        if fault == "retry":
            raise Retry(_problem("SH998", f"{step} is busy"))
        if fault == "undone":
            if step == "resume" and self.copy and self.copy.state == "held":
                self._lose_held(self.copy)
            raise Rejected(_problem("SH997", f"{step} was tried and undone"))

    def _fail_after(self, fault: str, step: str) -> None:
        if fault == "restart-after":
            self.restart()
        if fault == "cut-after":
            self.away_until = self.world.now + 90.0
        if fault in ("after", "restart-after", "cut-after"):
            raise Unknown(_problem("SH520", f"lost after {step}"))
        if fault == "refuse-after":
            raise Rejected(_problem("SH996", f"{step} was done, and is said to be refused"))

    def _need(self, ok: bool, what: str) -> None:
        if not ok:
            raise Rejected(_problem("SH606", what))

    def row(self, state: str) -> pb.WorkerReport:
        """What it says of the worker."""
        return pb.WorkerReport(spec=SPEC, state=state)

    async def report(self, timeout: float, archived: ImageId | None = None) -> pb.NodeReport:
        assert timeout > 0
        self._reachable()
        workers = [self.row(self.copy.state)] if self.copy and self.copy.state != "held" else []
        images = [pb.ImageInfo(id=i, spec=SPEC, bytes=7) for i in sorted(self.images)]
        kept = [pb.ImageInfo(id=i, spec=SPEC, bytes=7) for i in sorted(self.world.archive) if i == archived]
        return pb.NodeReport(node=self.node, image_address=f"{self.node}:1", workers=workers, images=images, archived=kept)

    async def journal(self, operation: OperationId, timeout: float) -> CopyView:
        assert timeout > 0
        self._reachable()
        steps = {step: state for (op, step), state in self.steps.items() if op == operation}
        if not steps:
            return CopyView()  # an operation that it never heard of: it can't tell whose copy is meant
        state = self.copy.state if self.copy else "none"
        return CopyView(copy=state, images=frozenset(self.images), steps=steps)  # type: ignore[arg-type]

    async def preflight(
        self,
        order: pb.Order,
        *,
        destination: bool,
        slot: SlotId | None,
        facts: Mapping[str, str],
        size: int,
        timeout: float,
        spec: pb.WorkerSpec | None = None,
        uses: pb.Uses | None = None,
        privileges: pb.Privileges | None = None,
    ) -> pb.PreflightReply:
        def effect() -> pb.PreflightReply:
            self._need(destination or self.copy is not None, "it doesn't live here")
            if destination:
                lacks = [pb.Refusal(code="SH768", what="it lacks them")] if uses and set(uses.addresses) - self.addresses else []
                return pb.PreflightReply(image_address=f"{self.node}:1", refusals=lacks)
            assert self.copy is not None
            return pb.PreflightReply(
                bytes=7,
                worker=self.row(self.copy.state),
                uses=pb.Uses(addresses=sorted(self.addresses), container=pb.Contained(image="engine:1")),
            )

        return await self._order("preflight", order, effect)  # type: ignore[return-value]

    async def prepare(
        self,
        order: pb.Order,
        slot: SlotId,
        spec: pb.WorkerSpec,
        timeout: float,
        pod: Pod | None = None,
        container: pb.Contained | None = None,
    ) -> pb.Done:
        def effect() -> pb.Done:
            self._need(self.copy is None, "the slot is occupied")
            self.contained = container.image if container is not None else None
            self.prepared.add(order.operation)
            return pb.Done()

        return await self._order("prepare", order, effect)  # type: ignore[return-value]

    async def fence(self, order: pb.Order, timeout: float) -> pb.Done:
        def effect() -> pb.Done:
            self._set_fenced(True)
            assert self.copy is not None
            self.copy.operation = order.operation
            return pb.Done()

        return await self._order("fence", order, effect)  # type: ignore[return-value]

    async def unfence(self, order: pb.Order, timeout: float) -> pb.Done:
        return await self._order("unfence", order, lambda: self._set_fenced(False))  # type: ignore[return-value]

    def _set_fenced(self, fenced: bool) -> pb.Done:
        self._need(self.copy is not None and self.copy.state == "running", "it doesn't run here")
        assert self.copy is not None
        self.copy.fenced = fenced
        return pb.Done() if fenced else pb.Done(connections=3, ended=self.world.ended, moved=self.world.moved)

    async def freeze(
        self, order: pb.Order, image: ImageId, to: pb.Peer | None, hold: float, timeout: float, ahead: float | None = None
    ) -> pb.FreezeReply:
        def effect() -> pb.FreezeReply:
            self._need(self.copy is not None and self.copy.state == "running", "it doesn't run here")
            self.copy = Copy("frozen", order.operation, self.world.now + hold, self.copy is not None and self.copy.fenced)
            self.images.add(image)
            if to is not None:
                self.world.agents[NodeId(to.node)].images.add(image)
            copied = 4 if ahead else 0
            return pb.FreezeReply(
                image=pb.ImageInfo(id=image, bytes=7),
                frozen_at=self.world.now,
                dump_s=1,
                send_s=2,
                copy_s=ahead or 0.0,
                copied_bytes=copied,
                sent_bytes=7 - copied,
            )

        return await self._order("freeze", order, effect)  # type: ignore[return-value]

    async def thaw(self, order: pb.Order, timeout: float) -> pb.Done:
        def effect() -> pb.Done:
            if self.copy and self.copy.state == "frozen":
                self._run_on(self.copy)
            self._need(self.copy is not None and (order.operation, "freeze") in self.steps, "it was never frozen")
            return pb.Done()

        return await self._order("thaw", order, effect)  # type: ignore[return-value]

    async def release(self, order: pb.Order, timeout: float) -> pb.Done:
        def effect() -> pb.Done:
            self._need(self.copy is not None and self.copy.state == "frozen" and self.copy.operation == order.operation, "not frozen")
            self.copy = None
            return pb.Done()

        return await self._order("release", order, effect)  # type: ignore[return-value]

    async def restore(
        self, order: pb.Order, slot: SlotId, image: ImageId, hold: float, timeout: float, pod: Pod | None = None
    ) -> pb.RestoreReply:
        def effect() -> pb.RestoreReply:
            self._need(order.operation in self.prepared and self.copy is None, "no slot is prepared")
            if image in self.world.archive:
                self.images.add(image)  # as a real agent fetches it
            self._need(image in self.images, "the image isn't here")
            self.copy = Copy("held", order.operation, self.world.now + hold)
            return pb.RestoreReply(restore_s=1)

        return await self._order("restore", order, effect)  # type: ignore[return-value]

    async def resume(self, order: pb.Order, timeout: float) -> pb.ResumeReply:
        def effect() -> pb.ResumeReply:
            self._need(self.copy is not None and self.copy.state == "held" and self.copy.operation == order.operation, "no held copy")
            assert self.copy is not None
            if self.copy.dead:
                self._lose_resumed(order.operation)
                raise Rejected(_problem("SH631", "the held copy is dead"))
            self.copy = Copy("running", order.operation, fenced=True)
            self.world.check()
            if not self.world.healthy:
                self._lose_resumed(order.operation)
                raise Rejected(_problem("SH632", "it runs, and its probe says no"))
            return pb.ResumeReply(running_at=self.world.now)

        return await self._order("resume", order, effect)  # type: ignore[return-value]

    def _lose_resumed(self, operation: str) -> None:
        """No copy is left of a resume that failed; the slot stays reserved."""
        self.copy = None
        self.steps[(operation, "restore")], self.steps[(operation, "resume")] = "undone", "failed"

    async def abort(self, order: pb.Order, timeout: float) -> pb.Done:
        def effect() -> pb.Done:
            self._need(self.steps.get((order.operation, "resume")) != "done", "it runs already")
            if self.copy and self.copy.state == "held" and self.copy.operation == order.operation:
                self._lose_held(self.copy)
            self.prepared.discard(order.operation)
            if (order.operation, "prepare") in self.steps:
                self.steps[(order.operation, "prepare")] = "undone"
            return pb.Done()

        reply = await self._order("abort", order, effect)
        self.steps[(order.operation, "abort")] = "undone"
        return reply  # type: ignore[return-value]

    async def checkpoint(self, order: pb.Order, image: ImageId, timeout: float) -> pb.FreezeReply:
        def effect() -> pb.FreezeReply:
            self._need(self.copy is not None and self.copy.state == "running", "it doesn't run here")
            self.images.add(image)
            return pb.FreezeReply(image=pb.ImageInfo(id=image, bytes=7), frozen_at=self.world.now, thawed_at=self.world.now)

        return await self._order("checkpoint", order, effect)  # type: ignore[return-value]

    async def send(self, order: pb.Order, image: ImageId, to: pb.Peer, timeout: float) -> pb.SendReply:
        def effect() -> pb.SendReply:
            self._need(image in self.images, "the image isn't here")
            (self.world.archive if to.address == "archive" else self.world.agents[NodeId(to.node)].images).add(image)
            return pb.SendReply(bytes_sent=7)

        return await self._order(f"send {to.node}", order, effect)  # type: ignore[return-value]

    async def drain(self, order: pb.Order, timeout: float) -> pb.Done:
        def effect() -> pb.Done:
            self._need(self.copy is not None and self.copy.state == "running" and self.copy.fenced, "it isn't fenced")
            self.copy = None
            self.world.drained = True
            return pb.Done()

        return await self._order("drain", order, effect)  # type: ignore[return-value]

    async def discard(self, order: pb.Order, image: ImageId, timeout: float, *, archived: bool = False) -> pb.Done:
        def effect() -> pb.Done:
            (self.world.archive if archived else self.images).discard(image)
            return pb.Done()

        return await self._order("discard archived" if archived else "discard", order, effect)  # type: ignore[return-value]


@cache
def _empty_store() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        Store(path).close()
        return path.read_bytes()


class CrashingStore(Store):
    """Dies at the `crash_at`-th durable write (from 1), before it or right after it."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_empty_store())  # to make each anew would bring each to the disk
        super().__init__(path)
        self._db.execute("PRAGMA synchronous=OFF")  # thousands of runs: what is tested here is the order of writes, not the disk
        self.writes = 0
        self.crash_at = 0
        self.after = False

    def _count(self, after: bool) -> None:
        if not after:
            self.writes += 1
        if self.writes == self.crash_at and after == self.after:
            self.crash_at = 0
            raise Crash

    def insert(self, records: object) -> None:
        self._count(False)
        super().insert(records)  # type: ignore[arg-type]
        self._count(True)

    def advance(self, operation: OperationId, step: Step, at: float, **changes: object) -> OperationRecord:
        self._count(False)
        record = super().advance(operation, step, at, **changes)
        self._count(True)
        return record

    def finish(self, operation: OperationId, outcome: Outcome) -> OperationRecord:
        self._count(False)
        record = super().finish(operation, outcome)
        self._count(True)
        return record


class World:
    """Three nodes with one slot each; the worker runs on `a`."""

    def __init__(self, store: CrashingStore) -> None:
        self.now = 1000.0
        self.store = store
        self.agents = {NodeId(n): MemoryAgent(self, NodeId(n)) for n in ("a", "b", "c")}
        self.agents[NodeId("a")].copy = Copy("running")
        self.faults: dict[int, str] = {}
        self.named: dict[tuple[str, str], list[str]] = {}
        """Faults by node and step, one for each such order; empty for none."""
        self.orders: list[tuple[str, str]] = []
        self.records: list[Record] = []
        self.drained = False
        self.ended = self.moved = 0
        """Of a worker's three connections, those that had ended when it ran on elsewhere, and those that went on."""
        self.woken = False
        """An agent has carried out an order long after it was given."""
        self.healthy = True
        self.died = self.died_bare = False
        """The worker died by itself; and had no image anywhere when it did."""
        self.gone: set[str] = set()
        self.archive: set[ImageId] = set()
        """What is kept away from the nodes."""
        self.incarnation = 0

    def next_fault(self, node: NodeId, step: str) -> str:
        self.orders.append((node, step))
        named = self.named.get((node, step))
        return named.pop(0) if named else self.faults.pop(len(self.orders), "")

    def check(self) -> None:
        """The first invariant, on what the copies really are."""
        copies = [a.copy for a in self.agents.values() if a.copy and not a.dead]
        able = [c for c in copies if c.state in ("running", "frozen")]
        assert len(able) <= 1, f"{len(able)} copies run or could run on by themselves, after {self.orders[-5:]}"
        images = self.archive or any(a.images for a in self.agents.values() if not a.dead)
        assert able or images or self.drained or self.died_bare, f"nothing is left of the worker, after {self.orders[-5:]}"

    def die(self) -> None:
        """The worker dies where it lives; while it lives nowhere, a held copy of it does."""
        there = [a for a in self.agents.values() if a.copy and not a.dead]
        able = [a for a in there if a.copy and a.copy.state != "held"]
        for agent in able or there:
            agent.die()
        self.died |= bool(able)
        self.died_bare |= bool(able) and not any(a.images for a in self.agents.values() if not a.dead)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        for agent in self.agents.values():
            agent.expire()
        self.check()
        await asyncio.sleep(0)

    def home(self) -> NodeId | None:
        return next((n for n, a in self.agents.items() if a.copy and a.copy.state == "running" and not a.dead), None)

    def fenced(self) -> bool:
        """The worker runs somewhere, and the router doesn't see it."""
        return any(a.copy.state == "running" and a.copy.fenced for a in self.agents.values() if a.copy and not a.dead)

    def fleet(self) -> Fleet:
        home = self.home()
        nodes = tuple(
            Node(id=n, slots=(Slot(id=SlotId(f"{n}/0"), worker=WORKER if n == home else None),), runtime="criu", archive=True)
            for n in sorted(self.agents)
        )
        holders: dict[ImageId, list[NodeId]] = {}
        for node, agent in sorted(self.agents.items()):
            for image in agent.images:
                holders.setdefault(image, []).append(node)
        for image in self.archive:
            holders.setdefault(image, [])
        images = tuple(
            Image(
                id=i,
                worker=WORKER,
                incarnation=Incarnation(0),
                taken_at=0,
                bytes=7,
                nodes=tuple(n),
                role="decode",
                graph="g",
                engine="vllm",
                archived=i in self.archive,
            )
            for i, n in sorted(holders.items())
        )
        worker = Worker(
            id=WORKER,
            role="decode",
            graph="g",
            engine="vllm",
            state=WorkerState.RUNNING if home else WorkerState.PARKED,
            node=home,
            slot=SlotId(f"{home}/0") if home else None,
            incarnation=Incarnation(self.incarnation),
        )
        return Fleet(nodes=nodes, workers=(worker,), images=images)

    def parts(self) -> Parts:
        return Parts(
            store=self.store,
            agents=self.agents,
            fleet=self.fleet,
            audit=self.records.append,
            clock=lambda: self.now,
            sleep=self.sleep,
            gone=lambda node: node in self.gone,
            times=Times(quick=5, bulk=30, hold=HOLD, margin=2, settle=20, pause=0.5),
        )

    def epoch(self) -> Epoch:
        return self.store.next_epoch()

    def plan(self, kind: OperationKind, number: int = 0, lane: str = "voluntary", **more: object) -> PlannedOperation:
        home = self.home()
        at = SlotId(f"{home}/0") if home else None
        others = sorted(n for n in self.agents if n != home)
        to = SlotId(f"{others[number % len(others)]}/0")
        image = sorted(i for a in self.agents.values() for i in a.images)[-1:] if kind in ("restore", "discard") else []
        arriving = kind in (OperationKind.MOVE, OperationKind.RESTORE)
        values: dict[str, object] = {
            "id": OperationId(f"{kind.value}-{number}"),
            "kind": kind,
            "worker": WORKER,
            "lane": lane,
            "policy": PolicyName("p"),
            "reason": "because",
            "expect": Preconditions(
                incarnation=Incarnation(self.incarnation),
                at=None if kind in ("restore", "discard") else at,
                absent=kind == "restore",
                free=to if arriving else None,
                image=image[0] if image else None,
            ),
            "from_slot": None if kind in ("restore", "discard") else at,
            "to_slot": to if arriving else None,
            "image": image[0] if image else None,
            "copies": (node_of(to),) if kind in ("park", "checkpoint") else (),
        }
        return PlannedOperation(**(values | more))  # type: ignore[arg-type]
