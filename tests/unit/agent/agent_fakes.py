"""In-memory stand-ins for what an agent stands on. Each can be told to fail at any call, and counts what was really done.

They leave out: real processes, files and networks; time that passes by itself; images that grow while they are sent.
"""

import io
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec
from shunter.model.errors import Problem, Rejected, Retry, Unknown
from shunter.wire import agent_pb2 as pb
from shunter_agent.depot import Archived, ImageFacts
from shunter_agent.exits import Exits
from shunter_agent.journal import Journal, WorkerRow
from shunter_agent.log import Log
from shunter_agent.node import Node
from shunter_agent.orders.carry import Orders
from shunter_agent.orders.destination import Destination
from shunter_agent.orders.holds import Holds
from shunter_agent.orders.source import Source
from shunter_agent.orders.transfers import Transfers
from shunter_agent.runtime.port import Dump, Gpus, Privileges, Process, Uses, WorkerSpec
from shunter_agent.settings import Settings, SlotSettings, TlsSettings

SPEC = WorkerSpec(
    worker="w", role="decode", graph="g", engine="vllm", address="10.0.0.1:9000", mac="02:00:00:00:00:01", control="http://10.0.0.1:9000"
)
PROCESS = Process(pid=2**22 + 17, started=5)  # above the kernel's largest pid: never a real process


def problem(code: str = "SH799") -> Problem:
    return Problem(code=code, what="told to fail", remedy="Tell it otherwise")


class Faults:
    """What fails, by call: an exception, or something to do before the call's effect."""

    def __init__(self) -> None:
        self.at: dict[str, Exception | Callable[[], None]] = {}
        self.done: Counter[str] = Counter()
        self.order: list[str] = []

    def point(self, name: str) -> None:
        fault = self.at.get(name)
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            fault()
        self.done[name] += 1
        self.order.append(name)


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeNetwork:
    own = True
    netns = None
    answered = False
    """Another copy is connected elsewhere."""

    def __init__(self, faults: Faults, *, connected: bool) -> None:
        self.faults, self.connected, self.exists = faults, connected, True

    def connect(self) -> None:
        self.faults.point("connect")
        self.connected = True

    def disconnect(self) -> None:
        self.faults.point("disconnect")
        self.connected = False

    def elsewhere(self) -> bool:
        self.faults.point("elsewhere")
        assert not self.connected, "it would hear itself"
        return self.answered

    def destroy(self) -> None:
        self.faults.point("destroy")
        self.connected = self.exists = False


class FakeFrozen:
    def __init__(self, runtime: "FakeRuntime", process: Process, at: float) -> None:
        self.runtime, self.process, self.standing = runtime, process, True
        self.dump = Dump(frozen_at=at, dump_s=0.5, needs=runtime.needed, privileges=runtime.allowed)

    def thaw(self) -> None:
        self.runtime.faults.point("thaw")
        self.standing = False
        self.runtime.running.add(self.process)

    def release(self) -> None:
        self.runtime.faults.point("release")
        self.standing = False
        self.runtime.alive.discard(self.process)

    def alive(self) -> bool:
        return self.standing


class FakeHeld:
    def __init__(self, runtime: "FakeRuntime", process: Process) -> None:
        self.runtime, self.process = runtime, process

    def resume(self) -> Process:
        self.runtime.faults.point("resume")
        self.runtime.running.add(self.process)
        return self.process

    def abort(self) -> None:
        self.runtime.faults.point("abort")
        self.runtime.alive.discard(self.process)


class FakeStarting(FakeHeld):
    def resume(self) -> Process:
        self.runtime.faults.point("begin to run")
        return super().resume()


