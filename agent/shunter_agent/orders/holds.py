"""Holds that end by themselves: no copy stands still forever because an engine went away."""

import asyncio
from typing import Final

from shunter.model.errors import ShunterError, Stalled

from shunter_agent.journal import Reservation
from shunter_agent.orders.carry import Orders
from shunter_agent.orders.destination import Destination
from shunter_agent.orders.settling import SILENT, left_hidden, settle, show, show_soon
from shunter_agent.orders.source import Source
from shunter_agent.orders.turns import Turn

EVERY_S: Final = 0.2
"""How often holds are looked at: what a hold can last too long."""
HIDDEN_EVERY_S: Final = 5.0
"""How often it is looked for workers that somebody has hidden and forgotten."""


class Holds:
    """Ends frozen copies (they run on), held copies (they die) and reservations (they lapse) whose time is up, and puts right what an agent
    that died left standing still."""

    def __init__(self, orders: Orders, source: Source, destination: Destination) -> None:
        self._orders = orders
        self._node = orders.node
        self._source = source
        self._destination = destination

        self._next_look = 0.0
        self._ending: dict[str, asyncio.Task[None]] = {}
        """What is being ended, by worker: each by itself, since one that hangs may hang for a minute."""

    async def run(self) -> None:
        """Look again and again, until cancelled: what is being ended then keeps its worker's lock until it has. Raises what nobody foresaw:
        without holds no copy would ever go back by itself.
        """
        try:
            while True:
                self._begin()
                await asyncio.sleep(EVERY_S)
                self._settle()
        finally:
            for task in self._ending.values():
                task.cancel()
            await asyncio.gather(*self._ending.values(), return_exceptions=True)

    async def expire(self) -> None:
        """End what is due now, and wait for it."""
        self._begin()
        await asyncio.gather(*self._ending.values())
        self._settle()

    def _begin(self) -> None:
        """Begin to end what is due, all at once, and lapsed reservations after each other."""
        for worker in [*self._due_frozen(), *self._due_held(), *self._due_unsettled(), *self._due_hidden(), *self._node.leaving]:
            if worker not in self._ending and not self._orders.lock(worker).locked():  # else an order is at work on it: due the next time
                self._ending[worker] = asyncio.create_task(self._end_one(worker), name=f"end hold {worker}")
        self._hide_nobody_for_ever()
        if "" not in self._ending and any(self._lapsed(r) for r in self._node.journal.reservations().values()):
            self._ending[""] = asyncio.create_task(self._free_lapsed(), name="free reservations")

    def _hide_nobody_for_ever(self) -> None:
        """A worker that was taken out of the router's sight, and of which no order came for the longest hold, is due to be shown again."""
        node = self._node
        if node.elapsed() < self._next_look:
            return
        self._next_look = node.elapsed() + HIDDEN_EVERY_S
        for worker, row in node.journal.workers().items():
            operation = left_hidden(node, row) if not self._orders.lock(worker).locked() else None
            if operation is not None:
                try:
                    show_soon(node, worker, operation, SILENT)
                except Stalled as error:  # the disk is full: the next look may do better
                    node.log.problem(error.problem, worker=worker)

    def _settle(self) -> None:
        for worker, task in tuple(self._ending.items()):
            if task.done():
                del self._ending[worker]
                task.result()

    async def _end_one(self, worker: str) -> None:
        async with Turn(self._orders.lock(worker)) as turn:
            try:
                await turn.do(self._end(worker))
            except ShunterError as error:
                self._node.log.problem(error.problem, worker=worker)

    def _lapsed(self, reservation: Reservation) -> bool:
        node, worker = self._node, reservation.spec.worker
        # by when the worker was spoken of last, and by no clock that is set: one set ahead would take its slot from a move under way
        over = node.elapsed() - node.spoken.get(worker, node.began) >= node.settings.reservation
        if not over or worker in node.held or self._orders.lock(worker).locked():
            return False
        resume = node.journal.entry(reservation.operation, "resume")
        if reservation.process is None or resume is None or resume.state != "begun":
            return True
        # what was to be let run may be all that there is of it: an order or a restart ends it
        return not node.may_live(reservation.process)

    async def _free_lapsed(self) -> None:
        node = self._node
        for reservation in tuple(node.journal.reservations().values()):
            worker = reservation.spec.worker
            if not self._lapsed(reservation):
                continue
            async with Turn(self._orders.lock(worker)) as turn:
                if node.journal.reservations().get(reservation.slot) != reservation:
                    continue  # it was used, or taken over, while another one lapsed
                try:
                    await turn.do(self._destination.free(reservation, "the reservation lapsed"))
                except ShunterError as error:
                    node.log.problem(error.problem, worker=worker)
                    continue
            node.log.error("reservation lapsed", worker=worker, slot=reservation.slot, operation=reservation.operation)

    def _due_frozen(self) -> list[str]:
        node = self._node
        return [worker for worker, copy in node.frozen.items() if node.elapsed() >= copy.until or not copy.frozen.alive()]

    def _due_held(self) -> list[str]:
        node = self._node
        return [worker for worker, copy in node.held.items() if node.elapsed() >= copy.until]

    def _due_unsettled(self) -> list[str]:
        node = self._node
        return [worker for worker, left in node.unsettled.items() if node.elapsed() >= left.at]

    def _due_hidden(self) -> list[str]:
        node = self._node
        return [worker for worker, hidden in node.hidden.items() if node.elapsed() >= hidden.at]

    async def _end(self, worker: str) -> None:
        if worker in self._node.frozen and worker in self._due_frozen():
            alive = self._node.frozen[worker].frozen.alive()
            await self._source.end_hold(worker, "the hold ended without an order" if alive else "the hold was lost")
        elif worker in self._node.held and worker in self._due_held():
            await self._destination.end_hold(worker, "the hold ended without an order")
        elif worker in self._node.leaving:
            self._source.leave(worker)
        elif worker in self._due_unsettled():
            await settle(self._node, worker)
        elif worker in self._due_hidden():
            await show(self._node, worker)
