"""Waiting for a pod to run where it is meant to, or for what says that it won't.

What follows the cluster tells it for nothing, however many are waited for; the API server itself is asked now and then, in case that has
fallen behind.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from shunter.cluster.pods import UNSCHEDULABLE, Being, WorkerPod
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import NodeId
from shunter.model.pod import Pod

LOOK_S: Final = 0.3
ASK_S: Final = 3.0
"""Between two questions to the API server about one pod."""
_HOPELESS: Final = ("ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError", "RunContainerError")


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: for a pod to run, for a scheduler that finds no room to find some, and for a deleted pod to be gone."""

    running: float = 120.0
    room: float = 10.0
    gone: float = 60.0


class Awaiting:
    """`ask` gives the pod of a uid as the server has it, None where it hasn't; `seen` as our copy has it. `clock`: seconds that never go
    back.
    """

    def __init__(
        self,
        ask: Callable[[Pod], Awaitable[WorkerPod | None]],
        seen: Callable[[str], WorkerPod | None],
        patience: Patience,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._ask, self._seen, self._patience, self._clock, self._sleep = ask, seen, patience, clock, sleep

    async def until_it_runs(self, made: WorkerPod, node: NodeId, may_go_on: Callable[[], None]) -> Pod:
        """The pod, once its container runs on the node. Raises Rejected SH560 with what is against it, and what `may_go_on` does, which is
        called now and then.
        """
        pod: WorkerPod | None = made
        began = asked = self._clock()
        full_since: float | None = None
        while True:
            now = self._clock()
            if pod is None or pod.being in (Being.ENDING, Being.ENDED):
                raise Rejected(not_running(made.pod.name, node, pod.why if pod is not None else "somebody has deleted it"))
            if pod.being is Being.RUNNING:
                return _there(pod, node)
            full_since = (now if full_since is None else full_since) if pod.reason == UNSCHEDULABLE else None
            self._bear(pod, node, now - began, 0.0 if full_since is None else now - full_since)
            may_go_on()
            await self._sleep(LOOK_S)
            if self._clock() - asked < ASK_S:
                pod = self._seen(made.pod.uid) or pod
            else:
                asked = self._clock()
                with contextlib.suppress(Retry):  # an answer that didn't come says nothing of the pod
                    pod = await self._ask(made.pod)

    def _bear(self, pod: WorkerPod, node: NodeId, waited: float, full: float) -> None:
        if full >= self._patience.room or waited >= self._patience.running or pod.reason in _HOPELESS:
            raise Rejected(not_running(pod.pod.name, node, pod.why))


def _there(pod: WorkerPod, node: NodeId) -> Pod:
    if pod.node != node:
        raise Rejected(not_running(pod.pod.name, node, f"it runs on {pod.node}"))
    return pod.pod


def not_running(name: str, node: NodeId, why: str) -> Problem:
    """Why nobody can come to a pod. `node` empty: it isn't even made."""
    return Problem(
        code="SH560",
        what=f"the pod that the worker was to come to doesn't run on {node}: {why}" if node else f"the pod {name} can't be made: {why}",
        remedy="Look at the pod's events and at what its node has left; it is planned again if there is still a need",
        subject=name,
    )