class FakeRuntime:
    """Implements the port on sets: `alive` are processes that exist, `running` those of them that run."""

    name = "fake"

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.faults = clock, Faults()
        self.alive: set[Process] = {PROCESS}
        self.running: set[Process] = {PROCESS}
        self.networks: dict[str, FakeNetwork] = {}
        self.frozen: FakeFrozen | None = None
        self.lives: Sequence[FakeLive] = ()
        self.settled: list[tuple[Collection[int] | None, float]] = []
        """What was asked to be settled: what stays stopped, and for how long it was tried before."""
        self.allowed: Privileges | None = None
        self.never_ran: set[Process] = set()
        self.used: Uses | None = None
        self.moves: list[dict[int, int]] = []
        """What each look at its connections finds."""
        self.lacks: list[Problem] = []
        self.has_gpus, self.needed, self.gpu_facts = Gpus(), dict[str, str](), dict[str, str]()

    def facts(self) -> dict[str, str]:
        return {"runtime": "fake", "kernel": "6.1", "cpu": "c", **self.gpu_facts}

    def gpus(self) -> Gpus:
        return self.has_gpus

    def needs(self, process: Process, spec: WorkerSpec) -> dict[str, str]:
        return self.needed

    def privileges(self, process: Process) -> Privileges | None:
        return self.allowed

    def network(self, spec: WorkerSpec, process: Process | None = None) -> FakeNetwork:
        self.faults.point("network")
        self.networks[spec.worker] = FakeNetwork(self.faults, connected=process is not None)
        return self.networks[spec.worker]

    def start(self, spec: WorkerSpec, network: object) -> FakeStarting:
        self.faults.point("start")
        self.alive.add(PROCESS)
        return FakeStarting(self, PROCESS)

    def agent_dies(self) -> None:
        """What was never let run dies with whom it waited for."""
        self.alive &= self.running

    def connections(self, process: Process) -> dict[int, int]:
        self.faults.point("connections")
        return self.moves.pop(0) if self.moves else {}

    def uses(self, process: Process, spec: WorkerSpec) -> Uses | None:
        return self.used

    def lacking(self, needed: Uses, node: str) -> list[Problem]:
        self.faults.point("lacking")
        return self.lacks if needed == self.used else []

    def check(self, process: Process, spec: WorkerSpec) -> tuple[Problem, ...]:
        self.faults.point("check")
        return ()

    def freeze(self, process: Process, spec: WorkerSpec, network: object, folder: Path, on_frozen: Callable[[float], None]) -> FakeFrozen:
        self.faults.point("freeze")
        self.running.discard(process)
        on_frozen(self.clock())
        (folder / "pages-1.img").write_bytes(b"x" * 100)
        self.frozen = FakeFrozen(self, process, self.clock())
        return self.frozen

    def settle(self, process: Process, network: object, stopped: Collection[int] | None, waited_s: float) -> None:
        self.settled.append((stopped, waited_s))
        if process not in self.alive:
            raise Rejected(problem("SH710"))
        self.faults.point("settle")
        self.running.add(process)

    def stillborn(self, process: Process) -> bool:
        return process in self.never_ran

    def restore(self, spec: WorkerSpec, network: object, folder: Path, born: Callable[[Process], None] = lambda _process: None) -> FakeHeld:
        process = Process(pid=PROCESS.pid + 1, started=9)
        self.alive.add(process)
        born(process)
        try:
            self.faults.point("restore")
        except BaseException:
            self.alive.discard(process)
            raise
        return FakeHeld(self, process)

    def find(self, process: Process) -> bool:
        return process in self.alive

    def end(self, process: Process) -> None:
        self.faults.point("end")
        self.alive.discard(process)
        self.running.discard(process)

    def memory(self, process: Process) -> int | None:
        return 100

    def dumped_at_least(self, process: Process) -> int:
        return 80

    def live(self, process: Process) -> Sequence["FakeLive"]:
        self.faults.point("live")
        return self.lives


