"""An executor that begins operations for real, in the store and the audit trail, and waits for the test to say how each goes on."""

import asyncio
from typing import Any, cast

from fleet_in_memory import World
from shunter.act.execute import Executor
from shunter.act.run import Run
from shunter.model.ids import Commit, Digest, Incarnation, OperationId, PolicyName, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind, Plan, PlannedOperation, Preconditions
from shunter.model.record import Record, RecordKind


class Gated(Executor):
    """Starts operations for real in the store, then waits for the test to say how each ends."""

    def __init__(self, world: World) -> None:
        super().__init__(world.parts(), world.epoch())
        self.started: list[str] = []
        self.gates: dict[str, asyncio.Future[Status]] = {}

    async def carry(self, record: OperationRecord) -> OperationRecord:
        self.started.append(record.id)
        self.gates[record.id] = asyncio.get_running_loop().create_future()
        status = await self.gates[record.id]
        return self.parts.store.finish(record.id, Outcome(status=status, at=self.parts.clock()))

    async def dumped(self, operation: str) -> None:
        record = self.parts.store.get(OperationId(operation))
        assert record is not None
        Run(self.parts, record).step(Step.DUMPED if record.planned.kind is OperationKind.CHECKPOINT else Step.FROZEN)
        await settle()

    async def end(self, operation: str, status: Status = Status.SUCCEEDED) -> None:
        self.gates[operation].set_result(status)
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def op(name: str, worker: str | None = None, lane: str = "voluntary", **more: object) -> PlannedOperation:
    base: dict[str, object] = {
        "id": OperationId(name),
        "kind": OperationKind.CHECKPOINT,
        "worker": WorkerId(worker or name),
        "lane": lane,
        "policy": PolicyName("p"),
        "reason": "r",
        "expect": Preconditions(incarnation=Incarnation(0)),
    }
    return PlannedOperation(**(base | more))  # type: ignore[arg-type]


def plan(*operations: PlannedOperation, at: float = 1.0) -> Plan:
    return Plan(at=at, commit=Commit("c"), policy_set=Digest("p"), snapshot=Digest("s"), operations=operations)


def status_of(world: World, operation: str) -> Status:
    """How it stands; it must have been begun, or wait for its turn in a chain that was."""
    record = world.store.get(OperationId(operation))
    assert record is not None, f"{operation} was never begun"
    return record.status


def outcomes(world: World) -> dict[str, Record]:
    """The audited outcomes, by operation."""
    return {str(r.operation): r for r in world.records if r.kind is RecordKind.OUTCOME}


def told_outcome(record: Record) -> dict[str, Any]:
    """The outcome in an audit record's body."""
    return cast(dict[str, Any], record.body["outcome"])
