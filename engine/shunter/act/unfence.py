"""Workers that run out of the router's sight without a reason that the store knows are put back into it.

An operation fences its worker and shows it to the router again at its end. What can't do so: one that was in memory only when the engine
died, so that nobody knows of it any more, and one that ended while the worker's control API or the router's discovery was away (SH519).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from shunter.act.beside import Beside
from shunter.act.run import Parts, problem
from shunter.model.errors import Problem, Retry, ShunterError
from shunter.model.ids import Epoch, Incarnation, NodeId, OperationId, WorkerId
from shunter.model.snapshot import Fleet, Notice, WorkerState
from shunter.wire import agent_pb2 as pb


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
        self._names: dict[WorkerId, OperationId] = {}
        """Under which each is put back."""
        self._orders = Beside(parts.clock, self._told)
        self._number = 0

    def look(self, fleet: Fleet, notices: Iterable[Notice], now: float) -> None:
        """Begin with whatever is to be put back by what was seen at `now`. Raises Stalled when the store can't be read, and what broke an
        earlier order.
        """
        self._orders.check()
        fenced = [worker for worker in fleet.workers if worker.state is WorkerState.FENCED]
        busy = self._in_operation() if fenced else frozenset[WorkerId]()
        stray = {worker.id: worker for worker in fenced if worker.id not in busy}
        self._orders.keep(stray)
        self._names = {worker: name for worker, name in self._names.items() if worker in stray}
        going = {notice.node for notice in notices if notice.deadline is not None and notice.deadline > now}
        answering = {node.id for node in fleet.nodes if node.reachable} & self._parts.agents.keys() - going
        for worker in stray.values():
            if worker.node is None or worker.node not in answering or worker.slot is None:  # without a slot no agent knows of it
                continue
            if worker.id not in self._names:
                self._number += 1  # an agent answers an order that it had before from its journal
                self._names[worker.id] = OperationId(f"unfence-{worker.id}-{self._epoch}-{self._number}")
            self._orders.begin(worker.id, partial(self._put_back, worker.id, worker.node, self._names[worker.id]))

    async def stop(self) -> None:
        """Give no more orders."""
        await self._orders.stop()

    async def idle(self) -> None:
        """Return once no order is under way."""
        await self._orders.idle()

    def _in_operation(self) -> frozenset[WorkerId]:
        """One that waits for its turn doesn't count: nothing was asked for yet."""
        return frozenset(record.planned.worker for record in self._parts.store.active() if not record.waits)

    def _told(self, worker: str, why: Problem | None) -> None:
        self._tell(WorkerId(worker), why)

    async def _put_back(self, worker: WorkerId, node: NodeId, name: OperationId) -> None:
        try:
            await self._order(worker, node, name)
        except ShunterError as error:
            raise Retry(_unseen(worker, node, error.problem)) from error

    async def _order(self, worker: WorkerId, node: NodeId, name: OperationId) -> None:
        """Once more, what is so now: since it was seen fenced, its operation may have ended, or another one have begun."""
        agent, quick = self._parts.agents[node], self._parts.times.quick
        report = await agent.report(quick)
        row = next((w for w in report.workers if w.spec.worker == worker and w.state == WorkerState.FENCED.value), None)
        if row is None:
            return
        operation, incarnation = name, Incarnation(row.incarnation)
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
