"""Names of things. Each is a NewType so that a node can't be passed where a worker is meant."""

from typing import NewType

WorkerId = NewType("WorkerId", str)
"""Stable over moves and restores: the same worker, wherever its bytes are."""

NodeId = NewType("NodeId", str)
SlotId = NewType("SlotId", str)
"""`<node>/<index>`: a group of GPUs of one node that one worker can occupy."""

PoolId = NewType("PoolId", str)
"""`<graph>/<role>`: the workers of one role of one Dynamo graph."""

ImageId = NewType("ImageId", str)
NoticeId = NewType("NoticeId", str)
OperationId = NewType("OperationId", str)
PolicyName = NewType("PolicyName", str)
Commit = NewType("Commit", str)
"""A full Git commit id, or `directory:<digest>` for policies read from a directory."""

Digest = NewType("Digest", str)
"""`sha256:<hex>` over a value's canonical bytes (see `model.canon`)."""

Epoch = NewType("Epoch", int)
"""The engine's leadership number. Rises with every leader; agents refuse a lower one than they have seen."""

Incarnation = NewType("Incarnation", int)
"""0 for a native start; rises by one with each restore of the worker."""


def slot_id(node: NodeId, index: int) -> SlotId:
    """The slot `index` (from 0) of `node`."""
    return SlotId(f"{node}/{index}")


def node_of(slot: SlotId) -> NodeId:
    """The node that `slot` belongs to."""
    return NodeId(slot.rpartition("/")[0])


def pool_id(graph: str, role: str) -> PoolId:
    """The pool of `role` workers in `graph`."""
    return PoolId(f"{graph}/{role}")
