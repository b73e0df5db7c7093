"""What is only hinted at: that a node or GPU may go, or will in a long time. A hint moves nothing unless a policy answers to its kind; it
makes losses likelier, so that images are taken more often meanwhile, and it keeps nobody from leaving.
"""

from shunter.decide.world import World
from shunter.model.snapshot import Notice, Worker


def hint(world: World, worker: Worker) -> Notice | None:
    """The open hint about the worker's node or slot that was seen first, or None."""
    found = [n for n in _about(world, worker) if n.hint(world.at)]
    return min(found, key=lambda n: (n.seen_at, n.id), default=None)


def condemned(world: World, worker: Worker) -> str | None:
    """Why nothing voluntary is done with a worker where it is, as `World.leaving`, but for what is only hinted at."""
    if worker.node is not None and ((known := world.nodes.get(worker.node)) is None or not known.reachable):
        return f"{worker.node} is going, or doesn't answer"
    sure = next((n for n in _about(world, worker) if not n.hint(world.at)), None)
    if sure is None:
        return None
    return f"{worker.node} is going, or doesn't answer" if sure.slot is None else f"a notice is open for a GPU of {worker.slot}"


def _about(world: World, worker: Worker) -> list[Notice]:
    open_for = world.notices.get(worker.node, ()) if worker.node is not None else ()
    return [n for n in open_for if n.slot in (None, worker.slot)]
