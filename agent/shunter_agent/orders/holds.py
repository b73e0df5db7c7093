"""Holds that end by themselves: no copy stands still forever because an engine went away."""

import asyncio
from typing import Final

from shunter.model.errors import ShunterError

from shunter_agent.orders.carry import Orders
from shunter_agent.orders.destination import Destination
from shunter_agent.orders.source import Source

EVERY_S: Final = 0.2
"""How often holds are looked at: what a hold can last too long."""


class Holds:
    """Ends frozen copies (they run on), held copies (they die) and reservations (they lapse) whose time is up."""

    def __init__(self, orders: Orders, source: Source, destination: Destination) -> None:
        self._orders = orders
        self._node = orders.node
        self._source = source
        self._destination = destination

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.expire()
            await asyncio.sleep(EVERY_S)

    async def expire(self) -> None:
        """End what is due now."""
        node = self._node
        for worker in [*self._due_frozen(), *self._due_held(), *node.leaving]:
            if self._orders.lock(worker).locked():
                continue  # an order is at work on it; whatever is left is due the next time
            async with self._orders.lock(worker):
                try:
                    await self._end(worker)
                except ShunterError as error:
                    node.log.problem(error.problem, worker=worker)
        for reservation in tuple(node.journal.reservations().values()):
            worker = reservation.spec.worker
            if worker in node.held or node.clock() < reservation.at + node.settings.reservation or self._orders.lock(worker).locked():
                continue
            async with self._orders.lock(worker):
                if node.journal.reservations().get(reservation.slot) != reservation:
                    continue  # it was used, or taken over, while another one lapsed
                try:
                    await self._destination.free(reservation, "the reservation lapsed")
                except ShunterError as error:
                    node.log.problem(error.problem, worker=worker)
                    continue
            node.log.error("reservation lapsed", worker=worker, slot=reservation.slot, operation=reservation.operation)

    def _due_frozen(self) -> list[str]:
        node = self._node
        return [worker for worker, copy in node.frozen.items() if node.clock() >= copy.until or not copy.frozen.alive()]

    def _due_held(self) -> list[str]:
        node = self._node
        return [worker for worker, copy in node.held.items() if node.clock() >= copy.until]

    async def _end(self, worker: str) -> None:
        if worker in self._node.frozen and worker in self._due_frozen():
            alive = self._node.frozen[worker].frozen.alive()
            await self._source.end_hold(worker, "the hold ended without an order" if alive else "the hold was lost")
        elif worker in self._node.held and worker in self._due_held():
            await self._destination.end_hold(worker, "the hold ended without an order")
        elif worker in self._node.leaving:
            self._source.leave(worker)
