"""What the agent needs of a serving stack. One implementation per way that routers find their workers."""

from typing import Protocol

from shunter_agent.runtime.port import WorkerSpec


class Serving(Protocol):
    """Calls block; they are made from worker threads."""

    def fence(self, spec: WorkerSpec) -> str:
        """Take it out of the router's discovery and verify that; in-flight requests go on. Returns the evidence in words. Idempotent.

        Raises Rejected SH621 (it can't be fenced); Retry SH622 (it doesn't answer), SH623 and SH627 (it stays in discovery; it was put
        back), SH625 (its records can't be taken out).
        """
        ...

    def unfence(self, spec: WorkerSpec) -> str:
        """The reverse of `fence`; what was lost of its records meanwhile is there again, too. Idempotent.

        Raises Retry SH622, SH624 (it isn't in discovery), SH626 (its records can't be put back).
        """
        ...

    def inflight(self, spec: WorkerSpec) -> int:
        """Requests that it serves or has queued. Raises Rejected SH621, Retry SH622."""
        ...
