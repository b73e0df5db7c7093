"""After a restart: everything that was under way is taken over under the new epoch, and the agents' journals say how to go on.

The decision itself is `resolve`, which is pure; it is carried out by the same handlers that would have carried the operation on.
"""

import asyncio
import contextlib

import msgspec

from shunter.act.execute import Executor
from shunter.act.resolve import Action, Resolution, resolve
from shunter.act.run import Unresolved
from shunter.model.errors import Stalled
from shunter.model.operation import OperationRecord

__all__ = ["Action", "Recovered", "Resolution", "recover", "resolve"]


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the operations that an earlier engine left: `ended` have an outcome, `open` still wait for an agent, the disk, or
    their turn in a chain.
    """

    ended: tuple[OperationRecord, ...] = ()
    open: tuple[OperationRecord, ...] = ()


async def recover(executor: Executor) -> Recovered:
    """Adopt all active operations under the executor's epoch and settle them, all at once, as each waits for its own agents.

    What waits for its turn was never begun: it is ended if the turn won't come any more; otherwise the scheduler begins it, so that no
    node dumps two workers at once and nothing urgent waits for a whole chain.

    Raises Stalled SH501 when they can't even be adopted. Those left open are tried again by calling this again.
    """
    store = executor.parts.store
    adopted = store.adopt(executor.epoch)
    await asyncio.gather(*(_one(executor, record) for record in adopted))
    with contextlib.suppress(Stalled):
        executor.drop_fallen()
    results = [store.get(record.id) or record for record in adopted]
    return Recovered(ended=tuple(r for r in results if r.outcome), open=tuple(r for r in results if not r.outcome))


async def _one(executor: Executor, record: OperationRecord) -> None:
    with contextlib.suppress(Unresolved, Stalled):
        await executor.resume(record)