class FakeLive:
    pid = 1

    def __init__(self) -> None:
        self.closed = False

    def runs(self) -> Sequence[tuple[int, int]]:
        return ((4096, 1),)

    def read(self, address: int, into: memoryview) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class FakeDepot:
    """Images as a dictionary; `peers` are what was sent where."""

    def __init__(self, root: Path, faults: Faults) -> None:
        self.root, self.faults = root, faults
        self.whole: dict[str, ImageFacts] = {}
        self.partial: set[str] = set()
        self.peers: dict[str, list[str]] = {}
        self.expected = 0
        self.room = (10**9, 10**9)
        """Bytes for a dump that has time, and for an urgent one."""
        self.archive: dict[str, ImageFacts] | None = None
        """What the archive has; None: there is none."""
        self.deadlines: list[float | None] = []
        self.opened: Counter[str] = Counter()
        self.copied: list[float] = []
        """Seconds that memory could be copied ahead for, each time."""

    def begin(self, image: str, expected: int = 0, least: int = 0, *, urgent: bool = False) -> Path:
        self.faults.point("begin")
        short = self.short(image, least, urgent=urgent)
        if short is not None:
            raise Retry(short)
        if image in self.whole or image in self.partial:
            raise Rejected(problem("SH803"))
        self.partial.add(image)
        (self.root / image).mkdir(parents=True)
        return self.root / image

    def short(self, worker: str, least: int, *, urgent: bool) -> Problem | None:
        return problem("SH827") if least > self.room[urgent] else None

    def commit(self, image: ImageFacts, *, durable: bool) -> ImageFacts:
        self.faults.point("commit")
        self.partial.remove(image.id)
        self.whole[image.id] = msgspec.structs.replace(image, bytes=100)
        return self.whole[image.id]

    def sync(self, image: str, between: Callable[[], None] = lambda: None) -> None:
        between()
        self.faults.point("sync")

    def abandon(self, image: str) -> None:
        self.faults.point("abandon")
        self.partial.discard(image)

    def get(self, image: str) -> ImageFacts | None:
        return self.whole.get(image)

    in_memory = False

    def fetch(self, image: str, progress: Callable[[int], None], deadline: float | None = None) -> ImageFacts | None:
        self.faults.point("fetch")
        self.deadlines.append(deadline)
        progress(100)
        found = self.archive.get(image) if self.archive is not None else None
        if found is not None:
            self.whole[image] = found
        return found

    def in_archive(self, image: str) -> ImageFacts | None:
        self.faults.point("in_archive")
        return self.archive.get(image) if self.archive is not None else None

    def archived(self) -> Archived | None:
        if self.archive is None:
            return None
        images = tuple(self.archive[name] for name in sorted(self.archive))
        return Archived(looked_at=900.0, digest=" ".join(sorted(self.archive)) or "none", images=images)

    def discard_archived(self, image: str) -> bool:
        self.faults.point("discard_archived")
        assert self.archive is not None
        return self.archive.pop(image, None) is not None

    def folder(self, image: str) -> Path:
        self.faults.point("folder")
        self.opened[image] += 1
        return self.root / image

    def done(self, image: str) -> None:
        self.opened[image] -= 1

    def all(self) -> tuple[ImageFacts, ...]:
        return tuple(self.whole.values())

    def discard(self, image: str) -> bool:
        self.faults.point("discard")
        return self.whole.pop(image, None) is not None

    def sending(
        self,
        folder: Path,
        image: str,
        node: str,
        address: str,
        progress: Callable[[int], None],
        expected: int = 0,
        worker: str = "",
        deadline: float | None = None,
    ) -> "FakeSending":
        self.faults.point("sending")
        self.deadlines.append(deadline)
        self.expected = expected
        return FakeSending(self, node)

    def send(self, image: str, node: str, address: str, progress: Callable[[int], None], deadline: float | None = None) -> int:
        self.faults.point("send")
        self.deadlines.append(deadline)
        self.peers.setdefault(node, []).append(image)
        return 100


class FakeSending:
    def __init__(self, depot: FakeDepot, node: str) -> None:
        self.depot, self.node, self.cancelled = depot, node, False
        self.bytes = 0

    def copy(self, memories: Sequence[FakeLive], within_s: float) -> str:
        self.depot.faults.point("copy")
        self.depot.copied.append(within_s)
        self.bytes += 900
        return ""

    def finish(self, image: ImageFacts) -> int:
        self.depot.faults.point("finish")
        self.depot.peers.setdefault(self.node, []).append(image.id)
        self.bytes += 100
        return self.bytes

    def cancel(self) -> None:
        self.depot.faults.point("cancel")


class FakeServing:
    def __init__(self, faults: Faults) -> None:
        self.faults, self.registered, self.requests = faults, True, 0

    def fence(self, spec: WorkerSpec) -> str:
        self.faults.point("fence")
        self.registered = False
        return "fenced"

    def unfence(self, spec: WorkerSpec) -> str:
        self.faults.point("unfence")
        self.registered = True
        return "unfenced"

    def inflight(self, spec: WorkerSpec) -> int:
        self.faults.point("inflight")
        return self.requests


class QuietExits(Exits):
    """Notes whose end would be noticed."""

    def __init__(self, ended: Callable[[str, int], None]) -> None:
        super().__init__(ended)
        self.watched: dict[str, Process] = {}

    def watch(self, worker: str, process: Process) -> None:
        self.watched[worker] = process

    def forget(self, worker: str) -> None:
        super().forget(worker)
        self.watched.pop(worker, None)


