"""What a node is to do by itself when it gets a notice while no engine can be reached, and what it did.

A standing order never starts a copy, and a copy is ended by it only where its image was sent to another node and the notice's deadline is
over: then an engine that has heard nothing since may take the node for dead, and restore the image. So no worker lives twice, whatever
comes back in the middle of it.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Final, Literal

import msgspec

from shunter.model.canon import digest, encode
from shunter.model.ids import Commit, Digest, Epoch, ImageId, Incarnation, NodeId, NoticeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.snapshot import FAR_S, NoticeKind

NEVER: Final = 253402300799.0
"""In place of the deadline of a notice that has none, in what was done about it: agents and engines of before take it for far ahead."""
_IMAGE: Final = re.compile(r"(standing-[0-9a-f]{16})-([a-z-]+)-([0-9]{1,12})", re.ASCII)


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is to hold an image, and the `host:port` where its agent takes images."""

    node: NodeId
    address: str


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done for one worker, if it still is this incarnation in this slot.

    `checkpoint`: out of the router's sight, and an image of it to the first of `holders` that takes it; it runs on. `fence`: the former
    alone. `kinds` are the notices that the policy answers to.
    """

    worker: WorkerId
    incarnation: Incarnation
    slot: SlotId
    act: Literal["checkpoint", "fence"]
    policy: PolicyName
    kinds: tuple[NoticeKind, ...]
    holders: tuple[Holder, ...] = ()


class StandingOrder(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One node's, by the engine of `epoch`. Times in seconds since the epoch; `silence` is for how many seconds nothing may have been heard
    of an engine before it counts. `stands` are in the order in which they are done. `heard`: what the engine has been told that the node
    did by itself, by operation, with its `at` as the node said it; no two clocks are compared for that.
    """

    node: NodeId
    epoch: Epoch
    issued_at: float
    valid_until: float
    silence: float
    commit: Commit
    policy_set: Digest
    stands: tuple[Stand, ...] = ()
    heard: Mapping[OperationId, float] = {}

    @cached_property
    def id(self) -> Digest:
        """`sha256:...` over the canonical bytes."""
        return digest(self)


class Stood(msgspec.Struct, frozen=True, kw_only=True):
    """What a node did, or tried, for one worker because of one notice. Times in seconds since the epoch, by its clock.

    `deadline` is the notice's, `NEVER` where it has none: then no end of the worker was promised either.

    `begun`: it is at it. `done`: its image is on node `holder` (None: the act asks for none). `failed`: it is tried again until the
    deadline. `stopped`: an engine was heard of before it was done. `withdrawn`: the notice was taken back, and the worker shown again.
    `ended`: the deadline was over, no engine had given an order since, and so the worker was ended. With any of them, `holder` is a node
    that has the image, or may have it.
    """

    operation: OperationId
    node: NodeId
    stand: Stand
    order: Digest
    epoch: Epoch
    commit: Commit
    notice: NoticeId
    kind: NoticeKind
    deadline: float
    state: Literal["begun", "done", "failed", "stopped", "withdrawn", "ended"]
    began_at: float
    at: float
    image: ImageId | None = None
    holder: NodeId | None = None
    code: str = ""
    detail: str = ""
    heard: bool = False


def let_be(kind: NoticeKind, deadline: float | None, *, dumpable: bool, act: Literal["checkpoint", "fence"], now: float) -> str:
    """Why a node does nothing by itself about a notice that its standing order answers to, in words; empty: it does what it can.

    Without a deadline it makes an image, and the worker serves on: nobody knows for how long it would be out of the router's sight.
    """
    far = deadline is not None and deadline - now > FAR_S
    if kind is NoticeKind.REBALANCE or (kind is NoticeKind.MAINTENANCE and far):
        return "a hint waits for the engine"
    if kind is NoticeKind.GONE or not dumpable:
        return "nothing can be dumped there any more"
    if deadline is not None and now >= deadline:
        return "its deadline is over"
    if deadline is None and act == "fence":
        return "it has no deadline, and nobody knows for how long the worker would be out of the router's sight"
    return ""


def operation_of(stand: Stand, epoch: Epoch, notice: NoticeId, deadline: float | None = 0.0) -> OperationId:
    """`standing-<16 hex>`: the same for the same worker, incarnation, engine and notice. A notice that is given a deadline (None: it has
    none) is another: more is to be done about it.
    """
    parts = encode([stand.worker, stand.incarnation, epoch, notice, *(["undated"] if deadline is None else [])])
    return OperationId(f"standing-{hashlib.sha256(parts).hexdigest()[:16]}")


def image_of(operation: OperationId, kind: NoticeKind, deadline: float) -> ImageId:
    """The image's name says why it was taken: whoever finds it on another node learns of the notice, also when its own node is dead."""
    return ImageId(f"{operation}-{kind.value}-{max(0, int(deadline))}")


def why(image: ImageId) -> tuple[NoticeKind, float] | None:
    """The notice that an image was taken for under a standing order: its kind and its deadline. None for any other image."""
    found = _IMAGE.fullmatch(image)
    if found is None or found[2] not in {kind.value for kind in NoticeKind}:
        return None
    return NoticeKind(found[2]), float(found[3])


def taken_by(image: ImageId) -> OperationId | None:
    """The operation that an image was taken by under a standing order. None for any other image."""
    found = _IMAGE.fullmatch(image)
    return OperationId(found[1]) if found is not None else None
