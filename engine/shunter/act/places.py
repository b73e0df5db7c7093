"""Where workers live that don't live on plain hosts: pods, of which one has to be there before a worker can come to it.

What is done there is safe to do twice. Pods are found again by the operation, so that whoever takes it up goes on with the same ones; which
ones they are is durable in its record before a worker is touched.
"""

from collections.abc import Callable
from typing import Protocol

from shunter.model.ids import NodeId, SlotId
from shunter.model.operation import OperationRecord
from shunter.model.pod import Pod, Resident


class Places(Protocol):
    """Makes and removes pods. All raise Retry (nothing was done) and Unknown (it may have been: do it again)."""

    async def prepare(
        self, record: OperationRecord, slot: SlotId, left: Pod | None, who: Resident, may_go_on: Callable[[], None]
    ) -> Pod | None:
        """Have a pod run on the slot's node that idles until the worker comes, made as the one that it leaves is. None: it needs none.

        `may_go_on` is called before each effect and while it is waited for, and what it raises ends the waiting. Raises Rejected SH560 (it
        doesn't run there, and why), SH561 (it isn't known how it is to be made).
        """
        ...

    def strange(self, pod: Pod, node: NodeId) -> str:
        """Why the pod can't be that of a worker on `node`, as a sentence about it; empty: it can."""
        ...

    async def keep(self, record: OperationRecord, pod: Pod) -> None:
        """The worker runs in the pod: it is one of its pool from now on, and the router may be sent to it."""
        ...

    async def remember(self, record: OperationRecord, pod: Pod) -> None:
        """Keep how the pod was made for the time when its worker comes back. Raises Rejected SH561 when the pod isn't there."""
        ...

    async def show(self, pod: Pod, *, shown: bool) -> None:
        """Have a pod that is ready only while the engine says so be it, or not. Of any other nothing is done."""
        ...

    async def retire(self, pod: Pod) -> None:
        """Delete the pod that a worker has left, and no other of its name."""
        ...

    async def withdraw(self, record: OperationRecord) -> None:
        """Delete what `prepare` made, unless a worker runs in it."""
        ...
