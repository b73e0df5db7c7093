"""Break something at every step of every operation, on real processes with CRIU, and see that one worker and its stream come through.

    scripts/lab .venv/bin/python tests/crash/at_every_step.py [--only move,engine] [--every N [--seed K]]

Two nodes, one worker, and one client that streams from it for as long as all of this takes. At each point an operation is begun, stopped at
a step, and something is done to it (see `FAULTS`, and `faults` for how). `late` points do it while the next order is being carried out
instead of before it. After each the worker must be there once, or in a whole image, its stream must go on with every token once, in order
and right, and the router must see it. While it runs, nothing may ever see two copies that run free.

Prints a table of how each operation ended, and at last a JSON object. `reassign` isn't among the kinds: it is carried out as moves, parks
and restores. Links are made slow by a token bucket: this kernel has no netem.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "local-fleet"))
import faults
from discovery import instances
from fleet import ANY, Fleet, NodePlan, SetUpError, WorkerPlan, wait_for
from node import Node
from points import Point, chosen
from shunter.act.agents import AgentClient, TlsFiles
from shunter.app.settings import load
from shunter.app.world import Memory, World
from shunter.model.canon import encode
from shunter.model.ids import ImageId, Incarnation, NodeId, OperationId, PolicyName, SlotId
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.snapshot import Fleet as Seen
from shunter.observe.catalog import Catalog
from shunter.wire import agent_pb2 as pb
from witnesses import ADDRESS, WEIGHTS_MB, WORKER, Client, Watcher, copies

HERE: Final = Path(__file__).resolve().parent
DISK_MB: Final = 1500
"""Of each agent's own disk, which is a tmpfs."""
PLANS: Final = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan(WORKER, "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
)
TIMES: Final = {"pause": ("--hold", str(faults.HOLD_S)), "cut-long": faults.LONG}
"""What an engine's times are for some faults, by how these begin."""
SETTLED_S: Final = 100.0
AT_ONCE: Final = 50
URGENT_S: Final = 900.0
"""From now to the deadline of a move that can't wait: further than any clock is set here."""
_WIDE: Final = 21


