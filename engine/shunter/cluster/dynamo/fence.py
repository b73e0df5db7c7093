"""Seeing that a pod is out of the routers' sight: Dynamo's discovery on Kubernetes takes workers whose pods are ready in an EndpointSlice.

The pod's readiness gate says whether it is to be seen; that the slices have followed is another controller's doing, and takes a moment.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from shunter.cluster.api import Absent, Api, Object
from shunter.cluster.dynamo.words import pods
from shunter.model.errors import Problem, Retry
from shunter.model.pod import SERVING, Pod

FOLLOWS_S: Final = 5.0
"""For so long it is waited for the slices: a kubelet looks at readiness gates within a second, and the slices' controller at once."""
_LOOK_S: Final = 0.1


class Slices:
    """`act.router.Router` by EndpointSlices."""

    def __init__(
        self, api: Api, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        """`clock`: seconds that never go back."""
        self._api, self._clock, self._sleep = api, clock, sleep

    async def unseen(self, pod: Pod) -> None:
        """See `Router`."""
        if not await self._gated(pod):
            return
        until = self._clock() + FOLLOWS_S
        while seen := await self._ready_in(pod):
            if self._clock() >= until:
                raise Retry(
                    Problem(
                        code="SH279",
                        what=f"the pod's readiness gate says no, and EndpointSlice {seen} has it as ready after {FOLLOWS_S:g} s",
                        remedy="Look whether the node's kubelet and the cluster's controllers run; the worker is put back and runs on",
                        subject=str(pod),
                    )
                )
            await self._sleep(_LOOK_S)

    async def _gated(self, pod: Pod) -> bool:
        try:
            found = await self._api.get(f"{pods(pod.namespace)}/{pod.name}")
        except Absent:
            return False
        gates = found["spec"].get("readinessGates") or ()
        return found["metadata"].get("uid") == pod.uid and any(gate.get("conditionType") == SERVING for gate in gates)

    async def _ready_in(self, pod: Pod) -> str:
        """The name of a slice that has it as ready; empty: none does."""
        query: dict[str, str | int] = {"limit": 500}
        while True:
            page = await self._api.get(f"/apis/discovery.k8s.io/v1/namespaces/{pod.namespace}/endpointslices", query)
            for one in page.get("items") or ():
                if any(_shows(endpoint, pod.uid) for endpoint in one.get("endpoints") or ()):
                    return str(one["metadata"]["name"])
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return ""
            query["continue"] = token


def _shows(endpoint: Object, uid: str) -> bool:
    """What isn't said counts as ready, as Kubernetes has it."""
    ready = (endpoint.get("conditions") or {}).get("ready")
    return (endpoint.get("targetRef") or {}).get("uid") == uid and ready is not False
