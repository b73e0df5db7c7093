"""The way in which an engine takes over what an earlier one left: adopt it under its own epoch, and let the scheduler take it up."""

from fleet_in_memory import World
from shunter.act.execute import Executor
from shunter.act.scheduler import Scheduler


async def take_over(world: World) -> None:
    """Lead under a new epoch until nothing runs any more, and stop. What still waits for an agent stays active.

    Raises the `Crash` that it meets on the way.
    """
    executor = Executor(world.parts(), world.epoch())
    world.store.adopt(executor.epoch)
    scheduler = Scheduler(executor)
    try:
        scheduler.pump()
        await scheduler.idle()
    finally:
        await scheduler.stop()