class Ring:
    """The fleet, what is done to it, and what must be true of it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.client, self.watcher = fleet, Client(), Watcher()
        self.settings = load(fleet.engine_config)
        self.count = 0
        self.woken: dict[str, Any] = {}
        """What the last engine that had been taken for dead said when it woke up."""

    # -- the fleet

    def start(self) -> None:
        """Agents, the worker, and its client."""
        for node in self.fleet.nodes.values():
            faults.ahead(node, 0.0)
            node.command = [sys.executable, str(HERE / "stepped_agent.py"), str(node.config), str(faults.ahead_of(node))]
        self.fleet.start_nodes()
        self.client.start()
        wait_for("the stream", lambda: self.client.seen.got > 5)
        self.watcher.start()

    def look(self) -> Seen:
        """The fleet, as the agents tell it. Raises SetUpError when one doesn't."""
        return asyncio.run(self._look())

    @contextlib.asynccontextmanager
    async def _agents(self) -> AsyncIterator[dict[NodeId, AgentClient]]:
        tls = TlsFiles(ca=self.settings.tls.ca, cert=self.settings.tls.cert, key=self.settings.tls.key)
        agents = {NodeId(a.node): AgentClient(NodeId(a.node), a.address, tls) for a in self.settings.agents}
        try:
            yield agents
        finally:
            await asyncio.gather(*(agent.close() for agent in agents.values()))

    async def _look(self) -> Seen:
        async with self._agents() as agents:
            world = World(agents, None, Catalog())  # type: ignore[arg-type]
            seen = await world.look(Memory(), time.time())
        if world.unreachable:
            raise SetUpError(f"no answer: {world.unreachable}")
        return seen.fleet

    def place(self) -> tuple[SlotId | None, Incarnation]:
        """The worker's slot, None when it only is in an image, and its incarnation."""
        fleet = self.look()
        lives = [w for w in fleet.workers if w.id == WORKER and w.slot and w.state.value not in ("parked", "lost")]
        if lives:
            return lives[0].slot, lives[0].incarnation
        newest = max((i for i in fleet.images if i.worker == WORKER), key=lambda i: _number(i.id))
        return None, newest.incarnation

    def images(self) -> list[tuple[ImageId, Incarnation, NodeId]]:
        """The worker's images, newest first."""
        found = [i for i in self.look().images if i.worker == WORKER]
        return [(i.id, i.incarnation, node) for i in sorted(found, key=lambda i: -_number(i.id)) for node in i.nodes]

    def tidy(self) -> None:
        """What an engine does beside its operations: delete all images but the newest, and free what was left reserved."""
        asyncio.run(self._tidy())

    async def _tidy(self) -> None:
        seen = await self._look()
        newest = max(seen.images, key=lambda i: _number(i.id), default=None)
        async with self._agents() as agents:
            epoch = max([(await agent.view()).epoch for agent in agents.values()])
            for image in seen.images:
                for node in image.nodes if image is not newest else ():
                    order = self._order(f"tidy-{image.id}", epoch, image.incarnation)
                    await agents[node].discard(order, image.id, 10)
            for at in seen.nodes:
                for operation in [slot.reserved_by for slot in at.slots if slot.reserved_by]:
                    await agents[at.id].abort(self._order(operation, epoch, Incarnation(0)), 10)

    def _order(self, operation: str, epoch: int, incarnation: Incarnation) -> pb.Order:
        return pb.Order(operation=operation, epoch=epoch, plan="tidy", worker=WORKER, incarnation=incarnation)

    # -- operations

    def plan(self, kind: str) -> PlannedOperation:
        """The next operation of this kind on the worker, wherever it is now."""
        self.count += 1
        slot, incarnation = self.place()
        urgent = kind == "urgent"
        kind, lane = ("move", "involuntary") if urgent else (kind, "voluntary")
        base = {"id": OperationId(f"{kind}-{self.count:04}"), "kind": OperationKind(kind), "worker": WORKER, "lane": lane}
        base |= {"deadline": time.time() + URGENT_S} if urgent else {}
        base |= {"policy": PolicyName("harness"), "reason": "to see what becomes of it"}
        if kind == "restore":
            assert slot is None, "the worker lives: nothing is to be restored"
            image, its, _ = self.images()[0]
            to = SlotId(("node-a/0", "node-b/0")[self.count % 2])
            return PlannedOperation(
                **base, to_slot=to, image=image, expect=Preconditions(incarnation=its, absent=True, free=to, image=image)
            )
        assert slot is not None, "the worker is in an image: only a restore can be done"
        home, other = slot.partition("/")[0], "node-b" if slot.startswith("node-a") else "node-a"
        to = SlotId(f"{other}/0")
        if kind == "move":
            return PlannedOperation(**base, from_slot=slot, to_slot=to, expect=Preconditions(incarnation=incarnation, at=slot, free=to))
        expect = Preconditions(incarnation=incarnation, at=slot)
        nodes = (NodeId(other), NodeId(home)) if kind == "park" else (NodeId(other),) if kind == "checkpoint" else ()
        base |= {"deadline": time.time() + 4} if kind == "drain" else {}
        return PlannedOperation(**base, from_slot=slot, copies=nodes, expect=expect)

    def conduct(self, planned: PlannedOperation | None, stop: str = "-", *more: str) -> "Conducted":
        """Begin it, in a process of its own."""
        return Conducted(self.fleet, planned, stop, *more)

    def taken_over(self, under_way: "Conducted") -> dict[str, Any]:
        """What comes of it when another engine, with a store of its own, goes on from what this one had written, and this one wakes up
        once that has ended. The first one's store is nobody's from then on."""
        first, second = self.settings.state, self.settings.state.with_name("second")
        second.mkdir(mode=0o700)
        with (
            contextlib.closing(sqlite3.connect(first / "engine.db")) as of,
            contextlib.closing(sqlite3.connect(second / "engine.db")) as to,
        ):
            of.backup(to, sleep=0.02, progress=lambda status, _left, _all: under_way.let_write() if status == sqlite3.SQLITE_BUSY else None)
        ended = self.conduct(None, "-", "--state", str(second)).end()
        under_way.wake()
        self.woken = under_way.end()
        shutil.rmtree(first)
        second.rename(first)
        return ended

    def plainly(self, kind: str) -> dict[str, Any]:
        """Do it with nothing going wrong."""
        ended = self.conduct(self.plan(kind)).end()
        assert ended.get("ended") == "succeeded", (kind, ended)
        return ended

    # -- faults

    def nodes_of(self, planned: PlannedOperation) -> tuple[Node, Node]:
        """Where it begins, and the other."""
        source = (planned.from_slot or SlotId("")).partition("/")[0] or (
            "node-b" if (planned.to_slot or "").startswith("node-a") else "node-a"
        )
        other = "node-b" if source == "node-a" else "node-a"
        return self.fleet.nodes[source], self.fleet.nodes[other]

    @contextlib.contextmanager
    def fault(self, point: Point, planned: PlannedOperation, under_way: "Conducted") -> Iterator[None]:
        """Do it; what can be mended is, at the end at the latest."""
        source, other = self.nodes_of(planned)
        at_nodes: dict[str, Callable[[], faults.Mend]] = {
            "source": lambda: faults.killed(source),
            "destination": lambda: faults.killed(other),
            "source-all": lambda: faults.killed_with_all(source),
            "destination-all": lambda: faults.killed_with_all(other),
            "power": lambda: faults.powered_off(other, WORKER),
            "pause-source": lambda: faults.paused(source),
            "pause-destination": lambda: faults.paused(other),
            "cut": lambda: faults.cut(other),
            "cut-source": lambda: faults.cut(source),
            "cut-long": lambda: faults.cut(other, faults.LONG_S),
            "cut-long-source": lambda: faults.cut(source, faults.LONG_S),
            "slow": lambda: faults.slow(other),
            "full": lambda: faults.filled(other),
            "full-source": lambda: faults.filled(source),
            "corrupt": lambda: faults.corrupted((other, source), planned.image or f"image-{planned.id}"),
            "clock": lambda: faults.stepped(source, other),
        }
        if point.fault == "engine":
            under_way.kill()
        elif point.fault == "two":
            under_way.pause()
        elif point.fault == "give-up":
            under_way.say("give up")
        elif point.fault == "clock":
            under_way.say(f"clock {faults.STEP_S / 2}")
        mend = at_nodes.get(point.fault, lambda: lambda: None)()
        try:
            yield
        finally:
            mend()

    # -- what must be true

    def check(self, ended: dict[str, Any]) -> str:
        """What is wrong after an operation, empty when all is well: one worker that goes on with its stream, or a whole image of it."""
        parked = not copies()
        if parked and not self.images():
            return "the worker is gone, and there is no image of it"
        if not parked and len(copies()) > 1:
            return f"there are {len(copies())} copies of the worker"
        if ended.get("ended") not in ("succeeded", "rolled-back", "failed", "superseded"):
            return f"it isn't settled: {ended}"
        if not parked:
            before = self.client.seen.got
            if not _soon(lambda: self.client.seen.got > before + 2 or self.client.seen.ended, 15):
                return "the stream doesn't go on"
            if not _soon(lambda: ADDRESS in instances(self.fleet.discovery, "backend"), 15) and "see it" not in str(ended.get("reason")):
                return f"the router doesn't see it, and nobody says so: {ended}"
        if self.watcher.worst > 1:
            return f"{self.watcher.worst} copies of the worker ran at once"
        return self.client.wrong()

    def ready(self, kind: str) -> None:
        """Bring the worker where an operation of this kind can begin."""
        self.tidy()
        parked = not copies()
        if parked and kind != "restore":
            self.plainly("restore")
        elif not parked and kind == "restore":
            self.plainly("park")


