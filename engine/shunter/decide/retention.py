"""Retention: images that no policy keeps any longer are discarded, one of a worker at a time, and never the last that it could come back
from. A worker that is left to Kubernetes comes back from none: after an hour all of its images go.
"""

from collections.abc import Iterable
from typing import Final

from shunter.decide.deciding import Deciding
from shunter.decide.history import said
from shunter.decide.plan import round_of
from shunter.decide.words import clock, count
from shunter.model.finding import Evidence, Verdict
from shunter.model.plan import OperationKind, Preconditions
from shunter.model.policy import CheckpointPolicy, Policy
from shunter.model.snapshot import Image, Worker
from shunter.model.units import Duration

LEFT_S: Final = 3600.0
"""Seconds after which nothing is kept of a worker that has gone with its pod, as a rollout or a smaller pool has it."""
_RETRY = 60.0
"""Seconds after a discard that failed before it is tried again, doubled with each further failure."""


def retain(d: Deciding, policy: Policy) -> None:
    """Plan a discard for every covered worker that has images to spare and nothing else to do."""
    several, left = d.world.several, d.world.left
    for worker in d.subjects(policy) if several or left else ():
        # the only image of a worker that can come back is never one too many
        if worker.id in left and worker.id in d.world.images and d.covered(policy)[worker.id] is not False:
            _retain(d, policy, worker, _useless(d, worker))
        elif worker.id in several and d.covered(policy)[worker.id] is True:
            _retain(d, policy, worker, _spare(d, worker))


def _retain(d: Deciding, policy: Policy, worker: Worker, spare: Image | None) -> None:
    since = worker.left_at
    busy = d.ledger.blocked(worker.id) if since is None else d.ledger.engaged(worker.id)
    held = d.outdated() or busy or d.involuntary(worker.graph, preview=policy.mode == "preview")
    if spare is None or held is not None:
        return
    cause = round_of(f"retention:{spare.id}", spare.taken_at, d.now)
    failed = d.history.failures(OperationKind.DISCARD, worker.id, cause)
    if failed and failed[-1].outcome and d.now < failed[-1].outcome.at + _RETRY * 2.0 ** min(len(failed) - 1, 6):
        return
    gate, reason, told, detail = _beyond(d, worker, spare) if since is None else _gone(worker, since)
    d.plan(
        policy,
        OperationKind.DISCARD,
        worker,
        Preconditions(incarnation=worker.incarnation, image=spare.id, absent=since is not None),
        cause=cause,
        reason=reason + (f"; tried before: {said(failed[-1])}" if failed else ""),
        image=spare.id,
    )
    earlier = d.said(policy, worker)
    evidence = Evidence(gate=gate, result=True, detail=detail)
    d.find(
        policy,
        worker.id,
        Verdict.ACT,
        f"{spare.id} is discarded: {told}",
        gate=gate,
        evidence=(*(earlier.evidence if earlier else ()), evidence),
    )


def _beyond(d: Deciding, worker: Worker, spare: Image) -> tuple[str, str, str, str]:
    """The gate of an image beyond what is kept, and in words why it goes, in a sentence and in short, and the figures."""
    last, within = _kept(d, worker)
    beyond = f" and than {Duration(within)}" if within else ""
    reason = f"{worker.id}: {spare.id} is older than the {count(last, 'image')} kept{beyond}"
    if spare.doubt:
        reason = f"{worker.id}: {spare.id} isn't to be trusted, and {count(last, 'image')} that can be are kept: {spare.doubt}"
    detail = f"{len(d.world.images[worker.id])} images, {last} kept{f', and those younger than {Duration(within)}' if within else ''}"
    return "keep.last", reason, f"{count(last, 'newer image')} kept", detail


def _gone(worker: Worker, since: float) -> tuple[str, str, str, str]:
    """The same of an image that nobody comes back from."""
    reason = f"{worker.id} is left to Kubernetes since {clock(since)}: {worker.pinned}"
    detail = f"seen to be gone since {clock(since)}, and images are kept for {Duration(LEFT_S)} more"
    return "worker.left", reason, "nobody comes back from it", detail


def _useless(d: Deciding, worker: Worker) -> Image | None:
    """The oldest image of a worker that is left to Kubernetes for long enough; None: there is none that can be deleted now."""
    if worker.left_at is None or d.now - worker.left_at < LEFT_S:
        return None
    return _oldest(d, d.world.images[worker.id])


def _spare(d: Deciding, worker: Worker) -> Image | None:
    """The oldest image that is beyond what is kept, or None.

    Only images on nodes that stay count as kept: one on a node that is going may be gone before it is needed, and one in the archive
    takes longer to come back than `keep` was written for. Nor does one that isn't to be trusted, which goes once enough others are kept.
    An image is left alone while one of its holders doesn't answer, or nobody who knows of the archive that has it (its copy there couldn't
    be deleted), or an operation refers to it.
    """
    last, within = _kept(d, worker)
    kept = [i for i in d.world.trusted(worker.id) if any(d.world.stays(n) for n in i.nodes)][:last]
    if len(kept) < last:
        return None
    oldest = kept[-1]
    own = d.world.images[worker.id]
    older = [i for i in own if i.doubt or (i.incarnation, i.taken_at) < (oldest.incarnation, oldest.taken_at)]
    return _oldest(d, [i for i in older if d.now - i.taken_at > within])


def _oldest(d: Deciding, images: Iterable[Image]) -> Image | None:
    """Of those that can be deleted now, wherever they are."""
    ready = [
        i
        for i in images
        if i.id not in d.ledger.images
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
