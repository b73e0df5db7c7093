"""Workers that run out of the router's sight without a reason that the store knows are put back into it.

An operation fences its worker and shows it to the router again at its end. What can't do so: one that was in memory only when the engine
died, so that nobody knows of it any more, and one that ended while the worker's control API or the router's discovery was away (SH519).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from shunter.act.run import Parts, problem
from shunter.model.errors import Problem, ShunterError
from shunter.model.ids import Epoch, Incarnation, NodeId, OperationId, WorkerId
from shunter.model.snapshot import Fleet, Notice, Worker, WorkerState
from shunter.wire import agent_pb2 as pb

_LONGEST_S = 60.0
"""Between two tries."""


class _Try(msgspec.Struct, frozen=True, kw_only=True):
    """How often a worker couldn't be put back, and from when on that is tried again."""

    id: OperationId
    failed: int = 0
    again: float = 0.0


class Unfencing:
    """Orders it under `epoch`, apart from the ticks: an agent that is slow holds nobody up.

    `record` audits, given the worker, what is done and more about it; it is told before the order is given, and again of what came of it.
    `tell` is told, by worker, why one couldn't be put back (SH535), and None once it was.
    """

    def __init__(
        self,
        parts: Parts,
        epoch: Epoch,
        *,
        record: Callable[[WorkerId, str, Mapping[str, object]], None],
        tell: Callable[[WorkerId, Problem | None], None],
    ) -> None:
        self._parts, self._epoch, self._record, self._tell = parts, epoch, record, tell
        self._tries: dict[WorkerId, _Try] = {}
        self._tasks: dict[WorkerId, asyncio.Task[None]] = {}
        self._number = 0
        self._crash: BaseException | None = None

    def look(self, fleet: Fleet, notices: Iterable[Notice], now: float) -> None:
        """Begin with whatever is to be put back by what was seen at `now`. Raises Stalled when the store can't be read, and what broke an
        earlier order.
        """
        if self._crash is not None:
            raise self._crash
        fenced = [worker for worker in fleet.workers if worker.state is WorkerState.FENCED]
        busy = self._in_operation() if fenced or self._tries else frozenset[WorkerId]()
        stray = {worker.id: worker for worker in fenced if worker.id not in busy}
        self._forget(stray)
        going = {notice.node for notice in notices if notice.deadline is not None and notice.deadline > now}
        answering = {node.id for node in fleet.nodes if node.reachable} & self._parts.agents.keys() - going
        for worker in stray.values():
            if worker.node is None or worker.node not in answering or worker.id in self._tasks:
                continue
            if worker.id not in self._tries:
                self._number += 1  # an agent answers an order that it had before from its journal
                self._tries[worker.id] = _Try(id=OperationId(f"unfence-{worker.id}-{self._epoch}-{self._number}"))
            if now >= self._tries[worker.id].again:
                self._begin(worker, worker.node)

    async def stop(self) -> None:
        """Give no more orders."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def idle(self) -> None:
        """Return once no order is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())
            await asyncio.sleep(0)

    def _in_operation(self) -> frozenset[WorkerId]:
        """One that waits for its turn doesn't count: nothing was asked for yet."""
        return frozenset(record.planned.worker for record in self._parts.store.active() if not record.waits)

    def _forget(self, stray: Collection[WorkerId]) -> None:
        for worker in [w for w in self._tries if w not in stray and w not in self._tasks]:
            del self._tries[worker]
            self._tell(worker, None)

    def _begin(self, worker: Worker, node: NodeId) -> None:
        task = asyncio.get_running_loop().create_task(self._put_back(worker.id, node), name=f"unfence {worker.id}")
        self._tasks[worker.id] = task
        task.add_done_callback(lambda done: self._over(worker.id, done))

    def _over(self, worker: WorkerId, done: asyncio.Task[None]) -> None:
        del self._tasks[worker]
        if not done.cancelled() and done.exception() is not None:
            self._crash = done.exception()

    async def _put_back(self, worker: WorkerId, node: NodeId) -> None:
        try:
            await self._order(worker, node)
        except ShunterError as error:
            tried = self._tries[worker]
            wait = min(2.0**tried.failed, _LONGEST_S)
            self._tries[worker] = msgspec.structs.replace(tried, failed=tried.failed + 1, again=self._parts.clock() + wait)
            self._tell(worker, _unseen(worker, node, error.problem))

    async def _order(self, worker: WorkerId, node: NodeId) -> None:
        """Once more, what is so now: since it was seen fenced, its operation may have ended, or another one have begun."""
        agent, quick = self._parts.agents[node], self._parts.times.quick
        report = await agent.report(quick)
        row = next((w for w in report.workers if w.spec.worker == worker and w.state == WorkerState.FENCED.value), None)
        if row is None:
            return
        operation, incarnation = self._tries[worker].id, Incarnation(row.incarnation)
        if row.operation:  # by the agent, it is in that one still: nobody else may unfence it
            operation = OperationId(row.operation)
            steps = (await agent.journal(operation, quick)).steps
            incarnation = Incarnation(row.incarnation - 1) if "resume" in steps else incarnation
        if worker in self._in_operation():
            return
        about = {"node": node, "operation": operation, "incarnation": row.incarnation}
        self._record(worker, f"puts {worker} on {node} back into the router's sight: no operation under way keeps it out", about)
        self._parts.still_leads()
        await agent.unfence(pb.Order(operation=operation, epoch=self._epoch, worker=worker, incarnation=incarnation), quick)
        self._record(worker, f"{worker} on {node} is back in the router's sight", about)


def _unseen(worker: WorkerId, node: NodeId, why: Problem) -> Problem:
    return problem(
        "SH535",
        f"the worker runs on {node}, but the router doesn't see it, and it couldn't be put back: {why.code} {why.what}",
        f"It is tried again. {why.remedy}",
        worker,
    )