class Conducted:
    """A conductor at work."""

    def __init__(self, fleet: Fleet, planned: PlannedOperation | None, stop: str, *more: str) -> None:
        command = [sys.executable, str(HERE / "conductor.py"), str(fleet.engine_config), stop, *more]
        with (fleet.folder / "conductor.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.steps: list[str] = []
        self._gone_on = False
        self.say(encode(planned).decode())

    def say(self, line: str) -> None:
        """Tell it something; nothing if it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def until(self, step: str) -> dict[str, Any] | None:
        """Wait for a step; what it ended with when it never came to it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "at" not in said:
                self._close()
                return dict(said)
            self.steps.append(said["at"])
            if said["at"] == step:
                return None
        self._close()
        return {"died": self._process.returncode}

    def go_on(self) -> None:
        """Let it go on after the step at which it stopped."""
        self._gone_on = True
        self.say("go on")

    def pause(self) -> None:
        """It stands still; at its step it does so by itself."""
        if self._gone_on:
            self._process.send_signal(signal.SIGSTOP)

    def let_write(self) -> None:
        """It stands still in the middle of a write: one moment more, or nobody could read what it has written before."""
        self._process.send_signal(signal.SIGCONT)
        time.sleep(0.02)
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """It goes on from there."""
        if self._gone_on:
            self._process.send_signal(signal.SIGCONT)
        else:
            self.go_on()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._close()

    def _close(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    @property
    def dead(self) -> bool:
        """It has ended, or was killed."""
        return self._process.poll() is not None

    def end(self) -> dict[str, Any]:
        """Wait for the end."""
        watchdog = threading.Timer(SETTLED_S, self._process.kill)
        watchdog.start()
        try:
            return self.until("") or {}
        finally:
            watchdog.cancel()


def _soon(condition: Callable[[], bool], timeout: float) -> bool:
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


def _number(image: ImageId) -> int:
    """The how manyeth operation of all it was: by no clock, since clocks are set here."""
    return int(image.rpartition("-")[2])


class Result(msgspec.Struct):
    """What became of a point."""

    point: Point
    ended: str
    code: str
    wrong: str
    seconds: float


def one(ring: Ring, point: Point) -> Result:
    """Try a point."""
    began = time.monotonic()
    ring.ready(point.kind)
    planned = ring.plan(point.kind)
    under_way = ring.conduct(planned, point.step, *TIMES.get(point.fault.partition("-source")[0].partition("-destination")[0], ()))
    before = under_way.until(point.step)
    if before is not None:
        return Result(point, "", "", f"it never came to {point.step}: {before}, {under_way.steps}", time.monotonic() - began)
    if point.late:
        under_way.go_on()
        time.sleep(point.late)
    with ring.fault(point, planned, under_way):
        if point.fault == "two":
            ended = ring.taken_over(under_way)
        elif point.fault == "engine":
            ended = ring.conduct(None).end()
        else:
            if not point.late:
                under_way.go_on()
            ended = under_way.end()
    if ended.get("ended") == "nothing":  # it was over before the engine died
        ended = {"ended": "succeeded", "code": ""}
    return Result(point, str(ended.get("ended", "?")), str(ended.get("code", "")), ring.check(ended), time.monotonic() - began)


def table(results: list[Result]) -> str:
    """How the operations ended, by step and fault."""
    lines = []
    for kind in dict.fromkeys(r.point.kind for r in results):
        own = [r for r in results if r.point.kind == kind]
        faults = list(dict.fromkeys(r.point.fault for r in own))
        lines.append(f"{kind:<14}" + "".join(f"{f:<{_WIDE}}" for f in faults).rstrip())
        for step in dict.fromkeys(r.point.step for r in own):
            cells = [" / ".join(_cell(r) for r in own if (r.point.step, r.point.fault) == (step, f)) for f in faults]
            lines.append(f"  {step:<12}" + "".join(f"{c:<{_WIDE}}" for c in cells).rstrip())
    return "\n".join(lines)


def _cell(result: Result) -> str:
    if result.wrong:
        return "WRONG"
    return " ".join(filter(None, (result.ended, result.code)))


class Totals(msgspec.Struct):
    """What was seen all the while."""

    tokens: int = 0
    tokens_lost: int = 0
    tokens_duplicated: int = 0
    tokens_wrong: int = 0
    longest_pause_s: float = 0.0
    copies_at_once: int = 0
    looks: int = 0

    def add(self, ring: Ring) -> None:
        """And what this one has."""
        seen, watcher = ring.client.seen, ring.watcher
        self.tokens, self.tokens_lost = self.tokens + seen.got, self.tokens_lost + seen.lost
        self.tokens_duplicated, self.tokens_wrong = self.tokens_duplicated + seen.duplicated, self.tokens_wrong + seen.corrupt
        self.longest_pause_s = max(self.longest_pause_s, round(seen.longest_pause_s, 2))
        self.copies_at_once, self.looks = max(self.copies_at_once, watcher.worst), self.looks + watcher.looks


def run(folder: Path, criu: Path, wanted: list[Point], say: Callable[[str], None]) -> tuple[list[Result], Totals]:
    """Try these points, one after the other, until one goes wrong: each `AT_ONCE` of them on a fleet of their own, as the worker's memory
    grows with every token."""
    results: list[Result] = []
    totals = Totals()
    for first in range(0, len(wanted), AT_ONCE):
        fleet = Fleet(folder / str(first), criu=criu, weights_mb=WEIGHTS_MB, nodes=PLANS)
        with fleet:
            for node in fleet.nodes.values():
                (node.folder / "state").mkdir(mode=0o700)
                options = f"size={DISK_MB}m,mode=0700"
                subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(node.folder / "state")], check=True)
            ring = Ring(fleet)
            ring.start()
            for point in wanted[first : first + AT_ONCE]:
                result = _tried(ring, point)
                results.append(result)
                say(f"{len(results):4}/{len(wanted)}  {result.seconds:5.1f} s  {point}: {result.wrong or result.ended} {result.code}")
                if result.wrong:
                    break
            ring.watcher.stop()
            totals.add(ring)
            _end_worker()
        if results[-1].wrong:
            break
    return results, totals


