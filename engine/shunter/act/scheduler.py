"""Which of the planned operations run now: involuntary ones at once, voluntary ones a few at a time, one for each worker and slot, and one
dump at a time on each node.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from typing import Any, Final

import msgspec

from shunter.act.chain import WHOLE, dumped, dumps_on, linked, out_of_turn, ready, under_way
from shunter.act.execute import Executor
from shunter.act.run import Unresolved, problem, told
from shunter.model.errors import Problem, Rejected, ShunterError, Stalled
from shunter.model.ids import Digest, NodeId, OperationId, SlotId
from shunter.model.operation import UNDER_WAY, OperationRecord, Outcome, Status
from shunter.model.plan import Plan, PlannedOperation
from shunter.model.policy import PolicySet
from shunter.model.record import Record, RecordKind

VOLUNTARY: Final = 16
"""Voluntary chains under way at a time unless the settings say otherwise. What a fleet can spare is said by budgets, by shares of pools and
by one dump at a time on each node; this bounds what a mistaken policy can have begun before somebody sees it.
"""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A planned operation that wasn't begun yet, and the plan that it belongs to.

    `record` is its record if an earlier one of its chain has begun; None if it is known here alone.
    """

    planned: PlannedOperation
    plan: Digest
    record: OperationRecord | None = None


def subjects(planned: PlannedOperation) -> frozenset[str]:
    """What only one operation at a time may touch: its worker and its slots."""
    return frozenset({f"worker {planned.worker}", *(f"slot {slot}" for slot in slots_of(planned) if slot)})


def slots_of(planned: PlannedOperation) -> tuple[SlotId | None, ...]:
    """Its slots; None for those that it doesn't have."""
    return planned.from_slot, planned.to_slot, planned.expect.at, planned.expect.free