class Bench:
    """One agent's insides on fakes, with a clock that stands still, and a worker `w` in slot n/0 unless told otherwise."""

    def __init__(self, folder: Path, *, worker: bool = True) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self._said = io.StringIO()
        self.runtime = FakeRuntime(self.clock)
        self.faults = self.runtime.faults
        self.depot = FakeDepot(folder / "images", self.faults)
        self.serving = FakeServing(self.faults)
        tls = TlsSettings(ca=Path("ca"), cert=Path("cert"), key=Path("key"))
        slots = (SlotSettings(index=0), SlotSettings(index=1, roles=("prefill",)), SlotSettings(index=2))
        self.settings = Settings(node="n", listen="127.0.0.1:0", image_listen="127.0.0.1:0", state=folder, tls=tls, slots=slots)
        self.boot()
        if worker:
            self.journal.put_worker(WorkerRow(spec=SPEC, process=PROCESS, slot="n/0", incarnation=0))
            self.node.networks["w"] = FakeNetwork(self.faults, connected=True)

    def boot(self) -> None:
        """A new agent over the same journal, runtime and images, as after a SIGKILL of the old one."""
        self.journal = Journal(self.folder / "journal.db")
        self.node = Node(
            settings=self.settings,
            runtime=self.runtime,
            depot=self.depot,
            journal=self.journal,
            serving=self.serving,
            probe=self._probe,
            log=Log("n", self._said, self.clock),
            clock=self.clock,
            elapsed=self.clock,
            facts=self.runtime.facts(),
        )
        self.exits = QuietExits(self.node.worker_ended)  # no process here is real
        self.node.exits = self.exits
        self.orders = Orders(self.node)
        self.source, self.destination, self.transfers = Source(self.orders), Destination(self.orders), Transfers(self.orders)
        self.holds = Holds(self.orders, self.source, self.destination)

    def _probe(self, spec: WorkerSpec, alive: Callable[[], bool], within_s: float) -> str:
        self.faults.point("probe")
        return "probed"

    @property
    def network(self) -> FakeNetwork:
        found = self.node.networks["w"]
        assert isinstance(found, FakeNetwork)
        return found

    def said(self) -> str:
        """What it logged."""
        return self._said.getvalue()

    def state(self) -> str:
        row = self.journal.worker("w")
        return row.state if row else "none"

    def step(self, operation: str = "op", *, epoch: int = 1, incarnation: int = 0, worker: str = "w") -> pb.StepOrder:
        return pb.StepOrder(order=self.order(operation, epoch=epoch, incarnation=incarnation, worker=worker))

    def order(self, operation: str = "op", *, epoch: int = 1, incarnation: int = 0, worker: str = "w") -> pb.Order:
        return pb.Order(operation=operation, epoch=epoch, plan="p", worker=worker, incarnation=incarnation)

    def freeze(self, operation: str = "op", *, to: bool = True, hold: float = 60.0) -> pb.FreezeOrder:
        peer = pb.Peer(node="m", address="10.0.0.2:7444") if to else None
        return pb.FreezeOrder(order=self.order(operation), image=f"image-{operation}", to=peer, hold_s=hold)

    def prepare(self, slot: str = "n/0", operation: str = "op", *, epoch: int = 1, role: str = "decode") -> pb.PrepareOrder:
        spec = pb.WorkerSpec(worker="w", role=role, graph="g", engine="vllm", address=SPEC.address, mac=SPEC.mac, control=SPEC.control)
        return pb.PrepareOrder(order=self.order(operation, epoch=epoch), slot=slot, spec=spec)

    def restore(self, operation: str = "op", hold: float = 60.0) -> pb.RestoreOrder:
        return pb.RestoreOrder(order=self.order(operation), slot="n/0", image="image", hold_s=hold)

    def give_image(self) -> None:
        self.depot.whole["image"] = ImageFacts(id="image", spec=SPEC, incarnation=0, taken_at=1.0, bytes=100)


class Gate:
    """Holds a faked call up until it is opened."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self._open.wait(10)

    def open(self) -> None:
        self._open.set()


__all__ = ["PROCESS", "SPEC", "Bench", "FakeClock", "FakeNetwork", "FakeRuntime", "Faults", "Gate", "Retry", "Unknown", "problem"]
