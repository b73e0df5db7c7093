"""What the agent needs of a serving stack. One implementation per way that routers find their workers."""

from typing import Protocol

from shunter_agent.runtime.port import WorkerSpec


class Serving(Protocol):
    """Calls block; they are made from worker threads."""

    def fence(self, spec: WorkerSpec) -> str:
        """Take it out of the router's discovery and verify that; in-flight requests go on. Returns the evidence in words. Idempotent.

        Raises Rejected SH621 (it can't be fenced), Retry SH622 (it doesn't answer), Retry SH623 (it stays in discovery; it was put back).
        """
        ...

    def unfence(self, spec: WorkerSpec) -> str:
        """The reverse of `fence`. Idempotent. Raises the same."""
        ...

    def inflight(self, spec: WorkerSpec) -> int:
        """Requests that it serves or has queued. Raises Rejected SH621, Retry SH622."""
        ...
