"""One node as its agent reported it at one moment: what inventory is merged from."""

import msgspec

from shunter.model.ids import Epoch
from shunter.model.snapshot import Image, Node, Notice, Worker
from shunter.model.standing import Stood


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A report, in model terms. Each image names this node alone as its holder, each of `archived` none. `epoch` is the highest that the
    agent has seen.
    """

    node: Node
    workers: tuple[Worker, ...]
    images: tuple[Image, ...]
    notices: tuple[Notice, ...]
    epoch: Epoch
    at: float
    image_address: str = ""
    """Where other agents send images to, `host:port`."""
    archive_looked: float = 0.0
    """When it looked what the archive has, by its clock; seconds since the epoch. 0: not yet, or it knows of no archive."""
    archived: tuple[Image, ...] = ()
    """What the archive had then. The very same as another view's, where it is equal."""
    stood: tuple[Stood, ...] = ()
    """What it did under standing orders."""
