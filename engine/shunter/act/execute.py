"""Carrying out operations: intent first, then step by step, then the outcome; each durable before what comes after it."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from shunter.act.chain import fallen, freed
from shunter.act.checkpoint import CHECKPOINT
from shunter.act.discard import DISCARD
from shunter.act.drain import DRAIN
from shunter.act.drive import Machine
from shunter.act.expect import unmet
from shunter.act.move import MOVE
from shunter.act.park import PARK
from shunter.act.restore import RESTORE
from shunter.act.run import Parts, Run, problem, told
from shunter.model.errors import Problem, Rejected, Stalled
from shunter.model.ids import Digest, Epoch, node_of
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import OperationKind, Plan, PlannedOperation
from shunter.model.pod import Pod
from shunter.model.record import RecordKind

MACHINES: Final[dict[OperationKind, Machine]] = {
    OperationKind.MOVE: MOVE,
    OperationKind.PARK: PARK,
    OperationKind.CHECKPOINT: CHECKPOINT,
    OperationKind.RESTORE: RESTORE,
    OperationKind.DRAIN: DRAIN,
    OperationKind.DISCARD: DISCARD,
}
"""REASSIGN has none: no engine that flips its role in place is supported yet."""


_LEAVE: Final = (OperationKind.MOVE, OperationKind.PARK, OperationKind.DRAIN)


class Executor:
    """Carries out operations under one epoch.

    All methods raise Stalled when the store or the audit trail can't be written, or when another engine leads; Unresolved when an agent's
    answer stays out. The operation is then still active: `resume` it later. `heard` is told each step once it is durable and audited; it
    must not raise.
    """

    def __init__(self, parts: Parts, epoch: Epoch) -> None:
        self.parts = msgspec.structs.replace(parts, progress=self._progress)
        self.epoch = epoch
        self.heard: Callable[[OperationRecord], None] = lambda _record: None
        self._tell_people = parts.progress

    async def start(self, planned: PlannedOperation, plan: Digest) -> OperationRecord:
        """`intend` and `carry` as one."""
        return await self.carry(self.intend(planned, plan))

    def intend(self, planned: PlannedOperation, plan: Digest, then: Sequence[PlannedOperation] = ()) -> OperationRecord:
        """Make the intent durable, and with it those of `then`, the rest of its chain, which wait for their turn: all or none.

        Raises Rejected SH503 if one was begun before, SH523 if one is a preview, Stalled SH501 when something voluntary would start on a
        store that doesn't take writes.
        """
        for one in (planned, *then):
            if one.preview:
                raise Rejected(problem("SH523", "it is a preview: shown, never carried out", "Set the policy's mode to `enforce`", one.id))
        if planned.lane == "voluntary" and not (self.parts.store.healthy or self.parts.store.probe()):
            raise Stalled(
                problem("SH501", "the engine's store doesn't take writes", "Free disk space or mend the state directory", planned.id)
            )
        now = self.parts.clock()
        first = OperationRecord(
            planned=planned, plan=plan, epoch=self.epoch, created_at=now, history=((Step.INTENDED, now),), left=self._home(planned)
        )
        records = [first, *(msgspec.structs.replace(first, planned=one, waits=True, left=None) for one in then)]
        self.parts.store.insert(records)
        self._tell_intents(records)
        return records[0]

    def accept(self, plan: Plan) -> tuple[OperationRecord, ...]:
        """Make the intents of a whole plan durable, and with them that it is carried out: all or none. Each waits for its turn; what is
        only shown is left out.

        Raises Rejected SH504 if the plan was carried out before, SH503 if one of its operations was begun, Stalled SH501.
        """
        if not (self.parts.store.healthy or self.parts.store.probe()):
            raise Stalled(
                problem("SH501", "the engine's store doesn't take writes", "Free disk space or mend the state directory", plan.digest)
            )
        now = self.parts.clock()
        records = [
            OperationRecord(planned=one, plan=plan.digest, epoch=self.epoch, created_at=now, history=((Step.INTENDED, now),), waits=True)
            for one in plan.operations
            if not one.preview
        ]
        self.parts.store.accept(plan.digest, now, records)
        self._tell_intents(records)
        return tuple(records)

    def begin(self, record: OperationRecord) -> OperationRecord:
        """Make durable that a waiting operation's turn has come, before an agent is asked for anything. `carry` it then."""
        left = self._home(record.planned)
        return self.parts.store.advance(record.id, Step.INTENDED, self.parts.clock(), waits=False, epoch=self.epoch, left=left)

    def tell_end(self, record: OperationRecord) -> None:
        """Tell the audit, and people, how an operation ended that somebody else had ended. Raises Stalled."""
        assert record.outcome is not None, "it has ended"
        self.parts.audit(told(self.parts, record, RecordKind.OUTCOME, f"{record.planned.kind.value}: {record.outcome.status.value}"))
        self.parts.progress(record)

    async def carry(self, record: OperationRecord) -> OperationRecord:
        """Check the preconditions against the fleet as it is, and carry the operation out. Returns the ended record.

        A precondition that doesn't hold ends it as SUPERSEDED (SH510; SH513 if its time is over) with nothing done.
        """
        run = Run(self.parts, record)
        if self._refused(run):
            return run.record
        await MACHINES[record.planned.kind].drive(run)
        return run.record

    async def resume(self, record: OperationRecord) -> OperationRecord:
        """Take up an operation of which it isn't known how far it came: ask the agents first, then carry it on or back.

        Until they have answered it is UNKNOWN. One that waits for its turn was never begun, and is returned as it is, as is what has ended.
        """
        if record.waits or record.outcome is not None:
            return record
        run = Run(self.parts, record)
        run.taken_up = True
        machine = MACHINES.get(record.planned.kind)
        if machine is None:
            run.finish(Status.SUPERSEDED, _unsupported(record.planned))
            return run.record
        interrupted = problem("SH524", "the engine was interrupted", "Nothing to do", record.id)
        await machine.settle(run, record.outstanding.problem if record.outstanding else interrupted)
        await machine.drive(run)
        return run.record

    def cancel(self, record: OperationRecord, because: str) -> bool:
        """Make durable that an active operation is to be given up (SH528), also by the next engine. Whether it still can be.

        One that waits for its turn ends at once. Otherwise the order under way is seen through; then it goes back to where it was, unless
        it is committed by that: then it is finished, but for what it starts in another pool, which is left to start natively.
        """
        why = problem("SH528", f"it was given up: {because}", "Nothing to do: it is planned again if there is still a need", record.id)
        if record.waits:
            self.drop(record, why)
            return True
        machine = MACHINES.get(record.planned.kind)
        if machine is not None and not machine.revocable(record.step) and record.step is not Step.STARTING:
            return False
        if record.cancelled is None:
            marked = self.parts.store.advance(record.id, record.step, self.parts.clock(), cancelled=why)
            Run(self.parts, marked).tell(RecordKind.STEP, f"{record.planned.kind.value}: to be given up after {record.step.value}")
        return True

    def drop(self, record: OperationRecord, why: Problem) -> OperationRecord:
        """End an operation that waits for its turn as SUPERSEDED: nothing was done."""
        run = Run(self.parts, record)
        run.finish(Status.SUPERSEDED, why)
        return run.record

    def drop_fallen(self) -> tuple[OperationRecord, ...]:
        """End those that wait for a turn that will never come, and then those that wait for them (SH526)."""
        dropped: list[OperationRecord] = []
        more = True
        while more:
            waiting = [record for record in self.parts.store.active() if record.waits]
            why = {record.id: fallen(record.planned, self.parts.store.get) for record in waiting}
            ended = [self.drop(record, found) for record in waiting if (found := why[record.id]) is not None]
            dropped += ended
            more = bool(ended)
        return tuple(dropped)

    def _home(self, planned: PlannedOperation) -> Pod | None:
        """The pod that its worker is to leave, if it lives in one. Durable with the beginning, as whoever takes over may know no more than
        that, and has to end what starts the worker again in there.
        """
        places, at = self.parts.places, planned.from_slot
        if places is None or at is None or planned.kind not in _LEAVE:
            return None
        worker = next((w for w in self.parts.fleet().workers if w.id == planned.worker), None)
        if worker is None or worker.slot != at or worker.pod is None or places.strange(worker.pod, node_of(at)):
            return None
        return worker.pod

    def _tell_intents(self, records: Sequence[OperationRecord]) -> None:
        def what(record: OperationRecord) -> str:
            return f"{record.planned.kind.value} of {record.planned.worker}: {record.planned.reason}"

        self.parts.write([told(self.parts, record, RecordKind.INTENT, what(record)) for record in records])
        for record in records:
            self.parts.progress(record)

    def _progress(self, record: OperationRecord) -> None:
        self._tell_people(record)
        self.heard(record)

    def _refused(self, run: Run) -> bool:
        planned = run.planned
        if planned.kind not in MACHINES:
            why = problem(
                "SH525", f"{planned.kind.value} in place isn't supported", "Use a method that moves or parks the worker", planned.id
            )
        elif given_up := run.given_up:
            why = given_up
        elif said := unmet(planned, self.parts.fleet(), freed(planned, self.parts.store.get)) or self.parts.astray(planned):
            why = problem(
                "SH510", f"a precondition doesn't hold any more: {said}", "Nothing to do: what is planned next knows it", planned.id
            )
        else:
            return False
        run.finish(Status.SUPERSEDED, why)
        return True


def _unsupported(planned: PlannedOperation) -> Problem:
    what = f"{planned.kind.value} in place isn't supported"
    return problem("SH525", what, "Use a method that moves or parks the worker", planned.id)
