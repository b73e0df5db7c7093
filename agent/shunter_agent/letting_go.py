"""Whether this node may be let go before its time: nobody lives here, and no image is here that may be all that is left of a worker.

What other nodes hold is the engine's to know. This node knows what it has sent, and what its archive has; of anything else it says nothing:
an event that isn't acknowledged goes ahead at its own time, and nothing is lost by that.
"""

from collections.abc import Callable, Iterable

from shunter.model.errors import ShunterError
from shunter.wire import agent_pb2 as pb

from shunter_agent.depot import ImageFacts
from shunter_agent.journal import Entry
from shunter_agent.node import Node


def may_go(node: Node, ask: Callable[[Callable[[], bool]], bool]) -> bool:
    """For any thread that may wait for a disk; `ask` has the node's own thread answer a question."""
    if not ask(node.empty):
        return False
    try:
        images, archive = node.depot.all(), node.depot.archived()
    except (OSError, ShunterError):
        return False
    archived = {image.id for image in archive.images} if archive is not None else set[str]()
    alone = [image for image in newest(images) if image.id not in archived]
    return ask(lambda: node.empty() and all(_sent(image, node.journal.left(image.spec.worker)) for image in alone))


def newest(images: Iterable[ImageFacts]) -> list[ImageFacts]:
    """Each worker's: it is the one that it would come back from. Nobody comes back from one that isn't to be trusted."""
    found: dict[str, ImageFacts] = {}
    for image in sorted((i for i in images if not i.doubt), key=lambda i: (i.incarnation, i.taken_at)):
        found[image.spec.worker] = image
    return list(found.values())


def _sent(image: ImageFacts, steps: Iterable[Entry]) -> bool:
    """A freeze has sent it while it was written, if it says for how long; or it was sent as a whole."""
    for step in steps:
        if step.step == "freeze":
            reply = pb.FreezeReply.FromString(step.reply)
            if reply.image.id == image.id and reply.send_s > 0:
                return True
        elif step.step.endswith(f":{image.id}"):
            return True
    return False
