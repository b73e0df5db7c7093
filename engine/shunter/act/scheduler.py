"""Which of the planned operations run now: involuntary ones at once, voluntary ones a few at a time, one for each worker and slot."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from shunter.act.execute import Executor
from shunter.act.run import Unresolved, is_pretend
from shunter.model.errors import Rejected, ShunterError, Stalled
from shunter.model.ids import Digest, OperationId
from shunter.model.operation import OperationRecord, Status
from shunter.model.plan import Plan, PlannedOperation
from shunter.model.record import Record, RecordKind


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A planned operation that wasn't started yet, and the plan that it belongs to."""

    planned: PlannedOperation
    plan: Digest


def subjects(planned: PlannedOperation) -> frozenset[str]:
    """What only one operation at a time may touch: its worker and its slots."""
    slots = (planned.from_slot, planned.to_slot, planned.expect.at, planned.expect.free)
    return frozenset({f"worker {planned.worker}", *(f"slot {slot}" for slot in slots if slot)})


class Scheduler:
    """Holds what is planned but not started, in memory only: after a restart it is planned anew. What runs is in the store.

    `on_error` is told what stopped an operation that stays active (an agent's answer that is out, a full disk).
    """

    def __init__(
        self, executor: Executor, *, voluntary: int = 2, on_error: Callable[[OperationId, ShunterError], None] = lambda _id, _error: None
    ) -> None:
        self._executor = executor
        self._voluntary = voluntary
        self._on_error = on_error
        self._waiting: dict[OperationId, Waiting] = {}
        self._running: dict[OperationId, tuple[PlannedOperation, asyncio.Task[None]]] = {}
        self._ended: dict[OperationId, Status] = {}
        self._crash: BaseException | None = None

    def offer(self, plan: Plan) -> None:
        """Take on a plan: its operations are started as soon as they may be; older ones that weren't started and aren't in it are dropped.

        An involuntary one that waits is dropped too when the newer plan has another operation for its worker. Previews and operations that
        were begun before are passed over. Raises Rejected SH504 if this very plan was carried out before, Stalled SH501
        if that can't be noted.
        """
        self._raise_crash()
        store = self._executor.parts.store
        new = [o for o in plan.operations if not o.preview and o.id not in self._running and store.get(o.id) is None]
        if new:
            store.consume(plan.digest, self._executor.parts.clock())
        self._drop_outdated(new)
        for planned in new:
            self._waiting[planned.id] = Waiting(planned=planned, plan=plan.digest)
        self.pump()

    def pump(self) -> None:
        """Start whatever may start now, and take up again what was left active. Called whenever something ended, and each tick."""
        self._raise_crash()
        for record in self._executor.parts.store.active():
            if record.id not in self._running:
                self._spawn(record.planned, self._take_up(record))
        for waiting in sorted(self._waiting.values(), key=lambda w: w.planned.lane != "involuntary"):
            if self._may_start(waiting.planned):
                del self._waiting[waiting.planned.id]
                self._spawn(waiting.planned, self._start(waiting))

    async def idle(self) -> None:
        """Return once nothing runs. What waits for a place or an answer doesn't count."""
        while self._running:
            await asyncio.wait([task for _, task in self._running.values()])
            await asyncio.sleep(0)
        self._raise_crash()

    async def stop(self) -> None:
        """Start nothing more and stop asking; whatever is under way stays active in the store, for the next engine."""
        self._waiting.clear()
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def waiting(self) -> tuple[PlannedOperation, ...]:
        """What wasn't started yet."""
        return tuple(w.planned for w in self._waiting.values())

    @property
    def running(self) -> tuple[PlannedOperation, ...]:
        """What is being carried out."""
        return tuple(planned for planned, _ in self._running.values())

    # -- inner parts

    def _drop_outdated(self, new: list[PlannedOperation]) -> None:
        ids = {o.id for o in new}
        workers = {o.worker for o in new}
        for waiting in list(self._waiting.values()):
            planned = waiting.planned
            if planned.id not in ids and (planned.lane == "voluntary" or planned.worker in workers):
                self._supersede(waiting, "a newer plan doesn't have it")

    def _supersede(self, waiting: Waiting, why: str) -> None:
        """Only audited, not stored: it was never begun, so the same decision may be made again under the same id."""
        planned = waiting.planned
        parts = self._executor.parts
        del self._waiting[planned.id]
        self._ended[planned.id] = Status.SUPERSEDED
        record = OperationRecord(planned=planned, plan=waiting.plan, epoch=self._executor.epoch, created_at=parts.clock())
        parts.audit(
            Record(
                at=parts.clock(),
                kind=RecordKind.OUTCOME,
                subject=planned.worker,
                what=f"{planned.kind.value}: {Status.SUPERSEDED.value}, {why}",
                epoch=self._executor.epoch,
                plan=waiting.plan,
                operation=planned.id,
                pretend=is_pretend(parts.fleet(), record),
                body={"kind": planned.kind.value, "reason": planned.reason, "why": why},
            )
        )

    def _may_start(self, planned: PlannedOperation) -> bool:
        for before in planned.after:
            status = self._status(before)
            if status is Status.SUCCEEDED:
                continue
            if status is not None and status is not Status.ACTIVE and planned.id in self._waiting:
                self._supersede(self._waiting[planned.id], f"{before}, which had to come first, ended as {status.value}")
            return False
        taken = {subject for other, _ in self._running.values() for subject in subjects(other)}
        if taken & subjects(planned):
            return False
        if planned.lane == "involuntary":
            return True
        store = self._executor.parts.store
        under_way = sum(other.lane == "voluntary" for other, _ in self._running.values())
        return under_way < self._voluntary and (store.healthy or store.probe())

    def _status(self, operation: OperationId) -> Status | None:
        """None while it waits: it wasn't begun. One that nobody knows counts as superseded."""
        if operation in self._waiting:
            return None
        record = self._executor.parts.store.get(operation)
        if record is not None:
            return record.status
        return Status.ACTIVE if operation in self._running else self._ended.get(operation, Status.SUPERSEDED)

    def _spawn(self, planned: PlannedOperation, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=planned.id)
        self._running[planned.id] = (planned, task)
        task.add_done_callback(lambda done: self._over(planned, done))

    def _over(self, planned: PlannedOperation, done: asyncio.Task[None]) -> None:
        del self._running[planned.id]
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._pump_quietly(planned.id)
        elif isinstance(error, Unresolved | Stalled | Rejected):
            # Left for the next tick's pump: trying again at once would only spin.
            self._on_error(planned.id, error)
        else:
            self._crash = error

    def _pump_quietly(self, ended: OperationId) -> None:
        try:
            self.pump()
        except ShunterError as stopped:
            self._on_error(ended, stopped)

    async def _start(self, waiting: Waiting) -> None:
        await self._executor.start(waiting.planned, waiting.plan)

    async def _take_up(self, record: OperationRecord) -> None:
        adopted = record
        if record.epoch != self._executor.epoch:
            store = self._executor.parts.store
            store.adopt(self._executor.epoch)
            adopted = store.get(record.id) or record
        await self._executor.resume(adopted)

    def _raise_crash(self) -> None:
        if self._crash is not None:
            raise self._crash
