"""Slots that an operation reserved, and couldn't give back at its end, are freed: their node didn't answer then, or its disk was full.

The agent would give them back by itself, but only after the time that a reservation lasts, which is long.
"""

from collections.abc import Callable, Mapping
from functools import partial

from shunter.act.beside import Beside
from shunter.act.run import Parts, problem
from shunter.model.errors import Problem
from shunter.model.ids import Epoch, NodeId, OperationId, SlotId
from shunter.model.operation import OperationRecord, Status
from shunter.model.snapshot import Fleet
from shunter.wire import agent_pb2 as pb

_BACK = frozenset({Status.ROLLED_BACK, Status.FAILED, Status.SUPERSEDED})
"""After these nothing of the operation is wanted at the slot any more."""


class Freeing:
    """Orders it under `epoch`, apart from the ticks.

    `record` audits, given the slot, what was done and more about it. `tell` is told, by slot, why one couldn't be freed (SH536), and None
    once it was.
    """

    def __init__(
        self,
        parts: Parts,
        epoch: Epoch,
        *,
        record: Callable[[SlotId, str, Mapping[str, object]], None],
        tell: Callable[[SlotId, Problem | None], None],
    ) -> None:
        self._parts, self._epoch, self._record = parts, epoch, record
        self._orders = Beside(parts.clock, lambda slot, why: tell(SlotId(slot), why and _kept(SlotId(slot), why)))

    def look(self, fleet: Fleet) -> None:
        """Begin with whatever is to be freed by what was seen. Raises Stalled when the store can't be read, and what broke an earlier
        order.
        """
        self._orders.check()
        left: dict[SlotId, tuple[NodeId, OperationRecord]] = {}
        for node in fleet.nodes:
            for slot in node.slots if node.reachable and node.id in self._parts.agents else ():
                record = self._ended(slot.reserved_by)
                if record is not None:
                    left[slot.id] = node.id, record
        self._orders.keep(left)
        for name, (node_id, record) in left.items():
            self._orders.begin(name, partial(self._free, name, node_id, record))

    async def stop(self) -> None:
        """Give no more orders."""
        await self._orders.stop()

    async def idle(self) -> None:
        """Return once no order is under way."""
        await self._orders.idle()

    def _ended(self, operation: str | None) -> OperationRecord | None:
        """An operation that this engine's store knows to be over, and to have left nothing at the slot. What others reserve is theirs."""
        record = self._parts.store.get(OperationId(operation)) if operation else None
        return record if record is not None and record.status in _BACK else None

    async def _free(self, slot: SlotId, node: NodeId, record: OperationRecord) -> None:
        """If it still has it: since it was seen, its operation may have given it back by itself."""
        planned, agent, quick = record.planned, self._parts.agents[node], self._parts.times.quick
        if not any(s.id == slot and s.reserved_by == record.id for s in (await agent.report(quick)).slots):
            return
        about = {"node": node, "operation": record.id, "worker": planned.worker}
        self._parts.still_leads()
        order = pb.Order(
            operation=record.id, epoch=self._epoch, plan=record.plan, worker=planned.worker, incarnation=planned.expect.incarnation
        )
        await agent.abort(order, quick)
        self._record(slot, f"freed {slot}, which {record.id} had reserved and couldn't give back at its end", about)


def _kept(slot: SlotId, why: Problem) -> Problem:
    return problem(
        "SH536",
        f"{slot} stays reserved by an operation that is over: {why.code} {why.what}",
        f"It is tried again. {why.remedy}",
        slot,
    )
