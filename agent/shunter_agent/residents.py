"""Workers in this node's pods, which others have started: found, and from then on looked after like the node's own.

A pod is taken once. When its worker leaves by an order, the kubelet may start the pod's container anew before the pod is deleted; what then
runs in it is no worker, and must not be taken for the one that lives elsewhere by now. Only a worker that ended by itself may come again
where it was.
"""

import asyncio
from typing import Final

import msgspec
from shunter.model.errors import Problem, ShunterError
from shunter.model.pod import Pod

from shunter_agent.journal import WorkerRow
from shunter_agent.node import Node
from shunter_agent.runtime.port import Found, Housing, WorkerSpec

_TAKEN: Final = "pod/"


class Residents:
    """Looks for them now and then. One per agent; all of it belongs to the event loop's thread."""

    def __init__(self, node: Node, housing: Housing, every_s: float) -> None:
        self._node, self._housing, self._every_s = node, housing, every_s
        self._said: dict[str, Problem] = {}
        self._taken: set[str] = set()
        """Uids of pods that were found to be taken; the journal's word counts."""

    async def run(self) -> None:
        """Look until cancelled. What fails is said once, and tried again."""
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Take the workers that have come. Raises nothing."""
        self._taken = {uid for uid in self._taken if self._node.journal.started(_TAKEN + uid)}
        try:
            found = await self._node.in_thread(self._housing.residents, frozenset(self._taken))
        except (ShunterError, OSError) as error:
            self._say("", error.problem if isinstance(error, ShunterError) else _unseen(error))
            return
        self._said.pop("", None)
        for one in found:
            try:
                await self._take(one)
            except ShunterError as error:
                self._say(one.spec.worker, error.problem)

    async def _take(self, found: Found) -> None:
        node, pod = self._node, found.spec.pod
        if pod is None:
            return
        if node.journal.started(_TAKEN + pod.uid):
            self._taken.add(pod.uid)
            return
        if self._is_known(found.spec.worker):
            row = node.journal.worker(found.spec.worker)
            if row is not None and row.spec.pod is not None and row.spec.pod.namespace != pod.namespace:
                self._say(f"{pod}", _namesake(found.spec.worker, row.spec.pod, pod))
            return
        slot = self._slot(found.spec)
        if slot is None:
            self._say(found.spec.worker, _no_slot(found.spec, node.settings.node))
            return
        network = await node.in_thread(node.runtime.network, found.spec, found.process)
        if self._is_known(found.spec.worker) or slot in node.occupied() or slot in node.journal.reservations():  # meanwhile
            await node.in_thread(network.destroy)
            return
        spec = found.spec if found.spec.gpus else msgspec.structs.replace(node.placed(found.spec, slot), gpus=())
        with node.journal.batch():
            node.journal.note_started(_TAKEN + pod.uid)
            node.journal.put_worker(WorkerRow(spec=spec, process=found.process, slot=slot, incarnation=0))
        node.adopt(spec.worker, found.process, network)
        self._said.pop(spec.worker, None)
        node.log.info("worker found in a pod", worker=spec.worker, pod=str(spec.pod), slot=slot, pid=found.process.pid)

    def _is_known(self, worker: str) -> bool:
        node = self._node
        expected = any(kept.worker_id == worker for kept in node.journal.reservations().values())
        return expected or node.journal.worker(worker) is not None or worker in node.held or worker in node.leaving

    def _slot(self, spec: WorkerSpec) -> str | None:
        """The free slot that has the worker's GPUs, or else the first that takes its role. None: there is none."""
        node, kept = self._node, self._node.journal.reservations()
        occupied = node.occupied()
        free = [
            name
            for name, slot in sorted(node.settings.slot_ids().items(), key=lambda pair: pair[1].index)
            if name not in occupied and name not in kept and spec.role in slot.roles
        ]
        of_gpus = [name for name in free if spec.gpus and {gpu.pci for gpu in node.slot_gpus.get(name, ())} == set(spec.gpus)]
        return next(iter(of_gpus or free), None)

    def _say(self, about: str, problem: Problem) -> None:
        if self._said.get(about) != problem:
            self._said[about] = problem
            self._node.log.problem(problem, worker=about)


def _no_slot(spec: WorkerSpec, node: str) -> Problem:
    return Problem(
        code="SH679",
        what=f"{node} has no free slot for the {spec.role} worker in pod {spec.pod}",
        remedy="Give the agent's settings a [[slots]] entry for each worker that the node can have",
        subject=spec.worker,
    )


def _namesake(worker: str, taken: Pod, other: Pod) -> Problem:
    return Problem(
        code="SH679",
        what=f"the pod {other} isn't looked after: its worker is called {worker}, as that of {taken} is",
        remedy="Name in [containers] `namespaces` the one whose workers are this engine's, or give the pods other names",
        subject=worker,
    )


def _unseen(error: OSError) -> Problem:
    return Problem(
        code="SH679",
        what=f"this node's pods can't be looked at: {error}",
        remedy="Run the agent with hostPID and the mounts of deploy/kubernetes",
    )
