"""Pods that are ready only while the engine says so: saying it of those that Dynamo has started and whose workers serve.

Without that word such a pod is never ready, and nobody is sent to it. Of pods that operations have made it is said by what settles those.
"""

from collections.abc import Callable, Coroutine, Set

from shunter.act.beside import Beside
from shunter.act.places import Places
from shunter.cluster.estate import Estate
from shunter.model.ids import WorkerId
from shunter.model.pod import Pod
from shunter.model.snapshot import Fleet, WorkerState


class Showing:
    """Looks at each tick, and says it beside all else. `busy` are workers with an operation under way: those say it themselves.
    `still_leads` raises once we don't: the next engine may just have closed the gate of a pod whose worker it moves.
    """

    def __init__(
        self,
        orders: Beside,
        estate: Callable[[], Estate],
        places: Places,
        busy: Callable[[], Set[WorkerId]],
        still_leads: Callable[[], None],
    ) -> None:
        self._orders, self._estate, self._places, self._busy, self._still_leads = orders, estate, places, busy, still_leads

    def look(self, fleet: Fleet) -> None:
        """Begin to say it of those that it isn't said of yet."""
        self._orders.check()
        pods, busy = self._estate().pods, self._busy()
        wanted = set()
        for worker in fleet.workers:
            known = pods.get(worker.pod.uid) if worker.pod is not None and worker.slot is not None else None
            if known is None or not known.hidden or known.operation or worker.state is not WorkerState.RUNNING or worker.id in busy:
                continue
            wanted.add(str(known.pod))
            self._orders.begin(str(known.pod), self._order(worker.id, known.pod))
        self._orders.keep(wanted)

    async def stop(self) -> None:
        """Say nothing more."""
        await self._orders.stop()

    def _order(self, worker: WorkerId, pod: Pod) -> Callable[[], Coroutine[None, None, None]]:
        async def show() -> None:
            if worker not in self._busy():
                self._still_leads()
                await self._places.show(pod, shown=True)

        return show
