"""Workers that a going node has cost their process: brought back from their images where there is room."""

from collections.abc import Sequence

import msgspec

from shunter.decide.cases import TRIES, spec_of
from shunter.decide.deciding import Deciding
from shunter.decide.history import failed_nodes, said
from shunter.decide.jobs import Job
from shunter.decide.place import beside, place
from shunter.decide.plan import round_of
from shunter.decide.words import clock
from shunter.model.finding import Evidence, Verdict
from shunter.model.ids import NoticeId
from shunter.model.operation import OperationRecord, Status
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import Policy
from shunter.model.snapshot import Image, NoticeKind, Role, Worker, WorkerState


class Away(msgspec.Struct, frozen=True, kw_only=True):
    """A worker without a process, the image that it can come back from, and why it should."""

    worker: Worker
    image: Image
    cause: str
    why: str
    notice: NoticeId | None
    failed: tuple[OperationRecord, ...]
    covered: tuple[Evidence, ...]
    archived: bool
    """It has to be fetched from the archive: no node that answers has it."""
    passed: tuple[str, ...] = ()
    """Younger images that are passed over, and why."""


def recover(d: Deciding, policy: Policy, role: Role) -> None:
    """Restore workers of the role: lost ones if the policy answers to `gone`, and those that it parked itself when there was no room."""
    away = [a for w in d.world.away if w.role == role and d.reaches(policy, w) and (a := _away(d, policy, w)) is not None]
    ready = [a for a in away if _ready(d, policy, a)]
    free = d.free_slots()
    founds = {
        a.worker.id: d.finder.find(
            d.needs(a.image),
            free,
            scope=d.scopes.worker(policy, a.worker),
            to=spec_of(policy).move.to,
            avoid=failed_nodes(a.failed),
            size=d.size(a.worker, a.image.id),
        )
        for a in ready
    }
    costs = {a.worker.id: d.phases(a.worker, a.image.bytes) for a in ready}
    jobs = [Job(worker=a.worker.id, tail=costs[a.worker.id].tail(archived=a.archived), bytes=a.image.bytes) for a in ready]
    placed = place(jobs, {w: f.options for w, f in founds.items()}, {}, d.now, d.rooms)
    for a in ready:
        slot = placed.slots.get(a.worker.id)
        if slot is None:
            options = founds[a.worker.id].options
            why = f"others come first{beside(d.rooms, a.image.bytes, options, placed)}" if options else founds[a.worker.id].why()
            evidence = (*_evidence(a), Evidence(gate="move.to", result=False, detail=why))
            reason = f"{a.why}, and there is no slot to restore it into ({why})"
            d.find(policy, a.worker.id, Verdict.HOLD, reason, gate="move.to", evidence=evidence)
            continue
        d.plan(
            policy,
            OperationKind.RESTORE,
            a.worker,
            Preconditions(incarnation=a.worker.incarnation, absent=True, free=slot, image=a.image.id),
            cause=a.cause,
            reason=f"{a.worker.id}: {a.why}; its image {a.image.id} is {d.now - a.image.taken_at:.0f} s old"
            + (", and in the archive alone" if a.archived else "")
            + (f"; {'; '.join(a.passed)}" if a.passed else ""),
            estimate=costs[a.worker.id].restoring(archived=a.archived),
            to_slot=slot,
            image=a.image.id,
            notice=a.notice,
        )
        d.find(policy, a.worker.id, Verdict.ACT, f"{a.why}: it is restored into {slot}", gate="worker.state", evidence=_evidence(a))


