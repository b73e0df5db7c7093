"""Whether routers still see a worker in a pod, where they find it by the pod's readiness: seen from where they look, not from the pod."""

from typing import Protocol

from shunter.model.pod import Pod


class Router(Protocol):
    """Looks; changes nothing."""

    async def unseen(self, pod: Pod) -> None:
        """Return once no router finds the worker by this pod. At once where nobody looks for it so: a pod whose readiness isn't ours to
        say, or that no Service has.

        Raises Retry SH279 when routers find it still, and as requests to the API server do.
        """
        ...
