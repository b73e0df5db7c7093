"""Retention: images that no policy keeps any longer are discarded, one of a worker at a time, and never the last that it could come back
from.
"""

from shunter.decide.deciding import Deciding
from shunter.decide.history import said
from shunter.decide.plan import round_of
from shunter.decide.words import count
from shunter.model.finding import Evidence, Verdict
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import CheckpointPolicy, Policy
from shunter.model.snapshot import Image, Worker
from shunter.model.units import Duration

_RETRY = 60.0
"""Seconds after a discard that failed before it is tried again, doubled with each further failure."""


def retain(d: Deciding, policy: Policy) -> None:
    """Plan a discard for every covered worker that has images to spare and nothing else to do."""
    several = d.world.several
    for worker in d.subjects(policy) if several else ():
        # the only image of a worker is never one too many
        if worker.id in several and d.covered(policy)[worker.id] is True:
            _retain(d, policy, worker)


def _retain(d: Deciding, policy: Policy, worker: Worker) -> None:
    spare = _spare(d, worker)
    held = d.outdated() or d.ledger.blocked(worker.id) or d.involuntary(worker.graph, preview=policy.mode == "preview")
    if spare is None or held is not None:
        return
    cause = round_of(f"retention:{spare.id}", spare.taken_at, d.now)
    failed = d.history.failures(OperationKind.DISCARD, worker.id, cause)
    if failed and failed[-1].outcome and d.now < failed[-1].outcome.at + _RETRY * 2.0 ** min(len(failed) - 1, 6):
        return
    last, within = _kept(d, worker)
    beyond = f" and than {Duration(within)}" if within else ""
    reason = f"{worker.id}: {spare.id} is older than the {count(last, 'image')} kept{beyond}"
    d.plan(
        policy,
        OperationKind.DISCARD,
        worker,
        Preconditions(incarnation=worker.incarnation, image=spare.id),
        cause=cause,
        reason=reason + (f"; tried before: {said(failed[-1])}" if failed else ""),
        image=spare.id,
    )
    earlier = d.said(policy, worker)
    detail = f"{len(d.world.images[worker.id])} images, {last} kept{f', and those younger than {Duration(within)}' if within else ''}"
    evidence = Evidence(gate="keep.last", result=True, detail=detail)
    d.find(
        policy,
        worker.id,
        Verdict.ACT,
        f"{spare.id} is discarded: {count(last, 'newer image')} kept",
        gate="keep.last",
        evidence=(*(earlier.evidence if earlier else ()), evidence),
    )


def _spare(d: Deciding, worker: Worker) -> Image | None:
    """The oldest image that is beyond what is kept, or None.

    Only images on nodes that stay count as kept: one on a node that is going may be gone before it is needed, and one in the archive
    takes longer to come back than `keep` was written for. An image is left alone while one of its holders doesn't answer, or nobody who
    knows of the archive that has it (its copy there couldn't be deleted), or an operation refers to it.
    """
    last, within = _kept(d, worker)
    kept = [i for i in d.world.images[worker.id] if any(d.world.stays(n) for n in i.nodes)][:last]
    if len(kept) < last:
        return None
    oldest = kept[-1]
    older = [i for i in d.world.images[worker.id] if (i.incarnation, i.taken_at) < (oldest.incarnation, oldest.taken_at)]
    ready = [
        i
        for i in older
        if d.now - i.taken_at > within
        and i.id not in d.ledger.images
        and (i.nodes or i.archived)
        and (d.world.archive or not i.archived)
        and all((n := d.world.nodes.get(h)) is not None and n.reachable for h in i.nodes)
    ]
    return min(ready, key=lambda i: (i.incarnation, i.taken_at, i.id), default=None)


def _kept(d: Deciding, worker: Worker) -> tuple[int, float]:
    """How many images of the worker are kept, and for how long (seconds) any is: the most that any policy in force wants, also one that
    may or may not cover it.
    """
    wanted = [
        p.document.spec.keep
        for p in d.concerning(worker)
        if isinstance(p.document, CheckpointPolicy) and d.covered(p)[worker.id] is not False
    ]
    return max([1, *(k.last for k in wanted)]), max([0.0, *(float(k.within) for k in wanted if k.within is not None)])
