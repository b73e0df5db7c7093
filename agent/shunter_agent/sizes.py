"""How large workers are, without keeping anybody waiting for it: to measure them means to look at every process of the machine."""

import asyncio
from typing import Final

from shunter_agent.journal import WorkerRow
from shunter_agent.node import Node
from shunter_agent.runtime.port import Process

AGAIN_S: Final = 5.0
"""Seconds after which they are measured again once somebody asks: a plan reckons with gigabytes, and not with what came since."""


class Sizes:
    """The last measurement of each worker, by its process. Asked again later, it is measured beside the answer."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: dict[Process, int | None] = {}
        self._at = float("-inf")
        self._measuring: asyncio.Task[None] | None = None

    async def of(self, rows: tuple[WorkerRow, ...]) -> list[int | None]:
        """Bytes of each worker; None where it couldn't be measured. Waits only for those that never were."""
        new = [row for row in rows if row.process not in self._known]
        if new:
            await self._measure(rows)
        elif self._measuring is None and self._node.elapsed() - self._at >= AGAIN_S:
            self._measuring = asyncio.create_task(self._measure(rows))
            self._measuring.add_done_callback(self._over)
        return [self._known.get(row.process) for row in rows]

    async def _measure(self, rows: tuple[WorkerRow, ...]) -> None:
        self._at = self._node.elapsed()
        found = await self._node.in_thread(lambda: [self._node.runtime.memory(row.process) for row in rows])
        self._known = {row.process: size for row, size in zip(rows, found, strict=True)}

    def _over(self, done: "asyncio.Task[None]") -> None:
        self._measuring = None
        if not done.cancelled() and (error := done.exception()) is not None:
            self._node.log.error("workers not measured", error=f"{type(error).__name__}: {error}")