class Scheduler:
    """Holds what is planned but not begun in memory only: after a restart it is planned anew. A chain of which something has begun is in
    the store as a whole, what is still to come of it too, and so is a plan that a person has ordered: neither a newer plan nor a restart
    takes those apart.

    On each node one operation at a time dumps, in the order of the plan, as its estimates assume; the next begins once the image is whole,
    wherever the worker is brought back. What is urgent waits for the dump under way at most, and what isn't for all that is urgent.

    `on_error` is told what stopped an operation that stays active (an agent's answer that is out, a full disk).
    """

    def __init__(
        self,
        executor: Executor,
        *,
        voluntary: int = VOLUNTARY,
        on_error: Callable[[OperationId, ShunterError], None] = lambda _id, _error: None,
        note: Callable[[Sequence[Record]], object] | None = None,
    ) -> None:
        """`voluntary` chains may be under way at a time, an operation without `after` being one of its own. `note` takes the records of
        what was never begun, which nothing waits for; None: they go where all others go.
        """
        self._note = note or self._audit
        self._executor = executor
        self._store = executor.parts.store
        self._voluntary = voluntary
        self._chains: list[frozenset[OperationId]] | None = None
        """The voluntary ones under way, within one pump; None: not looked up since something was begun."""
        self._on_error = on_error
        self._waiting: dict[OperationId, Waiting] = {}
        self._running: dict[OperationId, tuple[PlannedOperation, asyncio.Task[None]]] = {}
        self._ended: dict[OperationId, Status] = {}
        self._crash: BaseException | None = None
        self._stopped = False
        executor.heard = self._heard

    def offer(self, plan: Plan, *, whole: bool = True) -> None:
        """Take on a plan: its operations are started as soon as they may be; older ones that weren't started and aren't in it are dropped.
        Of a plan that isn't `whole`, but what a notice asks for alone, only those that are in its way.

        An involuntary chain that waits is dropped too when the newer plan has another operation for one of its workers. A voluntary one of
        an accepted plan is given up if it waits where the newer plan has something involuntary for its worker or a slot. Previews and
        operations that were begun before, or whose chain was, are passed over. The very plan that everything waits as of is taken again: a
        tick may plan to the letter what a notice had asked for at that instant. Raises Rejected SH504 if this very plan was carried out
        before, Stalled SH501 if that can't be noted.
        """
        self._raise_crash()
        new = [o for o in plan.operations if not o.preview and (o.id in self._waiting or self._store.get(o.id) is None)]
        if not all(self._waits_as_of(o.id, plan.digest) for o in new):
            self._store.consume(plan.digest, self._executor.parts.clock())
        self._drop_outdated(new, whole=whole)
        self._make_way(new)
        for planned in new:
            self._waiting.pop(planned.id, None)  # the newer plan's order counts
            self._waiting[planned.id] = Waiting(planned=planned, plan=plan.digest)
        self.pump(hurried=not whole)

    def _waits_as_of(self, operation: OperationId, plan: Digest) -> bool:
        waiting = self._waiting.get(operation)
        return waiting is not None and waiting.plan == plan

    def accept(self, plan: Plan) -> None:
        """Take on a plan that a person has ordered as it is. All of it is in the store from now on: neither a newer plan nor a restart
        drops what of it waits. Raises Rejected SH504 if it was carried out before, SH503 if an operation of it was begun, Stalled SH501.
        """
        self._raise_crash()
        for record in self._executor.accept(plan):
            self._waiting.pop(record.id, None)
        self.pump()

    def pump(self, *, hurried: bool = False) -> None:
        """Start whatever may start now, and take up again what was left active. Called whenever something ended or has dumped, and each
        tick. `hurried`: what is voluntary isn't looked at, hundreds of which may wait; a tick sees to it.
        """
        self._raise_crash()
        if self._stopped:
            return
        self._executor.drop_fallen()
        self._chains = None
        chained = []
        for record in self._store.active():
            if record.waits:
                chained.append(Waiting(planned=record.planned, plan=record.plan, record=record))
            elif record.id not in self._running:
                self._spawn(record.planned, self._take_up(record))
        promised: set[NodeId] = set()
        everything = (*chained, *self._waiting.values())
        urgent = [w for w in everything if w.planned.lane == "involuntary"]
        for waiting in (*urgent, *(() if hurried else (w for w in everything if w.planned.lane != "involuntary"))):
            self._consider(self._as_it_is(waiting), promised)

    def cancel(self, operation: OperationId, because: str) -> bool:
        """Give an operation up, and with it all of its chain, as that is one decision. Whether anything of it still can be given up.

        What wasn't begun ends as superseded. What is under way goes back after the order that it is at, unless it is committed by then; a
        drain is at one order until the worker is idle. False for one that has ended or that nobody knows. Raises Stalled SH501.
        """
        self._raise_crash()
        can = self._give_up(operation, because)
        self.pump()
        return can

    def _give_up(self, operation: OperationId, because: str) -> bool:
        active = {record.id: record for record in self._store.active()}
        if operation not in active and operation not in self._waiting:
            return False
        known = [*(w.planned for w in self._waiting.values()), *(record.planned for record in active.values())]
        (chain,) = [chain for chain in linked(known) if operation in chain]
        can = False
        for waiting in [w for name, w in self._waiting.items() if name in chain]:
            why = problem("SH528", f"it was given up: {because}", "Nothing to do", waiting.planned.id)
            self._supersede(waiting, why)
            can = True
        for record in active.values():
            if record.id in chain:
                can = self._executor.cancel(record, because) or can
        return can

    async def idle(self) -> None:
        """Return once nothing runs. What waits for a place or an answer doesn't count."""
        while self._running:
            await asyncio.wait([task for _, task in self._running.values()])
            await asyncio.sleep(0)
        self._raise_crash()

    async def stop(self) -> None:
        """Start nothing more and stop asking; whatever is under way stays active in the store, for the next engine."""
        self._stopped = True
        self._waiting.clear()
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def waiting(self) -> tuple[PlannedOperation, ...]:
        """What is known here alone, as nothing of its chain was begun yet."""
        return tuple(w.planned for w in self._waiting.values())

    @property
    def running(self) -> tuple[PlannedOperation, ...]:
        """What is being carried out."""
        return tuple(planned for planned, _ in self._running.values())

    # -- what isn't begun any more

    def _drop_outdated(self, new: list[PlannedOperation], *, whole: bool) -> None:
        """A chain goes as a whole: room that nobody comes to isn't to be made."""
        ids = {o.id for o in new}
        workers, slots = {o.worker for o in new}, {slot for o in new for slot in slots_of(o) if slot}
        older = {w.planned.id: w for w in self._waiting.values() if w.planned.id not in ids}

        def outdated(planned: PlannedOperation) -> bool:
            if planned.lane == "voluntary":
                return whole or planned.worker in workers or not slots.isdisjoint(slots_of(planned))
            return planned.worker in workers

        self._drop(older, {name for name, w in older.items() if outdated(w.planned)}, "a newer plan doesn't have it")

    def withdraw(self, policies: PolicySet) -> None:
        """Drop what waits and isn't in the store yet, where these, which are newer, have its policy in force no more: voluntary work alone.
        A plan that is still being made with older ones mustn't begin it meanwhile.
        """
        wanted = {policy.name for policy in policies.policies if policy.mode == "enforce"}
        older = {w.planned.id: w for w in self._waiting.values()}
        unwanted = {name for name, w in older.items() if w.planned.lane == "voluntary" and w.planned.policy not in wanted}
        self._drop(older, unwanted, f"commit {policies.commit[:12]} doesn't have its policy in force")

    def _drop(self, older: Mapping[OperationId, Waiting], gone: Set[OperationId], why: str) -> None:
        if not gone:
            return
        fallen = frozenset[OperationId]().union(*(chain for chain in linked(w.planned for w in older.values()) if chain & gone))
        records = [
            self._superseded(waiting, problem("SH527", why, "Nothing to do", name)) for name, waiting in older.items() if name in fallen
        ]
        if records:
            self._note(records)

    def _make_way(self, new: list[PlannedOperation]) -> None:
        """Nobody who must leave stays because of what is voluntary and waits: not for its worker, nor for its slots."""
        urgent = {subject: o.id for o in new if o.lane == "involuntary" for subject in subjects(o)}
        for record in self._store.active() if urgent else ():
            by = next((urgent[s] for s in sorted(subjects(record.planned)) if s in urgent), None)
            if by is None or not record.waits or record.planned.lane != "voluntary":
                continue
            with contextlib.suppress(Stalled):  # on a full disk it can't begin either, and is given up later
                self._give_up(record.id, f"{by} can't wait, and needs its worker or a slot of it")

    def _audit(self, records: Sequence[Record]) -> None:
        for record in records:
            self._executor.parts.audit(record)

    def _supersede(self, waiting: Waiting, why: Problem) -> None:
        self._executor.parts.audit(self._superseded(waiting, why))

    def _superseded(self, waiting: Waiting, why: Problem) -> Record:
        """Only audited, not stored: it was never begun, so the same decision may be made again under the same id."""
        planned = waiting.planned
        parts = self._executor.parts
        now = parts.clock()
        del self._waiting[planned.id]
        self._ended[planned.id] = Status.SUPERSEDED
        record = OperationRecord(
            planned=planned,
            plan=waiting.plan,
            epoch=self._executor.epoch,
            created_at=now,
            outcome=Outcome(status=Status.SUPERSEDED, at=now, code=why.code, reason=why.what),
        )
        return told(parts, record, RecordKind.OUTCOME, f"{planned.kind.value}: {Status.SUPERSEDED.value}")

    def _release_urgent(self, stuck: OperationId) -> None:
        """What is urgent doesn't wait for an answer that may never come: freed from its chain, another way is found for its worker."""
        for record in self._store.active():
            if record.waits and record.planned.lane == "involuntary" and stuck in record.planned.after:
                self._executor.drop(record, out_of_turn(record.planned, f"it isn't known what became of {stuck}, which had to come first"))

    # -- what may begin

    def _as_it_is(self, waiting: Waiting) -> Waiting | None:
        """With its record if its chain has begun meanwhile; None if that failed."""
        if waiting.record is not None or waiting.planned.id in self._waiting:
            return waiting
        record = self._store.get(waiting.planned.id)
        return msgspec.structs.replace(waiting, record=record) if record is not None else None

    def _consider(self, waiting: Waiting | None, promised: set[NodeId]) -> None:
        """Begin it if it may. `promised` are nodes whose next dump is for something urgent; it is added to them."""
        if waiting is None or not self._has_turn(waiting):
            return
        planned = waiting.planned
        node = dumps_on(planned)
        if self._has_room(planned) and not (planned.lane == "voluntary" and node in promised):
            self._begin(waiting)
        elif node is not None and planned.lane == "involuntary":
            promised.add(node)

    def _has_turn(self, waiting: Waiting) -> bool:
        planned = waiting.planned
        if waiting.record is not None:
            return ready(planned, self._store.get)
        for before in planned.after:
            status = self._status(before)
            if status is Status.SUCCEEDED:
                continue
            if status is not None and status not in UNDER_WAY:
                self._supersede(waiting, out_of_turn(planned, f"{before}, which had to come first, ended as {status.value}"))
            return False
        return True

    def _has_room(self, planned: PlannedOperation) -> bool:
        if planned.lane == "voluntary" and not self._may_be_voluntary(planned):  # of many that wait this is soonest said
            return False
        taken = {subject for other, _ in self._running.values() for subject in subjects(other)}
        if taken & subjects(planned):
            return False
        node = dumps_on(planned)
        return node is None or node not in self._dumping()

    def _dumping(self) -> frozenset[NodeId]:
        """Nodes on which a dump is under way."""
        nodes = set()
        for planned, _ in self._running.values():
            record = self._store.get(planned.id)
            if record is not None and not dumped(record):
                nodes.add(dumps_on(planned))
        return frozenset(node for node in nodes if node is not None)

    def _may_be_voluntary(self, planned: PlannedOperation) -> bool:
        if not (self._store.healthy or self._store.probe()):
            return False
        if self._chains is None:
            self._chains = under_way(self._store.active(), self._store.get)
        return len(self._chains) < self._voluntary or any(planned.id in chain for chain in self._chains)

    def _status(self, operation: OperationId) -> Status | None:
        """None while it waits: it wasn't begun. One that nobody knows counts as superseded."""
        if operation in self._waiting:
            return None
        record = self._store.get(operation)
        return record.status if record is not None else self._ended.get(operation, Status.SUPERSEDED)

    def _begin(self, waiting: Waiting) -> None:
        """Make it durable that it is begun, the rest of its chain with it, and let it run."""
        planned = waiting.planned
        self._chains = None
        try:
            if waiting.record is not None:
                record = self._executor.begin(waiting.record)
            else:
                del self._waiting[planned.id]
                record = self._executor.intend(planned, waiting.plan, self._rest_of_chain(planned))
        except ShunterError as stopped:
            self._on_error(planned.id, stopped)
            return
        self._spawn(planned, self._carry(record))

    def _rest_of_chain(self, planned: PlannedOperation) -> list[PlannedOperation]:
        """All that waits and is linked to it, taken out of what is known here alone."""
        others = [w.planned for w in self._waiting.values()]
        if not planned.after and not any(planned.id in other.after for other in others):
            return []
        (chain,) = [chain for chain in linked([planned, *others]) if planned.id in chain]
        rest = [o for o in others if o.id in chain]
        for other in rest:
            del self._waiting[other.id]
        return rest

    # -- what runs

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

    def _heard(self, record: OperationRecord) -> None:
        """A dump that is over makes way for the next one on its node. Not from within the step: that mustn't fail for another's sake."""
        if record.id in self._running and record.step in WHOLE and record.outcome is None:
            asyncio.get_running_loop().call_soon(self._pump_quietly, record.id)

    def _pump_quietly(self, ended: OperationId) -> None:
        if self._crash is not None:
            return  # raised where somebody waits for it
        try:
            self.pump()
        except ShunterError as stopped:
            self._on_error(ended, stopped)
        except BaseException as bug:  # nobody waits for a callback: raised by the next tick
            self._crash = bug

    async def _carry(self, record: OperationRecord) -> None:
        await self._settling(record.id, self._executor.carry(record))

    async def _take_up(self, record: OperationRecord) -> None:
        adopted = record
        if record.epoch != self._executor.epoch:
            self._store.adopt(self._executor.epoch)
            adopted = self._store.get(record.id) or record
        await self._settling(record.id, self._executor.resume(adopted))

    async def _settling(self, operation: OperationId, work: Coroutine[Any, Any, OperationRecord]) -> None:
        try:
            await work
        except Unresolved:
            self._release_urgent(operation)
            raise

    def _raise_crash(self) -> None:
        if self._crash is not None:
            raise self._crash