def _end_worker() -> None:
    """It may have outlived its first agent, and nobody knows it as a child then."""
    for pid in copies():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for("the worker's end", lambda: not copies())


def _tried(ring: Ring, point: Point) -> Result:
    try:
        return one(ring, point)
    except (AssertionError, SetUpError, OSError, subprocess.SubprocessError, ValueError) as error:
        return Result(point, "", "", f"{type(error).__name__}: {error}\n{traceback.format_exc()}", 0.0)


def main() -> int:
    """0: nothing was lost, doubled or wrong at any point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--criu", type=Path, default=Path("/opt/shunter/criu/bin/criu"))
    parser.add_argument("--only", default="", help="points with all of these words: an operation, a step, a fault, `late` or `sharp`")
    parser.add_argument("--every", type=int, default=1, help="try one of so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="leave out so many at the beginning")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shunter-crash-"))
    began = time.monotonic()
    try:
        wanted = chosen(options.only, options.every, options.seed)[options.skip :]
        results, totals = run(folder / "fleet", options.criu, wanted, lambda line: print(line, flush=True))
    finally:
        if options.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(results))
    wrong = [r for r in results if r.wrong]
    told = {"points": len(results), "wrong": len(wrong), "ended": dict(Counter(r.ended for r in results))}
    print(json.dumps({**told, **msgspec.to_builtins(totals), "seconds": round(time.monotonic() - began)}))
    return 1 if wrong or len(results) < len(wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
