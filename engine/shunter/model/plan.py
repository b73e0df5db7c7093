"""Ordered operations with preconditions, destinations, estimates and reasons. Same inputs, same bytes."""

import enum
from collections.abc import Sequence
from functools import cached_property

import msgspec

from shunter.model.canon import digest
from shunter.model.finding import Finding, Lane
from shunter.model.ids import Commit, Digest, ImageId, Incarnation, NodeId, NoticeId, OperationId, PolicyName, PoolId, SlotId, WorkerId


class OperationKind(enum.StrEnum):
    """The units of work."""

    CHECKPOINT = "checkpoint"
    """Take an image; the worker runs on."""
    MOVE = "move"
    PARK = "park"
    """Take an image to another node, then end the worker; its sessions wait in the image."""
    RESTORE = "restore"
    """Bring a parked or lost worker back from an image."""
    REASSIGN = "reassign"
    """Flip a worker's role in place. Only for engines that can."""
    DRAIN = "drain"
    """Leave the router, finish the streams, end."""
    DISCARD = "discard"
    """Delete an image that retention no longer keeps."""


class Preconditions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What must still be true when the operation starts: checked by the engine and again by the agents. None or empty: not required.

    `free` slots may also be held by this very operation or freed by one in `after`.
    """

    incarnation: Incarnation
    at: SlotId | None = None
    """The worker occupies this slot."""
    absent: bool = False
    """The worker has no live process anywhere."""
    free: SlotId | None = None
    image: ImageId | None = None


class Estimate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the operation is expected to cost, and from what: seconds stopped, bytes moved, seconds in all. None: unknown."""

    bytes: int | None = None
    stopped: float | None = None
    total: float | None = None
    basis: str = ""


class PlannedOperation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One operation of a plan.

    `id` is derived from kind, subject, cause and attempt, so the same decision made again is the same operation.
    `after` are operations of this plan that must have succeeded first. `copies` are nodes to hold the image, for checkpoint and park.
    `deadline` is when it must have ended, seconds since the epoch.
    """

    id: OperationId
    kind: OperationKind
    worker: WorkerId
    lane: Lane
    policy: PolicyName
    reason: str
    expect: Preconditions
    from_slot: SlotId | None = None
    to_slot: SlotId | None = None
    image: ImageId | None = None
    copies: tuple[NodeId, ...] = ()
    archive: bool = False
    """Of a checkpoint: once the copies are whole, its image goes to the archive as well."""
    after: tuple[OperationId, ...] = ()
    notice: NoticeId | None = None
    cause: str = ""
    """What the attempt counter runs over: `notice:<id>`, `every:<period number>`, `shift:<policy>:<since>`, ..."""
    attempt: int = 0
    deadline: float | None = None
    estimate: Estimate = Estimate()
    preview: bool = False
    """The policy's mode is `preview`: shown and audited, never carried out."""
    pool: PoolId | None = None
    """The pool that its worker serves in, also once the worker is gone. None: not recorded."""
    hands_to: PoolId | None = None
    """The pool that gets what the worker leaves, by a worker that is started natively for it. None: nobody is started."""
    ahead: float | None = None
    """Of a move: seconds for which its worker's memory may be copied to where it goes while it still runs. None: nobody waits for it, and
    its agent decides."""
    golden: str = ""
    """The golden image (a `PodSnapshot` of Dynamo Snapshot) that the worker of `hands_to` starts from, if it can. Empty: none."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The operations decided at one instant, in order: involuntary by deadline and value, then voluntary by priority.

    `after` of an operation always names earlier ones of the same plan.
    """

    at: float
    commit: Commit
    policy_set: Digest
    snapshot: Digest
    operations: tuple[PlannedOperation, ...] = ()

    @cached_property
    def digest(self) -> Digest:
        """`sha256:...` over the canonical bytes."""
        return digest(self)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """All that `evaluate` says: every finding, also of what isn't done and why, and the plan. `evaluate` gives findings that are worked out
    when one is first looked at.
    """

    findings: Sequence[Finding]
    plan: Plan
