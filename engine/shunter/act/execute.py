"""Carrying out operations: intent first, then step by step, then the outcome; each durable before what comes after it."""

from typing import Final

from shunter.act.checkpoint import CHECKPOINT
from shunter.act.discard import DISCARD
from shunter.act.drain import DRAIN
from shunter.act.drive import Machine
from shunter.act.expect import unmet
from shunter.act.move import MOVE
from shunter.act.park import PARK
from shunter.act.restore import RESTORE
from shunter.act.run import Parts, Run, problem
from shunter.model.errors import Problem, Rejected, Stalled
from shunter.model.ids import Digest, Epoch
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation
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


class Executor:
    """Carries out operations under one epoch.

    All methods raise Stalled when the store or the audit trail can't be written, or when another engine leads; Unresolved when an agent's
    answer stays out. The operation is then still active: `resume` it later.
    """

    def __init__(self, parts: Parts, epoch: Epoch) -> None:
        self.parts = parts
        self.epoch = epoch

    async def start(self, planned: PlannedOperation, plan: Digest) -> OperationRecord:
        """Make the intent durable, check the preconditions against the fleet as it is, and carry it out. Returns the ended record.

        A precondition that doesn't hold ends it as SUPERSEDED (SH510) with nothing done. Raises Rejected SH503 if it was begun before,
        SH523 if it is a preview, Stalled SH501 when something voluntary would start on a store that doesn't take writes.
        """
        if planned.preview:
            raise Rejected(problem("SH523", "it is a preview: shown, never carried out", "Set the policy's mode to `enforce`", planned.id))
        if planned.lane == "voluntary" and not (self.parts.store.healthy or self.parts.store.probe()):
            raise Stalled(
                problem("SH501", "the engine's store doesn't take writes", "Free disk space or mend the state directory", planned.id)
            )
        now = self.parts.clock()
        record = OperationRecord(planned=planned, plan=plan, epoch=self.epoch, created_at=now, history=((Step.INTENDED, now),))
        self.parts.store.insert([record])
        run = Run(self.parts, record)
        run.tell(RecordKind.INTENT, f"{planned.kind.value} of {planned.worker}: {planned.reason}")
        if self._refused(run):
            return run.record
        await MACHINES[planned.kind].drive(run)
        return run.record

    async def resume(self, record: OperationRecord) -> OperationRecord:
        """Take up an operation of which it isn't known how far it came: ask the agents first, then carry it on or back."""
        run = Run(self.parts, record)
        machine = MACHINES.get(record.planned.kind)
        if machine is None:
            run.finish(Status.SUPERSEDED, _unsupported(record.planned))
            return run.record
        await machine.settle(run, record.problem or problem("SH524", "the engine was interrupted", "Nothing to do", record.id))
        await machine.drive(run)
        return run.record

    def _refused(self, run: Run) -> bool:
        planned = run.planned
        if planned.kind not in MACHINES:
            why = problem(
                "SH525", f"{planned.kind.value} in place isn't supported", "Use a method that moves or parks the worker", planned.id
            )
        elif said := unmet(planned, self.parts.fleet()):
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
