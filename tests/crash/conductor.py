"""One operation, carried out by the engine's own code against real agents, that can be stopped at any of its steps.

    conductor.py SETTINGS STOP [--state FOLDER] [--hold SECONDS] [--quick SECONDS] [--bulk SECONDS] < operation.json

STOP is a step, or `-`. Prints a JSON object a line: `{"at": step}` for each step once it is durable, and at last `{"ended": status, ...}`.
At STOP it waits for a line on standard input: whoever started it does something bad to the fleet meanwhile, or kills it. From then on it
also takes `give up` (see `Scheduler.cancel`) and `clock SECONDS` (its wall clock is set so much ahead, or back), at any time. Without an
operation (`null`) it takes up what an earlier one left, as the next engine does. It is the engine without its deciding: store, lease,
executor, agents.
"""

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from shunter.act.agents import AgentClient, TlsFiles
from shunter.act.execute import Executor
from shunter.act.lease import Lease
from shunter.act.run import Parts, Times, Unresolved
from shunter.act.store import Store
from shunter.app.settings import Settings, load
from shunter.app.world import Memory, World
from shunter.model.canon import decode
from shunter.model.errors import ShunterError
from shunter.model.ids import Digest, NodeId
from shunter.model.operation import OperationRecord
from shunter.model.plan import PlannedOperation
from shunter.model.snapshot import Fleet
from shunter.observe.catalog import Catalog

HOLD_S = 20.0
"""How long a copy stands still without an order."""
SETTLE_S = 60.0


class Conductor:
    """See the module."""

    def __init__(self, settings: Settings, stop: str, state: Path | None, times: Times) -> None:
        self.settings, self.stop, self.state, self.times = settings, stop, state or settings.state, times
        self.fleet = Fleet()
        self.ahead_s = 0.0
        self.give_up: Callable[[], object] = lambda: None

    def clock(self) -> float:
        """Seconds since the epoch, as this engine sees it."""
        return time.time() + self.ahead_s

    def told(self, record: OperationRecord) -> None:
        """Say a step, and wait there if it is the one."""
        print(json.dumps({"at": record.step.value}), flush=True)
        if record.step.value == self.stop and record.outcome is None:
            self.stop = "-"
            loop = asyncio.get_running_loop()
            while (line := sys.stdin.readline()) and line != "go on\n":
                self.hear(line)
            threading.Thread(target=self.listen, args=(loop,), daemon=True).start()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hear what comes later."""
        for line in sys.stdin:
            loop.call_soon_threadsafe(self.hear, line)

    def hear(self, line: str) -> None:
        """One line of standard input."""
        word, _, value = line.strip().partition(" ")
        if word == "clock":
            self.ahead_s = float(value)
        elif line.strip() == "give up":
            self.give_up()

    async def run(self, planned: PlannedOperation | None) -> OperationRecord | None:
        """Carry it out, or take up what is there; None: nothing was."""
        state = self.state
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        tls = TlsFiles(ca=self.settings.tls.ca, cert=self.settings.tls.cert, key=self.settings.tls.key)
        agents = {NodeId(a.node): AgentClient(NodeId(a.node), a.address, tls) for a in self.settings.agents}
        with ExitStack() as stack:
            store = stack.enter_context(closing(Store(state / "engine.db")))
            lease = stack.enter_context(Lease(state / "engine.lock", store))
            parts = Parts(
                store=store,
                agents=agents,
                fleet=lambda: self.fleet,
                audit=lambda _record: None,
                clock=self.clock,
                sleep=asyncio.sleep,
                progress=self.told,
                lead=lease,
                times=self.times,
            )
            executor = Executor(parts, lease.epoch)
            try:
                return await self._settled(executor, store, agents, planned)
            finally:
                await asyncio.gather(*(agent.close() for agent in agents.values()))

    async def _settled(
        self, executor: Executor, store: Store, agents: Mapping[NodeId, AgentClient], planned: PlannedOperation | None
    ) -> OperationRecord | None:
        ended: OperationRecord | None = None
        waiting = list(store.adopt(executor.epoch))
        if planned is not None:
            self.fleet = (await World(agents, None, Catalog()).look(Memory(), time.time())).fleet  # type: ignore[arg-type]
            record = executor.intend(planned, Digest("sha256:" + "0" * 64))
            self.give_up = lambda: executor.cancel(next(r for r in store.active() if r.id == record.id), "somebody wanted that")
            try:
                return await executor.carry(record)
            except Unresolved:
                waiting = [r for r in store.active() if r.id == record.id]
        for record in waiting:
            ended = await self._insisted(executor, store, record)
        return ended

    async def _insisted(self, executor: Executor, store: Store, record: OperationRecord) -> OperationRecord:
        """The scheduler's rule: what can't be resolved yet is taken up again."""
        until = time.monotonic() + SETTLE_S
        while True:
            try:
                return await executor.resume(record)
            except Unresolved:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.2)
                (record,) = (r for r in store.active() if r.id == record.id)


def main() -> int:
    """0 once there is an outcome; 3 when none could be had."""
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", type=Path)
    parser.add_argument("stop")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--hold", type=float, default=HOLD_S)
    parser.add_argument("--quick", type=float, default=Times().quick)
    parser.add_argument("--bulk", type=float, default=60.0)
    options = parser.parse_args()
    planned = decode(sys.stdin.readline().encode(), PlannedOperation | None)
    try:
        times = Times(hold=options.hold, quick=options.quick, bulk=options.bulk, margin=1.0, settle=SETTLE_S)
        record = asyncio.run(Conductor(load(options.settings), options.stop, options.state, times).run(planned))
    except ShunterError as error:
        print(json.dumps({"unsettled": error.problem.code, "what": error.problem.what}), flush=True)
        return 3
    ended = record.outcome if record else None
    said = (
        {"ended": ended.status.value, "code": ended.code, "reason": ended.reason, "image": ended.image} if ended else {"ended": "nothing"}
    )
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
