"""Workers whose GPU is gone: they can't go on, and while a process of theirs hangs there, nobody may restore their image elsewhere."""

import asyncio
from typing import Final

from shunter.model.errors import ShunterError
from shunter.model.snapshot import NoticeKind

from shunter_agent.notices.port import Notice
from shunter_agent.orders.carry import Orders

EVERY_S: Final = 1.0
"""Seconds between looks."""
AGAIN_S: Final = 60.0
"""Seconds after which it is tried again to end one that couldn't be ended: it waits in the kernel, for a driver that may come back."""


class Condemned:
    """Ends a worker that uses a GPU of which a notice has said, for long enough, that nothing goes through it any more.

    Most end by themselves, with the driver's error. One that hangs is killed, and then reported as ended: its image can be restored. One
    that can't even be killed is told (SH707), and keeps its slot: what it holds there is nobody's to use.

    A GPU that is gone and that no slot is known to have ends nobody: it may be one that no worker uses, and those that run are sound.
    """

    def __init__(self, orders: Orders, after_s: float) -> None:
        """`after_s`: for so many seconds it may end by itself."""
        self._orders, self._node, self._after_s = orders, orders.node, after_s
        self._due: dict[str, float] = {}
        """When each is to be ended, by `Node.elapsed`."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except (OSError, ShunterError) as error:  # for want of descriptors, say: the next look may do better
                self._node.log.error("workers on GPUs that are gone can't be looked at", error=str(error))
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """End what is due now."""
        node, now = self._node, self._node.elapsed()
        rows = node.journal.workers()
        condemned = {name for name, row in rows.items() if any(_condemns(notice, row.slot) for notice in node.notices.values())}
        self._due = {name: self._due.get(name, now + self._after_s) for name in condemned}
        for name in sorted(condemned):
            if now >= self._due[name] and not self._orders.lock(name).locked():
                async with self._orders.lock(name):
                    await self._end(name)

    async def _end(self, worker: str) -> None:
        node = self._node
        row = node.journal.worker(worker)
        if row is None or worker in node.frozen or not await node.in_thread(node.runtime.needs, row.process, row.spec):
            return
        self._due[worker] = node.elapsed() + AGAIN_S
        node.log.error("a worker whose GPU is gone is ended", worker=worker, slot=row.slot, pid=row.process.pid)
        try:
            await node.in_thread(node.runtime.end, row.process)
        except ShunterError as error:
            node.log.problem(error.problem, worker=worker)
            return
        node.worker_ended(worker, -9)


def _condemns(notice: Notice, slot: str) -> bool:
    """Nothing goes through the slot's own GPUs any more, or its whole node is said to be gone."""
    return not notice.dumpable and (notice.slot == slot or (not notice.slot and notice.kind != NoticeKind.GPU_FAILING.value))