def _away(d: Deciding, policy: Policy, worker: Worker) -> Away | None:
    """The worker's case, or None, with a finding where the policy is about it but can do nothing."""
    covered, evidence = d.covers(policy, worker)
    reason = _reason(d, policy, worker) if covered is not False else None
    if reason is None:
        return None
    image = d.world.restorable(worker.id)
    if image is None:
        held = Evidence(gate="image", result=False, detail=_out_of_reach(d, worker))
        d.find(
            policy,
            worker.id,
            Verdict.HOLD,
            f"{reason}, and no node that answers has an image of it{_distrusted(d, worker)}",
            gate="image",
            evidence=(*evidence, held),
        )
        return None
    cause = round_of(f"lost:{image.id}" if worker.state is WorkerState.LOST else f"parked:{image.id}", image.taken_at, d.now)
    notices = d.world.notices.get(worker.node, ()) if worker.node else ()
    return Away(
        worker=worker,
        image=image,
        cause=cause,
        why=reason,
        notice=next((n.id for n in notices if n.kind in spec_of(policy).notices and n.slot is None), None),
        failed=tuple(d.history.failures(OperationKind.RESTORE, worker.id, cause)),
        covered=evidence,
        archived=d.world.away_from_nodes(image),
        passed=tuple(f"{i.id} is passed over: {i.doubt}" for i in _younger(d, worker, image) if i.doubt),
    )


def _younger(d: Deciding, worker: Worker, image: Image) -> Sequence[Image]:
    own = d.world.images.get(worker.id, ())
    return own[: own.index(image)]


def _distrusted(d: Deciding, worker: Worker) -> str:
    """What is known against the newest image that it would have come back from otherwise."""
    newest = next((i for i in d.world.images.get(worker.id, ()) if i.doubt), None)
    return f" that is to be trusted: {newest.id} was taken after this: {newest.doubt}" if newest is not None else ""


def _out_of_reach(d: Deciding, worker: Worker) -> str:
    own, trusted = d.world.images.get(worker.id, ()), d.world.trusted(worker.id)
    archived = sum(i.archived for i in trusted)
    kept = f"; {archived} in the archive, of which no node that answers knows" if archived else ""
    less = f", {len(own) - len(trusted)} of which aren't to be trusted" if len(own) > len(trusted) else ""
    return f"{len(own)} images{less}, none on a node that answers{kept}"


def _reason(d: Deciding, policy: Policy, worker: Worker) -> str | None:
    """Why this policy should bring the worker back, or None when that is none of its business."""
    own = [r for r in d.history.of_worker(worker.id) if r.planned.policy == policy.name and r.planned.lane == "involuntary"]
    if worker.state is WorkerState.LOST:
        failed = bool(own) and own[-1].status is Status.FAILED
        return "its process is lost" if failed or NoticeKind.GONE in spec_of(policy).notices else None
    parked = [r for r in d.history.of_worker(worker.id) if r.planned.kind is OperationKind.PARK and r.status is Status.SUCCEEDED]
    if parked and parked[-1].planned.policy == policy.name:
        return "it was parked for want of a slot"
    return None


def _ready(d: Deciding, policy: Policy, a: Away) -> bool:
    blocked = d.ledger.blocked(a.worker.id)
    if blocked is None and len(a.failed) < TRIES:
        return True
    reason = blocked or f"{a.why}, and it needs a person: {'; '.join(_said(a.failed))}"
    d.find(policy, a.worker.id, Verdict.HOLD, reason, gate="worker" if blocked else "restore", evidence=_evidence(a))
    return False


def _said(failed: Sequence[OperationRecord]) -> list[str]:
    return [said(r) for r in failed]


def _evidence(a: Away) -> tuple[Evidence, ...]:
    taken = f"{a.image.id}, taken at {clock(a.image.taken_at)}, {a.image.bytes:,} bytes, held by {a.image.holders}"
    return (
        *a.covered,
        Evidence(gate="worker.state", result=True, detail=a.worker.state.value),
        Evidence(gate="image", result=True, detail=taken),
        *(Evidence(gate="image.doubt", result=True, detail=told) for told in a.passed),
        *(Evidence(gate="restore", result=False, detail=told) for told in _said(a.failed)),
    )
